"""The stage itself: sources → cleaned documents → train and held-out files with a manifest."""

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.config import CorpusConfig, CorpusSettings, FilesSource, HubSource, Source, WheelSource
from attnscale.corpus.documents import Document, read_documents, write_documents
from attnscale.corpus.download import default_cache_dir, keep_hub_files_in
from attnscale.corpus.regroup import Counts, regroup
from attnscale.corpus.sources import open_source
from attnscale.corpus.split import held_out_flags
from attnscale.errors import UserError
from attnscale.files import write_json

if TYPE_CHECKING:
    import datasets

# Raw documents are cleaned in pieces of about this many characters, so that only clean text adds up in memory.
PIECE_CHARACTERS = 2**25


def build_corpus(settings: CorpusSettings, output_dir: Path, cache_dir: Path | None = None) -> None:
    """Read all sources, clean them, split the documents and write the result.

    Writes `train.jsonl` and `held_out.jsonl` (see `Document`; sorted by id) and `manifest.json`. Nothing
    is written before every source has been read and checked. The same texts give the same bytes on every
    machine; which documents are kept and held out does not depend on the order of the sources.

    Args:
        settings: table of sources and rules.
        output_dir: folder of the three files; made if it is missing.
        cache_dir: folder of downloads; None takes `default_cache_dir`.

    Raises:
        UserError: a source cannot be had or read or does not match its pin, or fewer than two documents
            are left.
        OSError: the file system refused.
    """
    rules = settings.corpus
    cache_dir = cache_dir if cache_dir is not None else default_cache_dir()
    if any(isinstance(source, HubSource) for source in rules.sources):
        keep_hub_files_in(cache_dir)
    # Imported late: after the lines above, and it takes a second that mere readers of documents need not wait.
    from attnscale.corpus.clean import RULES_VERSION, quiet_datasets

    with quiet_datasets():
        table, read, dropped = _collect(settings, cache_dir)
        if len(table) < 2:
            raise UserError(_too_few(len(table), read, dropped, rules))
        flags = held_out_flags(list(table["id"]), rules.held_out_fraction)
        _count_kept(table, read)
        train, held_out = output_dir / "train.jsonl", output_dir / "held_out.jsonl"
        write_documents(train, _documents(table, [not flag for flag in flags]))
        write_documents(held_out, _documents(table, flags))
    manifest = {
        "cleaning": {
            "rules_version": RULES_VERSION,
            "min_characters": rules.min_characters,
            **({} if rules.min_han_share is None else {"min_han_share": rules.min_han_share}),
        },
        "dropped": dropped,
        "sources": read,
        "split": {"held_out_fraction": rules.held_out_fraction, **_count_sides(train, held_out)},
    }
    write_json(output_dir / "manifest.json", manifest)


def _collect(
    settings: CorpusSettings, cache_dir: Path
) -> tuple["datasets.Dataset", list[dict[str, Any]], dict[str, int]]:
    """Read and clean all sources: kept rows sorted by id, one record per source, dropped documents by reason."""
    import datasets

    from attnscale.corpus.clean import clean_rows, drop_duplicates, empty_table

    rules = settings.corpus
    pieces = [empty_table()]
    records: list[dict[str, Any]] = []
    dropped = collections.Counter(too_short=0)
    for origin, source in enumerate(rules.sources):
        counts = Counts()
        with open_source(source, cache_dir) as opened:
            for piece in _pieces(regroup(opened.documents, source, counts), source, origin):
                table, reasons = clean_rows(piece, rules.min_characters, rules.min_han_share)
                pieces.append(table)
                dropped.update(reasons)
        records.append(
            {
                **_describe(source),
                "sha256": opened.sha256,
                "documents_read": counts.read,
                **_regrouped(source, counts),
                **({} if opened.skipped is None else {"skipped": dict(opened.skipped)}),
            }
        )
    kept = datasets.concatenate_datasets(pieces)
    unique = drop_duplicates(kept)
    limit = len(unique) if rules.max_documents is None else min(rules.max_documents, len(unique))
    dropped.update(duplicate=len(kept) - len(unique), beyond_max_documents=len(unique) - limit)
    return unique.select(range(limit), keep_in_memory=True), records, dict(dropped)


def _regrouped(source: Source, counts: Counts) -> dict[str, int]:
    """What the source's own rules did, if it has any."""
    found = {"dropped_same_title": counts.same_title} if source.one_per_title else {}
    if source.cut_at is not None or source.join_until is not None:
        found["documents_after_cutting_and_joining"] = counts.made
    return found


def _pieces(documents: Iterable[tuple[str, str]], source: Source, origin: int) -> Iterator[list[dict[str, object]]]:
    piece: list[dict[str, object]] = []
    characters = 0
    for title, text in documents:
        piece.append({"origin": origin, "source": source.name, "title": title, "text": text})
        characters += len(text)
        if characters >= PIECE_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


def _describe(source: Source) -> dict[str, str | None]:
    """What tells a source apart, for the manifest."""
    common = {"kind": source.kind, "name": source.name, "licence": source.licence}
    match source:
        case WheelSource():
            return {**common, "version": source.version}
        case HubSource():
            return {**common, "version": source.revision, "subset": source.subset, "split": source.split}
        case FilesSource():
            return {**common, "version": None}


def _count_kept(table: "datasets.Dataset", records: list[dict[str, Any]]) -> None:
    for record in records:
        record.update(documents_kept=0, characters=0)
    for row in table:
        record = records[row["origin"]]
        record["documents_kept"] += 1
        record["characters"] += len(row["text"])


def _documents(table: "datasets.Dataset", chosen: list[bool]) -> Iterator[Document]:
    for row, wanted in zip(table, chosen, strict=True):
        if wanted:
            yield Document(id=row["id"], source=row["source"], title=row["title"], text=row["text"])


def _count_sides(train: Path, held_out: Path) -> dict[str, Any]:
    """Counts of both sides, taken from the written files and not from what was meant to be written."""
    counts: dict[str, Any] = {}
    ids: list[set[str]] = []
    for path in (train, held_out):
        lengths = {document.id: len(document.text) for document in read_documents(path)}
        counts[path.stem] = {"documents": len(lengths), "characters": sum(lengths.values())}
        ids.append(set(lengths))
    overlap = len(ids[0] & ids[1])
    if overlap:
        raise RuntimeError(f"{overlap} documents are both in {train} and in {held_out}")
    return {**counts, "overlap": overlap}


def _too_few(kept: int, records: list[dict[str, Any]], dropped: dict[str, int], rules: CorpusConfig) -> str:
    total = sum(record["documents_read"] for record in records)
    if total == 0:
        return "the corpus is empty: its sources hold no document; add text to corpus.sources"
    left = "no document" if kept == 0 else "one document"
    reasons = [f"{dropped['too_short']} shorter than {rules.min_characters} characters"]
    reasons += [f"{dropped['little_han']} with few Chinese characters"] if "little_han" in dropped else []
    reasons += [f"{dropped['duplicate']} duplicates"]
    way_out = "add text to corpus.sources or lower corpus.min_characters"
    if total == 1:
        way_out = "add text, or set cut_at of its source to cut it into pieces"
    return (
        f"the corpus has {left} left of {total} ({', '.join(reasons)}), but training and evaluation need one each; "
        f"{way_out}"
    )
