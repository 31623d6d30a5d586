"""Documents inside the files of a wheel, and how those of a source are put together."""

import io
import json
import sqlite3
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscale.config import JsonReader, Reader, SourceRules, SqliteReader, TextReader
from attnscale.corpus.members import read_member, unpack
from attnscale.corpus.regroup import Counts, cut, join, regroup
from attnscale.errors import UserError


def read(reader: Reader, data: bytes) -> list[tuple[str, str]]:
    return list(read_member(reader, "inner/file", data, "texts 1.0"))


def encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def database(tmp_path: Path) -> bytes:
    path = tmp_path / "laws.db"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE laws (law TEXT, name TEXT, year INT);"
        "CREATE TABLE articles (id INTEGER PRIMARY KEY, law TEXT, number TEXT, words TEXT);"
        "INSERT INTO laws VALUES ('b', '海商法', 2025), ('a', '海商法', 1992), ('c', '渔业法', 2013);"
        "INSERT INTO articles VALUES (4, 'a', '第一条', 'old'), (1, 'b', '第一条', 'new'), (3, 'c', '第一条', 'fish'),"
        " (2, 'b', '第二条', 'more'), (5, 'c', '第二条', NULL);"
    )
    connection.close()
    return path.read_bytes()


QUERY = "SELECT law AS document, name AS title, number || words AS text FROM articles JOIN laws USING (law)"


def test_a_list_of_texts_is_a_document_each() -> None:
    assert read(JsonReader(kind="json"), encoded(["第一回", "第二回", None])) == [
        ("inner/file:0", "第一回"),
        ("inner/file:1", "第二回"),
        ("inner/file:2", ""),
    ]


def test_a_mark_of_the_byte_order_before_json_is_passed_over() -> None:
    assert read(JsonReader(kind="json"), b"\xef\xbb\xbf" + encoded(["text"])) == [("inner/file:0", "text")]


def test_records_are_found_below_their_keys_in_lists_and_maps() -> None:
    records = [{"title": "one", "text": "First."}, {"title": "two", "text": "Second."}]
    reader = JsonReader(kind="json", records="data.documents", title="title", text="text")
    assert read(reader, encoded({"data": {"documents": records}})) == [("one", "First."), ("two", "Second.")]
    by_name = JsonReader(kind="json", text="text")
    assert read(by_name, encoded({"x": records[1], "a": records[0]})) == [
        ("inner/file:x", "Second."),
        ("inner/file:a", "First."),
    ]


@pytest.mark.parametrize(
    ("reader", "data", "message"),
    [
        ({}, b"[1, 2", "inner/file in texts 1.0 is no JSON"),
        ({}, b"\xff", "inner/file in texts 1.0 is not UTF-8 at byte 0"),
        ({}, b"3", "has no list or map at its top"),
        ({}, b"[3]", "record 0 of inner/file in texts 1.0: text is no text; correct it, or reader.text in the"),
        ({"records": "a.b"}, b'{"a": []}', "has nothing at a.b; correct reader.records"),
        ({"text": "body"}, b'[{"text": ""}]', "record 0 of inner/file in texts 1.0 has no key body"),
        ({"text": "text", "title": "name"}, b'[{"text": ""}]', "has no key name; correct reader.title"),
        ({"text": "text"}, b'["text"]', "has no key text; correct reader.text"),
    ],
)
def test_json_that_does_not_fit_its_reader_is_told_with_the_place(
    reader: dict[str, str], data: bytes, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(JsonReader(kind="json", **reader), data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_that_follow_each_other_are_lines_of_one_document(tmp_path: Path) -> None:
    reader = SqliteReader(kind="sqlite", query=f"{QUERY} ORDER BY year, law, id")
    assert read(reader, database(tmp_path)) == [
        ("海商法", "第一条old"),
        ("渔业法", "第一条fish\n"),
        ("海商法", "第一条new\n第二条more"),
    ]
    by_title = SqliteReader(kind="sqlite", query="SELECT name AS title, year AS text FROM laws ORDER BY name")
    with pytest.raises(UserError, match=r"document 0 of inner/file in texts 1\.0: text is no text"):
        read(by_title, database(tmp_path))
    by_title = SqliteReader(kind="sqlite", query="SELECT name AS title, law AS text FROM laws ORDER BY name, law")
    assert read(by_title, database(tmp_path)) == [("海商法", "a\nb"), ("渔业法", "c")]


def test_a_query_can_only_read_its_own_database(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    for query in (f"ATTACH '{other}' AS other", f"VACUUM INTO '{other}'", "DROP TABLE laws", "PRAGMA page_size"):
        with pytest.raises(
            UserError, match=r"the query of inner/file in texts 1\.0 fails \((not authorized|authorization denied)"
        ):
            read(SqliteReader(kind="sqlite", query=query), database(tmp_path))
    assert not other.exists()
    recursive = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2) SELECT i || '' AS title, "
    found = read(SqliteReader(kind="sqlite", query=recursive + "upper('a' || i) AS text FROM n"), database(tmp_path))
    assert found == [("1", "A1"), ("2", "A2")]


def test_an_empty_file_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"inner/file in texts 1\.0 is empty and no SQLite database"):
        read(SqliteReader(kind="sqlite", query=QUERY), b"")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT missing FROM articles", "fails (no such column: missing)"),
        ("SELECT words AS text FROM articles", "gives the columns text; give title and text"),
        ("SELECT id, law AS title, words AS text FROM articles", "gives the columns id, title, text;"),
        ("SELEKT", "fails (near"),
    ],
)
def test_a_query_that_gives_no_documents_is_told(tmp_path: Path, query: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(SqliteReader(kind="sqlite", query=query), database(tmp_path))
    assert message in str(caught.value)


def test_a_file_that_is_no_database_is_told() -> None:
    with pytest.raises(UserError, match=r"the query of inner/file in texts 1\.0 fails"):
        read(SqliteReader(kind="sqlite", query=QUERY), b"no database at all" * 100)


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as writer:
        for name, data in files.items():
            writer.writestr(zipfile.ZipInfo(name), data)
    return stream.getvalue()


def patched(data: bytes, flags: int = 0, method: int = 0) -> bytes:
    """With other flags and another method of compression in both headers of its one file."""
    changed = bytearray(data)
    for start in (0, data.index(b"PK\1\2") + 2):
        changed[start + 6] |= flags
        changed[start + 8] |= method
    return bytes(changed)


def test_archives_are_unpacked_sorted_and_what_does_not_match_stays() -> None:
    packed = archive({"b/2.json": b"2", "a/1.json": b"1", "note.txt": b"no", "a/": b""})
    found = list(unpack([("data/x.zip", packed)], "*.json", "texts 1.0"))
    assert found == [("data/x.zip/a/1.json", b"1"), ("data/x.zip/b/2.json", b"2")]
    assert read(TextReader(), found[0][1]) == [("inner/file", "1")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no archive", r"x\.zip in texts 1\.0 is no zip archive or damaged"),
        (archive({"a.txt": b""}), r"x\.zip in texts 1\.0 has no member that matches \*\.json; .* archive"),
        (archive({"a.json": b"1" * 999}).replace(b"1111", b"1121", 1), "a.json in x.zip in texts 1.0 is damaged"),
        (patched(archive({"a.json": b"1" * 999}), flags=1), "is damaged, encrypted or packed"),
        (patched(archive({"a.json": b"1" * 999}), method=99), "is damaged, encrypted or packed"),
        (patched(archive({"a.json": b"1" * 999}), method=8), "is damaged, encrypted or packed"),
    ],
)
def test_an_archive_that_cannot_be_read_is_told(data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(unpack([("x.zip", data)], "*.json", "texts 1.0"))


def test_of_a_title_the_last_document_is_kept_and_the_others_are_counted() -> None:
    counts = Counts()
    documents = [("law", "old"), ("other", "text"), ("law", "new"), ("law", "newest")]
    assert list(regroup(documents, SourceRules(one_per_title=True), counts)) == [("law", "newest"), ("other", "text")]
    assert (counts.read, counts.same_title, counts.made) == (4, 2, 2)


def test_without_rules_documents_pass_as_they_are() -> None:
    counts = Counts()
    documents = [("a", "one"), ("a", "two")]
    assert list(regroup(documents, SourceRules(), counts)) == documents
    assert (counts.read, counts.same_title, counts.made) == (2, 0, 2)


def test_documents_are_joined_until_they_are_long_enough_and_the_rest_goes_to_the_last() -> None:
    documents = [("1", "aaaa"), ("2", "bbbb"), ("3", "c" * 9), ("4", "dd"), ("5", "e")]
    assert list(join(documents, 8)) == [("1", "aaaa\n\nbbbb"), ("3", "ccccccccc\n\ndd\n\ne")]
    assert list(join(documents[3:], 8)) == [("4", "dd\n\ne")]
    assert list(join([], 8)) == []


def test_a_long_document_is_cut_at_line_ends_or_blanks_where_there_are_any() -> None:
    assert list(cut("t", "short", 5)) == [("t", "short")]
    assert list(cut("t", "one two\nthree four", 12)) == [("t part 1", "one two\n"), ("t part 2", "three four")]
    assert list(cut("t", "one two three", 10)) == [("t part 1", "one two "), ("t part 2", "three")]
    assert list(cut("t", "一二三四五", 2)) == [("t part 1", "一二"), ("t part 2", "三四"), ("t part 3", "五")]


@given(st.lists(st.text("ab \n一", max_size=40), max_size=8), st.integers(2, 20), st.integers(1, 60))
def test_cutting_and_joining_lose_and_change_nothing(texts: list[str], longest: int, least: int) -> None:
    documents = [(str(number), text) for number, text in enumerate(texts)]
    pieces = [piece for title, text in documents for piece in cut(title, text, longest)]
    assert "".join(text for _, text in pieces) == "".join(texts)
    assert all(len(text) <= longest for _, text in pieces)
    joined = list(join(documents, least))
    assert "\n\n".join(text for _, text in joined) == "\n\n".join(texts)
    assert all(len(text) >= least for _, text in joined[:-1])
