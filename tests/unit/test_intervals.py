"""Intervals and tests over seeds and blocks: known answers, exact small cases, properties."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm, permutation_test, t

from attnscale.analysis.intervals import (
    Estimate,
    holm,
    interval,
    paired_difference,
    percent,
    percents,
    ratio,
    resampled_sums,
    sign_flip_p,
    smallest_p,
)
from attnscale.rng import Stream

SETTINGS = {"resamples": 2000, "confidence": 0.95}

small_counts = arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.integers(-20, 20))


def resampled(counts_SK, total_K, resamples=50_000):
    sums_TR, totals_R = resampled_sums(np.asarray(counts_SK)[None], np.asarray(total_K), resamples)
    return 100.0 * sums_TR[0] / totals_R


def shares(values_R):
    values, counts = np.unique(values_R, return_counts=True)
    return dict(zip(values.tolist(), (counts / len(values_R)).tolist(), strict=True))


def test_two_seeds_and_one_block_give_three_means_with_chances_of_one_half_and_two_quarters():
    found = shares(resampled([[0], [10]], [100]))
    assert list(found) == [0.0, 5.0, 10.0]
    assert list(found.values()) == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_one_seed_and_two_blocks_weigh_blocks_by_their_targets():
    found = shares(resampled([[10, 0]], [100, 50]))
    assert list(found) == [0.0, 100.0 * 10 / 150, 10.0]
    assert list(found.values()) == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_seeds_and_blocks_are_drawn_independently_of_each_other():
    counts, total = np.array([[7, 1], [0, -3]]), np.array([10, 10])
    expected: dict[float, float] = {}
    for seeds in itertools.product((0, 1), repeat=2):
        for blocks in itertools.product((0, 1), repeat=2):
            value = 100.0 * sum(int(counts[s, k]) for s in seeds for k in blocks) / 40
            expected[value] = expected.get(value, 0.0) + 1 / 16
    found = shares(resampled(counts, total))
    assert sorted(found) == sorted(expected)
    assert [found[value] for value in sorted(expected)] == pytest.approx(
        [expected[value] for value in sorted(expected)], abs=0.01
    )


def test_the_interval_of_two_seeds_and_one_block_goes_from_one_seed_to_the_other():
    ours, theirs = np.array([[30], [45]]), np.array([[30], [35]])
    assert paired_difference(ours, theirs, np.array([100]), **SETTINGS) == Estimate(5.0, 0.0, 10.0, 2)


def test_pairing_removes_what_both_arms_share():
    wild = np.array([[10, 80, 40], [60, 20, 90]])
    assert paired_difference(wild + 3, wild, np.full(3, 100), **SETTINGS) == Estimate(3.0, 3.0, 3.0, 2)


def test_one_seed_and_one_block_leave_nothing_to_resample():
    made = percent(np.array([[5]]), np.array([10]), **SETTINGS)
    assert (made.mean, made.seeds) == (50.0, 1)
    assert math.isnan(made.low)
    assert math.isnan(made.high)


def test_with_one_seed_only_blocks_are_resampled():
    counts = np.array([[1, 2, 3, 4, 5, 6, 7, 8]])
    made = percent(counts, np.full(8, 10), **SETTINGS)
    values = np.sort(resampled(counts, np.full(8, 10), 2000))
    beyond = int(2000 * norm.cdf(-t.ppf(0.975, 7) * math.sqrt(8 / 7)))
    assert (made.seeds, made.low, made.high) == (1, values[beyond], values[-1 - beyond])
    assert beyond > 5


@pytest.mark.parametrize(("seeds", "share"), [(6, 0.0024308), (20, 0.0158)])
def test_the_expanded_interval_reads_as_far_out_as_student_does(seeds, share):
    values = np.arange(100_000.0)
    low, high = interval(values, (seeds, 500), 0.95)
    assert low / len(values) == pytest.approx(share, rel=0.01)
    assert low == len(values) - 1 - high


def test_the_expanded_interval_holds_the_true_difference_as_often_as_it_says():
    seeds, blocks, trials = 6, 20, 300
    noise = Stream("coverage").normals(trials * (seeds + blocks)).reshape(trials, -1).astype(np.float64)
    counts = np.rint(300 * noise[:, :seeds, None] + 100 * noise[:, None, seeds:]).astype(np.int64)
    made = percents(counts, np.full(blocks, 1000), **SETTINGS)
    held = sum(estimate.low <= 0 <= estimate.high for estimate in made) / trials
    sums_TR, _ = resampled_sums(counts, np.full(blocks, 1000), 2000)
    low, high = np.quantile(sums_TR, [0.025, 0.975], axis=1)
    plain = ((low <= 0) & (high >= 0)).mean()
    assert plain < 0.91
    assert 0.92 < held < 0.99


def test_a_ratio_of_equal_counts_is_one_and_of_halves_one_half():
    counts = np.array([[40, 20], [10, 60]])
    total = np.array([100, 100])
    assert ratio(counts, counts, total, **SETTINGS) == Estimate(1.0, 1.0, 1.0, 2)
    assert ratio(counts // 2, counts, total, **SETTINGS) == Estimate(0.5, 0.5, 0.5, 2)


def test_a_ratio_to_nothing_is_no_number():
    made = ratio(np.array([[1, 2]]), np.array([[0, 5]]), np.array([10, 10]), **SETTINGS)
    assert math.isnan(made.mean)
    assert math.isnan(made.low)


@given(small_counts, st.integers(-5, 5))
@settings(deadline=None, max_examples=40)
def test_intervals_turn_with_the_sign_and_move_with_a_constant(counts_SK, shift):
    total = np.full(counts_SK.shape[1], 50)
    quick = {"resamples": 200, "confidence": 0.9}
    made = percent(counts_SK, total, **quick)
    turned = percent(-counts_SK, total, **quick)
    moved = percent(counts_SK + shift, total, **quick)
    assert np.array_equal([turned.mean, turned.low, turned.high], [-made.mean, -made.high, -made.low], equal_nan=True)
    expected = [made.mean + 2 * shift, made.low + 2 * shift, made.high + 2 * shift]
    np.testing.assert_allclose([moved.mean, moved.low, moved.high], expected, atol=1e-9)


@given(small_counts)
@settings(deadline=None, max_examples=40)
def test_resamples_lie_between_the_smallest_and_largest_cell(counts_SK):
    values = resampled(counts_SK, np.full(counts_SK.shape[1], 100), 200)
    assert counts_SK.min() - 1e-9 <= values.min()
    assert values.max() <= counts_SK.max() + 1e-9


def test_equal_calls_give_equal_bits_whatever_else_is_asked_for():
    counts = Stream("counts").integers(3 * 40, 50).reshape(3, 40)
    total = np.full(40, 300)
    first = percent(counts, total, **SETTINGS)
    percent(counts[:2, :7], total[:7], **SETTINGS)
    assert percent(counts, total, **SETTINGS) == first
    assert percents(np.stack([counts + 1, counts]), total, **SETTINGS)[1] == first


def test_more_blocks_than_are_kept_in_memory_give_the_same_draws_each_time():
    counts = Stream("counts").integers(2 * 1200, 50).reshape(2, 1200)
    quick = {"resamples": 700, "confidence": 0.95}
    assert percent(counts, np.full(1200, 300), **quick) == percent(counts, np.full(1200, 300), **quick)


def test_the_first_resamples_are_these_on_every_machine():
    sums_TR, totals_R = resampled_sums(np.array([[[1, 10, 100], [1000, 10_000, 100_000]]]), np.array([1, 2, 4]), 3)
    assert sums_TR[0].tolist() == [111_111.0, 24_000.0, 402.0]
    assert totals_R.tolist() == [14.0, 8.0, 18.0]


def test_the_smallest_p_halves_with_every_seed():
    assert [smallest_p(seeds) for seeds in (2, 5, 6)] == [0.5, 0.0625, 0.03125]
    assert math.isnan(smallest_p(1))
    assert [sign_flip_p(np.arange(1, seeds + 1)) for seeds in (2, 5, 6)] == [0.5, 0.0625, 0.03125]


def test_sign_flips_of_small_cases_by_hand():
    # Sums of ±1 ±2: 3, 1, -1, -3. Seen 3: two of four patterns are as far out; seen 1: all four.
    assert sign_flip_p(np.array([1, 2])) == 0.5
    assert sign_flip_p(np.array([-1, 2])) == 1.0
    # Sums of ±1 ±1 ±3: seen 3 (1 - 1 + 3). As far out: ±5 (2 patterns) and ±3 (4 patterns) of 8.
    assert sign_flip_p(np.array([1, -1, 3])) == 0.75
    assert sign_flip_p(np.zeros(4, dtype=np.int64)) == 1.0
    assert math.isnan(sign_flip_p(np.array([7])))


@given(arrays(np.int64, st.integers(2, 8), elements=st.integers(-30, 30)))
@settings(deadline=None, max_examples=60)
def test_sign_flips_agree_with_listing_all_patterns(differences):
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    expected = (np.abs(signs @ differences) >= abs(differences.sum())).mean()
    assert sign_flip_p(differences) == expected
    assert sign_flip_p(-differences[::-1]) == expected


def test_sign_flips_agree_with_scipy():
    differences = np.array([31, -4, 15, 9, 26, -5])
    made = permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_p(differences) == pytest.approx(made.pvalue, abs=1e-12)


def test_sign_flips_of_forty_seeds_are_counted_exactly_too():
    assert sign_flip_p(np.full(40, 3)) == 2.0**-39


def test_holm_by_hand_and_rows_without_a_test_do_not_count():
    corrected = holm(np.array([0.04, np.nan, 0.01, 0.03, 0.5]))
    np.testing.assert_allclose(corrected, [0.09, np.nan, 0.04, 0.09, 0.5])
    assert holm(np.array([0.6, 0.7])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []
    assert np.isnan(holm(np.array([np.nan]))).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_holm_never_lowers_a_p_keeps_the_order_and_ignores_that_of_the_rows(values, random):
    p = np.array(values)
    corrected = holm(p)
    assert (corrected >= p).all()
    assert (corrected <= np.minimum(1.0, p * len(p) + 1e-12)).all()
    assert (np.diff(corrected[np.argsort(p, kind="stable")]) >= 0).all()
    order = np.array(random.sample(range(len(p)), len(p)))
    np.testing.assert_array_equal(holm(p[order]), corrected[order])
