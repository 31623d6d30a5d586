rule evaluate:
    input:
        package_files("attnscale.evaluate"),
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
        "results/{name}/evaluations/{arm}/seed{seed}.csv",
    log:
        "results/{name}/logs/evaluate/{arm}/seed{seed}.log",
    benchmark:
        "results/{name}/benchmarks/evaluate/{arm}/seed{seed}.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: CONFIG.compute.threads
    resources:
        mem_mb=4000,
        runtime=120,
        gpu=1 if CONFIG.compute.device == "cuda" else 0,
    params:
        settings=lambda wildcards: CONFIG.evaluate_settings(
            wildcards.arm, int(wildcards.seed)
        ).canonical(),
        tokens=lambda wildcards, input: os.path.dirname(input.tokens[0]),
    shell:
        """
        attnscale evaluate --settings {params.settings:q} --tokens {params.tokens:q} \
            --weights {input.weights:q} --environment {input.environment:q} \
            --output {output:q} 2>{log:q}
        """


# The same with the weights of a snapshot.
use rule evaluate as evaluate_snapshot with:
    input:
        package_files("attnscale.evaluate"),
        variant=lambda wildcards: variant_file(wildcards.arm),
        weights=lambda wildcards: expand(
            "results/{name}/runs/{trained}/seed{seed}/snapshots/step{step}.safetensors",
            name=wildcards.name,
            trained=CONFIG.weights_of(wildcards.arm),
            seed=wildcards.seed,
            step=wildcards.step,
        ),
        tokens=expand(
            "results/{{name}}/tokens/{file}",
            file=[*EVALUATION_SET_FILES, "tokenizer.json", "manifest.json"],
        ),
        environment="results/{name}/environment.json",
    output:
        "results/{name}/evaluations/{arm}/seed{seed}/step{step}.csv",
    log:
        "results/{name}/logs/evaluate/{arm}/seed{seed}/step{step}.log",
    benchmark:
        "results/{name}/benchmarks/evaluate/{arm}/seed{seed}/step{step}.tsv"
    params:
        settings=lambda wildcards: CONFIG.evaluate_settings(
            wildcards.arm, int(wildcards.seed), int(wildcards.step)
        ).canonical(),
        tokens=lambda wildcards, input: os.path.dirname(input.tokens[0]),


rule accuracy:
    input:
        package_files("attnscale.accuracy"),
        evaluations=evaluations(),
    output:
        report(
            "results/{name}/accuracy.csv",
            caption="../report/accuracy_table.rst",
            category="Accuracy",
            labels={"what": "accuracy of every arm, seed and length"},
        ),
    log:
        "results/{name}/logs/accuracy.log",
    benchmark:
        "results/{name}/benchmarks/accuracy.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    shell:
        "attnscale accuracy {input.evaluations:q} --output {output:q} 2> {log:q}"


rule snapshot_accuracy:
    input:
        package_files("attnscale.accuracy"),
        evaluations=snapshot_evaluations(),
    output:
        report(
            "results/{name}/snapshots.csv",
            caption="../report/snapshots_table.rst",
            category="Accuracy",
            labels={
                "what": "accuracy on the way, of every arm, seed, step and length"
            },
        ),
    log:
        "results/{name}/logs/snapshot_accuracy.log",
    benchmark:
        "results/{name}/benchmarks/snapshot_accuracy.tsv"
    conda:
        "../../envs/attnscale.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    shell:
        """
        attnscale accuracy --by-step {input.evaluations:q} --output {output:q} 2>{log:q}
        """
