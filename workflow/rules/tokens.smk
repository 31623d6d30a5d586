rule tokens:
    input:
        package_files("attnscale.tokens.build"),
        train="results/{name}/corpus/train.jsonl",
        held_out="results/{name}/corpus/held_out.jsonl",
        environment="results/{name}/environment.json",
    output:
        expand("results/{{name}}/tokens/{file}", file=TOKENS_FILES),
    log:
        "results/{name}/logs/tokens.log",
    benchmark:
        "results/{name}/benchmarks/tokens.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        settings=lambda wildcards: CONFIG.tokens_settings().canonical(),
        corpus=subpath(input.train, parent=True),
        folder=subpath(output[0], parent=True),
    shell:
        """
        attnscale tokens --settings {params.settings:q} --corpus {params.corpus:q} \
            --output {params.folder:q} 2>{log:q}
        """


rule evaluation_set:
    input:
        package_files("attnscale.tokens.evaluation_set"),
        tokens=expand("results/{{name}}/tokens/{file}", file=TOKENS_FILES),
    output:
        expand("results/{{name}}/tokens/{file}", file=EVALUATION_SET_FILES),
    log:
        "results/{name}/logs/evaluation_set.log",
    benchmark:
        "results/{name}/benchmarks/evaluation_set.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=lambda wildcards: CONFIG.evaluation_set_settings().canonical(),
        folder=subpath(output[0], parent=True),
    shell:
        """
        attnscale evaluation-set --settings {params.settings:q} --tokens {params.folder:q} 2>{log:q}
        """
