"""The corpus stage as a whole: what it writes, and what must not change it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnscale.config import CorpusConfig, CorpusSettings, FilesSource, HubSource, Source
from attnscale.corpus import build_corpus, read_documents
from attnscale.corpus.documents import content_hash
from attnscale.errors import UserError


@pytest.fixture(autouse=True)
def _hub_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment as it is: the stage sets these where they are not set."""
    for name in ("HF_HUB_CACHE", "HF_XET_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hub"))


def files_source(paths: Path, **more: Any) -> FilesSource:
    return FilesSource(kind="files", name=more.pop("name", "mine"), paths=str(paths), **more)


def settings(*sources: Source, **rules: float) -> CorpusSettings:
    return CorpusSettings(corpus=CorpusConfig(sources=sources, **{"min_characters": 10, **rules}))


def write_texts(folder: Path, count: int, start: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        (folder / f"{number:03d}.txt").write_text(f"Document number {number} has words.\n", encoding="utf-8")
    return folder / "*.txt"


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_document_lands_on_exactly_one_side_sorted_by_id(tmp_path: Path) -> None:
    build_corpus(settings(files_source(write_texts(tmp_path / "in", 60))), tmp_path / "out")
    train = list(read_documents(tmp_path / "out/train.jsonl"))
    held_out = list(read_documents(tmp_path / "out/held_out.jsonl"))
    assert len(train) + len(held_out) == 60
    assert len({document.id for document in train + held_out}) == 60
    assert {document.title for document in train + held_out} == {f"{number:03d}.txt" for number in range(60)}
    for side in (train, held_out):
        assert [document.id for document in side] == sorted(document.id for document in side)
        assert all(document.id == content_hash(document.text) for document in side)


def test_the_manifest_counts_what_was_read_kept_dropped_and_split(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    pattern = write_texts(folder, 30)
    (folder / "short.txt").write_text("short", encoding="utf-8")
    # Equal to 007.txt once cleaned.
    (folder / "twin.txt").write_bytes(b"\xef\xbb\xbfDocument number 7 has words.  \r\n")
    build_corpus(settings(files_source(pattern, licence="CC0"), max_documents=25), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert manifest["dropped"] == {"too_short": 1, "duplicate": 1, "beyond_max_documents": 5}
    [source] = manifest["sources"]
    assert (source["documents_read"], source["documents_kept"], source["licence"]) == (32, 25, "CC0")
    assert str(tmp_path) not in json.dumps(manifest)
    split = manifest["split"]
    assert split["overlap"] == 0
    for side in ("train", "held_out"):
        documents = list(read_documents(tmp_path / f"out/{side}.jsonl"))
        assert split[side]["documents"] == len(documents)
        assert split[side]["characters"] == sum(len(document.text) for document in documents)
    assert split["train"]["characters"] + split["held_out"]["characters"] == source["characters"]


def test_two_runs_give_the_same_bytes_whatever_folder_the_text_lies_in(tmp_path: Path) -> None:
    for name in ("one", "wörk dir ñ"):
        pattern = write_texts(tmp_path / name / "in", 20)
        build_corpus(settings(files_source(pattern)), tmp_path / name / "out")
    assert contents(tmp_path / "one/out") == contents(tmp_path / "wörk dir ñ/out")


def test_the_order_of_the_sources_changes_no_document_and_no_side(tmp_path: Path) -> None:
    # Ten texts are in both sources, so which copy stays is at stake too.
    first = files_source(write_texts(tmp_path / "a", 30), name="first")
    second = files_source(write_texts(tmp_path / "b", 30, start=20), name="second")
    build_corpus(settings(first, second), tmp_path / "ab")
    build_corpus(settings(second, first), tmp_path / "ba")
    for name in ("train.jsonl", "held_out.jsonl"):
        assert (tmp_path / "ab" / name).read_bytes() == (tmp_path / "ba" / name).read_bytes()
    kept = {source["name"]: source["documents_kept"] for source in manifest_of(tmp_path / "ba")["sources"]}
    assert kept == {"first": 30, "second": 20}


def test_a_document_stays_on_its_side_when_others_are_added(tmp_path: Path) -> None:
    build_corpus(settings(files_source(write_texts(tmp_path / "in", 40))), tmp_path / "small")
    build_corpus(settings(files_source(write_texts(tmp_path / "in", 80))), tmp_path / "large")
    for side in ("train", "held_out"):
        small = {document.id for document in read_documents(tmp_path / f"small/{side}.jsonl")}
        large = {document.id for document in read_documents(tmp_path / f"large/{side}.jsonl")}
        assert small < large


def test_max_documents_keeps_the_smallest_ids_and_still_trains_on_most(tmp_path: Path) -> None:
    source = files_source(write_texts(tmp_path / "in", 200))
    build_corpus(settings(source), tmp_path / "all")
    build_corpus(settings(source, max_documents=50), tmp_path / "some")

    def ids(run: str) -> list[str]:
        sides = [tmp_path / run / "train.jsonl", tmp_path / run / "held_out.jsonl"]
        return sorted(document.id for side in sides for document in read_documents(side))

    assert ids("some") == ids("all")[:50]
    assert manifest_of(tmp_path / "some")["split"]["train"]["documents"] > 35


def test_text_read_in_many_pieces_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = files_source(write_texts(tmp_path / "in", 30))
    build_corpus(settings(source), tmp_path / "one piece")
    monkeypatch.setattr("attnscale.corpus.build.PIECE_CHARACTERS", 100)
    build_corpus(settings(source), tmp_path / "many pieces")
    assert contents(tmp_path / "one piece") == contents(tmp_path / "many pieces")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "matches no file"),
        (["short"], "has no document left of 1 (1 shorter than 10 characters"),
        (["a document alone"], "set cut_at of its source to cut it into pieces"),
        (["a document twice", "a document twice"], r"has one document left of 2 (0 shorter than 10 characters, 1 dup"),
    ],
)
def test_a_corpus_that_cannot_be_split_is_refused_and_writes_nothing(
    tmp_path: Path, texts: list[str], message: str
) -> None:
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        build_corpus(settings(files_source(tmp_path / "*.txt")), tmp_path / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_documents_with_few_chinese_characters_are_dropped_and_counted(tmp_path: Path) -> None:
    texts = [f"第{number}回 宴桃园豪杰三结义，斩黄巾英雄首立功" for number in range(9)]
    # The radicals of PDF files count, and 6 of 10 characters are enough.
    for number, text in enumerate([*texts, "⼀⼆⼈⼝⼟⼤abcd", "桃园豪杰三abcde", "words only, none of it Chinese"]):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    build_corpus(settings(files_source(tmp_path / "*.txt"), min_han_share=0.6), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert manifest["dropped"]["little_han"] == 2
    assert manifest["cleaning"]["min_han_share"] == 0.6
    assert manifest["sources"][0]["documents_kept"] == 10


def test_one_huge_document_is_cut_and_thousands_of_tiny_ones_are_joined(tmp_path: Path) -> None:
    huge = "\r\n".join(f"Line number {number} of a long document." for number in range(100_000))
    (tmp_path / "huge.txt").write_bytes(b"\xef\xbb\xbf" + huge.encode())
    tiny = "".join(json.dumps({"text": f"tiny {number}"}) + "\n" for number in range(5000))
    (tmp_path / "tiny.jsonl").write_text(tiny, encoding="utf-8")
    build_corpus(
        settings(
            files_source(tmp_path / "huge.txt", name="huge", cut_at=50_000),
            files_source(tmp_path / "tiny.jsonl", name="tiny", join_until=1000),
            min_characters=1000,
        ),
        tmp_path / "out",
    )
    manifest = manifest_of(tmp_path / "out")
    counted = {
        source["name"]: (source["documents_read"], source["documents_after_cutting_and_joining"])
        for source in manifest["sources"]
    }
    assert counted["huge"][0] == 1
    assert 75 < counted["huge"][1] < 85
    assert counted["tiny"][0] == 5000
    assert 40 < counted["tiny"][1] < 55
    assert manifest["dropped"]["too_short"] == 0
    documents = [*read_documents(tmp_path / "out/train.jsonl"), *read_documents(tmp_path / "out/held_out.jsonl")]
    lines = [line for document in documents for line in document.text.split("\n")]
    # Nothing is lost, doubled or cut inside a line.
    assert sorted(line for line in lines if line.startswith("Line")) == sorted(huge.split("\r\n"))
    assert sum(line.startswith("tiny") for line in lines) == 5000


def test_thousands_of_tiny_files_that_stay_apart_are_dropped_and_counted(tmp_path: Path) -> None:
    pattern = write_texts(tmp_path / "in", 2000)
    for number in range(3):
        (tmp_path / "in" / f"long{number}.txt").write_text(f"{number} long enough " * 10, encoding="utf-8")
    build_corpus(settings(files_source(pattern), min_characters=100), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert manifest["dropped"]["too_short"] == 2000
    assert manifest["sources"][0]["documents_kept"] == 3


def test_what_reading_skips_is_told_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    write_texts(folder, 10)
    (folder / "latin.txt").write_bytes("Grüße aus Köln".encode("latin-1"))
    (folder / "rows.jsonl").write_bytes(
        b'{"text": "a row that can be read"}\n\n{"body": "no text"}\n{"text": \n{"text": "\xe4"}\n{"text": "last row"}'
    )
    (folder / "half.txt.gz").write_bytes(gzip.compress(b"text" * 1000, mtime=0)[:-20])
    build_corpus(settings(files_source(folder / "*", on_problem="skip"), min_characters=5), tmp_path / "out")
    [source] = manifest_of(tmp_path / "out")["sources"]
    assert source["skipped"] == {"blank_lines": 1, "damaged": 1, "no_json": 1, "no_text": 1, "wrong_encoding": 2}
    assert (source["documents_read"], source["documents_kept"]) == (12, 12)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped: ")]
    assert len(told) == 5
    assert any("rows.jsonl line 3 has no key text" in line for line in told)
    with pytest.raises(UserError, match=r"half\.txt\.gz is damaged"):
        build_corpus(settings(files_source(folder / "*")), tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_an_empty_table_of_documents_is_an_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="the corpus is empty"):
        build_corpus(settings(files_source(tmp_path / "none.jsonl")), tmp_path / "out")


def test_two_documents_are_enough_for_one_on_each_side(tmp_path: Path) -> None:
    source = files_source(write_texts(tmp_path / "in", 2))
    for fraction in (1e-9, 1 - 1e-9):
        build_corpus(settings(source, held_out_fraction=fraction), tmp_path / "out")
        split = manifest_of(tmp_path / "out")["split"]
        assert split["train"]["documents"] == split["held_out"]["documents"] == 1


def test_a_data_set_is_read_and_its_rows_are_hashed(tmp_path: Path) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()

    def build(last: str) -> dict:
        rows = [{"body": f"Row number {number} of the set."} for number in range(8)] + [{"body": None}, {"body": last}]
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        source = HubSource(
            kind="hub", name=str(folder), revision="main", text_field="body", licence="CC0", split="train"
        )
        build_corpus(settings(source), tmp_path / "out", cache)
        return manifest_of(tmp_path / "out")

    first, second = build("One more row of it."), build("One more row, another text.")
    [source] = first["sources"]
    assert (source["documents_read"], source["documents_kept"], source["version"]) == (10, 9, "main")
    titles = [document.title for document in read_documents(tmp_path / "out/train.jsonl")]
    titles += [document.title for document in read_documents(tmp_path / "out/held_out.jsonl")]
    assert sorted(titles) == ["0", "1", "2", "3", "4", "5", "6", "7", "9"]
    # A changed folder of the same name must not be answered from a cache.
    assert second["sources"][0]["sha256"] != source["sha256"]
    assert "another text" in (tmp_path / "out/train.jsonl").read_text() + (tmp_path / "out/held_out.jsonl").read_text()
    assert not cache.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_field": "nothing"}, r"train\.jsonl line 1 has no key nothing;"),
        ({"text_field": "number"}, r"train\.jsonl line 1: number is no text;"),
        ({"split": "test"}, "at revision main has no split test; split must be one of: train"),
        ({"name": "no such/folder/of/data"}, "cannot load the data set no such/folder/of/data"),
    ],
)
def test_a_data_set_that_cannot_be_read_gives_one_sentence(tmp_path: Path, change: dict, message: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "Some text in a row.", "number": 1}\n', encoding="utf-8")
    source = HubSource(**{"kind": "hub", "name": str(folder), "revision": "main", "licence": "CC0", **change})
    with pytest.raises(UserError, match=message) as caught:
        build_corpus(settings(source), tmp_path / "out", tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_home_folder_stays_empty_and_nothing_is_printed(tmp_path: Path) -> None:
    source = files_source(write_texts(tmp_path / "in", 5))
    program = (
        "import sys; from pathlib import Path; from attnscale.corpus import build_corpus;"
        "from attnscale.config import CorpusSettings;"
        "build_corpus(CorpusSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )
    home = tmp_path / "home"
    home.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", program, settings(source).canonical(), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={"HOME": str(home), "PATH": ""},
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list(home.iterdir()) == []


def test_damaged_document_files_are_refused_with_their_line(tmp_path: Path) -> None:
    build_corpus(settings(files_source(write_texts(tmp_path / "in", 20))), tmp_path / "out")
    path = tmp_path / "out/train.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for damage in (
        lines[2].replace("words", "swords"),
        lines[2][:40],
        '["no document"]\n',
        "{}\n",
        '{"id": 1}\n',
        "\n",
    ):
        path.write_text("".join([*lines[:2], damage]), encoding="utf-8")
        with pytest.raises(UserError, match=r"train\.jsonl is damaged at line 3"):
            list(read_documents(path))
    with pytest.raises(UserError, match="is missing"):
        list(read_documents(tmp_path / "nowhere.jsonl"))
