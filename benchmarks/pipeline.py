"""How much of a finished run's wall time went into anything but training and evaluation."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from attnscale.config import Config, load_config
from attnscale.errors import UserError
from benchmarks.measures import Result, Row

GROUP = "pipeline"
NAME = "pipeline_overhead_share"
WHOLE = "workflow"  # the row that stands for Snakemake itself, from its start to its end
TIMES = Path("benchmarks", "workflow.tsv")


def measure(folder: Path) -> Result:
    """Read the times that Snakemake's last invocation left in `folder`; the measure is left out where they fail."""
    path = folder / TIMES
    try:
        table = pd.read_csv(path, sep="\t")[["job", "start", "end"]].astype({"start": float, "end": float})
        config = load_config(folder / "config.yaml")
    except UserError as error:
        return Result(left_out={NAME: f"{error}; run `make` first"})
    except OSError:
        return Result(left_out={NAME: f"{path} is missing; run `make` first"})
    except (ValueError, KeyError):
        return Result(left_out={NAME: f"{path} is no table of job, start and end; delete {folder} and run `make`"})
    return share(of_config(table, config), folder)


def of_config(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """The rows without trainings and evaluations that the configuration no longer has."""
    arms = [("train", arm) for arm in config.trained_arms] + [("evaluate", arm) for arm in config.arms]
    wanted = [f"{kind}/{arm}/seed{seed}" for kind, arm in arms for seed in config.seeds]
    return table[table["job"].isin(wanted) | ~table["job"].map(_computes)]


def share(table: pd.DataFrame, folder: Path) -> Result:
    """Rows and measure.

    Args:
        table: columns job, start, end; seconds since Snakemake was started. A job of an earlier invocation starts
            before 0. The row `workflow` holds the whole.
        folder: the run, for sentences.
    """
    rows = [
        Row(GROUP, job, "", 1, "seconds", end - start) for job, start, end in table.itertuples(index=False, name=None)
    ]
    whole = table[table["job"] == WHOLE]
    work = table[table["job"].map(_computes)]
    if whole.empty or work.empty:
        reason = f"{folder / TIMES} does not name a whole run; run `make` first"
    elif (table["start"] < 0).any():
        reason = f"the last invocation for {folder} did not run every job; move {folder} away and run `make`"
    else:
        wall = float((whole["end"] - whole["start"]).iloc[0])
        busy = union(zip(work["start"], work["end"], strict=True))
        line = f"{folder}: {busy:.0f} s of {wall:.0f} s had a training or an evaluation running"
        return Result(rows, {NAME: 1 - busy / wall}, lines=[line])
    return Result(left_out={NAME: reason})


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals: jobs beside each other fill the same wall time once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _computes(job: str) -> bool:
    return job.startswith(("train/", "evaluate/"))
