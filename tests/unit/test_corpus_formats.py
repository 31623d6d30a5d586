"""The user's own files: formats, compression, and what is said about broken ones."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from attnscale.config import FilesSource
from attnscale.corpus.sources import open_source
from attnscale.errors import UserError


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
TEXTS = ["First text, with ä.", "第二\nline two", "third"]


def parquet(texts: list[str | None], column: str = "text") -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"n": list(range(len(texts))), column: texts}), sink)
    return sink.getvalue().to_pybytes()


def read(paths: Path | str, **more: str) -> list[tuple[str, str]]:
    source = FilesSource(kind="files", name="mine", paths=str(paths), **more)
    with open_source(source, Path("unused")) as opened:
        return list(opened.documents)


@pytest.mark.parametrize("suffix", PACKERS)
def test_text_jsonl_and_parquet_are_read_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    pack = PACKERS[suffix]
    jsonl = "\n".join(json.dumps({"text": text, "other": 1}, ensure_ascii=False) for text in TEXTS)
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(TEXTS[0].encode()))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(pack(b"\xef\xbb\xbf" + jsonl.encode() + b"\r\n\n"))
    (tmp_path / f"c.parquet{suffix}").write_bytes(pack(parquet([*TEXTS, None])))
    found = read(tmp_path / "*")
    assert found[0] == (f"a.txt{suffix}", TEXTS[0])
    assert found[1:4] == [(f"b.jsonl{suffix}:{line}", text) for line, text in enumerate(TEXTS, start=1)]
    assert found[4:] == [(f"c.parquet{suffix}:{row}", text) for row, text in enumerate([*TEXTS, ""])]


def test_a_large_compressed_file_is_read_whole_and_two_packed_parts_are_one_file(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {number} " * 40}) + "\n" for number in range(5000)]
    for suffix, pack in PACKERS.items():
        parts = "".join(lines[:2000]).encode(), "".join(lines[2000:]).encode()
        (tmp_path / f"x.jsonl{suffix}").write_bytes(pack(parts[0]) + pack(parts[1]))
        assert [text for _, text in read(tmp_path / f"x.jsonl{suffix}")] == [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "gb18030", "big5", "utf-16", "utf-8-sig"])
def test_files_in_another_encoding_are_read_if_it_is_told(tmp_path: Path, encoding: str) -> None:
    text = "三国演义\r\n\r\n第一回" if encoding in ("gb18030", "big5") else "Grüße\r\n\r\naus Köln"
    text = text.replace("三国演义", "三國演義").replace("义", "義") if encoding == "big5" else text
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert read(tmp_path / "a.txt", encoding=encoding) == [("a.txt", text)]
    (tmp_path / "b.jsonl").write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode(encoding) + b"\n")
    if encoding == "utf-16":
        with pytest.raises(UserError, match=r"b\.jsonl cannot be split into lines in utf-16"):
            read(tmp_path / "b.jsonl", encoding=encoding)
    else:
        assert read(tmp_path / "b.jsonl", encoding=encoding) == [("b.jsonl:1", text)]


def test_an_encoding_that_does_not_fit_or_is_unknown_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"odd!!")
    with pytest.raises(UserError, match=r"a\.txt is not UTF-16"):
        read(tmp_path / "a.txt", encoding="utf-16")
    for name in ("latin-9000", "rot13", "base64"):
        with pytest.raises(ValidationError, match="is no encoding of text that Python knows"):
            read(tmp_path / "a.txt", encoding=name)


def test_another_field_can_hold_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "words"}\n', encoding="utf-8")
    (tmp_path / "b.parquet").write_bytes(parquet(["rows"], column="body"))
    assert [text for _, text in read(tmp_path / "*", text_field="body")] == ["words", "rows"]


def test_a_glob_goes_through_folders_sorted_and_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b/2.txt", "b/1.txt", "a/z.txt", "a/deep/er.txt", "a/other.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert [title for title, _ in read("**/*.txt")] == ["a/deep/er.txt", "a/z.txt", "b/1.txt", "b/2.txt"]
    assert [title for title, _ in read("b/*.txt")] == ["1.txt", "2.txt"]
    assert read("b/1.txt") == [("1.txt", "b/1.txt")]


def test_a_name_with_brackets_means_the_file_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("bracket", encoding="utf-8")
    assert read(tmp_path / "a[1].txt") == [("a[1].txt", "bracket")]


def test_the_hash_over_files_is_what_a_shell_can_compute_and_is_checked(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    # sha256sum *.txt | cut -c1-64 | sort | sha256sum
    each = sorted(hashlib.sha256(text.encode()).hexdigest() + "\n" for text in TEXTS)
    pin = hashlib.sha256("".join(each).encode()).hexdigest()
    assert len(read(tmp_path / "*.txt", sha256=pin)) == 3
    (tmp_path / "0.txt").write_text("changed", encoding="utf-8")
    with pytest.raises(UserError, match=rf"has the sha256 [0-9a-f]{{64}} where {pin} is expected"):
        read(tmp_path / "*.txt", sha256=pin)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"one\ntwo\r\ngood \xff bad", r"a\.txt is not UTF-8 at byte 14, line 3; .* set encoding"),
        ("a.txt", "Köln".encode("latin-1"), r"a\.txt is not UTF-8 at byte 1, line 1;"),
        ("a.txt", "Köln".encode("utf-16"), r"a\.txt is not UTF-8 at byte 0, line 1;"),
        ("a.txt.gz", gzip.compress(b"\xe4", mtime=0), r"a\.txt\.gz is not UTF-8 at byte 0, line 1;"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "\xe4"}\n', r"a\.jsonl line 2 is not UTF-8 at byte 25;"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": \n', r"a\.jsonl line 2 is no valid JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl line 1 is no valid JSON"),
        ("a.jsonl", b'\n{"body": "ok"}\n', r"a\.jsonl line 2 has no key text;"),
        ("a.jsonl", b'["text"]\n', r"a\.jsonl line 1 has no key text;"),
        ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl line 1: text is no text;"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl line 1: text holds half of a surrogate pair"),
        ("a.parquet", parquet(["x"], column="body"), r"a\.parquet has no column text; .* one of: n, body"),
        ("a.parquet", b"no parquet at all", r"a\.parquet is damaged or not what its name says"),
        ("a.txt.gz", b"plain text", r"a\.txt\.gz is damaged"),
        ("a.txt.gz", gzip.compress(b"text" * 1000, mtime=0)[:-20], r"a\.txt\.gz is damaged"),
        ("a.txt.bz2", b"plain text", r"a\.txt\.bz2 is damaged"),
        ("a.txt.bz2", bz2.compress(random.Random(0).randbytes(1000))[:-20], r"a\.txt\.bz2 is damaged"),
        ("a.txt.xz", b"plain text", r"a\.txt\.xz is damaged"),
        ("a.txt.zst", b"plain text", r"a\.txt\.zst is damaged"),
        ("a.txt.zst", zstd(random.Random(0).randbytes(1000))[:-20], r"a\.txt\.zst is damaged"),
        ("a.parquet.zst", zstd(b"no parquet"), r"a\.parquet\.zst is damaged"),
        ("a.txt.gz", b"", r"a\.txt\.gz is damaged"),
        ("a.txt.bz2", b"", r"a\.txt\.bz2 is damaged"),
        ("a.txt.zst", b"", r"a\.txt\.zst is damaged"),
        ("a.txt", "Köln’s".encode("utf-16-le"), r"a\.txt is not UTF-8 at"),
        ("a.txt", "one\ntwo".encode("utf-16-le"), r"a\.txt is not UTF-8 at character 1, line 1, which is '\\x00';"),
        ("a.csv", b"x,y", r"a\.csv is not a \.txt, \.jsonl or \.parquet file"),
        ("a.gz", gzip.compress(b"x", mtime=0), r"a\.gz is not a \.txt, \.jsonl or \.parquet file"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "a*")
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("suffix", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_file_of_several_streams_that_is_damaged_between_them_is_not_cut_short(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path, parts = tmp_path / f"a.txt{suffix}", [pack(text.encode() * 5000) for text in TEXTS]
    whole = "".join(text * 5000 for text in TEXTS)
    path.write_bytes(b"".join(parts) + b"\0" * 16)
    assert read(path) == [(path.name, whole)]
    path.write_bytes(parts[0] + b"\0" * 20_000 + parts[1] + parts[2])
    assert read(path) == [(path.name, whole)]
    for rest in (b"\xff" + parts[1][1:], b"x", parts[1][:3], parts[1][:-1]):
        path.write_bytes(parts[0] + rest)
        with pytest.raises(UserError, match=r"is damaged or not what its name says"):
            read(path)


def test_escapes_of_half_a_surrogate_pair_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"words\nand \\ud800 more")
    with pytest.raises(UserError, match=r"is not UNICODE_ESCAPE at character 10, line 2, which is '\\ud800'"):
        read(tmp_path / "a.txt", encoding="unicode_escape")


def test_a_mark_of_the_byte_order_alone_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf")
    assert read(tmp_path / "a.jsonl") == []


def test_an_encoding_without_a_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="an empty name is no encoding of text that Python knows"):
        read(tmp_path / "a.txt", encoding="")


def test_what_matches_and_is_no_file_stops_the_run_or_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "b.txt").symlink_to("nothing")
    os.mkfifo(tmp_path / "c.txt")
    with pytest.raises(UserError, match=r"b\.txt is a link to nothing and no file; remove it, or narrow paths"):
        read(tmp_path / "*.txt")
    source = FilesSource(kind="files", name="mine", paths=f"{tmp_path}/*.txt", on_problem="skip")
    with open_source(source, Path("unused")) as opened:
        assert list(opened.documents) == [("a.txt", "words")]
    assert opened.skipped == {"no_file": 2}


@pytest.mark.parametrize(
    ("paths", "message"),
    [("nowhere.txt", "does not exist"), ("*.txt", "matches no file"), (".", "is a folder; name the files in it")],
)
def test_a_path_without_files_is_refused(tmp_path: Path, paths: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / paths)


def test_a_file_without_permission_is_the_systems_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("secret", encoding="utf-8")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(PermissionError):
        read(path)
