"""Which arms are compared, and the table of differences."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attnscale.analysis.comparisons import (
    acl_arm,
    article_arm,
    baseline_arm,
    comparisons,
    depends_on_length,
    differences_settings,
    repaired_arms,
    switch_arm,
)
from attnscale.analysis.differences import load_evaluations, write_differences
from attnscale.analysis.settings import DifferencesSettings
from attnscale.config import Config, StatisticsConfig
from attnscale.errors import UserError
from attnscale.rng import Stream

ON = {"name": "attention_e", "base": "training_length"}
ARMS = {
    "plain": {"attention": "attention_o"},
    "entropy": {"attention": "attention_e"},
    "acl": {"attention": "acl2022"},
    "on": {"attention": ON, "weights_of": "plain"},
    "frozen": {"attention": "attention_e", "weights_of": "entropy", "n_at_most": "training_length"},
    "clipped": {"attention": "attention_o", "weights_of": "plain", "positions": "clipped"},
    "clipped_on": {"attention": ON, "weights_of": "plain", "positions": "clipped"},
    "narrow_on": {"attention": ON, "weights_of": "plain", "positions": {"name": "clipped", "width": 32}},
    "mixed": {"attention": "attention_o", "training_lengths": [16, 64]},
    "mixed_e": {"attention": "attention_e", "training_lengths": [16, 64]},
    "branch": {"attention": "attention_o", "branch": {"of": "plain", "at": 0.75}},
    "branch_e": {"attention": ON, "branch": {"of": "plain", "at": 0.75}, "seeds": [0]},
}


def config_of(arms=ARMS, **changes) -> Config:
    data = {"name": "made", "seeds": [0, 1], "arms": arms, "training": {"snapshots": [0.75]}, **changes}
    return Config.model_validate(data)


def evaluation(path: Path, arm: str, seed: int, correct: dict[int, list[int]], total: int = 100) -> Path:
    """An evaluation table as the evaluate stage writes it."""
    rows = [(arm, seed, n, k, right, total) for n, blocks in correct.items() for k, right in enumerate(blocks)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=["arm", "seed", "length", "block", "correct", "total"]).to_csv(path, index=False)
    return path


def settings(*pairs: tuple[str, str], **statistics) -> DifferencesSettings:
    values = {"resamples": 500, "primary_arm": "e", "primary_baseline": "o", "primary_length": 128, **statistics}
    return DifferencesSettings(comparisons=pairs, training_length=64, statistics=StatisticsConfig(**values))


def table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path).set_index(["arm", "baseline", "length"])


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Arms o, e and x with 3, 3 and 1 seeds, at 64, 128 and 256 tokens, with four blocks."""
    made = []
    for arm, seeds, gain in (("o", 3, 0), ("e", 3, 8), ("x", 1, -4)):
        for seed in range(seeds):
            noise = Stream("made", arm, seed).integers(12, 5).reshape(3, 4)
            correct = {n: (40 + gain + noise[i]).tolist() for i, n in enumerate((64, 128, 256))}
            made.append(evaluation(tmp_path / arm / f"seed{seed}.csv", arm, seed, correct))
    return made


def test_every_difference_that_answers_a_question_is_taken_once():
    assert comparisons(config_of()) == (
        ("acl", "plain"),
        ("branch", "plain"),
        ("branch_e", "branch"),
        ("branch_e", "plain"),
        ("clipped", "plain"),
        ("clipped_on", "clipped"),
        ("clipped_on", "plain"),
        ("entropy", "on"),
        ("entropy", "plain"),
        ("frozen", "entropy"),
        ("frozen", "plain"),
        ("mixed", "plain"),
        ("mixed_e", "mixed"),
        ("mixed_e", "plain"),
        ("narrow_on", "plain"),
        ("on", "plain"),
    )


def test_settings_do_not_depend_on_the_order_of_the_arms():
    turned = dict(reversed(ARMS.items()))
    assert differences_settings(config_of(turned)).canonical() == differences_settings(config_of()).canonical()


def test_settings_survive_their_canonical_json():
    made = differences_settings(config_of())
    assert DifferencesSettings.model_validate_json(made.canonical()) == made


def test_arms_are_found_by_what_they_do():
    config = config_of()
    assert (baseline_arm(config), article_arm(config), acl_arm(config)) == ("plain", "entropy", "acl")
    assert switch_arm(config) == "on"
    assert repaired_arms(config, "clipped") == ("clipped", "clipped_on")
    assert repaired_arms(config, "band") is None
    assert [arm for arm in sorted(config.arms) if not depends_on_length(config, arm)] == [
        "branch", "clipped", "frozen", "mixed", "plain",
    ]  # fmt: skip


def test_an_attention_e_that_equals_the_baseline_in_training_is_not_that_of_the_article():
    config = config_of({"plain": {"attention": "attention_o"}, "e": {"attention": ON}})
    assert article_arm(config) is None
    assert comparisons(config) == (("e", "plain"),)


def test_without_a_plain_arm_test_time_arms_are_still_compared_with_their_weights():
    config = config_of({"e": {"attention": "attention_e"}, "off": {"attention": "attention_o", "weights_of": "e"}})
    assert baseline_arm(config) is None
    assert comparisons(config) == (("off", "e"),)


def test_the_table_has_means_by_hand_and_one_row_per_comparison_and_length(tmp_path):
    one = evaluation(tmp_path / "1.csv", "o", 0, {64: [10, 20], 128: [10, 10]})
    two = evaluation(tmp_path / "2.csv", "o", 1, {64: [20, 20], 128: [0, 10]})
    three = evaluation(tmp_path / "3.csv", "e", 0, {64: [12, 20], 128: [20, 30]})
    four = evaluation(tmp_path / "4.csv", "e", 1, {64: [20, 24], 128: [10, 20]})
    write_differences(settings(("e", "o")), [one, two, three, four], tmp_path / "differences.csv")
    found = table(tmp_path / "differences.csv")
    assert (tmp_path / "differences.csv").read_text().splitlines()[0] == (
        "arm,baseline,length,seeds,mean,ci_low,ci_high,p,p_holm"
    )
    assert found.index.tolist() == [("e", "o", 64), ("e", "o", 128)]
    assert found["mean"].tolist() == [100 * 6 / 400, 100 * 50 / 400]
    assert found["seeds"].tolist() == [2, 2]
    assert found["p"].tolist() == [0.5, 0.5]
    # Two seeds: the interval spans all resamples, from the smallest cell to the largest.
    assert found.loc[("e", "o", 64), ["ci_low", "ci_high"]].tolist() == [0.0, 4.0]


def test_the_order_of_rows_inside_the_files_changes_no_byte(tmp_path, files):
    pairs = settings(("e", "o"), ("x", "o"))
    write_differences(pairs, files, tmp_path / "a.csv")
    for number, path in enumerate(files):
        rows = pd.read_csv(path).sample(frac=1.0, random_state=number)
        rows[["total", "arm", "block", "correct", "seed", "length"]].to_csv(path, index=False)
    write_differences(pairs, files, tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_arms_come_in_the_order_of_the_files_and_seeds_in_any(tmp_path, files):
    pairs = settings(("e", "o"), ("x", "e"), ("x", "o"))
    write_differences(pairs, files, tmp_path / "a.csv")
    write_differences(pairs, files[::-1], tmp_path / "b.csv")
    first, second = (pd.read_csv(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert first["arm"].unique().tolist() == ["e", "x"]
    assert second["arm"].unique().tolist() == ["x", "e"]
    same = ["arm", "baseline", "length"]
    pd.testing.assert_frame_equal(
        first.sort_values(same, ignore_index=True), second.sort_values(same, ignore_index=True)
    )


def test_another_arm_changes_no_other_interval_or_p(tmp_path, files):
    write_differences(settings(("e", "o"), ("x", "o")), files, tmp_path / "a.csv")
    write_differences(settings(("e", "o")), files[:6], tmp_path / "b.csv")
    both, alone = table(tmp_path / "a.csv"), table(tmp_path / "b.csv")
    columns = ["seeds", "mean", "ci_low", "ci_high", "p"]
    pd.testing.assert_frame_equal(both.loc[["e"], columns], alone[columns])


def test_pairs_rest_on_common_seeds_and_one_seed_has_an_interval_but_no_p(tmp_path, files):
    write_differences(settings(("x", "o")), files, tmp_path / "a.csv")
    found = table(tmp_path / "a.csv")
    assert found["seeds"].tolist() == [1, 1, 1]
    assert found[["p", "p_holm"]].isna().all(axis=None)
    assert (found["ci_low"] < found["mean"]).all()
    ours, theirs = (pd.read_csv(files[i]) for i in (6, 0))
    at_64 = ours["length"] == 64
    expected = 100 * (ours["correct"] - theirs["correct"])[at_64].sum() / 400
    assert found.loc[("x", "o", 64), "mean"] == expected


def test_comparisons_without_a_common_seed_or_an_evaluation_are_left_out(tmp_path, files):
    late = evaluation(tmp_path / "late.csv", "late", 9, {64: [1, 1, 1, 1]})
    pairs = settings(("late", "o"), ("never", "o"), ("e", "never"))
    write_differences(pairs, [*files, late], tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "arm,baseline,length,seeds,mean,ci_low,ci_high,p,p_holm\n"


def test_the_primary_comparison_is_tested_alone_and_the_others_beyond_training_together(tmp_path):
    # Six seeds that all agree: p is 1/32 everywhere, as small as it can be.
    files = [
        evaluation(tmp_path / arm / f"{seed}.csv", arm, seed, {n: [30 + gain + seed] * 3 for n in (32, 64, 128, 256)})
        for arm, gain in (("o", 0), ("e", 6), ("x", 9))
        for seed in range(6)
    ]
    for path in files:
        rows = pd.read_csv(path)
        rows["correct"] += rows["seed"] * (rows["arm"] == "e")
        rows.to_csv(path, index=False)
    write_differences(settings(("e", "o"), ("x", "o")), files, tmp_path / "a.csv")
    found = table(tmp_path / "a.csv")
    assert (found["p"] == 1 / 32).all()
    assert found["p_holm"].isna().tolist() == [length <= 64 for _, _, length in found.index]
    assert found.loc[("e", "o", 128), "p_holm"] == 1 / 32
    others = found.drop(index=("e", "o", 128))["p_holm"].dropna()
    assert others.tolist() == pytest.approx([3 / 32] * 3)


def test_a_run_without_the_primary_comparison_corrects_all_of_its_rows(tmp_path, files):
    write_differences(settings(("e", "o"), primary_arm="elsewhere"), files, tmp_path / "a.csv")
    found = table(tmp_path / "a.csv")
    assert found.loc[("e", "o", 128), "p"] == 0.25
    assert found.loc[("e", "o", 128), "p_holm"] == 0.5


def test_a_wide_net_of_resamples_holds_the_mean(tmp_path, files):
    write_differences(settings(("e", "o"), resamples=10_000), files, tmp_path / "a.csv")
    found = table(tmp_path / "a.csv")
    assert (found["ci_low"] < found["mean"]).all()
    assert (found["mean"] < found["ci_high"]).all()
    assert found["mean"].between(5, 11).all()


def broken_total(path):
    rows = pd.read_csv(path)
    rows.loc[0, "total"] = 99
    rows.to_csv(path, index=False)


def broken_count(path):
    rows = pd.read_csv(path)
    rows.loc[0, "correct"] = 101
    rows.to_csv(path, index=False)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "is missing; run the evaluation first"),
        (lambda path: path.write_text("arm,seed\no,1\n"), "is no evaluation table"),
        (lambda path: path.write_text(path.read_text().replace("e,2,64,0", "e,2,64,zero")), "is no evaluation table"),
        (lambda path: path.write_text(path.read_text().replace("e,2,64,0,", "e,2,64,9,")), "differ in their targets"),
        (
            lambda path: path.write_text(path.read_text().replace("e,2,64", "e,1,64")),
            "repeats arm e, seed 1, length 64",
        ),
        (lambda path: path.write_text(path.read_text().replace("e,2,64,0,", ",2,64,0,")), "an arm has no name"),
        (lambda path: path.write_text("arm,seed,length,block,correct,total\n"), "it has no rows"),
        (lambda path: path.write_text(path.read_text().replace("e,2,64,0,", "e,2,64,0,1,")), "has 7 fields, not 6"),
        (broken_total, "differ in their targets"),
        (broken_count, "more right predictions than targets"),
    ],
)
def test_a_damaged_evaluation_is_told_in_one_sentence(tmp_path, files, damage, words):
    damage(files[5])
    with pytest.raises(UserError, match=words) as told:
        write_differences(settings(("e", "o")), files, tmp_path / "a.csv")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "a.csv").exists()


def test_nothing_to_compare_is_told():
    with pytest.raises(UserError, match="there are no evaluations"):
        load_evaluations([])


def test_positions_that_do_the_same_are_the_same_whatever_they_are_written_like():
    for written in ("band", {"name": "band", "width": 0}, {"name": "band", "width": 64}):
        arms = {
            "plain": {"attention": "attention_o"},
            "off": {"attention": "attention_o", "weights_of": "plain", "positions": "band"},
            "on": {"attention": ON, "weights_of": "plain", "positions": written},
            "trained": {"attention": "attention_o", "positions": "band"},
            "trained_e": {"attention": "attention_e", "positions": written},
        }
        config = config_of(arms)
        assert {("on", "off"), ("trained_e", "trained")} <= set(comparisons(config)), written
        assert repaired_arms(config, "band") == ("off", "on"), written
        arms["on"]["positions"] = {"name": "band", "width": 32}
        assert ("on", "off") not in comparisons(config_of(arms))


def test_balances_of_several_arms_and_their_ratio(files):
    evaluations = load_evaluations(files)
    statistics = StatisticsConfig(resamples=200)
    e, o = ("e", 128), ("o", 128)
    assert evaluations.seeds(e, ("x", 128)) == (0,)
    assert evaluations.points([e, o], [o, e], statistics).mean == 0.0
    twice = evaluations.points([e, e], [o, o], statistics, parts=2)
    assert twice == evaluations.points([e], [o], statistics)
    kept = evaluations.ratio(e, o, statistics)
    counts = [evaluations.counts(place, (0, 1, 2)).sum() for place in (e, o)]
    assert kept.mean == counts[0] / counts[1]
    assert kept.low <= kept.mean <= kept.high
    assert evaluations.points([e], [("none", 128)], statistics) is None
    assert evaluations.ratio(e, ("none", 128), statistics) is None


def test_an_arm_may_be_called_nan(tmp_path):
    files = [evaluation(tmp_path / f"{arm}.csv", arm, 0, {64: [5, 6]}) for arm in ("nan", "o")]
    write_differences(settings(("nan", "o")), files, tmp_path / "a.csv")
    found = pd.read_csv(tmp_path / "a.csv", keep_default_na=False)
    assert found["arm"].tolist() == ["nan"]
    assert math.isclose(float(found["mean"][0]), 0.0)
    assert np.isnan(pd.to_numeric(found["p"])[0])
