"""The result table: right predictions summed over blocks, one row per arm, seed and length."""

from collections.abc import Sequence
from pathlib import Path

from attnscale.analysis.evaluation_tables import read_evaluations
from attnscale.files import write_text


def collect_accuracy(evaluations: Sequence[Path], output: Path, *, by_step: bool = False) -> None:
    """Sum the evaluations of all arms and seeds into `accuracy.csv`.

    Args:
        evaluations: CSV files of the evaluate stage, in the order wanted in the table.
        output: the CSV file to write; accuracy = correct / total, a fraction.
        by_step: keep the step of the training that the weights are from, for evaluations of snapshots.

    Raises:
        UserError: see `attnscale.analysis.evaluation_tables.read_evaluations`.
    """
    blocks = read_evaluations(evaluations, by_step=by_step)
    keys = ["arm", "seed", *(["step"] if by_step else []), "length"]
    table = blocks.groupby(keys, sort=False, as_index=False)[["correct", "total"]].sum()
    table["accuracy"] = table["correct"] / table["total"]
    write_text(output, table.to_csv(index=False, float_format="%.17g", lineterminator="\n"))
