"""The finished part of a run: what is left of a configuration, and that it can be run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from attnscale.checksums import write_checksums
from attnscale.cli import resolved_yaml
from attnscale.config import Config, load_config, parse_config
from attnscale.counts import steps, tokens_per_step
from attnscale.errors import UserError
from attnscale.formal.training import train_arm
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


def finish(run: Path, *trainings: str, config: Config | None = None, vocabulary: int = 300) -> None:
    """What finished trainings leave, as far as it is looked at."""
    config = config or whole()
    for training in trainings:
        arm, seed = training.split()
        folder = run / "runs" / arm / f"seed{seed}"
        folder.mkdir(parents=True)
        record = {
            "arm": arm, "seed": int(seed), "attention": config.arms[arm].attention.model_dump(mode="json"),
            "parameters": 1, "steps": steps(config.training),
            "tokens": steps(config.training) * tokens_per_step(config.training), "seconds": 1.0,
            "tokens_per_second": 1.0, "device": "cpu", "precision": "fp32", "compile": False, "threads": 1,
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(record))
        save_file({"embedding.weight": np.zeros((vocabulary, 2), dtype=np.float32)}, folder / "model.safetensors")
        write_checksums([folder / "run.json", folder / "model.safetensors"])


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


def test_a_training_of_other_settings_is_not_finished(tmp_path):
    finish(tmp_path, "zeta 3", "alpha 1")
    for changes in (
        {"training": {"tokens": 81920, "snapshots": [0.5]}},
        {"arms": {**yaml.safe_load(WHOLE)["arms"], "zeta": {"attention": "acl2022"}}},
    ):
        other = parse_config({**yaml.safe_load(WHOLE), **changes}, "whole.yaml")
        if "training" in changes:
            with pytest.raises(UserError, match="is finished yet"):
                finished_part(other, tmp_path)
        else:
            assert finished_part(other, tmp_path).runs() == (("alpha", 1),)
    shutil.move(tmp_path / "runs" / "zeta" / "seed3", tmp_path / "runs" / "zeta" / "seed2")
    assert finished_part(whole(), tmp_path).runs() == (("alpha", 1),)


def test_a_training_on_another_vocabulary_is_not_finished(tmp_path):
    finish(tmp_path, "zeta 3", vocabulary=8192)
    finish(tmp_path, "alpha 1", vocabulary=300)
    (tmp_path / "tokens").mkdir()
    manifest = {"kind": "bpe", "train_tokens": 9, "held_out_tokens": 9, "vocabulary_size": 8192}
    for changes, expected in (
        ({}, (("zeta", 3), ("at_test", 3))),
        ({"vocabulary_size": 300}, (("alpha", 1),)),
    ):
        (tmp_path / "tokens" / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        assert finished_part(whole(), tmp_path).runs() == expected
    for changes in ({"vocabulary_size": 9000}, {"kind": "character"}):
        (tmp_path / "tokens" / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        with pytest.raises(UserError, match="is finished yet"):
            finished_part(whole(), tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "run.json"])
def test_damaged_weights_or_records_of_a_training_are_told(tmp_path, name):
    finish(tmp_path, "zeta 3")
    path = tmp_path / "runs" / "zeta" / "seed3" / name
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=rf"{name} and its checksum .* disagree"):
        finished_part(whole(), tmp_path)


def test_the_part_is_the_same_after_being_written_and_of_a_part_nothing_is_taken(tmp_path):
    finish(tmp_path, "zeta 3", "zeta 2", "late 2", "alpha 1")
    part = finished_part(whole(), tmp_path)
    (tmp_path / "part.yaml").write_text(resolved_yaml(part), encoding="utf-8")
    read = load_config(tmp_path / "part.yaml")
    assert read == part
    assert list(read.arms) == list(part.arms)
    assert finished_part(read, tmp_path) == part


def test_of_a_formal_language_the_arms_that_are_trained_stay(tmp_path):
    section = {"seeds": [0, 1], "train_lengths": [10], "test_lengths": [20], "epochs": 2, "steps_per_epoch": 2}
    given = {**yaml.safe_load(WHOLE), "first": {**section, "test_every": 1}, "parity": {**section, "test_every": 1}}
    config = parse_config(given, "whole.yaml")
    finish(tmp_path, "zeta 3", config=config)
    assert finished_part(config, tmp_path).formal == {}
    outdated = config.formal_settings("first", "acl2022").model_copy(update={"epochs": 3})
    train_arm(outdated, tmp_path / "formal" / "first" / "acl2022.csv")
    assert finished_part(config, tmp_path).formal == {}
    path = tmp_path / "formal" / "first" / "ssmax.csv"
    train_arm(config.formal_settings("first", "ssmax"), path)
    part = finished_part(config, tmp_path)
    assert (list(part.formal), list(part.formal["first"].arms)) == (["first"], ["ssmax"])
    assert part.formal_settings("first", "ssmax") == config.formal_settings("first", "ssmax")
    assert finished_part(part, tmp_path) == part
    path.write_text("arm,train_length\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"ssmax.csv is damaged"):
        finished_part(config, tmp_path)
