"""When the jobs of one workflow invocation ran, for `benchmarks/pipeline.py`."""

import csv
import io
import math
from pathlib import Path

from attnscale.files import write_text

NAME = "workflow"


def write_workflow_times(folder: Path, started: float, ended: float) -> None:
    """Write `workflow.tsv` from the benchmark files that Snakemake has left in `folder`.

    Columns are job, start, end, in seconds since `started`; the first row, `workflow`, is the whole. A job of an
    earlier invocation starts before 0. A job's end is when its benchmark file was written.

    Args:
        folder: `results/NAME/benchmarks`.
        started: when Snakemake's process started, in seconds since 1970.
        ended: now.
    """
    rows = [(NAME, 0.0, round(ended - started, 2))]
    for path in sorted(folder.rglob("*.tsv")):
        job = path.relative_to(folder).with_suffix("").as_posix()
        if job != NAME:
            seconds = benchmark_seconds(path)
            end = path.stat().st_mtime - started
            rows.append((job, round(end - seconds, 2), round(end, 2)))
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
    writer.writerow(("job", "start", "end"))
    writer.writerows(rows)
    write_text(folder / f"{NAME}.tsv", stream.getvalue())


def benchmark_seconds(path: Path) -> float:
    """Wall-clock seconds of the last turn in a benchmark file of Snakemake.

    Raises:
        OSError: the file cannot be read.
        KeyError, IndexError, TypeError, ValueError, csv.Error: it is no such file.
    """
    with path.open(encoding="utf-8", newline="") as file:
        seconds = float(list(csv.DictReader(file, delimiter="\t"))[-1]["s"])
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} seconds")
    return seconds
