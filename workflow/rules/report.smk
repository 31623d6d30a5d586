rule render:
    input:
        package_files("attnscale.report"),
        templates=report_templates(),
        variants=[variant_file(arm) for arm in CONFIG.arms],
        config="results/{name}/config.yaml",
        environment="results/{name}/environment.json",
        corpus="results/{name}/corpus/manifest.json",
        tokens="results/{name}/tokens/manifest.json",
        evaluation_set="results/{name}/tokens/evaluation.json",
        accuracy="results/{name}/accuracy.csv",
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
        accuracy_figure=report(
            "results/{name}/report/figures/accuracy_by_length.svg",
            caption="../report/accuracy.rst",
            category="Accuracy",
            labels={"what": "accuracy against length"},
        ),
        learning_figure=report(
            "results/{name}/report/figures/learning_curves.svg",
            caption="../report/learning_curves.rst",
            category="Training",
            labels={"what": "learning curves"},
        ),
        bitmaps=expand("results/{{name}}/report/figures/{figure}.png", figure=FIGURES),
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
