"""The plan knows the workflow's jobs as Snakemake does."""

from collections import Counter

import pytest

from attnscale.config import load_config
from attnscale.plan import jobs_of
from tests.workflow.conftest import copy_project

pytestmark = pytest.mark.workflow


# Of the two, one has branches, snapshots, seeds of its own for arms and many test-time arms.
@pytest.mark.parametrize("configfile", ["config/smoke.yaml", "config/reference.yaml"])
def test_the_plan_has_the_jobs_that_snakemake_has(configfile, tmp_path):
    project = copy_project(tmp_path / "project")
    planned = Counter(job.rule for job in jobs_of(load_config(project.root / configfile), blocks=8))
    assert planned == project.due("--cores", "1", configfile=configfile)
