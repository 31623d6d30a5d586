"""The claims of the ACL 2022 paper on FIRST and PARITY, and what decides each (see `attnscale.analysis.verdicts`).

Intervals are those of `attnscale.analysis.intervals` with the seeds drawn anew; arms are paired, as a seed has the
same strings and the same initial weights in all of them. Criteria are in the sections `first` and `parity` of the
configuration.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from attnscale import published_formal
from attnscale.analysis.intervals import Estimate, Floats, interval, resampled_sums
from attnscale.analysis.verdicts import Finding, MissingError, State, Statement, listed, number
from attnscale.config import Config, FirstConfig, FormalConfig, ParityConfig, StatisticsConfig, Task

# Parts of a point or a nat that are still told apart: sums of whole numbers are the same bits in any order.
_FINEST = 1e-6
_NO_LOSS = 0.005
"""Nats that are printed as 0.00."""


def over_seeds(values_S: Sequence[float], statistics: StatisticsConfig) -> Estimate:
    """Mean of one number per seed, with the interval of drawing seeds anew."""
    whole_S = np.round(np.asarray(values_S, dtype=np.float64) / _FINEST).astype(np.int64)
    sums_TR, totals_R = resampled_sums(whole_S[None, :, None], np.ones(1, dtype=np.int64), statistics.resamples)
    means_R: Floats = sums_TR[0] / totals_R * _FINEST
    low, high = interval(means_R, (len(whole_S), 1), statistics.confidence)
    return Estimate(float(whole_S.sum()) / len(whole_S) * _FINEST, low, high, len(whole_S))


def last_tests(tests: pd.DataFrame, section: FormalConfig) -> "pd.DataFrame":
    """Tests at the end of the training, by arm, train_length, test_length and seed, with the accuracy in percent."""
    last = tests[tests["epoch"] == section.epochs]
    last = last.assign(percent=100.0 * last["accuracy"])
    return last.set_index(["arm", "train_length", "test_length", "seed"])[["percent", "loss"]].sort_index()


def by_seed(last: pd.DataFrame, section: FormalConfig, column: str, place: tuple[str, int, int]) -> list[float]:
    """A column of `last_tests` at (arm, train_length, test_length), by rising seed: intervals depend on the order."""
    return [float(last[column].loc[(*place, seed)]) for seed in sorted(section.seeds)]


def unscaled_arm(section: FormalConfig) -> str | None:
    """The arm with plain attention."""
    return _arm(section, "attention_o", "logits")


def scaled_arm(section: FormalConfig) -> str | None:
    """The arm with the factor of the ACL 2022 paper where the paper's code has it."""
    return _arm(section, "acl2022", "query_input")


def _arm(section: FormalConfig, variant: str, scales: str) -> str | None:
    found = (name for name, arm in section.arms.items() if (arm.attention.name, arm.scales) == (variant, scales))
    return next(found, None)


def formal_claims(config: Config, tests: Mapping[Task, pd.DataFrame]) -> list[tuple[str, Callable[[], Finding]]]:
    """Titles and decisions, in the order of `verdicts.FORMAL_CLAIMS`, of the languages that are on.

    Args:
        config: the run.
        tests: what `attnscale.formal.tables.read_complete` returns, by language.
    """
    claims: list[tuple[str, Callable[[], Finding]]] = []
    if (first := config.first) is not None:
        train, test = first.train_lengths[0], first.test_lengths[0]
        claims += [
            (
                f"FIRST, is the first bit 1: trained on {train:,} bits, plain attention fails at {test:,} (below "
                f"{first.fails_below:g} %), and ln n on the query input mends it (above {first.solves_above:g} %).",
                lambda: _mends(config.statistics, first, last_tests(tests["first"], first)),
            ),
            (
                f"FIRST: at every training length the loss at {test:,} bits is smaller with ln n on the query input.",
                lambda: _smaller_losses(config.statistics, first, last_tests(tests["first"], first)),
            ),
        ]
    if (parity := config.parity) is not None:
        claims.append(
            (
                "PARITY, is the number of 1s odd: training does not find it, at the training length accuracy stays "
                f"below {parity.learned_above:g} %.",
                lambda: _not_learned(config.statistics, parity, last_tests(tests["parity"], parity)),
            )
        )
    return claims


def _pair(section: FirstConfig) -> tuple[str, str]:
    plain, scaled = unscaled_arm(section), scaled_arm(section)
    if plain is None:
        raise MissingError("arm in first with attention_o and scales: logits")
    if scaled is None:
        raise MissingError("arm in first with acl2022 and scales: query_input")
    return plain, scaled


def _mends(statistics: StatisticsConfig, section: FirstConfig, last: pd.DataFrame) -> Finding:
    plain, scaled = _pair(section)
    train, test = section.train_lengths[0], section.test_lengths[0]
    theirs, ours = (by_seed(last, section, "percent", (arm, train, test)) for arm in (plain, scaled))
    without, with_it = over_seeds(theirs, statistics), over_seeds(ours, statistics)
    gain = over_seeds([a - b for a, b in zip(ours, theirs, strict=True)], statistics)
    fails = _state(without, without.high < section.fails_below, without.low >= section.fails_below)
    solves = _state(with_it, with_it.low > section.solves_above, with_it.high <= section.solves_above)
    better = _state(gain, gain.low > 0, gain.high < 0)
    words = {"shown": "", "refuted": "not ", "open": "not clearly "}
    percent = {"plain": number(without, signed=False), "scaled": number(with_it, signed=False)}
    statements = [
        Statement(fails, f"{plain} gets {percent['plain']} %, {words[fails]}below {section.fails_below:g}"),
        Statement(solves, f"{scaled} gets {percent['scaled']} %, {words[solves]}above {section.solves_above:g}"),
        Statement(better, f"the difference is {number(gain)} points, {words[better]}above zero"),
    ]
    quantity = f"{scaled} minus {plain}, trained on {train:,} bits, tested on {test:,}, points"
    printed = math.nan
    if test == published_formal.TEST_LENGTH and train in published_formal.SCALED:
        printed = published_formal.SCALED[train].percent - published_formal.UNSCALED[train].percent
    return Finding(_told(quantity, printed), gain, statements, printed)


def _smaller_losses(statistics: StatisticsConfig, section: FirstConfig, last: pd.DataFrame) -> Finding:
    plain, scaled = _pair(section)
    test = section.test_lengths[0]
    differences, none_left = {}, set()
    for train in section.train_lengths:
        theirs, ours = (by_seed(last, section, "loss", (arm, train, test)) for arm in (plain, scaled))
        differences[train] = [a - b for a, b in zip(ours, theirs, strict=True)]
        if max(*theirs, *ours) < _NO_LOSS:
            none_left.add(train)
    estimates = {train: over_seeds(values, statistics) for train, values in differences.items()}
    states = {train: _state(e, e.high < 0, e.low > 0) for train, e in estimates.items()}
    words = {"shown": "is smaller", "refuted": "is larger", "open": "is not clearly smaller"}
    statements = []
    for state, text in words.items():
        trains = [train for train, found in states.items() if found == state]
        told = listed(
            [
                f"{train:,} bits ({number(estimates[train])} nats{'; neither has a loss left' * (train in none_left)})"
                for train in trains
            ]
        )
        statements += [
            Statement(states[train], f"it {text} trained on {told}" if place == 0 else "")
            for place, train in enumerate(trains)
        ]
    of_seeds = zip(*differences.values(), strict=True)
    mean = over_seeds([math.fsum(of_seed) / len(of_seed) for of_seed in of_seeds], statistics)
    quantity = f"loss of {scaled} minus loss of {plain} at {test:,} bits, mean over training lengths, nats"
    printed = [
        published_formal.SCALED[train].loss - published_formal.UNSCALED[train].loss
        for train in section.train_lengths
        if test == published_formal.TEST_LENGTH and train in published_formal.SCALED
    ]
    complete = len(printed) == len(section.train_lengths)
    published = math.fsum(printed) / len(printed) if complete else math.nan
    return Finding(_told(quantity, published), mean, statements, published)


def _not_learned(statistics: StatisticsConfig, section: ParityConfig, last: pd.DataFrame) -> Finding:
    places = [(arm, train, train) for arm in section.arms for train in section.train_lengths]
    percents = {place: by_seed(last, section, "percent", place) for place in places}
    found = {place: over_seeds(values, statistics) for place, values in percents.items()}
    statements = []
    for (arm, train, _), estimate in found.items():
        # A mean hides a single network that has found it.
        learned = sum(value > section.learned_above for value in percents[arm, train, train])
        below = estimate.high < section.learned_above
        state = _state(estimate, below and not learned, estimate.low >= section.learned_above)
        compared = "not below" if state == "refuted" else "below" if below else "not clearly below"
        text = f"{arm} gets {number(estimate, signed=False)} % at {train:,} bits, {compared} {section.learned_above:g}"
        above = f", with {learned} of {len(section.seeds)} networks above" if learned and state == "open" else ""
        statements.append(Statement(state, text + above))
    arm, train, _ = places[0]
    return Finding(f"accuracy of {arm}, trained and tested on {train:,} bits, percent", found[places[0]], statements)


def _told(quantity: str, published: float) -> str:
    # The paper prints no numbers for these claims.
    return quantity if math.isnan(published) else f"{quantity}; published: the replication's"


def _state(estimate: Estimate, shown: bool, refuted: bool) -> State:
    if math.isnan(estimate.low):
        return "open"
    return "shown" if shown else "refuted" if refuted else "open"
