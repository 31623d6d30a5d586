"""The cross table: treatments of positions, each with the usual scale and with log n."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnscale.report.arms import crossed_positions
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.style import PAPER, WIDTH
from attnscale.report.tables import accuracy_row, difference_row
from attnscale.report.words import joined, signed

DARK, LIGHT = "#111111", "#ffffff"  # letters on a cell, which has the same colour on light and on dark pages


def draw(data: RunData) -> Drawing:
    """Draw `repairs`: accuracy of every combination, and below it what log n adds after each treatment."""
    crossed, lengths = crossed_positions(data.config), data.lengths
    names, accuracies, gains = [], [], []
    for positions, pair in crossed.items():
        for scale, arm in zip(("1/√d", "log n"), pair, strict=True):
            row = accuracy_row(data, arm)
            names.append(f"{positions}, {scale}")
            accuracies.append([row.cells[n].mean for n in lengths])
        difference = difference_row(data, pair[1], pair[0])
        gains.append([difference.cells[n].mean if difference else np.nan for n in lengths])
    inches = 0.26
    heights = [inches * len(names), inches * len(gains)]
    top, gap, bottom, left = 0.3, 0.55, 0.5, 1.55
    height = sum(heights) + top + gap + bottom
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 1, height_ratios=heights)
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - 0.1 / WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
        hspace=2 * gap / sum(heights),
    )
    values, added = np.array(accuracies), np.array(gains)
    _heat(axes[0], values, [f"{value:.1f}" for value in values.flat], names, lengths, "cividis", (0.0, values.max()))
    axes[0].set_title("accuracy (%)")
    reach = max(float(np.nanmax(np.abs(added))), 0.1)
    texts = ["" if np.isnan(value) else signed(float(value), 1) for value in added.flat]
    _heat(axes[1], added, texts, list(crossed), lengths, "PuOr_r", (-reach, reach))
    axes[1].set_title("what log n adds (points)")
    axes[1].set_xlabel("context length (tokens)")
    told = [
        f"after {positions} {', '.join(f'{signed(gain, 1)} at {n}' for n, gain in zip(lengths, row, strict=True))}"
        for positions, row in zip(crossed, gains, strict=True)
    ]
    caption = (
        f"All on the weights of {data.baseline}, so no training noise lies between the rows. Above, accuracy with each "
        "treatment of positions, without and with log n; below, the difference of the two, whose intervals are in the "
        "table of differences."
    )
    alt = f"Heat maps of accuracy and of what log n adds, in points: {joined(told)}."
    return finish(figure, "repairs", caption, alt)


def _heat(
    axis: Axes,
    values: npt.NDArray[Any],
    texts: Sequence[str],
    names: Sequence[str],
    lengths: Sequence[int],
    colours: str,
    ends: tuple[float, float],
) -> None:
    colour_map = matplotlib.colormaps[colours]
    scaled = (values - ends[0]) / (ends[1] - ends[0] or 1.0)
    # Cells are drawn one by one: an image would be a bitmap inside the SVG.
    mesh = axis.pcolormesh(values, cmap=colour_map, vmin=ends[0], vmax=ends[1], edgecolors=PAPER, linewidth=1.0)
    mesh.set_rasterized(False)
    rows, columns = values.shape
    for place, text in enumerate(texts):
        row, column = divmod(place, columns)
        red, green, blue, _ = colour_map(float(np.nan_to_num(scaled[row, column], nan=0.5)))
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45
        axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8, color=DARK if light else LIGHT)
    axis.set_xticks([n + 0.5 for n in range(columns)], [str(n) for n in lengths])
    axis.set_yticks([n + 0.5 for n in range(rows)], names)
    axis.invert_yaxis()
    axis.grid(visible=False)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
