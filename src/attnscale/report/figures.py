"""The figures, drawn so that they read in print, on a phone, without colours, and in the same bytes each time.

Each is drawn once. The files get it on white; the page gets the same drawing with its colours exchanged
for CSS variables, so that it follows the reader's light or dark setting.
"""

import dataclasses
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from attnscale.files import replacing
from attnscale.report.data import RunData
from attnscale.report.published import published_for

# Colours that stay apart in the common kinds of colour blindness (after Okabe and Ito 2008), darkened until
# they have a contrast of 4.5 on white and lightened for dark pages; markers and dashes tell them apart too.
COLOURS = (
    ("#0067a8", "#62b5f0"),
    ("#b84a00", "#ff9f68"),
    ("#00745a", "#45d0a8"),
    ("#9a3d84", "#e59bd3"),
    ("#806000", "#dcb93f"),
    ("#5a4fcf", "#aaa4ff"),
    ("#7a1f2b", "#f08c96"),
    ("#50585f", "#b6bec6"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d")
DASHES = ("", (4, 1.5), (1, 1), (6, 1.5, 1, 1.5), (3, 1, 1, 1, 1, 1))
INK, MUTED, GRID, PAPER = "#1b1f24", "#646c75", "#d9dde1", "#fefefe"
CSS_NAMES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"} | {
    light: f"var(--arm{number})" for number, (light, _) in enumerate(COLOURS)
}

WIDTH = 5.6  # inches; narrow, so that letters stay readable when a phone shrinks the figure
LABEL_POINTS = 8.5
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "attnscale",
    "svg.fonttype": "path",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "figure.dpi": 100.0,
    "savefig.dpi": 200.0,
}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    name: str
    """File name without its ending."""
    svg: str
    """A whole SVG file, on white."""
    png: bytes
    inline: str
    """An <svg> element for the page."""
    caption: str
    """What is drawn and how, in plain text."""
    alt: str
    """What a reader who cannot see it should know."""


def draw_all(data: RunData) -> list[Drawing]:
    """Draw every figure of the report."""
    with matplotlib.rc_context():
        # The user's own matplotlibrc must not reach the bytes.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return [_accuracy_by_length(data), _learning_curves(data)]


def write(drawing: Drawing, folder: Path) -> None:
    """Write NAME.svg and NAME.png."""
    for ending, content in (("svg", drawing.svg.encode("utf-8")), ("png", drawing.png)):
        with replacing(folder / f"{drawing.name}.{ending}") as temporary:
            temporary.write_bytes(content)


def _accuracy_by_length(data: RunData) -> Drawing:
    looks = _looks(data)
    published = _published_frame(data)
    several = len(data.config.seeds) > 1
    labels = {arm: _wrapped(arm) for arm in data.arms}
    height = max(3.0, _label_inches(labels.values()) + 0.3)
    rows = [height] if published.empty else [height, 1.5]
    with _figure(rows, labels.values(), top=0.5) as figure:
        axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
        _lines(axes[0], data.accuracy, "length", "percent", looks, band=several)
        axes[0].set_title("measured here", pad=17)
        _mark_training_length(axes[0], data.config.training.length)
        _length_axis(axes[0], data.lengths)
        ends = _means(data.accuracy[data.accuracy["length"] == data.lengths[-1]], "percent")
        if not published.empty:
            _lines(axes[1], published, "length", "percent", looks, band=False, faint=True)
            axes[1].set_title("published (other corpus and model)")
            _length_axis(axes[1], sorted({*data.lengths, *published["length"]}))
            axes[0].set_xlim(axes[1].get_xlim())
            axes[0].sharex(axes[1])
        for axis in axes:
            axis.set_ylabel("accuracy (%)")
            axis.yaxis.set_major_locator(_few_ticks())
        axes[-1].set_xlabel("context length (tokens, log scale)")
        figure.align_ylabels(list(axes))
        _direct_labels(axes[0], {arm: (data.lengths[-1], ends[arm]) for arm in data.arms}, labels, looks)
        if not published.empty:
            last = published[published["length"] == published["length"].max()]
            names = dict(zip(last["arm"], last["label"], strict=True))
            points = {arm: (int(published["length"].max()), y) for arm, y in _means(last, "percent").items()}
            _direct_labels(axes[1], points, names, looks)
        seeds = "Lines are means over seeds, bands reach from the lowest to the highest seed. " if several else ""
        caption = (
            f"Accuracy on the same {data.evaluation.targets:,} masked tokens, read with more and more context. {seeds}"
            f"The upright line marks the training length, {data.config.training.length} tokens."
        )
        if not published.empty:
            caption += " Below, the article's numbers for the same formulas; only the shape can be compared."
        values = ", ".join(f"{arm} {ends[arm]:.1f} %" for arm in data.arms)
        alt = (
            f"Line chart of accuracy against context length from {data.lengths[0]} to {data.lengths[-1]} tokens. "
            f"At {data.lengths[-1]} tokens: {values}. All numbers are in the table."
        )
        return _finish(figure, "accuracy_by_length", caption, alt)


def _learning_curves(data: RunData) -> Drawing:
    looks = _looks(data)
    arms = data.trained_arms
    smooth, window = _smoothed(data.history)
    last = smooth.groupby(["arm", "seed"], sort=False).tail(1)
    ends = {column: _means(last, column) for column in ("tokens", "loss", "percent")}
    labels = {arm: _wrapped(arm) for arm in arms}
    height = max(2.0, _label_inches(labels.values()) + 0.3)
    with _figure([height, height], labels.values(), top=0.3) as figure:
        axes = figure.subplots(2, 1, sharex=True)
        marked = bool(smooth.groupby(["arm", "seed"]).size().max() < 3)
        for axis, column, title in ((axes[0], "loss", "loss (nats per target)"), (axes[1], "percent", "accuracy (%)")):
            for _, one_seed in smooth.groupby("seed", sort=False):
                _lines(axis, one_seed, "tokens", column, looks, band=False, marked=marked)
            axis.set_title(f"{title} on training batches")
            axis.set_ylabel("")
            axis.set_xlim(left=0)
            axis.yaxis.set_major_locator(_few_ticks())
            axis.xaxis.set_major_locator(_few_ticks())
            points = {arm: (ends["tokens"][arm], ends[column][arm]) for arm in arms}
            _direct_labels(axis, points, labels, looks)
        axes[1].set_xlabel("training tokens")
        axes[1].xaxis.set_major_formatter(EngFormatter(sep=" "))
        seeds = len(data.config.seeds)
        caption = (
            f"Loss and masked accuracy at {data.config.training.length} tokens while training, one line per arm"
            f"{' and seed' if seeds > 1 else ''}. "
        )
        caption += f"A row of history.csv is the mean over {data.config.training.log_every} training steps; "
        caption += f"a point is the mean of {window} neighbouring rows." if window > 1 else "each row is a point."
        values = "; ".join(f"{arm} loss {ends['loss'][arm]:.2f}, accuracy {ends['percent'][arm]:.1f} %" for arm in arms)
        alt = f"Line charts of training loss and masked accuracy against training tokens. At the end: {values}."
        return _finish(figure, "learning_curves", caption, alt)


def _looks(data: RunData) -> dict[str, tuple[str, str, Any]]:
    """Colour, marker and dashes of each arm, by its place in the configuration."""
    return {
        arm: (COLOURS[i % len(COLOURS)][0], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, arm in enumerate(data.arms)
    }


def _means(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """Mean over seeds, by arm."""
    return {str(arm): float(values.mean()) for arm, values in frame.groupby("arm")[column]}


def _published_frame(data: RunData) -> pd.DataFrame:
    """The article's rows for arms of this run: columns arm, label, length, percent; empty if none fits."""
    lines, shown = [], []
    for arm in data.arms:
        row = published_for(data.config, arm)
        # With fewer than two common lengths there is no shape to compare.
        if row is None or row in shown or len(set(row.percent) & set(data.lengths)) < 2:
            continue
        shown.append(row)
        lines += [(arm, row.label, n, percent) for n, percent in row.percent.items()]
    return pd.DataFrame(lines, columns=["arm", "label", "length", "percent"])


def _lines(
    axis: Axes,
    frame: pd.DataFrame,
    x: str,
    y: str,
    looks: Mapping[str, tuple[str, str, Any]],
    *,
    band: bool,
    faint: bool = False,
    marked: bool | None = None,
) -> None:
    arms = [arm for arm in looks if (frame["arm"] == arm).any()]
    show_markers = x == "length" if marked is None else marked
    sns.lineplot(
        data=frame,
        x=x,
        y=y,
        hue="arm",
        style="arm",
        hue_order=arms,
        style_order=arms,
        palette={arm: looks[arm][0] for arm in arms},
        markers={arm: looks[arm][1] for arm in arms} if show_markers else False,
        dashes={arm: looks[arm][2] for arm in arms},
        # The interval of all values: lowest to highest seed.
        errorbar=("pi", 100) if band else None,
        err_kws={"alpha": 0.15, "linewidth": 0},
        linewidth=1.1 if faint or x != "length" else 1.7,
        alpha=0.7 if faint else 1.0,
        markersize=4.0 if faint else 5.5,
        markeredgecolor=PAPER,
        markeredgewidth=0.5,
        legend=False,
        ax=axis,
    )
    axis.set_xlabel("")


def _length_axis(axis: Axes, lengths: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axis.xaxis.set_major_formatter(FixedFormatter([str(n) for n in lengths]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    if len(lengths) > 8:
        axis.tick_params(axis="x", labelrotation=60)


def _few_ticks() -> MaxNLocator:
    return MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])


def _mark_training_length(axis: Axes, length: int) -> None:
    axis.axvline(length, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0.9)
    axis.annotate(
        "training length",
        (length, 1.0),
        xycoords=axis.get_xaxis_transform(),
        xytext=(-2, 3),
        textcoords="offset points",
        color=MUTED,
        fontsize=LABEL_POINTS - 0.5,
    )


def _wrapped(name: str, width: int = 15) -> str:
    """A name over several lines, broken after underscores and hyphens, or anywhere if there are none."""
    lines = [""]
    for part in re.findall(r"[^_-]{1,%d}[_-]*|[_-]+" % width, name):  # noqa: UP031
        if lines[-1] and len(lines[-1]) + len(part) > width + 1:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _line_inches(label: str) -> float:
    """Height of a label with a little air, in inches."""
    return (1.15 * (label.count("\n") + 1) + 0.35) * LABEL_POINTS / 72


def _label_inches(labels: Collection[str]) -> float:
    return sum(_line_inches(label) for label in labels)


@contextmanager
def _figure(row_inches: Sequence[float], labels: Collection[str], top: float) -> Iterator[Figure]:
    """A figure with room on the right for direct labels; its canvas is Agg, whatever the user has set."""
    gap, bottom, left = 0.55, 0.5, 0.62
    height = sum(row_inches) + gap * (len(row_inches) - 1) + top + bottom
    longest = max(len(line) for label in labels for line in label.split("\n"))
    right = 0.35 + 0.6 * longest * LABEL_POINTS / 72
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - right / WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
        hspace=gap * len(row_inches) / sum(row_inches),
    )
    yield figure


def _direct_labels(
    axis: Axes,
    ends: Mapping[str, tuple[float, float]],
    labels: Mapping[str, str],
    looks: Mapping[str, tuple[str, str, Any]],
) -> None:
    """Write each label to the right of the axes, joined to the end of its line, none over another."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    low, high = axis.get_ylim()
    inches = axis.get_position().height * figure.get_size_inches()[1]
    order = sorted(ends, key=lambda arm: -ends[arm][1])
    heights = [_line_inches(labels[arm]) / inches for arm in order]
    wanted = [(ends[arm][1] - low) / (high - low) for arm in order]
    for arm, y in zip(order, _spread(wanted, heights), strict=True):
        colour, _, _ = looks[arm]
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


def _spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
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


def _smoothed(history: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Mean over a centred window that leaves about eighty points, and the window's width in rows (odd)."""
    rows = int(history.groupby(["arm", "seed"]).size().max())
    window = max(1, 2 * (rows // 160) + 1)
    if window == 1:
        return history, 1
    smooth = history.copy()
    for column in ("loss", "percent"):
        smooth[column] = history.groupby(["arm", "seed"], sort=False)[column].transform(
            lambda values: values.rolling(window, center=True, min_periods=1).mean()
        )
    return smooth, window


def _finish(figure: Figure, name: str, caption: str, alt: str) -> Drawing:
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=nothing)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return Drawing(name, text.getvalue(), picture.getvalue(), _inline(text.getvalue(), name, alt), caption, alt)


def _inline(svg: str, name: str, alt: str) -> str:
    """The <svg> element of a file, with ids of its own, colours from the page, a role and a text for readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    for colour, variable in CSS_NAMES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'(<svg [^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg [^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    escaped = alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escaped}" ', 1).strip()
