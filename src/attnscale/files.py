"""Reading and writing files so that a reader never meets a half-written one."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnscale.errors import UserError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; when the block ends well, it becomes `path` in one step.

    The content is flushed to the disk before the rename, so that after a power cut there is either the
    old file or the whole new one. When the block raises (a full disk, say), the temporary file goes.

    Args:
        path: the final name; its folder is made if it is missing.

    Yields:
        A path in the same folder, for the block to write.

    Raises:
        OSError: the file system refused.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is a folder, device or pipe; choose another name for the file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        # mkstemp makes private files; results are for everyone the user's umask allows.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        # A failed write knows no name, and a failed rename the temporary one; the user knows `path`.
        if error.filename is None or Path(os.fsdecode(error.filename)).suffix == ".part":
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with Unix line ends, in one step (see `replacing`)."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data`, in one step (see `replacing`)."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, in one step."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the stage that makes it, or the whole pipeline") from None
    except ValueError as error:
        raise UserError(f"{path} is no valid JSON ({error}); delete it and run the pipeline again") from None


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a NumPy array in .npy format, in one step; equal arrays give equal bytes."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)


def read_array(path: Path) -> npt.NDArray[Any]:
    """Read a .npy file.

    Raises:
        UserError: the file is missing, cut short or no .npy file.
    """
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the stage that makes it, or the whole pipeline") from None
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run the pipeline again") from None


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in pieces so that memory does not grow with the file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text, so text can be compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
