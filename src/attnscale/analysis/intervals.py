"""Intervals and tests for differences between arms that share seeds and evaluation blocks.

A difference between two arms is uncertain twice: another seed would have given other weights, and other held-out
text other targets. The Multi-Bootstrap (Sellam et al. 2022, "The MultiBERTs", arXiv 2106.16163, section 3) draws both
anew, seeds and blocks with replacement and independently of each other; as arms are paired, a draw takes the same
seeds and the same blocks for both arms.

The interval is the *expanded* percentile interval (Hesterberg 2015, "What Teachers Should Know About the Bootstrap",
arXiv 1411.5279). A percentile interval needs no formula for a standard error, which two crossed sources of noise would
make awkward, and it may be lopsided; but the plain one, from 2.5 % to 97.5 % of the resamples, is too narrow for few
seeds: with six that make all the noise it holds the true value in some 87 % of the cases. The expanded one reads
further out, where for normal data it agrees with Student's t for the smaller of the two samples: cautious if the
blocks make most of the noise, right if the seeds do. No resample lies outside the seeds that there are, though: where
they make the noise, an interval from k seeds cannot hold the true value in more than 1 - 2^(1-k) of the cases, which
is 75 % for three, 94 % for five and 97 % for six. The bias-corrected and accelerated interval is no way out: it is
defined for one sample, not for two that cross.

Array names end in their shape: T quantities, S seeds, K blocks, R resamples, r of them at a time.
"""

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit

from attnscale.rng import Stream

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Resamples are made in parts, each from random numbers of its own, so that memory does not grow with their number.
_PART = 500
# Draws of up to this many items are kept for the next call; a table of differences asks for the same ones each time.
_KEPT = 1000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    mean: float
    low: float
    """Lower end of the interval; NaN if there is nothing to resample."""
    high: float
    seeds: int
    """How many seeds it rests on; with one, the interval covers the choice of text only, not training."""


def paired_difference(
    ours_SK: Counts, theirs_SK: Counts, total_K: Counts, *, resamples: int, confidence: float
) -> Estimate:
    """Accuracy of one arm minus that of another, in points of percent, averaged over seeds.

    Args:
        ours_SK: right predictions per seed and block of the one arm.
        theirs_SK: those of the other, for the same seeds and blocks.
        total_K: targets per block, the same for all arms and seeds.
        resamples: R.
        confidence: of the interval, such as 0.95.
    """
    return percent(ours_SK - theirs_SK, total_K, resamples=resamples, confidence=confidence)


def percent(counts_SK: Counts, total_K: Counts, *, resamples: int, confidence: float) -> Estimate:
    """Counts as a percentage of the targets, averaged over seeds.

    Args:
        counts_SK: right predictions per seed and block, or any whole-number combination of those of several arms
            and lengths, such as a difference of differences.
        total_K: targets per block.
        resamples: R.
        confidence: of the interval.
    """
    return percents(counts_SK[None], total_K, resamples=resamples, confidence=confidence)[0]


def percents(counts_TSK: Counts, total_K: Counts, *, resamples: int, confidence: float) -> list[Estimate]:
    """Many of `percent` at once, which is faster."""
    sums_TR, totals_R = resampled_sums(counts_TSK, total_K, resamples)
    _, seeds, blocks = counts_TSK.shape
    targets = seeds * float(total_K.sum())
    estimates = []
    for counts_SK, sums_R in zip(counts_TSK, sums_TR, strict=True):
        low, high = interval(100.0 * sums_R / totals_R, (seeds, blocks), confidence)
        estimates.append(Estimate(100.0 * float(counts_SK.sum()) / targets, low, high, seeds))
    return estimates


def ratio(upper_SK: Counts, lower_SK: Counts, total_K: Counts, *, resamples: int, confidence: float) -> Estimate:
    """Right predictions of one arm and length over those of another, such as accuracy kept at a longer length.

    Args:
        upper_SK: right predictions per seed and block.
        lower_SK: what they are divided by, for the same seeds and blocks.
        total_K: targets per block.
        resamples: R.
        confidence: of the interval.

    Returns:
        The ratio of the sums over seeds and blocks; NaN throughout if a divisor is zero.
    """
    sums_TR, _ = resampled_sums(np.stack([upper_SK, lower_SK]), total_K, resamples)
    whole = float(lower_SK.sum())
    if whole <= 0 or (sums_TR[1] <= 0).any():
        return Estimate(math.nan, math.nan, math.nan, len(upper_SK))
    low, high = interval(sums_TR[0] / sums_TR[1], upper_SK.shape, confidence)
    return Estimate(float(upper_SK.sum()) / whole, low, high, len(upper_SK))


def resampled_sums(counts_TSK: Counts, total_K: Counts, resamples: int) -> tuple[Floats, Floats]:
    """Sums over seeds and blocks drawn anew; everything is a whole number, so no order of adding changes a bit.

    All calls draw the same seeds for the same S and the same blocks for the same K: adding an arm changes no other
    interval, and a difference of differences is resampled as its parts are.

    Args:
        counts_TSK: whole numbers.
        total_K: targets per block.
        resamples: R.

    Returns:
        Sums (T, R), and S times the sum of the targets (R).
    """
    quantities, seeds, blocks = counts_TSK.shape
    sums_TR, totals_R = np.empty((quantities, resamples)), np.empty(resamples)
    counts_XK = counts_TSK.reshape(quantities * seeds, blocks).astype(np.float64)
    for number, first in enumerate(range(0, resamples, _PART)):
        part = slice(first, min(first + _PART, resamples))
        weights_rS = _weights("bootstrap seeds", number, seeds)[: part.stop - first].astype(np.float64)
        weights_rK = _weights("bootstrap blocks", number, blocks)[: part.stop - first].astype(np.float64)
        by_seed_TSr = (counts_XK @ weights_rK.T).reshape(quantities, seeds, -1)
        sums_TR[:, part] = (by_seed_TSr * weights_rS.T).sum(axis=1)
        totals_R[part] = seeds * (weights_rK @ total_K.astype(np.float64))
    return sums_TR, totals_R


def _weights(purpose: str, number: int, size: int) -> npt.NDArray[np.uint16]:
    """How often each of `size` items comes up when `size` are drawn with replacement, one row per resample of a part.

    Args:
        purpose: what is drawn; names the random numbers.
        number: which part.
        size: number of items.
    """
    return _kept_draws(purpose, number, size) if size <= _KEPT else _draws(purpose, number, size)


def _draws(purpose: str, number: int, size: int) -> npt.NDArray[np.uint16]:
    drawn = Stream(purpose, number).integers(_PART * size, size).reshape(_PART, size)
    places = drawn + size * np.arange(_PART)[:, None]
    return np.bincount(places.ravel(), minlength=_PART * size).reshape(_PART, size).astype(np.uint16)


_kept_draws = functools.lru_cache(maxsize=128)(_draws)


def interval(values_R: Floats, shape: tuple[int, ...], confidence: float) -> tuple[float, float]:
    """Expanded percentile interval (see the head of this file); its ends are resamples, nothing is interpolated.

    Args:
        values_R: one value per resample.
        shape: numbers of seeds and of blocks; one that is 1 was not resampled and does not count.
        confidence: of the interval.

    Returns:
        Lower and upper end; NaN if there was one seed and one block.
    """
    resampled = [count for count in shape if count > 1]
    if not resampled:
        return math.nan, math.nan
    size = min(resampled)
    quantile = stdtrit(size - 1, 0.5 + confidence / 2)
    tail = float(ndtr(-quantile * math.sqrt(size / (size - 1))))
    ordered_R = np.sort(values_R)
    beyond = int(tail * len(ordered_R))
    return float(ordered_R[beyond]), float(ordered_R[-1 - beyond])


def sign_flip_p(differences_S: Counts) -> float:
    """Two-sided p of the sign-flip test over seeds: could paired differences as far from zero be luck?

    If the arms do not differ, each seed's difference might as well have had the other sign. p is the share of all
    2^S patterns of signs whose sum is at least as far from zero as the one seen, counted exactly for any S: instead
    of listing patterns, which `scipy.stats.permutation_test` does, the chance of every possible sum is built up seed
    by seed.

    Args:
        differences_S: difference in right predictions, one whole number per seed.

    Returns:
        p, never below `smallest_p`; NaN for one seed, which has nothing to be compared with.
    """
    if len(differences_S) < 2:
        return math.nan
    reach = int(np.abs(differences_S).sum())
    chances = np.zeros(2 * reach + 1)
    chances[reach] = 1.0
    for step in np.abs(differences_S):
        chances = 0.5 * (np.roll(chances, step) + np.roll(chances, -step))
    distance = np.abs(np.arange(-reach, reach + 1))
    return float(chances[distance >= abs(int(differences_S.sum()))].sum())


def smallest_p(seeds: int) -> float:
    """The smallest p that the sign-flip test can give: 0.0625 with 5 seeds, 0.03125 with 6."""
    return math.nan if seeds < 2 else 2.0 ** (1 - seeds)


def holm(p: Floats) -> Floats:
    """Holm's step-down correction (Holm 1979, Scandinavian Journal of Statistics 6:65).

    Args:
        p: one p per test of the family; NaN is no test.

    Returns:
        Corrected p in the same order, at most 1; NaN stays NaN and does not count.
    """
    corrected = np.full(len(p), np.nan)
    tests = np.flatnonzero(~np.isnan(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected
