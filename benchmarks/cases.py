"""What all contestants compute: sizes, ids and masks made in advance, and how many FLOPs a step has.

Tensor names end in their shape: B windows, N tokens of a window, S masked tokens of the batch.
"""

import numpy as np

from attnscale import counts
from attnscale.config import (
    PRESETS,
    AttentionSpec,
    EncoderSettings,
    ModelConfig,
    TokensConfig,
    TrainingConfig,
    TrainSettings,
)
from attnscale.rng import Stream
from attnscale.tokens.batches import Batch, TrainingBatches
from attnscale.tokens.vocabulary import Vocabulary
from benchmarks.products import attention_flops, product_flops, products

STEPS = 5  # per turn: long against the clock, short against a shared machine's moods
NEVER = 10**9


# What the trials before this code trained with. Both sides of a race train with it, so that engines are compared and
# not recipes; what a recipe gains and costs is `benchmarks/recipe.py`'s question.
TRIAL = TrainingConfig(
    length=64, batch_size=64, mask_rate=0.15, optimizer="adamw", learning_rate=1e-3, warmup_fraction=0.05,
    weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.98, clip_norm=1.0,
)  # fmt: skip


class Case:
    """A training with its batches.

    Args:
        model: sizes and recipe.
        training: the recipe; what it says of tokens, logs, checkpoints and snapshots does not count.
        vocabulary_size: number of ids.
        threads: CPU threads of each contestant.
        steps: steps of one turn.
    """

    def __init__(
        self, model: ModelConfig, training: TrainingConfig, vocabulary_size: int, threads: int, steps: int = STEPS
    ) -> None:
        training = training.model_copy(update={"log_every": NEVER, "checkpoint_every": NEVER, "snapshots": ()})
        encoder = EncoderSettings(
            attention=AttentionSpec(name="attention_o"), positions=None, n_at_least=None, n_at_most=None, model=model,
            training_length=training.length,
        )  # fmt: skip
        self.settings = TrainSettings(
            arm="benchmark", seed=0, encoder=encoder, training=training, training_lengths=(training.length,),
            branch_at=None, threads=threads,
        )  # fmt: skip
        self.model, self.training, self.threads, self.steps = model, training, threads, steps
        self.tokens = counts.tokens_per_step(training)
        self.vocabulary_size = vocabulary_size
        vocabulary = Vocabulary(vocabulary_size)
        ids = vocabulary.special_count + Stream("benchmark ids").integers(100_000, vocabulary.ordinary_count)
        source = TrainingBatches(ids, np.array([0, len(ids)]), vocabulary, training, seed=0)
        self.batches = [source.batch(step) for step in range(steps)]

    def batch(self, step: int) -> Batch:
        """What the training loop asks of its `TrainingBatches`."""
        return self.batches[step % self.steps]

    def products(self) -> list[tuple[int, int, int]]:
        """Products with weights of one forward pass, (rows, in, out)."""
        return products(self.model, self.training, self.vocabulary_size)

    def product_flops(self) -> int:
        """FLOPs of a step's weight products."""
        return product_flops(self.products())

    def step_flops(self) -> int:
        """Model FLOPs of a step: weight products and attention."""
        return self.product_flops() + attention_flops(self.model, self.training)


def preset_case(preset: str, threads: int, steps: int = STEPS, training: TrainingConfig = TRIAL) -> Case:
    """The case of a preset; `smoke` is as small as config/smoke.yaml."""
    if preset not in PRESETS:
        raise ValueError(f"no preset is called {preset}")
    smoke = preset == "smoke"
    if smoke:
        training = training.model_copy(update={"batch_size": 16})
    vocabulary_size = 1024 if smoke else TokensConfig().vocabulary_size
    return Case(ModelConfig.model_validate({"preset": preset}), training, vocabulary_size, threads, steps)
