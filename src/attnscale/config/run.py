"""A whole configuration, the checks of what must fit together, and what it asks of each stage."""

from pathlib import Path
from typing import Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from attnscale.config.arms import ArmConfig
from attnscale.config.corpus import CorpusConfig, TokensConfig
from attnscale.config.evaluation import AttentionStatisticsConfig, ClaimsConfig, EvaluationConfig, StatisticsConfig
from attnscale.config.formal import FirstConfig, FormalConfig, ParityConfig, Task
from attnscale.config.section import Name, Section, Seed
from attnscale.config.stages import (
    AttentionStatisticsSettings,
    CorpusSettings,
    EncoderSettings,
    EvaluateSettings,
    EvaluationSetSettings,
    ExactSettings,
    FormalSettings,
    TheorySettings,
    TokensSettings,
    TrainSettings,
)
from attnscale.config.training import FAITHFUL_TRAINING, ComputeConfig, ModelConfig, TrainingConfig
from attnscale.counts import step_at, steps
from attnscale.errors import UserError
from attnscale.findings import explain, nearest
from attnscale.yaml_files import read_yaml


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

    def _check_formal(self, task: Task, section: FormalConfig) -> None:
        from attnscale.formal.scales import make_scale
        from attnscale.formal.training import SHAPES

        heads, head_size = SHAPES[task].heads, SHAPES[task].head_size
        for name, arm in section.arms.items():
            try:
                make_scale(arm, section.train_lengths, section.test_lengths, heads=heads, head_size=head_size)
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
            # Their order is no matter to any result.
            seeds=tuple(sorted(section.seeds)),
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
