"""Reading the tables of a run that hold numbers of several kinds, with one sentence for each kind of damage."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from attnscale.errors import UserError

_AGAIN = "delete it and run the pipeline again"


def read_table(
    path: Path,
    *,
    words: Sequence[str] = (),
    whole: Sequence[str] = (),
    real: Sequence[str] = (),
    real_or_empty: Sequence[str] = (),
    whole_or_empty: Sequence[str] = (),
    optional: Sequence[str] = (),
    keys: Sequence[str] = (),
    may_be_empty: bool = False,
) -> pd.DataFrame:
    """Read the named columns of a CSV file, and no others.

    Args:
        path: the file.
        words: columns of text; an arm may be called nan, but not nothing.
        whole: columns of whole numbers.
        real: columns of finite numbers.
        real_or_empty: columns of numbers that may be missing; these become NaN.
        whole_or_empty: columns of whole numbers that may be missing; these become NA.
        optional: those of all these columns that the file may lack.
        keys: columns whose combination must not come twice.
        may_be_empty: whether a file of a head alone is right.

    Raises:
        UserError: the file is missing or damaged.
    """
    types: dict[str, Any] = {
        **dict.fromkeys(words, "str"),
        **dict.fromkeys(whole, "int64"),
        **dict.fromkeys((*real, *real_or_empty), "float64"),
        **dict.fromkeys(whole_or_empty, "Int64"),
    }
    empty = {name: ["", "nan", "NaN"] for name in (*real_or_empty, *whole_or_empty)}
    try:
        # No default NA values: an arm may be called nan. An empty number is then an error of its own.
        table = pd.read_csv(
            path, dtype=types, usecols=types.__contains__, encoding="utf-8", keep_default_na=False, na_values=empty
        )
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the stage that makes it, or the whole pipeline") from None
    except (ValueError, OverflowError) as error:  # also parser errors and broken UTF-8
        raise UserError(f"{path} is damaged ({str(error).strip().splitlines()[0]}); {_AGAIN}") from None
    lacking = [name for name in types if name not in table and name not in optional]
    if lacking:
        raise UserError(f"{path} is damaged (it has no column {lacking[0]}); {_AGAIN}")
    if table.empty and not may_be_empty:
        raise UserError(f"{path} holds no rows; {_AGAIN}")
    if "arm" in words and (table["arm"] == "").any():
        raise UserError(f"{path} holds an arm without a name; {_AGAIN}")
    for name in real:
        if name in table and not all(math.isfinite(value) for value in table[name]):
            raise UserError(f"{path} holds an infinite or missing {name}; {_AGAIN}")
    if keys and table.duplicated(list(keys)).any():
        raise UserError(f"{path} holds a row twice; {_AGAIN}")
    return table
