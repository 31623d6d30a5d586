"""Training: resuming, stopping, refusing, recording."""

import csv
import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from attnscale import counts
from attnscale import train as module
from attnscale.errors import UserError
from attnscale.files import write_json
from attnscale.model import make_encoder
from attnscale.optimizers import Muon
from attnscale.rng import Stream
from attnscale.tokens.batches import TrainingBatches
from attnscale.tokens.load import load_training_tokens, load_vocabulary
from attnscale.train import train
from tests.unit.conftest import LENGTH, train_settings

strftime = time.strftime


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def without_speed(rows):
    return [{key: value for key, value in row.items() if key != "tokens_per_second"} for row in rows]


def stop_at(monkeypatch, step: int, number: int = signal.SIGTERM) -> None:
    """Send this process a signal when the batch of `step` is asked for."""
    batch = TrainingBatches.batch

    def stopping(self, wanted):
        if wanted == step:
            os.kill(os.getpid(), number)
        return batch(self, wanted)

    monkeypatch.setattr(TrainingBatches, "batch", stopping)


@pytest.mark.parametrize(
    ("recipe", "optimizer", "attention", "lengths", "stops"),
    [
        ("fast", "muon", "attention_e", (16,), [3]),
        ("faithful", "adamw", "attention_e", (16,), [0, 6, 9]),
        ("fast", "muon", "ssmax", (4, 8, 16), [0, 6, 9]),
        ("faithful", "adamw", "attention_e", (4, 8, 16), [5]),
    ],
)
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(
    tokens_dir, environment, tmp_path, monkeypatch, recipe, optimizer, attention, lengths, stops
):
    settings = train_settings(
        model={"recipe": recipe},
        training={"optimizer": optimizer},
        attention={"name": attention},
        training_lengths=lengths,
    )
    train(settings, tokens_dir, environment, tmp_path / "whole")
    for step in stops:
        with monkeypatch.context() as patch:
            stop_at(patch, step)
            with pytest.raises(UserError, match=rf"stopped by SIGTERM at step {step + 1} of 12"):
                train(settings, tokens_dir, environment, tmp_path / "parts")
        assert not (tmp_path / "parts" / "model.safetensors").exists()
    train(settings, tokens_dir, environment, tmp_path / "parts")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert without_speed(history(tmp_path / "parts")) == without_speed(history(tmp_path / "whole"))
    record = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert record["resumed_from_steps"] == [step + 1 for step in stops]
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "history.csv",
        "model.safetensors",
        "run.json",
    ]


def test_the_checkpoint_after_a_kill_is_enough(tokens_dir, environment, tmp_path, monkeypatch):
    """A kill gives no chance to save: only the checkpoint of the regular interval is there."""
    train(train_settings(), tokens_dir, environment, tmp_path / "whole")
    batch = TrainingBatches.batch

    def dying(self, wanted):
        if wanted == 10:
            raise MemoryError
        return batch(self, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingBatches, "batch", dying)
        with pytest.raises(MemoryError):
            train(train_settings(), tokens_dir, environment, tmp_path / "killed")
    assert (tmp_path / "killed" / module.CHECKPOINT).exists()
    train(train_settings(), tokens_dir, environment, tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["resumed_from_steps"] == [8]


@pytest.mark.parametrize("change", ["settings", "data", "environment", "damage"])
def test_a_checkpoint_that_does_not_fit_is_not_used(tokens_dir, environment, tmp_path, monkeypatch, capsys, change):
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(UserError, match="stopped"):
            train(train_settings(), tokens_dir, environment, tmp_path)
    settings, data, record = train_settings(), tokens_dir, environment
    if change == "settings":
        settings = train_settings(training={"learning_rate": 2e-3})
    elif change == "environment":
        record = tmp_path / "other.json"
        write_json(record, {**json.loads(environment.read_text()), "lock_sha256": "other"})
    elif change == "data":
        data = tmp_path / "other tokens"
        subprocess.run(["cp", "-r", tokens_dir, data], check=True)
        tokenizer = data / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text() + "\n")
    else:
        path = tmp_path / module.CHECKPOINT
        path.write_bytes(path.read_bytes()[:1000])
    train(settings, data, record, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["resumed_from_steps"] == []
    assert "starting from step 0" in capsys.readouterr().err


def test_a_clock_that_was_set_back_or_forth_changes_no_resumed_training(tokens_dir, environment, tmp_path, monkeypatch):
    train(train_settings(), tokens_dir, environment, tmp_path / "whole")
    subprocess.run(["cp", "-r", tokens_dir, tmp_path / "tokens"], check=True)
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(UserError, match="stopped"):
            train(train_settings(), tmp_path / "tokens", environment, tmp_path / "parts")
    os.utime(tmp_path / "parts" / module.CHECKPOINT, (0, 0))
    for path in (tmp_path / "tokens").iterdir():
        os.utime(path, (4_000_000_000, 4_000_000_000))
    # From here on the clock shows a day before the training began.
    yesterday = time.time() - 86_400
    monkeypatch.setattr(module.time, "strftime", lambda text: strftime(text, time.gmtime(yesterday)))
    train(train_settings(), tmp_path / "tokens", environment, tmp_path / "parts")
    record = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert record["finished"] < record["started"]
    assert record["resumed_from_steps"] == [6]
    assert 0 < record["seconds"] < 3600
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert without_speed(history(tmp_path / "parts")) == without_speed(history(tmp_path / "whole"))


def test_one_batch_can_be_learned_by_heart(tokens_dir, environment, tmp_path, monkeypatch):
    batch = TrainingBatches.batch
    monkeypatch.setattr(TrainingBatches, "batch", lambda self, step: batch(self, 0))
    settings = train_settings(training={"tokens": 150 * 64, "learning_rate": 3e-3, "log_every": 10})
    train(settings, tokens_dir, environment, tmp_path)
    assert float(history(tmp_path)[-1]["loss"]) < 0.1
    assert float(history(tmp_path)[-1]["accuracy"]) == 1.0


def test_history_and_record_tell_what_was_done(tokens_dir, environment, tmp_path, capsys):
    settings = train_settings(threads=2)
    train(settings, tokens_dir, environment, tmp_path)
    err = capsys.readouterr().err
    rows = history(tmp_path)
    assert list(rows[0]) == [
        "step", "tokens", "loss", "accuracy", "grad_norm", "grad_norm_qk", "tokens_per_second",
    ]  # fmt: skip
    assert [int(row["step"]) for row in rows] == [5, 10, 12]
    assert [int(row["tokens"]) for row in rows] == [5 * 64, 10 * 64, 12 * 64]
    assert all(0 <= float(row["accuracy"]) <= 1 and float(row["grad_norm"]) > 0 for row in rows)
    assert [f"{float(row['tokens_per_second']):,.0f} tokens/s" in err for row in rows] == [True] * 3
    record = json.loads((tmp_path / "run.json").read_text())
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert record["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert (record["steps"], record["tokens"], record["threads"], record["precision"]) == (12, 768, 2, "fp32")
    assert (record["arm"], record["first_step"]) == ("attention_e", 0)


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
def test_the_gradient_norm_of_queries_and_keys_is_the_one_computed_by_hand(tokens_dir, environment, tmp_path, recipe):
    """Before clipping, over the query and key weights of all layers, as a mean over the steps of a row."""
    settings = train_settings(model={"recipe": recipe}, training={"log_every": 1, "tokens": 64})
    train(settings, tokens_dir, environment, tmp_path)
    model = make_encoder(settings.encoder, load_vocabulary(tokens_dir).size)
    model.initialise(0)
    if recipe == "faithful":
        torch.manual_seed(int(Stream("dropout", 0, 0).words(1)[0] >> 1))
    data = load_training_tokens(tokens_dir)
    batch = TrainingBatches(*data, load_vocabulary(tokens_dir), settings.training, 0).batch(0)
    inputs_BN, selected_S, targets_S = map(
        torch.from_numpy, (batch.inputs_BN, batch.selected_S, batch.targets_S)
    )  # fmt: skip
    torch.nn.functional.cross_entropy(model(inputs_BN, selected_S), targets_S).backward()
    gradients = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
    squares = [gradients[f"blocks.{layer}.attention.qkv.weight"][:128].square().sum() for layer in range(2)]
    (row,) = history(tmp_path)
    assert float(row["grad_norm_qk"]) == pytest.approx(float(sum(squares)) ** 0.5, rel=1e-5)
    whole = sum(float(gradient.square().sum()) for gradient in gradients.values()) ** 0.5
    assert float(row["grad_norm"]) == pytest.approx(whole, rel=1e-5)
    assert 0 < float(row["grad_norm_qk"]) < float(row["grad_norm"])


def test_all_arms_of_a_seed_see_the_same_batches_and_differ_only_by_their_scale(tokens_dir, environment, tmp_path):
    """With base = training length, attention_e is attention_o in training: its weights must be equal."""
    train(train_settings(arm="o", attention={"name": "attention_o"}), tokens_dir, environment, tmp_path / "o")
    switched = {"name": "attention_e", "parameters": {"base": "training_length"}}
    train(train_settings(arm="e", attention=switched), tokens_dir, environment, tmp_path / "e")
    train(train_settings(arm="o", attention={"name": "acl2022"}), tokens_dir, environment, tmp_path / "acl")
    assert weights(tmp_path / "o") == weights(tmp_path / "e")
    assert weights(tmp_path / "o") != weights(tmp_path / "acl")


def test_training_at_mixed_lengths_makes_the_arms_that_agree_at_the_training_length_differ(
    tokens_dir, environment, tmp_path
):
    lengths = (4, 8, 16)
    train(train_settings(attention={"name": "attention_o"}), tokens_dir, environment, tmp_path / "fixed")
    for name, attention in (("o", {"name": "attention_o"}), ("e", {"name": "sqrt_log_n"})):
        settings = train_settings(attention=attention, training_lengths=lengths)
        train(settings, tokens_dir, environment, tmp_path / name)
    assert len({weights(tmp_path / name) for name in ("fixed", "o", "e")}) == 3
    fixed, mixed = history(tmp_path / "fixed")[-1], history(tmp_path / "o")[-1]
    assert (fixed["step"], fixed["tokens"]) == (mixed["step"], mixed["tokens"])


def test_the_slopes_of_ssmax_are_trained_and_saved(tokens_dir, environment, tmp_path):
    train(train_settings(attention={"name": "ssmax"}), tokens_dir, environment, tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    slopes = [tensors[f"blocks.{layer}.attention.learned.slope"] for layer in range(2)]
    for slope in slopes:
        assert slope.shape == (2,)
        assert (slope != 1 / math.log(LENGTH)).all()
        assert torch.allclose(slope, torch.tensor(1 / math.log(LENGTH)), atol=0.05)
    assert len({value.item() for slope in slopes for value in slope}) == 4


def test_a_loss_that_is_not_finite_names_step_and_arm(tokens_dir, environment, tmp_path, monkeypatch):
    cross_entropy = torch.nn.functional.cross_entropy
    calls = []

    def breaking(*arguments, **options):
        calls.append(1)
        return cross_entropy(*arguments, **options) * (float("nan") if len(calls) == 7 else 1.0)

    monkeypatch.setattr(module.functional, "cross_entropy", breaking)
    with pytest.raises(UserError, match=r"the loss of attention_e seed 0 is not finite at step 7; lower"):
        train(train_settings(), tokens_dir, environment, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_ctrl_c_saves_and_stops(tokens_dir, environment, tmp_path, monkeypatch):
    stop_at(monkeypatch, 6, signal.SIGINT)
    with pytest.raises(UserError, match="stopped by SIGINT at step 7"):
        train(train_settings(), tokens_dir, environment, tmp_path)
    assert (tmp_path / module.CHECKPOINT).exists()
    assert not (tmp_path / ".lock").exists()


def test_two_trainings_cannot_share_a_folder(tokens_dir, environment, tmp_path):
    with module._only_one(tmp_path), pytest.raises(UserError, match=rf"process {os.getpid()} is still training into"):
        train(train_settings(), tokens_dir, environment, tmp_path)
    train(train_settings(), tokens_dir, environment, tmp_path)


def test_the_training_stops_when_its_parent_is_gone(tokens_dir, environment, tmp_path):
    settings = train_settings(training={"tokens": 10_000_000})
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'attnscale.cli', 'train', *sys.argv[1:]])\n"
        "print(child.pid, flush=True)\n"
        "while not os.path.exists(sys.argv[sys.argv.index('--output') + 1] + '/resume.pt'): time.sleep(0.01)\n"
        "os._exit(0)\n"
    )
    arguments = ["--settings", settings.canonical(), "--tokens", str(tokens_dir), "--environment", str(environment)]
    with (tmp_path / "err").open("w") as err:
        parent = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--output", str(tmp_path / "run"), "--stop-with-parent"],
            stdout=subprocess.PIPE, stderr=err, text=True, timeout=120,
        )  # fmt: skip
    pid = int(parent.stdout.split()[0])
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert "stopped by the end of the workflow" in (tmp_path / "err").read_text()
    assert (tmp_path / "run" / module.CHECKPOINT).exists()


@pytest.mark.parametrize("victim", [module.CHECKPOINT, "model.safetensors", "history.csv"])
def test_a_full_disk_leaves_nothing_half_written(tokens_dir, environment, tmp_path, monkeypatch, victim):
    fsync = os.fsync

    def full(descriptor):
        if f"/.{victim}." in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), victim)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        train(train_settings(), tokens_dir, environment, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert victim not in left
    assert not [name for name in left if name.endswith(".part")]
    assert ".lock" not in left
    monkeypatch.undo()
    train(train_settings(), tokens_dir, environment, tmp_path)
    assert (tmp_path / "run.json").exists()


def test_signals_are_left_as_they_were(tokens_dir, environment, tmp_path):
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    train(train_settings(), tokens_dir, environment, tmp_path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_bf16_trains_and_is_recorded(tokens_dir, environment, tmp_path):
    record = tmp_path / "environment.json"
    write_json(record, {**json.loads(environment.read_text()), "precision": "bf16"})
    train(train_settings(), tokens_dir, record, tmp_path / "bf16")
    train(train_settings(), tokens_dir, environment, tmp_path / "fp32")
    assert json.loads((tmp_path / "bf16" / "run.json").read_text())["precision"] == "bf16"
    losses = [float(history(tmp_path / kind)[-1]["loss"]) for kind in ("bf16", "fp32")]
    assert losses[0] != losses[1]
    assert abs(losses[0] - losses[1]) < 0.1
    assert {tensor.dtype for tensor in safetensors.torch.load_file(tmp_path / "bf16/model.safetensors").values()} == {
        torch.float32
    }


def test_the_learning_rate_of_every_step_reaches_the_optimizer(tokens_dir, environment, tmp_path, monkeypatch):
    seen = {torch.optim.AdamW: [], Muon: []}
    for kind, steps in seen.items():

        def watched(self, real=kind.step, steps=steps):
            steps.append([group["lr"] for group in self.param_groups])
            return real(self)

        monkeypatch.setattr(kind, "step", watched)
    settings = train_settings(training={"learning_rate": 0.004, "muon_learning_rate": 0.03})
    train(settings, tokens_dir, environment, tmp_path)
    shares = [counts.schedule(settings.training, number) for number in range(12)]
    assert seen == {
        torch.optim.AdamW: [[0.004 * share] * 2 for share in shares],
        Muon: [[0.03 * share] * 2 for share in shares],
    }
