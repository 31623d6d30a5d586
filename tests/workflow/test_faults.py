"""What a whole run does when clocks, disks or people misbehave; each must end in the manifest of a quiet run."""

import os

import pytest

from tests.workflow.conftest import Project
from tests.workflow.test_reproducible import MANIFEST, wait_for

pytestmark = pytest.mark.workflow


def set_clock(project: Project, folder: str, seconds: int) -> None:
    """Give every file of a folder a time, as a machine with that clock would have done."""
    for path in (project.root / folder).rglob("*"):
        os.utime(path, (seconds, seconds))


@pytest.mark.parametrize(
    ("code", "results"),
    [(4_000_000_000, 86_400), (86_400, 4_000_000_000), (4_000_000_000, 4_000_000_000)],
    ids=["code from 2096, results from 1970", "code from 1970, results from 2096", "all from 2096"],
)
def test_a_clock_that_was_set_makes_nothing_due(copied, code, results):
    for folder in ("src", "config", "envs", "workflow"):
        set_clock(copied, folder, code)
    set_clock(copied, "results", results)
    # Inputs of the same job disagree about the time too.
    for path in (copied.results / "tokens").iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert copied.due() == {}


def test_a_second_snakemake_in_the_same_folder_is_refused_and_the_first_goes_on(finished, copied):
    run = copied.results / "runs" / "attention_e" / "seed0"
    for path in [*run.iterdir(), copied.results / "evaluations/attention_e/seed0.csv", copied.results / MANIFEST]:
        path.unlink()
    first = copied.start("--cores", "2")
    wait_for((run / ".lock").exists)
    second = copied.snakemake("--cores", "2", check=False)
    assert first.poll() is None, "the first was done too soon for this to mean anything"
    assert second.returncode != 0
    assert "cannot be locked" in second.stdout + second.stderr
    assert first.wait(timeout=600) == 0
    assert copied.manifest() == finished.manifest()


def test_a_flipped_digit_in_a_table_stops_the_run_until_the_table_is_made_again(finished, copied):
    table = copied.results / "evaluations" / "attention_e" / "seed0.csv"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    *start, correct, total = lines[1].split(",")
    lines[1] = ",".join([*start, str(int(correct) ^ 1), total])
    table.write_text("".join(lines), encoding="utf-8")
    # To Snakemake this is an input that somebody has changed on purpose.
    assert copied.due()["differences"] == 1
    done = copied.snakemake("--cores", "2", check=False)
    assert done.returncode == 1
    assert "seed0.csv and its checksum .seed0.csv.sha256 disagree" in done.stdout + done.stderr
    assert copied.manifest() == finished.manifest(), "the manifest of a run with a damaged table was written"
    table.unlink()
    table.with_name(".seed0.csv.sha256").unlink()
    copied.snakemake("--cores", "2")
    assert copied.manifest() == finished.manifest()
