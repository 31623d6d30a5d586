"""This package's own training and evaluation as contestants: the code that a run uses, not a copy of it."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from attnscale import engine, train
from attnscale.attention import make_variant
from attnscale.evaluate import count_correct
from attnscale.model import Encoder
from attnscale.tokens.load import EvaluationSet
from benchmarks.cases import Case


def training(case: Case, record: dict[str, Any]) -> Iterator[None]:
    """A turn's steps of our loop; `record` gives device, precision and whether to compile."""
    engine.prepare(case.threads)
    run = train._Run(case.settings, record, case.vocabulary_size)
    yield
    while True:
        more = case.training.model_copy(update={"tokens": (run.step + case.steps) * case.tokens})
        run.settings = case.settings.model_copy(update={"training": more})
        with contextlib.redirect_stderr(io.StringIO()):
            train._loop(run, case, Path("unused"), train._Interruption(stop_with_parent=False))  # type: ignore[arg-type]
        yield


def evaluation(case: Case, precision: str, data: EvaluationSet) -> Iterator[None]:
    """The evaluation of all blocks of `data` at their whole length, one block at a time."""
    engine.prepare(case.threads)
    length = data.lengths[-1]
    model = Encoder(case.model, case.vocabulary_size, make_variant("attention_o", {}), case.training.length)
    model.initialise(0)
    model.eval()
    yield
    while True:
        count_correct(model, data, length, length, torch.device("cpu"), bf16=precision == "bf16")
        yield
