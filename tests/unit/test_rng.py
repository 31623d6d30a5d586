"""Random numbers: the same bits for ever, and as random as they must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscale.rng import Stream

GOLDEN_WORDS = ["36f5c84035b4a28a", "17208927e3a5c916", "38c3661760937ae1", "66514b27d8f5d004"]
GOLDEN_WORDS_WITHOUT_KEYS = ["cbcbaf5542b9ef3f", "38a74519f6c28ed2"]
GOLDEN_UNIFORMS = ["0x1.b7ae4201ada50p-3", "0x1.7208927e3a5c8p-4", "0x1.c61b30bb049bcp-3"]
GOLDEN_INTEGERS = [214, 90, 221, 399, 692, 61, 307, 716]
GOLDEN_CHOICE = [5, 1, 0, 2, 6, 8, 3, 9, 4, 7]
GOLDEN_NORMALS = "006ec2be0036c03e002734bf"

keys = st.lists(st.integers(0, 2**31) | st.text(max_size=5), max_size=3)


def test_the_first_words_of_a_stream_never_change():
    # Whoever changes these changes every mask, every order and every initial weight of all runs.
    assert [f"{word:016x}" for word in Stream("golden", 0, 1).words(4)] == GOLDEN_WORDS
    assert [f"{word:016x}" for word in Stream("golden").words(2)] == GOLDEN_WORDS_WITHOUT_KEYS


def test_what_is_made_of_the_words_never_changes():
    assert [value.hex() for value in Stream("golden", 0, 1).uniforms(3).tolist()] == GOLDEN_UNIFORMS
    assert Stream("golden", 0, 1).integers(8, 1000).tolist() == GOLDEN_INTEGERS
    assert Stream("golden", 0, 1).choose(10, 10).tolist() == GOLDEN_CHOICE
    assert Stream("golden", 0, 1).normals(3).tobytes().hex() == GOLDEN_NORMALS


@given(st.text(max_size=10), keys)
def test_a_name_gives_the_same_stream_again(purpose, keys):
    np.testing.assert_array_equal(Stream(purpose, *keys).words(5), Stream(purpose, *keys).words(5))


@given(st.tuples(st.text(max_size=10), keys), st.tuples(st.text(max_size=10), keys))
def test_other_names_give_other_streams(one, other):
    def name(purpose, keys):
        return [purpose, *map(str, keys)]

    if name(*one) != name(*other) and "\x1f" not in "".join(name(*one) + name(*other)):
        assert (Stream(one[0], *one[1]).words(4) != Stream(other[0], *other[1]).words(4)).all()


def test_streams_of_neighbouring_keys_are_unlike():
    streams = [Stream("masks", seed, step).words(64) for seed in range(20) for step in range(20)]
    assert len(np.unique(np.concatenate(streams))) == 400 * 64
    uniform = np.stack([(words >> np.uint64(11)).astype(float) * 2.0**-53 for words in streams])
    assert np.abs(np.corrcoef(uniform)[~np.eye(400, dtype=bool)]).max() < 0.75  # 5 standard deviations are 0.62


@given(st.integers(0, 100), st.integers(0, 100))
def test_words_drawn_in_two_steps_are_the_words_drawn_at_once(first, second):
    stream = Stream("steps")
    parts = [stream.words(first), stream.words(second)]
    np.testing.assert_array_equal(np.concatenate(parts), Stream("steps").words(first + second))


@given(st.integers(0, 2**31), st.integers(0, 500))
def test_uniforms_lie_in_the_half_open_unit_interval(seed, count):
    values = Stream("uniforms", seed).uniforms(count)
    assert values.dtype == np.float64
    assert values.shape == (count,)
    assert ((values >= 0) & (values < 1)).all()
    assert (values * 2**53 == np.floor(values * 2**53)).all()


def test_uniforms_are_even():
    counts, _ = np.histogram(Stream("even").uniforms(100_000), bins=100, range=(0, 1))
    chi_square = ((counts - 1000.0) ** 2 / 1000.0).sum()
    assert 50 < chi_square < 170  # 99 degrees of freedom; the chance of a wrong alarm is 2e-5


@given(st.integers(0, 2**31), st.integers(1, 2**40))
def test_integers_keep_their_bounds(seed, high):
    values = Stream("integers", seed).integers(50, high)
    assert values.dtype == np.int64
    assert values.min() >= 0
    assert values.max() < high


def test_integers_reach_every_value_evenly():
    counts = np.bincount(Stream("dice").integers(60_000, 6), minlength=6)
    assert len(counts) == 6
    assert ((counts - 10_000.0) ** 2 / 10_000.0).sum() < 30  # 5 degrees of freedom: 1.5e-5


@given(st.integers(0, 2**31), st.integers(0, 300), st.data())
def test_chosen_numbers_are_different_and_of_the_population(seed, population, data):
    count = data.draw(st.integers(0, population))
    chosen = Stream("choose", seed).choose(population, count)
    assert len(chosen) == count == len(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(range(population))


def test_every_number_is_chosen_equally_often_at_every_place():
    draws = np.stack([Stream("places", draw).choose(5, 3) for draw in range(10_000)])
    for place in range(3):
        counts = np.bincount(draws[:, place], minlength=5)
        assert ((counts - 2000.0) ** 2 / 2000.0).sum() < 27  # 4 degrees of freedom: 2e-5


def test_normals_have_mean_0_variance_1_and_the_documented_kurtosis():
    values = Stream("normals").normals(400_000).astype(np.float64)
    assert abs(values.mean()) < 5 / np.sqrt(400_000)
    assert values.var() == pytest.approx(1, abs=5 * np.sqrt(2 / 400_000))
    assert (values**3).mean() == pytest.approx(0, abs=0.02)
    assert (values**4).mean() / values.var() ** 2 == pytest.approx(2.9, abs=0.04)
    assert np.abs(values).max() <= 6


@given(st.integers(0, 2**31), st.integers(0, 50))
def test_normals_are_float32_without_repetition(seed, count):
    values = Stream("shape", seed).normals(count)
    assert values.dtype == np.float32
    assert values.shape == (count,)
    assert len(np.unique(values)) >= count - 1
