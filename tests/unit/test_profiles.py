"""Profiles name rules that exist, and the ones for clusters keep what the default one sets."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ["slurm", "cluster-generic"]


def profile(name):
    return yaml.safe_load((ROOT / "profiles" / name / "profile.yaml").read_text(encoding="utf-8"))


def rules():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "workflow" / "rules").glob("*.smk")]
    return {name for text in texts for name in re.findall(r"^(?:use rule \w+ as|rule) (\w+)", text, flags=re.MULTILINE)}


@pytest.mark.parametrize("name", CLUSTER)
def test_every_rule_that_a_profile_names_exists(name):
    assert {"train", "branch", "evaluate", "evaluate_snapshot", "render"} <= rules()
    named = {*profile(name)["set-resources"], *profile(name).get("groups", {})}
    assert named - rules() == set()


@pytest.mark.parametrize("name", CLUSTER)
def test_what_the_default_profile_sets_is_set_on_a_cluster_too(name):
    own = profile(name)
    for key, value in profile("default").items():
        assert own[key] == value or (key == "latency-wait" and own[key] > value), key


@pytest.mark.parametrize("name", CLUSTER)
def test_time_and_memory_of_trainings_grow_with_the_attempt(name):
    for rule in ("train", "branch", "evaluate"):
        for resource in ("runtime", "mem_mb"):
            assert re.fullmatch(r"\d+ \* attempt", profile(name)["set-resources"][rule][resource])


def test_only_jobs_without_company_are_grouped():
    assert not {"train", "branch", "evaluate", "evaluate_snapshot", "attention_statistics"} & {
        *profile("slurm")["groups"]
    }


@pytest.mark.parametrize(
    ("says", "code", "word"),
    [
        ("COMPLETED", 0, "success"),
        ("PENDING", 0, "running"),
        ("COMPLETING", 0, "running"),
        ("CANCELLED", 0, "failed"),
        ("TIMEOUT", 0, "failed"),
        ("NODE_FAIL", 0, "failed"),
        ("slurm_load_jobs error: Invalid job id specified", 1, "failed"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1, "running"),
    ],
)
def test_the_state_of_a_job_is_told_in_one_word(says, code, word, tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    squeue.chmod(0o755)
    script = ROOT / "profiles" / "cluster-generic" / "status.sh"
    done = subprocess.run([script, "7"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{word}\n")
