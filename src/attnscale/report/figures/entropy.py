"""Entropy of the attention against length: heads, their mean, and its upper limit."""

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from attnscale.report.arms import main_arms, measured_arms
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import (
    Look,
    few_ticks,
    length_axis,
    line,
    looks_of,
    mark_training_length,
    means,
    small_multiples,
    wrapped,
)
from attnscale.report.figures.style import MUTED
from attnscale.report.words import joined, span, tokens


def draw(data: RunData) -> Drawing:
    """Draw `entropy`: the arms of the main figure."""
    arms = [arm for arm in data.arms if arm in main_arms(data.config)]
    return _draw(data, "entropy", arms, columns=2, inches=1.6)


def draw_others(data: RunData) -> Drawing:
    """Draw `entropy_of_others`: all other arms."""
    arms = [arm for arm in data.arms if arm not in main_arms(data.config)]
    return _draw(data, "entropy_of_others", arms, columns=3, inches=1.1)


def _draw(data: RunData, name: str, arms: Sequence[str], *, columns: int, inches: float) -> Drawing:
    assert data.entropy is not None
    looks = looks_of(data.config, data.arms)
    arms = [arm for arm in arms if arm in measured_arms(data.config)]
    lengths = data.lengths
    figure, axes = small_multiples(len(arms), columns, inches)
    told = []
    for axis, arm in zip(axes, arms, strict=True):
        rows = data.entropy[data.entropy["arm"] == arm]
        mean = _panel(axis, rows, looks[arm])
        axis.set_title(wrapped(arm, 26), fontsize=8.5 if columns > 2 else 9.5)
        axis.plot(lengths, [math.log(n) for n in lengths], color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)))
        mark_training_length(axis, data.config.training.length, label=False)
        axis.yaxis.set_major_locator(few_ticks(4))
        length_axis(axis, lengths, every=2 if columns > 1 and len(lengths) > 4 else 1)
        axis.set_ylim(0, 1.03 * math.log(max(lengths[-1], 2)))
        ends = dict.fromkeys((lengths[0], lengths[-1]))
        told.append(f"{arm} {' to '.join(f'{mean[n]:.2f}' for n in ends)}")
    figure.supxlabel("context length (tokens, log scale)", fontsize=9, y=0.01)
    several = data.several_seeds(arms)
    firsts = {data.config.seeds_of(arm)[0] for arm in arms}
    which = f"the first seed ({min(firsts)})" if len(firsts) == 1 else "its arm's first seed"
    caption = (
        "Mean entropy of the attention weights in nats. A faint line is one head"
        + (f", of {which}" if several else "")
        + ", the strong line the mean over all heads"
        + (" and seeds" if several else "")
        + f". Dashed: log n, which equal weights have. {_blocks(data)}"
    )
    alt = f"Line charts of entropy against context length. Mean in nats {span(lengths)}: {joined(told)}."
    return finish(figure, name, caption, alt)


def _panel(axis: Axes, rows: pd.DataFrame, look: Look) -> dict[int, float]:
    for _, head in rows[rows["seed"] == rows["seed"].iloc[0]].groupby(["layer", "head"], sort=True):
        values = dict(zip(head["length"], head["entropy"], strict=True))
        line(axis, values, look, markers=False, linestyle="-", linewidth=0.7, alpha=0.35)
    mean = means(rows, "length", "entropy")
    line(axis, mean, look, linestyle="-", linewidth=2.2, markers=False)
    return mean


def _blocks(data: RunData) -> str:
    blocks = min(data.config.attention_statistics.blocks, data.evaluation.blocks)
    what = f"{blocks} evaluation block{'' if blocks == 1 else 's'}"
    return f"Measured on {what} of {tokens(data.lengths[-1])}."
