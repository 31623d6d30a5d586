"""Install Slurm if it is missing, then run the tests of this folder: what `make test-slurm` calls.

Further arguments go to pytest, such as `-k drained` for one fault.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.daemons import missing_tools

PACKAGES = ["slurm-wlm", "munge"]


def install() -> str | None:
    """Install Slurm and munge with apt-get; return why that is not possible, or None."""
    what = f"`apt-get install {' '.join(PACKAGES)}`"
    if shutil.which("apt-get") is None:
        return f"Slurm is not installed ({', '.join(missing_tools())}) and there is no apt-get; install Slurm and munge"
    if os.geteuid() != 0:
        return f"Slurm is not installed ({', '.join(missing_tools())}); run {what} as root, then this again"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *PACKAGES]):
        print(f"{' '.join(command)} ...", flush=True)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            return f"{what} failed ({last}); install Slurm and munge, then run this again"
    still = missing_tools()
    return f"{what} left {', '.join(still)} missing; install them, then run this again" if still else None


def stop(*_: object) -> None:
    """Let SIGTERM end the tests as Ctrl-C does, so that the daemons are stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    if missing_tools() and (reason := install()):
        sys.exit(f"error: {reason}")
    sys.exit(pytest.main([str(Path(__file__).parent), "-m", "slurm", *sys.argv[1:]]))
