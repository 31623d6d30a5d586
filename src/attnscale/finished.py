"""One arm and seed of a finished run, loaded to be used: its encoder, its vocabulary, its tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer

from attnscale.config import Config, load_config
from attnscale.errors import UserError
from attnscale.evaluate import load_model
from attnscale.files import read_json, sha256_of
from attnscale.findings import nearest
from attnscale.manifest import NAME as RUN_MANIFEST
from attnscale.model import Encoder
from attnscale.tokens.load import MANIFEST, load_vocabulary
from attnscale.tokens.tokenizer import load_tokenizer


def read_run(run: Path) -> Config:
    """The configuration of a run.

    Args:
        run: its folder, results/NAME.

    Raises:
        UserError: it is no run, or its configuration is damaged.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is no run, it has no config.yaml; run the pipeline first or check the path")
    return load_config(run / "config.yaml")


def chosen_arm(config: Config, arm: str) -> str:
    """The arm itself, if the run has it.

    Raises:
        UserError: the run has no such arm.
    """
    if arm not in config.arms:
        raise UserError(f"--arm {arm}: {nearest(arm, tuple(config.arms), 'arm')}")
    return arm


def chosen_seed(config: Config, arm: str, seed: int | None) -> int:
    """The seed asked for, else the first one of the arm.

    Raises:
        UserError: the arm has not that seed.
    """
    seeds = config.seeds_of(arm)
    if seed is not None and seed not in seeds:
        raise UserError(f"--seed {seed}: {arm} has no such seed; it has {', '.join(map(str, seeds))}")
    return seeds[0] if seed is None else seed


def weights_file(config: Config, arm: str, seed: int) -> str:
    """Where the weights that an arm is evaluated with lie, relative to the run's folder."""
    return f"runs/{config.weights_of(arm)}/seed{seed}/model.safetensors"


def load_encoder(run: Path, config: Config, arm: str, seed: int) -> Encoder:
    """The encoder of an arm, with whatever the arm changes at test time, in evaluation mode on the CPU.

    Args:
        run: folder of the run.
        config: its configuration.
        arm: an arm of it.
        seed: a seed of the arm.

    Raises:
        UserError: the weights are missing or damaged, or are not those that the run's manifest names.
    """
    name = weights_file(config, arm, seed)
    check_manifest(run, name)
    return load_model(config.evaluate_settings(arm, seed), load_vocabulary(run / "tokens").size, run / name).eval()


def load_run_tokenizer(run: Path) -> Tokenizer:
    """The tokenizer of a run.

    Raises:
        UserError: it is missing, damaged, or not the one that the manifest of the tokens names.
    """
    path, manifest = run / "tokens" / "tokenizer.json", run / "tokens" / MANIFEST
    tokenizer = load_tokenizer(path)
    files = read_json(manifest).get("files", {})
    if files.get(path.name) != sha256_of(path):
        raise UserError(f"{path} is damaged: its sha256 is not the one in {MANIFEST}; run the pipeline again")
    return tokenizer


def check_manifest(run: Path, name: str) -> None:
    """Refuse a file that has changed since the run's manifest was written; a run without one has none to disagree with.

    Raises:
        UserError: its sha256 is another one.
    """
    path = run / RUN_MANIFEST
    if not path.is_file() or not (run / name).is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        digest, _, file = line.partition("  ")
        if file == name and digest != sha256_of(run / name):
            raise UserError(f"{run / name} is not the file that {path} names; run the pipeline again")
