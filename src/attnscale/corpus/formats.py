"""Reading text, JSONL and Parquet files, plain or compressed."""

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

from attnscale.errors import UserError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

# Title and text of a document before cleaning.
Raw = tuple[str, str]


def check_format(path: Path) -> str:
    """The format of a file by its name, without a compression suffix.

    Raises:
        UserError: it is none of the known ones.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in (".txt", ".jsonl", ".parquet"):
        raise UserError(f"{path} is not a .txt, .jsonl or .parquet file; convert it, or narrow paths")
    return suffixes[-1]


def decode(data: bytes, place: str) -> str:
    """Decode UTF-8.

    Raises:
        UserError: with place and byte offset of the first byte that is no UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_utf8(place, error.start) from None


def _no_utf8(place: str, offset: int) -> UserError:
    return UserError(f"{place} is not UTF-8 at byte {offset}; convert it to UTF-8")


def read_file(path: Path, title: str, text_field: str) -> Iterator[Raw]:
    """Yield the documents of one file.

    A text file is one document. In JSONL each line is one, titled `title:line` (the first line is 1); in
    Parquet each row is one, titled `title:row` (the first row is 0). A null is an empty document.

    Args:
        path: the file.
        title: what to call it.
        text_field: key or column that holds the text.

    Raises:
        UserError: the file is damaged, is no UTF-8 (offsets count decompressed bytes), or lacks the field.
        OSError: the file cannot be opened.
    """
    try:
        with _open(path) as stream:
            match check_format(path):
                case ".txt":
                    yield title, decode(stream.read(), str(path))
                case ".jsonl":
                    yield from _read_jsonl(stream, path, title, text_field)
                case ".parquet":
                    yield from _read_parquet(stream, path, title, text_field)
    except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException):
        raise UserError(f"{path} is damaged or not what its name says; replace it") from None
    except OSError as error:
        # Decompressors report damage as an OSError without a number; all others are the file system's.
        if error.errno is not None:
            raise
        raise UserError(f"{path} is damaged or not what its name says; replace it") from None


def _open(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        case ".bz2":
            return bz2.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case ".zst":
            # The standard library has no zstd before Python 3.14; pyarrow comes with `datasets`.
            return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
        case _:
            return path.open("rb")


def _read_jsonl(stream: IO[bytes], path: Path, title: str, text_field: str) -> Iterator[Raw]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        place = f"{path} line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _no_utf8(place, offset + error.start) from None
        offset += len(line)
        text = text.removeprefix("\ufeff").strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise UserError(f"{place} is no valid JSON; mend or remove that line") from None
        if not isinstance(record, dict) or text_field not in record:
            raise UserError(f"{place} has no key {text_field}; correct the line, or text_field in the configuration")
        yield f"{title}:{number}", _text_of(record[text_field], place, text_field)


def _read_parquet(stream: IO[bytes], path: Path, title: str, text_field: str) -> Iterator[Raw]:
    # A decompressor cannot jump to the footer, which Parquet starts with.
    table = pa.parquet.ParquetFile(stream if path.suffix.lower() == ".parquet" else pa.BufferReader(stream.read()))
    columns = table.schema_arrow.names
    if text_field not in columns:
        raise UserError(f"{path} has no column {text_field}; text_field must be one of: {', '.join(columns)}")
    row = 0
    for batch in table.iter_batches(columns=[text_field], batch_size=1024):
        for value in batch.column(0):
            place = f"{path} row {row}"
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                raise _no_utf8(f"{place} ({text_field})", error.start) from None
            yield f"{title}:{row}", _text_of(text, place, text_field)
            row += 1


def _text_of(value: object, place: str, text_field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{place}: {text_field} is no text; correct it, or text_field in the configuration")
    # JSON can spell half of a surrogate pair, which is no character and has no UTF-8.
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{place}: {text_field} holds half of a surrogate pair; correct it") from None
    return value
