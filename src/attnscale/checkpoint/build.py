"""From the folder of a checkpoint to accuracy, differences, entropy and a report: all stages but the training."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from attnscale import engine
from attnscale.accuracy import collect_accuracy
from attnscale.analysis.attention_statistics import collect_attention_statistics, statistics_table
from attnscale.analysis.comparisons import differences_settings
from attnscale.analysis.differences import write_differences
from attnscale.checkpoint.encoder import load_roformer
from attnscale.checkpoint.settings import checkpoint_config
from attnscale.checkpoint.shape import Shape, read_shape
from attnscale.checkpoint.tokenizer import CheckpointTokenizer, read_tokenizer
from attnscale.checkpoint.tokens import write_tokens
from attnscale.checkpoint.weights import our_weights, read_weights, weights_path
from attnscale.checksums import write_checksums
from attnscale.config import Config
from attnscale.corpus import build_corpus
from attnscale.environment import describe, read_environment
from attnscale.errors import UserError
from attnscale.evaluate import evaluation_table
from attnscale.files import canonical_json, read_json, sha256_of, write_bytes, write_json, write_text
from attnscale.finished import weights_file
from attnscale.folders import whole_folder
from attnscale.manifest import (
    IMPORTED,
    attention_statistics_files,
    evaluation_file,
    imported_files,
    is_imported,
    write_manifest,
)
from attnscale.report.checkpoint import build_checkpoint_report
from attnscale.tokens.evaluation_set import build_evaluation_set
from attnscale.tokens.load import load_evaluation_set
from attnscale.yaml_files import resolved_yaml


def import_checkpoint(
    folder: Path, configfile: Path, *, results: Path = Path("results"), lock: Path = Path("envs/run.lock")
) -> Path:
    """Evaluate a checkpoint on held-out text, as it is and with what its arms change at test time.

    Args:
        folder: of a RoFormerForMaskedLM in Hugging Face's layout: config.json, weights, tokenizer.
        configfile: see `attnscale.checkpoint.settings.checkpoint_config`.
        results: folder of all runs.
        lock: lock file of this environment, for its record.

    Returns:
        Folder of the run, with what a trained run has as far as it applies: corpus, tokens, weights in our layout,
        evaluations, accuracy.csv, differences.csv, entropy.csv, report, manifest. It is there whole or not at all; an
        earlier import of the same checkpoint gives way when the new one is finished.

    Raises:
        UserError: the checkpoint, the configuration or the text cannot be used, or the folder holds something else.
    """
    shape = read_shape(folder)
    config = checkpoint_config(configfile, folder, shape)
    run = results / config.name
    if run.exists() and not is_imported(run):
        raise UserError(f"{run} holds something else than an imported checkpoint; give the configuration another name")
    state = read_weights(folder, shape)
    tokenizer = read_tokenizer(folder, shape)
    record = _record(folder, shape, tokenizer)
    _refuse_another(run, record)
    weights = our_weights(state, shape, tokenizer.order)
    del state
    compute = config.compute
    environment = describe(lock, compute.device, compute.precision, compute.threads, "off")
    with whole_folder(run) as part:
        _build(part, config, record, environment, tokenizer, weights)
    return run


def _build(
    run: Path,
    config: Config,
    record: dict[str, Any],
    environment: dict[str, Any],
    tokenizer: CheckpointTokenizer,
    weights: dict[str, torch.Tensor],
) -> None:
    write_json(run / IMPORTED, record)
    write_text(run / "config.yaml", resolved_yaml(config))
    write_json(run / "environment.json", environment)
    build_corpus(config.corpus_settings(), run / "corpus")
    write_tokens(tokenizer, run / "corpus", run / "tokens")
    build_evaluation_set(config.evaluation_set_settings(), run / "tokens", run / "tokens")
    stored = weights_file(config, config.trained_arms[0], 0)
    write_bytes(run / stored, safetensors.torch.save(weights))
    _evaluate(run, config)
    build_checkpoint_report(run, run / "report")
    files = imported_files(run, config)
    write_manifest(run, files)
    write_checksums(run / name for name in (*files, "environment.json"))


def _refuse_another(run: Path, record: dict[str, Any]) -> None:
    if is_imported(run) and read_json(run / IMPORTED) != json.loads(canonical_json(record)):
        raise UserError(
            f"{run} holds another imported checkpoint, as its {IMPORTED} says; give the configuration another name, or "
            f"remove {run}"
        )


def _record(folder: Path, shape: Shape, tokenizer: CheckpointTokenizer) -> dict[str, Any]:
    files = [folder / "config.json", weights_path(folder)]
    files += [path for name in ("tokenizer.json", "vocab.txt") if (path := folder / name).is_file()]
    return {
        "shape": dataclasses.asdict(shape),
        "frame": tokenizer.frame,
        "files": {path.name: sha256_of(path) for path in files},
    }


def _evaluate(run: Path, config: Config) -> None:
    """Evaluate every arm and write the tables."""
    record = read_environment(run / "environment.json")
    engine.prepare(config.compute.threads)
    device, bf16 = torch.device(record["device"]), record["precision"] == "bf16"
    data = load_evaluation_set(run / "tokens")
    measured = attention_statistics_files(config)
    for arm, seed in config.runs():
        weights = run / weights_file(config, arm, seed)
        model = load_roformer(config.encoder_settings(arm), run, weights).to(device)
        settings = config.evaluate_settings(arm, seed, step=0)
        write_text(run / evaluation_file(arm, seed), evaluation_table(settings, model, data, device, bf16=bf16))
        if measured:
            statistics = config.attention_statistics_settings(arm, seed)
            table = statistics_table(statistics, model, np.asarray(data.inputs_KN), device, bf16=bf16)
            write_text(run / "attention" / arm / f"seed{seed}.csv", table)
    paths = [run / evaluation_file(arm, seed) for arm, seed in config.runs()]
    collect_accuracy(paths, run / "accuracy.csv")
    write_differences(differences_settings(config), paths, run / "differences.csv")
    if measured:
        collect_attention_statistics([run / name for name in measured], run / "entropy.csv")
