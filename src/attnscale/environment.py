"""A record of what the numbers were computed with, and the choice of device and precision."""

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from attnscale.errors import UserError
from attnscale.files import read_json

# The packages that can change a number or a picture; the lock file's hash stands for all the others.
PACKAGES = (
    "datasets",
    "matplotlib",
    "numpy",
    "pandas",
    "safetensors",
    "scipy",
    "seaborn",
    "snakemake",
    "tokenizers",
    "torch",
)


DEVICES = ("cpu", "cuda")
PRECISIONS = ("fp32", "bf16")


def software(lock: Path) -> dict[str, Any]:
    """Versions of Python and packages and the lock file's hash; quick, without importing torch.

    Args:
        lock: the lock file; it may be missing where someone brings an environment of their own.
    """
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
    }


def describe(lock: Path, device: str, precision: str, threads: int, compilation: str = "auto") -> dict[str, Any]:
    """The environment record.

    Args:
        lock: the lock file.
        device: `auto`, `cpu` or `cuda`; auto takes a GPU where there is one.
        precision: `auto`, `fp32` or `bf16`; auto takes bf16 where the hardware multiplies it natively.
        threads: CPU threads inside one job.
        compilation: `auto`, `on` or `off`; auto compiles training where it is in bf16 and torch can compile. In
            fp32 the matrix products take nearly all the time and compiling gains nothing (docs/performance.md).

    Returns:
        What `environment.json` holds; device, precision and compilation are decided, never `auto`.

    Raises:
        UserError: a GPU or a compiler is demanded and there is none.
    """
    import torch

    from attnscale.engine import can_compile, compiler

    for given, known, key in (
        (device, DEVICES, "device"),
        (precision, PRECISIONS, "precision"),
        (compilation, ("on", "off"), "compile"),
    ):
        if given not in ("auto", *known):
            raise UserError(f"compute.{key} must be auto or one of {', '.join(known)}, not {given}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("compute.device is cuda, but torch finds no GPU here; set it to auto or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    flags = _cpu_flags()
    if precision == "auto":
        native = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        native = native or (device == "cpu" and bool(flags & {"amx_bf16", "avx512_bf16"}))
        precision = "bf16" if native else "fp32"
    if compilation == "auto":
        compilation = "on" if precision == "bf16" and can_compile(device) else "off"
    elif compilation == "on" and not can_compile(device):
        raise UserError(
            "compute.compile is on, but torch cannot compile here (on a CPU it needs a C++ compiler such as g++ and "
            "Python's headers); install one, or set it to auto or off"
        )
    return {
        **software(lock),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_bf16": sorted(flags & {"amx_bf16", "avx512_bf16"}),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        "precision": precision,
        "compile": compilation == "on",
        "compiler": compiler() if compilation == "on" and device == "cpu" else None,
        "threads": threads,
    }


def read_environment(path: Path) -> dict[str, Any]:
    """Read an environment record and make sure that this machine can follow it.

    Raises:
        UserError: the record is missing or damaged, or it says cuda and there is no GPU here.
    """
    record = read_json(path)
    if (
        not isinstance(record, dict)
        or record.get("device") not in DEVICES
        or record.get("precision") not in PRECISIONS
        or not isinstance(record.get("compile"), bool)
    ):
        raise UserError(f"{path} is no environment record; delete it and run the pipeline again")
    if record["device"] == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError(
                f"{path} says that this run uses a GPU, but torch finds none here; run it where there is one, or "
                "set compute.device to cpu"
            )
    return record


def check_surroundings(run_dir: Path, project: str, cores: int | None) -> None:
    """Refuse what Snakemake would meet with a traceback or not at all.

    Args:
        run_dir: folder of the run, `results/NAME`, which need not exist.
        project: folder of the Snakefile.
        cores: what --cores says; None where nothing is to run, as with --unlock or --report.

    Raises:
        UserError: no core to work with, a folder that cannot be written, or a name that Snakemake misreads.
    """
    if cores is not None and cores < 1:
        raise UserError(f"--cores {cores} leaves no core to work with; give 1 or more")
    if "{" in project or "}" in project:
        raise UserError(f"the project's folder {project} has a brace in its name, which Snakemake misreads; rename it")
    for folder in (run_dir, *run_dir.parents):
        if folder.exists():
            if not folder.is_dir():
                raise UserError(f"{folder} is a file where a folder is needed; move it away")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise UserError(f"{folder} cannot be written; check its owner and mode, or work in another folder")
            return


def _cpu_lines(key: str) -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key]


def _cpu_flags() -> set[str]:
    return {flag for line in _cpu_lines("flags")[:1] for flag in line.split()}


def _cpu_name() -> str:
    return next(iter(_cpu_lines("model name")), platform.processor() or "unknown")
