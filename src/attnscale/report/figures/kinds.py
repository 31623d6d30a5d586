"""Differences of all arms to what they are compared with, one panel per kind of arm."""

from attnscale.report.arms import KINDS, kinds_to_draw, reference_of
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import (
    direct_labels,
    few_ticks,
    label_inches,
    labelled_figure,
    length_axis,
    line,
    looks_of,
    mark_training_length,
    wrapped,
    zero_line,
)
from attnscale.report.tables import Row, difference_row
from attnscale.report.words import joined, signed, tokens


def draw(data: RunData) -> Drawing:
    """Draw `differences_by_kind`."""
    looks, kinds = looks_of(data.config, data.arms), kinds_to_draw(data.config)
    panels = {kind: _rows(data, [arm for arm in data.arms if arm in arms]) for kind, arms in kinds.items()}
    labels = {arm: wrapped(arm, 18) for rows in panels.values() for arm in rows}
    heights = [max(1.3, label_inches([labels[arm] for arm in rows]) + 0.15) for rows in panels.values()]
    figure = labelled_figure(heights, labels.values(), top=0.4)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    longest = data.lengths[-1]
    for axis, (kind, rows) in zip(axes, panels.items(), strict=True):
        for arm, row in rows.items():
            line(axis, {n: cell.mean for n, cell in row.cells.items()}, looks[arm], linewidth=1.4)
        zero_line(axis)
        axis.set_title(KINDS[kind], pad=14 if axis is axes[0] else None)
        axis.yaxis.set_major_locator(few_ticks())
        length_axis(axis, data.lengths)
        mark_training_length(axis, data.config.training.length, label=axis is axes[0])
        direct_labels(axis, {arm: (longest, row.cells[longest].mean) for arm, row in rows.items()}, labels, looks)
    axes[-1].set_xlabel("context length (tokens, log scale)")
    caption = (
        "Points of accuracy above (+) or below (−) what an arm is compared with: the arm whose weights it takes, "
        f"the arm it branches from, else {data.baseline or 'its reference'}. Means over the seeds that both have; "
        "the intervals are in the table of differences."
    )
    told = [
        f"{KINDS[kind]}: "
        + joined([f"{arm} over {row.reference} {signed(row.cells[longest].mean, 1)}" for arm, row in rows.items()])
        for kind, rows in panels.items()
    ]
    alt = f"Line charts of differences against context length. Points at {tokens(longest)}: {'; '.join(told)}."
    return finish(figure, "differences_by_kind", caption, alt)


def _rows(data: RunData, arms: list[str]) -> dict[str, Row]:
    found = {arm: difference_row(data, arm, str(reference_of(data.config, arm))) for arm in arms}
    return {arm: row for arm, row in found.items() if row is not None}
