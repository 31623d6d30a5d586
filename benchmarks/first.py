"""How much faster many tiny transformers train in one stack than one by one: `python -m benchmarks.first`.

One by one is `attnscale.formal.reference.train_alone`, a plain loop over whole strings with autograd and torch's Adam;
the stack is what the pipeline trains with. Both work by turns, each in a process of its own with one thread.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Column, Table

from attnscale.config import FIRST_ARMS, FirstConfig
from attnscale.environment import describe
from attnscale.formal.reference import Network, train_alone
from attnscale.formal.scales import Scale, make_scale
from attnscale.formal.training import SHAPES, Place, Trainer
from benchmarks.turns import Entry, median_ratio, race

ARM = "acl2022_on_query_input"
SECTION = FirstConfig()
STEPS = 20


def _scale() -> Scale:
    shape = SHAPES["first"]
    lengths = SECTION.train_lengths, SECTION.test_lengths
    return make_scale(FIRST_ARMS[ARM], *lengths, heads=shape.heads, head_size=shape.head_size)


def stacked() -> Iterator[None]:
    """All networks of an arm, `STEPS` steps a turn."""
    torch.set_num_threads(1)
    scale = _scale()
    places = [Place(length, seed) for length in SECTION.train_lengths for seed in SECTION.seeds]
    trainer, epoch = Trainer("first", places, scale, SECTION.learning_rate), 0
    while True:
        yield
        trainer.epoch(epoch, STEPS)
        epoch += 1


def one_by_one() -> Iterator[None]:
    """One network of each training length, `STEPS` steps a turn."""
    torch.set_num_threads(1)
    scale = _scale()
    while True:
        yield
        for length in SECTION.train_lengths:
            network = Network("first", SHAPES["first"].heads, SHAPES["first"].layers, scale, length + 1)
            train_alone(network, SHAPES["first"], 0, length, 1, STEPS, SECTION.learning_rate)


def main(repeats: Annotated[int, typer.Option(min=5, help="Turns of each; medians are over these.")] = 7) -> None:
    """Print the speed-up."""
    times = race({"one by one": Entry(one_by_one, ()), "stack": Entry(stacked, ())}, repeats)
    networks = {"one by one": len(SECTION.train_lengths), "stack": len(SECTION.train_lengths) * len(SECTION.seeds)}
    machine = describe(Path("envs/run.lock"), "cpu", "fp32", 1)
    table = Table("training", *(Column(head, justify="right") for head in ("networks", "µs per network and step")))
    for name, seconds in times.items():
        each = statistics.median(seconds[1:]) / (STEPS * networks[name])
        table.add_row(name, str(networks[name]), f"{1e6 * each:.1f}")
    print(f"{machine['cpu']} ({machine['cpu_capability']}), 1 thread, torch {torch.__version__}")
    Console().print(table)
    ratio = median_ratio(times["one by one"], times["stack"]) * networks["stack"] / networks["one by one"]
    print(f"speed-up of the stack: {ratio:.0f} times, median of {repeats} turns")


if __name__ == "__main__":
    typer.run(main)
