"""Make the folder .venv hold exactly what the locks list, and this package in editable mode.

Run by `make env`; by hand: `python3 envs/install.py [--with-tests] [--with-cluster]`. It needs nothing but the standard
library. When .venv already agrees with the locks it does nothing. When a lock has changed, the project was moved, or
an earlier call was killed in the middle, .venv is made anew, since pip neither removes what a lock no longer lists nor
notices a package that was unpacked by half. To use another Python: delete .venv, then `make PYTHON=/path/to/python3`.

`--here` fills the environment of the running Python instead (for conda and containers) and keeps no record.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - older Pythons get to read this file, down to here
    sys.exit(
        "error: Python 3.11 or newer is needed and %s is %d.%d: run `make PYTHON=/path/to/python3.11`"  # noqa: UP031
        % (sys.executable, sys.version_info[0], sys.version_info[1])
    )

ENVS = Path(__file__).resolve().parent
ROOT = ENVS.parent
VENV = ROOT / ".venv"
STAMP = VENV / "attnscale.json"
LOCK = VENV / "attnscale.lock"
PROJECT = "pyproject.toml"
# Settings of pip that would put packages elsewhere or refuse the editable install.
MISLEADING = {"PIP_PREFIX", "PIP_REQUIRE_HASHES", "PIP_ROOT", "PIP_TARGET", "PIP_USER"}
NOT_OFFERED = "the package index has no file of the lock that fits this Python"
# What pip says, and what that means; the first match counts.
REASONS = [
    ("No space left on device|Disk quota exceeded", "the disk is full: free some space for it and for pip's cache"),
    ("DO NOT MATCH THE HASHES|Hashes are required", "a package does not have the hash that the lock lists"),
    (
        "Failed to establish a new connection|NewConnectionError|NameResolutionError|name resolution|Max retries"
        "|Network is unreachable|Read timed out|ProxyError|SSLError|Connection (refused|reset|aborted|broken)",
        "the package index cannot be reached: check the network and pip's settings",
    ),
    ("No matching distribution found", NOT_OFFERED),
]


class InstallError(Exception):
    """The environment cannot be made; the message is one sentence for the user."""


class NotOfferedError(InstallError):
    """The package index answered, but has no file that fits."""


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: list[str], log: Path, lock: int | None, what: str) -> None:
    """Run a command with its output in `log`; on a terminal show which package it is at.

    Raises:
        InstallError: it failed; says why, and where its output is.
    """
    print(f"{what} ...", flush=True)
    environment = {key: value for key, value in os.environ.items() if key not in MISLEADING}
    # A child that outlives us after a kill keeps the lock on .venv until it is done.
    keep = () if lock is None else (lock,)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, pass_fds=keep, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with log.open("w", encoding="utf-8") as file, process:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace")
            file.write(line)
            if sys.stdout.isatty() and line.startswith(("Collecting ", "Installing ")):
                print("\r\033[K  " + line.split(" (")[0].rstrip()[:70], end="", flush=True)
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)
    if process.returncode != 0:
        output = log.read_text(encoding="utf-8")
        reason = next((reason for pattern, reason in REASONS if re.search(pattern, output)), None)
        if reason is None:
            errors = [line for line in output.splitlines() if line.lower().startswith("error")]
            reason = (errors or [f"exit status {process.returncode}"])[-1]
        kind = NotOfferedError if reason == NOT_OFFERED else InstallError
        raise kind(f"{what} failed: {reason.rstrip('.')} (full output: {log}), then run the same command again")


def first_requirement(lock: Path, package: str) -> str:
    """The requirement of one package with its hashes, as the lock has it."""
    found = re.search(rf"^{package}==(?:.*\\\n)*.*\n", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found is None:
        raise InstallError(f"{lock} does not list {package}, which builds other packages: run `make lock`")
    return found.group()


class Installer:
    """Puts locks into one environment.

    Args:
        python: its interpreter.
        scratch: a folder for logs.
        lock: an open descriptor that holds the lock on the environment.
    """

    def __init__(self, python: Path, scratch: Path, lock: int | None) -> None:
        self.python, self.scratch, self.lock = python, scratch, lock

    def pip(self, what: str, name: str, *arguments: str) -> None:
        """Run `pip install` in the environment."""
        # Byte code is written on first import: most modules of the big packages never are.
        command = [str(self.python), "-I", "-m", "pip", "install", "--no-input", "--no-compile", "--no-deps"]
        run([*command, *arguments], self.scratch / f"{name}.log", self.lock, what)

    def install_lock(self, name: str) -> None:
        """Install envs/NAME; every file's hash is checked."""
        arguments = ["--require-hashes", "--no-build-isolation", "--use-pep517", "-r", str(ENVS / name)]
        self.pip(f"installing envs/{name}", name, *arguments)

    def install_build_tools(self) -> None:
        """Install the locked setuptools: a package without a wheel must not be built by an unchecked one."""
        tools = self.scratch / "build-tools.txt"
        tools.write_text(first_requirement(ENVS / "run.lock", "setuptools"), encoding="utf-8")
        self.pip("installing build tools", "build-tools", "--require-hashes", "-r", str(tools))

    def install_cpu_torch(self) -> None:
        """Install torch's CPU build if pip is offered it; else the lock's default build follows with run.lock.

        It must be asked for by name: pip prefers links that declare a listed hash, and files in a folder declare none.
        """
        wanted = self.scratch / "torch-cpu.txt"
        requirement = first_requirement(ENVS / "run.lock", "torch")
        wanted.write_text(re.sub(r"^(torch==[0-9.]+)", r"\1+cpu", requirement), encoding="utf-8")
        try:
            self.pip("installing torch's CPU build", "torch-cpu", "--require-hashes", "-r", str(wanted))
        except NotOfferedError:
            print("  not offered here: the default build and its CUDA packages (several GB) follow", flush=True)

    def install_project(self) -> None:
        """Install this package in editable mode with the locked build backend."""
        self.pip("installing attnscale", "attnscale", "--no-build-isolation", "-e", ".")

    def has_cpu_torch(self) -> bool:
        """Whether the installed torch is the build that needs no CUDA packages."""
        code = "from importlib.metadata import version; print(version('torch'))"
        return "+cpu" in subprocess.check_output([str(self.python), "-I", "-c", code], text=True)


def python_works() -> bool:
    """Whether .venv's interpreter still starts and still sees its own pip.

    It does not when the Python it was made from was removed, or replaced by another minor version.
    """
    with contextlib.suppress(OSError):
        return (
            subprocess.run([str(VENV / "bin" / "python"), "-I", "-c", "import pip"], capture_output=True).returncode
            == 0
        )
    return False


def read_stamp() -> dict[str, str]:
    """What .venv holds: its location and the hash of every file that was installed; empty for a new folder."""
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads(STAMP.read_text(encoding="utf-8")))
    return {}


def write_stamp(stamp: dict[str, str]) -> None:
    """Replace the stamp in one step."""
    new = STAMP.with_suffix(".new")
    new.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    new.replace(STAMP)


def create(lock: int) -> dict[str, str]:
    """Empty .venv and make a virtual environment in it; return its stamp."""
    if importlib.util.find_spec("ensurepip") is None:
        raise InstallError(
            f"{sys.executable} cannot make virtual environments: install its venv module "
            "(Debian, Ubuntu: `apt install python3-venv`), then run this again"
        )
    stamp = {"location": str(VENV)}
    write_stamp({**stamp, "unfinished": "venv"})
    for child in VENV.iterdir():
        if child not in (STAMP, LOCK):
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    # The interpreter behind an active .venv, which may be the one that was just emptied.
    python = getattr(sys, "_base_executable", sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    run([python, "-I", "-m", "venv", str(VENV)], VENV / "venv.log", lock, f"making .venv with Python {version}")
    return stamp


def update(extras: list[str], lock: int) -> None:
    """Bring .venv to what the locks say, doing as little as is safe."""
    names = ["run.lock", "cuda.lock", "test.lock", "cluster.lock"]
    want = {"location": str(VENV), **{name: sha256(ENVS / name) for name in names}, PROJECT: sha256(ROOT / PROJECT)}
    stamp = read_stamp()
    outdated = [name for name in stamp if name != PROJECT and stamp[name] != want.get(name)]
    if outdated or "run.lock" not in stamp or not python_works():
        stamp = create(lock)
    installer = Installer(VENV / "bin" / "python", VENV, lock)

    def step(name: str) -> None:
        if stamp.get(name) != want[name]:
            write_stamp({**stamp, "unfinished": name})
            if name == "run.lock":
                installer.install_build_tools()
                installer.install_cpu_torch()
            installer.install_project() if name == PROJECT else installer.install_lock(name)
            stamp[name] = want[name]
            write_stamp(stamp)

    step("run.lock")
    if "cuda.lock" not in stamp and not installer.has_cpu_torch():
        step("cuda.lock")
    for name in extras:
        step(name)
    step(PROJECT)


def install_here(extras: list[str]) -> None:
    """Install everything into the environment of the running Python."""
    scratch = Path(sys.prefix)
    installer = Installer(Path(sys.executable), scratch, None)
    installer.install_build_tools()
    installer.install_cpu_torch()
    installer.install_lock("run.lock")
    if not installer.has_cpu_torch():
        installer.install_lock("cuda.lock")
    for name in extras:
        installer.install_lock(name)
    installer.install_project()


@contextlib.contextmanager
def exclusive() -> Iterator[int]:
    """Make .venv and hold it for this process and its children; yield the lock's descriptor.

    Raises:
        InstallError: .venv was made by someone else.
    """
    VENV.mkdir(exist_ok=True)
    if any(VENV.iterdir()) and not LOCK.exists():
        raise InstallError(f"{VENV} was not made by this project: move it away or delete it, then run this again")
    with LOCK.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another installation is at work in .venv: waiting for it ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: then two at once are the user's to avoid
        yield file.fileno()


def main() -> None:
    """Parse the command line; turn what goes wrong into one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--with-tests", action="store_true", help="also install envs/test.lock")
    parser.add_argument("--with-cluster", action="store_true", help="also install envs/cluster.lock")
    parser.add_argument("--here", action="store_true", help="install into the running Python instead of .venv")
    arguments = parser.parse_args()
    chosen = (("test.lock", arguments.with_tests), ("cluster.lock", arguments.with_cluster))
    extras = [name for name, wanted in chosen if wanted]
    try:
        if arguments.here:
            install_here(extras)
        else:
            with exclusive() as lock:
                update(extras, lock)
    except InstallError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted; the next call makes .venv anew")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full: free some space" if full else f"{error.strerror}: {error.filename}"
        sys.exit(f"error: {VENV} cannot be written: {reason}, then run the same command again")


if __name__ == "__main__":
    main()
