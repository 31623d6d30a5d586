"""Write the locks run, test, cluster and cuda in envs/ from pyproject.toml.

To regenerate: put `uv` on the PATH (`pip install uv`), then run `make lock`. Versions that the locks already pin are
kept as long as pyproject.toml allows them; `python envs/make_locks.py --upgrade` moves everything to the newest. Only
metadata is downloaded. Give uv another package index by its own environment variables; no address is written down.

run.lock      what the pipeline needs, and what builds and installs this package (BUILD)
test.lock     what the dev and test extras add to that
cluster.lock  what the cluster extra adds to both
cuda.lock     what only torch's default build needs; the CPU build does without

`[tool.uv] environments` in pyproject.toml limits the resolution to the machines that the locks are for, so its marker
clauses always hold and are left out. To change torch: edit TORCH and take the hashes of CPU_WHEELS from the file names'
`#sha256=` parts on PyTorch's CPU wheel index, since the default package index does not list that build.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ENVS = Path(__file__).resolve().parent
TORCH = "2.13.0"
# torch-TORCH+cpu-TAG-TAG-manylinux_2_28_x86_64.whl
CPU_WHEELS = {
    "cp311": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "cp312": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "cp313": "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
}
# hatchling and editables build this package; setuptools builds the one dependency that ships no wheel.
BUILD = ["editables", "hatchling", "setuptools"]
CUDA = re.compile(r"(cuda|nvidia)-|triton$")
ALWAYS_TRUE = {
    "python_full_version < '3.14'",
    "platform_machine == 'x86_64'",
    "platform_python_implementation == 'CPython'",
    "sys_platform == 'linux'",
}
HEADER = "# Made by `make lock` from pyproject.toml; not edited by hand. Python 3.11 to 3.13 on Linux x86-64.\n"


def compile_pins(folder: Path, name: str, *options: str) -> str:
    """Let uv resolve pyproject.toml (with `options`), torch and the build tools; return its requirements text."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--output-file", str(folder / name), *options, "pyproject.toml", "-"]
    wanted = "\n".join([f"torch=={TORCH}", *BUILD])
    try:
        subprocess.run(command, input=wanted, text=True, check=True, cwd=ENVS.parent, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        sys.exit("error: making the locks needs uv: run `.venv/bin/python -m pip install uv`, then `make lock` again")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: uv could not resolve pyproject.toml (exit status {error.returncode}, its reason is above)")
    return (folder / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """Cut a requirements text into (package name, requirement with its hashes), in the text's order."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(==(?:.*\\\n)*.*\n)", text, flags=re.MULTILINE)
    return [(name, name + rest) for name, rest in found]


def tidy(name: str, block: str) -> str:
    """Drop the marker clauses that always hold; give torch the hashes of its CPU build; sort the hashes."""
    head, *hashes = block.rstrip("\n").split(" \\\n")
    requirement, _, marker = head.partition(" ; ")
    clauses = [clause for clause in marker.split(" and ") if clause and clause not in ALWAYS_TRUE]
    if name == "torch":
        hashes += [f"    --hash=sha256:{digest}" for digest in CPU_WHEELS.values()]
    head = f"{requirement} ; {' and '.join(clauses)}" if clauses else requirement
    return " \\\n".join([head, *sorted(set(hashes))]) + "\n"


def write(lock: str, pins: list[tuple[str, str]]) -> None:
    """Replace one lock file and say how many requirements it has."""
    (ENVS / lock).write_text(HEADER + "".join(tidy(name, block) for name, block in pins), encoding="utf-8")
    print(f"envs/{lock}: {len(pins)} requirements")


def main() -> None:
    """Resolve once with every extra, then sort each pin into the lock it belongs to."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # uv takes what its output file already holds as its preferred versions.
        old = [path.read_text(encoding="utf-8") for path in sorted(ENVS.glob("*.lock"))]
        (folder / "all").write_text("".join(old), encoding="utf-8")
        extras = ["--extra", "dev", "--extra", "test", "--extra", "bench"]
        pins = blocks(compile_pins(folder, "all", *extras, "--extra", "cluster", *sys.argv[1:]))
        same = ["--constraint", str(folder / "all")]
        needed = {name for name, _ in blocks(compile_pins(folder, "run", *same))}
        tested = {name for name, _ in blocks(compile_pins(folder, "test", *extras, *same))} - needed
    write("run.lock", [pin for pin in pins if pin[0] in needed and not CUDA.match(pin[0])])
    write("test.lock", [pin for pin in pins if pin[0] in tested and not CUDA.match(pin[0])])
    write("cluster.lock", [pin for pin in pins if pin[0] not in needed | tested and not CUDA.match(pin[0])])
    write("cuda.lock", [pin for pin in pins if CUDA.match(pin[0])])


if __name__ == "__main__":
    main()
