"""Rows of a data set of the Hugging Face hub, fetched piece by piece into the cache.

A piece is the text of one row group of a Parquet file, or of a whole JSONL file. It is written in one step, so an
interrupted download goes on with the first piece that is missing, and two processes that fetch the same one write the
same file. With all pieces that the rows asked for lie in, nothing is asked of the network.
"""

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

from attnscale.config import HubSource
from attnscale.corpus.formats import Raw, check_column, column_text, json_line
from attnscale.errors import UserError
from attnscale.files import canonical_json, read_json, write_bytes, write_json
from attnscale.progress import log

# Seconds to wait before each further try; the hub's client has shorter ones of its own for single requests.
PAUSES = (2.0, 8.0, 30.0)

_LAST = b"attnscale.last"
_T = TypeVar("_T")


class HubRows:
    """The rows of a source, each with its number and text; they can be gone through more than once.

    Args:
        source: data set, revision, column and number of rows. A name that is a folder here is read in place.
        cache_dir: where pieces are kept.
    """

    def __init__(self, source: HubSource, cache_dir: Path) -> None:
        self._source = source
        self._local = Path(source.name).is_dir()
        pin = canonical_json([source.name, source.subset, source.split, source.revision, source.text_field])
        self._folder = cache_dir / "hub" / hashlib.sha256(pin.encode("utf-8")).hexdigest()

    def __iter__(self) -> Iterator[Raw]:
        """Go through the rows from the first.

        Raises:
            UserError: the data set cannot be had, or its text not be read.
        """
        number = 0
        for file in range(len(self._files)):
            for piece in self._pieces(file):
                for value in piece.column(0):
                    if number == self._source.max_documents:
                        return
                    place = f"row {number} of {self._source.name}"
                    yield str(number), column_text(value, place, self._source.text_field)
                    number += 1
                # Else the piece after the last wanted row would be fetched for nothing.
                if number == self._source.max_documents:
                    return

    @functools.cached_property
    def _files(self) -> list[str]:
        """Addresses of the data files at the pinned revision, in the order of their rows."""
        path = self._folder / "files.json"
        if not self._local and path.is_file():
            return [str(file) for file in read_json(path)]
        files = self._retrying("finding its files", self._resolve)
        if not self._local:
            write_json(path, files)
        return files

    def _resolve(self) -> list[str]:
        import datasets

        source = self._source
        builder = datasets.load_dataset_builder(source.name, source.subset, revision=source.revision)
        splits = builder.config.data_files or {}
        if source.split not in splits:
            raise UserError(
                f"{source.name} at revision {source.revision} has no split {source.split}; split must be one of: "
                f"{', '.join(map(str, splits)) or 'none'}"
            )
        files = [str(file) for file in splits[source.split]]
        for file in files:
            if not file.endswith((".parquet", ".jsonl")):
                raise UserError(
                    f"{source.name} holds {file.rpartition('/')[2]}, but only .parquet and .jsonl files can be read; "
                    "try revision refs/convert/parquet, the hub's own copy of most data sets"
                )
        return files

    def _pieces(self, file: int) -> Iterator["pa.Table"]:
        with contextlib.ExitStack() as stack:
            opened = _OpenFile(self._files[file], self._source.text_field, stack)
            number = 0
            while True:
                path = self._folder / f"{file:05d}-{number:05d}.piece"
                piece = None if self._local else _read_piece(path)
                if piece is None:
                    what = f"reading piece {number} of {opened.name}"
                    piece = self._retrying(what, functools.partial(opened.piece, number))
                    if not self._local:
                        _write_piece(path, piece)
                yield piece
                if _LAST in piece.schema.metadata:
                    return
                number += 1

    def _retrying(self, what: str, action: Callable[[], _T]) -> _T:
        """Do something on the network; try again after an error that may pass.

        Raises:
            UserError: with the reason, after the last try or an error that will not pass.
        """
        source = self._source
        for pause in (*PAUSES, None):
            try:
                return action()
            except UserError:
                raise
            # Which exceptions the libraries raise is not documented and differs by what is wrong.
            except Exception as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
                if pause is None or not _may_pass(error):
                    raise UserError(
                        f"cannot load the data set {source.name} at revision {source.revision} ({what}: {reason}); "
                        "check the network, and name, revision, subset and split in the configuration"
                    ) from error
                log(f"{source.name}, {what}: {reason}; trying again in {pause:g} s")
                time.sleep(pause)
        raise AssertionError


class _OpenFile:
    """A data file that is opened when the first piece of it is needed."""

    def __init__(self, address: str, text_field: str, stack: contextlib.ExitStack) -> None:
        self.name = address.rpartition("/")[2]
        self._address = address
        self._text_field = text_field
        self._stack = stack
        self._parquet: Any = None

    def piece(self, number: int) -> "pa.Table":
        if self._address.endswith(".jsonl"):
            return self._lines()
        try:
            if self._parquet is None:
                stream = self._stack.enter_context(_open(self._address))
                self._parquet = pa.parquet.ParquetFile(stream)
                check_column(self._parquet.schema_arrow.names, self._text_field, self.name)
            groups = self._parquet.num_row_groups
            table = self._parquet.read_row_groups([number] if groups else [], columns=[self._text_field])
        except Exception:
            # After a lost connection a stream may stand anywhere.
            self._parquet = None
            raise
        return table.replace_schema_metadata({_LAST: b"1"} if number + 1 >= groups else {})

    def _lines(self) -> "pa.Table":
        with _open(self._address) as stream:
            texts = [
                json_line(line, f"{self.name} line {number}", self._text_field)
                for number, line in enumerate(stream, start=1)
                if line.strip()
            ]
        return pa.table({self._text_field: pa.array(texts, pa.large_string())}).replace_schema_metadata({_LAST: b"1"})


def _open(address: str) -> IO[bytes]:
    if not address.startswith("hf://"):
        return Path(address).open("rb")
    import huggingface_hub

    stream: IO[bytes] = huggingface_hub.HfFileSystem().open(address, "rb")
    return stream


def _write_piece(path: Path, piece: "pa.Table") -> None:
    """Write a piece: the sha256 of what follows, and the table as Parquet."""
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(piece, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    write_bytes(path, hashlib.sha256(data).digest() + data)


def _read_piece(path: Path) -> "pa.Table | None":
    """A piece from the cache; None if it is not there or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, data = content[:32], content[32:]
    if hashlib.sha256(data).digest() == digest:
        return pa.parquet.read_table(pa.BufferReader(data))
    log(f"{path} is damaged and is fetched again")
    return None


def _may_pass(error: BaseException) -> bool:
    """Whether an error, or what led to it, is one of the network and not of what was asked for."""
    import huggingface_hub.errors

    if isinstance(error, huggingface_hub.errors.OfflineModeIsEnabled):
        return False
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(seen, huggingface_hub.errors.HfHubHTTPError) and response is not None:
            return bool(response.status_code >= 500 or response.status_code in (408, 429))
        seen = seen.__cause__ or seen.__context__
    seen = error
    while seen is not None:
        # The client's transport changed from requests to httpx, and the names of its errors with it.
        if isinstance(seen, ConnectionError | TimeoutError) or type(seen).__module__.startswith(("http", "requests")):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
