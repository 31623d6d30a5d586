"""The result table: right predictions summed over blocks, one row per arm, seed and length."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from attnscale.errors import UserError
from attnscale.files import write_text


def collect_accuracy(evaluations: Sequence[Path], output: Path, *, by_step: bool = False) -> None:
    """Sum the evaluations of all arms and seeds into `accuracy.csv`.

    Args:
        evaluations: CSV files of the evaluate stage, in the order wanted in the table.
        output: the CSV file to write; accuracy = correct / total, a fraction.
        by_step: keep the step of the training that the weights are from, for evaluations of snapshots.

    Raises:
        UserError: a file is missing or damaged, or two arms were not asked for the same targets.
    """
    keys = ["arm", "seed", *(["step"] if by_step else []), "length"]
    tables = []
    for path in evaluations:
        try:
            columns = [*keys, "correct", "total"]
            tables.append(pd.read_csv(path, dtype={"arm": str}, keep_default_na=False, usecols=columns))
        except FileNotFoundError:
            raise UserError(f"{path} is missing; run the evaluation first") from None
        except (ValueError, pd.errors.ParserError) as error:
            raise UserError(f"{path} is no evaluation table ({error}); delete it and run the pipeline again") from None
    blocks = pd.concat(tables, ignore_index=True)
    table = blocks.groupby(keys, sort=False, as_index=False)[["correct", "total"]].sum()
    if table["total"].nunique() != 1:
        raise UserError(f"the evaluations behind {output} differ in their targets; delete them and run again")
    table["accuracy"] = table["correct"] / table["total"]
    write_text(output, table.to_csv(index=False, float_format="%.17g", lineterminator="\n"))
