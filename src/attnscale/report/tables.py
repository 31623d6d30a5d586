"""The numbers of the report: accuracy beside the published values, and differences between arms.

Differences are those of `differences.csv`; nothing is estimated here.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from attnscale.published import BASELINE, ROWS, Published, published_for
from attnscale.report.data import RunData


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number over seeds, in percent or in points of percent."""

    mean: float
    low: float
    """Of an accuracy the lowest seed, of a difference the lower end of its interval; NaN if there is none."""
    high: float
    seeds: int
    """How many seeds it is made from; 0 for a published number."""
    p: float = math.nan
    """Of a difference: sign-flip test over seeds."""
    p_holm: float = math.nan
    """The same, corrected for the number of tests."""

    @staticmethod
    def over(values: Sequence[float]) -> "Cell":
        """Mean, smallest and largest of one value per seed."""
        # fsum: the mean must not depend on the order of the seeds.
        return Cell(math.fsum(values) / len(values), min(values), max(values), len(values))

    @property
    def apart(self) -> bool:
        """Whether the interval of a difference leaves out zero."""
        return self.low > 0 or self.high < 0


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


def accuracy_row(data: RunData, arm: str, table: pd.DataFrame | None = None) -> Row:
    """Accuracy of an arm in percent, from the run's table or from another with its columns arm, length, percent."""
    table = data.accuracy if table is None else table
    mine = table[table["arm"] == arm]
    cells = {n: Cell.over([float(x) for x in mine.loc[mine["length"] == n, "percent"]]) for n in data.lengths}
    return Row(arm, cells)


def accuracy_rows(data: RunData) -> list[Row]:
    """Accuracy in percent per arm, each followed by the article's row if it has one; the rest at the end."""
    rows, shown = [], []
    for arm in data.arms:
        rows.append(accuracy_row(data, arm))
        found = published_for(data.config, arm)
        if found is not None and found not in shown:
            shown.append(found)
            rows.append(published_row(found))
    return rows + [published_row(row) for row in ROWS if row not in shown]


def published_row(row: Published) -> Row:
    """A row of the article."""
    return Row(row.label, _published(row.percent), published=True)


def difference_row(data: RunData, arm: str, reference: str, table: pd.DataFrame | None = None) -> Row | None:
    """Points between two arms, from the run's table or another like it; None if they were not compared."""
    table = data.differences if table is None else table
    mine = table[(table["arm"] == arm) & (table["baseline"] == reference)]
    cells = {
        int(row["length"]): Cell(
            float(row["mean"]),
            float(row["ci_low"]),
            float(row["ci_high"]),
            int(row["seeds"]),
            float(row.get("p", math.nan)),
            float(row.get("p_holm", math.nan)),
        )
        for row in mine.to_dict("records")
    }
    return Row(arm, cells, reference=reference) if cells else None


def difference_rows(data: RunData) -> list[Row]:
    """All differences of the run, in the order of their table."""
    pairs = dict.fromkeys(zip(data.differences["arm"], data.differences["baseline"], strict=True))
    rows = (difference_row(data, str(arm), str(reference)) for arm, reference in pairs)
    return [row for row in rows if row is not None]


def published_difference(row: Published) -> Row | None:
    """The article's points over its Attention-O; None for that itself."""
    if row is BASELINE:
        return None
    points = {n: value - BASELINE.percent[n] for n, value in row.percent.items() if n in BASELINE.percent}
    return Row(row.label, _published(points), published=True, reference=BASELINE.label)


def to_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Accuracies in long form for a CSV file: one line per row and length."""
    lines = [
        (row.label, "published" if row.published else "measured", n, cell.mean, cell.low, cell.high, cell.seeds)
        for row in rows
        for n, cell in sorted(row.cells.items())
    ]
    return pd.DataFrame(lines, columns=["row", "source", "length", "mean", "min", "max", "seeds"])


def _published(percent: Mapping[int, float]) -> dict[int, Cell]:
    return {n: Cell(value, math.nan, math.nan, 0) for n, value in percent.items()}
