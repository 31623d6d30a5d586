"""Held-out documents cut into evaluation blocks, with masks that are drawn once and stored.

Shapes: K evaluation blocks, N tokens of a block, S tokens to predict in one block.
"""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnscale.config import EvaluationSetSettings
from attnscale.errors import UserError
from attnscale.files import sha256_of, write_array, write_json
from attnscale.rng import Stream
from attnscale.tokens.load import EVALUATION_MANIFEST, load_held_out_tokens, load_vocabulary
from attnscale.tokens.masks import mask_tokens


def build_evaluation_set(settings: EvaluationSetSettings, tokens_dir: Path, output_dir: Path) -> None:
    """Cut held-out documents into blocks of the largest length and draw one mask for each.

    Blocks lie inside single documents, side by side from the document's start. They are taken in rounds,
    the first block of every document, then the second: a small set still covers many documents, and a
    smaller `max_blocks` gives the beginning of the same set. A block's mask depends on its content only.

    Args:
        settings: lengths, mask rate and the largest number of blocks.
        tokens_dir: output of `build_tokens`.
        output_dir: gets evaluation_{ids,inputs,masked}.npy and evaluation.json.

    Raises:
        UserError: the tokens are missing or damaged, or no held-out document holds one block.
    """
    longest = max(settings.lengths)
    vocabulary = load_vocabulary(tokens_dir)
    held_out = load_held_out_tokens(tokens_dir)
    longest_document = int(held_out.lengths.max(initial=0))
    if longest_document < longest:
        raise UserError(
            f"no held-out document has {longest} tokens, the longest has {longest_document}; "
            "lower evaluation.lengths or give longer documents"
        )
    blocks_of_document = held_out.lengths // longest
    places = sorted((turn, number) for number, blocks in enumerate(blocks_of_document) for turn in range(blocks))
    chosen = places[: settings.max_blocks]

    ids_KN = np.stack([held_out.ids[held_out.offsets[number] + turn * longest :][:longest] for turn, number in chosen])
    inputs_KN = np.empty_like(ids_KN)
    masked_KN = np.zeros(ids_KN.shape, dtype=np.bool_)
    count = max(1, round(settings.mask_rate * longest))
    for block in range(len(chosen)):
        ids_N = ids_KN[block].astype(np.int64)
        inputs_KN[block], selected_S = mask_tokens(ids_N, count, Stream("evaluation masks", _digest(ids_N)), vocabulary)
        masked_KN[block, selected_S] = True

    arrays = {"evaluation_ids.npy": ids_KN, "evaluation_inputs.npy": inputs_KN, "evaluation_masked.npy": masked_KN}
    for name, array in arrays.items():
        write_array(output_dir / name, array)
    write_json(
        output_dir / EVALUATION_MANIFEST,
        {
            "blocks": len(chosen),
            "blocks_available": len(places),
            "documents": len({number for _, number in chosen}),
            "targets": int(masked_KN.sum()),
            "mask_rate": settings.mask_rate,
            "lengths": list(settings.lengths),
            "files": {name: sha256_of(output_dir / name) for name in arrays},
        },
    )


def _digest(ids_N: npt.NDArray[np.int64]) -> str:
    """Hash of a block's content, the same whatever type the ids are stored with."""
    return hashlib.sha256(ids_N.astype("<i8").tobytes()).hexdigest()
