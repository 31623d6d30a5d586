"""Documents inside the files of a wheel: plain text, JSON records, rows of an SQLite database, zip archives."""

import fnmatch
import io
import itertools
import json
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

from attnscale.config import JsonReader, Reader, SqliteReader, TextReader
from attnscale.corpus.formats import Raw, decode, text_of
from attnscale.errors import UserError

# Lines of one document: equal first fields, title and text of each.
Line = tuple[Any, Any, Any]


def matching_members(archive: zipfile.ZipFile, pattern: str, label: str, key: str) -> list[str]:
    """Names of the files in an archive that match a glob, sorted.

    Raises:
        UserError: there is none; `label` and `key` say where.
    """
    names = sorted(name for name in archive.namelist() if not name.endswith("/"))
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise UserError(f"{label} has no member that matches {pattern}; correct corpus.sources {key}")
    return found


def unpack(files: Iterable[tuple[str, bytes]], pattern: str, label: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files inside zip archives, an archive after the other.

    Raises:
        UserError: a file is no zip archive, is damaged, or holds nothing that matches.
    """
    for outer, data in files:
        place = f"{outer} in {label}"
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in matching_members(archive, pattern, place, "archive"):
                    yield f"{outer}/{name}", archive.read(name)
        except (zipfile.BadZipFile, EOFError):
            raise UserError(f"{place} is no zip archive or damaged; correct members, or leave archive out") from None


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
        records = json.loads(content)
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
        yield text_of(title, where, "title"), text_of(text, where, "text")


def _field(record: object, key: str, where: str, option: str) -> object:
    if not isinstance(record, dict) or key not in record:
        raise UserError(f"{where} has no key {key}; correct reader.{option} in corpus.sources")
    return record[key]


def _read_sqlite(reader: SqliteReader, data: bytes, place: str) -> Iterator[Raw]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
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
                text_of(rows[0][1], where, "title"),
                "\n".join(text_of(row[2], where, "text") for row in rows),
            )
    except sqlite3.Error as error:
        raise UserError(f"the query of {place} fails ({error}); correct reader.query in corpus.sources") from None
    finally:
        connection.close()
