"""One Slurm for all tests here, local runs to compare with, and the table of what every fault cost."""

import csv
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnscale.files import read_json
from tests.slurm.daemons import Slurm, missing_tools, running_slurm
from tests.workflow.conftest import Project, copy_project

PROFILE = "profiles/slurm"
FAULT = "config/fault.yaml"
RUN = "results/fault/runs/attention_e/seed0"
WEIGHTS = f"{RUN}/model.safetensors"
EVALUATION = "results/fault/evaluations/attention_e/seed0.csv"
LOG = "results/fault/logs/train/attention_e/seed0.log"

# One arm of the smoke run, trained for longer, so that a fault can meet it. A line of the log per step makes what is
# lost countable.
CONFIG = """\
name: fault
seeds: [0]
arms: {{attention_e: {{attention: attention_e}}}}
corpus: {{max_documents: 20}}
tokens: {{vocabulary_size: 1024}}
model: {{preset: smoke}}
training: {{tokens: {tokens}, batch_size: 16, log_every: 1, checkpoint_every: {checkpoint_every}}}
evaluation: {{lengths: [64, 128], max_blocks: 4}}
attention_statistics: {{blocks: 0}}
compute: {{compile: off, threads: 1}}
"""

TOKENS_PER_STEP = 16 * 64

lost_work: list[tuple[str, int, int]] = []


def _hear_ctrl_c() -> None:
    """Tests may themselves have been started by something that ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


@dataclass
class Submitted:
    """A Snakemake that submits to the Slurm of the tests."""

    process: subprocess.Popen
    output: Path

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def finish(self, seconds: float = 1800) -> str:
        """Wait for its end, which must be a good one; return what it said."""
        code = self.process.wait(timeout=seconds)
        assert code == 0, self.text()[-8000:]
        return self.text()


@dataclass(frozen=True)
class Cluster:
    """The Slurm, and Snakemake on its login node."""

    slurm: Slurm
    folder: Path

    def environment(self, project: Project) -> dict[str, str]:
        # The wrapper of srun stands first in Slurm's own PATH; the package that runs is the project's.
        ours = self.slurm.environment
        wrapper, _, path = ours["PATH"].partition(os.pathsep)
        search = os.pathsep.join([wrapper, str(Path(sys.executable).parent), path])
        return {**project.environment, **ours, "PATH": search, "PYTHONPATH": project.environment["PYTHONPATH"]}

    def submit(self, project: Project, *arguments: str, configfile: str = FAULT, profile: str = PROFILE) -> Submitted:
        """Start Snakemake with a profile; targets come first, for --configfile swallows what follows it."""
        output = self.folder / f"{time.monotonic_ns()}.log"
        if profile == PROFILE:  # jobs of seconds are asked for more often than jobs of hours
            arguments = (*arguments, "--slurm-init-seconds-before-status-checks", "1")
        with output.open("w") as stream:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "snakemake", *arguments,
                    "--workflow-profile", profile, "--configfile", configfile,
                ],
                cwd=project.root, env=self.environment(project), stdout=stream, stderr=stream, start_new_session=True,
                preexec_fn=_hear_ctrl_c,
            )  # fmt: skip
        return Submitted(process, output)

    def training(self) -> str | None:
        """Slurm's number of the training that runs."""
        return next((job for job, _, what in self.slurm.jobs("RUNNING") if what.startswith("rule_train")), None)


class Watch:
    """Follows the log of a training through all its attempts, for each attempt truncates it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.attempts: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Watch":
        self._log.unlink(missing_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(0.02):
            self._look()
        self._look()

    def _look(self) -> None:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        if self.attempts and text.startswith(self.attempts[-1]):
            self.attempts[-1] = text
        elif text:
            self.attempts.append(text)

    @property
    def tries(self) -> int:
        """How many times a training was started that came to write a line."""
        return len(self.attempts)

    def step(self) -> int:
        """Last step that the present attempt has told of."""
        return _last_step(self.attempts[-1]) if self.attempts else 0

    def lost(self) -> tuple[int, int]:
        """Steps that were computed more than once, and steps of the whole training."""
        resumed = [_number(r"goes on from step (\d+)", text) for text in self.attempts]
        reached = [max(_last_step(text), start) for text, start in zip(self.attempts, resumed, strict=True)]
        lost = sum(last - start for last, start in zip(reached[:-1], resumed[1:], strict=True))
        return lost, _number(r": step \d+/(\d+),", self.attempts[-1])


def _number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def _last_step(text: str) -> int:
    return max(_number(r": step (\d+)/\d+,", text), _number(r"stopped by \w+ at step (\d+) of", text))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    if missing := missing_tools():
        pytest.skip(f"Slurm is not installed ({', '.join(missing)}); `make test-slurm` installs it")
    with running_slurm() as slurm:
        yield slurm


@pytest.fixture
def cluster(slurm, tmp_path) -> Iterator[Cluster]:
    """The cluster without jobs, before and after a test."""
    yield Cluster(slurm, tmp_path)
    for job, _, _ in slurm.unfinished():
        slurm.ask("scancel", job)
    wait_for(lambda: not slurm.unfinished(), "cancelled jobs to go", seconds=60)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory) -> Project:
    """The smoke run, finished on this machine without Slurm."""
    project = copy_project(tmp_path_factory.mktemp("local") / "smoke")
    project.snakemake("--cores", "2")
    return project


@dataclass(frozen=True)
class Pace:
    """How fast this machine is, in seconds."""

    step: float  # of a training of the smoke model
    start: float  # from a job's start in Slurm to its first step


def set_steps(project: Project, steps: int) -> None:
    text = CONFIG.format(tokens=steps * TOKENS_PER_STEP, checkpoint_every=max(2, steps // 20))
    (project.root / FAULT).write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def trial(tmp_path_factory) -> tuple[Project, Pace]:
    """Text, tokens and a short training, by which the machine's pace is known."""
    project = copy_project(tmp_path_factory.mktemp("local") / "trial")
    set_steps(project, 200)
    project.snakemake(WEIGHTS, "--cores", "2", configfile=FAULT)
    began = time.monotonic()
    project.snakemake("-n", configfile=FAULT)
    snakemake = time.monotonic() - began
    record = read_json(project.root / RUN / "run.json")
    with (project.root / RUN / "history.csv").open(newline="") as stream:
        speeds = [float(row["tokens_per_second"]) for row in csv.DictReader(stream)]
    benchmark = project.root / "results/fault/benchmarks/train/attention_e/seed0.tsv"
    seconds = float(benchmark.read_text().splitlines()[1].split("\t")[0])
    # The pace of its fastest tenth: a machine that is busy now may be idle when a training has to be long enough.
    step = TOKENS_PER_STEP / statistics.quantiles(speeds, n=10)[-1]
    # A job starts Snakemake twice, and Python with torch once.
    return project, Pace(step, 2 * snakemake + seconds - record["seconds"])


@pytest.fixture(scope="session")
def pace(trial) -> Pace:
    return trial[1]


def finish_locally(trial: tuple[Project, Pace], root: Path, seconds: float) -> Project:
    """A run whose training takes about so many seconds, finished without Slurm."""
    project, pace = trial
    shutil.copytree(project.root, root, symlinks=True)
    finished = Project(root)
    set_steps(finished, max(100, math.ceil(seconds / pace.step)))
    finished.snakemake("--cores", "2", configfile=FAULT)
    return finished


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, trial) -> Project:
    return finish_locally(trial, tmp_path_factory.mktemp("local") / "fault", seconds=25)


def untrained(finished: Project, target: Path) -> Project:
    """A copy of a finished run in which the training and its evaluation are still to be done."""
    shutil.copytree(finished.root, target, symlinks=True)
    shutil.rmtree(target / RUN)
    (target / EVALUATION).unlink()
    (target / "results/fault/manifest.sha256").unlink()
    return Project(target)


@pytest.fixture
def project(undisturbed, tmp_path) -> Project:
    return untrained(undisturbed, tmp_path / "project")


def manifest(project: Project) -> str:
    return (project.root / "results/fault/manifest.sha256").read_text(encoding="utf-8")


def same_in_the_end(project: Project, finished: Project, watch: Watch, fault: str) -> int:
    """Finish the run, compare all of it with the undisturbed one, note what was lost; return the lost steps."""
    project.snakemake("--cores", "2", configfile=FAULT)
    assert manifest(project) == manifest(finished)
    lost, steps = watch.lost()
    lost_work.append((fault, lost, steps))
    return lost


def pytest_terminal_summary(terminalreporter) -> None:
    if lost_work:
        terminalreporter.section("share of the training's steps that a fault made Slurm compute again")
        for fault, lost, steps in lost_work:
            terminalreporter.write_line(f"{fault:<45}{lost:>6} of {steps} steps{lost / steps:>9.1%}")
