"""Numbers of the formal languages for tables, figures and sentences."""

from collections.abc import Mapping

import pandas as pd

from attnscale import published_formal
from attnscale.analysis.formal_claims import by_seed, last_tests, over_seeds
from attnscale.analysis.intervals import Estimate
from attnscale.config import Task
from attnscale.report.data import Formal, RunData
from attnscale.report.grids import Block, Field, Grid, Line
from attnscale.report.words import count, unsigned

LANGUAGES: Mapping[str, str] = {"first": "FIRST", "parity": "PARITY"}


def at_the_end(data: RunData, task: Task, arm: str, train: int, test: int, column: str) -> Estimate:
    """Mean over seeds at the end of the training, with its interval.

    Args:
        data: the run.
        task: the formal language.
        arm: one of its arms.
        train: bits of a training string.
        test: bits of a test string.
        column: percent or loss (nats).
    """
    formal = data.formal[task]
    last = last_tests(formal.tests, formal.section)
    return over_seeds(by_seed(last, formal.section, column, (arm, train, test)), data.config.statistics)


def curve_arms(formal: Formal) -> list[str]:
    """Arms of the paper's figure, plain attention and ln n, and the user's own; all if there are none of these."""
    attentions = {arm: formal.section.arms[arm].attention for arm in formal.arms}
    chosen = [arm for arm, its in attentions.items() if its.name in ("attention_o", "acl2022") or its.module]
    return chosen or list(formal.arms)


def formal_grid(data: RunData, task: Task) -> Grid:
    """What networks do at the end of the training, at their own length and at each test length.

    The first blocks tell whether they have learned at all: what has not cannot generalise. FIRST stands beside the
    numbers of the replication.
    """
    formal = data.formal[task]
    section = formal.section
    last = last_tests(formal.tests, section)
    blocks = []
    for test in (None, *section.test_lengths):
        where = f"at {test:,} bits" if test else "at the training length"
        right = [
            Line(arm, "", tuple(Field(str(_all_right(last, arm, n, test or n))) for n in section.train_lengths))
            for arm in formal.arms
        ]
        blocks.append(Block(f"networks of {len(section.seeds)} that are right on every string, {where}", tuple(right)))
        for column, unit, digits in (("percent", "accuracy", 1), ("loss", "loss in nats", 2)):
            lines = []
            for arm in formal.arms:
                found = [at_the_end(data, task, arm, n, test or n, column) for n in section.train_lengths]
                fields = tuple(_field(estimate, digits) for estimate in found)
                lines.append(Line(arm, "", fields))
                lines += _published(formal, arm, test, column, digits)
            blocks.append(Block(f"{unit}{', %' if column == 'percent' else ''}, {where}", tuple(lines)))
    return Grid(("", *(f"trained on {n}" for n in section.train_lengths)), tuple(blocks))


def _all_right(last: pd.DataFrame, arm: str, train: int, test: int) -> int:
    """How many networks of an arm answer every string of a test rightly."""
    return int((last["percent"].loc[(arm, train, test)] == 100.0).sum())


def _field(estimate: Estimate, digits: int) -> Field:
    if estimate.low != estimate.low:  # one seed
        return Field(unsigned(estimate.mean, digits))
    return Field(
        unsigned(estimate.mean, digits), (f"[{unsigned(estimate.low, digits)}, {unsigned(estimate.high, digits)}]",)
    )


def _published(formal: Formal, arm: str, test: int | None, column: str, digits: int) -> list[Line]:
    settings = formal.section.arms[arm]
    key = settings.attention.name, settings.scales
    cells = {("attention_o", "logits"): published_formal.UNSCALED, ("acl2022", "query_input"): published_formal.SCALED}
    if test != published_formal.TEST_LENGTH or key not in cells:
        return []
    fields = []
    for train in formal.section.train_lengths:
        cell = cells[key].get(train)
        if cell is None:
            fields.append(Field("–"))
            continue
        mean, deviation = (cell.percent, cell.percent_sd) if column == "percent" else (cell.loss, cell.loss_sd)
        error = published_formal.standard_error(deviation)
        fields.append(Field(unsigned(mean, digits), (f"± {unsigned(error, digits)}",)))
    return [Line("replication", "", tuple(fields), published=True)]


def exact_sentence(data: RunData) -> str:
    """How the hand-built networks did."""
    tables = [formal.exact for formal in data.formal.values()]
    answers = sum(int(count) for table in tables for count in table["strings"])
    right = sum(round(a * n) for table in tables for a, n in zip(table["accuracy"], table["strings"], strict=True))
    longest = max(int(n) for table in tables for n in table["length"])
    return f"{right:,} of their {count(answers, 'answer')} to strings of up to {longest:,} bits are right."


def parity_sentence(data: RunData) -> str:
    """How many networks have learned PARITY."""
    formal = data.formal["parity"]
    tests, section = formal.tests, data.config.parity
    assert section is not None
    at_home = tests[tests["train_length"] == tests["test_length"]]
    percent = [100.0 * float(accuracy) for accuracy in at_home["accuracy"][at_home["epoch"] == section.epochs]]
    learned = sum(value > section.learned_above for value in percent)
    best = 100.0 * float(at_home["accuracy"].max())
    on_the_way = f", and the best of all tests on the way has {unsigned(best, 1)} %" if best > max(percent) else ""
    return (
        f"After {count(section.epochs, 'epoch')} of {count(section.steps_per_epoch, 'string')}, {learned} of "
        f"{count(len(percent), 'network')} are right on more than {section.learned_above:g} % of "
        f"{count(section.test_strings, 'string')} of their training length; the best is right on "
        f"{unsigned(max(percent), 1)} %{on_the_way}. Networks that give every string the same answer are right on the "
        "same strings, whatever their scale, so accuracies of several arms may agree to the digit."
    )
