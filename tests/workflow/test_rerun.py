"""A change makes exactly the affected jobs due; each test is a dry run on a copy of the finished run."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.workflow

REPORTING = {"render": 1, "manifest": 1}
TABLES = {"accuracy": 1, "differences": 1, "claims": 1, **REPORTING}


def evaluated(arms: int) -> dict[str, int]:
    """Jobs that follow when the weights, the attention or the evaluation of that many arms has changed."""
    return {"evaluate": arms, "attention_statistics": arms, "entropy": 1, **TABLES}


def test_a_second_call_does_nothing(finished):
    assert finished.due() == {}


def test_touching_every_file_makes_nothing_due(copied):
    for folder in ("src", "config", "envs", "results", "workflow"):
        for path in (copied.root / folder).rglob("*"):
            os.utime(path)
    assert copied.due() == {}


def test_moving_the_whole_project_makes_nothing_due(copied, tmp_path):
    shutil.move(copied.root, tmp_path / "elsewhere with blank")
    moved = type(copied)(tmp_path / "elsewhere with blank")
    assert moved.due() == {}


EDITED = {
    "src/attnscale/report/tables.py": REPORTING,
    "src/attnscale/report/templates/report.md": REPORTING,
    "src/attnscale/manifest.py": {"manifest": 1},
    "src/attnscale/accuracy.py": {"accuracy": 1, **REPORTING},
    "src/attnscale/analysis/differences.py": {"differences": 1, "claims": 1, **REPORTING},
    "src/attnscale/analysis/claims.py": {"claims": 1, **REPORTING},
    "src/attnscale/analysis/theory.py": {"theory": 1, **REPORTING},
    "src/attnscale/analysis/attention_statistics.py": {
        "attention_statistics": 4, "entropy": 1, "claims": 1, **REPORTING,
    },
    "src/attnscale/evaluate.py": evaluated(4),
    "src/attnscale/train.py": {"train": 3, **evaluated(4)},
    "src/attnscale/attention/acl2022.py": {
        "train": 1, "theory": 1, "train_formal": 1, "formal_table": 1, **evaluated(1),
    },
    "src/attnscale/formal/stack.py": {"train_formal": 3, "formal_table": 2, "claims": 1, **REPORTING},
    "src/attnscale/formal/exact.py": {"exact_networks": 2, **REPORTING},
    # Trained by one arm, switched on at test time by another, whose weights stay.
    "src/attnscale/attention/attention_e.py": {"train": 1, "theory": 1, **evaluated(2)},
    "src/attnscale/attention/base.py": {
        "train": 3, "theory": 1, "train_formal": 3, "formal_table": 2, "exact_networks": 2, **evaluated(4),
    },
    "src/attnscale/tokens/evaluation_set.py": {"evaluation_set": 1, **evaluated(4)},
    "src/attnscale/tokens/tokenizer.py": {"tokens": 1, "evaluation_set": 1, "train": 3, **evaluated(4)},
    "src/attnscale/cli.py": {},
}  # fmt: skip
DELETED = {
    "accuracy.csv": {"accuracy": 1, **REPORTING},
    "differences.csv": {"differences": 1, **REPORTING},
    "entropy.csv": {"entropy": 1, "claims": 1, **REPORTING},
    "theory.csv": {"theory": 1, **REPORTING},
    "runs/acl2022/seed0/model.safetensors": {"train": 1, **evaluated(1)},
    "runs/acl2022/seed0/run.json": {"train": 1, **evaluated(1)},
    "report/figures/learning_curves.svg": REPORTING,
    "manifest.sha256": {"manifest": 1},
}


@pytest.fixture(scope="module")
def due_after(finished, tmp_path_factory):
    """Jobs due after each of the edits and deletions: a dry run waits and reads most of its time, so two at a time."""

    def edited(file):
        project = type(finished)(tmp_path_factory.mktemp("edited") / "copy")
        shutil.copytree(finished.root, project.root, symlinks=True)
        if file in DELETED:
            (project.results / file).unlink()
        else:
            path = project.root / file
            comment = "# edited\n" if path.suffix == ".py" else "\nedited\n"
            path.write_text(path.read_text(encoding="utf-8") + comment, encoding="utf-8")
        due = project.due()
        shutil.rmtree(project.root)
        return due

    with ThreadPoolExecutor(2) as pool:
        return dict(zip([*EDITED, *DELETED], pool.map(edited, [*EDITED, *DELETED]), strict=True))


@pytest.mark.parametrize("file", EDITED)
def test_editing_a_package_file_makes_the_jobs_due_that_use_it(due_after, file):
    assert due_after[file] == EDITED[file]


@pytest.mark.parametrize("file", DELETED)
def test_a_deleted_file_is_made_again(due_after, file):
    assert due_after[file] == DELETED[file]


def test_swapping_two_hyperparameters_retrains(copied):
    # Snakemake compares parameters as a set of values; two numbers that change places are the hard case.
    copied.edit("config/smoke.yaml", "log_every: 10, checkpoint_every: 20", "log_every: 20, checkpoint_every: 10")
    due = copied.due()
    assert due.pop("config") == 1
    assert due == {"train": 3, **evaluated(4)}


def test_adding_a_seed_trains_only_that_seed(copied):
    copied.edit("config/smoke.yaml", "seeds: [0]", "seeds: [0, 7]")
    due = copied.due()
    assert due.pop("config") == 1
    assert due == {"train": 3, **evaluated(4)}
    done = copied.snakemake("-n")
    listing = done.stdout + done.stderr
    assert "runs/attention_o/seed7/model.safetensors" in listing
    assert "output: results/smoke/runs/attention_o/seed0" not in listing


def test_adding_an_arm_trains_only_that_arm_and_a_test_time_arm_trains_nothing(copied):
    copied.edit("config/smoke.yaml", "corpus:", "  kappa: {attention: attention_e_kappa}\ncorpus:")
    due = copied.due()
    assert due.pop("config") == 1
    assert due == {"train": 1, **evaluated(1)}
    copied.edit(
        "config/smoke.yaml", "  kappa: {attention: attention_e_kappa}",
        "  other: {weights_of: acl2022, attention: attention_o}",
    )  # fmt: skip
    due = copied.due()
    assert due.pop("config") == 1
    assert due == evaluated(1)


def test_changing_the_evaluation_trains_nothing(copied):
    copied.edit("config/smoke.yaml", "max_blocks: 8", "max_blocks: 6")
    due = copied.due()
    assert due.pop("config") == 1
    assert due == {"evaluation_set": 1, **evaluated(4)}


def test_changing_the_lock_makes_everything_due_that_computes(copied):
    lock = copied.root / "envs" / "run.lock"
    lock.write_text(lock.read_text(encoding="utf-8") + "# another lock\n", encoding="utf-8")
    assert copied.due() == {
        "environment": 1, "corpus": 1, "tokens": 1, "evaluation_set": 1, "train": 3, "theory": 1,
        "train_formal": 3, "formal_table": 2, "exact_networks": 2, **evaluated(4),
    }  # fmt: skip


def test_the_report_of_a_finished_run_is_made_again_without_training(copied):
    before = copied.manifest()
    shutil.rmtree(copied.results / "report")
    assert copied.due("report") == {"render": 1}
    copied.snakemake("report", "--cores", "1")
    assert copied.due() == {}
    # What `make report` does, even when training is due: nothing but the report may change.
    copied.edit("src/attnscale/train.py", "def train(", "def train(  # edited\n    ")
    page = copied.results / "report" / "index.html"
    page.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "attnscale.cli", "report", "--configfile", "config/smoke.yaml"],
        cwd=copied.root, env=copied.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "index.html" in done.stdout
    assert page.exists()
    assert copied.manifest() == before


def test_braces_in_the_configuration_are_no_wildcards(copied):
    (copied.root / "texts").mkdir()
    for number in range(2):
        (copied.root / "texts" / f"{number}.txt").write_text(f"some text {number} " * 5000, encoding="utf-8")
    copied.edit("config/smoke.yaml", "name: smoke", "name: own")
    copied.edit(
        "config/smoke.yaml", "{max_documents: 20}",
        "{sources: [{kind: files, name: '{name} {x}', paths: texts/*.txt, licence: '{arm}'}]}",
    )  # fmt: skip
    copied.snakemake("results/own/corpus/manifest.json", "--cores", "1")
    manifest = (copied.root / "results/own/corpus/manifest.json").read_text(encoding="utf-8")
    assert '"{name} {x}"' in manifest
    assert '"{arm}"' in manifest


def test_a_change_in_the_users_own_text_makes_the_corpus_due(copied):
    texts = copied.root / "texts"
    texts.mkdir()
    for number in range(2):
        (texts / f"{number}.txt").write_text(f"text {number} " * 5000, encoding="utf-8")
    copied.edit("config/smoke.yaml", "name: smoke", "name: own")
    copied.edit(
        "config/smoke.yaml", "{max_documents: 20}",
        "{sources: [{kind: files, name: own, paths: texts/*.txt, licence: mine}]}",
    )  # fmt: skip
    copied.snakemake("results/own/corpus/manifest.json", "--cores", "1")
    assert "corpus" not in copied.due()
    (texts / "1.txt").write_text("another text " * 5000, encoding="utf-8")
    assert copied.due()["corpus"] == 1


OVERRIDES = """\
  frozen: {weights_of: attention_e, attention: attention_e, n_at_most: training_length}
  clamped: {weights_of: attention_e, attention: attention_e, n_at_least: 16}
  position: {weights_of: attention_o, attention: log_position}
  band: {weights_of: attention_o, attention: attention_o, positions: band}
  clipped: {weights_of: attention_o, attention: {name: attention_e, base: training_length}, positions: clipped}
  ntk: {weights_of: attention_o, attention: attention_o, positions: ntk}
"""


def test_overrides_at_test_time_never_train(copied):
    copied.edit("config/smoke.yaml", "corpus:", OVERRIDES + "corpus:")
    due = copied.due()
    assert due.pop("config") == 1
    assert due == evaluated(6)


def test_branches_share_the_trunk_that_is_trained_once(copied):
    copied.edit("config/smoke.yaml", "checkpoint_every: 20", "checkpoint_every: 20, snapshots: [0.75]")
    alone = copied.due()
    branches = "".join(
        f"  late_{name}: {{attention: {name}, branch: {{of: attention_o, at: 0.75}}}}\n"
        for name in ("attention_e", "ssmax", "sqrt_log_n")
    )
    copied.edit("config/smoke.yaml", "corpus:", branches + "corpus:")
    assert copied.due() == {**alone, "branch": 3, "evaluate": 7, "attention_statistics": 7}


def test_a_test_time_arm_with_fewer_seeds_trains_and_evaluates_only_those(copied):
    copied.edit("config/smoke.yaml", "seeds: [0]", "seeds: [0, 7]")
    before = copied.due()
    arm = "  few: {weights_of: attention_o, attention: sqrt_log_n, seeds: [7]}\n"
    copied.edit("config/smoke.yaml", "corpus:", arm + "corpus:")
    after = copied.due()
    assert after["train"] == before["train"]
    assert after["evaluate"] == before["evaluate"] + 1
