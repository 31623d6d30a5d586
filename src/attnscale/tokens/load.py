"""Reading back what the tokens stage wrote; every file is checked against the sha256 in its manifest.

Shapes: K evaluation blocks, N tokens of a block (the largest evaluation length).
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnscale.errors import UserError
from attnscale.files import read_array, read_json, sha256_of
from attnscale.tokens.vocabulary import Vocabulary

MANIFEST = "manifest.json"
EVALUATION_MANIFEST = "evaluation.json"


class DocumentTokens(NamedTuple):
    """The ids of documents, one after another, in the order of the document ids.

    Attributes:
        ids: uint16 or uint32.
        offsets: int64, documents+1 numbers: where each document starts, and the end of the last one.
    """

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document."""
        return np.asarray(np.diff(self.offsets), dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Held-out blocks with their stored masks; every length and every arm predicts the same targets.

    Attributes:
        ids_KN: original ids, uint16 or uint32.
        inputs_KN: ids after masking, of the same type.
        masked_KN: True where the original id is to be predicted.
        lengths: context lengths in tokens; each divides N.
        mask_rate: share of tokens to predict.
    """

    ids_KN: npt.NDArray[Any]
    inputs_KN: npt.NDArray[Any]
    masked_KN: npt.NDArray[np.bool_]
    lengths: tuple[int, ...]
    mask_rate: float


def load_vocabulary(tokens_dir: Path) -> Vocabulary:
    """Read which ids there are.

    Raises:
        UserError: the manifest is missing or damaged.
    """
    path = tokens_dir / MANIFEST
    manifest = read_json(path)
    try:
        return Vocabulary(
            size=int(manifest["vocabulary_size"]),
            mask_id=int(manifest["mask_id"]),
            pad_id=int(manifest["pad_id"]),
            unknown_id=int(manifest["unknown_id"]),
            special_count=int(manifest["special_count"]),
        )
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, "it does not describe a vocabulary") from None


def load_training_tokens(tokens_dir: Path) -> DocumentTokens:
    """Read the training documents' ids (see `load_vocabulary` for what they mean).

    Raises:
        UserError: a file is missing, damaged, or not the one that the manifest names.
    """
    return _load_documents(tokens_dir, "train")


def load_held_out_tokens(tokens_dir: Path) -> DocumentTokens:
    """Read the held-out documents' ids; errors as for `load_training_tokens`."""
    return _load_documents(tokens_dir, "held_out")


def load_evaluation_set(folder: Path) -> EvaluationSet:
    """Read the evaluation blocks and their masks.

    Raises:
        UserError: a file is missing, damaged, or not the one that `evaluation.json` names.
    """
    path = folder / EVALUATION_MANIFEST
    manifest = read_json(path)
    ids_KN, inputs_KN, masked_KN = (
        _load_checked(folder, f"evaluation_{name}.npy", manifest, path) for name in ("ids", "inputs", "masked")
    )
    try:
        lengths = tuple(int(length) for length in manifest["lengths"])
        mask_rate = float(manifest["mask_rate"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, "it does not tell lengths and mask rate") from None
    if (
        not lengths
        or ids_KN.shape != (len(ids_KN), lengths[-1])
        or not ids_KN.shape == inputs_KN.shape == masked_KN.shape
    ):
        raise _damaged(path, "the arrays beside it do not have the shapes it tells")
    return EvaluationSet(ids_KN, inputs_KN, masked_KN, lengths, mask_rate)


def check_long_enough(lengths: npt.NDArray[np.int64], training_length: int) -> None:
    """Refuse training text without a single whole window.

    Raises:
        UserError: the longest of the documents is shorter than `training_length`.
    """
    longest = int(lengths.max(initial=0))
    if longest < training_length:
        raise UserError(
            f"no training document has training.length = {training_length} tokens, the longest has {longest}; "
            "lower training.length or give longer documents"
        )


def _load_documents(tokens_dir: Path, side: str) -> DocumentTokens:
    path = tokens_dir / MANIFEST
    manifest = read_json(path)
    ids = _load_checked(tokens_dir, f"{side}_ids.npy", manifest, path)
    offsets = _load_checked(tokens_dir, f"{side}_offsets.npy", manifest, path)
    if offsets.ndim != 1 or len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids):
        raise _damaged(tokens_dir / f"{side}_offsets.npy", f"it does not fit {side}_ids.npy")
    return DocumentTokens(ids, offsets)


def _load_checked(folder: Path, name: str, manifest: Any, manifest_path: Path) -> npt.NDArray[Any]:
    path = folder / name
    array = read_array(path)
    try:
        expected = manifest["files"][name]
    except (KeyError, TypeError):
        raise _damaged(manifest_path, f"it does not name {name}") from None
    if sha256_of(path) != expected:
        raise _damaged(path, f"its sha256 is not the one in {manifest_path.name}")
    return array


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} is damaged: {why}; delete it and run the pipeline again")
