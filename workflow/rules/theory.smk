rule theory:
    input:
        package_files("attnscale.analysis.theory"),
        variants=all_variant_files(),
        environment="results/{name}/environment.json",
    output:
        "results/{name}/theory.csv",
    log:
        "results/{name}/logs/theory.log",
    benchmark:
        "results/{name}/benchmarks/theory.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        settings=lambda wildcards: CONFIG.theory_settings().canonical(),
    shell:
        "attnscale theory --settings {params.settings:q} --output {output:q} 2> {log:q}"
