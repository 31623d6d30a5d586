"""Reading the three kinds of sources: raw documents and a hash that pins them."""

import contextlib
import fnmatch
import hashlib
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscale.config import FilesSource, HubSource, Source, WheelSource
from attnscale.corpus.download import open_wheel
from attnscale.corpus.formats import Raw, check_format, decode, read_file
from attnscale.errors import UserError
from attnscale.files import canonical_json, sha256_of
from attnscale.user_files import matching_files


@dataclass(frozen=True)
class OpenSource:
    """A source ready to be read.

    Attributes:
        sha256: of the wheel; of the rows (hub: sha256 over the 32-byte sha256 of each row's text, in
            order); of the files (sha256 over their sorted hexadecimal sha256 values, one a line).
        documents: title and uncleaned text of each document, in a fixed order.
    """

    sha256: str
    documents: Iterable[Raw]


def open_source(source: Source, cache_dir: Path) -> contextlib.AbstractContextManager[OpenSource]:
    """Open a source; its documents can be read inside the `with` block.

    Args:
        source: a row of the table of sources.
        cache_dir: where downloads are kept.

    Raises:
        UserError: the source cannot be had, does not match its pin, or holds something unreadable.
    """
    match source:
        case WheelSource():
            return _open_wheel_source(source, cache_dir)
        case HubSource():
            return _open_hub_source(source, cache_dir)
        case FilesSource():
            return _open_files_source(source)


@contextlib.contextmanager
def _open_wheel_source(source: WheelSource, cache_dir: Path) -> Iterator[OpenSource]:
    with open_wheel(source, cache_dir) as stream:
        label = f"{source.name} {source.version}"
        try:
            archive = zipfile.ZipFile(stream)
        except zipfile.BadZipFile:
            raise UserError(f"{label} is no wheel; check name, version and sha256 in the configuration") from None
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        members = [name for name in names if fnmatch.fnmatchcase(name, source.members)]
        if not members:
            raise UserError(f"{label} has no member that matches {source.members}; correct corpus.sources members")
        yield OpenSource(
            sha256=source.sha256,
            documents=((name, decode(archive.read(name), f"{name} in {label}")) for name in members),
        )


@contextlib.contextmanager
def _open_files_source(source: FilesSource) -> Iterator[OpenSource]:
    found = matching_files(source.paths)
    for path in found.values():
        check_format(path)
    hashes = "".join(f"{value}\n" for value in sorted(sha256_of(path) for path in found.values()))
    sha256 = hashlib.sha256(hashes.encode("ascii")).hexdigest()
    if source.sha256 is not None and sha256 != source.sha256:
        raise UserError(
            f"{source.paths} has the sha256 {sha256} where {source.sha256} is expected; "
            f"bring the files back or correct sha256 of the source {source.name}"
        )
    yield OpenSource(
        sha256=sha256,
        documents=(raw for title, path in found.items() for raw in read_file(path, title, source.text_field)),
    )


@contextlib.contextmanager
def _open_hub_source(source: HubSource, cache_dir: Path) -> Iterator[OpenSource]:
    with contextlib.ExitStack() as stack:
        if Path(source.name).is_dir():
            # A folder can change under the same name and revision, so nothing of it may be kept.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnscale-")))
        else:
            # Offline, `datasets` falls back to the newest copy in its folder whatever the revision; one
            # folder for each pin leaves it no wrong choice.
            pin = canonical_json([source.name, source.subset, source.revision])
            folder = cache_dir / "hub" / hashlib.sha256(pin.encode("utf-8")).hexdigest()
        table = _load(source, folder)
        if source.text_field not in table.column_names:
            columns = ", ".join(table.column_names)
            raise UserError(f"{source.name} has no column {source.text_field}; text_field must be one of: {columns}")
        table = table.select_columns([source.text_field])
        total = hashlib.sha256()
        for _, text in _rows(source, table):
            total.update(hashlib.sha256(text.encode("utf-8")).digest())
        yield OpenSource(sha256=total.hexdigest(), documents=_rows(source, table))


def _rows(source: HubSource, table: Any) -> Iterator[Raw]:
    for number, row in enumerate(table):
        text = row[source.text_field]
        if not isinstance(text, str | None):
            raise UserError(f"row {number} of {source.name}: {source.text_field} is no text; choose another text_field")
        yield str(number), text or ""


def _load(source: HubSource, folder: Path) -> Any:
    import datasets

    try:
        return datasets.load_dataset(
            source.name,
            source.subset,
            split=source.split,
            revision=source.revision,
            cache_dir=str(folder),
        )
    # Which exceptions it raises is not documented and differs by what is wrong with network, name or files.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"cannot load the data set {source.name} at revision {source.revision} ({reason}); "
            f"check the network, and name, revision, subset and split in the configuration"
        ) from error
