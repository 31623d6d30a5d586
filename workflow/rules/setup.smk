rule config:
    output:
        "results/{name}/config.yaml",
    log:
        "results/{name}/logs/config.log",
    benchmark:
        "results/{name}/benchmarks/config.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=5,
    params:
        settings=lambda wildcards: CONFIG.canonical(),
    shell:
        "attnscale resolve --settings {params.settings:q} --output {output:q} 2> {log:q}"


rule environment:
    input:
        package_files("attnscale.environment"),
    output:
        "results/{name}/environment.json",
    log:
        "results/{name}/logs/environment.log",
    benchmark:
        "results/{name}/benchmarks/environment.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
        gpu=1 if CONFIG.compute.device == "cuda" else 0,
    params:
        software=lambda wildcards: canonical_json(software(Path(LOCK))),
        lock=LOCK,
        device=CONFIG.compute.device,
        precision=CONFIG.compute.precision,
        compilation=CONFIG.compute.compile,
        threads=CONFIG.compute.threads,
    shell:
        """
        attnscale environment --lock {params.lock:q} --device {params.device:q} \
            --precision {params.precision:q} --compile {params.compilation:q} \
            --threads {params.threads:q} --output {output:q} 2>{log:q}
        """
