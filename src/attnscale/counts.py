"""Whole numbers that follow from the training settings; on their own so that a change here is seen as one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig


def tokens_per_step(training: TrainingConfig) -> int:
    """Tokens in one batch."""
    return training.batch_size * training.length


def steps(training: TrainingConfig) -> int:
    """Optimizer steps of the whole training: enough for `tokens`, rounded up."""
    return math.ceil(training.tokens / tokens_per_step(training))


def step_at(training: TrainingConfig, share: float) -> int:
    """The step after which a share of the training is done; at least one."""
    return max(1, round(share * steps(training)))


def masked_per_step(training: TrainingConfig) -> int:
    """Tokens to predict in one batch: the exact count that `mask_rate` stands for, at least one."""
    return max(1, round(training.mask_rate * tokens_per_step(training)))


def warmup_steps(training: TrainingConfig) -> int:
    """Steps with rising learning rate."""
    return round(training.warmup_fraction * steps(training))


def schedule(training: TrainingConfig, step: int) -> float:
    """Share of the peak learning rates that a step (from 0) has: linear up during warm-up, then linear to zero.

    A function of the step alone, so there is no schedule object whose history a resumed run could miss.
    """
    warmup, total = warmup_steps(training), steps(training)
    if step < warmup:
        return (step + 1) / warmup
    return (total - step) / (total - warmup)
