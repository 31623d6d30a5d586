"""FIRST and PARITY: learning curves, which scale generalises, and the networks that are built by hand."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedFormatter, FixedLocator, NullLocator

from attnscale.report.data import Formal, RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import (
    Look,
    direct_labels,
    few_ticks,
    label_inches,
    labelled_figure,
    line,
    small_multiples,
    wrapped,
)
from attnscale.report.figures.style import COLOURS, DASHES, LABEL_POINTS, MARKERS, MUTED
from attnscale.report.formal import LANGUAGES, at_the_end, curve_arms
from attnscale.report.words import joined, unsigned

_COIN = math.log(2)
# Which seeds a band leaves out, at each side.
_TAIL = 0.1


def draw_first_loss(data: RunData) -> Drawing:
    """Draw `first_loss`, after the paper's figure: loss over epochs, one panel per training length."""
    formal = data.formal["first"]
    arms, test = curve_arms(formal), formal.section.test_lengths[0]
    looks = _looks(formal)
    figure, axes = small_multiples(len(formal.section.train_lengths), 2, 1.5, left=0.7)
    for axis, train in zip(axes, formal.section.train_lengths, strict=True):
        for arm in arms:
            rows = _rows(formal.tests, arm, train, test)
            _band(axis, rows, "loss", looks[arm])
        _trained_on(axis, train)
    _from_zero(axes)
    _name(axes[-1], arms, looks)  # where losses are smallest
    figure.supxlabel("epochs", fontsize=9, y=0.01)
    figure.supylabel(f"loss at {test:,} bits (nats)", fontsize=9, x=0.01)
    told = [
        f"trained on {train:,}: "
        + ", ".join(f"{arm} {unsigned(at_the_end(data, 'first', arm, train, test, 'loss').mean)}" for arm in arms)
        for train in formal.section.train_lengths
    ]
    caption = (
        f"FIRST: loss at {test:,} bits (nats) over the epochs of training, one panel per training length. Lines are "
        f"{_means_over(formal)}"
        + (f", bands hold the middle {100 * (1 - 2 * _TAIL):.0f} % of them." if len(formal.section.seeds) > 1 else ".")
    )
    alt = f"Line charts of test loss against epochs. At the end, in nats, {'; '.join(told)}."
    return finish(figure, "first_loss", caption, alt)


def draw_first_by_scale(data: RunData) -> Drawing:
    """Draw `first_by_scale`: accuracy far beyond the training length, for every scale, one panel per test length."""
    formal = data.formal["first"]
    section, looks = formal.section, _looks(formal)
    labels = {arm: wrapped(arm) for arm in formal.arms}
    height = max(1.9, label_inches(labels.values()) + 0.2)
    figure = labelled_figure([height] * len(section.test_lengths), labels.values(), top=0.3)
    axes = figure.subplots(len(section.test_lengths), 1, squeeze=False, sharex=True)[:, 0]
    told = []
    for axis, test in zip(axes, section.test_lengths, strict=True):
        ends = {}
        for place, arm in enumerate(formal.arms):
            found = {n: at_the_end(data, "first", arm, n, test, "percent") for n in section.train_lengths}
            # A little beside each other, or intervals of arms that do alike would hide one another.
            shift = 1.0 + 0.03 * (place - (len(formal.arms) - 1) / 2)
            points = {n * shift: estimate.mean for n, estimate in found.items()}
            line(axis, points, looks[arm], linewidth=1.3)
            for x, estimate in zip(points, found.values(), strict=True):
                if not math.isnan(estimate.low):
                    axis.plot([x, x], [estimate.low, estimate.high], color=looks[arm].colour, linewidth=0.9)
            ends[arm] = (list(points)[-1], list(points.values())[-1])
            means = ", ".join(f"{unsigned(e.mean, 1)} trained on {n:,}" for n, e in found.items())
            told.append(f"{arm} at {test:,} bits {means}")
        axis.axhline(50, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0.9)
        axis.set_title(f"accuracy at {test:,} bits (%)")
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator(section.train_lengths))
        axis.xaxis.set_major_formatter(FixedFormatter([f"{n:,}" for n in section.train_lengths]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.tick_params(labelbottom=True)
        axis.yaxis.set_major_locator(few_ticks())
        direct_labels(axis, ends, labels, looks)
    axes[-1].set_xlabel("bits of a training string (log scale)")
    caption = (
        f"FIRST: which scale generalises. Accuracy at the end of the training, {_means_over(formal)}"
        + (f" with {100 * data.config.statistics.confidence:g} % intervals" if len(section.seeds) > 1 else "")
        + "; dashed: a coin."
    )
    return finish(figure, "first_by_scale", caption, f"Line charts of accuracy in percent. {joined(told)}.")


def draw_parity(data: RunData) -> Drawing:
    """Draw `parity_loss`: loss at the training length over the epochs, a line per seed."""
    formal = data.formal["parity"]
    looks = _looks(formal)
    figure, axes = small_multiples(len(formal.section.train_lengths), 2, 1.6, left=0.8)
    for axis, train in zip(axes, formal.section.train_lengths, strict=True):
        for arm in formal.arms:
            for _, rows in _rows(formal.tests, arm, train, train).groupby("seed", sort=True):
                points = dict(zip(rows["epoch"], rows["loss"], strict=True))
                line(axis, points, looks[arm], markers=len(points) == 1, linewidth=0.8, alpha=0.6)
        axis.axhline(_COIN, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0.9)
        _trained_on(axis, train)
    axes[0].set_xlim(left=0)  # losses stay near that of a coin: from zero they would be one line
    _name(axes[0], formal.arms, looks)
    figure.supxlabel("epochs", fontsize=9, y=0.01)
    figure.supylabel("loss (nats)", fontsize=9, x=0.01)
    told = [
        f"{arm} trained on {train:,}: {unsigned(at_the_end(data, 'parity', arm, train, train, 'loss').mean)}"
        for arm in formal.arms
        for train in formal.section.train_lengths
    ]
    caption = "PARITY: loss at the training length (nats) over the epochs, a line per arm and seed; dashed: a coin."
    alt = (
        f"Line charts of loss against epochs. At the end, means in nats: {joined(told)}. A coin has {unsigned(_COIN)}."
    )
    return finish(figure, "parity_loss", caption, alt)


def draw_exact(data: RunData) -> Drawing:
    """Draw `exact_networks`: cross-entropy of the hand-built networks against length."""
    labels, ends, looks, told = {}, {}, {}, []
    figure = labelled_figure([2.3], ["PARITY, layer norm"], top=0.3)
    axis = figure.subplots()
    for place, (task, formal) in enumerate(data.formal.items()):
        for norm, words in (("off", "no norm"), ("on", "layer norm")):
            rows = formal.exact[formal.exact["layer_norm"] == norm]
            points = dict(zip(rows["length"], rows["loss"], strict=True))
            name = f"{LANGUAGES[task]}, {words}"
            looks[name] = Look(COLOURS[place][0], MARKERS[2 * place + (norm == "on")], DASHES[norm == "on"])
            line(axis, points, looks[name])
            labels[name], ends[name] = name, (list(points)[-1], list(points.values())[-1])
            told.append(f"{name}: {points[list(points)[-1]]:.4f} at {list(points)[-1]:,} bits")
    axis.axhline(_COIN, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0.9)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axis.set_ylim(-0.03, 0.8)
    axis.set_title("cross-entropy (nats)")
    axis.set_xlabel("bits of a string (log scale)")
    direct_labels(axis, ends, labels, looks)
    caption = "Networks built by hand: cross-entropy on random strings against their length; dashed: a coin's, ln 2."
    return finish(figure, "exact_networks", caption, f"Line chart of cross-entropy in nats. {joined(told)}.")


def _means_over(formal: Formal) -> str:
    seeds = len(formal.section.seeds)
    return f"means over {seeds} seeds" if seeds > 1 else "of one seed"


def _looks(formal: Formal) -> dict[str, Look]:
    return {
        arm: Look(
            COLOURS[place % len(COLOURS)][0], MARKERS[place % len(MARKERS)], DASHES[place // len(COLOURS) % len(DASHES)]
        )
        for place, arm in enumerate(formal.arms)
    }


def _rows(tests: pd.DataFrame, arm: str, train: int, test: int) -> pd.DataFrame:
    mine = (tests["arm"] == arm) & (tests["train_length"] == train) & (tests["test_length"] == test)
    return tests[mine].sort_values(["seed", "epoch"])


def _band(axis: Axes, rows: pd.DataFrame, column: str, look: Look) -> None:
    by_epoch: Mapping[int, Sequence[float]] = {
        int(str(epoch)): sorted(float(value) for value in values) for epoch, values in rows.groupby("epoch")[column]
    }
    lows, highs = ([float(np.quantile(v, tail)) for v in by_epoch.values()] for tail in (_TAIL, 1 - _TAIL))
    axis.fill_between(list(by_epoch), lows, highs, color=look.colour, alpha=0.18, linewidth=0)
    # A single test makes no line.
    means = {n: math.fsum(v) / len(v) for n, v in by_epoch.items()}
    line(axis, means, look, markers=len(means) == 1, linewidth=1.4)


def _trained_on(axis: Axes, train: int) -> None:
    axis.set_title(f"trained on {train:,} bits")
    axis.yaxis.set_major_locator(few_ticks(4))
    axis.xaxis.set_major_locator(few_ticks(4))


def _from_zero(axes: Sequence[Axes]) -> None:
    """Both axes from zero; only when all is drawn, for the panels share them and a limit that is set stays."""
    axes[0].set_ylim(bottom=0)
    axes[0].set_xlim(left=0)


def _name(axis: Axes, arms: Iterable[str], looks: Mapping[str, Look], top: float = 0.96) -> None:
    for place, arm in enumerate(arms):
        axis.annotate(
            arm,
            (0.98, top - 0.12 * place),
            xycoords="axes fraction",
            ha="right",
            va="top",
            color=looks[arm].colour,
            fontsize=LABEL_POINTS,
        )
