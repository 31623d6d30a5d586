"""Reading the tables that stages hand on: strictly, since what is taken for a number here ends up in a result.

Array names end in their shape: K blocks.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from attnscale.errors import UserError

AGAIN = "delete it and run the pipeline again"
_COUNT = r"[0-9]{1,18}"  # fits into 64 bits


def read_words(path: Path, what: str, stage: str) -> pd.DataFrame:
    """Read a CSV file as text, every row of it as wide as its head.

    Args:
        path: the file.
        what: what it should be, such as "evaluation table".
        stage: what makes it, such as "the evaluation".

    Returns:
        All columns, as text: a number that is not read is not rounded, and an arm may be called nan.

    Raises:
        UserError: the file is missing, has no head, or a row has too few or too many fields.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            head, *rows = list(csv.reader(stream, strict=True)) or [[]]
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run {stage} first") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no {what} ({error}); {AGAIN}") from None
    if not head or len(set(head)) < len(head):
        raise UserError(f"{path} is no {what} (its first line names no columns, or one twice); {AGAIN}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(head):
            raise UserError(f"{path} is no {what} (row {number} has {len(row)} fields, not {len(head)}); {AGAIN}")
    return pd.DataFrame(rows, columns=head, dtype=str)


def whole_numbers(path: Path, table: pd.DataFrame, columns: Sequence[str], what: str) -> pd.DataFrame:
    """The table with these columns of text as whole numbers from 0 on; its column `arm` must not be empty.

    Raises:
        UserError: a field is no such number, or an arm has no name.
    """
    for name in columns:
        wrong = table[name][~table[name].str.fullmatch(_COUNT)]
        if len(wrong):
            shown = repr(str(wrong.iloc[0])[:40])
            raise UserError(f"{path} is no {what} ({name} {shown} is no whole number from 0 on); {AGAIN}")
    if (table["arm"] == "").any():
        raise UserError(f"{path} is no {what} (an arm has no name); {AGAIN}")
    return table.astype(dict.fromkeys(columns, "int64"))


def read_evaluations(paths: Sequence[Path], *, by_step: bool = False) -> pd.DataFrame:
    """Read tables of the evaluate stage, one below the other.

    Args:
        paths: CSV files, in the order wanted.
        by_step: also read the step of the training that the weights are from.

    Returns:
        Columns arm, seed, step if asked for, length, block, correct, total; every block from 0 on once per arm, seed,
        step and length, with the same targets everywhere. The rows of a file are sorted by these, up to the block.

    Raises:
        UserError: a file is missing, damaged or empty, an evaluation is there twice, or two were not asked for the
            same targets.
    """
    keys = ["arm", "seed", *(["step"] if by_step else []), "length"]
    seen: dict[object, Path] = {}
    total_K: npt.NDArray[np.int64] | None = None
    tables = []
    for path in paths:
        table = _evaluation(path, [*keys, "block", "correct", "total"])
        for key, rows in table.groupby(keys, sort=False):
            if key in seen:
                told = ", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True))
                raise UserError(f"{path} repeats {told}, which {seen[key]} has; give every evaluation once")
            seen[key] = path
            total_K = rows["total"].to_numpy() if total_K is None else total_K
            whole = np.array_equal(rows["block"], np.arange(len(rows)))
            if not whole or not np.array_equal(rows["total"], total_K):
                where = f"the evaluations in {path}" if path == paths[0] else f"{path} and {paths[0]}"
                raise UserError(f"{where} differ in their targets or blocks; delete them and run the pipeline again")
        tables.append(table)
    if total_K is None or not total_K.sum():
        raise UserError("there are no evaluations, or none with a target; run the pipeline first")
    return pd.concat(tables, ignore_index=True)


def _evaluation(path: Path, columns: list[str]) -> pd.DataFrame:
    what = "evaluation table"
    table = read_words(path, what, "the evaluation")
    for name in columns:
        if name not in table:
            raise UserError(f"{path} is no {what} (it has no column {name}); {AGAIN}")
    if table.empty:
        raise UserError(f"{path} is no {what} (it has no rows); {AGAIN}")
    table = whole_numbers(path, table[columns], columns[1:], what)
    if (table["correct"] > table["total"]).any():
        raise UserError(f"{path} counts more right predictions than targets; {AGAIN}")
    return table.sort_values(columns[:-2], ignore_index=True)
