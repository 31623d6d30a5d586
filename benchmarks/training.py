"""How fast training is: against Hugging Face's RoFormer, and against this machine's rate of plain matrix products.

By turns, on the CPU: (a) the loop of `attnscale.train`, (b) `transformers.RoFormerForMaskedLM` of the same sizes,
vocabulary and batches, (c) the weight products of (a) alone. A step is forward, loss on the masked tokens, backward,
clipping, AdamW. The peer computes what its users get from `Trainer`: labels of -100 where nothing is predicted, fused
AdamW, clipping. What would only slow it down is left out: dropout (ours has none), deterministic mode, making batches.
"""

import contextlib
import io
import math
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import typer
from rich.console import Console
from rich.table import Column, Table

from attnscale import counts, train
from attnscale.config import PRESETS, ComputeConfig, TokensConfig, TrainSettings
from attnscale.environment import describe
from attnscale.errors import sentence_for_os_error
from attnscale.files import write_text
from attnscale.rng import Stream
from attnscale.tokens.batches import Batch, TrainingBatches
from attnscale.tokens.vocabulary import Vocabulary

try:
    import transformers
except ImportError:  # an optional extra
    transformers = None

Preset = StrEnum("Preset", {name: name for name in PRESETS})
STEPS = 5  # per turn: long against the clock, short against a shared machine's moods


class Case:
    """What is trained, with its batches made in advance; `smoke` is as small as config/smoke.yaml."""

    def __init__(self, preset: str, threads: int) -> None:
        smoke = preset == "smoke"
        training = {"batch_size": 16 if smoke else 64, "log_every": 10**9, "checkpoint_every": 10**9}
        values = {"arm": "benchmark", "attention": {"name": "attention_o"}, "seed": 0, "threads": threads}
        self.settings = TrainSettings.model_validate({**values, "model": {"preset": preset}, "training": training})
        self.model, self.training, self.threads = self.settings.model, self.settings.training, threads
        self.tokens = counts.tokens_per_step(self.training)
        self.vocabulary_size = 1024 if smoke else TokensConfig().vocabulary_size
        vocabulary = Vocabulary(self.vocabulary_size)
        ids = vocabulary.special_count + Stream("benchmark ids").integers(100_000, vocabulary.ordinary_count)
        source = TrainingBatches(ids, np.array([0, len(ids)]), vocabulary, self.training, seed=0)
        self.batches = [source.batch(step) for step in range(STEPS)]

    def batch(self, step: int) -> Batch:  # what the training loop asks of its `TrainingBatches`
        return self.batches[step % STEPS]

    def products(self) -> list[tuple[int, int, int]]:
        """Products with weights of one forward pass, (rows, in, out); the masked alone pass the last block's end."""
        tokens, masked, shapes = self.tokens, counts.masked_per_step(self.training), []
        w, f = self.model.width, self.model.feed_forward
        for rows in [tokens] * (self.model.layers - 1) + [masked]:
            shapes += [(tokens, w, 3 * w), (rows, w, w), (rows, w, f), (rows, f, w)]
        return [*shapes, (masked, w, self.vocabulary_size)]

    def product_flops(self) -> int:
        """FLOPs of a step's weight products: multiply and add, once forward and twice backward."""
        return 6 * sum(math.prod(shape) for shape in self.products())

    def step_flops(self) -> int:
        """Model FLOPs of a step: weight products, and the two products of attention in every block."""
        return self.product_flops() + 12 * self.tokens * self.training.length * self.model.width * self.model.layers


def attnscale_work(case: Case, precision: str) -> Iterator[None]:
    """STEPS steps of our own loop in each turn."""
    run = train._Run(case.settings, "cpu", precision, case.vocabulary_size)
    while True:
        train._make_deterministic(case.threads)
        more = case.training.model_copy(update={"tokens": (run.step + STEPS) * case.tokens})
        run.settings = case.settings.model_copy(update={"training": more})
        with contextlib.redirect_stderr(io.StringIO()):
            train._loop(run, case, Path("unused"), train._Interruption(stop_with_parent=False))
        torch.use_deterministic_algorithms(False)
        yield


def huggingface_work(case: Case, precision: str) -> Iterator[None]:
    """STEPS steps of the peer in each turn."""
    model, off = case.model, {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.RoFormerConfig(
        vocab_size=case.vocabulary_size, hidden_size=model.width, intermediate_size=model.feed_forward,
        num_hidden_layers=model.layers, num_attention_heads=model.heads, **off,
    )  # fmt: skip
    peer = transformers.RoFormerForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=case.training.learning_rate, fused=True)
    data = []
    for batch in case.batches:
        labels_BN = np.full_like(batch.inputs_BN, -100)
        labels_BN.reshape(-1)[batch.selected_S] = batch.targets_S
        data.append((torch.from_numpy(batch.inputs_BN), torch.from_numpy(labels_BN)))
    while True:
        for inputs_BN, labels_BN in data:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = peer(input_ids=inputs_BN, labels=labels_BN).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), case.training.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
        yield


def matrix_work(case: Case, precision: str) -> Iterator[None]:
    """The weight products of STEPS steps in each turn: forward in order, then back as autograd computes them."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    tensors = [[torch.randn(s[i], s[j], dtype=dtype) for i, j in ((0, 1), (2, 1), (0, 2))] for s in case.products()]
    while True:
        for _ in range(STEPS):
            for inputs, weight, _ in tensors:
                torch.nn.functional.linear(inputs, weight)
            for inputs, weight, gradient in reversed(tensors):
                torch.mm(gradient, weight)
                torch.mm(gradient.t(), inputs)
        yield


def measure(case: Case, precisions: list[str], repeats: int) -> pd.DataFrame:
    """Rates per measure and repeat. Turns go A B C A B C …, so that a slow moment of the machine meets all alike."""
    torch.set_num_threads(case.threads)
    works, rows = {}, []
    for precision in precisions:
        works[f"attnscale_{precision}"] = attnscale_work(case, precision), case.tokens, case.step_flops()
        if transformers:
            works[f"huggingface_{precision}"] = huggingface_work(case, precision), case.tokens, math.nan
        works[f"matrix_products_{precision}"] = matrix_work(case, precision), math.nan, case.product_flops()
    for repeat in range(repeats + 1):  # turn 0 allocates memory and chooses kernels; it is not kept
        for name, (work, tokens, flops) in works.items():
            start = time.perf_counter()
            next(work)
            rate = STEPS / (time.perf_counter() - start)
            rows.append((name, repeat, round(tokens * rate, 1), round(flops * rate, 0)))
    return pd.DataFrame(rows, columns=["measure", "repeat", "tokens_per_second", "flops"]).query("repeat > 0")


def ratios(frame: pd.DataFrame, precisions: list[str]) -> pd.DataFrame:
    """Ratios of each repeat, a column per measure of summary.csv; the fraction in the precision training uses here."""
    rates = frame.pivot(index="repeat", columns="measure")
    table, speed, flops = pd.DataFrame(index=rates.index), rates["tokens_per_second"], rates["flops"]
    for precision in precisions if transformers else []:
        table[f"train_vs_hf_{precision}"] = speed[f"attnscale_{precision}"] / speed[f"huggingface_{precision}"]
    last = precisions[-1]
    table["train_matrix_rate_fraction"] = flops[f"attnscale_{last}"] / flops[f"matrix_products_{last}"]
    return table


def show(frame: pd.DataFrame, quotients: pd.DataFrame) -> None:
    """Print medians with the least and the greatest."""
    units = {"tokens_per_second": "tokens/s", "flops": "FLOP/s"}
    rates = frame.rename(columns=units).pivot(index="repeat", columns="measure").dropna(axis=1)
    styles = {"tokens/s": ",.0f", "FLOP/s": ".3g", "ratio": ".2f"}
    table = Table("measure", "unit", *(Column(how, justify="right") for how in ("median", "min", "max")))
    for (unit, name), values in pd.concat([rates, pd.concat({"ratio": quotients}, axis=1)], axis=1).items():
        table.add_row(name, unit, *(format(values.agg(how), styles[unit]) for how in ("median", "min", "max")))
    Console().print(table)


def main(
    preset: Annotated[Preset, typer.Option(help="Size of the model.")] = Preset.compact,
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the medians are over these.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = ComputeConfig().threads,
    output: Annotated[Path, typer.Option(help="Folder for repeats.csv and summary.csv.")] = Path("results/bench"),
) -> None:
    """Measure the speed of training steps beside a peer and beside plain matrix products."""
    machine = describe(Path("envs/run.lock"), "cpu", "auto", threads)
    precisions = ["fp32", "bf16"] if machine["cpu_bf16"] else ["fp32"]
    case = Case(preset, threads)
    peer = f"transformers {transformers.__version__}" if transformers else "no transformers (extra `bench`): no peer"
    kinds = "fp32 and bf16" if machine["cpu_bf16"] else "fp32; bf16 is not native on this CPU and was left out"
    print(f"{machine['cpu']} ({machine['cpu_capability']}), {threads} threads, {kinds}")
    print(f"Python {machine['python']}, torch {torch.__version__}, {peer}")
    print(f"preset {preset}, {case.step_flops() / 1e9:.1f} GFLOP a step of {case.tokens} tokens, medians of {repeats}")
    try:
        output.mkdir(parents=True, exist_ok=True)  # before the minutes, not after
        frame = measure(case, precisions, repeats)
        quotients = ratios(frame, precisions)
        show(frame, quotients)
        write_text(output / "repeats.csv", frame.to_csv(index=False, lineterminator="\n"))
        summary = quotients.median().round(4).rename_axis("measure").to_csv(header=["value"], lineterminator="\n")
        write_text(output / "summary.csv", summary)
    except OSError as error:
        raise SystemExit(f"error: {sentence_for_os_error(error)}") from None


if __name__ == "__main__":
    typer.run(main)
