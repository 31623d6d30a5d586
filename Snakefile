# The whole comparison: corpus -> tokens -> train -> evaluate -> report.
#
# The configuration comes from --configfile, or from config/default.yaml without one; `attnscale.config`
# checks it before any job starts. Rules hold no logic: each calls one subcommand of `attnscale`.

import time

from psutil import Process  # Snakemake's own dependency
from snakemake.utils import min_version

# 9.20 leaves out the releases that did not rerun changed shell commands (9.0 to 9.1.1), could not solve
# their own schedule (9.10) or lost named profiles (9.16.3).
min_version("9.20")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/setup.smk"
include: "workflow/rules/corpus.smk"
include: "workflow/rules/tokens.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/analysis.smk"
include: "workflow/rules/theory.smk"
include: "workflow/rules/formal.smk"
include: "workflow/rules/report.smk"


onsuccess:
    write_workflow_times(
        Path("results", CONFIG.name, "benchmarks"),
        Process().create_time(),
        time.time(),
    )
    page = Path("results", CONFIG.name, "report", "index.html")
    # Targets such as `first` write none.
    print(f"Done. The report is in {page}" if page.is_file() else "Done.")


localrules:
    all,
    report,
    pdf,
    first,
    parity,


# Every file of a run, so that one that was deleted is made again.
rule all:
    default_target: True
    input:
        expand(
            "results/{name}/{file}", name=CONFIG.name, file=deterministic_files(CONFIG)
        ),
        expand("results/{name}/{file}", name=CONFIG.name, file=other_files(CONFIG)),
        expand("results/{name}/manifest.sha256", name=CONFIG.name),


# `snakemake report --cores 1` writes the report; what it needs is made first if it is missing.
rule report:
    input:
        expand("results/{name}/report/index.html", name=CONFIG.name),


# `snakemake pdf --cores 1` prints it with an installed browser.
rule pdf:
    input:
        expand("results/{name}/report/report.pdf", name=CONFIG.name),


# `snakemake first parity --cores all` trains the tiny transformers on FIRST and PARITY, and runs those built by hand.
rule first:
    input:
        formal_targets("first"),


rule parity:
    input:
        formal_targets("parity"),
