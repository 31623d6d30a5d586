"""What the benchmark leaves: one table on the screen, two CSV files, one figure."""

import csv
import io
import statistics
from collections.abc import Iterable
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from rich.console import Console
from rich.table import Column, Table

from attnscale.files import replacing, write_text
from attnscale.report.figures import INK, MUTED, PAPER, STYLE
from benchmarks.measures import MEASURES, Result, Row

AIM_COLOUR, MUST_COLOUR, MISSED_COLOUR = "#00745a", "#0067a8", "#b84a00"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
# What the table shows for a unit of repeats.csv: its name, the factor to it, and how to write it.
SHOWN = {
    "tokens/s": ("tokens/s", 1.0, ",.0f"),
    "FLOP/s": ("GFLOP/s", 1e-9, ",.1f"),
    "bytes": ("MB", 1e-6, ",.0f"),
    "seconds/token": ("µs/token", 1e6, ",.1f"),
}


def show(result: Result, title: str) -> None:
    """Print the measures with what they must and should reach, then the rates behind them."""
    table = Table("measure", *(Column(name, justify="right") for name in ("value", "must", "aim")), title=title)
    for name, value in _in_order(result):
        measure = MEASURES[name]
        sign = "≥" if measure.more_is_better else "≤"
        table.add_row(name, f"{value:.3g}", f"{sign} {measure.must:.3g}", f"{sign} {measure.aim:.3g}")
    above = ""
    for (group, what, precision, unit), values in _by_series(result.rows):
        if unit not in SHOWN:
            continue
        if group != above:
            table.add_section()
            table.add_row(f"{group}:")
            above = group
        name, factor, style = SHOWN[unit]
        median, low, high = (format(factor * of(values), style) for of in (statistics.median, min, max))
        table.add_row(f"  {what} {precision}, {name}", f"{median} ({low}–{high})" if len(values) > 1 else median)
    Console().print(table)


def write(result: Result, output: Path) -> None:
    """Write summary.csv, repeats.csv, summary.svg and summary.png."""
    lines = [
        (name, *(round(number, 4) for number in (value, MEASURES[name].must, MEASURES[name].aim)))
        for name, value in _in_order(result)
    ]
    write_text(output / "summary.csv", _csv(("measure", "value", "must", "aim"), lines))
    rows = [row._replace(value=float(f"{row.value:.9g}")) for row in result.rows]
    write_text(output / "repeats.csv", _csv(Row._fields, rows))
    for kind, content in figure(result).items():
        with replacing(output / f"summary.{kind}") as temporary:
            temporary.write_bytes(content)


def figure(result: Result) -> dict[str, bytes]:
    """The figure as SVG and PNG: a bar per measure from its must, to the right where it is beyond it.

    The axis is logarithmic and counts in multiples of the must; where less is better, in parts of it.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's own matplotlibrc must not reach the bytes
        matplotlib.rcParams.update(STYLE)
        return _draw(_in_order(result))


def _draw(measures: list[tuple[str, float]]) -> dict[str, bytes]:
    drawing = Figure(figsize=(6.4, 1.0 + 0.55 * max(1, len(measures))))
    FigureCanvasAgg(drawing)
    axis = drawing.add_axes((0.02, 0.55 / drawing.get_figheight(), 0.96, 1 - 0.95 / drawing.get_figheight()))
    reach = [0.5, 2.5]
    for place, (name, value) in enumerate(measures):
        measure = MEASURES[name]
        times, aim = max(measure.times_must(value), 0.01), measure.times_must(measure.aim)
        colour = AIM_COLOUR if times >= aim else MUST_COLOUR if times >= 1 else MISSED_COLOUR
        axis.barh(place, times - 1, left=1, height=0.36, color=colour)
        axis.plot([aim, aim], [place - 0.3, place + 0.3], color=INK, linewidth=1.4)
        text = f"{measure.text}: {value:.3g} (must {measure.must:.3g}, aim {measure.aim:.3g})"
        axis.annotate(
            text, (0.0, place - 0.32), xycoords=("axes fraction", "data"), va="bottom", ha="left", fontsize=8.5,
            color=INK, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
        reach += [times / 1.25, times * 1.25, aim * 1.25]
    axis.axvline(1, color=INK, linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlim(min(reach), max(reach))
    axis.set_ylim(max(1, len(measures)) - 0.4, -0.75)
    axis.xaxis.set_major_locator(FixedLocator(TICKS))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}×" for tick in TICKS]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_visible(False)
    axis.spines["left"].set_visible(False)
    axis.set_title("bars: value against what it must reach (1×); black ticks: the aim", color=MUTED)
    vector, bitmap = io.StringIO(), io.BytesIO()
    drawing.savefig(vector, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    drawing.savefig(bitmap, format="png", metadata={"Software": None})
    return {"svg": vector.getvalue().encode(), "png": bitmap.getvalue()}


def _in_order(result: Result) -> list[tuple[str, float]]:
    return [(name, result.values[name]) for name in MEASURES if name in result.values]


def _by_series(rows: list[Row]) -> list[tuple[tuple[str, str, str, str], list[float]]]:
    series: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        series.setdefault((row.group, row.what, row.precision, row.unit), []).append(row.value)
    return list(series.items())


def _csv(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue()
