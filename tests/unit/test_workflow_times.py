"""When the jobs of an invocation ran, read from what Snakemake leaves."""

import os

from attnscale.workflow_times import write_workflow_times

HEAD = "s\th:m:s\tmax_rss\n"


def test_jobs_stand_with_start_and_end_and_earlier_ones_below_zero(tmp_path):
    for name, seconds, ended in (("config", 2.5, 1010.0), ("train/o/seed0", 30.0, 1050.0), ("corpus", 5.0, 900.0)):
        path = tmp_path / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEAD}{seconds}\t0:00:01\t9\n")
        os.utime(path, (ended, ended))
    for _ in range(2):  # the second time it must not read its own file
        write_workflow_times(tmp_path, started=1000.0, ended=1060.0)
    assert (tmp_path / "workflow.tsv").read_text().splitlines() == [
        "job\tstart\tend",
        "workflow\t0.0\t60.0",
        "config\t7.5\t10.0",
        "corpus\t-105.0\t-100.0",
        "train/o/seed0\t20.0\t50.0",
    ]
