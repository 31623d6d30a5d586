"""What this machine is, and whether the device computes what the CPU computes, and the same bytes twice."""

import hashlib
import itertools
import os
import platform
import subprocess
from typing import Any

import numpy as np
import torch

from benchmarks.device.bench import Bench
from benchmarks.device.findings import Findings
from benchmarks.device.machine import Machine

# Largest difference of two loss curves, in nats, over some twenty steps. fp32 on two devices differs by the order
# of sums alone; bf16 has three digits.
FP32_TOLERANCE = 0.001
BF16_TOLERANCE = 0.05
COMPARED_BATCH = 16  # windows: small, since a CPU has to follow


def environment(bench: Bench, found: dict[str, Any], findings: Findings) -> None:
    """Device, driver and versions."""
    found.update(
        python=platform.python_version(), torch=torch.__version__, numpy=np.__version__,
        device=bench.device.type, cpus=os.cpu_count(), threads=torch.get_num_threads(), preset=bench.preset,
        vocabulary_size=bench.vocabulary.size, training_tokens=len(bench.documents.ids),
        precision="bf16" if bench.bf16 else "fp32", compile=bench.compiled,
        training={**vars(bench.training(1)), "tokens": None},
    )  # fmt: skip
    name = torch.backends.cpu.get_cpu_capability()
    if bench.device.type == "cuda":
        name = torch.cuda.get_device_name()
        found.update(cuda=torch.version.cuda, driver=_driver(), capability=list(torch.cuda.get_device_capability()))
        found["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1)
    found["device_name"] = name
    findings.say(
        f"{bench.device.type}: {name}, driver {found.get('driver')}, torch {torch.__version__}, {bench.preset}, "
        f"{found['precision']}, {'compiled' if bench.compiled else 'not compiled'}"
    )


def _driver() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip()


def compare(bench: Bench, found: dict[str, Any], findings: Findings, *, steps: int, until: float) -> None:
    """Loss curves from the same weights and batches: fp32 on the CPU, fp32 on the device, bf16 on the device.

    Args:
        bench: data and settings.
        found: gets the curves.
        findings: clock and lines.
        steps: how many, if the CPU is quick enough.
        until: share of the budget that this may take.
    """
    on_cpu = bench.new_machine("attention_o", torch.device("cpu"), bf16=False, compiled=False)
    reference = found["fp32 on the CPU"] = _curve(bench, on_cpu, steps, findings, until)
    # bf16 as the other parts use it, compiled; fp32 as the plainest thing that the device can do.
    for name, bf16, compiled, tolerance in (
        ("fp32 on the device", False, False, FP32_TOLERANCE),
        ("bf16 on the device", True, bench.compiled, BF16_TOLERANCE),
    ):
        machine = bench.new_machine("attention_o", bench.device, bf16=bf16, compiled=compiled)
        curve = found[name] = _curve(bench, machine, len(reference), findings, 1.0)
        difference = max(abs(a - b) for a, b in zip(curve, reference, strict=False))
        found[f"{name}, largest difference"], found[f"{name}, tolerance"] = difference, tolerance
        findings.say(
            f"{name}: loss {curve[0]:.4f} to {curve[-1]:.4f} in {len(curve)} steps, at most {difference:.1e} from fp32 "
            f"on the CPU (tolerance {tolerance})"
        )
        findings.check(difference <= tolerance, f"{name} leaves the loss curve of the CPU by {difference:.3g}")


def _curve(bench: Bench, machine: Machine, steps: int, findings: Findings, until: float) -> list[float]:
    losses: list[float] = []
    for figures in machine.run(bench.training(steps, COMPARED_BATCH), seed=0):
        losses.append(figures[0].item())
        if findings.left(until) <= 0:
            break
    return losses


def determinism(bench: Bench, found: dict[str, Any], findings: Findings, *, steps: int) -> None:
    """Two trainings of `steps` steps from the same seed; their weights must have the same bytes."""
    machine = bench.machine("attention_o", bench.batch_size)
    hashes = []
    for _ in range(2):
        for _ in itertools.islice(machine.run(bench.training(steps), seed=0), steps):
            pass
        hashes.append(hashlib.sha256(machine.weights()).hexdigest())
    found.update(steps=steps, batch_size=bench.batch_size, sha256=hashes, equal=hashes[0] == hashes[1])
    findings.say(f"two trainings of {steps} steps: sha256 {hashes[0][:16]} and {hashes[1][:16]}")
    findings.check(found["equal"], f"two equal trainings of {steps} steps differ in their weights")
