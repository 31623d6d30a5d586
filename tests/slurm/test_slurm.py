"""The pipeline on a real Slurm: the same manifest as on this machine alone, whatever goes wrong on the way."""

import math
import os
import re
import signal

import pytest

from tests.slurm.conftest import (
    EVALUATION,
    FAULT,
    LOG,
    RUN,
    WEIGHTS,
    Watch,
    finish_locally,
    same_in_the_end,
    untrained,
    wait_for,
)
from tests.workflow.conftest import SMOKE, copy_project

pytestmark = pytest.mark.slurm


def has_checkpoint(project):
    return (project.root / RUN / "resume.pt").exists()


def wait_for_training(cluster, project):
    """Wait until a training runs that has something to lose; return Slurm's number of it."""
    wait_for(lambda: has_checkpoint(project), "a checkpoint")
    job = cluster.training()
    assert job is not None
    assert not (project.root / WEIGHTS).exists(), "trained too fast to meet a fault"
    return job


def test_the_smoke_run_through_the_profile_gives_the_manifest_of_a_local_run(cluster, smoke, tmp_path):
    project = copy_project(tmp_path / "project")
    said = cluster.submit(project, configfile=SMOKE).finish()
    assert project.manifest() == smoke.manifest()
    jobs = [what for _, _, what in cluster.slurm.jobs("COMPLETED") if "smoke" in what or "_tables_" in what]
    assert sum(what.startswith("rule_train_wildcards_smoke_") for what in jobs) == 3
    assert sum(what.startswith("rule_evaluate_wildcards_smoke_") for what in jobs) == 4
    # Nine jobs of seconds went as one, on one CPU.
    cpus = cluster.slurm.must("squeue", "--noheader", "--states=COMPLETED", "--format=%k %C")
    assert re.findall(r"^rule_tables_\S* (\d+)$", cpus, flags=re.MULTILINE) == ["1"]
    assert "Falling back to 'sacct'" not in said


def test_partition_and_gpu_of_the_profile_are_what_slurm_is_asked_for(cluster, project):
    # environment.json is the cheapest job there is; the "GPU" is a device that nothing computes on.
    project.edit(
        "profiles/slurm/profile.yaml", "set-resources:\n",
        "set-resources:\n  environment:\n    slurm_partition: long\n    gpu: 1\n    mem_mb: 1500 * attempt\n",
    )  # fmt: skip
    (project.root / "results/fault/environment.json").unlink()
    cluster.submit(project, "results/fault/environment.json").finish()
    number = max(int(job) for job, _, what in cluster.slurm.jobs() if what.startswith("rule_environment"))
    shown = cluster.slurm.must("scontrol", "show", "job", str(number))
    for words in ("Partition=long", "TresPerJob=gres:gpu:1", "MinMemoryNode=1500M", "TimeLimit=00:05:00", "NumCPUs=1"):
        assert words in shown, shown


def test_a_cancelled_training_is_submitted_again_and_goes_on(cluster, project, undisturbed):
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, WEIGHTS)
        cluster.slurm.must("scancel", wait_for_training(cluster, project))
        said = snakemake.finish()
    assert "SLURM status is: 'CANCELLED'" in said
    assert watch.tries == 2
    assert "was stopped by SIGTERM" in watch.attempts[0]
    assert same_in_the_end(project, undisturbed, watch, "scancel of the training") == 0


def test_a_training_at_its_time_limit_saves_its_state_and_gets_more_time(cluster, trial, pace, tmp_path):
    # Slurm counts in minutes and looks every 30 seconds: a signal 10 seconds before the limit comes up to 40 before.
    minutes = math.ceil((1.3 * pace.start + 45) / 60)
    finished = finish_locally(trial, tmp_path / "finished", seconds=60 * minutes + 30)
    project = untrained(finished, tmp_path / "project")
    project.edit("profiles/slurm/profile.yaml", 'runtime: "720 * attempt"', f'runtime: "{minutes} * attempt"')
    project.edit("profiles/slurm/profile.yaml", "TERM@120", "TERM@10")
    earlier = [job for job, _, _ in cluster.slurm.jobs()]
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, WEIGHTS)
        wait_for_training(cluster, project)
        snakemake.finish()
    attempts = sorted(int(job) for job, _, _ in cluster.slurm.jobs() if job not in earlier)
    shown = [cluster.slurm.must("scontrol", "show", "job", str(job)) for job in attempts]
    limits = [
        int(hours) * 60 + int(rest) for job in shown for hours, rest in re.findall(r"TimeLimit=(\d+):(\d+):00", job)
    ]
    assert limits == [minutes * attempt for attempt in range(1, len(attempts) + 1)]
    # On a busy machine an attempt may end before its training has written a line.
    assert len(attempts) >= watch.tries >= 2
    assert "was stopped by SIGTERM" in watch.attempts[0]
    assert same_in_the_end(project, finished, watch, "time limit") == 0


def test_a_drained_node_finishes_its_training_and_takes_jobs_again_when_resumed(cluster, project, undisturbed):
    slurm = cluster.slurm
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, EVALUATION)
        wait_for_training(cluster, project)
        slurm.must("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=test")
        try:
            wait_for(lambda: [job for job in slurm.jobs("PENDING") if job[2].startswith("rule_evaluate")], "evaluation")
            assert (project.root / WEIGHTS).exists()
            assert slurm.node_state() == "drained"
            assert snakemake.process.poll() is None
        finally:
            slurm.must("scontrol", "update", "NodeName=node1", "State=RESUME")
        snakemake.finish()
    assert watch.tries == 1
    assert same_in_the_end(project, undisturbed, watch, "node drained and resumed") == 0


def test_a_restarted_controller_finds_its_jobs_again(cluster, project, undisturbed):
    slurm = cluster.slurm
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, EVALUATION)
        number, step = wait_for_training(cluster, project), watch.step()
        slurm.end("slurmctld")
        try:
            assert slurm.ask("squeue").returncode != 0
            wait_for(lambda: watch.step() > step, "the training to go on without a controller", seconds=60)
        finally:
            slurm.start_controller()
        assert number in [job for job, _, _ in slurm.jobs()]
        snakemake.finish()
    assert watch.tries == 1
    assert same_in_the_end(project, undisturbed, watch, "slurmctld restarted") == 0


def test_ctrl_c_cancels_the_jobs_and_the_same_command_goes_on(cluster, project, undisturbed):
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, WEIGHTS)
        wait_for_training(cluster, project)
        os.kill(snakemake.process.pid, signal.SIGINT)
        assert snakemake.process.wait(timeout=120) != 0
        wait_for(lambda: not cluster.slurm.unfinished(), "cancelled jobs to go", seconds=60)
        assert not (project.root / WEIGHTS).exists(), "trained too fast to meet a fault"
        cluster.submit(project, WEIGHTS).finish()
    assert watch.tries == 2
    assert "was stopped by SIGTERM" in watch.attempts[0]
    assert same_in_the_end(project, undisturbed, watch, "Ctrl-C, then called again") == 0


def test_a_killed_snakemake_leaves_its_jobs_which_are_cancelled_before_it_is_called_again(
    cluster, project, undisturbed
):
    slurm = cluster.slurm
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, WEIGHTS)
        number = wait_for_training(cluster, project)
        os.kill(snakemake.process.pid, signal.SIGKILL)
        snakemake.process.wait(timeout=60)
        step = watch.step()
        wait_for(lambda: watch.step() > step, "the training to go on without Snakemake", seconds=60)
        # What docs/cluster.md says to do.
        name = slurm.must("squeue", "--noheader", "--format=%j", "--jobs", number)
        assert re.fullmatch(r"attnscale_[0-9a-f-]{36}", name)
        slurm.must("scancel", f"--name={name}")
        wait_for(lambda: not slurm.unfinished(), "cancelled jobs to go", seconds=60)
        assert not (project.root / WEIGHTS).exists(), "trained too fast to meet a fault"
        project.snakemake("--unlock", configfile=FAULT)
        cluster.submit(project, WEIGHTS).finish()
    assert same_in_the_end(project, undisturbed, watch, "Snakemake killed and called again") == 0


def test_a_node_that_loses_its_power_costs_the_steps_since_the_last_checkpoint(cluster, project, undisturbed):
    slurm = cluster.slurm
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, WEIGHTS)
        wait_for_training(cluster, project)
        slurm.lose_node()
        slurm.start_node()
        snakemake.finish()
    assert watch.tries == 2
    assert "was stopped by" not in watch.attempts[0]
    lost = same_in_the_end(project, undisturbed, watch, "node without power")
    every = int(re.findall(r"checkpoint_every: (\d+)", (project.root / FAULT).read_text())[0])
    # A step may be done and its line not yet written.
    assert 0 <= lost <= every + 1


def test_the_profile_for_any_scheduler_trains_cancels_and_goes_on_too(cluster, project, undisturbed):
    with Watch(project.root / LOG) as watch:
        snakemake = cluster.submit(project, EVALUATION, profile="profiles/cluster-generic")
        wait_for(lambda: has_checkpoint(project), "a checkpoint")
        [number] = [job for job, _, what in cluster.slurm.jobs("RUNNING") if what == "train"]
        cluster.slurm.must("scancel", number)
        snakemake.finish()
    assert watch.tries == 2
    assert "was stopped by SIGTERM" in watch.attempts[0]
    # The script itself is what Slurm runs here, without a step of its own: SIGTERM reaches all of its processes.
    assert same_in_the_end(project, undisturbed, watch, "scancel, profile cluster-generic") == 0


def test_without_accounting_sacct_waits_for_ever_for_a_job_that_squeue_sees_end(cluster, project):
    (project.root / "results/fault/environment.json").unlink()
    snakemake = cluster.submit(project, "results/fault/environment.json", "--slurm-status-command", "sacct")
    try:
        wait_for(lambda: (project.root / "results/fault/environment.json").exists(), "the job to do its work")
        wait_for(lambda: not cluster.slurm.unfinished(), "the job to end", seconds=120)
        with pytest.raises(TimeoutError):
            wait_as_long_as_squeue_would(snakemake)
    finally:
        snakemake.process.kill()
        snakemake.process.wait(timeout=60)


def wait_as_long_as_squeue_would(snakemake, seconds=45):
    """Raise TimeoutError if it has not ended after several of the checks, which begin at 1 s and 11 s."""
    import subprocess

    try:
        snakemake.process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
