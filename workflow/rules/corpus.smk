rule corpus:
    input:
        package_files("attnscale.corpus"),
        files=lambda wildcards: corpus_files(),
        environment="results/{name}/environment.json",
    output:
        "results/{name}/corpus/manifest.json",
        "results/{name}/corpus/train.jsonl",
        "results/{name}/corpus/held_out.jsonl",
    log:
        "results/{name}/logs/corpus.log",
    benchmark:
        "results/{name}/benchmarks/corpus.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        settings=lambda wildcards: CONFIG.corpus_settings().canonical(),
        folder=subpath(output[0], parent=True),
    shell:
        "attnscale corpus --settings {params.settings:q} --output {params.folder:q} 2> {log:q}"
