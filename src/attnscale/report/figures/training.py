"""What happened while training: loss, accuracy and norms of the gradients."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from attnscale.report.arms import main_arms
from attnscale.report.data import RunData
from attnscale.report.figures.drawing import Drawing, finish
from attnscale.report.figures.parts import (
    Look,
    direct_labels,
    few_ticks,
    label_inches,
    labelled_figure,
    line,
    looks_of,
    means,
    small_multiples,
    wrapped,
)
from attnscale.report.figures.style import MUTED
from attnscale.report.words import joined

_COLUMNS = ("loss", "percent", "grad_norm", "grad_norm_qk")


def draw_curves(data: RunData) -> Drawing:
    """Draw `learning_curves`: the trained arms of the main figure."""
    panels = {"loss": "loss on training batches (nats per target)", "percent": "accuracy on training batches (%)"}
    arms = _main_trained(data)
    ends = _ends(data.history, arms)
    told = "; ".join(f"{arm} loss {ends[arm]['loss']:.2f}, accuracy {ends[arm]['percent']:.1f} %" for arm in arms)
    alt = f"Line charts of training loss and masked accuracy against training tokens. At the end: {told}."
    what = f"Loss and masked accuracy while training at {data.config.training.length} tokens"
    return _draw(data, "learning_curves", arms, panels, what, alt, logarithmic=False)


def draw_gradients(data: RunData) -> Drawing:
    """Draw `gradient_norms`: the trained arms of the main figure."""
    panels = {"grad_norm": "norm of all gradients", "grad_norm_qk": "norm of the gradients of queries and keys"}
    arms = _main_trained(data)
    ends = _ends(data.history, arms)
    told = "; ".join(f"{arm} {ends[arm]['grad_norm']:.3g} and {ends[arm]['grad_norm_qk']:.3g}" for arm in arms)
    alt = (
        "Line charts of the norm of all gradients, and of those of the projections to queries and keys, against "
        f"training tokens. At the end: {told}."
    )
    what = "Norm of the gradients before clipping, of all parameters and of the projections to queries and keys"
    return _draw(data, "gradient_norms", arms, panels, what, alt, logarithmic=True)


def draw_other_curves(data: RunData) -> Drawing:
    """Draw `learning_curves_of_others`: accuracy while training, one small panel per arm, the baseline in grey."""
    looks = looks_of(data.config, data.arms)
    arms = [arm for arm in data.trained_arms if arm not in main_arms(data.config)]
    history, _ = smoothed(data.history)
    figure, axes = small_multiples(len(arms), 3, 1.0)
    for axis, arm in zip(axes, arms, strict=True):
        if data.baseline is not None:
            _curves(axis, history, data.baseline, "percent", Look(MUTED, "", "-"), linewidth=0.7, alpha=0.6)
        _curves(axis, history, arm, "percent", looks[arm], linestyle="-", linewidth=1.1)
        axis.set_title(wrapped(arm, 26), fontsize=8.5)
        axis.yaxis.set_major_locator(few_ticks(4))
        axis.xaxis.set_major_locator(few_ticks(3))
        axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axis.set_xlim(left=0)
    figure.supxlabel("training tokens", fontsize=9, y=0.01)
    ends = _ends(data.history, arms)
    told = joined([f"{arm} {ends[arm]['percent']:.1f} %" for arm in arms])
    grey = f" Grey: {data.baseline}." if data.baseline is not None else ""
    caption = (
        f"Masked accuracy on training batches (%), one line per seed.{grey} A branched arm starts where its trunk "
        "was left; at mixed lengths, batches are shorter and harder."
    )
    alt = f"Line charts of masked accuracy against training tokens. At the end: {told}."
    return finish(figure, "learning_curves_of_others", caption, alt)


def _main_trained(data: RunData) -> list[str]:
    """Trained arms of the main figure; all of them if it has none."""
    found = [arm for arm in data.trained_arms if arm in main_arms(data.config)]
    return found or list(data.trained_arms)


def _draw(
    data: RunData,
    name: str,
    arms: Sequence[str],
    panels: dict[str, str],
    what: str,
    alt: str,
    *,
    logarithmic: bool,
) -> Drawing:
    looks = looks_of(data.config, data.arms)
    history, window = smoothed(data.history[data.history["arm"].isin(arms)])
    ends = _ends(history, arms)
    labels = {arm: wrapped(arm) for arm in arms}
    height = max(1.8, label_inches(labels.values()) + 0.3)
    marked = bool(history.groupby(["arm", "seed"]).size().max() < 3)
    figure = labelled_figure([height, height], labels.values(), top=0.3)
    axes = figure.subplots(2, 1, sharex=True)
    for axis, (column, title) in zip(axes, panels.items(), strict=True):
        for arm in arms:
            _curves(axis, history, arm, column, looks[arm], markers=marked, linewidth=1.1)
        axis.set_title(title)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(few_ticks())
        if logarithmic:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
        else:
            axis.yaxis.set_major_locator(few_ticks())
    axes[1].set_xlabel("training tokens")
    axes[1].xaxis.set_major_formatter(EngFormatter(sep=" "))
    for axis, column in zip(axes, panels, strict=True):
        direct_labels(axis, {arm: (ends[arm]["tokens"], ends[arm][column]) for arm in arms}, labels, looks)
    seeds = " and seed" if data.several_seeds(arms) else ""
    rest = f"; a point is the mean of {window} neighbouring rows" if window > 1 else ""
    caption = (
        f"{what}, one line per arm{seeds}. A row of history.csv is the mean over "
        f"{data.config.training.log_every} training steps{rest}."
    )
    return finish(figure, name, caption, alt)


def _curves(
    axis: Axes, history: pd.DataFrame, arm: str, column: str, look: Look, *, markers: bool = False, **changes: object
) -> None:
    for _, rows in history[history["arm"] == arm].groupby("seed", sort=True):
        line(axis, dict(zip(rows["tokens"], rows[column], strict=True)), look, markers=markers, **changes)


def _ends(history: pd.DataFrame, arms: Sequence[str]) -> dict[str, dict[str, float]]:
    """Means over seeds of the last rows, by arm and column."""
    last = history.groupby(["arm", "seed"], sort=False).tail(1)
    columns = {column: means(last, "arm", column) for column in ("tokens", *_COLUMNS)}
    return {arm: {column: values[arm] for column, values in columns.items()} for arm in arms}


def smoothed(history: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Mean over a centred window that leaves about eighty points, and the window's width in rows (odd)."""
    rows = int(history.groupby(["arm", "seed"]).size().max())
    window = max(1, 2 * (rows // 160) + 1)
    if window == 1:
        return history, 1
    smooth = history.copy()
    for column in _COLUMNS:
        smooth[column] = history.groupby(["arm", "seed"], sort=False)[column].transform(
            lambda values: values.rolling(window, center=True, min_periods=1).mean()
        )
    return smooth, window
