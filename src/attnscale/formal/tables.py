"""The tables of a formal language: put together, and read again."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from attnscale.config import ExactSettings, FormalConfig
from attnscale.csv_files import read_table
from attnscale.errors import UserError
from attnscale.files import write_text

_KEYS = ("arm", "train_length", "seed", "test_length", "epoch")


def collect_arms(arms: Sequence[Path], output: Path) -> None:
    """Write the rows of all arms into one CSV file, in the order of the files.

    Raises:
        UserError: a file is missing, damaged or cut short, or two hold the same arm.
    """
    tables = [read_tests(path) for path in arms]
    names = [str(table["arm"].iloc[0]) for table in tables]
    if len(set(names)) < len(names):
        raise UserError(f"two of the files hold the same arm ({', '.join(names)}); give each arm once")
    lines = [path.read_text(encoding="utf-8").splitlines(keepends=True) for path in arms]
    for path, of_arm in zip(arms, lines, strict=True):
        if not of_arm[-1].endswith("\n"):
            raise UserError(f"{path} is cut short; delete it and run the pipeline again")
    write_text(output, "".join([*lines[0][:1], *(line for of_arm in lines for line in of_arm[1:])]))


def read_tests(path: Path) -> pd.DataFrame:
    """Read `first.csv`, `parity.csv` or one arm of them.

    Returns:
        Columns arm, train_length, seed, test_length, epoch, accuracy (a share) and loss (nats).

    Raises:
        UserError: the file is missing or damaged.
    """
    table = read_table(path, words=["arm"], whole=_KEYS[1:], real=["accuracy", "loss"], keys=_KEYS)
    if not table["accuracy"].between(0, 1).all() or (table["loss"] < 0).any():
        raise UserError(f"{path} holds an accuracy or loss that is none; delete it and run the pipeline again")
    return table


def read_complete(path: Path, section: FormalConfig) -> pd.DataFrame:
    """As `read_tests`, in the order of the configuration, and with every arm, length and seed that it asks for.

    Raises:
        UserError: rows are missing, or there are others.
    """
    table = read_tests(path).set_index(list(_KEYS))
    epochs = [*range(section.test_every, section.epochs, section.test_every), section.epochs]
    order = [arm for arm in dict.fromkeys(table.index.get_level_values("arm")) if arm in section.arms]
    wanted = [
        (arm, length, seed, test, epoch)
        for arm in [*order, *(arm for arm in section.arms if arm not in order)]
        for length in section.train_lengths
        for seed in sorted(section.seeds)
        for test in sorted({length, *section.test_lengths})
        for epoch in epochs
    ]
    known = set(table.index)
    lacking = [key for key in wanted if key not in known]
    if lacking or len(table) != len(wanted):
        # Made of the arms' own tables, so that deleting it alone would bring the same one back.
        parts = path.parent / "formal" / path.stem
        if lacking:
            told = ", ".join(f"{name} {value}" for name, value in zip(_KEYS, lacking[0], strict=True))
            words, parts = f"lacks {told}", parts / f"{lacking[0][0]}.csv"
        else:
            words = f"has {len(table)} rows where {len(wanted)} are asked for"
        raise UserError(f"{path} {words}; delete it and {parts} and run the pipeline again")
    return table.loc[wanted].reset_index()


def read_exact(path: Path, settings: ExactSettings) -> pd.DataFrame:
    """Read what the hand-built networks of a formal language did.

    Returns:
        Columns task, layer_norm (off or on), length, strings, accuracy (a share) and loss (nats).

    Raises:
        UserError: the file is missing or damaged, or lacks a length.
    """
    keys = ("task", "layer_norm", "length")
    table = read_table(
        path, words=keys[:2], whole=["length", "strings"], real=["accuracy", "loss"], keys=keys
    ).sort_values(["layer_norm", "length"], ignore_index=True)
    wanted = [(settings.task, norm, length) for norm in ("off", "on") for length in settings.lengths]
    if list(table[list(keys)].itertuples(index=False, name=None)) != wanted:
        raise UserError(
            f"{path} does not hold the lengths {list(settings.lengths)}; delete it and run the pipeline again"
        )
    return table
