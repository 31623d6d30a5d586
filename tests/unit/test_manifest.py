"""The manifest: every deterministic file, and a finger on whatever differs."""

import re
import subprocess
from pathlib import Path

import pytest

from attnscale.cli import resolved_yaml
from attnscale.config import load_config, parse_config
from attnscale.errors import UserError
from attnscale.manifest import (
    NAME,
    check_complete,
    deterministic_files,
    evaluation_file,
    other_files,
    refresh_manifest,
    snapshots,
    verify,
    write_manifest,
)
from tests.unit.test_cli import assert_one_sentence, attnscale  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "wörk dir ñ"
    for name, data in {"b.csv": b"x,1\n", "a/c.npy": bytes(range(256)), "a/empty": b""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    write_manifest(folder, ["b.csv", "a/empty", "a/c.npy"])
    return folder


def test_an_untouched_run_agrees(run_dir):
    assert verify(run_dir) == 3


def test_the_manifest_is_sorted_and_in_the_format_of_sha256sum(run_dir):
    text = (run_dir / NAME).read_text(encoding="utf-8")
    assert [line[66:] for line in text.splitlines()] == ["a/c.npy", "a/empty", "b.csv"]
    assert re.fullmatch(r"([0-9a-f]{64}  [^\n]+\n){3}", text)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", NAME], cwd=run_dir, check=True)


def test_the_order_of_the_names_does_not_matter(run_dir):
    before = (run_dir / NAME).read_bytes()
    write_manifest(run_dir, ["a/c.npy", "b.csv", "a/empty"])
    assert (run_dir / NAME).read_bytes() == before


@pytest.mark.parametrize("position", [0, 100, 255])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_bit_is_found_and_its_file_named(run_dir, position, bit):
    path = run_dir / "a" / "c.npy"
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"1 of 3 files .* changed: a/c\.npy$"):
        verify(run_dir)


def test_missing_grown_and_emptied_files_are_all_named(run_dir):
    (run_dir / "a" / "empty").unlink()
    (run_dir / "b.csv").write_bytes(b"")
    (run_dir / "a" / "c.npy").write_bytes(bytes(range(256)) + b"\n")
    with pytest.raises(UserError, match="3 of 3 files") as caught:
        verify(run_dir)
    assert "missing: a/empty" in str(caught.value)
    assert "changed: b.csv" in str(caught.value)
    assert "changed: a/c.npy" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_in_the_place_of_a_file_counts_as_missing(run_dir):
    (run_dir / "b.csv").unlink()
    (run_dir / "b.csv").mkdir()
    with pytest.raises(UserError, match=r"missing: b\.csv"):
        verify(run_dir)


def test_a_manifest_is_not_written_for_an_unfinished_run(run_dir):
    before = (run_dir / NAME).read_bytes()
    with pytest.raises(UserError, match=r"nowhere\.csv is missing; finish the run"):
        write_manifest(run_dir, ["b.csv", "nowhere.csv"])
    assert (run_dir / NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("words\n", "line 1 of .* is damaged"),
        (f"{'0' * 64}  b.csv\n{'0' * 63}  b.csv\n", "line 2 of .* is damaged"),
        (f"{'0' * 64} b.csv\n", "line 1 of .* is damaged"),
        (f"{'0' * 64}  \n", "line 1 of .* is damaged"),
        (f"{'0' * 64}  /etc/hostname\n", "line 1 of .* is damaged"),
        (f"{'0' * 64}  ../b.csv\n", "line 1 of .* is damaged"),
        (f"{'0' * 64}  a/../../b.csv\n", "line 1 of .* is damaged"),
        (f"{'0' * 64}  b.csv\n{'1' * 64}  b.csv\n", "line 2 of .* is damaged"),
    ],
)
def test_a_damaged_manifest_is_told_and_nothing_outside_the_run_is_read(run_dir, text, words):
    (run_dir / NAME).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words) as caught:
        verify(run_dir)
    assert len(str(caught.value).splitlines()) == 1


def test_a_manifest_that_is_no_text_is_damaged(run_dir):
    (run_dir / NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is damaged"):
        verify(run_dir)


def test_a_manifest_that_leaves_out_files_of_its_run_is_told(tmp_path, attnscale):  # noqa: F811
    run = tmp_path / "run"
    run.mkdir()
    config = parse_config({"name": "run", "arms": {"o": {"attention": "attention_o"}}}, "test")
    names = deterministic_files(config)
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(resolved_yaml(config) if name == "config.yaml" else name)
    write_manifest(run, names)
    code, out, _ = attnscale("verify", run)
    assert (code, out) == (0, f"{len(names)} files agree with {run / NAME}\n")
    lines = (run / NAME).read_text().splitlines(keepends=True)
    for left_out in ("accuracy.csv", "config.yaml", "theory.csv"):
        (run / NAME).write_text("".join(line for line in lines if not line.endswith(f"  {left_out}\n")))
        told = f"leaves out 1 of {len(names)} files that config.yaml beside it stands for, such as {left_out}"
        assert_one_sentence(*attnscale("verify", run)[::2], told, "run the pipeline again")
    # What is listed beyond them, as by a version that made one more file, is compared and no problem.
    (run / "more.csv").write_text("1")
    write_manifest(run, [*names, "more.csv"])
    check_complete(run)
    assert verify(run) == len(names) + 1


def test_a_run_without_manifest_is_told(tmp_path):
    with pytest.raises(UserError, match=r"manifest\.sha256 is missing; finish the run, or check the folder's name"):
        verify(tmp_path)


def test_the_list_of_files_follows_the_configuration_and_leaves_wall_clock_out():
    files = deterministic_files(load_config(ROOT / "config" / "default.yaml"))
    assert files == sorted(set(files))
    assert "runs/acl2022/seed0/model.safetensors" in files
    assert "evaluations/attention_o_logn_at_test/seed0.csv" in files
    assert not any("runs/attention_o_logn_at_test" in name for name in files)
    assert {"config.yaml", "corpus/manifest.json", "accuracy.csv", "report/index.html"} <= set(files)
    for clock in ("history.csv", "run.json", "environment.json", "durations"):
        assert not any(clock in name for name in files)


def test_snapshots_and_their_evaluations_are_covered_and_branches_have_none():
    config = parse_config(
        {
            "name": "x",
            "seeds": [0, 1],
            "arms": {
                "o": {"attention": "attention_o"},
                "late": {"attention": "ssmax", "branch": {"of": "o", "at": 0.5}, "seeds": [1]},
                "at_test": {"attention": "acl2022", "weights_of": "o", "seeds": [1]},
            },
            "training": {"tokens": 10 * 64 * 64, "snapshots": [0.2, 0.5]},
            "evaluation": {"snapshot_arms": ["at_test"]},
        },
        "x.yaml",
    )
    kinds = ("optimizers.safetensors", "safetensors")
    kept = [f"runs/o/seed{seed}/snapshots/step{step}.{kind}" for seed in (0, 1) for step in (2, 5) for kind in kinds]
    files = deterministic_files(config)
    assert [name for name in files if "/snapshots/" in name] == kept
    assert sorted(snapshots(config)) == kept
    assert [name for name in files if name.startswith("evaluations/")] == [
        "evaluations/at_test/seed1.csv", "evaluations/at_test/seed1/step2.csv", "evaluations/at_test/seed1/step5.csv",
        "evaluations/late/seed1.csv", "evaluations/o/seed0.csv", "evaluations/o/seed1.csv",
    ]  # fmt: skip
    assert [name for name in files if name.endswith("model.safetensors")] == [
        "runs/late/seed1/model.safetensors", "runs/o/seed0/model.safetensors", "runs/o/seed1/model.safetensors",
    ]  # fmt: skip
    assert "snapshots.csv" in files
    assert "runs/late/seed1/history.csv" in other_files(config)
    assert "runs/late/seed0/history.csv" not in other_files(config)
    assert evaluation_file("o", 1) == "evaluations/o/seed1.csv"
    assert evaluation_file("o", 1, 20) == "evaluations/o/seed1/step20.csv"
    assert "snapshots.csv" not in deterministic_files(load_config(ROOT / "config" / "default.yaml"))


def test_refreshing_touches_only_the_lines_of_its_folder(tmp_path):
    (tmp_path / "report").mkdir()
    for name in ("a.csv", "report/index.html"):
        (tmp_path / name).write_text("old")
    write_manifest(tmp_path, ["a.csv", "report/index.html"])
    (tmp_path / "report" / "index.html").write_text("new")
    (tmp_path / "a.csv").write_text("damaged")
    refresh_manifest(tmp_path, "report")
    with pytest.raises(UserError, match=r"1 of 2 files .*: changed: a.csv$"):
        verify(tmp_path)
