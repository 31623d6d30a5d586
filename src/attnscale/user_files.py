"""The user's own text files: what a pattern of the configuration stands for."""

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnscale.errors import UserError, sentence_for_os_error


def matching_files(pattern: str, problems: list[str] | None = None) -> dict[str, Path]:
    """Files of a pattern, sorted, by their path below its fixed first part, so that no absolute path is told.

    The workflow asks too, to make the files inputs of the corpus stage; both must see the same ones. Links are
    followed, but `**` goes into no folder twice, so that links which lead back to a folder around them do no harm.

    Args:
        pattern: a path or glob (`**` for any depth, `~` for the home folder), from the working directory.
        problems: gets a sentence about everything that matches and cannot be read: links to nothing, pipes and devices,
            folders that cannot be listed. None refuses the first of them.

    Raises:
        UserError: it matches no file, names a folder, or a file's name is no UTF-8 or holds a brace, which
            Snakemake takes for a wildcard; or there is a problem.
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
        if os.path.lexists(path):
            raise UserError(_no_file(path))
        raise UserError(f"{pattern} does not exist; check paths, which start at the working directory")
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    root = Path(*parts[:fixed])
    found: list[str] = []
    # Neither glob nor Path.glob tell of folders that they cannot list or end where links lead in circles.
    matches = sorted(set(_expand(root, "", parts[fixed:], found))) if root.is_dir() else []
    found += [_no_file(path) for path in (root / match for match in matches) if not (path.is_file() or path.is_dir())]
    files = {match: root / match for match in matches if (root / match).is_file()}
    if problems is None and found:
        raise UserError(found[0])
    if problems is not None:
        problems += found
    if not files:
        raise UserError(f"{pattern} matches no file; check paths, which start at the working directory")
    return _checked(pattern, files)


def _expand(root: Path, start: str, parts: Sequence[str], problems: list[str]) -> Iterator[str]:
    """What matches the parts of a pattern below a folder, as paths below `root`."""
    first, *rest = parts
    if first == "**":
        for folder in _folders(root, start, problems, set()):
            yield from _expand(root, folder, rest or ["*"], problems)
        return
    names = [first]
    if glob.has_magic(first):
        names = [name for name in _names(root / start, problems) if fnmatch.fnmatch(name, first)]
        names = [name for name in names if first.startswith(".") or not name.startswith(".")]
    for name in names:
        path = f"{start}{name}"
        if not rest and os.path.lexists(root / path):
            yield path
        elif rest and (root / path).is_dir():
            yield from _expand(root, f"{path}/", rest, problems)


def _folders(root: Path, start: str, problems: list[str], seen: set[str]) -> Iterator[str]:
    """A folder and all below it that are not hidden, each once."""
    real = os.path.realpath(root / start)
    if real in seen:
        return
    seen.add(real)
    yield start
    for name in _names(root / start, problems):
        if not name.startswith(".") and (root / start / name).is_dir():
            yield from _folders(root, f"{start}{name}/", problems, seen)


def _names(folder: Path, problems: list[str]) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        sentence = sentence_for_os_error(error)
        if sentence not in problems:
            problems.append(sentence)
        return []


def _no_file(path: Path) -> str:
    kind = "a link to nothing" if path.is_symlink() and not path.exists() else "a pipe or device"
    return f"{path} is {kind} and no file; remove it, or narrow paths"


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
