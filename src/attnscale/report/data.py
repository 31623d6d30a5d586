"""What a finished run left, loaded and checked: the report is made from this and nothing else."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from attnscale.analysis.comparisons import baseline_arm, comparisons
from attnscale.analysis.theory import read_theory
from attnscale.analysis.verdicts import CLAIMS, VERDICTS, claim_numbers
from attnscale.config import Config, FormalConfig, Task, load_config
from attnscale.counts import steps
from attnscale.csv_files import read_table
from attnscale.errors import UserError
from attnscale.formal.tables import read_complete, read_exact
from attnscale.records import (
    CorpusManifest,
    Environment,
    EvaluationRecord,
    RunRecord,
    TokensManifest,
    read_record,
)
from attnscale.report.arms import measured_arms


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Wall-clock record of one job, as Snakemake measured it."""

    job: str
    seconds: float
    max_rss_mb: float | None


@dataclasses.dataclass(frozen=True)
class Claim:
    """A row of `claims.csv`; a number that could not be measured or was not published is NaN."""

    claim: int
    title: str
    verdict: str
    quantity: str
    measured: float
    ci_low: float
    ci_high: float
    published: float
    reason: str


@dataclasses.dataclass(frozen=True)
class BySource:
    """Results of each source of the text; only those that have evaluation blocks."""

    accuracy: pd.DataFrame
    """Columns source, arm, seed, length, documents, blocks, total, percent."""
    differences: pd.DataFrame
    """Columns source, arm, baseline, length, seeds, mean, ci_low, ci_high, in points."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Their names, in the order of the configuration."""
        return tuple(str(source) for source in self.accuracy["source"].unique())


@dataclasses.dataclass(frozen=True)
class Formal:
    """Results on a formal language."""

    section: FormalConfig
    tests: pd.DataFrame
    """As `attnscale.formal.tables.read_complete` gives it."""
    exact: pd.DataFrame
    """As `attnscale.formal.tables.read_exact` gives it."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of its arms, in the order of the user's configuration file."""
        return tuple(str(arm) for arm in self.tests["arm"].unique())


@dataclasses.dataclass(frozen=True)
class RunData:
    """Everything the report shows."""

    config: Config
    config_text: str
    """`config.yaml` as it lies in the run."""
    environment: Environment
    corpus: CorpusManifest
    tokens: TokensManifest
    evaluation: EvaluationRecord
    accuracy: pd.DataFrame
    """Columns arm, seed, length, correct, total, percent; ordered like `arms`, then by seed and length."""
    history: pd.DataFrame
    """Columns arm, seed, step, tokens, loss, percent, grad_norm, grad_norm_qk; ordered like `arms`, then by seed and
    step."""
    differences: pd.DataFrame
    """Columns of `differences.csv` in points, p and p_holm with NaN where there are none; ordered like `arms`."""
    claims: tuple[Claim, ...]
    by_source: BySource | None
    """None if the text has one source only."""
    theory: pd.DataFrame
    """As `attnscale.analysis.theory.read_theory` gives it."""
    entropy: pd.DataFrame | None
    """Columns of `entropy.csv`, ordered like `arms`; None if nothing was to be measured."""
    snapshots: pd.DataFrame | None
    """Columns arm, seed, step, length, percent, ordered like `arms`; None if there are no snapshots to evaluate."""
    runs: tuple[RunRecord, ...]
    """One per trained arm and seed, ordered like `arms`, then by seed."""
    benchmarks: tuple[Benchmark, ...]
    formal: Mapping[Task, "Formal"] = dataclasses.field(default_factory=dict)
    """By name, the formal languages that are on."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms, in the order of `accuracy.csv`, which is that of the user's configuration file.

        `config.yaml` has them in alphabetical order, so that their order makes nothing due in the workflow.
        """
        return tuple(str(arm) for arm in self.accuracy["arm"].unique())

    @property
    def trained_arms(self) -> tuple[str, ...]:
        """Names of the arms that are trained, in the same order."""
        return tuple(arm for arm in self.arms if self.config.arms[arm].weights_of is None)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Evaluation lengths in tokens, rising."""
        return self.config.evaluation.lengths

    @property
    def baseline(self) -> str | None:
        """The trained arm with the usual scale; None if there is none."""
        return baseline_arm(self.config)

    @property
    def last_step(self) -> int:
        """Steps of a whole training."""
        return steps(self.config.training)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that any arm has, in the order of the configuration."""
        found = {seed for _, seed in self.config.runs()}
        return tuple(seed for seed in self.config.seeds if seed in found)

    @property
    def same_seeds(self) -> bool:
        """Whether all arms have the same seeds."""
        return len({self.config.seeds_of(arm) for arm in self.arms}) == 1

    def several_seeds(self, arms: Iterable[str] | None = None) -> bool:
        """Whether any of these arms, by default of all, has more than one seed to take a mean over."""
        return any(len(self.config.seeds_of(arm)) > 1 for arm in (self.arms if arms is None else arms))

    def seeds_by_number(self) -> dict[int, list[str]]:
        """Arms by the number of their seeds, most seeds first."""
        numbers = {arm: len(self.config.seeds_of(arm)) for arm in self.arms}
        return {
            number: [arm for arm in self.arms if numbers[arm] == number]
            for number in sorted(set(numbers.values()), reverse=True)
        }


def load_run(run_dir: Path, *, trained: bool = True) -> RunData:
    """Load a finished run.

    Args:
        run_dir: results/NAME.
        trained: whether it has trained; the evaluation of a checkpoint from elsewhere has neither records of
            trainings nor claims and theory.

    Returns:
        Its data, checked to be complete: every arm, seed and length once, the same targets everywhere.

    Raises:
        UserError: a file is missing, damaged or does not fit to the configuration.
    """
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is no folder; give the folder of a finished run, results/NAME")
    config = load_config(run_dir / "config.yaml")
    evaluation = read_record(run_dir / "tokens" / "evaluation.json", EvaluationRecord)
    accuracy = _accuracy(run_dir / "accuracy.csv", config, evaluation.targets)
    runs, histories = [], []
    for arm in (arm for arm in accuracy["arm"].unique() if trained and config.arms[arm].weights_of is None):
        for seed in config.seeds_of(arm):
            folder = run_dir / "runs" / arm / f"seed{seed}"
            runs.append(_run_record(folder / "run.json", arm, seed))
            histories.append(_history(folder / "history.csv", arm, seed))
    arms = [str(arm) for arm in accuracy["arm"].unique()]
    return RunData(
        config=config,
        config_text=(run_dir / "config.yaml").read_text(encoding="utf-8"),
        environment=read_record(run_dir / "environment.json", Environment),
        corpus=read_record(run_dir / "corpus" / "manifest.json", CorpusManifest),
        tokens=read_record(run_dir / "tokens" / "manifest.json", TokensManifest),
        evaluation=evaluation,
        accuracy=accuracy,
        history=pd.concat(histories, ignore_index=True) if histories else pd.DataFrame(),
        differences=_differences(run_dir / "differences.csv", config, arms),
        claims=_claims(run_dir / "claims.csv", config) if trained else (),
        by_source=_by_source(run_dir, config) if trained and len(config.source_names) > 1 else None,
        theory=read_theory(run_dir / "theory.csv") if trained else pd.DataFrame(),
        entropy=_entropy(run_dir / "entropy.csv", config, arms) if config.attention_statistics.blocks else None,
        snapshots=_snapshots(run_dir / "snapshots.csv", config, arms) if config.snapshot_runs() else None,
        runs=tuple(runs),
        benchmarks=_benchmarks(run_dir / "benchmarks"),
        formal={task: _formal(run_dir, config, task) for task in config.formal} if trained else {},
    )


def _formal(run_dir: Path, config: Config, task: Task) -> Formal:
    section = config.formal[task]
    tests = read_complete(run_dir / f"{task}.csv", section)
    return Formal(section, tests, read_exact(run_dir / f"exact_{task}.csv", config.exact_settings(task)))


def _run_record(path: Path, arm: str, seed: int) -> RunRecord:
    record = read_record(path, RunRecord)
    if (record.arm, record.seed) != (arm, seed):
        raise UserError(
            f"{path} is of {record.arm}, seed {record.seed}, not of {arm}, seed {seed}; delete it and run the "
            "pipeline again"
        )
    return record


def _complete(path: Path, table: pd.DataFrame, keys: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """The wanted rows in the wanted order; each must be there once, and nothing else."""
    table = table.set_index(list(keys))
    known = set(table.index)
    for key in wanted:
        if key not in known:
            told = ", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True))
            raise UserError(f"{path} lacks {told}; delete it and run the pipeline again")
    if len(table) != len(wanted):
        raise UserError(
            f"{path} has {len(table)} rows where the configuration asks for {len(wanted)}; delete it and run the "
            "pipeline again"
        )
    return table.loc[list(wanted)].reset_index() if wanted else table.reset_index()


def _differences(path: Path, config: Config, arms: Sequence[str]) -> pd.DataFrame:
    keys = ("arm", "baseline", "length")
    table = read_table(
        path,
        keys=keys,
        whole=("length", "seeds"),
        real=("mean",),
        words=("arm", "baseline"),
        real_or_empty=("ci_low", "ci_high", "p", "p_holm"),
        may_be_empty=True,
    )
    wanted = [
        (arm, other, length)
        for arm, other in sorted(comparisons(config), key=lambda pair: arms.index(pair[0]))
        if set(config.seeds_of(arm)) & set(config.seeds_of(other))
        for length in config.evaluation.lengths
    ]
    return _complete(path, table, keys, wanted)


def _by_source(run_dir: Path, config: Config) -> BySource:
    path = run_dir / "accuracy_by_source.csv"
    accuracy = read_table(
        path,
        keys=("source", "arm", "seed", "length"),
        words=("source", "arm"),
        whole=("seed", "length", "documents", "blocks", "correct", "total"),
    )
    sources = [name for name in config.source_names if (accuracy["source"] == name).any()]
    runs = [(*run, length) for run in config.runs() for length in config.evaluation.lengths]
    wanted = [(source, *run) for source in sources for run in runs]
    accuracy = _complete(path, accuracy, ("source", "arm", "seed", "length"), wanted)
    if ((accuracy["total"] < 1) | (accuracy["correct"] > accuracy["total"])).any():
        raise UserError(f"{path} counts no targets, or more right predictions; delete it and run the pipeline again")
    differences = read_table(
        run_dir / "differences_by_source.csv",
        keys=("source", "arm", "baseline", "length"),
        words=("source", "arm", "baseline"),
        whole=("length", "seeds"),
        real=("mean",),
        real_or_empty=("ci_low", "ci_high"),
        may_be_empty=True,
    )
    percent = 100.0 * accuracy["correct"] / accuracy["total"]
    return BySource(accuracy.assign(percent=percent).drop(columns="correct"), differences)


def _claims(path: Path, config: Config) -> tuple[Claim, ...]:
    numbers = ("measured", "ci_low", "ci_high", "published")
    table = read_table(
        path, whole=("claim",), words=("title", "verdict", "quantity", "reason"), real_or_empty=numbers
    ).sort_values("claim")
    claims = claim_numbers(config)
    if table["claim"].tolist() != claims:
        named = f"1 to {CLAIMS}" + "".join(f", {claim}" for claim in claims[CLAIMS:])
        raise UserError(f"{path} does not hold the claims {named}, each once; delete it and run the pipeline again")
    for verdict in table["verdict"]:
        if verdict not in VERDICTS:
            raise UserError(f"{path} has the unknown verdict {verdict!r}; delete it and run the pipeline again")
    return tuple(
        Claim(
            claim=int(row["claim"]),
            title=row["title"],
            verdict=row["verdict"],
            quantity=row["quantity"],
            measured=float(row["measured"]),
            ci_low=float(row["ci_low"]),
            ci_high=float(row["ci_high"]),
            published=float(row["published"]),
            reason=row["reason"],
        )
        for row in table.to_dict("records")
    )


def _entropy(path: Path, config: Config, arms: Sequence[str]) -> pd.DataFrame:
    keys = ("arm", "seed", "layer", "head", "length")
    table = read_table(
        path,
        keys=keys,
        whole=("seed", "layer", "head", "length"),
        real=("entropy", "logit_std", "max_weight", "saturated", "distance", "beyond"),
        words=("arm",),
        real_or_empty=("entropy_ratio",),
        may_be_empty=True,
    )
    measured = measured_arms(config)
    wanted = [
        (arm, seed, layer, head, length)
        for arm in arms
        if arm in measured
        for seed in config.seeds_of(arm)
        for layer in range(config.model.layers)
        for head in range(config.model.heads)
        for length in config.evaluation.lengths
    ]
    return _complete(path, table, keys, wanted)


def _snapshots(path: Path, config: Config, arms: Sequence[str]) -> pd.DataFrame:
    keys = ("arm", "seed", "step", "length")
    table = read_table(path, keys=keys, whole=("seed", "step", "length", "correct", "total"), words=("arm",))
    runs = sorted(config.snapshot_runs(), key=lambda run: arms.index(run[0]))
    wanted = [(*run, length) for run in runs for length in config.evaluation.lengths]
    table = _complete(path, table, keys, wanted)
    if (table["total"] < 1).any():
        raise UserError(f"{path} counts no targets; delete it and run the pipeline again")
    return table.assign(percent=100.0 * table["correct"] / table["total"]).drop(columns=["correct", "total"])


def _accuracy(path: Path, config: Config, targets: int) -> pd.DataFrame:
    table = read_table(path, whole=("seed", "length", "correct", "total"), words=("arm",))
    order = [arm for arm in dict.fromkeys(table["arm"]) if arm in config.arms]
    order += [arm for arm in config.arms if arm not in order]
    wanted = [(arm, seed, n) for arm in order for seed in config.seeds_of(arm) for n in config.evaluation.lengths]
    table = table.set_index(["arm", "seed", "length"])
    for arm, seed, length in wanted:
        if (arm, seed, length) not in table.index:
            raise UserError(f"{path} lacks arm {arm}, seed {seed}, length {length}; evaluate that arm again")
    if len(table) != len(wanted):
        raise UserError(
            f"{path} has {len(table)} rows where the configuration asks for {len(wanted)}; delete it and run the "
            "pipeline again"
        )
    table = table.loc[wanted].reset_index()
    for row in table.itertuples():
        if row.total != targets:
            raise UserError(
                f"{path} counts {row.total} targets for {row.arm}, seed {row.seed}, length {row.length}, but "
                f"tokens/evaluation.json has {targets}; evaluate that arm again"
            )
        if not 0 <= int(str(row.correct)) <= targets:
            raise UserError(
                f"{path} counts {row.correct} correct of {targets} for {row.arm}, seed {row.seed}, length "
                f"{row.length}; evaluate that arm again"
            )
    return table.assign(percent=100.0 * table["correct"] / table["total"])


def _history(path: Path, arm: str, seed: int) -> pd.DataFrame:
    table = read_table(path, whole=("step", "tokens"), real=("loss", "accuracy", "grad_norm", "grad_norm_qk"))
    if not table["tokens"].is_monotonic_increasing:
        raise UserError(f"{path} is not in the order of training; delete it and run the pipeline again")
    table = table.assign(arm=arm, seed=seed, percent=100.0 * table["accuracy"])
    return table[["arm", "seed", "step", "tokens", "loss", "percent", "grad_norm", "grad_norm_qk"]]


def _benchmarks(folder: Path) -> tuple[Benchmark, ...]:
    """Snakemake's records; what is absent or unreadable is left out, since nothing is computed from them."""
    found = []
    for path in sorted(folder.rglob("*.tsv")):
        try:
            last = pd.read_csv(path, sep="\t").iloc[-1].to_dict()
            seconds = float(last["s"])
        except (ValueError, KeyError, IndexError, TypeError, OSError):
            continue
        memory = last.get("max_rss")  # Snakemake writes NA for jobs too short to be measured
        known = isinstance(memory, int | float) and math.isfinite(memory)
        job = path.relative_to(folder).with_suffix("").as_posix()
        found.append(Benchmark(job, seconds, memory if known else None))
    return tuple(found)
