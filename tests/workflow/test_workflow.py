"""The workflow as a whole: bad input, Snakemake's own report, style."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pipeline
from tests.workflow.conftest import ROOT, SMOKE, copy_project

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize("config", sorted(path.name for path in (ROOT / "config").glob("*.yaml")))
def test_every_named_run_can_be_planned(finished, config):
    assert finished.due(configfile=f"config/{config}") or config == "smoke.yaml"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds: [0]", "seeds: [0, 0]", ["seeds", "twice"]),
        ("seeds: [0]", "seed: [0]", ["unknown key seed", "did you mean seeds"]),
        ("{attention: acl2022}", "{attention: acl2021}", ["arms.acl2022.attention", "did you mean acl2022"]),
        ("lengths: [64, 128, 256, 512]", "lengths: [64, 100, 300]", ["evaluation.lengths"]),
        (
            "{max_documents: 20}",
            "{sources: [{kind: files, name: a, paths: none/*.txt}]}",
            ["none/*.txt matches no file"],
        ),
        ("{preset: smoke}", "{preset: smoke, heads: 3}", ["model", "heads"]),
    ],
)
def test_a_bad_configuration_gets_one_sentence_before_any_job(copied, old, new, words):
    copied.edit(SMOKE, old, new)
    done = copied.snakemake("--cores", "1", check=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert all(word in errors[0] for word in words), errors
    assert "Traceback" not in done.stderr


def test_a_formal_language_that_is_off_is_refused_with_what_switches_it_on(tmp_path):
    project = copy_project(tmp_path / "project")
    done = project.snakemake("--cores", "1", "first", configfile="config/default.yaml", check=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "no section first; add `first: {}`" in errors[0]
    assert "Traceback" not in done.stderr
    assert not project.results.exists()


def test_no_cores_are_refused(finished):
    done = finished.snakemake("--cores", "0", check=False)
    assert done.returncode == 1
    assert "error: --cores 0 leaves no core to work with" in done.stderr


def test_the_folder_of_an_import_is_refused_before_any_job(tmp_path):
    project = copy_project(tmp_path / "project")
    project.results.mkdir(parents=True)
    (project.results / "checkpoint.json").write_text("{}")
    done = project.snakemake("-n", check=False)
    assert done.returncode != 0
    assert "error: results/smoke holds an imported checkpoint; give the configuration another name" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in project.results.iterdir()] == ["checkpoint.json"]


def test_a_stage_that_fails_shows_its_sentence_and_leaves_nothing_half_made(copied):
    copied.edit(SMOKE, "max_blocks: 8", "max_blocks: 8, mask_rate: 0.2")
    copied.edit(SMOKE, "512]", "512, 65536]")
    copied.edit(SMOKE, "corpus:", "  fresh: {attention: attention_e_kappa}\ncorpus:")
    done = copied.snakemake("--cores", "2", check=False)
    assert done.returncode == 1
    assert "no held-out document" in done.stdout + done.stderr
    assert not (copied.results / "runs" / "fresh").exists(), "trained before it was known that nothing can be evaluated"
    assert not (copied.results / "tokens" / "evaluation.json").exists()
    assert not list(copied.results.rglob("*.part"))


def test_snakemakes_own_report_is_written_without_a_network(finished, tmp_path):
    target = tmp_path / "report.html"
    command = [sys.executable, "-m", "snakemake", "--report", str(target), "--configfile", SMOKE]
    if shutil.which("unshare") and subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0:
        command = ["unshare", "-n", *command]
    done = subprocess.run(command, cwd=finished.root, env=finished.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    html = target.read_text(encoding="utf-8")
    assert "accuracy by length" in html
    assert "learning curves" in html


def test_an_attention_of_ones_own_appears_in_tables_figures_and_report(finished, tmp_path):
    project = copy_project(tmp_path / "own")
    project.snakemake("--cores", "2", configfile="examples/power_law.yaml")
    results = project.root / "results" / "power_law"
    for table in ("accuracy.csv", "entropy.csv", "differences.csv"):
        arms = {line.split(",")[0] for line in (results / table).read_text(encoding="utf-8").splitlines()[1:]}
        assert {"power_law", "power_law_at_test"} <= arms, table
    page = (results / "report" / "index.html").read_text(encoding="utf-8")
    for words in ("(n / L)^exponent / sqrt(d)", "made for this example", "too sharp at long lengths", "exponent = 0.2"):
        assert words in page
    figure = (results / "report" / "figures" / "accuracy_by_length.svg").read_text(encoding="utf-8")
    assert "power_law" in figure
    # Its file is watched, and nothing else depends on it.
    assert project.due(configfile="examples/power_law.yaml") == {}
    project.edit("examples/power_law.py", "** self.exponent", "** (2 * self.exponent)")
    due = project.due(configfile="examples/power_law.yaml")
    assert (due["train"], due["evaluate"]) == (1, 2)


def test_a_finished_run_tells_how_much_of_its_time_was_neither_training_nor_evaluation(finished):
    found = pipeline.measure(finished.results)
    assert not found.left_out
    assert 0 < found.values["pipeline_overhead_share"] < 1
    jobs = {row.what for row in found.rows}
    assert {"workflow", "corpus", "train/attention_o/seed0", "evaluate/attention_o_logn_at_test/seed0"} <= jobs
    assert all(row.value > 0 for row in found.rows)


def test_rules_have_what_every_rule_must_have():
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^ +run:\s*$", text, flags=re.MULTILINE), path
        for rule in text.split("\nrule ")[1:] + ([text[5:]] if text.startswith("rule ") else []):
            for part in ("output:", "log:", "benchmark:", "conda:", "threads:", "resources:", "shell:"):
                assert f"    {part}" in rule, (path.name, rule.partition(":")[0], part)
            assert re.search(r"2> ?\{log:q\}", rule)


def test_lint_and_format_are_clean():
    scripts = Path(sys.executable).parent
    lint = subprocess.run([scripts / "snakemake", "--lint"], cwd=ROOT, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr
    style = subprocess.run(
        [scripts / "snakefmt", "--check", "Snakefile", "workflow"], cwd=ROOT, capture_output=True, text=True
    )
    assert style.returncode == 0, style.stderr
