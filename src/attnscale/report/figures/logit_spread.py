"""Which multiplier keeps entropy constant, by the spread of the logits; and how far the heads' logits spread."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

from attnscale.report.arms import main_arms
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import figure_of_rows, looks_of, wrapped
from attnscale.report.figures.style import COLOURS, INK, LABEL_POINTS, MUTED
from attnscale.report.spread import Needs, needs_of_heads, spread_lengths
from attnscale.report.words import joined

_LAW_DASHES = {"log n": (0, (5, 2)), "sqrt(log n)": (0, (1, 1.5))}


def draw(data: RunData) -> Drawing:
    """Draw `logit_spread`."""
    lengths = spread_lengths(data.config)
    needs = needs_of_heads(data, lengths[0])
    strips = [arm for arm in data.arms if arm in needs and arm in main_arms(data.config)]
    panel, strip = 1.7, 0.22 * len(strips) + 0.1 if strips else 0.0
    heights = [panel] * len(lengths) + ([strip] if strips else [])
    left = 0.62 + 0.7 * bool(strips)
    figure = figure_of_rows(heights, left=left, right=0.95, top=0.3, bottom=0.5, gap=0.42)
    axes = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axis, length in zip(axes, lengths, strict=False):
        _curve(axis, data.theory, length)
        axis.set_title(f"multiplier at {length} tokens")
    if strips:
        _strips(axes[-1], data, strips, needs)
    axes[-1].set_xlabel(f"standard deviation σ of the logits at {data.config.training.length} tokens")
    axes[-1].set_xscale("log", base=2)
    sigmas = _curve_of(data.theory, lengths[0]).index
    ticks = [value for value in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16) if sigmas[0] / 2.5 <= value <= sigmas[-1] * 1.5]
    axes[-1].xaxis.set_major_locator(FixedLocator(ticks))
    axes[-1].xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes[-1].xaxis.set_minor_locator(NullLocator())
    caption = (
        "What independent normal logits of spread σ must be multiplied by at a longer length for attention to keep the "
        f"entropy it has at {data.config.training.length} tokens (curve), beside the two laws (level lines). Where the "
        "curve is above a line, that law is too weak."
    )
    if strips:
        caption += " At the bottom the measured spreads: a dot is one head of one seed."
    return finish(figure, "logit_spread", caption, _alt(data, lengths, needs))


def _curve_of(theory: pd.DataFrame, length: int) -> "pd.Series[float]":
    rows = theory[(theory["quantity"] == "constant_entropy_multiplier") & (theory["n"] == length)].dropna(
        subset=["value"]
    )
    return pd.Series(list(rows["value"]), index=[float(sigma) for sigma in rows["parameter"]]).sort_index()


def _laws(theory: pd.DataFrame, length: int) -> dict[str, float]:
    rows = theory[(theory["quantity"] == "law_multiplier") & (theory["n"] == length)]
    return dict(zip(rows["method"], rows["value"], strict=True))


def _curve(axis: Axes, theory: pd.DataFrame, length: int) -> None:
    curve = _curve_of(theory, length)
    axis.plot(list(curve.index), list(curve), color=COLOURS[0][0], linewidth=1.8, marker="o", markersize=3.5)
    for law, value in _laws(theory, length).items():
        axis.axhline(value, color=INK, linewidth=1.1, linestyle=_LAW_DASHES.get(law, "-"))
        axis.annotate(
            law.replace("sqrt(log n)", "√(log n)"),
            (1.02, value),
            xycoords=axis.get_yaxis_transform(),
            va="center",
            fontsize=LABEL_POINTS,
            annotation_clip=False,
        )
    axis.set_yscale("log", base=2)
    ticks = [1, 1.25, 1.5, 2, 3, 4, 6, 8]
    axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(1.0, max(1.3, 1.1 * max(float(curve.max()), *_laws(theory, length).values())))


def _strips(axis: Axes, data: RunData, arms: list[str], needs: dict[str, Needs]) -> None:
    looks = looks_of(data.config, data.arms)
    for place, arm in enumerate(arms):
        sigmas = needs[arm].sigmas
        axis.plot(
            sigmas,
            [place] * len(sigmas),
            linestyle="",
            marker="o",
            markersize=4.5,
            color=looks[arm].colour,
            alpha=0.4,
            markeredgewidth=0,
        )
    axis.set_yticks(range(len(arms)), [wrapped(arm, 20) for arm in arms])
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0, labelcolor=MUTED, labelsize=LABEL_POINTS - 0.5)


def _alt(data: RunData, lengths: tuple[int, ...], needs: dict[str, Needs]) -> str:
    told = []
    for length in lengths:
        curve, laws = _curve_of(data.theory, length), _laws(data.theory, length)
        values = ", ".join(f"{value:.2f} for σ = {sigma:g}" for sigma, value in curve.items())
        told.append(f"at {length} tokens {values}; {', '.join(f'{law} is {value:.2f}' for law, value in laws.items())}")
    alt = f"Line charts of the multiplier that keeps entropy constant: {'. '.join(told)}."
    measured = [f"{arm} {min(found.sigmas):.2f} to {max(found.sigmas):.2f}" for arm, found in needs.items()]
    shown = [text for text in measured if not math.isnan(float(text.rsplit(" ", 1)[1]))]
    return alt + (f" Measured spreads: {joined(shown)}." if shown else "")
