"""Tokens per second, against the rate of plain matrix products of the same shapes."""

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from attnscale import counts
from attnscale.files import write_text
from attnscale.tokens.batches import TrainingBatches
from benchmarks.device.bench import Bench
from benchmarks.device.findings import Findings
from benchmarks.products import attention_flops, matrix_products, product_flops, products

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig

# A public speed-run trains a masked language model of 133 M parameters at 327,680 tokens/s on one H200; in FLOPs per
# token that is this many at the size of `small`.
ANCHOR = 3_400_000


def measure(
    bench: Bench, found: dict[str, Any], findings: Findings, *, sizes: list[int], steps: int, turns: int, until: float
) -> None:
    """Rates at several batch sizes, as long as there is time.

    Args:
        bench: data and settings.
        found: gets one entry for each size.
        findings: clock and lines.
        sizes: windows of a step.
        steps: of a turn.
        turns: that count, after one that does not; products and steps take turns.
        until: share of the budget after which no further size starts.
    """
    for size in sizes:
        if findings.left(until) <= 0:
            findings.say(f"speed: batches of {size} windows left out, no time was left")
            continue
        try:
            found[str(size)] = _one_size(bench, findings, size, steps, turns)
        except torch.OutOfMemoryError:
            found[str(size)] = None
            findings.say(f"speed: batches of {size} windows do not fit into the device's memory")
        findings.write()
    rates = {int(size): rates["tokens_per_second"] for size, rates in found.items() if rates}
    bench.tokens_per_second = rates.get(bench.batch_size, bench.tokens_per_second)
    best = max(rates, key=lambda size: rates[size], default=None)
    if best is not None:
        found["best"] = {"batch_size": best, "tokens_per_second": rates[best], "over_anchor": rates[best] / ANCHOR}
        findings.say(f"best: {rates[best]:,.0f} tokens/s, {rates[best] / ANCHOR:.2f} of the anchor {ANCHOR:,}")


def _one_size(bench: Bench, findings: Findings, size: int, steps: int, turns: int) -> dict[str, Any]:
    training = bench.training((turns + 2) * steps + 1, size)
    machine = bench.machine("attention_o", size)
    shapes = products(bench.model, training, bench.vocabulary.size)
    dtype = torch.bfloat16 if bench.bf16 else torch.float32
    multiply, train = matrix_products(shapes, bench.device, dtype), machine.run(training, seed=0)

    def seconds(work: Iterator[object], count: int) -> float:
        machine.wait()
        start = time.perf_counter()
        for _ in itertools.islice(work, count):
            pass
        machine.wait()
        return (time.perf_counter() - start) / count

    first = seconds(train, 1)
    times = [(seconds(multiply, steps), seconds(train, steps)) for _ in range(turns + 1)][1:]
    train.close()  # type: ignore[attr-defined]
    drawing = _drawing_seconds(bench, training)

    tokens, flops = counts.tokens_per_step(training), product_flops(shapes)
    step_flops = flops + attention_flops(bench.model, training)
    step = statistics.median(step for _, step in times)
    speeds = [tokens / step for _, step in times]
    products_rate = flops / statistics.median(product for product, _ in times)
    fraction = statistics.median(product / step for product, step in times) * step_flops / flops
    bench.compile_seconds = max(bench.compile_seconds, first - step)
    findings.say(f"{size} windows: first step took {first - step:.1f} s more (compiling and first use)")
    findings.say(
        f"{size} windows: {tokens / step:,.0f} tokens/s, {step_flops / step / 1e12:.3g} TFLOP/s, {fraction:.1%} of the "
        f"matrix rate {products_rate / 1e12:.3g} TFLOP/s; one thread draws {tokens / drawing:,.0f} tokens/s"
    )
    return {
        "tokens_per_second": tokens / step,
        "tokens_per_second_of_turns": speeds,
        "step_flops": step_flops,
        "model_flops_per_second": step_flops / step,
        "matrix_flops_per_second": products_rate,
        "matrix_rate_fraction": fraction,
        "first_step_extra_seconds": first - step,
        "drawing_tokens_per_second_of_a_thread": tokens / drawing,
    }


def _drawing_seconds(bench: Bench, training: "TrainingConfig") -> float:
    batches = TrainingBatches(*bench.documents, bench.vocabulary, training, seed=0)
    start = time.perf_counter()
    for step in range(3):
        batches.batch(step)
    return (time.perf_counter() - start) / 3


def profile(bench: Bench, found: dict[str, Any], findings: Findings) -> None:
    """Where the time of three steps goes, kernel by kernel, in `profile.txt`."""
    machine = bench.machine("attention_o", bench.batch_size)
    train = machine.run(bench.training(10), seed=0)
    for _ in itertools.islice(train, 5):
        pass
    machine.wait()
    on_gpu = bench.device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in itertools.islice(train, 3):
            pass
        machine.wait()
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=by, row_limit=40, max_name_column_width=90)
    write_text(findings.folder / "profile.txt", table)
    found.update(steps=3, batch_size=bench.batch_size, file="profile.txt")
    findings.say("profile.txt: where three steps spend their time")
