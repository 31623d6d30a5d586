"""Whole numbers of the training: enough steps, exact masks, a schedule that rises and falls."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscale import counts
from attnscale.config import TrainingConfig


@st.composite
def trainings(draw):
    length, batch_size = draw(st.integers(8, 512)), draw(st.integers(1, 128))
    return TrainingConfig(
        length=length,
        batch_size=batch_size,
        tokens=draw(st.integers(1, 400 * length * batch_size)),
        mask_rate=draw(st.floats(0.001, 0.999)),
        warmup_fraction=draw(st.floats(0, 0.99)),
    )


@given(trainings())
def test_steps_are_just_enough_for_the_tokens(training):
    steps, each = counts.steps(training), counts.tokens_per_step(training)
    assert each == training.length * training.batch_size
    assert steps >= 1
    assert steps * each >= training.tokens
    assert (steps - 1) * each < training.tokens


@given(trainings())
def test_the_number_of_masked_tokens_is_the_rate_to_the_nearest_token(training):
    masked, each = counts.masked_per_step(training), counts.tokens_per_step(training)
    assert 1 <= masked <= each
    assert masked == 1 or abs(masked - training.mask_rate * each) <= 0.5


@given(trainings())
def test_the_schedule_peaks_at_the_end_of_the_warm_up_and_stays_positive(training):
    rates = [counts.schedule(training, step) for step in range(counts.steps(training))]
    warmup = counts.warmup_steps(training)
    assert 0 <= warmup <= counts.steps(training)
    peak = max(warmup - 1, 0)
    assert rates[peak] == max(rates) == 1
    assert all(low < high for low, high in itertools.pairwise(rates[: peak + 1]))
    # The first step after the warm-up is at the peak still, as the decline has not begun.
    assert all(high > low for high, low in itertools.pairwise(rates[warmup:]))
    assert rates[-1] > 0


def test_without_warm_up_the_first_step_is_at_the_peak():
    training = TrainingConfig(length=8, batch_size=1, tokens=80, warmup_fraction=0)
    assert counts.warmup_steps(training) == 0
    assert [counts.schedule(training, step) for step in (0, 5, 9)] == pytest.approx([1, 0.5, 0.1])


def test_the_schedule_of_a_small_training_is_as_drawn_by_hand():
    training = TrainingConfig(length=8, batch_size=1, tokens=73, warmup_fraction=0.4)
    assert counts.steps(training) == 10
    assert [counts.schedule(training, step) for step in range(10)] == pytest.approx(
        [1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    )


def test_the_default_training_has_a_million_and_a_half_tokens_and_1229_masks_a_step():
    training = TrainingConfig()
    assert counts.steps(training) * counts.tokens_per_step(training) >= 1_500_000
    assert counts.masked_per_step(training) == 1229


@given(trainings(), st.floats(0.001, 0.999))
def test_the_step_of_a_share_is_the_nearest_whole_step_and_at_least_the_first(training, share):
    step, steps = counts.step_at(training, share), counts.steps(training)
    assert 1 <= step <= steps
    assert step == 1 or abs(step - share * steps) <= 0.5


def test_three_quarters_of_ten_steps_are_eight():
    training = TrainingConfig(length=8, batch_size=1, tokens=80)
    assert [counts.step_at(training, share) for share in (0.01, 0.25, 0.5, 0.75)] == [1, 2, 5, 8]
