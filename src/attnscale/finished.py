"""One arm and seed of a finished run, loaded to be used: its encoder, its vocabulary, its tokenizer."""

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from attnscale.config import Config, load_config
from attnscale.errors import UserError
from attnscale.evaluate import load_model
from attnscale.files import read_array, sha256_of
from attnscale.findings import nearest
from attnscale.manifest import IMPORTED, check_inputs, is_imported
from attnscale.model import Encoder
from attnscale.records import VocabularyRecord, read_record
from attnscale.tokens.load import MANIFEST, load_vocabulary
from attnscale.tokens.tokenizer import load_tokenizer

TOKENIZER, ORDER = "tokenizer.json", "checkpoint_ids.npy"


def read_run(run: Path) -> Config:
    """The configuration of a run.

    Args:
        run: its folder, results/NAME.

    Raises:
        UserError: it is no run, or its configuration is damaged.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is no run, it has no config.yaml; run the pipeline first or check the path")
    check_inputs(run, ["config.yaml"])
    return load_config(run / "config.yaml")


def check_models(run: Path, config: Config, chosen: Iterable[tuple[str, int]]) -> None:
    """Refuse damaged files of what arms and seeds are loaded from, before anything is loaded.

    Args:
        run: folder of the run.
        config: its configuration.
        chosen: arms and seeds.

    Raises:
        UserError: a file is not the one that was written, or the ids of the vocabulary make no sense.
    """
    weights = [weights_file(config, arm, seed) for arm, seed in chosen]
    check_inputs(run, [*weights, *(f"tokens/{name}" for name in (MANIFEST, TOKENIZER, ORDER)), IMPORTED])
    record = read_record(run / "tokens" / MANIFEST, VocabularyRecord)
    if record.kind == "checkpoint" and not is_imported(run):
        raise UserError(f"{run / IMPORTED} is missing; import the checkpoint again")


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
        UserError: the weights are missing or damaged.
    """
    name = weights_file(config, arm, seed)
    if is_imported(run):
        # Late: few runs are imports, and what they need is not small.
        from attnscale.checkpoint.encoder import load_roformer

        return load_roformer(config.encoder_settings(arm), run, run / name)
    return load_model(config.evaluate_settings(arm, seed), load_vocabulary(run / "tokens").size, run / name).eval()


@dataclasses.dataclass(frozen=True)
class RunTokenizer:
    """The tokenizer of a run with ids as the run stores them.

    Attributes:
        tokenizer: with its own ids.
        order: of an imported checkpoint, the tokenizer's id of each of the run's; None where they are the same.
    """

    tokenizer: Tokenizer
    order: tuple[int, ...] | None = None

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens around it."""
        ids = list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        return ids if self.order is None else [self._places[number] for number in ids]

    def token(self, number: int) -> str:
        """The text of one id."""
        own = number if self.order is None else self.order[number]
        return str(self.tokenizer.decode([own], skip_special_tokens=False))

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self.order or ())}


def load_run_tokenizer(run: Path) -> RunTokenizer:
    """The tokenizer of a run.

    Raises:
        UserError: it is missing, damaged, or not the one that the manifest of the tokens names.
    """
    folder = run / "tokens"
    files = read_record(folder / MANIFEST, VocabularyRecord).files
    if is_imported(run) and TOKENIZER not in files:
        raise UserError(f"{run} was imported from a checkpoint without tokenizer.json, so no new text can be read here")
    tokenizer = load_tokenizer(folder / TOKENIZER)
    for name in (TOKENIZER, ORDER) if is_imported(run) else (TOKENIZER,):
        if (folder / name).is_file() and files.get(name) != sha256_of(folder / name):
            raise UserError(
                f"{folder / name} is damaged: its sha256 is not the one in {MANIFEST}; run the pipeline again"
            )
    if not is_imported(run):
        return RunTokenizer(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    order = read_array(folder / ORDER)
    return RunTokenizer(tokenizer, tuple(int(number) for number in order))
