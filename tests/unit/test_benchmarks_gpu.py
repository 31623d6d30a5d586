"""The prepared GPU script, on the CPU: it is the pipeline's training, needs next to nothing, and keeps its budget."""

import csv
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attnscale import counts, evaluate, train
from attnscale.accuracy import collect_accuracy
from attnscale.attention import make_variant
from attnscale.config import PRESETS, ModelConfig, TrainingConfig, load_config
from attnscale.errors import UserError
from attnscale.model import Encoder
from attnscale.tokens.batches import TrainingBatches
from attnscale.tokens.load import load_evaluation_set, load_training_tokens, load_vocabulary
from benchmarks.cases import preset_case
from benchmarks.device import arms, checks, speed
from benchmarks.device.bench import Bench
from benchmarks.device.command import main
from benchmarks.device.feed import feed
from benchmarks.device.findings import Findings
from benchmarks.device.settings import AT_TEST, TRAINED, defaults, model_settings, parse_change, training_settings
from tests.unit.conftest import LENGTH, train_settings

PROJECT = Path(__file__).parents[2]
SCRIPT = str(PROJECT / "benchmarks" / "gpu.py")
CPU = torch.device("cpu")
# What is installed where the script runs: what it is said to need, and torch's own requirements.
INSTALLED = (
    "torch", "torchgen", "functorch", "triton", "nvidia", "numpy", "numpy.libs", "safetensors", "typing_extensions.py",
    "filelock", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec",
)  # fmt: skip
QUICK = [
    "--device", "cpu", "--preset", "smoke", "--compile", "off", "--threads", "1", "--batch-size", "4",
    "--speed-sizes", "2,4", "--speed-steps", "1", "--turns", "2", "--compare-steps", "3", "--repeat-steps", "2",
    "--train-tokens", "300", "--set", f"length={LENGTH}",
]  # fmt: skip


def command(tokens_dir, output, *more: str) -> list[str]:
    return ["--tokens", str(tokens_dir), "--output", str(output), *QUICK, *more]


@pytest.fixture
def bare_python(tmp_path):
    """Starts a Python that finds nothing installed but what the script is said to need, in a foreign folder."""
    site, cwd = tmp_path / "site", tmp_path / "elsewhere"
    site.mkdir()
    cwd.mkdir()
    installed = Path(torch.__file__).parents[1]
    for name in INSTALLED:
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)

    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-S", *arguments]  # -S: without site-packages
        environment = {**os.environ, "PYTHONPATH": str(site)}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def bench(tokens_dir) -> Bench:
    torch.set_num_threads(1)
    return Bench(
        tokens_dir, "smoke", "cpu", bf16=False, compiled=False, batch_size=4, changes={"length": LENGTH, "log_every": 5}
    )


class Clock:
    """Moves on by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_settings_are_those_of_the_configuration():
    assert vars(training_settings()) == TrainingConfig().model_dump()
    for preset in PRESETS:
        settings = vars(model_settings(preset))
        assert {**settings, "preset": preset} == ModelConfig.model_validate({"preset": preset}).model_dump()


def test_arms_are_those_of_the_default_run():
    config = load_config(PROJECT / "config" / "default.yaml")
    trained = {name: (arm.attention.name, arm.attention.parameters) for name, arm in config.arms.items()}
    others = {name: (config.arms[name].weights_of, trained.pop(name)) for name in AT_TEST}
    assert {name: tuple(attention) for name, attention in TRAINED.items()} == trained
    assert {name: (of, tuple(attention)) for name, (of, attention) in AT_TEST.items()} == others


def test_a_changed_setting_has_the_type_of_its_default_or_is_refused():
    assert parse_change("mask_rate=0.2") == ("mask_rate", 0.2)
    assert parse_change("optimizer=adamw") == ("optimizer", "adamw")
    with pytest.raises(UserError, match="no training setting is called masks; known: adam_beta1, "):
        parse_change("masks=0.2")
    with pytest.raises(UserError, match="no training setting is called snapshots"):
        parse_change("snapshots=0.5")
    with pytest.raises(UserError, match="length must be like its default, 64"):
        parse_change("length=long")
    assert "tokens" in defaults("TrainingConfig")


def test_batches_gathered_on_the_device_are_those_of_the_pipeline(bench, tokens_dir):
    training, steps = bench.training(7), 7
    documents = load_training_tokens(tokens_dir)
    batches = TrainingBatches(*documents, load_vocabulary(tokens_dir), training, seed=3)
    ids_A = torch.from_numpy(documents.ids.astype("int32"))
    given = list(feed(batches, ids_A, training.length, steps))
    assert len(given) == steps
    for step, tensors in enumerate(given):
        right = batches.batch(step)
        for tensor, array in zip(tensors, (right.inputs_BN, right.selected_S, right.targets_S), strict=True):
            assert tensor.dtype == torch.int64
            assert tensor.shape == array.shape
            assert (tensor.numpy() == array).all()
    assert not (given[0][0] == given[1][0]).all()


def test_a_training_is_the_pipelines_down_to_the_bytes_of_its_weights(bench, tokens_dir, environment, tmp_path):
    settings = train_settings(training={"checkpoint_every": 1000})
    train.train(settings, tokens_dir, environment, tmp_path / "pipeline")
    findings = Findings(tmp_path, 1e6, 0, Clock())
    machine = bench.machine("attention_e", 4)
    for seed in (1, 0):  # another training before it in the same machine leaves no trace
        run = arms._train(bench, findings, machine, bench.training(12), "attention_e", seed)
        assert run is not None
    assert machine.weights() == (tmp_path / "pipeline" / "model.safetensors").read_bytes()
    folders = (tmp_path / "runs" / "attention_e" / "seed0", tmp_path / "pipeline")
    ours, theirs = (list(csv.reader((folder / "history.csv").open())) for folder in folders)
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    assert ours[0] == theirs[0] == list(arms.HISTORY_COLUMNS) == list(train.HISTORY_COLUMNS)
    for mine, right in zip(ours[1:], theirs[1:], strict=True):
        assert [float(value) for value in mine[2:6]] == pytest.approx([float(value) for value in right[2:6]], rel=1e-6)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_flops_are_those_of_the_other_benchmark(preset):
    case = preset_case(preset, 1, steps=1)
    shapes = speed.products(case.model, case.training, case.vocabulary_size)
    assert shapes == case.products()
    assert speed.product_flops(shapes) == case.product_flops()
    assert case.product_flops() + speed.attention_flops(case.model, case.training) == case.step_flops()


def test_right_predictions_are_counted_as_the_pipeline_counts_them(bench, tokens_dir, monkeypatch):
    monkeypatch.setattr(arms, "EVALUATION_TOKENS", 192)  # several batches, the last one not full
    data = load_evaluation_set(tokens_dir)
    model = Encoder(bench.model, bench.vocabulary.size, make_variant("attention_e", {}), LENGTH).eval()
    model.initialise(0)
    seen = set()
    for length in data.lengths:
        correct_K, total_K = evaluate.count_correct(model, data, length, 64, CPU, bf16=False)
        assert arms.count_correct(model, data, length, CPU, bf16=False) == (sum(correct_K), sum(total_K))
        seen.add(sum(correct_K))
    assert seen != {0}


def test_accuracy_is_written_as_the_pipeline_writes_it(tmp_path):
    rows = [("acl2022", 0, 64, 1, 3), ("acl2022", 0, 128, 2, 3), ("acl2022", 1, 64, 0, 3), ("attention_o", 0, 64, 3, 3)]
    arms.write_accuracy(tmp_path / "ours.csv", rows[::-1])
    lines = [",".join(evaluate.COLUMNS), *(f"{arm},{seed},9,{length},0,{c},{t}" for arm, seed, length, c, t in rows)]
    (tmp_path / "evaluation.csv").write_text("\n".join(lines), encoding="utf-8")
    collect_accuracy([tmp_path / "evaluation.csv"], tmp_path / "theirs.csv")
    assert (tmp_path / "ours.csv").read_bytes() == (tmp_path / "theirs.csv").read_bytes()


def test_another_attention_at_test_leaves_the_trained_one_as_it_is(bench):
    machine = bench.machine("attention_o", 4)
    list(machine.run(bench.training(2), seed=0))
    before = machine.weights()
    name, attention = AT_TEST["attention_o_logn_at_test"]
    model = arms.with_attention(bench, machine, attention)
    assert (name, model.variant.name, machine.model.variant.name) == ("attention_o", "attention_e", "attention_o")
    assert not model.training
    ids_BN = torch.arange(64)[None] + 3
    machine.model.eval()
    with torch.no_grad():
        assert torch.equal(model(ids_BN[:, :LENGTH]), machine.model(ids_BN[:, :LENGTH]))
        assert not torch.equal(model(ids_BN), machine.model(ids_BN))
    assert machine.weights() == before


def test_parts_that_come_too_late_are_left_out_and_later_ones_keep_their_time(tmp_path, capsys):
    done = []
    findings = Findings(tmp_path, minutes=1, started=0, clock=(clock := Clock()))
    findings.part("first", 0.2, lambda found: done.append("first"))
    clock.now = 13
    findings.part("second", 0.2, lambda found: done.append("second"))
    findings.part("third", 0.5, lambda found: done.append("third"))
    clock.now = 61
    findings.part("last", 1.0, lambda found: done.append("last"))
    assert done == ["first", "third"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["second"] == summary["last"] == {"left_out": "no time was left"}
    assert summary["problems"] == []
    assert "second: left out" in capsys.readouterr().out


def test_a_part_that_fails_is_told_and_leaves_what_it_found_and_the_others(tmp_path, capsys):
    def broken(found):
        found["half"] = 1
        raise RuntimeError("no\nkernel")

    findings = Findings(tmp_path, minutes=1, started=0, clock=Clock())
    findings.part("first", 1.0, broken)
    findings.part("second", 1.0, lambda found: found.update(whole=2))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["first"]["half"] == 1
    assert summary["second"]["whole"] == 2
    assert summary["problems"] == ["first failed with RuntimeError: no kernel"]
    assert "Traceback" in capsys.readouterr().err


def test_trainings_go_seed_by_seed_and_stop_before_the_one_that_does_not_fit(bench, tmp_path):
    findings = Findings(tmp_path, minutes=1.2, started=0, clock=Clock())
    found = {}
    arms.train_all(bench, found, findings, tokens=600, seeds=itertools.count(5), keep=True)
    order = [(run["arm"], run["seed"]) for run in found["runs"]]
    right = [(arm, seed) for seed in (5, 6, 7, 8) for arm in ("attention_o", "attention_e", "acl2022")]
    assert 3 < len(order) < len(right)
    assert order == right[: len(order)]
    with (tmp_path / "accuracy.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    trained = {(row["arm"], int(row["seed"])) for row in rows if row["arm"] in TRAINED}
    assert trained == set(order)
    weights = {(path.parts[-3], int(path.parts[-2][4:])) for path in tmp_path.glob("runs/*/*/model.safetensors")}
    assert weights == set(order)


def test_a_training_whose_time_is_up_leaves_nothing(bench, tmp_path, capsys):
    findings = Findings(tmp_path, minutes=10 / 60, started=0, clock=Clock())
    found = {}
    arms.train_all(bench, found, findings, tokens=100 * 4 * LENGTH, seeds=[0], keep=True)
    assert found["runs"] == []
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "accuracy.csv").exists()
    assert re.search(r"attention_o seed 0 was given up at step \d+ of 100: no time", capsys.readouterr().out)


def test_a_training_that_diverges_is_told_and_leaves_the_others_their_chance(bench, tmp_path, monkeypatch):
    machine = bench.machine("attention_e", 4)
    real = machine.run
    monkeypatch.setattr(machine, "run", lambda *arguments: (figures * math.nan for figures in real(*arguments)))
    findings = Findings(tmp_path, minutes=10, started=0, clock=Clock())
    arms.train_all(bench, found := {}, findings, tokens=300, seeds=[0], keep=False)
    assert [run["arm"] for run in found["runs"]] == ["attention_o", "acl2022"]
    assert findings.problems == ["the loss or gradient of attention_e seed 0 is not finite before step 5"]
    assert "attention_e," not in (tmp_path / "accuracy.csv").read_text()


def test_the_length_of_trainings_is_what_lets_every_arm_be_trained_once(bench, tmp_path):
    findings = Findings(tmp_path, minutes=10, started=0, clock=lambda: 0)
    size = counts.tokens_per_step(bench.training(1))
    assert arms._steps(bench, findings, None) == -(-arms.DEFAULT_TOKENS // size)
    bench.tokens_per_second, bench.compile_seconds = 1000.0, 65.0
    assert arms._steps(bench, findings, None) == -(-int(0.9 * (600 - 3 * 65 - 5) / 3 * 1000) // size)
    assert arms._steps(bench, findings, 100_000) == -(-100_000 // size)
    findings = Findings(tmp_path, minutes=3, started=0, clock=lambda: 0)
    with pytest.raises(UserError, match="give more --minutes"):
        arms._steps(bench, findings, None)


def test_a_device_that_computes_something_else_is_found_out(bench, tmp_path, monkeypatch):
    findings = Findings(tmp_path, minutes=10, started=0, clock=lambda: 0)
    found = {}
    real = checks._curve
    wrong = iter((0.0, 2 * checks.FP32_TOLERANCE, 0.5 * checks.BF16_TOLERANCE))
    monkeypatch.setattr(
        checks, "_curve", lambda *arguments: (lambda by: [x + by for x in real(*arguments)])(next(wrong))
    )
    checks.compare(bench, found, findings, steps=2, until=1.0)
    assert len(findings.problems) == 1
    assert findings.problems[0].startswith("fp32 on the device leaves the loss curve of the CPU by")


def test_two_trainings_that_differ_are_found_out(bench, tmp_path, monkeypatch):
    findings = Findings(tmp_path, minutes=10, started=0, clock=lambda: 0)
    checks.determinism(bench, found := {}, findings, steps=2)
    assert found["equal"]
    assert findings.problems == []
    machine = bench.machine("attention_o", 4)
    real, seeds = machine.run, iter((0, 1))
    monkeypatch.setattr(machine, "run", lambda training, seed: real(training, next(seeds)))
    checks.determinism(bench, found, findings, steps=2)
    assert not found["equal"]
    assert findings.problems == ["two equal trainings of 2 steps differ in their weights"]


def test_the_whole_script_runs_with_nothing_installed_but_torch_numpy_and_safetensors(
    tokens_dir, tmp_path, bare_python
):
    output = tmp_path / "out"
    process = bare_python(SCRIPT, *command(tokens_dir, output, "--seeds", "2", "--minutes", "60"))
    out, err = process.communicate(timeout=600)  # seconds, unless others have the machine
    assert process.returncode == 0, out + err
    summary = json.loads((output / "summary.json").read_text())
    parts = ["environment", "compare", "determinism", "speed", "profile", "training"]
    assert set(summary) == {*parts, "minutes", "problems"}
    assert summary["problems"] == []
    assert len(summary["compare"]["fp32 on the CPU"]) == len(summary["compare"]["bf16 on the device"]) == 3
    assert summary["determinism"]["equal"]
    for size in ("2", "4"):
        assert len(summary["speed"][size]["tokens_per_second_of_turns"]) == 2
        assert 0 < summary["speed"][size]["matrix_rate_fraction"] < 2
    assert "aten::" in (output / "profile.txt").read_text()
    with (output / "accuracy.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["arm", "seed", "length", "correct", "total", "accuracy"]
    expected = [
        (arm, seed, length) for arm in sorted((*TRAINED, *AT_TEST)) for seed in "01" for length in ("16", "32", "64")
    ]
    assert [(row["arm"], row["seed"], row["length"]) for row in rows] == expected
    assert len({row["total"] for row in rows}) == 1
    assert all(float(row["accuracy"]) == int(row["correct"]) / int(row["total"]) for row in rows)
    assert len(list(output.glob("runs/*/*/history.csv"))) == 6
    assert not list(output.rglob("*.part"))
    for part in ("fp32 on the device", "two trainings", "of the matrix rate", "of the anchor", "mean of 2 seeds"):
        assert part in out
    # The environment is as bare as it is meant to be, and the package itself not installed in it.
    seek = "import importlib.util, sys; print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    names = ("attnscale", "pydantic", "pandas", "yaml", "typer", "rich", "tokenizers", "transformers", "numpy")
    assert bare_python("-c", seek, *names).communicate()[0].split() == ["numpy"]


def test_killed_in_the_middle_it_leaves_what_was_finished(tokens_dir, tmp_path, bare_python):
    output = tmp_path / "out"
    process = bare_python(SCRIPT, *command(tokens_dir, output, "--precision", "fp32"))
    end = time.monotonic() + 600
    while not (output / "runs" / "acl2022").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.communicate()
    summary = json.loads((output / "summary.json").read_text())
    assert summary["determinism"]["equal"]
    assert {run["arm"] for run in summary["training"]["runs"]} >= {"attention_o", "attention_e"}
    with (output / "accuracy.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["seed"] == "0"]
    assert {"attention_o", "attention_o_logn_at_test", "attention_e"} <= {row["arm"] for row in rows}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--tokens", "nowhere"], "error: nowhere/manifest.json is missing; run the stage that makes it"),
        (["--set", "speed=3"], "error: --set speed=3: no training setting is called speed"),
        (["--set", "length=100000"], "error: no training document has training.length = 100000 tokens"),
        (["--output", "old"], "error: old holds the results of an earlier call; choose another --output"),
        (["--output", "file"], "error: cannot use file"),
    ],
)
def test_what_cannot_work_is_told_in_one_sentence(tokens_dir, tmp_path, monkeypatch, capsys, change, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "summary.json").write_text("{}")
    assert main(command(tokens_dir, "out", *change), time.monotonic()) == 1
    out, err = capsys.readouterr()
    assert err.startswith(sentence)
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_without_a_gpu_it_says_so(tokens_dir, tmp_path, capsys):
    assert main(command(tokens_dir, tmp_path / "out", "--device", "cuda"), time.monotonic()) == 1
    assert capsys.readouterr().err.startswith("error: torch finds no GPU here; give --device cpu")


def test_without_time_everything_is_left_out_and_nothing_fails(tokens_dir, tmp_path):
    assert main(command(tokens_dir, tmp_path / "out", "--minutes", "0.001"), time.monotonic() - 1) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["training"] == summary["environment"] == {"left_out": "no time was left"}
