rule attention_statistics:
    input:
        package_files("attnscale.analysis.attention_statistics"),
        variant=lambda wildcards: variant_file(wildcards.arm),
        weights=lambda wildcards: expand(
            "results/{name}/runs/{trained}/seed{seed}/model.safetensors",
            name=wildcards.name,
            trained=CONFIG.weights_of(wildcards.arm),
            seed=wildcards.seed,
        ),
        tokens=expand(
            "results/{{name}}/tokens/{file}",
            file=[*EVALUATION_SET_FILES, "tokenizer.json", "manifest.json"],
        ),
        environment="results/{name}/environment.json",
    output:
        "results/{name}/attention/{arm}/seed{seed}.csv",
    log:
        "results/{name}/logs/attention_statistics/{arm}/seed{seed}.log",
    benchmark:
        "results/{name}/benchmarks/attention_statistics/{arm}/seed{seed}.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: CONFIG.compute.threads
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=1 if CONFIG.compute.device == "cuda" else 0,
    params:
        settings=lambda wildcards: CONFIG.attention_statistics_settings(
            wildcards.arm, int(wildcards.seed)
        ).canonical(),
        tokens=lambda wildcards, input: os.path.dirname(input.tokens[0]),
    shell:
        """
        attnscale attention-statistics --settings {params.settings:q} --tokens {params.tokens:q} \
            --weights {input.weights:q} --environment {input.environment:q} \
            --output {output:q} 2>{log:q}
        """


rule entropy:
    input:
        package_files("attnscale.analysis.attention_statistics"),
        statistics=attention_statistics(),
    output:
        report(
            "results/{name}/entropy.csv",
            caption="../report/entropy_table.rst",
            category="Attention",
            labels={"what": "entropy of every arm, seed, layer, head and length"},
        ),
    log:
        "results/{name}/logs/entropy.log",
    benchmark:
        "results/{name}/benchmarks/entropy.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    shell:
        "attnscale entropy {input.statistics:q} --output {output:q} 2> {log:q}"


rule differences:
    input:
        package_files("attnscale.analysis.differences"),
        evaluations=evaluations(),
    output:
        report(
            "results/{name}/differences.csv",
            caption="../report/differences_table.rst",
            category="Accuracy",
            labels={"what": "differences between arms, with intervals and tests"},
        ),
    log:
        "results/{name}/logs/differences.log",
    benchmark:
        "results/{name}/benchmarks/differences.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        settings=lambda wildcards: differences_settings(CONFIG).canonical(),
    shell:
        """
        attnscale differences --settings {params.settings:q} --output {output:q} \
            {input.evaluations:q} 2>{log:q}
        """


# Made only where the text has several sources.
rule by_source:
    input:
        package_files("attnscale.analysis.by_source"),
        evaluations=evaluations(),
        corpus=expand(
            "results/{{name}}/corpus/{file}", file=["held_out.jsonl", "manifest.json"]
        ),
        tokens=expand(
            "results/{{name}}/tokens/{file}",
            file=[
                *EVALUATION_SET_FILES,
                "held_out_ids.npy",
                "held_out_offsets.npy",
                "manifest.json",
            ],
        ),
    output:
        report(
            "results/{name}/accuracy_by_source.csv",
            caption="../report/accuracy_by_source_table.rst",
            category="Accuracy",
            labels={"what": "accuracy in the text of every source"},
        ),
        report(
            "results/{name}/differences_by_source.csv",
            caption="../report/differences_by_source_table.rst",
            category="Accuracy",
            labels={"what": "differences between arms in the text of every source"},
        ),
    log:
        "results/{name}/logs/by_source.log",
    benchmark:
        "results/{name}/benchmarks/by_source.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        settings=lambda wildcards: differences_settings(CONFIG).canonical(),
        corpus=lambda wildcards, input: os.path.dirname(input.corpus[0]),
        tokens=lambda wildcards, input: os.path.dirname(input.tokens[0]),
        folder=subpath(output[0], parent=True),
    shell:
        """
        attnscale by-source --settings {params.settings:q} --corpus {params.corpus:q} \
            --tokens {params.tokens:q} --output {params.folder:q} {input.evaluations:q} 2>{log:q}
        """


rule claims:
    input:
        package_files("attnscale.analysis.claims"),
        config="results/{name}/config.yaml",
        evaluations=evaluations(),
        entropy=(
            "results/{name}/entropy.csv" if CONFIG.attention_statistics.blocks else []
        ),
        histories=training_records("history.csv"),
        formal=expand("results/{{name}}/{task}.csv", task=CONFIG.formal),
    output:
        report(
            "results/{name}/claims.csv",
            caption="../report/claims_table.rst",
            category="Claims",
            labels={"what": "verdict on every claim"},
        ),
    log:
        "results/{name}/logs/claims.log",
    benchmark:
        "results/{name}/benchmarks/claims.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        run=subpath(input.config, parent=True),
    shell:
        "attnscale claims {params.run:q} --output {output:q} 2> {log:q}"
