# FIRST and PARITY of the ACL 2022 paper with tiny transformers; there only where the configuration has the sections.


# `exec` and --stop-with-parent as in the rule train.
rule train_formal:
    input:
        package_files("attnscale.formal.training"),
        variant=lambda wildcards: formal_variant_file(
            wildcards.task, wildcards.formal_arm
        ),
        environment="results/{name}/environment.json",
    output:
        "results/{name}/formal/{task}/{formal_arm}.csv",
    log:
        "results/{name}/logs/formal/{task}/{formal_arm}.log",
    benchmark:
        "results/{name}/benchmarks/formal/{task}/{formal_arm}.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        settings=lambda wildcards: CONFIG.formal_settings(
            wildcards.task, wildcards.formal_arm
        ).canonical(),
    shell:
        """
        exec attnscale train-formal --settings {params.settings:q} --output {output:q} --stop-with-parent 2>{log:q}
        """


rule formal_table:
    input:
        package_files("attnscale.formal.tables"),
        arms=lambda wildcards: expand(
            "results/{name}/{file}",
            name=wildcards.name,
            file=formal_arm_files(CONFIG, wildcards.task),
        ),
    output:
        report(
            "results/{name}/{task}.csv",
            caption="../report/formal_table.rst",
            category="Formal languages",
            labels={"what": "tests of every arm, training length and seed"},
        ),
    log:
        "results/{name}/logs/{task}.log",
    benchmark:
        "results/{name}/benchmarks/{task}.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    shell:
        "attnscale formal-table {input.arms:q} --output {output:q} 2> {log:q}"


rule exact_networks:
    input:
        package_files("attnscale.formal.exact"),
        environment="results/{name}/environment.json",
    output:
        report(
            "results/{name}/exact_{task}.csv",
            caption="../report/exact_table.rst",
            category="Formal languages",
            labels={"what": "hand-built networks by length"},
        ),
    log:
        "results/{name}/logs/exact_{task}.log",
    benchmark:
        "results/{name}/benchmarks/exact_{task}.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        settings=lambda wildcards: CONFIG.exact_settings(wildcards.task).canonical(),
    shell:
        "attnscale exact-networks --settings {params.settings:q} --output {output:q} 2> {log:q}"
