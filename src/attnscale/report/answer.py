"""The answer in plain words, made from the numbers so that it cannot disagree with the tables."""

import itertools
from collections.abc import Sequence

from attnscale.analysis.intervals import smallest_p
from attnscale.published import BASELINE, TRAINING_LENGTH, published_for
from attnscale.records import RunRecord
from attnscale.report.arms import lengths_beyond, main_arms, reference_of
from attnscale.report.data import RunData
from attnscale.report.tables import Cell, Row, accuracy_row, difference_row
from attnscale.report.words import count, interval, joined, p_value, points, share, signed, tokens


def answer(data: RunData) -> list[str]:
    """Sentences for the top of the report, the main one first."""
    primary, others = _primary(data), _compared_with_references(data)
    if others and not primary:
        # Else the largest of many differences would stand at the top as if it had been looked for.
        primary = [
            "No comparison was named before this run that it could answer; the following were picked afterwards."
        ]
    return [*(primary + others or [_accuracies(data)]), *_verdicts(data)]


def _primary(data: RunData) -> list[str]:
    """The comparison that was named before the run."""
    settings = data.config.statistics
    row = difference_row(data, settings.primary_arm, settings.primary_baseline)
    cell = row.cells.get(settings.primary_length) if row is not None else None
    if row is None or cell is None:
        return []
    where = f"At {tokens(settings.primary_length)}{_times(data, settings.primary_length)}"
    p = f"p\u00a0=\u00a0{p_value(cell.p)}" if cell.seeds > 1 else ""
    versus = _versus(cell, row.reference, p)
    return [f"{where}, in the one comparison named before the run, {row.label} {versus}.", *_article(data, row)]


def _article(data: RunData, row: Row) -> list[str]:
    """The article's largest difference, beside ours at the same length if that is not told already."""
    article = published_for(data.config, row.label)
    ours = published_for(data.config, str(row.reference))
    if article is None or article is BASELINE or ours is not BASELINE:
        return []
    gaps = {n: value - BASELINE.percent[n] for n, value in article.percent.items() if n in row.cells}
    gaps = {n: gap for n, gap in gaps.items() if n > TRAINING_LENGTH}
    if not gaps:
        return []
    peak = max(gaps, key=lambda n: gaps[n])
    sentence = f"The article reports {points(gaps[peak])} for {article.label} over {BASELINE.label} at {tokens(peak)}"
    if peak != data.config.statistics.primary_length:
        sentence += f"; here {row.label} has {points(row.cells[peak].mean)} {_told_interval(row.cells[peak])}"
    if data.config.training.length != TRAINING_LENGTH:
        sentence += f", after training at {data.config.training.length} tokens instead of {TRAINING_LENGTH}"
    return [f"{sentence}."]


def _compared_with_references(data: RunData) -> list[str]:
    """Each arm of the main figure against its reference, where they differ most; then those that do not differ."""
    beyond = lengths_beyond(data.config) or data.lengths
    sentences, unclear = [], []
    for arm in (arm for arm in data.arms if arm in main_arms(data.config)):
        reference = reference_of(data.config, arm)
        row = difference_row(data, arm, reference) if reference is not None else None
        if row is None:
            continue
        clear = [n for n in beyond if row.cells[n].apart]
        if not clear:
            unclear.append(row)
            continue
        peak = max(clear, key=lambda n: (abs(row.cells[n].mean), -n))
        settings = data.config.statistics
        told_already = (arm, reference) == (settings.primary_arm, settings.primary_baseline)
        if told_already and peak == settings.primary_length:
            continue
        sentences.append(_at_peak(data, row, peak, beyond))
    where = f"at any length beyond {data.config.training.length}" if lengths_beyond(data.config) else "at any length"
    for reference, rows in itertools.groupby(unclear, key=lambda row: row.reference):
        names = joined([row.label for row in rows])
        sentences.append(f"{names} cannot be told apart from {reference} {where}: the intervals hold zero.")
    return sentences


def _at_peak(data: RunData, row: Row, peak: int, beyond: tuple[int, ...]) -> str:
    cell = row.cells[peak]
    same = data.config.weights_of(row.label) == data.config.weights_of(str(row.reference))
    sentence = f"{row.label} {_versus(cell, row.reference)} at {tokens(peak)}{_times(data, peak)}"
    if len(beyond) > 1:
        sentence += ", where the two differ most"
        longest = row.cells[beyond[-1]]
        if peak != beyond[-1]:
            sentence += f"; at {beyond[-1]} it is {points(longest.mean)} {_told_interval(longest)}"
    if same:
        sentence += ". Both run on the same weights, so this difference is free of training noise"
    return f"{sentence}."


def _versus(cell: Cell, reference: str | None, *more: str) -> str:
    size = signed(abs(cell.mean), 1).lstrip("+")
    if float(size) == 0:
        return f"is as accurate as {reference}, to a tenth of a point {_told_interval(cell, *more)}"
    return f"is {size} points {'above' if cell.mean > 0 else 'below'} {reference} {_told_interval(cell, *more)}"


def _told_interval(cell: Cell, *more: str) -> str:
    """`([+0.8, +1.6], 6 seeds)`, and whatever else is to stand in the brackets."""
    parts = [interval(cell.low, cell.high, 1), "one seed" if cell.seeds == 1 else count(cell.seeds, "seed"), *more]
    return f"({', '.join(part for part in parts if part)})"


def _times(data: RunData, length: int) -> str:
    training = data.config.training.length
    return f" ({length // training} times the training length)" if length > training else ""


def _accuracies(data: RunData) -> str:
    longest = data.lengths[-1]
    rows = [accuracy_row(data, arm) for arm in data.arms if arm in main_arms(data.config)]
    told = [f"{row.label} {'predicts ' if n == 0 else ''}{row.cells[longest].mean:.1f} %" for n, row in enumerate(rows)]
    return f"At {tokens(longest)} {joined(told)} of the masked tokens."


def _verdicts(data: RunData) -> list[str]:
    verdicts = [claim.verdict for claim in data.claims]
    told = {verdict: "partly reproduced" if verdict == "partly" else verdict for verdict in verdicts}
    if len(told) == 1:
        return [f"All {count(len(verdicts), 'claim')} are {told[verdicts[0]]}."]
    numbers = {verdict: verdicts.count(verdict) for verdict in told}
    parts = [f"{number} {'is' if number == 1 else 'are'} {told[verdict]}" for verdict, number in numbers.items()]
    return [f"Of {count(len(verdicts), 'claim')} {joined(parts)}."]


def seeds_notes(data: RunData) -> list[str]:
    """What rests on how many seeds, where that limits what can be said; nothing if there are enough everywhere."""
    numbers, needed = data.seeds_by_number(), data.config.claims.min_seeds
    most = next(iter(numbers))
    notes = []
    if len(numbers) == 1 and most < needed:
        what = "one seed" if most == 1 else count(most, "seed")
        what_rests = "Everything here" if data.same_seeds else "Every arm"
        if data.formal:  # these have seeds of their own
            what_rests = "The language model" if data.same_seeds else "Every arm of the language model"
        subject = f"{what_rests} rests on"
        notes.append(
            f"{subject} {what}: it is indicative. Differences between separately trained arms change "
            f"from seed to seed, and claims are decided with {needed} seeds or more."
        )
    if len(numbers) == 1 and not data.same_seeds:
        notes.append("The arms do not all have the same seeds; a difference uses the seeds that both arms have.")
    elif len(numbers) > 1:
        told = [
            f"{count(number, 'seed')}: {joined(arms)}"
            if len(arms) <= 4
            else f"{count(number, 'seed')}: {len(arms)} arms"
            for number, arms in numbers.items()
        ]
        notes.append(
            f"Not everything rests on the same number of seeds ({'; '.join(told)}); the tables name it in every row, "
            "and a difference uses the seeds that both arms have."
        )
        if most < needed:
            notes.append(f"Claims are decided with {needed} seeds or more.")
    if 1 in numbers:
        notes.append("With one seed, an interval covers the choice of text only, not that of the training.")
    return notes


def pairing_note(data: RunData) -> str:
    """What arms with a seed in common share; empty for a single arm."""
    if len(data.arms) < 2:
        return ""
    shared = "the same order of the data, the same masks, and the same initial weights where shapes agree"
    if data.same_seeds:
        return f"All arms share seeds: {shared}. Differences are therefore paired."
    if data.differences.empty:
        return f"Arms with a seed in common share {shared}; here no two arms that would be compared have one."
    return f"Arms with a seed in common share {shared}. Differences use those seeds only, and are therefore paired."


def tests_note(data: RunData) -> str:
    """What p can be at all with the seeds of this run."""
    numbers = sorted({int(number) for number in data.differences["seeds"] if number > 1})
    told = [f"{smallest_p(number):.3g} with {count(number, 'seed')}" for number in numbers]
    first = (
        f"Intervals ({share(data.config.statistics.confidence)}) come from a bootstrap over seeds and evaluation "
        f"blocks together, {data.config.statistics.resamples:,} resamples; p from the sign-flip test over seeds"
    )
    smallest = f", whose smallest possible value is {joined(told)}" if told else ", which one seed cannot give"
    return (
        f"{first}{smallest}. Holm's correction is over all comparisons beyond the training length except the one "
        "named in advance, so a large corrected value is no sign that two arms are equal."
    )


def machines(data: RunData) -> list[str]:
    """How trainings were computed and which, where there are several ways; none if all were computed alike.

    A run may grow by seeds on another machine; differences are paired within a seed.
    """
    found: dict[str, list[RunRecord]] = {}
    for run in data.runs:
        kind = run.cpu_capability if run.device == "cpu" and run.cpu_capability else run.device
        words = f"{run.precision}{', compiled' if run.compile else ''}, on {kind}"
        found.setdefault(words, []).append(run)
    if len(found) == 1:
        return []
    return [
        f"{words}: {count(len(runs), 'training')} ({_seeds_of(sorted({run.seed for run in runs}))})"
        for words, runs in found.items()
    ]


def _seeds_of(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {joined(seeds)}"


def groups_of_seeds(data: RunData) -> list[tuple[int, list[str]]]:
    """Trained arms by the number of their seeds."""
    found = [
        (number, [arm for arm in arms if arm in data.trained_arms]) for number, arms in data.seeds_by_number().items()
    ]
    return [(number, arms) for number, arms in found if arms]
