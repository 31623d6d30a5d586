"""Evaluation, statistics, and by what claims are decided."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from attnscale.config.section import Name, Section


class EvaluationConfig(Section):
    """Accuracy at many lengths on the same targets."""

    lengths: tuple[int, ...] = Field(
        default=(64, 128, 256, 512, 1024, 2048), min_length=1, strict=False, description="context lengths in tokens"
    )
    mask_rate: float = Field(default=0.15, gt=0, lt=1, description="share of tokens to predict, exact in every block")
    max_blocks: int | None = Field(
        default=64, ge=1, description="at most that many held-out blocks of the largest length; null uses all"
    )
    batch_tokens: int = Field(default=8192, ge=64, description="tokens per forward pass; bounds memory")
    snapshot_arms: tuple[str, ...] = Field(
        default=(), strict=False, description="arms that are also evaluated at every one of training.snapshots"
    )

    @field_validator("lengths")
    @classmethod
    def _check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if list(lengths) != sorted(set(lengths)):
            raise ValueError(f"{list(lengths)} must rise and hold no length twice; sort it")
        for length in lengths:
            if length < 1:
                raise ValueError(f"{length} is no length; give positive whole numbers")
            if lengths[-1] % length:
                raise ValueError(
                    f"{length} does not divide the largest length {lengths[-1]}, so it cannot get the same targets; "
                    "choose divisors of the largest"
                )
        return lengths


class StatisticsConfig(Section):
    """How differences between arms are estimated and tested."""

    resamples: int = Field(default=10_000, ge=100, le=1_000_000, description="resamples of the bootstrap")
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="confidence of every interval")
    primary_arm: Name = Field(
        default="attention_e",
        description="arm of the one comparison named in advance; a run without it has no such comparison",
    )
    primary_baseline: Name = Field(default="attention_o", description="arm it is compared with")
    primary_length: int = Field(default=256, ge=1, description="length in tokens at which they are compared")


class ClaimsConfig(Section):
    """By what each claim is decided; set before the run and not after a look at its numbers.

    Points are points of percent of the accuracy.
    """

    min_seeds: int = Field(
        default=6,
        ge=2,
        description="with fewer seeds no claim is decided; 6 is the smallest number whose sign-flip test can reach "
        "p = 0.05",
    )
    multiples: tuple[int, ...] = Field(
        default=(2, 4, 8, 16),
        min_length=2,
        strict=False,
        description="lengths beyond training.length at which claims are decided, in multiples of it",
    )
    same_within: float = Field(
        default=1.0, gt=0, description="points; arms are as accurate as each other if they differ by no more"
    )
    negligible: float = Field(
        default=0.5, gt=0, description="points; an interval wholly below it refutes a gain, though it may hold zero"
    )
    peak_at: int = Field(default=4, ge=2, description="where the gap is claimed to be largest; one of the multiples")
    peak_points: float = Field(default=10.0, gt=0, description="points; how large that gap is claimed to be at least")
    remaining: float = Field(
        default=0.25, gt=0, lt=1, description="share of the baseline's accuracy claimed to remain at the last multiple"
    )
    remaining_within: float = Field(default=0.05, gt=0, lt=1, description="how far that share may be off")
    vanishing: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="gradients of queries and keys have vanished below this share of the baseline's",
    )
    saturated: float = Field(
        default=0.5, gt=0, lt=1, description="attention is saturated above this share of saturated rows"
    )
    entropy_within: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="entropy is nearly constant if that of the heads changes by no more than this share of that at "
        "training.length up to the last multiple, and rises well below another's if the difference is above it",
    )
    repair: Literal["band", "clipped", "ntk"] = Field(
        default="clipped", description="the repair of positions that log n is claimed to help more after"
    )

    @field_validator("multiples")
    @classmethod
    def _check_multiples(cls, multiples: tuple[int, ...]) -> tuple[int, ...]:
        if list(multiples) != sorted(set(multiples)) or multiples[0] < 2:
            raise ValueError(f"{list(multiples)} must rise, hold no number twice and begin with 2 or more")
        return multiples

    @model_validator(mode="after")
    def _check_peak(self) -> "ClaimsConfig":
        if self.peak_at not in self.multiples:
            raise ValueError(f"peak_at {self.peak_at} is none of the multiples {list(self.multiples)}; choose one")
        return self


class AttentionStatisticsConfig(Section):
    """What is measured of the attention weights, at every one of evaluation.lengths."""

    blocks: int = Field(
        default=4, ge=0, description="measured on that many evaluation blocks, from the first; 0 measures nothing"
    )
