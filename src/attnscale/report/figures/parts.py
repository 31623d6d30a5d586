"""What figures have in common: looks of the arms, axes, labels beside lines."""

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from attnscale.analysis.comparisons import acl_arm, article_arm, baseline_arm, switch_arm
from attnscale.config import Config
from attnscale.report.arms import KINDS, kind_of, main_arms
from attnscale.report.figures.style import COLOURS, DASHES, LABEL_POINTS, MARKERS, MUTED, PAPER, WIDTH

GAP, BOTTOM, LEFT = 0.55, 0.5, 0.62  # inches between rows of axes, below them, and left of them


@dataclasses.dataclass(frozen=True)
class Look:
    """How an arm is drawn, the same in every figure."""

    colour: str
    marker: str
    dashes: Any


def looks_of(config: Config, arms: Iterable[str]) -> dict[str, Look]:
    """A fixed look per role; the others by their place in the main figures or their kind, in colours of no role.

    Args:
        config: the run.
        arms: all arms, in the order of the tables.
    """
    arms = tuple(arms)
    roles = baseline_arm(config), article_arm(config), acl_arm(config), switch_arm(config)
    looks = {
        arm: Look(COLOURS[place][0], MARKERS[place], DASHES[0]) for place, arm in enumerate(roles) if arm is not None
    }
    free = COLOURS[len(roles) :]
    # Arms that stand in one figure are told apart: first those of the main figures, then those of each kind.
    main = main_arms(config)
    places: dict[str, int] = {}
    for together in (main, *([arm for arm in arms if kind_of(config, arm) == kind] for kind in KINDS)):
        taken = {places[arm] for arm in together if arm in places}
        fresh = (place for place in itertools.count() if place not in taken)
        for arm in together:
            if arm not in looks and arm not in places:
                places[arm] = next(fresh)
    for arm, place in places.items():
        looks[arm] = Look(
            free[place % len(free)][0],
            MARKERS[(len(roles) + place) % len(MARKERS)],
            DASHES[(place // len(free)) % len(DASHES)],
        )
    return {arm: looks[arm] for arm in arms}


def means(frame: pd.DataFrame, by: str, column: str) -> dict[Any, float]:
    """Mean by the values of a column, rising; the order of the rows is no matter."""
    return {
        key: math.fsum(float(value) for value in values) / len(values)
        for key, values in frame.groupby(by, sort=True)[column]
    }


def line(axis: Axes, points: Mapping[Any, float], look: Look, *, markers: bool = True, **changes: Any) -> None:
    """Draw a line through points, in an arm's look."""
    settings: dict[str, Any] = {
        "color": look.colour,
        "linestyle": look.dashes,
        "linewidth": 1.7,
        "marker": look.marker if markers else "",
        "markersize": 5.0,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.5,
        "solid_capstyle": "round",
    }
    axis.plot(list(points), list(points.values()), **{**settings, **changes})


def length_axis(axis: Axes, lengths: Sequence[int], *, every: int = 1) -> None:
    """A logarithmic axis of context lengths with a tick at each, or at every so many."""
    shown = list(lengths)[::-1][::every][::-1]
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(shown))
    axis.xaxis.set_major_formatter(FixedFormatter([str(n) for n in shown]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    if len(shown) > 8:
        axis.tick_params(axis="x", labelrotation=60)


def few_ticks(most: int = 5) -> MaxNLocator:
    """Few and round ticks."""
    return MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])


def mark_training_length(axis: Axes, length: int, *, label: bool = True) -> None:
    """An upright line at the training length."""
    axis.axvline(length, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0.9)
    if label:
        axis.annotate(
            "training length",
            (length, 1.0),
            xycoords=axis.get_xaxis_transform(),
            xytext=(-2, 3),
            textcoords="offset points",
            color=MUTED,
            fontsize=LABEL_POINTS - 0.5,
        )


def zero_line(axis: Axes) -> None:
    """A level line at zero."""
    axis.axhline(0, color=MUTED, linewidth=0.9, zorder=0.9)


def wrapped(name: str, width: int = 15) -> str:
    """A name over several lines, broken after underscores and hyphens, or anywhere if there are none."""
    lines = [""]
    for part in re.findall(r"[^_-]{1,%d}[_-]*|[_-]+" % width, name):  # noqa: UP031
        if lines[-1] and len(lines[-1]) + len(part) > width + 1:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def line_inches(label: str) -> float:
    """Height of a label with a little air, in inches."""
    return (1.15 * (label.count("\n") + 1) + 0.35) * LABEL_POINTS / 72


def label_inches(labels: Collection[str]) -> float:
    """Height of labels above each other, in inches."""
    return sum(line_inches(label) for label in labels)


def labelled_figure(row_inches: Sequence[float], labels: Collection[str], top: float) -> Figure:
    """A figure of rows with room on the right for labels; its canvas is Agg, whatever the user has set."""
    longest = max(len(part) for label in labels for part in label.split("\n"))
    right = 0.35 + 0.6 * longest * LABEL_POINTS / 72
    return figure_of_rows(row_inches, left=LEFT, right=right, top=top, bottom=BOTTOM, gap=GAP)


def figure_of_rows(
    row_inches: Sequence[float], *, left: float, right: float, top: float, bottom: float, gap: float
) -> Figure:
    """An empty figure with room for rows of these heights and margins, in inches; its canvas is Agg."""
    height = sum(row_inches) + gap * (len(row_inches) - 1) + top + bottom
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - right / WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
        hspace=gap * len(row_inches) / sum(row_inches),
    )
    return figure


def small_multiples(count: int, columns: int, inches: float, *, left: float = 0.5) -> tuple[Figure, list[Axes]]:
    """A figure of equal small panels that share their axes, and the panels row by row; empty ones are hidden."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    gap, top, bottom = 0.36, 0.28, 0.5
    height = rows * inches + (rows - 1) * gap + top + bottom
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - 0.1 / WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
        hspace=gap / inches,
        wspace=0.06 * columns,
    )
    panels = [axis for row in axes for axis in row]
    for axis in panels[count:]:
        axis.set_visible(False)
    for place in range(count - columns, count):
        # The lowest panel of a column shows its numbers, also where the row below is not full.
        panels[place].tick_params(labelbottom=True)
    return figure, panels[:count]


def direct_labels(
    axis: Axes, ends: Mapping[str, tuple[float, float]], labels: Mapping[str, str], looks: Mapping[str, Look]
) -> None:
    """Write each label to the right of the axes, joined to the end of its line, none over another."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    axis.get_ylim()  # settles the limits that the next transformation works with
    to_axes = axis.transScale + axis.transLimits
    inches = axis.get_position().height * figure.get_size_inches()[1]
    order = sorted(ends, key=lambda arm: -ends[arm][1])
    heights = [line_inches(labels[arm]) / inches for arm in order]
    wanted = [float(to_axes.transform(ends[arm])[1]) for arm in order]
    for arm, y in zip(order, spread(wanted, heights), strict=True):
        colour = looks[arm].colour
        axis.annotate(
            labels[arm],
            ends[arm],
            xytext=(1.05, y),
            textcoords="axes fraction",
            va="center",
            ha="left",
            color=colour,
            fontsize=LABEL_POINTS,
            linespacing=1.0,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )


def spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Centres for labels, from the top down, close to where they are wanted, inside 0..1, without overlap.

    Labels that would overlap form a block, which sits at the mean of what its members want.
    """
    blocks: list[tuple[list[int], float]] = []  # members and centre
    for index, centre in enumerate(wanted):
        members, place = [index], centre
        while True:
            size = sum(heights[i] for i in members)
            place = min(max(place, size / 2), 1 - size / 2) if size < 1 else 0.5
            if not blocks:
                break
            above, above_place = blocks[-1]
            if above_place - sum(heights[i] for i in above) / 2 >= place + size / 2 - 1e-9:
                break
            blocks.pop()
            members = above + members
            place = sum(wanted[i] for i in members) / len(members)
        blocks.append((members, place))
    centres = [0.0] * len(wanted)
    for members, place in blocks:
        edge = place + sum(heights[i] for i in members) / 2
        for i in members:
            centres[i] = edge - heights[i] / 2
            edge -= heights[i]
    return centres
