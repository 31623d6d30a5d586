"""The main figure: accuracy against length beside the article's, and differences with their intervals."""

import math

from matplotlib.axes import Axes

from attnscale.published import BASELINE, TRAINING_LENGTH, Published, published_for
from attnscale.report.arms import lengths_beyond, main_arms, reference_of
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import (
    Look,
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
from attnscale.report.figures.style import LABEL_POINTS, MUTED, PAPER, PUBLISHED_DASHES
from attnscale.report.tables import Row, accuracy_row, difference_row, published_difference
from attnscale.report.words import joined, share, signed, span, tokens


def draw(data: RunData, *, beside_published: bool = True) -> Drawing:
    """Draw `accuracy_by_length`; without the article's lines where its model has nothing to do with this one."""
    looks = looks_of(data.config, data.arms)
    arms = [arm for arm in data.arms if arm in main_arms(data.config)]
    rows = {arm: accuracy_row(data, arm) for arm in arms}
    gaps = {arm: row for arm in arms if (row := _gap(data, arm)) is not None}
    published = _published(data, arms) if beside_published else {}
    labels = {arm: wrapped(arm) for arm in arms}
    height = max(2.5, label_inches(labels.values()) + 0.3)
    heights = [height, max(1.6, label_inches([labels[arm] for arm in gaps]) + 0.2)] if gaps else [height]
    figure = labelled_figure(heights, labels.values(), top=0.35)
    axes = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for arm, row in rows.items():
        _accuracy(axes[0], row, looks[arm])
    for arm, found in published.items():
        _article(axes[0], {n: found.percent[n] for n in data.lengths if n in found.percent}, looks[arm])
    axes[0].set_title("accuracy (%)", pad=14)
    axes[0].set_ylim(bottom=0)
    ends = {arm: (data.lengths[-1], row.cells[data.lengths[-1]].mean) for arm, row in rows.items()}
    gap_ends = _gaps(axes[1], gaps, published, looks) if gaps else {}
    for place, axis in enumerate(axes):
        axis.yaxis.set_major_locator(few_ticks())
        axis.tick_params(labelbottom=True)
        length_axis(axis, data.lengths)
        mark_training_length(axis, data.config.training.length, label=place == 0)
    axes[-1].set_xlabel("context length (tokens, log scale)")
    direct_labels(axes[0], ends, labels, looks)
    if gaps:
        direct_labels(axes[1], gap_ends, labels, looks)
        axes[1].set_title(_gap_title(gaps))
    if published:
        axes[0].annotate(
            "dotted: published",
            (0.99, 0.03),
            xycoords="axes fraction",
            ha="right",
            color=MUTED,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
            fontsize=LABEL_POINTS,
        )
    missed = (
        beside_published
        and not published
        and any((match := published_for(data.config, arm)) and _far_below(data, arm, match) for arm in rows)
    )
    caption = _caption(data, rows, gaps, published, missed=missed)
    return finish(figure, "accuracy_by_length", caption, _alt(data, rows, gaps))


def _gap(data: RunData, arm: str) -> Row | None:
    reference = reference_of(data.config, arm)
    return None if reference is None else difference_row(data, arm, reference)


def _published(data: RunData, arms: list[str]) -> dict[str, Published]:
    """The article's rows for arms of the figure, where lengths and levels are near enough to compare a shape."""
    found = {arm: row for arm in arms if (row := published_for(data.config, arm))}
    if any(_far_below(data, arm, row) for arm, row in found.items()):
        return {}
    return {arm: row for arm, row in found.items() if len(set(row.percent) & set(data.lengths)) > 1}


def _far_below(data: RunData, arm: str, row: Published) -> bool:
    """Whether an arm has less than half of the article's accuracy, so that its own line would lie flat below it."""
    cell = accuracy_row(data, arm).cells.get(TRAINING_LENGTH)
    return cell is not None and cell.mean < row.percent[TRAINING_LENGTH] / 2


def _accuracy(axis: Axes, row: Row, look: Look) -> None:
    line(axis, {n: cell.mean for n, cell in row.cells.items()}, look)
    if any(cell.seeds > 1 for cell in row.cells.values()):
        low, high = ([getattr(cell, end) for cell in row.cells.values()] for end in ("low", "high"))
        axis.fill_between(list(row.cells), low, high, color=look.colour, alpha=0.15, linewidth=0)


def _article(axis: Axes, values: dict[int, float], look: Look) -> None:
    line(axis, values, look, linestyle=PUBLISHED_DASHES, linewidth=1.4, markersize=4.0, markerfacecolor=PAPER,
         markeredgecolor=look.colour, markeredgewidth=1.0)  # fmt: skip


def _gaps(
    axis: Axes, gaps: dict[str, Row], published: dict[str, Published], looks: dict[str, Look]
) -> dict[str, tuple[float, float]]:
    """Draw the differences; where their lines end, by arm."""
    ends = {}
    for place, (arm, row) in enumerate(gaps.items()):
        # A little apart, so that bars do not lie over one another.
        shift = 2 ** (0.09 * (place - (len(gaps) - 1) / 2))
        line(axis, {n * shift: cell.mean for n, cell in row.cells.items()}, looks[arm])
        for n, cell in row.cells.items():
            if not math.isnan(cell.low):
                axis.plot([n * shift] * 2, [cell.low, cell.high], color=looks[arm].colour, linewidth=1.3)
        article = published_difference(published[arm]) if arm in published else None
        if article is not None and row.reference in published and published[row.reference] is BASELINE:
            _article(axis, {n: cell.mean for n, cell in article.cells.items() if n in row.cells}, looks[arm])
        longest = max(row.cells)
        ends[arm] = (longest * shift, row.cells[longest].mean)
    zero_line(axis)
    return ends


def _gap_title(gaps: dict[str, Row]) -> str:
    references = list(dict.fromkeys(str(row.reference) for row in gaps.values()))
    return f"points above {references[0]}" if len(references) == 1 else "points above the arm it is compared with"


def _caption(
    data: RunData, rows: dict[str, Row], gaps: dict[str, Row], published: dict[str, Published], *, missed: bool
) -> str:
    told = [f"Accuracy on the same {data.evaluation.targets:,} masked tokens, read with more and more context."]
    if any(cell.seeds > 1 for row in rows.values() for cell in row.cells.values()):
        told.append("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    if gaps:
        level = share(data.config.statistics.confidence)
        told.append(f"Below, differences with their {level} intervals as upright bars.")
    if published:
        told.append(
            "Dotted, the article's numbers in the colour of the same formula: another corpus and model, so that only "
            "the shape can be compared."
        )
    elif missed:
        told.append("The article's lines are left out, as they lie more than twice as high.")
    hidden = len(data.arms) - len(rows)
    if hidden:
        told.append(f"The other {hidden} arms have figures of their own.")
    return " ".join(told)


def _alt(data: RunData, rows: dict[str, Row], gaps: dict[str, Row]) -> str:
    longest = data.lengths[-1]
    values = ", ".join(f"{arm} {row.cells[longest].mean:.1f} %" for arm, row in rows.items())
    alt = f"Line chart of accuracy against context length {span(data.lengths)}. At {tokens(longest)}: {values}."
    beyond = lengths_beyond(data.config)
    if gaps and beyond:
        told = [
            f"{arm} over {row.reference} {', '.join(f'{signed(row.cells[n].mean, 1)} at {n}' for n in beyond)}"
            for arm, row in gaps.items()
        ]
        alt += f" Differences in points: {joined(told)}."
    return alt
