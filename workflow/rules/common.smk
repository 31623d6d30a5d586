# The checked configuration, and what rules need to know of it. No rules here.

import os
import re
import sys
from pathlib import Path

from attnscale.attention import source_file
from attnscale.code_files import PACKAGE, module_files
from attnscale.config import parse_config
from attnscale.environment import check_surroundings, software
from attnscale.errors import UserError
from attnscale.files import canonical_json
from attnscale.manifest import (
    EVALUATION_SET_FILES,
    FIGURES,
    TABLES,
    TOKENS_FILES,
    deterministic_files,
    other_files,
)
from attnscale.user_files import matching_files
from attnscale.workflow_times import write_workflow_times
from attnscale.yaml_files import read_yaml

# A configuration file given by the user stands alone: merging it into the default would leave the
# default's arms in it.
if not workflow.overwrite_configfiles:

    configfile: workflow.source_path("../../config/default.yaml")


def corpus_files():
    """The user's own text files, so that a change in one of them is noticed."""
    patterns = [
        source.paths for source in CONFIG.corpus.sources if source.kind == "files"
    ]
    return sorted(
        {str(path) for pattern in patterns for path in matching_files(pattern).values()}
    )


try:
    for path in workflow.overwrite_configfiles:
        # Snakemake has read it already, but a key that stands twice passes there without a word.
        read_yaml(Path(path))
    CONFIG = parse_config(
        config,
        ", ".join(map(str, workflow.overwrite_configfiles)) or "config/default.yaml",
    )
    check_surroundings(
        Path("results") / CONFIG.name,
        workflow.basedir,
        workflow.resource_settings.cores,
    )
    corpus_files()  # a pattern that matches nothing is refused here
except UserError as error:
    sys.exit(f"error: {error}")

LOCK = os.path.relpath(Path(workflow.basedir) / "envs" / "run.lock")


wildcard_constraints:
    name=re.escape(CONFIG.name),
    trained="|".join(map(re.escape, CONFIG.trained_arms)),
    arm="|".join(map(re.escape, CONFIG.arms)),
    seed="|".join(map(str, CONFIG.seeds)),


def package_files(*modules):
    """Package files that modules are made of; as inputs, an edit reruns just the stages that use them."""
    return [os.path.relpath(path) for path in module_files(*modules)]


def variant_file(arm):
    """The file that defines the attention of an arm."""
    attention = CONFIG.arms[arm].attention
    return os.path.relpath(source_file(attention.name, attention.module))


def evaluations():
    """Evaluation tables of all arms and seeds, in the order of the result table."""
    return expand(
        "results/{name}/evaluations/{arm}/seed{seed}.csv",
        name=CONFIG.name,
        arm=CONFIG.arms,
        seed=CONFIG.seeds,
    )


def training_records(file):
    """One file per trained arm and seed, such as `history.csv`."""
    return expand(
        "results/{name}/runs/{trained}/seed{seed}/{file}",
        file=file,
        name=CONFIG.name,
        trained=CONFIG.trained_arms,
        seed=CONFIG.seeds,
    )


def report_templates():
    """Page templates of the report."""
    return sorted(
        os.path.relpath(path) for path in (PACKAGE / "report" / "templates").iterdir()
    )
