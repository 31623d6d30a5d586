"""Run every check of the project: lint, format, types, workflow, tests. `make test` and CI call this.

All checks run whatever the ones before them said; the exit status is 0 only if each passed. pytest is last, so that
the output ends with its summary; when another check failed, one more line names it. Further arguments go to pytest,
`-n 0` for one that runs the tests in a single process.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
# snakefmt and the workflow tests call other tools by name.
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
CHECKS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["mypy"],
    ["snakefmt", "--check", "Snakefile", "workflow"],
    ["snakemake", "--lint"],
]
# Files of tests go to as many processes as there are cores, up to four, each of which takes up to 2 GB.
PYTEST = ["pytest", "-n", str(min(len(os.sched_getaffinity(0)), 4)), "--dist", "loadfile"]


def passes(command: list[str]) -> bool:
    """Run one tool of the environment with its output shown; whether it is content."""
    print(f"== {' '.join(command)}", flush=True)
    return subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, env=ENVIRONMENT).returncode == 0


def main() -> None:
    """Run all checks, then the tests, and report every failure."""
    failed = [" ".join(command) for command in CHECKS if not passes(command)]
    tests_pass = passes([*PYTEST, *sys.argv[1:]])
    if failed:
        print(f"error: these checks failed (see above): {', '.join(failed)}", file=sys.stderr)
    sys.exit(0 if tests_pass and not failed else 1)


if __name__ == "__main__":
    main()
