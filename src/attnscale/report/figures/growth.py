"""How the differences grow while the training goes on."""

import math

import pandas as pd
from matplotlib.ticker import FixedLocator, PercentFormatter

from attnscale.report.arms import growth_pairs
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import few_ticks, line, looks_of, small_multiples, zero_line
from attnscale.report.figures.style import LABEL_POINTS
from attnscale.report.words import joined, share, signed, tokens


def draw(data: RunData) -> Drawing:
    """Draw `growth`: one panel per length, a thin line per seed and a strong one for their mean."""
    looks = looks_of(data.config, data.arms)
    pairs = [pair for arm in data.arms for pair in growth_pairs(data.config) if pair[0] == arm]
    gaps = {pair: _gaps(data, *pair) for pair in pairs}
    figure, axes = small_multiples(len(data.lengths), 2, 1.35)
    for axis, length in zip(axes, data.lengths, strict=True):
        zero_line(axis)
        for (arm, _), table in gaps.items():
            rows = table[table["length"] == length]
            for _, of_seed in rows.groupby("seed"):
                thin = dict(zip(of_seed["share"], of_seed["points"], strict=True))
                line(axis, thin, looks[arm], markers=False, linewidth=0.7, alpha=0.4)
            line(axis, _mean(rows), looks[arm])
        axis.set_title(tokens(length))
        axis.yaxis.set_major_locator(few_ticks(4))
        axis.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        axis.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
        axis.set_xlim(0, 1.08)
    for place, (arm, _) in enumerate(pairs):
        # In the first panel, where gaps are smallest.
        axes[0].annotate(
            arm,
            (0.04, 0.96 - 0.14 * place),
            xycoords="axes fraction",
            va="top",
            color=looks[arm].colour,
            fontsize=LABEL_POINTS,
        )
    figure.supxlabel("part of the training that is done", fontsize=9, y=0.01)
    longest = data.lengths[-1]
    told = [
        f"{arm} over {reference} at {tokens(longest)} "
        + ", ".join(
            f"{signed(gap, 1)} after {share(part)}" for part, gap in _mean(table[table["length"] == longest]).items()
        )
        for (arm, reference), table in gaps.items()
    ]
    against = joined(list(dict.fromkeys(reference for _, reference in pairs)))
    caption = (
        f"Points of accuracy above {against}, after parts of the training and at its end; one panel per context "
        "length, a thin line per seed, a strong line for their mean."
    )
    return finish(figure, "growth", caption, f"Line charts of differences during the training. {joined(told)}.")


def _gaps(data: RunData, arm: str, reference: str) -> pd.DataFrame:
    """Columns seed, length, share, points: paired by seed."""
    assert data.snapshots is not None
    last = data.accuracy.assign(step=data.last_step)[list(data.snapshots.columns)]
    table = pd.concat([data.snapshots, last], ignore_index=True)
    keys = ["seed", "step", "length"]
    ours, theirs = (table[table["arm"] == name].set_index(keys)["percent"] for name in (arm, reference))
    both = pd.concat([ours, theirs], axis=1, join="inner", keys=["ours", "theirs"]).sort_index().reset_index()
    return both.assign(share=both["step"] / data.last_step, points=both["ours"] - both["theirs"])


def _mean(rows: pd.DataFrame) -> dict[float, float]:
    return {float(str(part)): math.fsum(values) / len(values) for part, values in rows.groupby("share")["points"]}
