FIGURE_GROUPS = {
    "accuracy_by_length": "Accuracy",
    "differences_by_kind": "Accuracy",
    "growth": "Accuracy",
    "repairs": "Accuracy",
    "entropy": "Attention",
    "entropy_of_others": "Attention",
    "logit_spread": "Attention",
    "learning_curves": "Training",
    "learning_curves_of_others": "Training",
    "gradient_norms": "Training",
    "first_loss": "Formal languages",
    "first_by_scale": "Formal languages",
    "parity_loss": "Formal languages",
    "exact_networks": "Formal languages",
}


rule render:
    input:
        package_files("attnscale.report.build"),
        templates=report_templates(),
        variants=[variant_file(arm) for arm in CONFIG.arms],
        config="results/{name}/config.yaml",
        environment="results/{name}/environment.json",
        corpus="results/{name}/corpus/manifest.json",
        tokens="results/{name}/tokens/manifest.json",
        evaluation_set="results/{name}/tokens/evaluation.json",
        accuracy="results/{name}/accuracy.csv",
        differences="results/{name}/differences.csv",
        claims="results/{name}/claims.csv",
        by_source=expand("results/{{name}}/{file}", file=by_source_files(CONFIG)),
        theory="results/{name}/theory.csv",
        entropy=(
            ["results/{name}/entropy.csv"]
            if CONFIG.attention_statistics.blocks
            else []
        ),
        snapshots=["results/{name}/snapshots.csv"] if CONFIG.snapshot_runs() else [],
        formal=expand(
            "results/{{name}}/{file}",
            file=[
                file for task in CONFIG.formal for file in formal_tables(CONFIG, task)
            ],
        ),
        histories=training_records("history.csv"),
        runs=training_records("run.json"),
    output:
        html=report(
            "results/{name}/report/index.html",
            caption="../report/report.rst",
            category="Report",
            labels={"what": "the whole report as one page"},
        ),
        markdown="results/{name}/report/report.md",
        durations="results/{name}/report/durations.html",
        durations_markdown="results/{name}/report/durations.md",
        drawings=[
            report(
                f"results/{{name}}/report/figures/{figure}.svg",
                caption=f"../report/{figure}.rst",
                category=FIGURE_GROUPS[figure],
                labels={"what": figure.replace("_", " ")},
            )
            for figure in figures(CONFIG)
        ],
        bitmaps=expand(
            "results/{{name}}/report/figures/{figure}.png", figure=figures(CONFIG)
        ),
        tables=expand("results/{{name}}/report/tables/{table}.csv", table=TABLES),
    log:
        "results/{name}/logs/report.log",
    benchmark:
        "results/{name}/benchmarks/report.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        run=subpath(input.config, parent=True),
        folder=subpath(output.html, parent=True),
    shell:
        "attnscale report {params.run:q} --output {params.folder:q} 2> {log:q}"


# Made only when asked for, as `snakemake pdf`: it needs a browser, and holds the time of printing.
rule print_page:
    input:
        package_files("attnscale.report.pdf"),
        page="results/{name}/report/index.html",
    output:
        "results/{name}/report/report.pdf",
    log:
        "results/{name}/logs/pdf.log",
    benchmark:
        "results/{name}/benchmarks/pdf.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        "attnscale pdf {input.page:q} --output {output:q} 2> {log:q}"


rule manifest:
    input:
        package_files("attnscale.manifest"),
        files=expand("results/{{name}}/{file}", file=deterministic_files(CONFIG)),
    output:
        "results/{name}/manifest.sha256",
    log:
        "results/{name}/logs/manifest.log",
    benchmark:
        "results/{name}/benchmarks/manifest.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=10,
    params:
        run=subpath(output[0], parent=True),
    shell:
        "attnscale manifest {params.run:q} 2> {log:q}"
