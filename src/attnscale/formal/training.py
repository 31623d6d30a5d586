"""Training of one arm on a formal language: every seed and training length at once, in one process with one thread.

Tensor names end in their shape: S networks, T strings of each.
"""

import csv
import io
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnscale.config import FormalSettings, Task
from attnscale.errors import UserError
from attnscale.files import write_text
from attnscale.formal.scales import Scale, make_scale
from attnscale.formal.stack import Stack
from attnscale.formal.tasks import Batch, batch, test_strings, training_strings
from attnscale.formal.weights import Shape, Weights, initial_weights, stacked
from attnscale.progress import Reporter

SHAPES: dict[Task, Shape] = {"first": Shape(16, 1, 64, 2), "parity": Shape(16, 2, 64, 2)}
"""Sizes in the paper."""
COLUMNS = ("arm", "train_length", "seed", "test_length", "epoch", "accuracy", "loss")
# Strings of each network in one forward pass of a test, and their attention weights in PARITY; bounds memory.
_TESTED_AT_ONCE, _WEIGHTS_AT_ONCE = 100, 2**20
# torch's kernels take two vectors of a processor at a time and round the values that are left over another way. A stack
# is filled up to two vectors of float32 or a multiple, so that a network's bits do not depend on how many there are.
_FULL = 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16


class Place(NamedTuple):
    """One network: the length of its training strings, and its seed."""

    train_length: int
    seed: int


class Row(NamedTuple):
    """One test of one network."""

    place: Place
    test_length: int
    epoch: int
    accuracy: float
    """Share of right answers."""
    loss: float
    """Mean of -log sigmoid of the right answer, nats."""


class Trainer:
    """Trains a stack of networks, one string each a step.

    Every network depends on its own length and seed and on the scale, and not in a single bit on what else is trained
    beside it.

    Args:
        task: the formal language.
        places: the networks; in PARITY all of one length.
        scale: their scale.
        learning_rate: of Adam, whose other settings are torch's.
        dtype: of the weights.
    """

    def __init__(
        self,
        task: Task,
        places: Sequence[Place],
        scale: Scale,
        learning_rate: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.task, self.places = task, tuple(places)
        self.filled = self.places + self.places[:1] * (-len(places) % _FULL)
        shape, keys = SHAPES[task], [place.train_length + 1 for place in self.filled]
        networks = [initial_weights(shape, place.seed, scale, place.train_length + 1, dtype) for place in self.filled]
        self.stack = Stack(shape, scale, keys, stacked(networks))
        self._factors_S11 = self.stack.factors(keys)
        self._adam = torch.optim.Adam([self.stack.weights.flat], lr=learning_rate, fused=True)
        self.stack.weights.flat.grad = self.stack.gradients.flat

    @property
    def weights(self) -> Weights:
        """Weights of all networks, the network first; training changes them in place."""
        return {name: value[: len(self.places)] for name, value in self.stack.weights.by_name.items()}

    def epoch(self, number: int, steps: int) -> Tensor:
        """Train for one epoch.

        Args:
            number: of the epoch, from 0; names its random strings.
            steps: strings for each network.

        Returns:
            Losses before each step in nats, (S, steps).
        """
        bits = (training_strings(self.task, place.seed, place.train_length, number, steps) for place in self.filled)
        whole = batch(self.task, bits, self.stack.shape.width, self.stack.dtype)
        losses = []
        for of_step in _by_step(whole):
            losses.append(self.stack.losses_and_gradients(of_step, self._factors_S11))
            self._adam.step()
        return torch.cat(losses, dim=1)[: len(self.places)]


class Test:
    """Fixed random strings of one length for every network of a trainer; of its own length if none is given."""

    def __init__(self, trainer: Trainer, length: int | None, strings: int) -> None:
        lengths = [length or place.train_length for place in trainer.filled]
        stack, pairs = trainer.stack, list(zip(trainer.filled, lengths, strict=True))
        bits = (test_strings(trainer.task, place.seed, n, strings) for place, n in pairs)
        self._stack, self._pairs, self._strings = stack, pairs[: len(trainer.places)], strings
        whole = batch(trainer.task, bits, stack.shape.width, stack.dtype)
        rows = whole.symbols_STKC.shape[2]
        size = max(1, min(_TESTED_AT_ONCE, _WEIGHTS_AT_ONCE // rows**2))
        self._batches = [whole.part(slice(first, first + size)) for first in range(0, strings, size)]
        self._factors_S11 = stack.factors([n + 1 for n in lengths])

    def rows(self, epoch: int) -> Iterator[Row]:
        """What every network gets right now."""
        parts = [self._stack.losses(part, self._factors_S11) for part in self._batches]
        loss_S = torch.cat([loss_ST for loss_ST, _ in parts], dim=1).double().mean(dim=1)
        right_S = torch.cat([right_ST for _, right_ST in parts], dim=1).sum(dim=1)
        # What a stack was filled up with is left out.
        for (place, n), right, loss in zip(self._pairs, right_S.tolist(), loss_S.tolist(), strict=False):
            yield Row(place, n, epoch, right / self._strings, loss)


def train_arm(settings: FormalSettings, output: Path, *, stop_with_parent: bool = False) -> None:
    """Train all networks of one arm and test them on the way.

    Args:
        settings: the arm, lengths, seeds and epochs.
        output: CSV file with the columns arm, train_length, seed, test_length, epoch, accuracy (a share) and loss
            (nats), by training length, seed, test length and epoch.
        stop_with_parent: stop when the process that started this one is gone, so that a killed workflow leaves nobody
            behind who later writes what another configuration has asked for.

    Raises:
        UserError: a loss is not finite, or the training was left behind.
    """
    parent = os.getppid()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shape = SHAPES[settings.task]
    scale = make_scale(
        settings.settings, settings.train_lengths, settings.test_lengths, heads=shape.heads, head_size=shape.head_size
    )
    places = [Place(length, seed) for length in settings.train_lengths for seed in settings.seeds]
    # In PARITY every token is a row of its own, so that only equal lengths can stand in one stack.
    together = [places] if settings.task == "first" else [list(v) for _, v in itertools.groupby(places, lambda p: p[0])]
    trainers = [Trainer(settings.task, of_stack, scale, settings.learning_rate) for of_stack in together]
    tests = [
        Test(trainer, length, settings.test_strings)
        for trainer in trainers
        for length in (None, *settings.test_lengths)
        if length is None or any(place.train_length != length for place in trainer.places)
    ]
    rows: dict[tuple[Place, int, int], Row] = {}
    title = f"train {settings.task} {settings.arm}"
    with Reporter(title, settings.epochs, unit="epoch") as reporter:
        for epoch in range(1, settings.epochs + 1):
            losses = [trainer.epoch(epoch - 1, settings.steps_per_epoch) for trainer in trainers]
            for trainer, part in zip(trainers, losses, strict=True):
                for place, finite in zip(trainer.places, part.isfinite().all(dim=1).tolist(), strict=True):
                    _refuse_unless(finite, settings, place, place.train_length, epoch)
            if stop_with_parent and os.getppid() != parent:
                raise UserError(f"{title} was stopped by the end of the workflow that started it; run it again")
            if epoch % settings.test_every and epoch < settings.epochs:
                continue
            for row in itertools.chain.from_iterable(test.rows(epoch) for test in tests):
                _refuse_unless(math.isfinite(row.loss), settings, row.place, row.test_length, epoch)
                rows[row.place, row.test_length, epoch] = row
            loss = float(torch.cat([part.flatten() for part in losses]).double().mean())
            reporter.update(epoch, f"{len(places)} networks, training loss {loss:.4f}")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for key in sorted(rows):
        row = rows[key]
        figures = f"{row.accuracy:.9g}", f"{row.loss:.9g}"
        table.writerow([settings.arm, *row.place, row.test_length, row.epoch, *figures])
    write_text(output, text.getvalue())


def _refuse_unless(finite: bool, settings: FormalSettings, place: Place, length: int, epoch: int) -> None:
    if not finite:
        raise UserError(
            f"the loss of {settings.arm} on {settings.task} at {length} bits is not finite in epoch {epoch} (trained "
            f"on {place.train_length} bits, seed {place.seed}); lower {settings.task}.learning_rate or take another "
            "attention"
        )


def _by_step(whole: Batch) -> Iterator[Batch]:
    """The strings of an epoch one by one, each a batch of one string per network."""
    symbols, signs = whole.symbols_STKC.transpose(0, 1).contiguous(), whole.signs_ST.T.contiguous()
    counts = None if whole.log_counts_STK is None else whole.log_counts_STK.transpose(0, 1).contiguous()
    for step in range(len(symbols)):
        yield Batch(
            symbols[step].unsqueeze(1),
            whole.positions_KW,
            None if counts is None else counts[step].unsqueeze(1),
            signs[step].unsqueeze(1),
            whole.cls,
        )
