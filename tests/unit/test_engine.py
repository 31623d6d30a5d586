"""How torch computes: threads, memory, and the compiled training step against the eager fp32 reference."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from attnscale import engine, files
from attnscale.errors import UserError
from attnscale.train import train
from tests.unit.conftest import LENGTH, train_settings
from tests.unit.test_train import stop_at, weights

STEPS = 200
# Largest difference of the mean loss of any ten steps, in nats. fp32 differs by the order of sums alone, which 200
# steps of a training amplify; bf16 has 8 bits of mantissa.
TOLERANCE = {"fp32": 0.01, "bf16": 0.1}

needs_compiler = pytest.mark.skipif(not engine.can_compile("cpu"), reason="torch cannot compile on this machine")


def record_of(environment: Path, folder: Path, **changes) -> Path:
    path = folder / "environment.json"
    files.write_json(path, {**json.loads(environment.read_text()), **changes})
    return path


def losses(folder: Path) -> list[float]:
    with (folder / "history.csv").open(encoding="utf-8") as stream:
        return [float(row["loss"]) for row in csv.DictReader(stream)]


def test_threads_and_determinism_are_set_in_the_process():
    engine.prepare(1)
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    engine.prepare(2)
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_memory_that_was_freed_costs_no_page_faults_when_it_is_taken_again():
    """In a process of its own: the allocator's settings stay for good."""
    program = """
import resource, sys, torch
from attnscale import engine
torch.set_num_threads(1)
if sys.argv[1] == "keep" and not engine.keep_freed_memory():
    sys.exit("no glibc")
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(40 * 2**20 // 4).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(max([faults() for _ in range(30)][-5:]))
"""
    counts = {}
    for how in ("plain", "keep"):
        done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True)
        if "no glibc" in done.stderr:
            pytest.skip("another C library")
        counts[how] = int(done.stdout)
    assert counts["plain"] > 1000 > 100 > counts["keep"]


def test_a_compiler_that_fails_counts_as_none(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    program = "from attnscale import engine; print(engine.can_compile('cpu'))"
    surroundings = {**os.environ, "CXX": str(broken), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture(scope="module")
def reference(tokens_dir, environment, tmp_path_factory) -> dict[str, Path]:
    """Eager fp32 trainings, both recipes."""
    folders = {}
    for recipe in ("fast", "faithful"):
        folders[recipe] = tmp_path_factory.mktemp(recipe)
        train(long_settings(recipe), tokens_dir, environment, folders[recipe])
    return folders


def long_settings(recipe: str):
    training = {"tokens": STEPS * 4 * LENGTH, "log_every": 10, "checkpoint_every": 60}
    if recipe == "faithful":
        training |= {"optimizer": "adamw", "learning_rate": 1e-3}
    return train_settings(model={"recipe": recipe}, training=training)


@needs_compiler
@pytest.mark.parametrize(("recipe", "precision"), [("fast", "fp32"), ("fast", "bf16"), ("faithful", "fp32")])
def test_the_compiled_path_follows_the_eager_fp32_reference(
    tokens_dir, environment, reference, tmp_path, recipe, precision
):
    record = record_of(environment, tmp_path, precision=precision, compile=True)
    train(long_settings(recipe), tokens_dir, record, tmp_path / "fast")
    ours, theirs = losses(tmp_path / "fast"), losses(reference[recipe])
    assert len(ours) == len(theirs) == STEPS // 10
    assert theirs[-1] < theirs[0] - 1
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) < TOLERANCE[precision]
    assert json.loads((tmp_path / "fast" / "run.json").read_text())["compile"] is True


@needs_compiler
def test_a_compiled_training_that_is_resumed_equals_an_uninterrupted_one_bit_for_bit(
    tokens_dir, environment, tmp_path, monkeypatch
):
    record = record_of(environment, tmp_path, precision="bf16", compile=True)
    train(train_settings(), tokens_dir, record, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 6)
        with pytest.raises(UserError, match="stopped by SIGTERM at step 7"):
            train(train_settings(), tokens_dir, record, tmp_path / "parts")
    torch.compiler.reset()  # as a process of its own would begin
    train(train_settings(), tokens_dir, record, tmp_path / "parts")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


@needs_compiler
def test_an_attention_that_cannot_be_compiled_trains_all_the_same(tokens_dir, environment, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import dataclasses, torch\n"
        "from attnscale.attention import register\n"
        "from attnscale.attention.base import Attention\n"
        "@register('printed')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Printed(Attention):\n"
        "    '''Goes through Python, which no graph can hold.'''\n"
        "    formula = '1/sqrt(d)'\n"
        "    source = 'test'\n"
        "    def mix(self, q, k, v, context, dropout):\n"
        "        scale = float(str(float(q.detach().sum()) * 0 + 1))\n"
        "        return super().mix(q * scale, k, v, context, dropout)\n"
    )
    settings = train_settings(arm="own", attention={"name": "printed", "module": str(own), "parameters": {}})
    train(settings, tokens_dir, record_of(environment, tmp_path, compile=True), tmp_path / "own")
    plain = train_settings(arm="own", attention={"name": "attention_o"})
    train(plain, tokens_dir, environment, tmp_path / "plain")
    tensors = [safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("own", "plain")]
    assert all(torch.allclose(tensors[0][name], tensors[1][name], atol=1e-3) for name in tensors[0])
