"""How fast training is: against Hugging Face's RoFormer, and against this machine's rate of plain matrix products.

One process measures, turn by turn, (a) `attnscale.train`'s own loop, (b) `transformers.RoFormerForMaskedLM` of the same
sizes, vocabulary and batches, and (c) the matrix products of (a) alone. A training step is forward, loss on the masked
tokens, backward, clipping and AdamW. It measures the CPU.

The peer computes as its users get it from `Trainer`: labels of -100 where nothing is predicted, `clip_grad_norm_`, fused
AdamW. What would only slow it down is left out: dropout is 0 as in ours, determinism is not demanded, and its batches
and labels are tensors before the clock starts.

Shapes: T tokens of a batch, S of them to predict; a product is (rows, in, out).
"""

import contextlib
import csv
import io
import math
import platform
import sys
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from attnscale import counts, train
from attnscale.config import PRESETS, AttentionSpec, ComputeConfig, ModelConfig, TokensConfig, TrainingConfig, TrainSettings
from attnscale.environment import describe
from attnscale.errors import UserError, sentence_for_os_error
from attnscale.files import write_text
from attnscale.rng import Stream
from attnscale.tokens.batches import Batch, TrainingBatches
from attnscale.tokens.vocabulary import Vocabulary

Preset = StrEnum("Preset", {name: name for name in PRESETS})
Work = Callable[[], None]
STEPS = 5  # per repeat; one turn then takes seconds, long against the clock and short against a machine's moods
NEVER = 10**9


def settings_for(preset: str, threads: int) -> tuple[TrainSettings, int]:
    """What to train, and the size of the vocabulary: the defaults, but for `smoke` those of config/smoke.yaml."""
    smoke = preset == "smoke"
    settings = TrainSettings(
        arm="attention_o",
        attention=AttentionSpec(name="attention_o"),
        seed=0,
        model=ModelConfig.model_validate({"preset": preset}),
        training=TrainingConfig(batch_size=16 if smoke else 64, log_every=NEVER, checkpoint_every=NEVER),
        threads=threads,
    )
    return settings, 1024 if smoke else TokensConfig().vocabulary_size


def products(model: ModelConfig, training: TrainingConfig, vocabulary_size: int) -> list[tuple[int, int, int]]:
    """Every product with a weight matrix in one forward pass, in order, as (rows, in, out).

    In the last block only the S masked tokens pass through what follows the attention (see `Encoder.forward`).
    """
    T, S = counts.tokens_per_step(training), counts.masked_per_step(training)
    width, inner = model.width, model.feed_forward
    shapes = []
    for number in range(1, model.layers + 1):
        rows = S if number == model.layers else T
        shapes += [(T, width, 3 * width), (rows, width, width), (rows, width, inner), (rows, inner, width)]
    return [*shapes, (S, width, vocabulary_size)]


def weight_flops(shapes: list[tuple[int, int, int]]) -> int:
    """FLOPs of the products of a training step: 2 a multiplication, and each is done forward and twice backward."""
    return 6 * sum(math.prod(shape) for shape in shapes)


def step_flops(model: ModelConfig, training: TrainingConfig, vocabulary_size: int) -> int:
    """Model FLOPs of a training step: weight products, and q·k and weights·v of all tokens in every block."""
    attention = 2 * 6 * counts.tokens_per_step(training) * training.length * model.width * model.layers
    return weight_flops(products(model, training, vocabulary_size)) + attention


class FixedBatches:
    """Batches made before the clock starts, in the place of `TrainingBatches`; all measures see the same ones."""

    def __init__(self, training: TrainingConfig, vocabulary_size: int) -> None:
        vocabulary = Vocabulary(vocabulary_size)
        ids = vocabulary.special_count + Stream("benchmark ids", 0).integers(100_000, vocabulary.ordinary_count)
        source = TrainingBatches(ids, np.array([0, len(ids)]), vocabulary, training, seed=0)
        self.all = [source.batch(step) for step in range(STEPS)]

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        return self.all[step % STEPS]


def attnscale_work(settings: TrainSettings, vocabulary_size: int, batches: FixedBatches, precision: str) -> Work:
    """STEPS steps of our own loop at each call."""
    run = train._Run(settings, "cpu", precision, vocabulary_size)
    size = STEPS * counts.tokens_per_step(settings.training)

    def work() -> None:
        train._make_deterministic(settings.threads)
        more = settings.training.model_copy(update={"tokens": size * (run.step // STEPS + 1)})
        run.settings = settings.model_copy(update={"training": more})
        with contextlib.redirect_stderr(io.StringIO()):
            train._loop(run, batches, Path("unused"), train._Interruption(stop_with_parent=False))

    return work


def huggingface_work(settings: TrainSettings, vocabulary_size: int, batches: FixedBatches, precision: str) -> Work:
    """STEPS steps of the peer at each call. Raises ImportError without transformers."""
    from transformers import RoFormerConfig, RoFormerForMaskedLM

    model, training = settings.model, settings.training
    config = RoFormerConfig(
        vocab_size=vocabulary_size,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.feed_forward,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    peer = RoFormerForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=training.learning_rate, fused=True)
    data = []
    for batch in batches.all:
        labels_T = torch.full((batch.inputs_BN.size,), -100)
        labels_T[torch.from_numpy(batch.selected_S)] = torch.from_numpy(batch.targets_S)
        data.append((torch.from_numpy(batch.inputs_BN), labels_T.view(batch.inputs_BN.shape)))

    def work() -> None:
        torch.use_deterministic_algorithms(False)
        for inputs_BN, labels_BN in data:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = peer(input_ids=inputs_BN, labels=labels_BN).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), training.clip_norm)
            optimizer.step()
            optimizer.zero_grad()

    return work


def matrix_work(shapes: list[tuple[int, int, int]], precision: str) -> Work:
    """The products of STEPS training steps at each call: all forward, then all backward, as autograd writes them."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    operands = {
        (m, k, n): tuple(torch.randn(*size, dtype=dtype) for size in ((m, k), (n, k), (m, n)))
        for m, k, n in sorted(set(shapes))
    }

    def work() -> None:
        for _ in range(STEPS):
            for shape in shapes:
                functional.linear(operands[shape][0], operands[shape][1])
            for shape in reversed(shapes):
                inputs, weight, gradient = operands[shape]
                torch.mm(gradient, weight)
                torch.mm(gradient.t(), inputs)

    return work


def seconds_of(works: Mapping[str, Work], repeats: int) -> dict[str, list[float]]:
    """Seconds of every call, in turns (A B C A B C …), so that a slow moment of the machine meets all of them."""
    for work in works.values():
        work()  # first calls allocate memory and choose kernels
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def rates_of(
    preset: str, repeats: int, threads: int, precisions: list[str]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Tokens per second, and FLOPs per second, of every measure in every repeat."""
    settings, vocabulary_size = settings_for(preset, threads)
    torch.set_num_threads(threads)
    batches = FixedBatches(settings.training, vocabulary_size)
    shapes = products(settings.model, settings.training, vocabulary_size)
    works: dict[str, Work] = {}
    for precision in precisions:
        works[f"attnscale_{precision}"] = attnscale_work(settings, vocabulary_size, batches, precision)
        with contextlib.suppress(ImportError):
            works[f"huggingface_{precision}"] = huggingface_work(settings, vocabulary_size, batches, precision)
        works[f"matrix_{precision}"] = matrix_work(shapes, precision)
    tokens = STEPS * counts.tokens_per_step(settings.training)
    flops = {"attnscale": step_flops(settings.model, settings.training, vocabulary_size), "matrix": weight_flops(shapes)}
    tokens_per_second, flops_per_second = {}, {}
    for name, seconds in seconds_of(works, repeats).items():
        kind = name.split("_")[0]
        if kind != "matrix":
            tokens_per_second[name] = [tokens / value for value in seconds]
        if kind in flops:
            flops_per_second[name] = [STEPS * flops[kind] / value for value in seconds]
    return tokens_per_second, flops_per_second


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Quotients turn by turn: what was measured at about the same time is compared."""
    return [one / other for one, other in zip(top, bottom, strict=True)]
