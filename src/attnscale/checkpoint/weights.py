"""Weights of a RoFormer in Hugging Face's layout, read and brought into ours."""

import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from attnscale.checkpoint.shape import Shape
from attnscale.errors import UserError
from attnscale.huggingface import from_roformer

FILES = ("model.safetensors", "pytorch_model.bin")
_EMBEDDINGS, _HEAD = "roformer.embeddings", "cls.predictions"


def weights_path(folder: Path) -> Path:
    """The file of weights in a folder; safetensors if there are both kinds.

    Raises:
        UserError: there is none.
    """
    found = [folder / name for name in FILES if (folder / name).is_file()]
    if not found:
        raise UserError(f"{folder} has neither {FILES[0]} nor {FILES[1]}; give the folder of a whole checkpoint")
    return found[0]


def read_weights(folder: Path, shape: Shape, order: Sequence[int]) -> dict[str, Tensor]:
    """Weights for `attnscale.checkpoint.encoder.RoFormerEncoder`, in fp32.

    Args:
        folder: of the checkpoint.
        shape: of its model.
        order: the checkpoint's id of each of ours.

    Raises:
        UserError: there is no file, it is damaged, lacks a tensor, or one has another shape than config.json says.
    """
    path = weights_path(folder)
    # BERT's first checkpoints called the weights of a norm gamma and beta, and these names are still around.
    state = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor.float()
        for name, tensor in _read(path).items()
    }
    state.setdefault(f"{_HEAD}.bias", state.get(f"{_HEAD}.decoder.bias", torch.zeros(0)))
    _check(path, state, shape)
    ours = from_roformer(state, shape.layers)
    if shape.embedding != shape.width:
        for kind in ("weight", "bias"):
            ours[f"embedding_norm.0.{kind}"] = ours.pop(f"embedding_norm.{kind}")
            ours[f"embedding_norm.1.{kind}"] = state[f"roformer.embeddings_project.{kind}"]
    rows = torch.tensor(order)
    for name in ("embedding.weight", "decoder_bias"):
        ours[name] = ours[name][rows]
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (
        safetensors.SafetensorError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        EOFError,
    ):
        raise UserError(f"{path} is damaged or holds more than weights; fetch the checkpoint again") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} holds no map of tensors by name; fetch the checkpoint again")
    return found


def _check(path: Path, state: dict[str, Tensor], shape: Shape) -> None:
    for name, wanted in _shapes(shape).items():
        if name not in state or not state[name].numel():
            raise UserError(
                f"{path} has no tensor {name}; it must be a RoFormerForMaskedLM with as many layers as config.json says"
            )
        # Only the first row, the embedding of segment 0, is read; there may be any number.
        size = tuple(state[name].shape)
        if (size[1:], len(wanted)) != (wanted[1:], len(size)) or (size[0] != wanted[0] and "token_type" not in name):
            raise UserError(f"{path}: {name} has the shape {size}, but config.json asks for {wanted}")
        if not state[name].isfinite().all():
            raise UserError(f"{path}: {name} holds numbers that are not finite; fetch the checkpoint again")
    decoder = state.get(f"{_HEAD}.decoder.weight")
    if decoder is not None and not torch.equal(decoder, state[f"{_EMBEDDINGS}.word_embeddings.weight"]):
        raise UserError(f"{path} has a decoder that is not its embedding; only tied ones can be imported")


def _shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor that is needed, by name."""
    e, w, f, v = shape.embedding, shape.width, shape.feed_forward, shape.vocabulary_size
    found: dict[str, tuple[int, ...]] = {
        f"{_EMBEDDINGS}.word_embeddings.weight": (v, e),
        f"{_EMBEDDINGS}.token_type_embeddings.weight": (1, e),
        f"{_HEAD}.bias": (v,),
        **_linear(f"{_HEAD}.transform.dense", w, e),
        **_norm(f"{_EMBEDDINGS}.LayerNorm", e),
        **_norm(f"{_HEAD}.transform.LayerNorm", e),
    }
    if e != w:
        found |= _linear("roformer.embeddings_project", e, w)
    for number in range(shape.layers):
        layer = f"roformer.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            found |= _linear(f"{layer}.attention.self.{part}", w, w)
        found |= _linear(f"{layer}.attention.output.dense", w, w) | _norm(f"{layer}.attention.output.LayerNorm", w)
        found |= _linear(f"{layer}.intermediate.dense", w, f) | _linear(f"{layer}.output.dense", f, w)
        found |= _norm(f"{layer}.output.LayerNorm", w)
    return found


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}
