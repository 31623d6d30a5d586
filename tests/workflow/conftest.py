"""Copies of the project in folders of their own, and one finished smoke run that tests may copy."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "workflow", "profiles", "config", "envs", "examples", "src")
SMOKE = "config/smoke.yaml"


@dataclass(frozen=True)
class Project:
    """A copy of the project whose own package files are the ones that run."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results" / "smoke"

    @property
    def environment(self) -> dict[str, str]:
        scripts = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": scripts + os.pathsep + os.environ["PATH"],
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def snakemake(
        self, *arguments: str, check: bool = True, configfile: str = SMOKE, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        """Run Snakemake to its end; targets come first, for --configfile swallows what follows it."""
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments, "--configfile", configfile],
            cwd=self.root, env=self.environment | (environment or {}), capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return done

    def start(self, *arguments: str) -> subprocess.Popen:
        """Start Snakemake in a session of its own and return at once."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *arguments, "--configfile", SMOKE],
            cwd=self.root, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def due(self, *arguments: str, configfile: str = SMOKE) -> dict[str, int]:
        """Jobs that a dry run would execute, by rule; without the target rule itself."""
        done = self.snakemake("-n", *arguments, configfile=configfile)
        text = done.stdout + done.stderr
        if "Nothing to be done" in text:
            return {}
        table = text.partition("Job stats:")[2].partition("\n\n")[0]
        jobs = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", table, flags=re.MULTILINE)}
        assert jobs, text
        return {name: count for name, count in jobs.items() if name not in ("all", "report", "total")}

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path
        text = file.read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in {path}"
        file.write_text(text.replace(old, new), encoding="utf-8")

    def manifest(self) -> str:
        return (self.results / "manifest.sha256").read_text(encoding="utf-8")


def copy_project(target: Path) -> Project:
    target.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target / part, ignore=ignore)
        else:
            shutil.copy2(ROOT / part, target / part)
    return Project(target)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, worker_id) -> Project:
    """The smoke run, finished; to be read, not to be changed. Processes that test side by side share one."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    project = Project(shared / "finished")
    with FileLock(shared / "finished.lock"):
        if not (project.results / "manifest.sha256").is_file():
            shutil.rmtree(project.root, ignore_errors=True)
            copy_project(project.root).snakemake("--cores", "2")
    return project


@pytest.fixture
def copied(finished, tmp_path) -> Project:
    """A copy of the finished run, with Snakemake's memory of it, that a test may change."""
    target = tmp_path / "copy"
    shutil.copytree(finished.root, target, symlinks=True)
    return Project(target)
