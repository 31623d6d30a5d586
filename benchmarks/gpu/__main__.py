"""Entry: puts the project on Python's path, since nothing is installed where this runs, and starts the command."""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    started = time.monotonic()  # before torch is imported: the budget is that of the whole command
    project = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(project), str(project / "src")]
    from benchmarks.gpu.command import main

    sys.exit(main(sys.argv[1:], started))
