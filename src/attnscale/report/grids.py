"""The report's tables of numbers, ready to be shown: the same for the web page and for Markdown."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping

import pandas as pd

from attnscale.published import ROWS, published_for
from attnscale.report.arms import KINDS, kind_of, lengths_beyond, main_arms, reference_of
from attnscale.report.data import RunData
from attnscale.report.spread import needs_of_heads, spread_lengths
from attnscale.report.tables import (
    Row,
    accuracy_row,
    accuracy_rows,
    difference_row,
    difference_rows,
    published_difference,
    published_row,
)
from attnscale.report.words import count, interval, joined, p_value, share, signed, unsigned


@dataclasses.dataclass(frozen=True)
class Field:
    """What stands in one cell."""

    text: str
    under: tuple[str, ...] = ()
    """Smaller lines below it."""


NOTHING = Field("–")


@dataclasses.dataclass(frozen=True)
class Line:
    """A row: what it is about, and its cells."""

    label: str
    note: str
    """Smaller, below the label; may be empty."""
    fields: tuple[Field, ...]
    published: bool = False


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows under a common heading; no heading if it is empty."""

    title: str
    lines: tuple[Line, ...]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table."""

    head: tuple[str, ...]
    """First the heading of the labels."""
    blocks: tuple[Block, ...]


def main_grid(data: RunData) -> Grid:
    """Ours, published, and differences with intervals, for the arms of the main figure."""
    arms = [arm for arm in data.arms if arm in main_arms(data.config)]
    rows, shown = [], []
    for arm in arms:
        rows.append(accuracy_row(data, arm))
        found = published_for(data.config, arm)
        if found is not None:
            shown.append(found)
            rows.append(published_row(found))
    rows += [published_row(row) for row in ROWS if row not in shown]
    found_rows = (difference_row(data, arm, reference) for arm in arms if (reference := reference_of(data.config, arm)))
    differences = [row for row in found_rows if row is not None]
    for published in ROWS:
        row = published_difference(published)
        if row is not None and differences:
            place = [n for n, mine in enumerate(differences) if _is(data, mine.label, published.label)]
            differences.insert(place[0] + 1 if place else len(differences), row)
    # The article's numbers at lengths that this run has not would stand alone in their columns.
    lines = tuple(_accuracy_line(data, row, digits=1) for row in rows if _common(data, row))
    blocks = [Block("accuracy, %", lines)]
    if differences:
        lines = tuple(_difference_line(data, row, digits=1) for row in differences if _common(data, row))
        blocks.append(Block(f"difference, points, with {_confidence(data)} interval", lines))
    return Grid(("", *map(str, data.lengths), "seeds"), tuple(blocks))


def accuracy_grid(data: RunData) -> Grid:
    """Accuracy of all arms, by kind."""
    rows = [row for row in accuracy_rows(data) if _common(data, row)]
    blocks = []
    for kind, title in KINDS.items():
        lines, own = [], False
        for row in rows:
            own = kind_of(data.config, row.label) == kind if not row.published else own
            # The article's rows that belong to no arm stand at the end of the list: with the trained arms.
            belongs = any(_is(data, arm, row.label) for arm in data.arms) if row.published else True
            if own if belongs else kind == "trained":
                lines.append(_accuracy_line(data, row))
        if any(not line.published for line in lines):
            blocks.append(Block(title, tuple(lines)))
    return Grid(("arm", *map(str, data.lengths), "seeds"), tuple(blocks))


def source_grid(data: RunData) -> Grid | None:
    """Accuracy and differences of the arms of the main figure, source by source; None if there is one source only."""
    if data.by_source is None:
        return None
    arms = [arm for arm in data.arms if arm in main_arms(data.config)]
    blocks = []
    for source in data.by_source.sources:
        accuracy, differences = (
            table[table["source"] == source] for table in (data.by_source.accuracy, data.by_source.differences)
        )
        first = accuracy.iloc[0]
        told = count(int(first["documents"]), "document"), count(int(first["total"]), "target")
        lines = [_accuracy_line(data, accuracy_row(data, arm, accuracy), digits=1) for arm in arms]
        blocks.append(Block(f"{source}, accuracy, %, on {joined(told)}", tuple(lines)))
        found = (
            difference_row(data, arm, reference, differences)
            for arm in arms
            if (reference := reference_of(data.config, arm))
        )
        lines = [_difference_line(data, row, digits=1) for row in found if row is not None]
        if lines:
            blocks.append(Block(f"{source}, difference, points, with {_confidence(data)} interval", tuple(lines)))
    return Grid(("", *map(str, data.lengths), "seeds"), tuple(blocks))


def difference_grid(data: RunData) -> Grid:
    """All differences with interval and tests, by kind."""
    rows = difference_rows(data)
    blocks = []
    for kind, title in KINDS.items():
        mine = [row for row in rows if kind_of(data.config, row.label) == kind]
        if mine:
            blocks.append(Block(title, tuple(_difference_line(data, row, tests=True) for row in mine)))
    return Grid(("arm", *map(str, data.lengths), "seeds"), tuple(blocks))


def growth_grid(data: RunData) -> Grid | None:
    """Accuracy on the way, by arm and share of the training; None without snapshots."""
    if data.snapshots is None:
        return None
    last = data.accuracy.assign(step=data.last_step)[list(data.snapshots.columns)]
    table = pd.concat([data.snapshots, last], ignore_index=True)
    blocks = []
    for arm in dict.fromkeys(data.snapshots["arm"]):
        lines = []
        for step, rows in table[table["arm"] == arm].groupby("step", sort=True):
            means = _means(rows, "length", "percent")
            fields = tuple(Field(unsigned(means[n])) for n in data.lengths)
            lines.append(Line(share(int(str(step)) / data.last_step), f"step {int(str(step)):,}", fields))
        blocks.append(Block(str(arm), tuple(lines)))
    return Grid(("part of the training", *map(str, data.lengths)), tuple(blocks))


def entropy_grid(data: RunData) -> Grid | None:
    """Mean entropy of every arm at every length, and what else was measured; None without any."""
    if data.entropy is None or data.entropy.empty:
        return None
    training, longest = data.config.training.length, data.lengths[-1]
    at_training = training if training in data.lengths else data.lengths[0]
    blocks = []
    for kind, title in KINDS.items():
        lines = []
        for arm in dict.fromkeys(data.entropy["arm"]):
            if kind_of(data.config, str(arm)) != kind:
                continue
            rows = data.entropy[data.entropy["arm"] == arm]
            means = _means(rows, "length", "entropy")
            fields = [Field(unsigned(means[n])) for n in data.lengths]
            fields += [
                Field(unsigned(_means(rows, "length", column)[n], digits))
                for column, n, digits in (
                    ("logit_std", at_training, 2),
                    ("saturated", at_training, 3),
                    ("distance", longest, 0),
                    ("beyond", longest, 2),
                )
            ]
            lines.append(Line(str(arm), "", tuple(fields)))
        if lines:
            blocks.append(Block(title, tuple(lines)))
    more = f"σ at {at_training}", f"saturated at {at_training}", f"distance at {longest}", f"beyond L at {longest}"
    return Grid(("entropy (nats) at", *map(str, data.lengths), *more), tuple(blocks))


def needs_grid(data: RunData) -> Grid | None:
    """Spread of the logits of every trained arm's heads, and how many need what; None if it was not measured."""
    needs = needs_of_heads(data, spread_lengths(data.config)[0]) if lengths_beyond(data.config) else {}
    lines = []
    for arm, found in needs.items():
        middle = found.sigmas[len(found.sigmas) // 2]
        numbers = [unsigned(sigma) for sigma in (found.sigmas[0], middle, found.sigmas[-1])]
        numbers += [str(number) for number in (len(found.sigmas), found.more, found.between, found.less)]
        lines.append(Line(arm, "", tuple(Field(number) for number in numbers)))
    head = ("arm", "lowest σ", "middle", "highest", "heads", "more than log n", "between", "less than √(log n)")
    return Grid(head, (Block("", tuple(lines)),)) if lines else None


def drop_grid(data: RunData) -> Grid:
    """Entropy below log n for very many random keys, by four methods."""
    table = data.theory[data.theory["quantity"] == "entropy_drop"]
    methods = list(dict.fromkeys(table["method"]))
    blocks = []
    for d, rows in table.groupby("d", sort=True):
        lines = []
        for factor in sorted(set(rows["parameter"]), key=float):
            of_factor = rows[rows["parameter"] == factor]
            values = dict(zip(of_factor["method"], of_factor["value"], strict=True))
            note = "1/sqrt(d)" if abs(float(factor) * math.sqrt(int(str(d))) - 1) < 1e-5 else ""
            fields = tuple(Field(unsigned(values[method], 3)) for method in methods)
            lines.append(Line(f"λ = {float(factor):.4g}", note, fields))
        blocks.append(Block(f"d = {d}", tuple(lines)))
    head = tuple({"quadratic": "λ² d / 2", "linear": "0.24 λ d"}.get(method, method) for method in methods)
    return Grid(("nats below log n", *head), tuple(blocks))


def random_keys_grid(data: RunData) -> Grid:
    """Entropy over n random keys under every scale."""
    return _by_length(data, "random_keys_entropy", "entropy (nats) at", str)


def multiplier_grid(data: RunData) -> Grid:
    """What logits of a spread must be multiplied by to keep their entropy, with the two laws."""
    needed = _by_length(data, "constant_entropy_multiplier", "multiplier at", lambda sigma: f"σ = {float(sigma):g}")
    table = data.theory[data.theory["quantity"] == "law_multiplier"]
    lengths = [int(n) for n in needed.head[1:]]
    laws = []
    for law in dict.fromkeys(table["method"]):
        rows = table[table["method"] == law]
        values = dict(zip(rows["n"], rows["value"], strict=True))
        laws.append(
            Line(str(law), "relative to the training length", tuple(Field(_number(values[n])) for n in lengths))
        )
    return Grid(needed.head, (*needed.blocks, Block("laws", tuple(laws))))


def _by_length(data: RunData, quantity: str, heading: str, label: object) -> Grid:
    assert callable(label)
    table = data.theory[data.theory["quantity"] == quantity]
    lengths = sorted({int(n) for n in table["n"]})
    lines = []
    for parameter in dict.fromkeys(table["parameter"]):
        rows = table[table["parameter"] == parameter]
        values = dict(zip(rows["n"], rows["value"], strict=True))
        lines.append(Line(label(parameter), "", tuple(Field(_number(values.get(n, math.nan))) for n in lengths)))
    return Grid((heading, *map(str, lengths)), (Block("", tuple(lines)),))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else unsigned(value)


def _is(data: RunData, arm: str, label: str) -> bool:
    found = published_for(data.config, arm) if arm in data.config.arms else None
    return found is not None and found.label == label


def origin(data: RunData, arm: str) -> str:
    """How an arm came to be, in a few words; empty for one trained from the start with nothing else to say."""
    settings, config = data.config.arms[arm], data.config
    told = []
    if settings.weights_of is not None:
        told.append(f"on the weights of {settings.weights_of}")
    if settings.branch is not None:
        told.append(f"branched from {settings.branch.of} at {share(settings.branch.at)}")
    if settings.training_lengths is not None:
        told.append(f"trained at {joined(settings.training_lengths)} tokens")
    if settings.positions is not None:
        values = "".join(f", {key} {value}" for key, value in settings.positions.parameters.items())
        told.append(f"positions: {settings.positions.name}{values}")
    limits = config.encoder_settings(arm)
    if limits.n_at_least is not None:
        told.append(f"n at least {limits.n_at_least}")
    if limits.n_at_most is not None:
        told.append(f"n at most {limits.n_at_most}")
    return ", ".join(told)


def _common(data: RunData, row: Row) -> bool:
    """Whether a row has a number at any length of the run."""
    return not row.cells.keys().isdisjoint(data.lengths)


def _accuracy_line(data: RunData, row: Row, *, digits: int = 2) -> Line:
    """Digits are those of the smaller numbers."""
    fields = [
        Field(
            unsigned(cell.mean),
            (f"{unsigned(cell.low, digits)}–{unsigned(cell.high, digits)}",) if cell.seeds > 1 else (),
        )
        if (cell := row.cells.get(n)) is not None
        else NOTHING
        for n in data.lengths
    ]
    if row.published:
        return Line(f"{row.label} (published)", "", (*fields, NOTHING), published=True)
    seeds = Field(str(len(data.config.seeds_of(row.label))))
    return Line(row.label, origin(data, row.label), (*fields, seeds))


def _difference_line(data: RunData, row: Row, *, digits: int = 2, tests: bool = False) -> Line:
    fields = []
    for n in data.lengths:
        cell = row.cells.get(n)
        if cell is None:
            fields.append(NOTHING)
            continue
        under = [interval(cell.low, cell.high, digits)]
        if tests and not math.isnan(cell.p):
            under.append(f"p {p_value(cell.p)}")
            # Lengths that are outside the family of tests have a p of their own, but no corrected one.
            under += [] if math.isnan(cell.p_holm) else [f"Holm {p_value(cell.p_holm)}"]
        fields.append(Field(signed(cell.mean), tuple(text for text in under if text)))
    if row.published:
        return Line(f"{row.label} (published)", f"minus {row.reference}", (*fields, NOTHING), published=True)
    donor = data.config.arms[row.label].weights_of
    same = data.config.weights_of(row.label) == data.config.weights_of(str(row.reference))
    note = f"minus {row.reference}"
    if same:
        note += ", same weights"
    elif donor is not None:
        note += f", on the weights of {donor}"
    seeds = max(cell.seeds for cell in row.cells.values())
    return Line(row.label, note, (*fields, Field(str(seeds))))


def _confidence(data: RunData) -> str:
    return share(data.config.statistics.confidence)


def _means(rows: pd.DataFrame, by: str, column: str) -> Mapping[int, float]:
    """Means by a column; the order of the rows is no matter."""
    return {int(str(key)): _mean(values) for key, values in rows.groupby(by)[column]}


def _mean(values: Iterable[float]) -> float:
    first, second = itertools.tee(float(value) for value in values)
    return math.fsum(first) / sum(1 for _ in second)
