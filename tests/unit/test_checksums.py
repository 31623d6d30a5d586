"""Checksums beside files: damage between two stages is told before a number is made from it."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnscale import files
from attnscale.checksums import check_checksums, checked, checksum_file, write_checksums
from attnscale.errors import UserError
from attnscale.manifest import check_inputs, write_manifest
from attnscale.tokens.load import load_vocabulary
from tests.unit.conftest import train_settings
from tests.unit.finished_run import write_run
from tests.unit.synthetic_run import write_run as write_finished_run
from tests.unit.test_cli import assert_one_sentence, attnscale  # noqa: F401
from tests.unit.test_evaluate import evaluate_settings

TABLE = "arm,seed,step,length,block,correct,total\no,0,3,16,0,5,10\n"


def flip(path: Path, place: int | None = None) -> None:
    """Flip one bit of one byte, by default in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def test_a_checksum_lies_beside_its_file_in_the_format_of_sha256sum(tmp_path):
    (tmp_path / "a b.csv").write_text("1\n")
    write_checksums([tmp_path / "a b.csv"])
    assert [path.name for path in sorted(tmp_path.iterdir())] == [".a b.csv.sha256", "a b.csv"]
    done = subprocess.run(["sha256sum", "--check", ".a b.csv.sha256"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "a b.csv: OK\n")


def test_every_flipped_bit_of_a_file_or_of_its_checksum_is_told_and_undone_damage_is_not(tmp_path):
    path = tmp_path / "accuracy.csv"
    path.write_text("arm,1\n")
    write_checksums([path])
    for damaged in (path, checksum_file(path)):
        for place in range(len(damaged.read_bytes())):
            flip(damaged, place)
            with pytest.raises(UserError, match=r"accuracy\.csv and its checksum \.accuracy\.csv\.sha256 disagree, so"):
                check_checksums([path])
            flip(damaged, place)
    check_checksums([path])


def test_files_that_are_missing_or_have_no_checksum_pass(tmp_path):
    (tmp_path / "old.csv").write_text("1\n")
    (tmp_path / "gone.csv").write_text("1\n")
    write_checksums([tmp_path / "gone.csv"])
    (tmp_path / "gone.csv").unlink()
    check_checksums([tmp_path / name for name in ("old.csv", "gone.csv", "never.csv")])


def test_a_stage_that_fails_writes_no_checksum(tmp_path):
    (tmp_path / "a.csv").write_text("1\n")
    with pytest.raises(ValueError, match="broken"), checked([], [tmp_path / "a.csv"]):
        raise ValueError("broken")
    assert not checksum_file(tmp_path / "a.csv").exists()


def test_no_room_for_a_checksum_costs_no_result_and_leaves_no_outdated_one(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.csv"
    path.write_text("1\n")
    write_checksums([path])

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path.write_text("2\n")
    monkeypatch.setattr(files.os, "replace", full)
    with checked([], [path]):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]
    assert "a.csv has no checksum: cannot use" in capsys.readouterr().err
    check_checksums([path])


@pytest.fixture
def stages(tokens_dir, environment, tmp_path, attnscale):  # noqa: F811
    """A training and an evaluation by the command line, as the workflow does them; copies that a test may damage."""
    shutil.copytree(tokens_dir, tmp_path / "tokens")
    shutil.copy2(environment, tmp_path / "environment.json")
    write_checksums([*(tmp_path / "tokens").iterdir(), tmp_path / "environment.json"])
    common = ["--tokens", tmp_path / "tokens", "--environment", tmp_path / "environment.json"]

    def train():
        return attnscale("train", "--settings", train_settings().canonical(), *common, "--output", tmp_path / "run")

    def evaluate():
        settings, weights = evaluate_settings(step=12).canonical(), tmp_path / "run" / "model.safetensors"
        rest = ["--weights", weights, "--output", tmp_path / "evaluations" / "seed0.csv"]
        return attnscale("evaluate", "--settings", settings, *common, *rest)

    return train, evaluate


def test_a_flipped_byte_in_weights_is_told_before_they_are_evaluated(stages, tmp_path):
    train, evaluate = stages
    assert train()[0] == evaluate()[0] == 0
    table = tmp_path / "evaluations" / "seed0.csv"
    right = table.read_bytes()
    table.unlink()
    weights = tmp_path / "run" / "model.safetensors"
    flip(weights)
    code, _, err = evaluate()
    assert_one_sentence(code, err, f"{weights} and its checksum", "one of them is damaged", "run the pipeline again")
    assert not table.exists()
    flip(weights)
    assert evaluate()[0] == 0
    assert table.read_bytes() == right


@pytest.mark.parametrize("name", ["train_ids.npy", "train_offsets.npy", "tokenizer.json", "manifest.json"])
def test_a_flipped_byte_in_tokens_is_told_before_anything_is_trained(stages, tmp_path, name):
    train, _ = stages
    flip(tmp_path / "tokens" / name)
    code, _, err = train()
    assert_one_sentence(code, err, f"{name} and its checksum .{name}.sha256 disagree")
    assert not (tmp_path / "run").exists()


def test_another_id_for_masks_in_the_manifest_of_tokens_is_told(stages, tmp_path):
    """Valid JSON with a wrong number, which nothing else would notice."""
    train, _ = stages
    path = tmp_path / "tokens" / "manifest.json"
    facts = json.loads(path.read_text())
    path.write_text(path.read_text().replace(f'"mask_id": {facts["mask_id"]}', f'"mask_id": {facts["mask_id"] ^ 1}'))
    assert load_vocabulary(tmp_path / "tokens").mask_id != facts["mask_id"]
    assert_one_sentence(*train()[::2], "manifest.json and its checksum")


@pytest.mark.parametrize("name", ["evaluation_ids.npy", "evaluation_masked.npy", "evaluation.json"])
def test_a_flipped_byte_in_the_evaluation_set_is_told_before_anything_is_evaluated(stages, tmp_path, name):
    train, evaluate = stages
    assert train()[0] == 0
    flip(tmp_path / "tokens" / name)
    assert_one_sentence(*evaluate()[::2], f"{name} and its checksum .{name}.sha256 disagree")
    assert not (tmp_path / "evaluations").exists()


def test_a_flipped_digit_in_a_table_is_told_before_anything_is_made_of_it(attnscale, tmp_path):  # noqa: F811
    evaluation, accuracy = tmp_path / "seed0.csv", tmp_path / "accuracy.csv"
    evaluation.write_text(TABLE)
    write_checksums([evaluation])
    flip(evaluation, TABLE.index("5"))  # 5 becomes 4: as good a number as the right one
    assert evaluation.read_text() == TABLE.replace(",5,", ",4,")
    code, _, err = attnscale("accuracy", evaluation, "--output", accuracy)
    assert_one_sentence(code, err, "seed0.csv and its checksum .seed0.csv.sha256 disagree")
    assert not accuracy.exists()


@pytest.mark.parametrize("name", ["accuracy.csv", "runs/attention_e/seed0/history.csv", "environment.json"])
def test_neither_report_nor_manifest_is_made_of_a_damaged_table(attnscale, tmp_path, name):  # noqa: F811
    run = tmp_path / "run"
    write_finished_run(run, seeds=(0,))
    write_checksums([path for path in run.rglob("*") if path.is_file()])
    text = (run / name).read_text(encoding="utf-8")
    digit = next(place for place in range(len(text) - 1, 0, -1) if text[place] in "2468")
    (run / name).write_text(f"{text[:digit]}3{text[digit + 1 :]}", encoding="utf-8")
    code, _, err = attnscale("report", run)
    assert_one_sentence(code, err, f"{run / name} and its checksum")
    assert not (run / "report").exists()
    code, _, err = attnscale("manifest", run)
    assert_one_sentence(code, err, f"{run / name} and its checksum")
    assert not (run / "manifest.sha256").exists()


def test_a_report_is_not_made_of_a_table_that_disagrees_with_the_manifest_when_its_checksum_was_lost(
    attnscale, tmp_path  # noqa: F811
):  # fmt: skip
    run = tmp_path / "run"
    write_finished_run(run, seeds=(0,))
    write_manifest(run, ["accuracy.csv", "config.yaml"])
    table = run / "accuracy.csv"
    right = table.read_text()
    table.write_text(right.replace("7", "6", 1))
    told = f"{table} is not the file that {run / 'manifest.sha256'} names"
    assert_one_sentence(*attnscale("report", run)[::2], told, "put back the right file")
    assert not (run / "report").exists()
    # A stage that has just written it anew left a checksum, and the manifest is the older one.
    table.write_text(right + "")
    (run / "manifest.sha256").write_text(f"{'0' * 64}  accuracy.csv\n")
    assert_one_sentence(*attnscale("report", run)[::2], told)
    write_checksums([table])
    check_inputs(run, ["accuracy.csv", "config.yaml", "nothing.csv"])


def test_a_flipped_byte_in_weights_is_no_prediction_even_before_the_run_has_a_manifest(
    tokens_dir, tmp_path, attnscale  # noqa: F811
):  # fmt: skip
    run = tmp_path / "run"
    write_run(run, tokens_dir, arms={"attention_o": {"attention": "attention_o"}})
    (run / "manifest.sha256").unlink()
    weights = run / "runs" / "attention_o" / "seed0" / "model.safetensors"
    write_checksums([weights])
    assert attnscale("predict", run, "the [MASK]")[0] == 0
    flip(weights)
    assert_one_sentence(*attnscale("predict", run, "the [MASK]")[::2], f"{weights} and its checksum")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_after_the_last_step_does_not_cost_the_training(tokens_dir, environment, tmp_path, number):
    """Its checkpoint is gone by then, and Snakemake deletes what a failed job has written."""
    arguments = ["--tokens", str(tokens_dir), "--environment", str(environment), "--output", str(tmp_path / "run")]
    code = (
        "import atexit, os, sys\n"
        f"atexit.register(lambda: (os.kill(os.getpid(), {int(number)}), print('signalled')))\n"
        "from attnscale import cli\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "--settings", train_settings().canonical(), *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "signalled\n"), done.stderr
    check_checksums((tmp_path / "run").glob("[!.]*"))
    assert checksum_file(tmp_path / "run" / "model.safetensors").exists()
