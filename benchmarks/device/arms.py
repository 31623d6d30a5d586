"""Trainings of all arms, one seed after another, and their accuracy at every length.

Tensor names end in their shape: W windows, B windows of one batch, N tokens of a window, T = B*N, S masked tokens of
the batch, V vocabulary.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscale import counts
from attnscale.attention import make_variant
from attnscale.errors import UserError
from attnscale.files import write_bytes, write_text
from attnscale.model import Encoder
from attnscale.tokens.load import EvaluationSet
from benchmarks.device.bench import Bench
from benchmarks.device.findings import Findings
from benchmarks.device.machine import Machine
from benchmarks.device.settings import AT_TEST, TRAINED, Attention

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig

# The columns of accuracy.csv and of a run's history.csv, as the pipeline writes them.
ACCURACY_COLUMNS = ("arm", "seed", "length", "correct", "total", "accuracy")
HISTORY_COLUMNS = ("step", "tokens", "loss", "accuracy", "grad_norm", "grad_norm_qk", "tokens_per_second")

DEFAULT_TOKENS = 100_000_000
EVALUATION_TOKENS = 131_072  # of one forward pass; bounds memory
RESERVE = 5.0  # seconds for writing and for an end in time


def train_all(
    bench: Bench, found: dict[str, Any], findings: Findings, *, tokens: int | None, seeds: Iterable[int], keep: bool
) -> None:
    """Train and evaluate arm after arm and seed after seed, so that whatever is finished is balanced.

    Writes `accuracy.csv` and `runs/ARM/seedS/history.csv` after each training.

    Args:
        bench: data and settings.
        found: gets one entry for each training.
        findings: clock and lines.
        tokens: of each training; None: 100 million, or what lets one seed of every arm be finished.
        seeds: in this order, as many as there is time for.
        keep: whether to write each training's `model.safetensors`.
    """
    steps = _steps(bench, findings, tokens)
    training = bench.training(steps)
    found.update(steps=steps, tokens=training.tokens, batch_size=bench.batch_size, runs=[])
    findings.say(f"each training has {steps} steps of {bench.batch_size} windows, {training.tokens:,} tokens")
    rows: list[tuple[str, int, int, int, int]] = []
    lasted: list[float] = []
    # No itertools.product: it would read all seeds first, and they may be endless.
    for seed, arm in ((seed, arm) for seed in seeds for arm in TRAINED):
        needed = min(lasted, default=training.tokens / (bench.tokens_per_second or math.inf)) + RESERVE
        if not bench.has_machine(arm, bench.batch_size):
            needed += bench.compile_seconds
        if findings.left() < needed:
            findings.say(f"{arm} seed {seed} and what follows are left out: {needed:.0f} s would be needed")
            break
        begun = findings.used()
        machine = bench.machine(arm, bench.batch_size)
        try:
            run = _train(bench, findings, machine, training, arm, seed)
            if run is None:
                break
            found["runs"].append(run)
            if keep:
                write_bytes(_folder(findings, arm, seed) / "model.safetensors", machine.weights())
            rows += _evaluate(bench, findings, machine, arm, seed)
        except UserError as error:  # it diverged; the others need not
            findings.check(False, str(error))
            continue
        write_accuracy(findings.folder / "accuracy.csv", rows)
        findings.write()
        lasted.append(findings.used() - begun)
    for line in means(rows):
        findings.say(line)


def _steps(bench: Bench, findings: Findings, tokens: int | None) -> int:
    """Steps of one training."""
    size = counts.tokens_per_step(bench.training(1))
    if tokens is None:
        tokens = DEFAULT_TOKENS
        if bench.tokens_per_second:
            missing = sum(not bench.has_machine(arm, bench.batch_size) for arm in TRAINED)
            seconds = findings.left() - missing * bench.compile_seconds - RESERVE
            tokens = min(tokens, int(0.9 * seconds / len(TRAINED) * bench.tokens_per_second))
        if tokens < size:
            raise UserError("there is no time to train every arm once; give more --minutes")
    return math.ceil(tokens / size)


def _folder(findings: Findings, arm: str, seed: int) -> Path:
    return findings.folder / "runs" / arm / f"seed{seed}"


def _train(
    bench: Bench, findings: Findings, machine: Machine, training: "TrainingConfig", arm: str, seed: int
) -> dict[str, Any] | None:
    """One training and its history; None if the time was up before its end.

    Raises:
        UserError: loss or gradients are not finite.
    """
    steps, size, masked = counts.steps(training), counts.tokens_per_step(training), counts.masked_per_step(training)
    history: list[tuple[int, int, float, float, float, float, float]] = []
    unread: list[Tensor] = []  # left on the device until somebody needs the numbers
    begun = since = findings.used()
    for step, figures in enumerate(machine.run(training, seed), start=1):
        unread.append(figures)
        if step % training.log_every and step < steps:
            continue
        values = torch.stack(unread).tolist()
        unread.clear()
        loss, correct, norm, norm_qk = (math.fsum(value[i] for value in values) / len(values) for i in range(4))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise UserError(f"the loss or gradient of {arm} seed {seed} is not finite before step {step}")
        now = findings.used()
        speed = len(values) * size / max(now - since, 1e-9)
        since = now
        history.append((step, step * size, loss, correct / masked, norm, norm_qk, round(speed, 1)))
        if step < steps and findings.left() < RESERVE:
            findings.say(f"{arm} seed {seed} was given up at step {step} of {steps}: no time was left")
            return None
    seconds = findings.used() - begun
    # The first rows of a machine hold its compilation, and a run's last row may be short.
    bench.tokens_per_second = rate = statistics.median(row[-1] for row in history)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(HISTORY_COLUMNS)
    writer.writerows(history)
    write_text(_folder(findings, arm, seed) / "history.csv", stream.getvalue())
    loss, accuracy = history[-1][2:4]
    findings.say(f"{arm} seed {seed}: {seconds:.1f} s, {rate:,.0f} tokens/s, loss {loss:.3f}, accuracy {accuracy:.1%}")
    return {
        "arm": arm, "seed": seed, "seconds": round(seconds, 1), "tokens_per_second": rate, "final_loss": loss,
        "final_accuracy": accuracy,
    }  # fmt: skip


def _evaluate(
    bench: Bench, findings: Findings, machine: Machine, arm: str, seed: int
) -> list[tuple[str, int, int, int, int]]:
    """Rows of accuracy.csv for one training, and for the arms that take its weights."""
    attentions = {arm: TRAINED[arm]} | {name: attention for name, (of, attention) in AT_TEST.items() if of == arm}
    rows = []
    for name, attention in attentions.items():
        model = with_attention(bench, machine, attention)
        of_arm = []
        for length in bench.evaluation.lengths:
            correct, total = count_correct(model, bench.evaluation, length, bench.device, bf16=bench.bf16)
            of_arm.append((name, seed, length, correct, total))
        rows += of_arm
        told = ", ".join(f"{length}: {correct / total:.1%}" for _, _, length, correct, total in of_arm)
        findings.say(f"{name} seed {seed}: accuracy at {told}")
    return rows


def with_attention(bench: Bench, machine: Machine, attention: Attention) -> Encoder:
    """A copy of the trained encoder for evaluation; the compiled one stays as it is."""
    variant = make_variant(attention.name, attention.parameters)
    model = Encoder(bench.model, bench.vocabulary.size, variant, bench.training(1).length).to(bench.device).eval()
    model.load_state_dict(machine.model.state_dict())
    return model


@torch.inference_mode()
def count_correct(
    model: Encoder, data: EvaluationSet, length: int, device: torch.device, *, bf16: bool
) -> tuple[int, int]:
    """Right predictions and targets, when the blocks are read in windows of `length` tokens.

    The counting of `attnscale.evaluate`, whose imports this must do without.

    Args:
        model: the encoder in evaluation mode.
        data: blocks with their stored masks.
        length: N, tokens per window; divides the block length.
        device: where the model is.
        bf16: compute in bf16.

    Raises:
        UserError: logits are not finite.
    """
    inputs_WN, targets_WN, masked_WN = (
        array_KN.reshape(-1, length) for array_KN in (data.inputs_KN, data.ids_KN, data.masked_KN)
    )
    rows, correct = max(1, EVALUATION_TOKENS // length), 0
    for first in range(0, len(inputs_WN), rows):
        window = slice(first, first + rows)
        inputs_BN = torch.from_numpy(inputs_WN[window].astype(np.int64)).to(device)
        targets_T = torch.from_numpy(targets_WN[window].astype(np.int64).ravel()).to(device)
        selected_S = torch.from_numpy(masked_WN[window].ravel().nonzero()[0]).to(device)
        if not len(selected_S):
            continue
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            logits_SV = model(inputs_BN, selected_S)
        if not logits_SV.isfinite().all():
            raise UserError(f"logits are not finite at {length} tokens")
        correct += int((logits_SV.argmax(dim=1) == targets_T[selected_S]).sum())
    return correct, int(data.masked_KN.sum())


def write_accuracy(path: Path, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
    """Write `accuracy.csv` with the pipeline's columns, sorted by arm, seed and length."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(ACCURACY_COLUMNS)
    writer.writerows((*row, f"{row[3] / row[4]:.17g}") for row in sorted(rows))
    write_text(path, stream.getvalue())


def means(rows: Sequence[tuple[str, int, int, int, int]]) -> list[str]:
    """One line per arm: the mean accuracy over its seeds at each length."""
    lines = []
    for arm in dict.fromkeys(row[0] for row in rows):
        lengths = sorted({row[2] for row in rows})
        of_arm = {length: [row[3] / row[4] for row in rows if row[0] == arm and row[2] == length] for length in lengths}
        told = ", ".join(f"{length}: {statistics.mean(accuracies):.1%}" for length, accuracies in of_arm.items())
        lines.append(f"{arm}, mean of {len(of_arm[lengths[0]])} seeds: {told}")
    return lines
