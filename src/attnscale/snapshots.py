"""When a training keeps its state on the way, and in which files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnscale.counts import step_at

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig


def snapshot_steps(training: TrainingConfig) -> list[int]:
    """The steps after which a snapshot is kept."""
    return [step_at(training, share) for share in training.snapshots]


def snapshot_files(run: Path, step: int) -> tuple[Path, Path]:
    """Where the weights after a step and the state of the optimizers are kept, in the folder of a run."""
    return run / "snapshots" / f"step{step}.safetensors", run / "snapshots" / f"step{step}.optimizers.safetensors"
