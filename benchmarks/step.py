"""Where the time of a training step goes: `python -m benchmarks.step`, in the project's folder.

torch's profiler watches our loop; the time that each operator spends itself is added up by what it is for.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from torch.profiler import ProfilerActivity, profile

from attnscale.config import ComputeConfig, TrainingConfig
from attnscale.environment import describe
from benchmarks import ours
from benchmarks.cases import preset_case
from benchmarks.run import COMPACT, Preset

# The first part whose word occurs in the name of an operator, or of an operator or optimizer that called it, wins.
PARTS = {
    "Muon": ("Muon",),
    "AdamW": ("AdamW",),
    "products with weights": ("aten::mm", "addmm", "mkldnn_linear", "mkl_linear"),
    "products and softmax of attention": ("bmm", "_softmax", "_softmax_backward_data", "scaled_dot_product"),
    "activation": ("gelu",),
    "normalisation": ("layer_norm",),
    "loss": ("log_softmax", "nll_loss"),
    "copies and zeros": ("copy_", "cat", "fill_", "zero_", "index"),
}
REST = "the rest"


def part_of(names: list[str]) -> str:
    """The part that an operator belongs to.

    Args:
        names: of the operator and of all that called it, innermost first.
    """
    optimizers = [name for name in names if name.startswith("Optimizer.step#")]
    for part in ("Muon", "AdamW"):
        if any(part in name for name in optimizers):
            return part
    # log_softmax holds the word softmax, so the loss is asked for first.
    for part in ("loss", *PARTS):
        if any(word in names[0] for word in PARTS[part]):
            return part
    return REST


def shares(events: Any) -> dict[str, float]:
    """Share of the whole time by part, the largest first."""
    times: Counter[str] = Counter()
    for event in events:
        names, caller = [event.name], event.cpu_parent
        while caller is not None:
            names.append(caller.name)
            caller = caller.cpu_parent
        times[part_of(names)] += event.self_cpu_time_total
    whole = sum(times.values())
    return {part: time / whole for part, time in times.most_common()}


def main(
    preset: Annotated[Preset, typer.Option(help="Size of the model.")] = COMPACT,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = ComputeConfig().threads,
) -> None:
    """Print the shares."""
    record = describe(Path("envs/run.lock"), "cpu", "auto", threads)
    turns = ours.training(preset_case(preset, threads, training=TrainingConfig()), {**record, "compile": False})
    for _ in range(3):  # build, warm up, and one turn that is not watched
        next(turns)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        next(turns)
    table = Table("part", Column("share of a step", justify="right"))
    for part, share in shares(profiler.events()).items():
        table.add_row(part, f"{share:.1%}")
    print(f"{record['cpu']} ({record['cpu_capability']}), {threads} threads, {record['precision']}, not compiled")
    print(f"preset {preset}, torch {torch.__version__}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
