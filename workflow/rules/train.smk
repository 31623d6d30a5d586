# `exec` makes the training a child of Snakemake itself, so that --stop-with-parent notices when
# Snakemake is killed and nobody is left behind writing into the folder.
rule train:
    input:
        package_files("attnscale.train"),
        variant=lambda wildcards: variant_file(wildcards.trained),
        tokens=expand("results/{{name}}/tokens/{file}", file=TOKENS_FILES),
        environment="results/{name}/environment.json",
        # What a branched arm goes on from; nothing for the others.
        trunk=lambda wildcards: trunk_files(wildcards.trained, wildcards.seed),
        # Not used: only so that an evaluation that cannot be made is found before the training.
        evaluation_set=ancient("results/{name}/tokens/evaluation.json"),
    output:
        weights="results/{name}/runs/{trained}/seed{seed}/model.safetensors",
        history="results/{name}/runs/{trained}/seed{seed}/history.csv",
        run="results/{name}/runs/{trained}/seed{seed}/run.json",
        snapshots=expand(
            "results/{{name}}/runs/{{trained}}/seed{{seed}}/{file}",
            file=SNAPSHOT_FILES,
        ),
    log:
        "results/{name}/logs/train/{trained}/seed{seed}.log",
    benchmark:
        "results/{name}/benchmarks/train/{trained}/seed{seed}.tsv"
    wildcard_constraints:
        trained=any_of(
            arm for arm in CONFIG.trained_arms if not CONFIG.arms[arm].branch
        ),
    conda:
        "../../envs/attnscale.yaml"
    threads: CONFIG.compute.threads
    resources:
        mem_mb=4000,
        runtime=720,
        gpu=1 if CONFIG.compute.device == "cuda" else 0,
    params:
        settings=lambda wildcards: CONFIG.train_settings(
            wildcards.trained, int(wildcards.seed)
        ).canonical(),
        tokens=lambda wildcards, input: os.path.dirname(input.tokens[0]),
        folder=subpath(output.weights, parent=True),
        trunk=lambda wildcards: trunk_option(wildcards.trained, wildcards.seed),
    shell:
        """
        exec attnscale train --settings {params.settings:q} --tokens {params.tokens:q} \
            --environment {input.environment:q} --output {params.folder:q} \
            {params.trunk} --stop-with-parent 2>{log:q}
        """


# The same without snapshots, of which a branched arm keeps none.
use rule train as branch with:
    output:
        weights="results/{name}/runs/{trained}/seed{seed}/model.safetensors",
        history="results/{name}/runs/{trained}/seed{seed}/history.csv",
        run="results/{name}/runs/{trained}/seed{seed}/run.json",
    wildcard_constraints:
        trained=any_of(arm for arm in CONFIG.trained_arms if CONFIG.arms[arm].branch),
