"""A small tokens folder and environment record, made by the real stages from generated text."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
import torch

from attnscale import attention
from attnscale.config import EncoderSettings, EvaluationSetSettings, TokensConfig, TokensSettings, TrainSettings
from attnscale.corpus.documents import content_hash
from attnscale.environment import describe
from attnscale.files import write_json
from attnscale.tokens.build import build_tokens
from attnscale.tokens.evaluation_set import build_evaluation_set

LENGTH = 16


if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of processes that test side by side would wait for each other at every operation.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    """Training and evaluation set torch's state for their whole process; here one process holds many."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _variants_as_they_were(monkeypatch):
    """A test's own attention is nobody else's: its module and what it registered go with the test."""
    modules = set(sys.modules)
    monkeypatch.setattr(attention, "_REGISTRY", dict(attention.registered()))
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("attnscale_user_"):
            del sys.modules[name]


@pytest.fixture(scope="session")
def tokens_dir(tmp_path_factory) -> Path:
    """Tokens of a text with some order in it, with evaluation blocks of 64."""
    root = tmp_path_factory.mktemp("stages")
    draw = random.Random(0)
    words = ["the", "house", "of", "state", "and", "people", "has", "law", "year", "congress"]
    for side, count in (("train", 12), ("held_out", 4)):
        lines = []
        for _ in range(count):
            text = " ".join(words[(place + draw.randrange(2)) % 10] for place in range(400))
            lines.append({"id": content_hash(text), "source": "made", "title": "text", "text": text})
        lines.sort(key=lambda line: line["id"])
        (root / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tokens = root / "tokens"
    settings = TokensSettings(tokens=TokensConfig(vocabulary_size=300), training_length=LENGTH)
    build_tokens(settings, root, tokens)
    build_evaluation_set(EvaluationSetSettings(lengths=(16, 32, 64), mask_rate=0.15, max_blocks=None), tokens, tokens)
    return tokens


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("environment") / "environment.json"
    write_json(path, describe(Path("none.lock"), "cpu", "fp32", 1))
    return path


def encoder_settings(**changes) -> EncoderSettings:
    """Settings of a small encoder; `model` may be given in part."""
    values = {
        "attention": {"name": "attention_e"}, "positions": None, "n_at_least": None, "n_at_most": None,
        "training_length": LENGTH, **changes, "model": {"preset": "smoke", **changes.pop("model", {})},
    }  # fmt: skip
    return EncoderSettings.model_validate(values)


def train_settings(**changes) -> TrainSettings:
    """Settings of a training of 12 steps; `training` may be given in part, and what the encoder needs beside it."""
    training = {
        "length": LENGTH, "batch_size": 4, "tokens": 12 * 4 * LENGTH, "log_every": 5, "checkpoint_every": 4,
        **changes.pop("training", {}),
    }  # fmt: skip
    encoder = {key: changes.pop(key) for key in EncoderSettings.model_fields if key in changes}
    values = {
        "arm": "attention_e", "seed": 0, "encoder": encoder_settings(**encoder), "training": training,
        "training_lengths": (LENGTH,), "branch_at": None, "threads": 1, **changes,
    }  # fmt: skip
    return TrainSettings.model_validate(values)
