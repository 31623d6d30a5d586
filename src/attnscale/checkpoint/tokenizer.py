"""The tokenizer of a checkpoint, and its ids in the order that the protocol wants: special ones first."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from attnscale.checkpoint.shape import Shape, read_dict
from attnscale.errors import UserError
from attnscale.tokens.vocabulary import Vocabulary

# Names that BERT gave them; a checkpoint may state others.
_NAMES = {"pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]", "cls": "[CLS]", "sep": "[SEP]"}
_FILES = ("special_tokens_map.json", "tokenizer_config.json")


@dataclasses.dataclass(frozen=True)
class CheckpointTokenizer:
    """How a text becomes ids, and what they mean.

    Attributes:
        encode: texts to lists of the checkpoint's own ids, without any frame.
        order: the checkpoint's id of each of ours: padding, unknown, mask, other special ones, ids without a token,
            then all ordinary ones in their own order.
        vocabulary: ours.
        frame: ours of the tokens before and after a text; None if the checkpoint has not both.
        json: text of its tokenizer.json; None if it has none.
    """

    encode: Callable[[Sequence[str]], list[list[int]]]
    order: tuple[int, ...]
    vocabulary: Vocabulary
    frame: tuple[int, int] | None
    json: str | None


def read_tokenizer(folder: Path, shape: Shape) -> CheckpointTokenizer:
    """Read tokenizer.json, or let transformers read what older checkpoints have instead (vocab.txt).

    Args:
        folder: of the checkpoint.
        shape: of its model.

    Raises:
        UserError: there is no tokenizer, it is damaged or needs a package that is not installed, it has no token for
            masks, or more ids than the model.
    """
    encode, ids, special, text = _fast(folder) if (folder / "tokenizer.json").is_file() else _slow(folder)
    names = _special_names(folder)
    if names["mask"] not in ids:
        raise UserError(
            f"the tokenizer of {folder} has no {names['mask']}; only a masked language model can be imported, check "
            "mask_token in its tokenizer_config.json"
        )
    beyond = max(ids.values()) - shape.vocabulary_size + 1
    if beyond > 0:
        raise UserError(
            f"the tokenizer of {folder} has ids up to {max(ids.values())}, but the model only {shape.vocabulary_size}; "
            "they do not belong together"
        )
    # A vocabulary of bytes knows everything and may have no token for what it does not know.
    mask = ids[names["mask"]]
    leading = [ids.get(names["pad"], mask), ids.get(names["unk"], mask), mask]
    others = sorted({ids[token] for token in (*names.values(), *special) if token in ids})
    unused = sorted(set(range(shape.vocabulary_size)) - set(ids.values()))
    first = list(dict.fromkeys([*leading, *others, *unused]))
    inside = set(first)
    order = (*first, *(number for number in range(shape.vocabulary_size) if number not in inside))
    ours = {number: place for place, number in enumerate(first)}
    framed = names["cls"] in ids and names["sep"] in ids
    return CheckpointTokenizer(
        encode=encode,
        order=order,
        vocabulary=Vocabulary(
            size=shape.vocabulary_size,
            mask_id=ours[mask],
            pad_id=ours[leading[0]],
            unknown_id=ours[leading[1]],
            special_count=len(first),
        ),
        frame=(ours[ids[names["cls"]]], ours[ids[names["sep"]]]) if framed else None,
        json=text,
    )


_Read = tuple[Callable[[Sequence[str]], list[list[int]]], dict[str, int], list[str], str | None]


def _fast(folder: Path) -> _Read:
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(text)
    except OSError:
        raise
    except Exception as error:  # the library raises plain Exception for anything it cannot parse
        raise UserError(f"{path} is no tokenizer ({error}); fetch the checkpoint again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return encode, tokenizer.get_vocab(), special, text


def _slow(folder: Path) -> _Read:
    if not (folder / "vocab.txt").is_file():
        raise UserError(f"{folder} has neither tokenizer.json nor vocab.txt; give the folder of a whole checkpoint")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError(
            f"{folder} has no tokenizer.json, so transformers has to read its vocab.txt; install it (pip install "
            "transformers)"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        told = " ".join(str(error).split())
        raise UserError(f"the tokenizer of {folder} needs one more package: {told}") from None
    except Exception as error:  # whatever its reading of the files may raise
        told = next(iter(str(error).splitlines()), "unreadable")
        raise UserError(f"transformers cannot read the tokenizer of {folder} ({told})") from None

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]

    return encode, tokenizer.get_vocab(), list(tokenizer.all_special_tokens), None


def _special_names(folder: Path) -> dict[str, str]:
    names = dict(_NAMES)
    for file in _FILES:
        if not (folder / file).is_file():
            continue
        given = read_dict(folder / file)
        for key in names:
            value: Any = given.get(f"{key}_token")
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                names[key] = value
    return names
