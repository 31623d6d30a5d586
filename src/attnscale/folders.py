"""Folders that are there whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnscale.errors import UserError
from attnscale.files import sync_folder


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; when the block ends well, it takes the place of `path` and all in it.

    When the block raises, or a signal that the command line knows ends it, the temporary folder goes. After SIGKILL it
    stays, hidden as `.NAME.*.part`; nothing reads it.

    Args:
        path: the final name; the folder that it is in is made if it is missing.

    Yields:
        A folder for the block to fill.

    Raises:
        OSError: the file system refused; it is told with names below `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In it is what is filled, and for a moment what was there before.
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    except OSError as error:
        error.filename = str(path)
        raise
    part, old = aside / "new", aside / "old"
    try:
        part.mkdir()
        yield part
        try:
            if path.exists():
                path.rename(old)
            part.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        sync_folder(path.parent)
    except OSError as error:
        # The user knows `path`, and none of the temporary names.
        if error.filename is not None:
            error.filename = os.fsdecode(error.filename).replace(str(part), str(path))
            error.filename2 = None
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_target(folder: Path) -> None:
    """Refuse a name that cannot become a new folder, before anything is computed for it.

    Raises:
        UserError: it is in use, a link or the working directory, or lies where no folder can be made.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; give the name of a new folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; give the name of a new folder, or remove it")
    if folder.resolve() == Path.cwd():
        raise UserError(f"{folder} is the folder that you are in; give the name of a new one")
    for parent in folder.absolute().parents:
        if parent.exists():
            if not parent.is_dir():
                raise UserError(f"{folder} cannot be made, since {parent} is a file; give another name")
            if not os.access(parent, os.W_OK | os.X_OK):
                raise UserError(f"{folder} cannot be made, since {parent} cannot be written; give another name")
            return
