"""Snapshots of a training, and branched arms that go on from one."""

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch

from attnscale import train as module
from attnscale.config import TrainingConfig
from attnscale.errors import UserError
from attnscale.snapshots import snapshot_files, snapshot_steps
from attnscale.tokens.batches import TrainingBatches
from attnscale.tokens.load import load_vocabulary
from attnscale.train import train
from tests.unit.conftest import train_settings
from tests.unit.test_train import history, stop_at, weights, without_speed

RECIPES = pytest.mark.parametrize(("recipe", "optimizer"), [("fast", "muon"), ("faithful", "adamw")])


def trunk_settings(recipe="fast", optimizer="muon", snapshots=(0.5,), **changes):
    """12 steps; half of them are 6."""
    training = {"optimizer": optimizer, "snapshots": snapshots, **changes.pop("training", {})}
    return train_settings(arm="trunk", model={"recipe": recipe}, training=training, **changes)


def branch_settings(recipe="fast", optimizer="muon", **changes):
    training = {"optimizer": optimizer, **changes.pop("training", {})}
    return train_settings(arm="branch", model={"recipe": recipe}, training=training, branch_at=0.5, **changes)


@pytest.fixture(scope="module")
def trunk(tokens_dir, environment, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trunk") / "run"
    train(trunk_settings(snapshots=(0.25, 0.5)), tokens_dir, environment, folder)
    return folder


@pytest.fixture
def run_of(tokens_dir, environment):
    """Makes the state of a training that has not begun."""

    def make(settings):
        return module._Run(settings, json.loads(environment.read_text()), load_vocabulary(tokens_dir).size)

    return make


def die_at(monkeypatch, step: int) -> None:
    """End the training without a chance to save when the batch of `step` is asked for."""
    batch = TrainingBatches.batch

    def dying(self, wanted):
        if wanted == step:
            raise MemoryError
        return batch(self, wanted)

    monkeypatch.setattr(TrainingBatches, "batch", dying)


def snapshot_bytes(folder: Path, *steps: int) -> list[bytes]:
    return [path.read_bytes() for step in steps for path in snapshot_files(folder, step)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# Snapshots


def test_steps_and_files_of_snapshots():
    training = TrainingConfig(length=16, batch_size=4, tokens=12 * 64, snapshots=(0.25, 0.5, 0.75))
    assert snapshot_steps(training) == [3, 6, 9]
    assert [path.as_posix() for path in snapshot_files(Path("runs/o/seed0"), 3)] == [
        "runs/o/seed0/snapshots/step3.safetensors",
        "runs/o/seed0/snapshots/step3.optimizers.safetensors",
    ]


@RECIPES
def test_a_snapshot_is_what_a_training_stopped_at_its_step_has(
    tokens_dir, environment, tmp_path, monkeypatch, recipe, optimizer
):
    settings = trunk_settings(recipe, optimizer, snapshots=(0.25, 0.5))
    train(settings, tokens_dir, environment, tmp_path / "whole")
    assert names_in(tmp_path / "whole") == [
        "history.csv", "model.safetensors", "run.json", "snapshots/step3.optimizers.safetensors",
        "snapshots/step3.safetensors", "snapshots/step6.optimizers.safetensors", "snapshots/step6.safetensors",
    ]  # fmt: skip
    stop_at(monkeypatch, 5)
    with pytest.raises(UserError, match="stopped by SIGTERM at step 6 of 12"):
        train(settings, tokens_dir, environment, tmp_path / "stopped")
    checkpoint = torch.load(tmp_path / "stopped" / module.CHECKPOINT, weights_only=True)
    weights_file, optimizers_file = snapshot_files(tmp_path / "whole", 6)
    saved = safetensors.torch.load_file(weights_file)
    assert saved.keys() == checkpoint["model"].keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in checkpoint["model"].items())
    states = safetensors.torch.load_file(optimizers_file)
    stopped = {
        f"{number}/{key}/{name}": value
        for number, state in enumerate(checkpoint["optimizers"])
        for key, of_parameter in state["state"].items()
        for name, value in of_parameter.items()
    }
    assert states.keys() == stopped.keys()
    assert all(torch.equal(states[name], value) for name, value in stopped.items())
    assert len(states) > len(saved)


def test_snapshots_change_nothing_of_the_training(tokens_dir, environment, tmp_path, trunk):
    train(trunk_settings(snapshots=()), tokens_dir, environment, tmp_path)
    assert weights(tmp_path) == weights(trunk)
    assert without_speed(history(tmp_path)) == without_speed(history(trunk))
    assert names_in(tmp_path) == ["history.csv", "model.safetensors", "run.json"]


def test_snapshots_survive_a_kill_and_the_removal_of_all_outputs_that_the_rule_declares(
    tokens_dir, environment, tmp_path, monkeypatch, trunk
):
    settings = trunk_settings(snapshots=(0.25, 0.5))
    with monkeypatch.context() as patch:
        die_at(patch, 9)
        with pytest.raises(MemoryError):
            train(settings, tokens_dir, environment, tmp_path)
    # Snakemake removes declared outputs of a failed job; there are none yet, only what is not declared.
    assert names_in(tmp_path) == [
        "resume.pt", "snapshots/step3.optimizers.safetensors.part", "snapshots/step3.safetensors.part",
        "snapshots/step6.optimizers.safetensors.part", "snapshots/step6.safetensors.part",
    ]  # fmt: skip
    train(settings, tokens_dir, environment, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["resumed_from_steps"] == [8]
    assert names_in(tmp_path) == names_in(trunk)
    assert snapshot_bytes(tmp_path, 3, 6) == snapshot_bytes(trunk, 3, 6)
    assert weights(tmp_path) == weights(trunk)


def test_a_training_whose_snapshot_is_gone_starts_over_and_says_so(
    tokens_dir, environment, tmp_path, monkeypatch, capsys, trunk
):
    settings = trunk_settings(snapshots=(0.25, 0.5))
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(UserError, match="stopped"):
            train(settings, tokens_dir, environment, tmp_path)
    (tmp_path / "snapshots" / "step3.optimizers.safetensors.part").unlink()
    train(settings, tokens_dir, environment, tmp_path)
    assert "a snapshot of trunk seed 0 is missing; starting from step 0" in capsys.readouterr().err
    assert json.loads((tmp_path / "run.json").read_text())["resumed_from_steps"] == []
    assert snapshot_bytes(tmp_path, 3, 6) == snapshot_bytes(trunk, 3, 6)


def test_a_snapshot_that_is_still_to_come_is_not_missed(tokens_dir, environment, tmp_path, monkeypatch, trunk):
    settings = trunk_settings(snapshots=(0.25, 0.5))
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(UserError, match="stopped"):
            train(settings, tokens_dir, environment, tmp_path)
    train(settings, tokens_dir, environment, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["resumed_from_steps"] == [4]
    assert snapshot_bytes(tmp_path, 3, 6) == snapshot_bytes(trunk, 3, 6)


def test_a_training_never_takes_the_snapshots_of_another_one_in_its_folder_for_its_own(
    tokens_dir, environment, tmp_path, monkeypatch, trunk
):
    """Settings change and change back: between, another training has passed the snapshot but no checkpoint."""
    settings = trunk_settings(snapshots=(0.25, 0.5), training={"checkpoint_every": 200})
    other = trunk_settings(snapshots=(0.25, 0.5), training={"checkpoint_every": 200, "learning_rate": 1e-4})
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(UserError, match="stopped"):
            train(settings, tokens_dir, environment, tmp_path)
    with monkeypatch.context() as patch:
        die_at(patch, 7)
        with pytest.raises(MemoryError):
            train(other, tokens_dir, environment, tmp_path)
    train(settings, tokens_dir, environment, tmp_path)
    assert weights(tmp_path) == weights(trunk)
    assert snapshot_bytes(tmp_path, 3, 6) == snapshot_bytes(trunk, 3, 6)


# Branches


@RECIPES
def test_a_branch_that_goes_on_as_its_trunk_ends_in_the_same_bits(tokens_dir, environment, tmp_path, recipe, optimizer):
    train(trunk_settings(recipe, optimizer), tokens_dir, environment, tmp_path / "trunk")
    settings = branch_settings(recipe, optimizer)
    train(settings, tokens_dir, environment, tmp_path / "branch", trunk=tmp_path / "trunk")
    assert weights(tmp_path / "branch") == weights(tmp_path / "trunk")
    rows, trunk_rows = history(tmp_path / "branch"), history(tmp_path / "trunk")
    assert [(row["step"], row["tokens"]) for row in rows] == [("10", "640"), ("12", "768")]
    assert without_speed(rows)[-1] == without_speed(trunk_rows)[-1]
    record = json.loads((tmp_path / "branch" / "run.json").read_text())
    assert (record["first_step"], record["steps"], record["tokens"]) == (6, 12, 768)
    assert names_in(tmp_path / "branch") == ["history.csv", "model.safetensors", "run.json"]


def test_the_first_step_of_a_branch_is_the_next_one_of_its_trunk(tokens_dir, environment, tmp_path, trunk):
    """Of every branch whose attention equals the trunk's at the training length, up to rounding."""
    train(trunk_settings(training={"log_every": 1}), tokens_dir, environment, tmp_path / "trunk")
    for name, attention in (("same", "attention_e"), ("other", "acl2022")):
        settings = branch_settings(training={"log_every": 1}, attention={"name": attention})
        train(settings, tokens_dir, environment, tmp_path / name, trunk=tmp_path / "trunk")
    rows = {name: without_speed(history(tmp_path / name)) for name in ("trunk", "same", "other")}
    assert rows["same"] == rows["trunk"][6:]
    assert len(rows["other"]) == 6
    assert rows["other"][0]["loss"] != rows["trunk"][6]["loss"]


@RECIPES
def test_a_branch_to_ssmax_takes_over_all_that_the_trunk_has_and_starts_its_slopes_afresh(
    tokens_dir, environment, tmp_path, run_of, recipe, optimizer
):
    settings = trunk_settings(recipe, optimizer, attention={"name": "attention_o"}, training={"log_every": 1})
    train(settings, tokens_dir, environment, tmp_path / "trunk")
    settings = branch_settings(recipe, optimizer, attention={"name": "ssmax"}, training={"log_every": 1})
    run = run_of(settings)
    run.branch_from(tmp_path / "trunk")
    saved = safetensors.torch.load_file(snapshot_files(tmp_path / "trunk", 6)[0])
    parameters = dict(run.model.named_parameters())
    slopes = {name: parameters.pop(name) for name in list(parameters) if name not in saved}
    assert sorted(slopes) == [f"blocks.{layer}.attention.learned.slope" for layer in (0, 1)]
    assert all(torch.equal(slope, torch.full((2,), 1 / torch.tensor(16.0).log().item())) for slope in slopes.values())
    assert all(torch.equal(parameter, saved[name]) for name, parameter in parameters.items())
    # Each parameter has the optimizer state that the trunk's own one has, found by name and not by number.
    trunk = run_of(trunk_settings(recipe, optimizer, attention={"name": "attention_o"}))
    trunk_branch = run_of(branch_settings(recipe, optimizer, attention={"name": "attention_o"}))
    trunk_branch.branch_from(tmp_path / "trunk")
    assert [type(kind) for kind in trunk.optimizers] == [type(kind) for kind in run.optimizers]
    theirs = {
        name: kind.state[parameter]
        for name, parameter in trunk_branch.model.named_parameters()
        for kind in trunk_branch.optimizers
        if parameter in kind.state
    }
    seen = 0
    for name, parameter in run.model.named_parameters():
        states = [kind.state[parameter] for kind in run.optimizers if kind.state.get(parameter)]
        assert len(states) == (0 if name in slopes else 1)
        for state in states:
            assert state.keys() == theirs[name].keys()
            assert all(torch.equal(value, theirs[name][key]) for key, value in state.items())
            seen += 1
    assert seen == len(saved)
    train(settings, tokens_dir, environment, tmp_path / "branch", trunk=tmp_path / "trunk")
    mine, right = history(tmp_path / "branch")[0], history(tmp_path / "trunk")[6]
    assert (mine["step"], right["step"]) == ("7", "7")
    assert float(mine["loss"]) == pytest.approx(float(right["loss"]), rel=1e-5)
    tensors = safetensors.torch.load_file(tmp_path / "branch" / "model.safetensors")
    assert all((tensors[name] != slope).all() for name, slope in slopes.items())


@RECIPES
def test_a_branch_goes_on_bit_for_bit_after_a_stop_and_after_a_kill(
    tokens_dir, environment, tmp_path, monkeypatch, capsys, recipe, optimizer
):
    trunk = tmp_path / "trunk"
    train(trunk_settings(recipe, optimizer), tokens_dir, environment, trunk)
    settings = branch_settings(recipe, optimizer, attention={"name": "ssmax"}, training_lengths=(4, 8, 16))
    train(settings, tokens_dir, environment, tmp_path / "whole", trunk=trunk)
    for interrupt, step, kind in ((stop_at, 6, UserError), (die_at, 10, MemoryError)):
        with monkeypatch.context() as patch:
            interrupt(patch, step)
            with pytest.raises(kind):
                train(settings, tokens_dir, environment, tmp_path / "parts", trunk=trunk)
    train(settings, tokens_dir, environment, tmp_path / "parts", trunk=trunk)
    assert "branch seed 0 goes on from step 8" in capsys.readouterr().err
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert without_speed(history(tmp_path / "parts")) == without_speed(history(tmp_path / "whole"))
    record = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert (record["first_step"], record["resumed_from_steps"]) == (6, [7, 8])


def test_a_branch_of_another_trunk_than_before_starts_at_the_snapshot_again(
    tokens_dir, environment, tmp_path, monkeypatch, capsys, trunk
):
    with monkeypatch.context() as patch:
        stop_at(patch, 9)
        with pytest.raises(UserError, match="branch seed 0 was stopped by SIGTERM at step 10 of 12"):
            train(branch_settings(), tokens_dir, environment, tmp_path / "branch", trunk=trunk)
    other = trunk_settings(training={"learning_rate": 1e-4})
    train(other, tokens_dir, environment, tmp_path / "other")
    train(branch_settings(), tokens_dir, environment, tmp_path / "branch", trunk=tmp_path / "other")
    assert "settings, data, code or environment of branch seed 0 changed; starting from step 6" in (
        capsys.readouterr().err
    )
    train(branch_settings(), tokens_dir, environment, tmp_path / "fresh", trunk=tmp_path / "other")
    assert weights(tmp_path / "branch") == weights(tmp_path / "fresh")
    assert weights(tmp_path / "branch") != weights(trunk)


def copy_of(trunk: Path, folder: Path) -> tuple[Path, Path]:
    """The snapshot of step 6 in a folder of its own, to be damaged."""
    files = snapshot_files(folder, 6)
    files[0].parent.mkdir(parents=True)
    for source, copy in zip(snapshot_files(trunk, 6), files, strict=True):
        copy.write_bytes(source.read_bytes())
    return files


@pytest.mark.parametrize("file", [0, 1], ids=["weights", "optimizers"])
@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "folder", "lacks", "shape", "stray", "nan"])
def test_a_missing_or_damaged_snapshot_is_told_in_one_sentence(tokens_dir, environment, tmp_path, trunk, file, damage):
    path = copy_of(trunk, tmp_path / "trunk")[file]
    tensors = safetensors.torch.load_file(path)
    first = next(name for name in sorted(tensors) if tensors[name].ndim)
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "stray":
        path.write_bytes(safetensors.torch.save({**tensors, "9/9/mean": torch.ones(1)}))
    elif damage == "nan":
        path.write_bytes(safetensors.torch.save({**tensors, first: torch.full_like(tensors[first], torch.nan)}))
    elif damage == "lacks":
        prefix = first.rpartition("/")[0] if file else first
        left = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
        path.write_bytes(safetensors.torch.save(left))
    else:
        path.write_bytes(safetensors.torch.save({**tensors, first: tensors[first][..., :-1].contiguous()}))
    words = rf"the snapshot {re.escape(str(path))} does not fit \(.*\); delete it and run the pipeline again$"
    if damage == "gone":
        words = r"has no snapshot of step 6; train the arm that is branched from$"
    elif damage == "lacks":
        words = (
            r"\(the optimizer state of \S+ is missing or" if file else rf"\(only one of the two models has {first}\)"
        )
    elif damage == "stray":
        words = r"\(no parameter has the optimizer state 9/9/mean\)" if file else "only one of the two models has 9/9"
    elif damage == "nan":
        words = rf"\({first} holds numbers that are not finite\); delete it"
    with pytest.raises(UserError, match=words) as caught:
        train(branch_settings(), tokens_dir, environment, tmp_path / "branch", trunk=tmp_path / "trunk")
    assert len(str(caught.value).splitlines()) == 1
    assert names_in(tmp_path / "branch") == []


@pytest.mark.parametrize(("name", "optimizer"), [("step", "adamw"), ("exp_avg_sq", "adamw"), ("mean", "muon")])
def test_an_optimizer_file_that_lacks_one_kind_of_state_is_refused(
    tokens_dir, environment, tmp_path, trunk, name, optimizer
):
    if optimizer == "adamw":
        trunk = tmp_path / "adamw"
        train(trunk_settings(optimizer=optimizer), tokens_dir, environment, trunk)
    path = copy_of(trunk, tmp_path / "trunk")[1]
    tensors = safetensors.torch.load_file(path)
    left = {key: tensor for key, tensor in tensors.items() if not key.endswith(f"/{name}")}
    assert 0 < len(left) < len(tensors)
    path.write_bytes(safetensors.torch.save(left))
    words = rf"^the snapshot {re.escape(str(path))} does not fit \(the optimizer state of \S+ is missing or misshapen\)"
    settings = branch_settings(optimizer=optimizer)
    with pytest.raises(UserError, match=words):
        train(settings, tokens_dir, environment, tmp_path / "branch", trunk=tmp_path / "trunk")


def test_a_trunk_that_learned_what_the_branch_has_no_place_for_is_refused(tokens_dir, environment, tmp_path):
    train(trunk_settings(attention={"name": "ssmax"}), tokens_dir, environment, tmp_path / "trunk")
    words = r"does not fit \(only one of the two models has blocks\.0\.attention\.learned\.slope\)"
    with pytest.raises(UserError, match=words) as caught:
        train(branch_settings(), tokens_dir, environment, tmp_path / "branch", trunk=tmp_path / "trunk")
    assert len(str(caught.value).splitlines()) == 1


def test_a_branch_needs_a_trunk_and_no_other_arm_takes_one(tokens_dir, environment, tmp_path, trunk):
    with pytest.raises(UserError, match="branch seed 0 is a branch and needs --trunk"):
        train(branch_settings(), tokens_dir, environment, tmp_path)
    with pytest.raises(UserError, match="trunk seed 0 is no branch; leave out --trunk"):
        train(trunk_settings(), tokens_dir, environment, tmp_path, trunk=trunk)
    assert names_in(tmp_path) == []
