"""The numbers of the report: accuracy beside the published values, and differences between arms."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from attnscale.report.data import RunData
from attnscale.report.published import BASELINE, ROWS, published_for


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number over seeds, in percent or in points of percent."""

    mean: float
    low: float
    high: float
    seeds: int
    """How many seeds it is made from; 0 for a published number."""
    positive: int = 0
    """In how many seeds it is above zero."""
    negative: int = 0
    """In how many seeds it is below zero."""

    @staticmethod
    def over(values: Sequence[float]) -> "Cell":
        """Mean, smallest and largest of one value per seed."""
        # fsum: the mean must not depend on the order of the seeds.
        mean = math.fsum(values) / len(values)
        signs = sum(value > 0 for value in values), sum(value < 0 for value in values)
        return Cell(mean, min(values), max(values), len(values), *signs)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table."""

    label: str
    """Name of the arm, or what the article calls it."""
    cells: Mapping[int, Cell]
    """By length in tokens; a length that was not measured is left out."""
    published: bool = False
    reference: str | None = None
    """Name of the arm the differences are taken to, if they are differences."""
    weights_of: str | None = None
    """The trained arm whose weights were taken, if the arm was not trained itself."""


def accuracy_rows(data: RunData) -> list[Row]:
    """Accuracy in percent per arm, each followed by the article's row if it has one; the rest at the end."""
    rows, shown = [], []
    for arm in data.arms:
        values = _values(data, arm)
        cells = {n: Cell.over(values[n]) for n in data.lengths}
        rows.append(Row(arm, cells, weights_of=data.config.arms[arm].weights_of))
        found = published_for(data.config, arm)
        if found is not None and found not in shown:
            shown.append(found)
            rows.append(Row(found.label, _published(found.percent), published=True))
    rows += [Row(row.label, _published(row.percent), published=True) for row in ROWS if row not in shown]
    return rows


def difference_rows(data: RunData) -> list[Row]:
    """Points between arms, paired by seed.

    Every arm is compared to the baseline; an arm that runs on the weights of yet another arm is compared to
    that one as well, since only then is nothing but the test-time scale different. Published differences
    follow the arm that they belong to.
    """
    rows, shown = [], []
    for arm in data.arms:
        donor = data.config.arms[arm].weights_of
        for reference in dict.fromkeys((data.baseline, donor)):
            if reference is None or reference == arm:
                continue
            ours, theirs = _values(data, arm), _values(data, reference)
            cells = {n: Cell.over([a - b for a, b in zip(ours[n], theirs[n], strict=True)]) for n in data.lengths}
            rows.append(Row(arm, cells, reference=reference, weights_of=donor))
        found = published_for(data.config, arm)
        if found is not None and found is not BASELINE and found not in shown and data.baseline is not None:
            shown.append(found)
            points = {n: value - BASELINE.percent[n] for n, value in found.percent.items()}
            rows.append(Row(found.label, _published(points), published=True, reference=BASELINE.label))
    return rows


def by_chance(data: RunData) -> dict[int, float]:
    """Points by which two accuracies may differ through the draw of the targets alone, by length.

    Half of the 95 % interval for the difference of two independent samples of this size. The arms share
    their targets, which makes it smaller; targets share their texts, which makes it larger: a rule of thumb.
    """
    mean = data.accuracy.groupby("length")["percent"].mean() / 100.0
    targets = data.evaluation.targets
    return {n: 196.0 * math.sqrt(2.0 * float(mean[n]) * (1.0 - float(mean[n])) / targets) for n in data.lengths}


def lengths_of(rows: Sequence[Row]) -> list[int]:
    """All lengths that any of the rows has, rising."""
    return sorted({n for row in rows for n in row.cells})


def to_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows in long form for a CSV file: one line per row and length; `minus` is empty for accuracies."""
    lines = [
        (row.label, row.reference, _origin(row), n, cell.mean, cell.low, cell.high, cell.seeds)
        for row in rows
        for n, cell in sorted(row.cells.items())
    ]
    return pd.DataFrame(lines, columns=["row", "minus", "source", "length", "mean", "min", "max", "seeds"])


def _origin(row: Row) -> str:
    return "published" if row.published else "measured"


def _values(data: RunData, arm: str) -> dict[int, list[float]]:
    """Percent by length, one value per seed in the order of the configuration."""
    mine = data.accuracy[data.accuracy["arm"] == arm]
    return {n: [float(x) for x in mine.loc[mine["length"] == n, "percent"]] for n in data.lengths}


def _published(percent: Mapping[int, float]) -> dict[int, Cell]:
    return {n: Cell(value, value, value, 0) for n, value in percent.items()}
