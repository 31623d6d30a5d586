"""How torch computes in this process: threads, determinism, memory, compilation. Training and evaluation share it."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

# Numbers of mallopt(3), from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def prepare(threads: int) -> None:
    """Fix everything that may change a bit or cost time, before the first tensor of a stage is made.

    Args:
        threads: CPU threads inside one operation. Set here and not by OMP_NUM_THREADS, which Snakemake cuts to
            --cores: the order of sums depends on this number.
    """
    torch.set_num_threads(threads)
    # cuBLAS needs this before it starts in order to keep one order of summation.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let the allocator keep what is freed instead of giving it back to the kernel.

    Every step frees and takes the same large tensors. glibc returns such blocks at once, and then each step
    pays for thousands of page faults: 16,000 of 550 ms (docs/performance.md). No result depends on it.

    Returns:
        Whether it worked; other C libraries go without.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def can_compile(device: str) -> bool:
    """Whether `torch.compile` works here: tried on a sum, since a compiler that is there may still be unusable.

    Args:
        device: `cpu` or `cuda`.
    """
    if device == "cpu" and not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))):
        return False
    try:
        with _compiler_settings(suppress_errors=False):
            function = torch.compile(lambda x: torch.sin(x).sum(), dynamic=False, fullgraph=True)
            return bool(torch.isfinite(function(torch.ones(64, device=device))).item())
    except Exception:  # a missing header, a read-only cache, a full disk, no Triton: the kinds are not enumerable
        return False


def compiler() -> str | None:
    """Name and version of the C++ compiler that `torch.compile` calls on a CPU; bits depend on it."""
    try:
        done = subprocess.run([os.environ.get("CXX") or "g++", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip() if done.stdout else None


def compiled(function: Function) -> Function:
    """`function` compiled for the one shape that training has.

    No choice by timing (`max_autotune`): it would not repeat. Parts that cannot be compiled, in an attention of
    one's own for instance, run as they are. Random numbers stay torch's own, so dropout equals the eager one.
    """
    inner: Any = torch.compile(function, dynamic=False)

    def call(*arguments: Any) -> Any:
        with _compiler_settings():
            return inner(*arguments)

    return call  # type: ignore[return-value]


@contextlib.contextmanager
def _compiler_settings(*, suppress_errors: bool = True) -> Iterator[None]:
    # Imported late: it takes a second, and most runs on a CPU never compile.
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    with dynamo.patch(suppress_errors=suppress_errors), inductor.patch(fallback_random=True, max_autotune=False):
        yield
