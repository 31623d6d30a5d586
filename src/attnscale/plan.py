"""What a configuration will cost, estimated from the `benchmark:` files of a finished run.

An estimate, not a promise: the time of a training or an evaluation is taken as proportional to its floating-point
operations, and a small model reaches fewer of them a second than a large one, so a plan made from a tiny run errs
on the high side. Measure with a run whose model is the same for a closer one.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from attnscale import counts
from attnscale.config import Config, load_config
from attnscale.errors import UserError
from attnscale.flops import forward_flops
from attnscale.manifest import check_inputs, report_inputs
from attnscale.records import Environment, EvaluationRecord, RunRecord, read_record
from attnscale.workflow_times import benchmark_seconds

BACKWARD = 3
"""A step's work in forward passes: one forward, and two products for each of its own on the way back."""


@dataclass(frozen=True)
class Job:
    """One job of the workflow.

    Attributes:
        rule: its rule in Snakemake.
        name: the rule and what it is about, such as "train attention_o seed 0".
        work: what its time grows with, in a unit that only jobs of the same rule share; None: its time is as measured.
        cores: CPU cores that it holds.
        needs: indices of the jobs that must have ended before it starts, all of them smaller than its own.
    """

    rule: str
    name: str
    work: float | None
    cores: int
    needs: tuple[int, ...]


@dataclass(frozen=True)
class Speed:
    """How long jobs of a rule take.

    Attributes:
        start: seconds that do not grow with the work: Python, torch, reading.
        per_work: seconds per unit of work beyond them.
    """

    start: float
    per_work: float = 0.0

    def seconds(self, job: Job) -> float:
        return self.start + self.per_work * (job.work or 0.0)


@dataclass(frozen=True)
class Plan:
    """Jobs with their estimated seconds."""

    jobs: Sequence[Job]
    seconds: Sequence[float]

    def __post_init__(self) -> None:
        assert len(self.jobs) == len(self.seconds)

    def core_hours(self, rule: str | None = None) -> float:
        """Core-hours of one rule, or of all."""
        pairs = zip(self.jobs, self.seconds, strict=True)
        return sum(job.cores * seconds for job, seconds in pairs if rule in (None, job.rule)) / 3600

    def longest_chain(self) -> list[int]:
        """Indices of the chain of jobs that takes longest, from its first job to its last."""
        remaining = self._remaining()
        chain = [max(range(len(self.jobs)), key=lambda index: (remaining[index], -index))]
        followers = self._followers()
        while later := followers[chain[-1]]:
            chain.append(max(later, key=lambda index: (remaining[index], -index)))
        return chain

    def finish(self, at_once: int | None = None) -> tuple[float, int]:
        """Seconds until the last job ends, and how many run side by side at most.

        Whenever there is room, the job with the longest chain after it starts first, as a good scheduler would
        have it. Waiting in a queue is not part of it.

        Args:
            at_once: jobs that may run at the same time; None: any number.
        """
        remaining, followers = self._remaining(), self._followers()
        missing = [len(job.needs) for job in self.jobs]
        ready = [(-remaining[index], index) for index, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        running: list[tuple[float, int]] = []
        now, most = 0.0, 0
        while ready or running:
            while ready and (at_once is None or len(running) < at_once):
                _, index = heapq.heappop(ready)
                heapq.heappush(running, (now + self.seconds[index], index))
            most = max(most, len(running))
            now, ended = heapq.heappop(running)
            for index in followers[ended]:
                missing[index] -= 1
                if not missing[index]:
                    heapq.heappush(ready, (-remaining[index], index))
        return now, most

    def _followers(self) -> list[list[int]]:
        followers: list[list[int]] = [[] for _ in self.jobs]
        for index, job in enumerate(self.jobs):
            for needed in job.needs:
                followers[needed].append(index)
        return followers

    def _remaining(self) -> list[float]:
        """Seconds from the start of each job to the end of the longest chain that begins with it."""
        remaining, followers = list(self.seconds), self._followers()
        for index in range(len(self.jobs) - 1, -1, -1):
            remaining[index] += max((remaining[later] for later in followers[index]), default=0.0)
        return remaining


def jobs_of(config: Config, blocks: int) -> list[Job]:
    """All jobs of a run that starts from nothing, as the rules of the workflow have them.

    Args:
        config: the run.
        blocks: evaluation blocks.
    """
    jobs: list[Job] = []

    def add(rule: str, *needs: int, about: str = "", work: float | None = None, threads: int = 1) -> int:
        name = f"{rule} {about}".rstrip()
        jobs.append(Job(rule, name, work, threads, tuple(sorted(set(needs)))))
        return len(jobs) - 1

    threads, runs = config.compute.threads, len(config.runs())
    resolved = add("config")
    environment = add("environment")
    corpus = add("corpus", environment)
    tokens = add("tokens", corpus, environment)
    evaluation_set = add("evaluation_set", tokens)
    theory = add("theory", environment)
    trained: dict[tuple[str, int], int] = {}
    # Trunks before their branches.
    for arm, seed in sorted(config.runs(trained=True), key=lambda run: config.arms[run[0]].branch is not None):
        branch = config.arms[arm].branch
        trunk = [trained[branch.of, seed]] if branch else []
        trained[arm, seed] = add(
            "branch" if branch else "train", tokens, environment, evaluation_set, *trunk,
            about=f"{arm} seed {seed}", work=training_work(config, arm), threads=threads,
        )  # fmt: skip

    def computed(rule: str, arm: str, seed: int, work: float, step: int | None = None) -> int:
        weights = trained[config.weights_of(arm), seed]
        about = f"{arm} seed {seed}" + ("" if step is None else f" step {step}")
        return add(rule, weights, evaluation_set, environment, about=about, work=work, threads=threads)

    evaluations = [computed("evaluate", *run, evaluation_work(config, blocks)) for run in config.runs()]
    on_the_way = [
        computed("evaluate_snapshot", arm, seed, evaluation_work(config, blocks), step)
        for arm, seed, step in config.snapshot_runs()
    ]
    measured = min(blocks, config.attention_statistics.blocks)
    statistics = [
        computed("attention_statistics", *run, statistics_work(config, measured)) for run in config.runs() if measured
    ]
    tables = [add("accuracy", *evaluations, work=runs), add("differences", *evaluations, work=runs)]
    tables += [add("snapshot_accuracy", *on_the_way, work=len(on_the_way))] if on_the_way else []
    tables += [add("entropy", *statistics, work=runs)] if statistics else []
    formal = []
    for task, section in config.formal.items():
        networks = len(section.seeds) * len(section.train_lengths)
        # A step costs about as much for its calls alone as it does for sixty networks.
        work = float(section.epochs * section.steps_per_epoch * (60 + networks))
        arms = [add("train_formal", environment, about=f"{task} {arm}", work=work) for arm in section.arms]
        formal.append(add("formal_table", *arms, about=task))
        formal.append(add("exact_networks", environment, about=task))
    tables.append(add("claims", resolved, *evaluations, *tables, *formal, *trained.values(), work=runs))
    page = add("render", resolved, theory, *tables, *formal, *trained.values())
    add("manifest", page, work=runs)
    return jobs


def training_work(config: Config, arm: str) -> float:
    """FLOPs of training an arm with one seed; a branch makes only the steps after its snapshot."""
    training, branch = config.training, config.arms[arm].branch
    done = counts.step_at(training, branch.at) if branch else 0
    step = forward_flops(
        config.model,
        tokens=counts.tokens_per_step(training),
        masked=counts.masked_per_step(training),
        length=training.length,
        vocabulary_size=config.tokens.vocabulary_size,
    )
    return float(BACKWARD * (counts.steps(training) - done) * step)


def evaluation_work(config: Config, blocks: int) -> float:
    """FLOPs of evaluating an arm with one seed: every length reads all tokens of all blocks."""
    tokens = blocks * config.evaluation.lengths[-1]
    return float(
        sum(
            forward_flops(
                config.model,
                tokens=tokens,
                masked=round(config.evaluation.mask_rate * tokens),
                length=length,
                vocabulary_size=config.tokens.vocabulary_size,
            )
            for length in config.evaluation.lengths
        )
    )


def statistics_work(config: Config, blocks: int) -> float:
    """Attention logits that the attention statistics of an arm with one seed look at."""
    tokens = blocks * config.evaluation.lengths[-1]
    return float(
        sum(tokens * length for length in config.evaluation.lengths) * config.model.layers * config.model.heads
    )


def make_plan(config: Config, times: Path) -> tuple[Plan, list[str]]:
    """Estimate every job of a configuration.

    Args:
        config: what is to be run.
        times: folder of the benchmark files of a finished run, `results/NAME/benchmarks`; beside it lie the run's
            configuration and records.

    Returns:
        The plan, and sentences that say what it rests on.

    Raises:
        UserError: files of the finished run are missing or damaged.
    """
    run = times.parent
    if not times.is_dir() or not (run / "config.yaml").is_file():
        raise UserError(
            f"{times} holds no times of a finished run; run `make smoke`, or give the benchmarks folder of another run"
        )
    check_inputs(run, ["config.yaml"])
    base = load_config(run / "config.yaml")
    check_inputs(run, [name for name in report_inputs(base) if name.endswith(".json")])
    evaluation_set = read_record(run / "tokens" / "evaluation.json", EvaluationRecord)
    environment = read_record(run / "environment.json", Environment)
    measured = _measured_jobs(base, evaluation_set.blocks, times)
    blocks = config.evaluation.max_blocks or evaluation_set.blocks_available or evaluation_set.blocks
    speeds = {rule: _speed(rule, jobs, run, measured) for rule, jobs in measured.items()}
    jobs = jobs_of(config, blocks)
    for rule, alike in (("branch", "train"), ("evaluate_snapshot", "evaluate"), ("snapshot_accuracy", "accuracy")):
        speeds.setdefault(rule, speeds[alike])
    unknown = sorted({job.rule for job in jobs} - speeds.keys())
    if unknown:
        raise UserError(f"{times} has no times of {', '.join(unknown)}; give the benchmarks folder of a run that has")
    plan = Plan(jobs, [speeds[job.rule].seconds(job) for job in jobs])
    return plan, _notes(config, base, environment, run)


def _measured_jobs(base: Config, blocks: int, times: Path) -> dict[str, list[tuple[Job, float]]]:
    """Jobs of a finished run with their measured seconds, by rule."""
    found: dict[str, list[tuple[Job, float]]] = {}
    for job in jobs_of(base, blocks):
        found.setdefault(job.rule, []).append((job, _seconds(times / _benchmark_file(job))))
    return found


# Where benchmarks of the rules on formal languages lie: what stands before the task.
_FORMAL = {"train_formal": "formal/", "formal_table": "", "exact_networks": "exact_"}


def _benchmark_file(job: Job) -> str:
    """Where the workflow's rule has its benchmark, below the benchmarks folder."""
    rule, *about = job.name.split()
    folder = {"branch": "train", "evaluate_snapshot": "evaluate", "render": "report"}.get(rule, rule)
    if rule in _FORMAL:
        return f"{_FORMAL[rule]}{'/'.join(about)}.tsv"
    if not about:
        return f"{folder}.tsv"
    arm, _, seed, *step = about
    return "/".join([folder, arm, f"seed{seed}", *(["step" + step[1]] if step else [])]) + ".tsv"


def _seconds(file: Path) -> float:
    """Wall-clock seconds that Snakemake's benchmark file states."""
    try:
        return benchmark_seconds(file)
    except FileNotFoundError:
        raise UserError(f"{file} is missing; finish that run before its times are used") from None
    except (KeyError, IndexError, TypeError, ValueError, csv.Error):
        raise UserError(f"{file} is no benchmark file of Snakemake; delete it and run that pipeline again") from None


def _speed(rule: str, jobs: list[tuple[Job, float]], run: Path, measured: dict[str, list[tuple[Job, float]]]) -> Speed:
    """Speed of a rule's jobs: the start as a training shows it, the rest in proportion to the work."""
    average = mean(seconds for _, seconds in jobs)
    if jobs[0][0].work is None:
        return Speed(average)
    start = min(_start(run, measured["train"]), min(seconds for _, seconds in jobs))
    if rule in ("train", "branch"):
        loops = [_loop_seconds(run, job) for job, _ in jobs]
        return Speed(start, mean(loops) / mean(job.work or 0.0 for job, _ in jobs))
    if rule not in ("evaluate", "evaluate_snapshot", "attention_statistics", "train_formal"):
        start = 0.0  # tables and pages: quick to start, and what they read grows with the runs
    return Speed(start, (average - start) / mean(job.work or 0.0 for job, _ in jobs))


def _start(run: Path, trainings: list[tuple[Job, float]]) -> float:
    """Seconds that a training took beyond its steps; one that was resumed says nothing about it."""
    return min(max(0.0, seconds - _loop_seconds(run, job)) for job, seconds in trainings)


def _loop_seconds(run: Path, job: Job) -> float:
    _, arm, _, seed = job.name.split()
    return read_record(run / "runs" / arm / f"seed{seed}" / "run.json", RunRecord).seconds


def _notes(config: Config, base: Config, environment: Environment, run: Path) -> list[str]:
    notes = [
        f"measured in {run}: {environment.device_name}, {environment.precision}, "
        f"{base.compute.threads} thread(s) per job, model {_shape(base)}",
        "trainings and evaluations are scaled by FLOPs (model, vocabulary, tokens, lengths, blocks), attention "
        "statistics by logits, tables by the number of runs; a job's start, corpus, tokens and evaluation set are as "
        "measured",
    ]
    if config.model != base.model:
        notes.append(
            f"the model planned is {_shape(config)}; another size reaches other FLOPs a second, so this is the "
            "order of magnitude, and a short run with the model itself is the better measure"
        )
    if config.compute.threads != base.compute.threads:
        notes.append(f"the plan has {config.compute.threads} thread(s) per job, which nothing here is scaled by")
    if config.compute.device == "cuda" and environment.device != "cuda":
        notes.append("the plan is for GPUs and the times are not; take those of a short run on one")
    if config.corpus != base.corpus or config.tokens != base.tokens:
        notes.append("corpus or tokenizer differ from the measured ones, and their jobs' times with them")
    return notes


def _shape(config: Config) -> str:
    return f"{config.model.preset} ({config.model.width} wide, {config.model.layers} layers)"


def describe(config: Config, plan: Plan, notes: Sequence[str]) -> Iterator[str]:
    """Lines for the terminal: jobs by rule, chain, core-hours, width."""
    yield f"Plan for results/{config.name}: an estimate, without waiting in a queue and starting jobs on a cluster."
    yield ""
    yield f"{'rule':<22}{'jobs':>6}{'each':>10}{'core-hours':>12}"
    for rule in dict.fromkeys(job.rule for job in plan.jobs):
        each = [s for job, s in zip(plan.jobs, plan.seconds, strict=True) if job.rule == rule]
        yield f"{rule:<22}{len(each):>6}{duration(mean(each)):>10}{plan.core_hours(rule):>12.2f}"
    yield f"{'total':<22}{len(plan.jobs):>6}{'':>10}{plan.core_hours():>12.2f}"
    yield ""
    chain = plan.longest_chain()
    shortest, most = plan.finish()
    yield f"Critical path: {duration(shortest)}, however many machines there are:"
    yield "  " + " -> ".join(f"{plan.jobs[index].rule} {duration(plan.seconds[index])}" for index in chain)
    yield f"Side by side: at most {most} jobs at once."
    yield ""
    yield f"{'jobs at once':<22}{'done after':>16}"
    for at_once in _widths(most):
        yield f"{at_once:<22}{duration(plan.finish(at_once)[0]):>16}"
    yield ""
    yield from (f"- {note}" for note in notes)


def _widths(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 and so on, and the most that can run."""
    steps = [factor * 10**power for power in range(len(str(most))) for factor in (1, 2, 5)]
    return [step for step in steps if step < most] + [most]


def duration(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours, then hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
