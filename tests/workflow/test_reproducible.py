"""The same bytes twice: elsewhere, on one core, after kills."""

import os
import signal
import time
from pathlib import Path

import pytest

from attnscale.engine import can_compile
from attnscale.manifest import NAME as MANIFEST
from attnscale.manifest import deterministic_files
from tests.workflow.conftest import copy_project

pytestmark = pytest.mark.workflow


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_one_core_and_a_folder_with_blank_and_umlaut_give_the_same_manifest(finished, tmp_path):
    other = copy_project(tmp_path / "wörk dir ñ")
    other.snakemake("--cores", "1")
    assert other.manifest() == finished.manifest()
    for name in ("index.html", "report.md"):
        assert str(tmp_path) not in (other.results / "report" / name).read_text(encoding="utf-8")


def test_the_manifest_covers_every_result_but_those_with_wall_clock_numbers(finished):
    covered = {line.partition("  ")[2] for line in finished.manifest().splitlines()}
    present = {path.relative_to(finished.results).as_posix() for path in finished.results.rglob("*") if path.is_file()}
    # Every file has its checksum beside it.
    checksums = {name for name in present if name.endswith(".sha256") and name != MANIFEST}
    assert covered <= {name.removesuffix(".sha256").replace("/.", "/").removeprefix(".") for name in checksums}
    outside = {name for name in present - covered - checksums if not name.startswith(("logs/", "benchmarks/"))}
    runs = {
        f"runs/{arm}/seed0/{name}"
        for arm in ("attention_o", "attention_e", "acl2022")
        for name in ("history.csv", "run.json")
    }
    assert outside == runs | {"environment.json", "manifest.sha256", "report/durations.html", "report/durations.md"}


def test_killing_training_and_snakemake_and_recovering_gives_the_same_manifest(finished, copied):
    run = copied.results / "runs" / "attention_e" / "seed0"
    # What depends on it goes too: Snakemake does not miss a file in the middle of a finished chain.
    for path in [*run.iterdir(), copied.results / "evaluations/attention_e/seed0.csv", copied.results / MANIFEST]:
        path.unlink()
    checkpoint, lock = run / "resume.pt", run / ".lock"
    # First kill: only the training. Snakemake reports the failure.
    snakemake = copied.start("--cores", "2")
    wait_for(checkpoint.exists)
    os.kill(int(lock.read_text()), signal.SIGKILL)
    assert snakemake.wait(timeout=300) != 0
    assert checkpoint.exists()
    assert not (run / "model.safetensors").exists()
    # Second kill: Snakemake itself, while the training runs again. The training must not stay behind.
    stamp = checkpoint.stat().st_mtime_ns
    lock.unlink(missing_ok=True)
    snakemake = copied.start("--cores", "2")
    wait_for(lambda: lock.exists() and lock.read_text())
    trainer = int(lock.read_text())
    wait_for(lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > stamp)
    snakemake.kill()
    snakemake.wait(timeout=60)
    wait_for(lambda: not alive(trainer), seconds=60)
    assert not (run / "model.safetensors").exists(), "killed too late to mean anything"
    # The recovery that the README gives.
    copied.snakemake("--unlock")
    copied.snakemake("--cores", "2")
    assert copied.manifest() == finished.manifest()
    assert not checkpoint.exists()
    assert '"resumed_from_steps": []' not in (run / "run.json").read_text()
    ours, theirs = (
        [
            line.rpartition(",")[0]
            for line in (p.results / "runs/attention_e/seed0/history.csv").read_text().splitlines()
        ]
        for p in (copied, finished)
    )
    assert ours == theirs


@pytest.mark.skipif(not can_compile("cpu"), reason="torch cannot compile here, for instance without a C++ compiler")
def test_a_compiled_training_gives_the_same_weights_twice(tmp_path):
    weights = []
    for turn in ("first", "second"):
        project = copy_project(tmp_path / turn)
        project.edit("config/smoke.yaml", "compile: off", "compile: on")
        # A cache of its own, or the second run would only load what the first has compiled.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"cache_of_{turn}")}
        target = "results/smoke/runs/attention_e/seed0/model.safetensors"
        project.snakemake(target, "--cores", "2", environment=cache)
        assert '"compile": true' in (project.results / "environment.json").read_text(encoding="utf-8")
        weights.append((project.root / target).read_bytes())
    assert weights[0] == weights[1]


def test_verify_finds_a_flipped_byte_and_a_missing_file(copied):
    import subprocess
    import sys

    def verify():
        return subprocess.run(
            [sys.executable, "-m", "attnscale.cli", "verify", "results/smoke"],
            cwd=copied.root, env=copied.environment, capture_output=True, text=True,
        )  # fmt: skip

    good = verify()
    assert good.returncode == 0, good.stderr
    assert "files agree" in good.stdout
    weights = copied.results / "runs" / "acl2022" / "seed0" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    (copied.results / "accuracy.csv").unlink()
    bad = verify()
    assert bad.returncode == 1
    assert "changed: runs/acl2022/seed0/model.safetensors" in bad.stderr
    assert "missing: accuracy.csv" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_the_order_of_arms_and_the_number_of_seeds_do_not_change_the_weights_of_any(finished, copied):
    text = (copied.root / "config" / "smoke.yaml").read_text(encoding="utf-8")
    first, other = "  attention_o: {attention: attention_o}\n", "  acl2022: {attention: acl2022}\n"
    swapped = text.replace(first, "@").replace(other, first).replace("@", other)
    swapped = swapped.replace("seeds: [0]", "seeds: [1, 0]")
    assert swapped != text
    (copied.root / "config" / "smoke.yaml").write_text(swapped, encoding="utf-8")
    weights = copied.results / "runs" / "attention_o" / "seed0" / "model.safetensors"
    for path in (copied.results / "runs").rglob("model.safetensors"):
        path.unlink()
    copied.snakemake("results/smoke/runs/attention_o/seed0/model.safetensors", "--cores", "2")
    assert weights.read_bytes() == (finished.results / "runs/attention_o/seed0/model.safetensors").read_bytes()


def test_deterministic_files_are_all_made(finished):
    from attnscale.config import load_config

    for name in deterministic_files(load_config(finished.results / "config.yaml")):
        assert (finished.results / name).stat().st_size > 0, name
