"""Verdicts on FIRST and PARITY from tables whose numbers are known."""

import math

import numpy as np
import pandas as pd
import pytest

from attnscale.analysis.claims import claims_table
from attnscale.analysis.differences import Evaluations
from attnscale.analysis.evidence import Evidence
from attnscale.analysis.formal_claims import over_seeds
from attnscale.analysis.verdicts import NOT_DECIDABLE, NOT_REPRODUCED, PARTLY, REPRODUCED
from attnscale.config import StatisticsConfig, parse_config

STATISTICS = StatisticsConfig(resamples=2000)
SEEDS = tuple(range(8))


def config_of(seeds=SEEDS, arms=None):
    section = {"seeds": seeds, "test_every": 10, "epochs": 10}
    return parse_config(
        {
            "name": "a",
            "arms": {"a": {"attention": "attention_o"}},
            "statistics": {"resamples": 2000},
            "first": {
                **section,
                "train_lengths": (10, 30),
                "test_lengths": (1000,),
                **({"arms": arms} if arms else {}),
            },
            "parity": section,
        },
        "here",
    )


def verdicts(config, shares, parity=0.5):
    """Claims 10 to 12; `shares` gives the right answers of an arm and training length, or of each seed."""
    rows = []
    for arm in config.first.arms:
        for train in config.first.train_lengths:
            for seed in config.first.seeds:
                share = shares(arm, train, seed) + 0.002 * (seed % 3)
                rows.append((arm, train, seed, 1000, 10, share, 3 * (1 - share)))
    columns = ["arm", "train_length", "seed", "test_length", "epoch", "accuracy", "loss"]
    other = [
        (arm, 20, seed, 20, 10, parity(seed) if callable(parity) else parity + 0.01 * (seed % 3), 0.69)
        for arm in config.parity.arms
        for seed in config.parity.seeds
    ]
    formal = {"first": pd.DataFrame(rows, columns=columns), "parity": pd.DataFrame(other, columns=columns)}
    evidence = Evidence(config, Evaluations({}, np.ones(1, dtype=np.int64), ()), formal=formal)
    table = claims_table(evidence).set_index("claim")
    assert table.index.tolist() == list(range(1, 13))
    return table.loc[10:]


def usual(arm, train, seed):
    if arm == "attention_o":
        return 0.52 if train == 10 else 0.75
    return 0.98


def test_the_published_pattern_is_reproduced():
    table = verdicts(config_of(), usual)
    assert table["verdict"].tolist() == [REPRODUCED] * 3
    assert table.loc[10, "published"] == pytest.approx(97.6 - 51.3)
    assert table.loc[10, "measured"] == pytest.approx(46.0)
    assert table.loc[[10, 11], "quantity"].str.endswith("published: the replication's").all()
    assert table.loc[11, "published"] == pytest.approx((0.650 - 12.29 + 0.0 - 4.82) / 2)
    # A sentence starts with a capital letter, but for the name of an arm.
    assert table.loc[10, "reason"].startswith("attention_o gets 52.1")
    assert table.loc[12, "reason"].startswith("attention_o gets 50.88")


def test_where_no_network_has_a_loss_left_it_is_said():
    table = verdicts(
        config_of(), lambda arm, train, seed: 1.0 - 0.002 * (seed % 3) if train == 30 else usual(arm, train, seed)
    )
    assert table.loc[11, "reason"].endswith(
        "it is not clearly smaller trained on 30 bits (0.00 [0.00, 0.00] nats; neither has a loss left)."
    )
    assert "neither" not in verdicts(config_of(), usual).loc[11, "reason"]


def test_a_scale_that_mends_nothing_refutes():
    table = verdicts(config_of(), lambda arm, train, seed: 0.52 if arm == "attention_o" else 0.5)
    assert table.loc[11, "verdict"] == NOT_REPRODUCED
    assert table.loc[10, "verdict"] == NOT_REPRODUCED


def test_plain_attention_that_does_not_fail_leaves_part_of_the_claim():
    table = verdicts(config_of(), lambda arm, train, seed: 0.85 if arm == "attention_o" else 0.98)
    assert table.loc[10, "verdict"] == PARTLY
    assert "not below 75" in table.loc[10, "reason"]


def test_parity_that_is_learned_refutes():
    assert verdicts(config_of(), usual, parity=0.97).loc[12, "verdict"] == NOT_REPRODUCED


def test_a_single_network_that_has_found_parity_is_not_hidden_by_the_others():
    table = verdicts(config_of(seeds=tuple(range(30))), usual, parity=lambda seed: 1.0 if seed == 4 else 0.5)
    assert table.loc[12, "ci_high"] < 60
    assert table.loc[12, "verdict"] == NOT_DECIDABLE
    assert "% at 20 bits, below 60, with 1 of 30 networks above" in table.loc[12, "reason"]


def test_two_seeds_decide_nothing():
    table = verdicts(config_of(seeds=(0, 1)), usual)
    assert table["verdict"].tolist() == [NOT_DECIDABLE] * 3


def test_means_and_intervals_over_seeds():
    estimate = over_seeds([0.0, 1.0] * 5, STATISTICS)
    assert (estimate.mean, estimate.seeds) == (0.5, 10)
    # Student's t for ten values with standard deviation 0.527: 0.5 ± 0.377, and ends are tenths.
    assert 0.0 < estimate.low <= 0.2
    assert 0.8 <= estimate.high < 1.0
    assert math.isnan(over_seeds([1.0], STATISTICS).low)
    assert over_seeds([0.1, 0.2, 0.6], STATISTICS) == over_seeds([0.1, 0.2, 0.6], STATISTICS)


@pytest.mark.parametrize(
    ("arms", "lacking"),
    [
        ({"acl2022": {"attention": "acl2022", "scales": "query_input"}}, "attention_o and scales: logits"),
        (
            {"attention_o": {"attention": "acl2022"}, "o": {"attention": "attention_o"}},
            "acl2022 and scales: query_input",
        ),
    ],
)
def test_an_arm_that_is_missing_is_named_whatever_others_are_called(arms, lacking):
    table = verdicts(config_of(arms=arms), usual)
    assert table.loc[[10, 11], "verdict"].tolist() == [NOT_DECIDABLE] * 2
    assert table.loc[10, "reason"] == f"The run has no arm in first with {lacking}."


def test_the_order_of_seeds_changes_no_number():
    rising, other = (verdicts(config_of(seeds), usual) for seeds in (SEEDS, (3, 1, 7, 0, 2, 6, 4, 5)))
    pd.testing.assert_frame_equal(rising, other)
