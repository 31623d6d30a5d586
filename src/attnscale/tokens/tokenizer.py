"""Training and loading tokenizers, kept as `tokenizer.json` of the `tokenizers` library.

The special tokens have ids but are not registered as "added tokens" of the library: those are searched
for in the text, so a document with the literal text "[MASK]" would get the id of a token to predict.
"""

import collections
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from attnscale.config import TokensConfig
from attnscale.errors import UserError
from attnscale.tokens.vocabulary import SPECIAL_TOKENS


def train_tokenizer(settings: TokensConfig, texts: Iterable[str]) -> Tokenizer:
    """Make a tokenizer from training text; the order of the texts and the number of threads do not matter.

    Args:
        settings: kind and size of the vocabulary.
        texts: the training documents, and only those.

    Returns:
        A tokenizer whose first ids are `SPECIAL_TOKENS`; ordinary text never gets [PAD] or [MASK], and
        [UNK] only for a character that a character vocabulary lacks.
    """
    if settings.kind == "character":
        return _train_characters(settings.vocabulary_size, texts)
    return _train_bpe(settings.vocabulary_size, texts)


def save_text(tokenizer: Tokenizer) -> str:
    """The content of `tokenizer.json`: equal tokenizers give equal text."""
    return str(tokenizer.to_str(pretty=True)) + "\n"


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`.

    Raises:
        UserError: the file is missing or is no tokenizer.
    """
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the tokens stage, or the whole pipeline") from None
    except OSError:
        raise
    except Exception as error:  # the library raises plain Exception for anything it cannot parse
        raise UserError(f"{path} is no tokenizer ({error}); delete it and run the pipeline again") from None


def _train_bpe(vocabulary_size: int, texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE (Radford et al. 2019, "Language models are unsupervised multitask learners")."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(SPECIAL_TOKENS),
        # Pairs that occur once say nothing about the language and would fill a small vocabulary with noise.
        min_frequency=2,
        # All 256 bytes, so that no text whatever is unknown.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    # The special tokens come in only now: the trainer would register them as added tokens.
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    vocabulary |= {token: index + len(SPECIAL_TOKENS) for token, index in model["vocab"].items()}
    tokenizer.model = models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in model["merges"]])
    return tokenizer


def _train_characters(vocabulary_size: int, texts: Iterable[str]) -> Tokenizer:
    """One id per Unicode character: the most frequent ones; among equally frequent the lower code point."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    kept = ranked[: vocabulary_size - len(SPECIAL_TOKENS)]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *kept])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
    # A dot would leave out line ends.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
