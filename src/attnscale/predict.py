"""What a finished model puts in the place of [MASK].

Tensor names end in their shape: B = 1 row, N tokens of the text, S masked tokens, V vocabulary.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import models as tokenizer_models

from attnscale import engine
from attnscale.config import Config
from attnscale.errors import UserError
from attnscale.finished import (
    RunTokenizer,
    check_models,
    chosen_arm,
    chosen_seed,
    load_encoder,
    load_run_tokenizer,
    read_run,
    weights_file,
)
from attnscale.model import Encoder
from attnscale.tokens.load import load_vocabulary
from attnscale.tokens.vocabulary import Vocabulary

MASK = "[MASK]"


@dataclasses.dataclass(frozen=True)
class Guess:
    """A token with its probability."""

    text: str
    probability: float


def predict(run: Path, text: str, *, arm: str | None = None, seed: int | None = None, top: int = 5) -> str:
    """The likeliest tokens at every [MASK] of a text, for one arm or all arms of a run, as plain text.

    Every arm reads the text as it is evaluated, with its scale and positions at test time. Several [MASK] are
    predicted independently of each other. Computed in fp32 on the CPU, so the answer does not depend on a GPU.

    Args:
        run: folder of a run, results/NAME; the arms that are asked for must be trained.
        text: holds [MASK] wherever a token is to be predicted.
        arm: one arm; None for all, in the order of `config.yaml`.
        seed: one seed; None for the first of each arm.
        top: how many tokens to show.

    Returns:
        Per arm one heading and per [MASK] one block of lines, with a line end at the end. Tokens stand in quotation
        marks with their blanks, since a token of a byte-level vocabulary begins with the blank in front of a word.

    Raises:
        UserError: there is no [MASK], the run lacks something, or an arm or seed is not known.
    """
    if MASK not in text:
        raise UserError(f"the text holds no {MASK}; write {MASK} where a token is to be predicted")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError("the text is not UTF-8; convert it, or set the locale of the terminal to UTF-8") from None
    config = read_run(run)
    chosen = [chosen_arm(config, arm)] if arm is not None else list(config.arms)
    seeds = {name: chosen_seed(config, name, seed) for name in chosen}
    check_models(run, config, seeds.items())
    _check_trained(run, config, seeds)
    engine.prepare(config.compute.threads)
    tokenizer, vocabulary = load_run_tokenizer(run), load_vocabulary(run / "tokens")
    ids = masked_ids(tokenizer, vocabulary, text)
    lines = []
    if unknown := ids.count(vocabulary.unknown_id):
        lines.append(f"note: {unknown} of {len(ids)} tokens are not in the vocabulary")
    for name in chosen:
        model = load_encoder(run, config, name, seeds[name])
        lines.append(f"{name}, seed {seeds[name]}, {len(ids)} tokens")
        for number, guesses in enumerate(guess(model, tokenizer, vocabulary, ids, top), start=1):
            lines.append(f"  {MASK} {number}")
            lines += [f"    {100 * each.probability:6.2f} %  {_shown(each.text)}" for each in guesses]
    return "".join(f"{line}\n" for line in lines)


def _check_trained(run: Path, config: Config, seeds: Mapping[str, int]) -> None:
    """Tell of a run that is half done which of the arms that were asked for can be asked already."""
    missing = {arm: path for arm, seed in seeds.items() if not (path := run / weights_file(config, arm, seed)).exists()}
    if missing and len(seeds) > 1:
        arm, path = next(iter(missing.items()))
        trained = [name for name in seeds if name not in missing]
        told = f"name one that is, with --arm: {', '.join(trained)}" if trained else "run the pipeline first"
        raise UserError(f"{path} is missing, so {arm} is not trained yet; {told}")


def masked_ids(tokenizer: RunTokenizer, vocabulary: Vocabulary, text: str) -> list[int]:
    """Ids of a text in which [MASK] stands for one token each.

    A byte-level token holds the blank in front of its word, so a blank in front of [MASK] is part of what is to be
    predicted; in a vocabulary of characters the blank is a token of its own.
    """
    # Late: it imports `datasets`, which takes a second.
    from attnscale.corpus.clean import clean_text

    blank_belongs = isinstance(tokenizer.tokenizer.model, tokenizer_models.BPE)
    *before, last = clean_text(text).split(MASK)
    ids: list[int] = []
    for part in before:
        cut = part[:-1] if blank_belongs and part.endswith(" ") else part
        ids += [*tokenizer.encode(cut), vocabulary.mask_id]
    return ids + tokenizer.encode(last)


@torch.inference_mode()
def guess(
    model: Encoder, tokenizer: RunTokenizer, vocabulary: Vocabulary, ids: list[int], top: int
) -> list[tuple[Guess, ...]]:
    """The likeliest tokens at every [MASK], likeliest first; probabilities are over the whole vocabulary.

    Raises:
        UserError: the logits are not finite.
    """
    ids_BN = torch.tensor([ids])
    selected_S = (ids_BN[0] == vocabulary.mask_id).nonzero()[:, 0]
    logits_SV = model(ids_BN, selected_S)
    if not logits_SV.isfinite().all():
        raise UserError("the logits are not finite; check the attention of this arm")
    shares_SV = torch.softmax(logits_SV.double(), dim=1)
    found = []
    for shares_V in shares_SV:
        best = torch.sort(shares_V, descending=True, stable=True)
        ids_of_best = best.indices[:top].tolist()
        texts = [tokenizer.token(index) for index in ids_of_best]
        found.append(tuple(map(Guess, texts, best.values[:top].tolist())))
    return found


def _shown(text: str) -> str:
    """In quotation marks, on one line, whatever the token holds."""
    return json.dumps(text, ensure_ascii=False)
