"""The encoder, its training, and what both are computed with."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from attnscale.config.section import Section
from attnscale.counts import step_at, steps

PRESETS: dict[str, dict[str, int]] = {
    "compact": {"width": 256, "layers": 4, "heads": 4, "feed_forward": 1024},
    "small": {"width": 384, "layers": 6, "heads": 6, "feed_forward": 1536},
    "smoke": {"width": 64, "layers": 2, "heads": 2, "feed_forward": 128},
}


def _no_default(schema: dict[str, Any]) -> None:
    """For the JSON schema: the size comes from the preset, the 0 of the class never shows."""
    del schema["default"]


class ModelConfig(Section):
    """Shape of the encoder. A preset fills the four sizes; a size given beside it wins."""

    preset: Literal["compact", "small", "smoke"] = Field(
        default="compact",
        description="compact: 256 wide, 4 layers, for CPUs; small: the article's 384 and 6; smoke: for tests",
    )
    width: int = Field(
        default=0, ge=8, le=16384, description="width of the residual stream", json_schema_extra=_no_default
    )
    layers: int = Field(default=0, ge=1, le=256, description="number of blocks", json_schema_extra=_no_default)
    heads: int = Field(default=0, ge=1, le=256, description="attention heads per block", json_schema_extra=_no_default)
    feed_forward: int = Field(
        default=0, ge=8, le=65536, description="width of the feed-forward layer", json_schema_extra=_no_default
    )
    recipe: Literal["fast", "faithful"] = Field(
        default="fast",
        description="fast: pre-norm, a norm after the embedding, no dropout; faithful: the post-norm BERT layout of "
        "RoFormer with dropout 0.1",
    )
    rope_theta: float = Field(default=10000.0, gt=1, description="base of the rotary position embedding")

    @model_validator(mode="before")
    @classmethod
    def _fill_sizes(cls, data: Any) -> Any:
        preset = data.get("preset", "compact") if isinstance(data, dict) else None
        return {**PRESETS[preset], **data} if isinstance(preset, str) and preset in PRESETS else data

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelConfig":
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} cannot be shared by {self.heads} heads; choose heads that divide the width"
            )
        if (self.width // self.heads) % 2:
            raise ValueError(
                f"width {self.width} over {self.heads} heads gives an odd head size, and rotary positions "
                "turn pairs; choose an even head size"
            )
        return self


class TrainingConfig(Section):
    """Masked language modelling, the same for every arm.

    With the recipe `faithful` other defaults hold: AdamW alone, learning_rate 0.001, mask_rate 0.15, batch_size 64.
    """

    length: int = Field(default=64, ge=8, le=65536, description="tokens per training window, the L of the formulas")
    batch_size: int = Field(default=64, ge=1, le=65536, description="windows per step")
    tokens: int = Field(default=1_500_000, ge=1, description="training tokens in all, rounded up to whole steps")
    mask_rate: float = Field(default=0.3, gt=0, lt=1, description="share of tokens to predict, exact in every batch")
    optimizer: Literal["muon", "adamw"] = Field(
        default="muon", description="muon: Muon for the blocks' matrices and AdamW for the rest; adamw: for all"
    )
    learning_rate: float = Field(default=3e-3, gt=0, lt=1, description="peak learning rate of AdamW")
    muon_learning_rate: float = Field(default=0.02, gt=0, lt=1, description="peak learning rate of Muon")
    muon_momentum: float = Field(default=0.95, ge=0, lt=1, description="Muon: decay of the gradients' mean")
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1, description="share of steps with rising learning rate")
    weight_decay: float = Field(default=0.01, ge=0, lt=1, description="AdamW weight decay, not on biases and norms")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW: decay of the first moment")
    adam_beta2: float = Field(default=0.98, ge=0, lt=1, description="AdamW: decay of the second moment")
    clip_norm: float = Field(default=1.0, gt=0, description="gradients are scaled down to this global norm")
    log_every: int = Field(default=20, ge=1, description="steps per row of history.csv and per log line")
    checkpoint_every: int = Field(default=200, ge=1, description="steps between resume checkpoints")
    snapshots: tuple[float, ...] = Field(
        default=(),
        strict=False,
        description="shares of the training after which weights and optimizer state are kept, to be evaluated or "
        "branched from",
    )

    @field_validator("snapshots")
    @classmethod
    def _check_snapshots(cls, snapshots: tuple[float, ...]) -> tuple[float, ...]:
        if list(snapshots) != sorted(set(snapshots)) or not all(0 < share < 1 for share in snapshots):
            raise ValueError(f"{list(snapshots)} must rise, hold no share twice and lie between 0 and 1")
        return snapshots

    @model_validator(mode="after")
    def _check_snapshot_steps(self) -> "TrainingConfig":
        taken, total = [step_at(self, share) for share in self.snapshots], steps(self)
        if len(set(taken)) < len(taken) or total in taken:
            raise ValueError(
                f"snapshots {list(self.snapshots)} of {total} steps are those after steps {taken}; give shares with a "
                "step of their own before the last, or train on more tokens"
            )
        return self


# What the recipe `faithful` trains with unless the file says otherwise; `fast` has the defaults above.
FAITHFUL_TRAINING: dict[str, float | str] = {
    "batch_size": 64, "mask_rate": 0.15, "optimizer": "adamw", "learning_rate": 1e-3, "warmup_fraction": 0.05,
    "weight_decay": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.98, "clip_norm": 1.0,
}  # fmt: skip


def _or_boolean(schema: dict[str, Any]) -> None:
    """For the JSON schema: YAML 1.1 reads on and off without quotes as true and false."""
    del schema["type"]
    schema["enum"] = [*schema["enum"], True, False]


class ComputeConfig(Section):
    """What the numbers depend on besides data and formulas."""

    threads: int = Field(default=2, ge=1, le=1024, description="CPU threads inside one training or evaluation")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU where there is one")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto: bf16 on GPUs and on CPUs with AMX or AVX512-BF16, else fp32"
    )
    compile: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="compile the training step; auto: with bf16, if torch can compile here",
        json_schema_extra=_or_boolean,
    )

    @field_validator("compile", mode="before")
    @classmethod
    def _accept_yaml_booleans(cls, value: Any) -> Any:
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value
