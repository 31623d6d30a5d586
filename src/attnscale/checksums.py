"""A checksum beside every file that a stage writes, so that no later stage takes a damaged file for a right one.

Snakemake takes a changed file for a wanted one and makes everything after it anew; only the file's own checksum
tells damage from that.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from attnscale.errors import UserError, sentence_for_os_error
from attnscale.files import sha256_of, write_text
from attnscale.progress import log


def checksum_file(path: Path) -> Path:
    """Where the checksum of a file lies: beside it, in the format of `sha256sum`."""
    return path.with_name(f".{path.name}.sha256")


def _line(path: Path) -> str:
    return f"{sha256_of(path)}  {path.name}\n"


def write_checksums(paths: Iterable[Path]) -> None:
    """Write the checksum of each file.

    A disk that has no room left for them costs no result: it is told, and those files go unchecked.
    """
    for path in paths:
        try:
            write_text(checksum_file(path), _line(path))
        except OSError as error:
            checksum_file(path).unlink(missing_ok=True)
            log(f"{path} has no checksum: {sentence_for_os_error(error)}")


def check_checksums(paths: Iterable[Path]) -> None:
    """Refuse a file that is not the one that was written; one that is missing or has no checksum passes.

    Raises:
        UserError: file and checksum disagree.
    """
    for path in paths:
        try:
            line = checksum_file(path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        if path.is_file() and _line(path) != line:
            raise UserError(
                f"{path} and its checksum {checksum_file(path).name} disagree, so one of them is damaged; put back the "
                "right file, or delete both and run the pipeline again"
            )


@contextlib.contextmanager
def checked(inputs: Iterable[Path], outputs: Iterable[Path]) -> Iterator[None]:
    """Check what a stage reads before the block, and write checksums of what it wrote when the block ends well.

    Raises:
        UserError: an input is damaged.
    """
    check_checksums(inputs)
    yield
    write_checksums(outputs)
