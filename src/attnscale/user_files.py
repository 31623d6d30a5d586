"""The user's own text files: what a pattern of the configuration stands for."""

import glob
from pathlib import Path

from attnscale.errors import UserError


def matching_files(pattern: str) -> dict[str, Path]:
    """Files of a pattern, sorted, by their path below its fixed first part, so that no absolute path is told.

    The workflow asks too, to make the files inputs of the corpus stage; both must see the same ones.

    Args:
        pattern: a path or glob (`**` for any depth, `~` for the home folder), from the working directory.

    Raises:
        UserError: it matches no file, names a folder, or a file's name is no UTF-8 or holds a brace, which
            Snakemake takes for a wildcard.
    """
    try:
        path = Path(pattern).expanduser()
    except RuntimeError:
        raise UserError(f"{pattern} starts with a user whose home folder is unknown; write it out") from None
    if path.is_file():
        return _checked(pattern, {path.name: path})
    if path.is_dir():
        raise UserError(f"{pattern} is a folder; name the files in it, such as {pattern.rstrip('/')}/*.txt")
    if not glob.has_magic(str(path)):
        raise UserError(f"{pattern} does not exist; check paths, which start at the working directory")
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    root = Path(*parts[:fixed])
    # Not Path.glob, whose treatment of links and hidden files differs between Python versions.
    matches = glob.glob(str(Path(*parts[fixed:])), root_dir=root, recursive=True)  # noqa: PTH207
    files = {Path(match).as_posix(): root / match for match in sorted(matches) if (root / match).is_file()}
    if not files:
        raise UserError(f"{pattern} matches no file; check paths, which start at the working directory")
    return _checked(pattern, files)


def _checked(pattern: str, files: dict[str, Path]) -> dict[str, Path]:
    for name in files:
        if "{" in name or "}" in name:
            raise UserError(f"{pattern} matches {name}, which has a brace in its name; rename it")
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "backslashreplace").decode("ascii", "backslashreplace")
            raise UserError(f"{pattern} matches {shown}, whose name is no UTF-8; rename it") from None
    return files
