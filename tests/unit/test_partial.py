"""The finished part of a run: what is left of a configuration, and that it can be run."""

from pathlib import Path

import pytest
import yaml

from attnscale.cli import resolved_yaml
from attnscale.config import Config, load_config, parse_config
from attnscale.errors import UserError
from attnscale.partial import finished_part

WHOLE = """
name: whole
seeds: [3, 1, 2]
arms:
  zeta: {attention: attention_o}
  at_test: {weights_of: zeta, attention: attention_e}
  late: {attention: ssmax, branch: {of: zeta, at: 0.5}}
  late_at_test: {weights_of: late, attention: ssmax, n_at_most: training_length}
  alpha: {attention: attention_e, seeds: [1]}
training: {tokens: 40960, snapshots: [0.5]}
evaluation: {snapshot_arms: [alpha, at_test]}
"""


def whole() -> Config:
    return parse_config(yaml.safe_load(WHOLE), "whole.yaml")


def finish(run: Path, *trainings: str) -> None:
    for training in trainings:
        arm, seed = training.split()
        folder = run / "runs" / arm / f"seed{seed}"
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "run.json"):
            (folder / name).touch()


def test_what_is_finished_stays_in_its_order(tmp_path):
    finish(tmp_path, "zeta 3", "zeta 2", "late 2", "alpha 1")
    part = finished_part(whole(), tmp_path)
    assert list(part.arms) == ["zeta", "at_test", "late", "late_at_test", "alpha"]
    assert part.seeds == (3, 1, 2)
    assert part.runs() == (
        ("zeta", 3), ("zeta", 2), ("at_test", 3), ("at_test", 2), ("late", 2), ("late_at_test", 2), ("alpha", 1),
    )  # fmt: skip
    assert part.evaluation.snapshot_arms == ("alpha", "at_test")


def test_no_finished_training_gets_other_settings(tmp_path):
    config = whole()
    finish(tmp_path, "zeta 3", "zeta 2", "late 2", "alpha 1")
    part = finished_part(config, tmp_path)
    for run in part.runs(trained=True):
        assert part.train_settings(*run).canonical() == config.train_settings(*run).canonical()
    for run in part.runs():
        assert part.evaluate_settings(*run).canonical() == config.evaluate_settings(*run).canonical()


def test_a_branch_goes_with_the_seeds_of_its_trunk_and_so_do_arms_with_its_weights(tmp_path):
    finish(tmp_path, "zeta 3", "late 3", "late 1", "late 2")
    part = finished_part(whole(), tmp_path)
    assert part.runs() == (("zeta", 3), ("at_test", 3), ("late", 3), ("late_at_test", 3))
    assert part.seeds == (3,)
    assert part.evaluation.snapshot_arms == ("at_test",)


def test_a_branch_whose_trunk_is_not_finished_is_left_out(tmp_path):
    finish(tmp_path, "late 1", "alpha 1")
    part = finished_part(whole(), tmp_path)
    assert part.runs() == (("alpha", 1),)


@pytest.mark.parametrize("finished", [[], ["late 1"], ["late 1", "late 2"]])
def test_without_a_finished_training_there_is_one_sentence(tmp_path, finished):
    finish(tmp_path, *finished)
    with pytest.raises(UserError, match=r"no training in .* is finished yet; run the pipeline"):
        finished_part(whole(), tmp_path)


def test_a_training_without_its_record_is_not_finished(tmp_path):
    finish(tmp_path, "zeta 3", "zeta 1")
    (tmp_path / "runs" / "zeta" / "seed1" / "run.json").unlink()
    assert finished_part(whole(), tmp_path).runs(trained=True) == (("zeta", 3),)


def test_the_part_is_the_same_after_being_written_and_of_a_part_nothing_is_taken(tmp_path):
    finish(tmp_path, "zeta 3", "zeta 2", "late 2", "alpha 1")
    part = finished_part(whole(), tmp_path)
    (tmp_path / "part.yaml").write_text(resolved_yaml(part), encoding="utf-8")
    read = load_config(tmp_path / "part.yaml")
    assert read == part
    assert list(read.arms) == list(part.arms)
    assert finished_part(read, tmp_path) == part
