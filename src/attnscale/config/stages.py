"""What each stage depends on: made from a configuration by the methods of `Config`."""

from typing import Annotated

from pydantic import Field

from attnscale.config.arms import AttentionSpec, PositionsSpec
from attnscale.config.corpus import CorpusConfig, TokensConfig
from attnscale.config.formal import FormalArm, Task
from attnscale.config.section import Section, Seed
from attnscale.config.training import ModelConfig, TrainingConfig

_Length = Annotated[int, Field(ge=2)]


class CorpusSettings(Section):
    """What the corpus stage depends on."""

    corpus: CorpusConfig


class TokensSettings(Section):
    """What the tokens stage depends on."""

    tokens: TokensConfig
    training_length: int


class EvaluationSetSettings(Section):
    """What the evaluation blocks and their masks depend on."""

    lengths: tuple[int, ...] = Field(strict=False)
    mask_rate: float
    max_blocks: int | None


class EncoderSettings(Section):
    """What an encoder is built from, besides its weights and the vocabulary."""

    attention: AttentionSpec
    positions: PositionsSpec | None
    n_at_least: int | None
    n_at_most: int | None
    model: ModelConfig
    training_length: int


class TrainSettings(Section):
    """What one training depends on."""

    arm: str
    seed: int
    encoder: EncoderSettings
    training: TrainingConfig
    training_lengths: tuple[int, ...] = Field(strict=False)
    branch_at: float | None
    threads: int


class EvaluateSettings(Section):
    """What the evaluation of one arm and seed depends on."""

    arm: str
    seed: int
    step: int
    encoder: EncoderSettings
    lengths: tuple[int, ...] = Field(strict=False)
    batch_tokens: int
    threads: int


class AttentionStatisticsSettings(EvaluateSettings):
    """What the attention statistics of one arm and seed depend on."""

    blocks: int


class TheorySettings(Section):
    """What the recomputed derivation depends on."""

    head_size: int
    lengths: tuple[int, ...] = Field(strict=False)
    training_length: int
    modules: tuple[str, ...] = Field(strict=False)


class FormalSettings(Section):
    """What the training of one arm on a formal language depends on."""

    task: Task
    arm: str
    settings: FormalArm
    seeds: tuple[Seed, ...] = Field(min_length=1, strict=False)
    train_lengths: tuple[_Length, ...] = Field(min_length=1, strict=False)
    test_lengths: tuple[_Length, ...] = Field(min_length=1, strict=False)
    epochs: int = Field(ge=1)
    steps_per_epoch: int = Field(ge=1)
    test_every: int = Field(ge=1)
    test_strings: int = Field(ge=1)
    learning_rate: float = Field(gt=0, lt=1)


class ExactSettings(Section):
    """What the run of the hand-built networks of a formal language depends on."""

    task: Task
    lengths: tuple[_Length, ...] = Field(min_length=1, strict=False)
