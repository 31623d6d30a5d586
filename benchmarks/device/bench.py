"""What all parts share: the data, the settings, and the machines that were built so far."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnscale import counts
from attnscale.tokens.load import check_long_enough, load_evaluation_set, load_training_tokens, load_vocabulary
from benchmarks.device.machine import Machine
from benchmarks.device.settings import TRAINED, model_settings, training_settings

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig


class Bench:
    """Data and settings of one call.

    Args:
        tokens_dir: folder of the tokens stage.
        preset: size of the encoder.
        device: `cpu` or `cuda`.
        bf16: whether speed, determinism and training are in bf16.
        compiled: whether their steps are compiled.
        batch_size: windows of a step in determinism, profile and training.
        changes: training settings that differ from the default recipe.

    Raises:
        UserError: a file is missing or damaged, or the text is too short.
    """

    def __init__(
        self, tokens_dir: Path, preset: str, device: str, *, bf16: bool, compiled: bool, batch_size: int,
        changes: dict[str, Any],
    ) -> None:  # fmt: skip
        self.vocabulary = load_vocabulary(tokens_dir)
        self.documents = load_training_tokens(tokens_dir)
        self.evaluation = load_evaluation_set(tokens_dir)
        self.model = model_settings(preset)
        self.preset, self.device = preset, torch.device(device)
        self.bf16, self.compiled, self.batch_size = bf16, compiled, batch_size
        self._changes = changes
        check_long_enough(self.documents.lengths, self.training(1).length)
        self._machines: dict[tuple[str, int], Machine] = {}
        self.tokens_per_second: float | None = None
        """Of training at `batch_size`, once it was measured."""
        self.compile_seconds = 0.0
        """The longest compilation so far."""

    def training(self, steps: int, batch_size: int | None = None) -> "TrainingConfig":
        """The recipe for a number of steps."""
        training = training_settings(**{**self._changes, "batch_size": batch_size or self.batch_size})
        training.tokens = steps * counts.tokens_per_step(training)  # type: ignore[misc]
        return training

    def new_machine(self, arm: str, device: torch.device, *, bf16: bool, compiled: bool) -> Machine:
        """A machine that nobody else uses."""
        return Machine(
            self.model, TRAINED[arm], self.vocabulary, self.documents, self.training(1).length, device,
            bf16=bf16, compiled=compiled,
        )  # fmt: skip

    def machine(self, arm: str, batch_size: int) -> Machine:
        """The machine of an arm for steps of one size, which keeps what was compiled in it."""
        key = (arm, batch_size)
        if key not in self._machines:
            self._machines[key] = self.new_machine(arm, self.device, bf16=self.bf16, compiled=self.compiled)
        return self._machines[key]

    def has_machine(self, arm: str, batch_size: int) -> bool:
        """Whether `machine` would return one that was used before."""
        return (arm, batch_size) in self._machines
