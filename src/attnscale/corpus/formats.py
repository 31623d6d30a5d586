"""Reading text, JSONL and Parquet files, plain or compressed."""

import bz2
import collections
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

from attnscale.errors import UserError
from attnscale.progress import log

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

# Title and text of a document before cleaning.
Raw = tuple[str, str]


class Unreadable(UserError):
    """A file, line or row that cannot be read, and under which heading it is counted if it is left out.

    Attributes:
        reason: a key of the counts in the manifest.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Skipped:
    """What reading leaves out, by reason; problems among it only if the user wants to go on without them.

    Args:
        go_on: tell a problem on standard error and count it; otherwise it is raised.

    Attributes:
        counts: how often each reason was met.
    """

    def __init__(self, *, go_on: bool) -> None:
        self._go_on = go_on
        self.counts: collections.Counter[str] = collections.Counter()

    def meet(self, problem: Unreadable) -> None:
        """Raise a problem, or tell and count it."""
        if not self._go_on:
            raise problem
        self.counts[problem.reason] += 1
        log(f"skipped: {problem}")


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


def decode(data: bytes, place: str, encoding: str = "utf-8", advice: str = "convert it to UTF-8") -> str:
    """Decode a text.

    Raises:
        Unreadable: with place, byte offset and line (from 1) of the first byte that does not fit the encoding.
    """
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong_encoding(place, encoding, f"byte {error.start}, line {line}", advice) from None
    except UnicodeError as error:  # UTF-16 without its mark
        raise _wrong_encoding(place, encoding, str(error), advice) from None
    # UTF-16 without its mark passes for UTF-8, and escapes can spell halves of surrogate pairs.
    if wrong := _NO_CHARACTER.search(text):
        where = f"character {wrong.start()}, line {text.count(chr(10), 0, wrong.start()) + 1}"
        raise _wrong_encoding(place, encoding, f"{where}, which is {wrong[0]!a}", advice)
    return text


_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")


def _wrong_encoding(place: str, encoding: str, where: str, advice: str) -> Unreadable:
    return Unreadable("wrong_encoding", f"{place} is not {encoding.upper()} at {where}; {advice}")


def read_file(path: Path, title: str, text_field: str, encoding: str, skipped: Skipped) -> Iterator[Raw]:
    """Yield the documents of one file.

    A text file is one document. In JSONL each line is one, titled `title:line` (the first line is 1); in
    Parquet each row is one, titled `title:row` (the first row is 0). A null is an empty document.

    Args:
        path: the file.
        title: what to call it.
        text_field: key or column that holds the text.
        encoding: of text and JSONL.
        skipped: gets what is left out; of a file that is damaged somewhere, the documents before are read.

    Raises:
        Unreadable: the file is damaged, has another encoding (offsets count decompressed bytes), or lacks the field.
        OSError: the file cannot be opened.
    """
    try:
        with _open(path) as stream:
            match check_format(path):
                case ".txt":
                    yield title, decode(stream.read(), str(path), encoding, _ENCODING_ADVICE)
                case ".jsonl":
                    yield from _read_jsonl(stream, path, title, text_field, encoding, skipped)
                case ".parquet":
                    yield from _read_parquet(stream, path, title, text_field, skipped)
    except Unreadable as problem:
        skipped.meet(problem)
    except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException):
        skipped.meet(_damaged(path))
    except OSError as error:
        # Decompressors report damage as an OSError without a number; all others are the file system's.
        if error.errno is not None:
            raise
        skipped.meet(_damaged(path))


_ENCODING_ADVICE = "convert it to UTF-8, or set encoding of its source in the configuration"


def _damaged(path: Path) -> Unreadable:
    return Unreadable("damaged", f"{path} is damaged or not what its name says; replace it")


class _Unpacked(io.RawIOBase):
    """What .bz2 and .xz files hold.

    The readers of the standard library take whatever follows a whole stream and does not begin another for padding, so
    that a file of several streams which is damaged between two of them would be cut short without a word.

    Args:
        path: the file.
        unpacker: makes what unpacks one stream.
    """

    def __init__(self, path: Path, unpacker: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self._file = path.open("rb")
        self._new = unpacker
        self._unpacker = unpacker()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises OSError, EOFError or LZMAError for damage."""
        view = memoryview(buffer)
        while True:
            packed = b""
            if self._unpacker.eof:
                packed = self._unpacker.unused_data.lstrip(b"\0")
                while not packed and (more := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                    packed = more.lstrip(b"\0")
                if not packed:
                    return 0
                self._unpacker = self._new()
            elif self._unpacker.needs_input:
                packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
                if not packed:
                    raise EOFError
            if data := self._unpacker.decompress(packed, len(view)):
                view[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS and not path.stat().st_size:
        raise _damaged(path)  # gzip would read nothing out of nothing
    match suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        case ".bz2":
            return io.BufferedReader(_Unpacked(path, bz2.BZ2Decompressor))
        case ".xz":
            return io.BufferedReader(_Unpacked(path, lzma.LZMADecompressor))
        case ".zst":
            # The standard library has no zstd before Python 3.14; pyarrow comes with `datasets`.
            return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
        case _:
            return path.open("rb")


def _read_jsonl(
    stream: IO[bytes], path: Path, title: str, text_field: str, encoding: str, skipped: Skipped
) -> Iterator[Raw]:
    try:
        b"\n".decode(encoding)
    except UnicodeError:  # of two bytes and more for every character, as UTF-16 has
        sentence = f"{path} cannot be split into lines in {encoding}; convert it to UTF-8"
        raise Unreadable("wrong_encoding", sentence) from None
    offset = 0
    for number, line in enumerate(stream, start=1):
        if not line.removeprefix(b"\xef\xbb\xbf").strip():
            skipped.counts["blank_lines"] += 1
        else:
            try:
                yield f"{title}:{number}", json_line(line, f"{path} line {number}", text_field, encoding, offset)
            except Unreadable as problem:
                skipped.meet(problem)
        offset += len(line)


def json_line(line: bytes, place: str, text_field: str, encoding: str = "utf-8", offset: int = 0) -> str:
    """The text in one line of JSONL.

    Args:
        line: the line, with or without its end.
        place: what to call it.
        text_field: key that holds the text.
        encoding: how it is encoded.
        offset: bytes before it.

    Raises:
        Unreadable: it has another encoding, is no JSON or lacks the text.
    """
    try:
        content = line.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _wrong_encoding(place, encoding, f"byte {offset + error.start}", _ENCODING_ADVICE) from None
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        raise Unreadable("no_json", f"{place} is no valid JSON; mend or remove that line") from None
    if not isinstance(record, dict) or text_field not in record:
        advice = "correct the line, or text_field in the configuration"
        raise Unreadable("no_text", f"{place} has no key {text_field}; {advice}")
    return text_of(record[text_field], place, text_field)


def _read_parquet(stream: IO[bytes], path: Path, title: str, text_field: str, skipped: Skipped) -> Iterator[Raw]:
    # A decompressor cannot jump to the footer, which Parquet starts with.
    table = pa.parquet.ParquetFile(stream if path.suffix.lower() == ".parquet" else pa.BufferReader(stream.read()))
    check_column(table.schema_arrow.names, text_field, str(path))
    row = 0
    for batch in table.iter_batches(columns=[text_field], batch_size=1024):
        for value in batch.column(0):
            try:
                yield f"{title}:{row}", column_text(value, f"{path} row {row}", text_field)
            except Unreadable as problem:
                skipped.meet(problem)
            row += 1


def check_column(columns: list[str], text_field: str, place: str) -> None:
    """Refuse a table without the column of the text.

    Raises:
        Unreadable: with the columns that there are.
    """
    if text_field not in columns:
        told = ", ".join(columns)
        raise Unreadable("no_text", f"{place} has no column {text_field}; text_field must be one of: {told}")


def column_text(value: "pa.Scalar", place: str, text_field: str) -> str:
    """A value of a column as text.

    Raises:
        Unreadable: it is no text, or no UTF-8.
    """
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:
        where, advice = f"{place} ({text_field})", "convert it to UTF-8"
        raise _wrong_encoding(where, "utf-8", f"byte {error.start}", advice) from None
    return text_of(text, place, text_field)


def text_of(value: object, place: str, text_field: str, option: str = "text_field") -> str:
    """A value as text; a null is empty.

    Args:
        value: what was found.
        place: where, for the error.
        text_field: under which key or column.
        option: which key of the configuration names that one.

    Raises:
        Unreadable: it is no text, or cannot be written as UTF-8.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        advice = f"correct it, or {option} in the configuration"
        raise Unreadable("no_text", f"{place}: {text_field} is no text; {advice}")
    # JSON can spell half of a surrogate pair, which is no character and has no UTF-8.
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Unreadable("no_text", f"{place}: {text_field} holds half of a surrogate pair; correct it") from None
    return value
