"""Differences between arms with their intervals and tests: `differences.csv`.

Array names end in their shape: S seeds, K blocks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from attnscale.analysis.evaluation_tables import read_evaluations
from attnscale.analysis.intervals import Counts, Estimate, holm, percent, percents, ratio, sign_flip_p
from attnscale.analysis.settings import DifferencesSettings
from attnscale.config import StatisticsConfig
from attnscale.files import write_text

COLUMNS = ("arm", "baseline", "length", "seeds", "mean", "ci_low", "ci_high", "p", "p_holm")

Place = tuple[str, int]
"""An arm at a length in tokens."""


@dataclasses.dataclass(frozen=True)
class Evaluations:
    """Right predictions of all arms, per seed and block."""

    correct: Mapping[Place, Mapping[int, Counts]]
    """By arm and length, then seed: one whole number per block, (K,)."""
    total_K: Counts
    """Targets per block."""
    arms: tuple[str, ...]
    """In the order of the files."""

    def lengths(self, arm: str) -> tuple[int, ...]:
        """Lengths in tokens at which an arm was evaluated, rising."""
        return tuple(sorted(length for name, length in self.correct if name == arm))

    def seeds(self, *places: Place) -> tuple[int, ...]:
        """Seeds that all of these have, rising."""
        sets = [set(self.correct.get(place, {})) for place in places]
        return tuple(sorted(set.intersection(*sets))) if sets else ()

    def counts(self, place: Place, seeds: Sequence[int]) -> Counts:
        """Right predictions of an arm at a length, (S, K)."""
        return np.stack([self.correct[place][seed] for seed in seeds])

    def balance(self, plus: Sequence[Place], minus: Sequence[Place], seeds: Sequence[int]) -> Counts:
        """Sum of some counts minus the sum of others, paired by seed and block, (S, K)."""
        balance_SK = np.zeros((len(seeds), len(self.total_K)), dtype=np.int64)
        for sign, places in ((1, plus), (-1, minus)):
            for place in places:
                balance_SK += sign * self.counts(place, seeds)
        return balance_SK

    def points(
        self, plus: Sequence[Place], minus: Sequence[Place], statistics: StatisticsConfig, *, parts: int = 1
    ) -> Estimate | None:
        """Accuracies added and taken away, in points of percent.

        Args:
            plus: what is added.
            minus: what is taken away.
            statistics: settings of the bootstrap.
            parts: the result is divided by this, for a mean over several lengths.

        Returns:
            The estimate over the common seeds, or None without one.
        """
        seeds = self.seeds(*plus, *minus)
        if not seeds:
            return None
        balance_SK, total_K = self.balance(plus, minus, seeds), parts * self.total_K
        return percent(balance_SK, total_K, resamples=statistics.resamples, confidence=statistics.confidence)

    def ratio(self, upper: Place, lower: Place, statistics: StatisticsConfig) -> Estimate | None:
        """Accuracy at one place over that at another; None without a common seed."""
        seeds = self.seeds(upper, lower)
        if not seeds:
            return None
        return ratio(
            self.counts(upper, seeds),
            self.counts(lower, seeds),
            self.total_K,
            resamples=statistics.resamples,
            confidence=statistics.confidence,
        )


def load_evaluations(paths: Sequence[Path]) -> Evaluations:
    """Read evaluation tables, columns arm, seed, length, block, correct, total; the order of their rows is no matter.

    Raises:
        UserError: see `attnscale.analysis.evaluation_tables.read_evaluations`.
    """
    correct: dict[Place, dict[int, Counts]] = {}
    table = read_evaluations(paths)
    for key, rows in table.groupby(["arm", "seed", "length"], sort=False):
        arm, seed, length = cast(tuple[str, int, int], key)
        correct.setdefault((arm, int(length)), {})[int(seed)] = rows["correct"].to_numpy()
        total_K = rows["total"].to_numpy()
    return Evaluations(correct, total_K, tuple(dict.fromkeys(table["arm"])))


def write_differences(settings: DifferencesSettings, evaluations: Sequence[Path], output: Path) -> None:
    """Write `differences.csv`: arm,baseline,length,seeds,mean,ci_low,ci_high,p,p_holm, in points of percent.

    p is that of the sign-flip test over seeds, empty with one seed. p_holm corrects it for the number of tests. There
    are two families. The primary comparison, named before the run, is one of its own: it is tested alone, so p_holm
    is p. All other rows at lengths above the training length are the second family: any of them may be pointed at as
    a finding, whatever the arm is compared with, so all share one correction. Rows up to the training length are
    outside, and their p_holm is empty: there arms are expected to be equal, which an interval can show and a small p
    cannot. With k seeds no p is below 2^(1-k), and the smallest p_holm of a family is at least that times its number of
    tests: with six seeds and two tests already above 0.05. A large p_holm is thus no sign that two arms are equal; what
    can be said about an effect is in the interval.

    Args:
        settings: comparisons and how they are made.
        evaluations: CSV files of the evaluate stage, in the order wanted for the arms of the table. Arms may have
            different seeds: a pair rests on those it shares, and without one it is left out, as is a length that
            only one of the two has.
        output: the CSV file to write.

    Raises:
        UserError: see `load_evaluations`.
    """
    table = difference_table(settings, load_evaluations(evaluations))
    write_text(output, table.to_csv(index=False, float_format="%.17g", lineterminator="\n"))


def difference_table(settings: DifferencesSettings, evaluations: Evaluations) -> pd.DataFrame:
    """The table of `write_differences`, which says what is in it."""
    statistics = settings.statistics
    order = {arm: place for place, arm in enumerate(evaluations.arms)}
    known = [pair for pair in settings.comparisons if pair[0] in order and pair[1] in order]
    rows = []
    for arm, baseline in sorted(known, key=lambda pair: order[pair[0]]):
        lengths = [length for length in evaluations.lengths(arm) if (baseline, length) in evaluations.correct]
        seeds = evaluations.seeds(*((name, length) for name in (arm, baseline) for length in lengths))
        if not seeds:
            continue
        balance_TSK = np.stack([evaluations.balance([(arm, n)], [(baseline, n)], seeds) for n in lengths])
        estimates = percents(
            balance_TSK, evaluations.total_K, resamples=statistics.resamples, confidence=statistics.confidence
        )
        for length, estimate, balance_SK in zip(lengths, estimates, balance_TSK, strict=True):
            ends = estimate.mean, estimate.low, estimate.high
            rows.append((arm, baseline, length, estimate.seeds, *ends, sign_flip_p(balance_SK.sum(axis=1))))
    table = pd.DataFrame(rows, columns=list(COLUMNS[:-1]))
    primary = (
        (table["arm"] == statistics.primary_arm)
        & (table["baseline"] == statistics.primary_baseline)
        & (table["length"] == statistics.primary_length)
    )
    p_values = table["p"].to_numpy(dtype=np.float64)
    family = ((table["length"] > settings.training_length) & ~primary).to_numpy()
    table["p_holm"] = np.where(primary, p_values, holm(np.where(family, p_values, np.nan)))
    return table
