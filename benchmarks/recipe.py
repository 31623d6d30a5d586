"""Time that the recipe needs to reach the article's accuracy, against the recipe of the first trials.

How many tokens it needs comes from a finished run, since only a whole training can tell; seconds per token of
both recipes are measured here, by turns and in the same engine.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from attnscale import counts
from attnscale.config import Config, TrainingConfig, load_config
from attnscale.errors import UserError
from attnscale.yaml_files import read_yaml
from benchmarks import ours
from benchmarks.cases import TRIAL, Case
from benchmarks.measures import Result, Row
from benchmarks.turns import Entry, Times, median_ratio, race

GROUP = "recipe"
NAME = "recipe_tokens_to_43_vs_trial"
ARM = "attention_o"
ACCURACY, LENGTH = 0.43, 64
TRIAL_TOKENS = 16_000_000
HOW_TO = "run `make CONFIG=config/reference.yaml` first"


class Finished(NamedTuple):
    """A finished run: its configuration, and the accuracy of attention_o at 64 tokens, the mean over seeds."""

    folder: Path
    config: Config
    accuracy: float

    @property
    def tokens(self) -> int:
        """Training tokens in whole steps."""
        return counts.steps(self.config.training) * counts.tokens_per_step(self.config.training)


def read_run(folder: Path, default: Config) -> Finished:
    """Read a run whose accuracy can be compared: the default model, text and vocabulary.

    Args:
        folder: `results/NAME` of a finished run.
        default: the configuration that says what is default.

    Raises:
        UserError: it is missing, unfinished, or of something else.
    """
    path = folder / "config.yaml"
    config = load_config(path)
    written = read_yaml(path)["training"]
    if set(written) != set(TrainingConfig.model_fields):
        raise UserError(f"{folder} is of another version of this project, with other settings of training")
    for section in ("model", "tokens", "corpus"):
        if getattr(config, section) != getattr(default, section):
            raise UserError(f"{folder} differs from config/default.yaml in its {section}")
    arm = config.arms.get(ARM)
    if arm is None or arm.weights_of or arm.attention.name != ARM or config.training.length != LENGTH:
        raise UserError(f"{folder} does not train {ARM} at {LENGTH} tokens under that name")
    if config.evaluation.mask_rate != default.evaluation.mask_rate:
        raise UserError(f"{folder} masks another share of tokens in evaluation than config/default.yaml")
    try:
        table = pd.read_csv(folder / "accuracy.csv")
        found = table[(table["arm"] == ARM) & (table["length"] == LENGTH)]["accuracy"]
    except (OSError, ValueError, KeyError):
        raise UserError(f"{folder} has no readable accuracy.csv") from None
    if found.empty:
        raise UserError(f"{folder} has no accuracy of {ARM} at {LENGTH} tokens")
    return Finished(folder, config, float(found.mean()))


def choose(folders: list[Path], default: Config) -> tuple[Finished | None, list[str]]:
    """The run that reached the accuracy with the fewest tokens, and a sentence for each that does not count."""
    reached: list[Finished] = []
    reasons = []
    for folder in folders:
        try:
            run = read_run(folder, default)
        except UserError as error:
            reasons.append(str(error))
            continue
        if run.accuracy >= ACCURACY:
            reached.append(run)
        else:
            reasons.append(f"{folder} reached {run.accuracy:.1%} at {LENGTH} tokens, not {ACCURACY:.0%}")
    return min(reached, key=lambda run: run.tokens, default=None), reasons


def measure(folders: list[Path], default: Config, record: dict[str, Any], threads: int, repeats: int) -> Result:
    """Choose a finished run and measure what a token of its recipe and of the trial's costs.

    Args:
        folders: finished runs to choose from.
        default: the configuration that says what is default.
        record: environment record: device, precision, whether to compile.
        threads: CPU threads.
        repeats: turns that count.
    """
    run, reasons = choose(folders, default)
    if run is None:
        said = f" ({'; '.join(reasons)})" if reasons else ""
        return Result(left_out={NAME: f"no run has brought {ARM} to {ACCURACY:.0%} at {LENGTH} tokens{said}; {HOW_TO}"})
    vocabulary_size = run.config.tokens.vocabulary_size
    cases = {
        "recipe": Case(run.config.model, run.config.training, vocabulary_size, threads),
        "trial_recipe": Case(run.config.model, TRIAL, vocabulary_size, threads),
    }
    times = race({name: Entry(ours.training, (case, record)) for name, case in cases.items()}, repeats)
    tokens = {name: case.steps * case.tokens for name, case in cases.items()}
    result = ratio(times, tokens, run.tokens, record["precision"])
    result.lines.append(f"{run.folder}: {run.accuracy:.1%} at {LENGTH} tokens after {run.tokens:,} training tokens")
    return result


def ratio(times: Times, tokens: dict[str, int], needed: int, precision: str) -> Result:
    """Rows and measure of a race.

    Args:
        times: of `recipe` and `trial_recipe`.
        tokens: training tokens of one turn, by contestant.
        needed: training tokens that the recipe needs.
        precision: what was measured.
    """
    rows = [
        Row(GROUP, name, precision, number, "seconds/token", of_turn / tokens[name])
        for name, seconds in times.items()
        for number, of_turn in enumerate(seconds[1:], start=1)
    ]
    rows.append(Row(GROUP, "recipe_to_43", precision, 1, "tokens", needed))
    per_token = median_ratio(times["recipe"], times["trial_recipe"]) * tokens["trial_recipe"] / tokens["recipe"]
    return Result(rows, {NAME: per_token * needed / TRIAL_TOKENS})
