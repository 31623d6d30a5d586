"""The answer in plain words, made from the numbers so that it cannot disagree with the tables."""

from collections.abc import Sequence

from attnscale.report.data import RunData
from attnscale.report.published import BASELINE, TRAINING_LENGTH
from attnscale.report.tables import Cell, Row

ENOUGH_SEEDS = 3
"""With fewer, the report says that its table is indicative."""

MOST_COMPARISONS = 6
"""Differences told in words; the table has them all."""


def points(value: float) -> str:
    """A difference in words: `+1.2 points`, with a true minus sign; never a negative zero."""
    text = f"{value:+.1f}"
    return ("0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")) + " points"


def count(number: int, thing: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def seeds_note(data: RunData) -> str | None:
    """The warning that belongs beside the table of a run with few seeds; None if there are enough."""
    seeds = len(data.config.seeds)
    if seeds >= ENOUGH_SEEDS:
        return None
    return (
        f"This table is indicative: it rests on {'one seed' if seeds == 1 else f'{seeds} seeds'}, and differences "
        "between separately trained arms change from seed to seed. "
        f"At least {ENOUGH_SEEDS} seeds are needed before such a difference can be taken as real."
    )


def answer(data: RunData, accuracies: Sequence[Row], differences: Sequence[Row], chance: dict[int, float]) -> list[str]:
    """Sentences for the top of the report, the main one first."""
    sentences = [_leader(data, [row for row in accuracies if not row.published], chance)]
    peaks = {id(row): _peak(data, row) for row in differences if not row.published}
    told = [row for row in differences if id(row) in peaks]
    apart = [row for row in told if abs(row.cells[peaks[id(row)]].mean) > chance[peaks[id(row)]]]
    shown = sorted(apart, key=lambda row: -abs(row.cells[peaks[id(row)]].mean))[:MOST_COMPARISONS]
    sentences += [_compared(data, row, peaks[id(row)]) for row in apart if row in shown]
    if len(apart) > len(shown):
        sentences.append(f"The table below has {count(len(apart) - len(shown), 'smaller difference')} more.")
    sentences += _not_apart(data, [row for row in told if row not in apart])
    published = _against_article(data, differences)
    return [*sentences, published] if published else sentences


def _leader(data: RunData, rows: Sequence[Row], chance: dict[int, float]) -> str:
    longest = data.lengths[-1]
    if len(rows) == 1:
        cell = rows[0].cells[longest]
        return f"At {longest} tokens {rows[0].label} predicts {cell.mean:.1f} % of the masked tokens."
    ordered = sorted(rows, key=lambda row: -row.cells[longest].mean)
    best, second = ordered[0], ordered[1]
    gap = best.cells[longest].mean - second.cells[longest].mean
    times = f" ({longest // data.config.training.length} times the training length)"
    where = f"At {longest} tokens{times if longest > data.config.training.length else ''}"
    lead = f"{where} the highest accuracy is that of {best.label}, {best.cells[longest].mean:.1f} %"
    if gap <= chance[longest]:
        near = [
            row.label for row in ordered[1:] if best.cells[longest].mean - row.cells[longest].mean <= chance[longest]
        ]
        lead += f", though {joined(near)} {'is' if len(near) == 1 else 'are'} too close to it to be told apart"
    else:
        lead += f", {points(gap).lstrip('+')} above the next one, {second.label}"
    if data.baseline is not None and data.baseline != best.label:
        base = next(row for row in rows if row.label == data.baseline)
        lead += f"; {data.baseline}, the usual scale, has {base.cells[longest].mean:.1f} %"
    return lead + "."


def _peak(data: RunData, row: Row) -> int:
    """The length beyond the training length at which an arm differs most from its reference."""
    beyond = [n for n in data.lengths if n > data.config.training.length] or list(data.lengths)
    return max(beyond, key=lambda n: (abs(row.cells[n].mean), -n))


def _compared(data: RunData, row: Row, peak: int) -> str:
    """One arm against its reference: at the largest difference, the training length and the longest length."""
    training, cell = data.config.training.length, row.cells[peak]
    side = "above" if cell.mean > 0 else "below"
    sentence = f"At {peak} tokens {row.label} is {points(abs(cell.mean)).lstrip('+')} {side} {row.reference}"
    sentence += f" ({_agreement(cell)})"
    others = {training: f"{training}, the training length,", data.lengths[-1]: f"{data.lengths[-1]}"}
    parts = [
        f"at {text} it is {points(row.cells[n].mean)}" for n, text in others.items() if n in row.cells and n != peak
    ]
    sentence = "; ".join([sentence, *parts]) + "."
    if row.weights_of == row.reference:
        return f"{sentence} Both run on the same weights, so this difference is free of training noise."
    if row.weights_of is not None:
        return f"{sentence} It runs on the weights of {row.weights_of} and shares their training noise."
    return sentence


def _not_apart(data: RunData, rows: Sequence[Row]) -> list[str]:
    """One sentence per reference for all arms whose differences are below the rule of thumb for chance."""
    where = f"at any length beyond {data.config.training.length}"
    if len(data.lengths) == 1:
        where = f"at {data.lengths[0]} tokens"
    elif data.lengths[-1] <= data.config.training.length:
        where = "at any length"
    return [
        f"{joined([row.label for row in rows if row.reference == reference])} cannot be told apart from {reference} "
        f"{where} by the rule of thumb for chance in the table of differences."
        for reference in dict.fromkeys(row.reference for row in rows)
    ]


def _agreement(cell: Cell) -> str:
    if cell.seeds == 1:
        return "one seed"
    same = cell.positive if cell.mean > 0 else cell.negative
    if same < cell.seeds:
        return f"in {same} of {cell.seeds} seeds"
    return "in both seeds" if cell.seeds == 2 else f"in all {cell.seeds} seeds"


def _against_article(data: RunData, differences: Sequence[Row]) -> str | None:
    """The article's largest difference beside ours at the same length."""
    for index, row in enumerate(differences):
        if not row.published:
            continue
        ours = next(r for r in reversed(differences[:index]) if r.reference == data.baseline)
        shared = [n for n in row.cells if n in ours.cells and n > TRAINING_LENGTH]
        if not shared:
            continue
        peak = max(shared, key=lambda n: row.cells[n].mean)
        cell = ours.cells[peak]
        sentence = (
            f"The article reports {points(row.cells[peak].mean)} for {row.label} over {BASELINE.label} at {peak} "
            f"tokens; here it is {points(cell.mean)} ({_agreement(cell)})"
        )
        if data.config.training.length != TRAINING_LENGTH:
            sentence += f", after training at {data.config.training.length} tokens instead of {TRAINING_LENGTH}"
        return sentence + "."
    return None
