"""Held-out text in the ids of a checkpoint's tokenizer, in the files that the protocol reads."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnscale.checkpoint.tokenizer import CheckpointTokenizer
from attnscale.corpus import read_documents
from attnscale.files import sha256_of, write_array, write_json, write_text
from attnscale.finished import ORDER
from attnscale.tokens.load import MANIFEST

DOCUMENTS_AT_ONCE = 32


def write_tokens(tokenizer: CheckpointTokenizer, corpus_dir: Path, output_dir: Path) -> None:
    """Turn the held-out documents into ids; nothing is trained, so nobody needs the others.

    Ids are renumbered, special ones first: which tokens are predicted and what replaces them is decided by
    `attnscale.tokens.masks`, which knows special ids by their place.

    Args:
        tokenizer: of the checkpoint.
        corpus_dir: holds `held_out.jsonl`.
        output_dir: gets held_out_{ids,offsets}.npy, checkpoint_ids.npy, manifest.json, and tokenizer.json if there is
            one.

    Raises:
        UserError: the corpus is missing or damaged.
    """
    vocabulary = tokenizer.vocabulary
    ours = np.empty(vocabulary.size, dtype=vocabulary.dtype)
    ours[np.asarray(tokenizer.order)] = np.arange(vocabulary.size)
    parts: list[tuple[str, npt.NDArray[Any]]] = []
    characters = 0
    documents = iter(read_documents(corpus_dir / "held_out.jsonl"))
    while group := list(itertools.islice(documents, DOCUMENTS_AT_ONCE)):
        characters += sum(len(document.text) for document in group)
        encoded = tokenizer.encode([document.text for document in group])
        parts += [(document.id, _renumbered(ours, ids)) for document, ids in zip(group, encoded, strict=True)]
    parts.sort(key=lambda part: part[0])
    offsets = np.cumsum([0, *(len(ids) for _, ids in parts)], dtype=np.int64)
    ids = np.concatenate([ours[:0], *(ids for _, ids in parts)])
    written = ["held_out_ids.npy", "held_out_offsets.npy", ORDER]
    arrays = (ids, offsets, np.asarray(tokenizer.order, dtype=np.int64))
    for name, array in zip(written, arrays, strict=True):
        write_array(output_dir / name, array)
    if tokenizer.json is not None:
        written.append("tokenizer.json")
        write_text(output_dir / "tokenizer.json", tokenizer.json)
    write_json(
        output_dir / MANIFEST,
        {
            "kind": "checkpoint",
            "vocabulary_size": vocabulary.size,
            "mask_id": vocabulary.mask_id,
            "pad_id": vocabulary.pad_id,
            "unknown_id": vocabulary.unknown_id,
            "special_count": vocabulary.special_count,
            "files": {name: sha256_of(output_dir / name) for name in written},
            "train_tokens": 0,
            "held_out_documents": len(parts),
            "held_out_characters": characters,
            "held_out_tokens": len(ids),
            "held_out_unknown_tokens": int(np.count_nonzero(ids == vocabulary.unknown_id)),
            "held_out_longest_document": int(np.diff(offsets).max(initial=0)),
        },
    )


def _renumbered(ours: npt.NDArray[Any], ids: Sequence[int]) -> npt.NDArray[Any]:
    return ours[np.asarray(ids, dtype=np.int64)]
