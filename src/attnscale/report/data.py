"""What a finished run left, loaded and checked: the report is made from this and nothing else."""

import dataclasses
import math
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attnscale.config import Config, load_config
from attnscale.errors import UserError
from attnscale.files import read_json


class Record(BaseModel):
    """A JSON file of the run; keys that the report does not need are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Environment(Record):
    """`environment.json`."""

    python: str
    platform: str
    cpu: str
    cpu_capability: str
    device: str
    device_name: str
    precision: str
    compile: bool
    threads: int
    packages: dict[str, str]
    lock_sha256: str | None


class RunRecord(Record):
    """`runs/TRAINED/seedS/run.json`; only `parameters`, `tokens` and `steps` are the same in every rerun."""

    arm: str
    seed: int
    parameters: int = Field(ge=1)
    steps: int = Field(ge=1)
    tokens: int = Field(ge=1)
    seconds: float = Field(ge=0)
    tokens_per_second: float = Field(ge=0)
    device: str
    precision: str
    compile: bool
    threads: int
    git_commit: str | None = None
    resumed_from_steps: tuple[int, ...] = ()
    started: str | None = None
    finished: str | None = None


class SourceRecord(Record):
    """One source of the corpus, as `corpus/manifest.json` counts it."""

    kind: str
    name: str
    version: str | None = None
    licence: str
    sha256: str | None = None
    documents_read: int = Field(ge=0)
    documents_kept: int = Field(ge=0)
    characters: int = Field(ge=0)


class SideRecord(Record):
    """Documents on one side of the split."""

    documents: int = Field(ge=1)
    characters: int = Field(ge=1)


class SplitRecord(Record):
    """Both sides of the split, and how many documents are on both."""

    train: SideRecord
    held_out: SideRecord
    overlap: int = Field(ge=0, le=0)


class CorpusManifest(Record):
    """`corpus/manifest.json`."""

    sources: tuple[SourceRecord, ...] = Field(min_length=1)
    split: SplitRecord


class TokensManifest(Record):
    """`tokens/manifest.json`."""

    kind: str
    vocabulary_size: int = Field(ge=1)
    train_tokens: int = Field(ge=1)
    held_out_tokens: int = Field(ge=1)


class EvaluationRecord(Record):
    """`tokens/evaluation.json`."""

    blocks: int = Field(ge=1)
    targets: int = Field(ge=1)
    documents: int = Field(ge=1)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Wall-clock record of one job, as Snakemake measured it."""

    job: str
    seconds: float
    max_rss_mb: float | None


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
    """Columns arm, seed, step, tokens, loss, percent; ordered like `arms`, then by seed and step."""
    runs: tuple[RunRecord, ...]
    """One per trained arm and seed, ordered like `arms`, then by seed."""
    benchmarks: tuple[Benchmark, ...]

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
        """The trained arm with the usual scale, which differences are taken to; None if there is none."""
        fitting = [name for name in self.trained_arms if self.config.arms[name].attention.name == "attention_o"]
        return "attention_o" if "attention_o" in fitting else next(iter(fitting), None)


def load_run(run_dir: Path) -> RunData:
    """Load a finished run.

    Args:
        run_dir: results/NAME.

    Returns:
        Its data, checked to be complete: every arm, seed and length once, the same targets everywhere.

    Raises:
        UserError: a file is missing, damaged or does not fit to the configuration.
    """
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is no folder; give the folder of a finished run, results/NAME")
    config = load_config(run_dir / "config.yaml")
    evaluation = _record(run_dir / "tokens" / "evaluation.json", EvaluationRecord)
    accuracy = _accuracy(run_dir / "accuracy.csv", config, evaluation.targets)
    runs, histories = [], []
    for arm in (arm for arm in accuracy["arm"].unique() if config.arms[arm].weights_of is None):
        for seed in config.seeds:
            folder = run_dir / "runs" / arm / f"seed{seed}"
            runs.append(_run_record(folder / "run.json", arm, seed))
            histories.append(_history(folder / "history.csv", arm, seed))
    return RunData(
        config=config,
        config_text=(run_dir / "config.yaml").read_text(encoding="utf-8"),
        environment=_record(run_dir / "environment.json", Environment),
        corpus=_record(run_dir / "corpus" / "manifest.json", CorpusManifest),
        tokens=_record(run_dir / "tokens" / "manifest.json", TokensManifest),
        evaluation=evaluation,
        accuracy=accuracy,
        history=pd.concat(histories, ignore_index=True),
        runs=tuple(runs),
        benchmarks=_benchmarks(run_dir / "benchmarks"),
    )


_AnyRecord = TypeVar("_AnyRecord", bound=Record)


def _record(path: Path, model: type[_AnyRecord]) -> _AnyRecord:
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        finding = error.errors()[0]
        where = ".".join(str(part) for part in finding["loc"]) or "the whole file"
        raise UserError(
            f"{path} is damaged ({where}: {finding['msg'].lower()}); delete it and run the pipeline again"
        ) from None


def _run_record(path: Path, arm: str, seed: int) -> RunRecord:
    record = _record(path, RunRecord)
    if (record.arm, record.seed) != (arm, seed):
        raise UserError(
            f"{path} is of {record.arm}, seed {record.seed}, not of {arm}, seed {seed}; delete it and run the "
            "pipeline again"
        )
    return record


def _table(path: Path, whole: tuple[str, ...], real: tuple[str, ...], words: tuple[str, ...] = ()) -> pd.DataFrame:
    """Read the named columns of a CSV file, as whole numbers, real numbers and words."""
    types: dict[str, Any] = {**dict.fromkeys(whole, "int64"), **dict.fromkeys(real, "float64")}
    types.update(dict.fromkeys(words, "str"))
    try:
        # No default NA values: an arm may be called nan. An empty number is then an error of its own.
        table = pd.read_csv(path, dtype=types, usecols=list(types), encoding="utf-8", keep_default_na=False)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the stage that makes it, or the whole pipeline") from None
    except (ValueError, OverflowError) as error:  # also parser errors, missing columns and broken UTF-8
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path} is damaged ({reason}); delete it and run the pipeline again") from None
    if table.empty:
        raise UserError(f"{path} holds no rows; delete it and run the pipeline again")
    if table[list(types)].isna().any(axis=None) or not all(math.isfinite(x) for name in real for x in table[name]):
        raise UserError(f"{path} holds an empty or infinite number; delete it and run the pipeline again")
    return table


def _accuracy(path: Path, config: Config, targets: int) -> pd.DataFrame:
    table = _table(path, whole=("seed", "length", "correct", "total"), real=(), words=("arm",))
    order = [arm for arm in dict.fromkeys(table["arm"]) if arm in config.arms]
    order += [arm for arm in config.arms if arm not in order]
    wanted = [(arm, seed, n) for arm in order for seed in config.seeds for n in config.evaluation.lengths]
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
    table = _table(path, whole=("step", "tokens"), real=("loss", "accuracy"))
    if not table["tokens"].is_monotonic_increasing:
        raise UserError(f"{path} is not in the order of training; delete it and run the pipeline again")
    table = table.assign(arm=arm, seed=seed, percent=100.0 * table["accuracy"])
    return table[["arm", "seed", "step", "tokens", "loss", "percent"]]


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
