"""Folders that are there whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnscale.errors import UserError
from attnscale.files import new_folder


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
    part = path
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent) as aside,
            new_folder(path) as part,
        ):
            yield part
            if path.exists():
                path.rename(Path(aside) / path.name)
    except OSError as error:
        # The user knows `path`, and none of the temporary names.
        if error.filename is not None:
            name = os.fsdecode(error.filename)
            error.filename = str(path) if name.endswith(".part") else name.replace(str(part), str(path))
            error.filename2 = None
        raise


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
