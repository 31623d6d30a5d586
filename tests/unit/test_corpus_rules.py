"""Cleaning rules and the split, on texts and ids alone."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscale.corpus.clean import clean_text
from attnscale.corpus.documents import content_hash
from attnscale.corpus.split import held_out_flags, split_position

IDS = [content_hash(str(number)) for number in range(20_000)]


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\ufeffone\r\ntwo\rthree\n", "one\ntwo\nthree"),
        ("page one\fpage two", "page one\npage two"),
        ("tab\tstays, bell\x07 and \x7f and \x9f go", "tab\tstays, bell and  and  go"),
        ("a  \nb\u3000\n\tc\t", "a\nb\n\tc"),
        ("a\n\nb", "a\n\nb"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("a\n \n\t\n\u3000\n\nb", "a\n\nb"),
        ("\n\n  indented\n\n", "  indented"),
        ("e\x00\u0301", "\u00e9"),
        ("\u212b", "\u00c5"),
        ("三国演义\u3000第一回", "三国演义\u3000第一回"),
        (" \r\n\x00", ""),
    ],
)
def test_cleaning_follows_each_rule(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


@settings(max_examples=300)
@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\n\r\t \x00\x85\ufeff\u0301e"), max_size=60))
def test_cleaning_twice_changes_nothing_more(raw: str) -> None:
    once = clean_text(raw)
    assert clean_text(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not [char for char in once if unicodedata.category(char) == "Cc" and char not in "\n\t"]


def test_the_share_of_held_out_documents_is_near_the_wanted_one() -> None:
    for fraction in (0.05, 0.1, 0.5):
        share = sum(held_out_flags(IDS, fraction)) / len(IDS)
        # Four standard deviations of a binomial share.
        assert abs(share - fraction) < 4 * (fraction * (1 - fraction) / len(IDS)) ** 0.5


def test_the_split_of_known_ids_never_changes() -> None:
    assert split_position("f" * 48 + "4000000000000000") == 0.25
    # Found with sha256sum in a shell: the last 16 hexadecimal digits are below 1999999999999999.
    assert [index for index, flag in enumerate(held_out_flags(IDS[:60], 0.1)) if flag] == [11, 15, 18, 32, 48, 55]


def test_the_smallest_ids_are_split_like_all_others() -> None:
    smallest = sorted(IDS)[:2000]
    assert 140 < sum(held_out_flags(smallest, 0.1)) < 260


def test_the_order_of_the_ids_does_not_change_the_side_of_any() -> None:
    forward = dict(zip(IDS, held_out_flags(IDS, 0.1), strict=True))
    backward = dict(zip(IDS[::-1], held_out_flags(IDS[::-1], 0.1), strict=True))
    assert forward == backward


@pytest.mark.parametrize("count", [2, 3])
def test_both_sides_get_a_document_in_a_tiny_corpus(count: int) -> None:
    ids = sorted(IDS[:count], key=split_position)
    assert held_out_flags(ids, 1e-12) == [True] + [False] * (count - 1)
    assert held_out_flags(ids, 1 - 1e-12) == [True] * (count - 1) + [False]


def test_a_single_document_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="two documents"):
        held_out_flags(IDS[:1], 0.1)
