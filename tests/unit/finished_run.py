"""Small runs as the pipeline leaves them, as far as predictions and exports read them: weights are random."""

import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from attnscale.cli import resolved_yaml
from attnscale.config import Config, parse_config
from attnscale.manifest import write_manifest
from attnscale.model import make_encoder
from attnscale.tokens.load import load_vocabulary
from tests.unit.conftest import LENGTH


def write_run(folder: Path, tokens_dir: Path, **given: Any) -> Config:
    """A run whose trained arms have random weights, large enough that scale and positions show.

    Args:
        folder: of the run.
        tokens_dir: a folder of tokens, which is copied.
        given: keys of the configuration; `arms` is needed, `model` may be given in part.
    """
    model = {"preset": "smoke", **given.pop("model", {})}
    settings = {
        "name": folder.name, "tokens": {"vocabulary_size": 300}, "training": {"length": LENGTH},
        "evaluation": {"lengths": [16, 32, 64]}, "compute": {"threads": 1}, **given, "model": model,
    }  # fmt: skip
    config = parse_config(settings, "test")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    shutil.copytree(tokens_dir, folder / "tokens")
    size, written = load_vocabulary(tokens_dir).size, []
    for arm, seed in config.runs(trained=True):
        encoder = make_encoder(config.encoder_settings(arm), size)
        encoder.initialise(seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
        name = f"runs/{arm}/seed{seed}/model.safetensors"
        (folder / name).parent.mkdir(parents=True)
        safetensors.torch.save_file(encoder.state_dict(), folder / name)
        written.append(name)
    write_manifest(folder, written)
    return config
