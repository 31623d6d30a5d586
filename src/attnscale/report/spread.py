"""How far the logits of trained heads spread, and what the theory says that such a head needs."""

import dataclasses
import math

import numpy as np

from attnscale.config import Config
from attnscale.report.arms import lengths_beyond
from attnscale.report.data import RunData


@dataclasses.dataclass(frozen=True)
class Needs:
    """The heads of an arm, all seeds together."""

    sigmas: tuple[float, ...]
    """Standard deviation of the logits at the training length, one per head and seed, rising."""
    more: int
    """Heads that need more than log n to keep their entropy."""
    between: int
    """Heads whose need lies between the two laws."""
    less: int
    """Heads that need less than sqrt(log n)."""


def spread_lengths(config: Config) -> tuple[int, ...]:
    """The lengths at which multipliers are drawn: where the gap is claimed to peak, and the last claimed one.

    Where these are not evaluated, the first and last length beyond the training length.
    """
    beyond = lengths_beyond(config)
    claimed = [config.claims.peak_at * config.training.length, config.claims.multiples[-1] * config.training.length]
    found = [n for n in claimed if n in beyond]
    return tuple(dict.fromkeys(found if len(found) > 1 else [*(found or beyond[:1]), beyond[-1]]))


def needs_of_heads(data: RunData, length: int) -> dict[str, Needs]:
    """By trained arm, what its heads need at a length by the theory of independent normal logits.

    Needs are read off the tabulated curve, linearly between its points in log sigma and log multiplier.
    """
    training = data.config.training.length
    if data.entropy is None or data.entropy.empty or training not in data.lengths:
        return {}
    table = data.theory[data.theory["n"] == length].dropna(subset=["value"])
    curve = table[table["quantity"] == "constant_entropy_multiplier"]
    laws = table[table["quantity"] == "law_multiplier"].set_index("method")["value"]
    points = sorted(
        (math.log(float(sigma)), math.log(float(value)))
        for sigma, value in zip(curve["parameter"], curve["value"], strict=True)
    )
    known, wanted = [x for x, _ in points], [y for _, y in points]
    found = {}
    for arm in data.trained_arms:
        rows = data.entropy[(data.entropy["arm"] == arm) & (data.entropy["length"] == training)]
        sigmas = sorted(float(sigma) for sigma in rows["logit_std"])
        if not sigmas:
            continue
        needed = np.interp(np.log(np.maximum(sigmas, 1e-9)), known, wanted)
        more, less = needed > math.log(laws["log n"]), needed < math.log(laws["sqrt(log n)"])
        found[arm] = Needs(tuple(sigmas), int(more.sum()), int((~more & ~less).sum()), int(less.sum()))
    return found
