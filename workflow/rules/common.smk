# The checked configuration, and what rules need to know of it. No rules here.

import os
import re
import sys
from pathlib import Path

from attnscale.analysis.comparisons import differences_settings
from attnscale.attention import source_file
from attnscale.code_files import PACKAGE, module_files
from attnscale.config import parse_config
from attnscale.counts import step_at
from attnscale.environment import check_surroundings, software
from attnscale.errors import UserError
from attnscale.files import canonical_json
from attnscale.manifest import (
    EVALUATION_SET_FILES,
    TABLES,
    TOKENS_FILES,
    attention_statistics_files,
    by_source_files,
    deterministic_files,
    evaluation_file,
    figures,
    formal_arm_files,
    formal_tables,
    other_files,
    refuse_imported,
)
from attnscale.snapshots import snapshot_files, snapshot_steps
from attnscale.user_files import matching_files
from attnscale.workflow_times import write_workflow_times
from attnscale.yaml_files import read_yaml

# A configuration file given by the user stands alone: merging it into the default would leave the
# default's arms in it.
if not workflow.overwrite_configfiles:

    configfile: workflow.source_path("../../config/default.yaml")


def corpus_files():
    """The user's own text files, so that a change in one of them is noticed."""
    found = [
        matching_files(source.paths, [] if source.on_problem == "skip" else None)
        for source in CONFIG.corpus.sources
        if source.kind == "files"
    ]
    return sorted({str(path) for files in found for path in files.values()})


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
    refuse_imported(Path("results") / CONFIG.name)
    corpus_files()  # a pattern that matches nothing is refused here
except UserError as error:
    sys.exit(f"error: {error}")

LOCK = os.path.relpath(Path(workflow.basedir) / "envs" / "run.lock")


def any_of(words):
    """A pattern that fits one of the words, and nothing if there are none."""
    return "|".join(re.escape(str(word)) for word in words) or "(?!)"


wildcard_constraints:
    name=any_of([CONFIG.name]),
    trained=any_of(CONFIG.trained_arms),
    arm=any_of(CONFIG.arms),
    seed=any_of(CONFIG.seeds),
    step=r"\d+",
    task=any_of(CONFIG.formal),
    formal_arm=any_of(
        sorted({arm for section in CONFIG.formal.values() for arm in section.arms})
    ),


def package_files(*modules):
    """Package files that modules are made of; as inputs, an edit reruns just the stages that use them."""
    return [os.path.relpath(path) for path in module_files(*modules)]


def variant_file(arm):
    """The file that defines the attention of an arm."""
    attention = CONFIG.arms[arm].attention
    return os.path.relpath(source_file(attention.name, attention.module))


def formal_variant_file(task, arm):
    """The file that defines the attention of an arm on a formal language."""
    attention = CONFIG.formal[task].arms[arm].attention
    return os.path.relpath(source_file(attention.name, attention.module))


def formal_targets(task):
    """Tables of a formal language; asked for where it is off, a sentence says how to switch it on."""

    def tables(wildcards):
        if task not in CONFIG.formal:
            # What an input function raises as an error is told with a traceback.
            sys.exit(
                f"error: the configuration has no section {task}; add `{task}: {{}}`, or run the one of the paper, "
                f"`snakemake {task} --cores all --configfile config/acl2022.yaml`"
            )
        return expand(
            "results/{name}/{file}",
            name=CONFIG.name,
            file=formal_tables(CONFIG, task),
        )

    return tables


def all_variant_files():
    """Files of every registered attention and of the arms' own: the theory compares all of them."""
    package = {os.path.relpath(path) for path in (PACKAGE / "attention").glob("*.py")}
    return sorted(package | {variant_file(arm) for arm in CONFIG.arms})


# Of every training from the start; a branched arm keeps none.
SNAPSHOT_FILES = [
    str(file)
    for step in snapshot_steps(CONFIG.training)
    for file in snapshot_files(Path(), step)
]


def run_folder(trained, seed):
    """Where the training of an arm with a seed writes."""
    return f"results/{CONFIG.name}/runs/{trained}/seed{seed}"


def trunk_files(trained, seed):
    """Snapshot that a branched arm goes on from."""
    branch = CONFIG.arms[trained].branch
    if branch is None:
        return []
    step = step_at(CONFIG.training, branch.at)
    return [
        str(file) for file in snapshot_files(Path(run_folder(branch.of, seed)), step)
    ]


def trunk_option(trained, seed):
    """How the command line is told of that snapshot."""
    branch = CONFIG.arms[trained].branch
    return f"--trunk {run_folder(branch.of, seed)}" if branch else ""


def evaluations():
    """Evaluation tables of all arms and seeds, in the order of the result table."""
    return [f"results/{CONFIG.name}/{evaluation_file(*run)}" for run in CONFIG.runs()]


def snapshot_evaluations():
    """Evaluation tables of all arms, seeds and steps before the end of the training."""
    return [
        f"results/{CONFIG.name}/{evaluation_file(*run)}"
        for run in CONFIG.snapshot_runs()
    ]


def attention_statistics():
    """Attention statistics of all arms and seeds, in the order of the result table."""
    return [
        f"results/{CONFIG.name}/{file}" for file in attention_statistics_files(CONFIG)
    ]


def training_records(file):
    """One file per trained arm and seed, such as `history.csv`."""
    return [f"{run_folder(*run)}/{file}" for run in CONFIG.runs(trained=True)]


def report_templates():
    """Page templates of the report."""
    return sorted(
        os.path.relpath(path) for path in (PACKAGE / "report" / "templates").iterdir()
    )
