"""Weights of a RoFormer in Hugging Face's layout, read and brought into ours."""

import re
import warnings
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


def read_weights(folder: Path, shape: Shape) -> dict[str, Tensor]:
    """Weights under their names in transformers, those that are needed in fp32.

    Args:
        folder: of the checkpoint.
        shape: of its model.

    Raises:
        UserError: there is no file, it is damaged, lacks a tensor, or is not what config.json describes.
    """
    path = weights_path(folder)
    # BERT's first checkpoints called the weights of a norm gamma and beta, and these names are still around.
    state = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in _read(path).items()
    }
    state.setdefault(f"{_HEAD}.bias", state.get(f"{_HEAD}.decoder.bias", torch.zeros(0)))
    needed = {name: _checked(path, state, name, wanted) for name, wanted in _shapes(shape).items()}
    _check_the_rest(path, state, shape)
    return needed


def our_weights(state: dict[str, Tensor], shape: Shape, order: Sequence[int]) -> dict[str, Tensor]:
    """Weights for `attnscale.checkpoint.encoder.RoFormerEncoder`.

    Args:
        state: what `read_weights` gives.
        shape: of the model.
        order: the checkpoint's id of each of ours.
    """
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
    with path.open("rb"):  # what the file system refuses is no damage
        pass
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        with warnings.catch_warnings(action="ignore"):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # reading what is no pickle may raise anything
        raise UserError(f"{path} is damaged or holds more than weights; fetch the checkpoint again") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} holds no map of tensors by name; fetch the checkpoint again")
    return found


def _checked(path: Path, state: dict[str, Tensor], name: str, wanted: tuple[int, ...]) -> Tensor:
    """A tensor that is needed, in fp32."""
    if name not in state or not state[name].numel():
        raise UserError(
            f"{path} has no tensor {name}; it must be a RoFormerForMaskedLM with as many layers as config.json says"
        )
    # Only the first row, the embedding of segment 0, is read; there may be any number.
    size = tuple(state[name].shape)
    if (size[1:], len(wanted)) != (wanted[1:], len(size)) or (size[0] != wanted[0] and "token_type" not in name):
        raise UserError(f"{path}: {name} has the shape {size}, but config.json asks for {wanted}")
    if not state[name].is_floating_point():
        kind = str(state[name].dtype).removeprefix("torch.")
        raise UserError(f"{path}: {name} holds numbers of type {kind}; give weights in floating point")
    tensor = state[name].float()
    if not tensor.isfinite().all():
        raise UserError(f"{path}: {name} holds numbers that are not finite; fetch the checkpoint again")
    return tensor


def _check_the_rest(path: Path, state: dict[str, Tensor], shape: Shape) -> None:
    """Tensors that are not read and still say what the model is."""
    for name in state:
        layer = re.match(r"roformer\.encoder\.layer\.(\d+)\.", name)
        if layer and int(layer[1]) >= shape.layers:
            raise UserError(f"{path} has {name}, but config.json says {shape.layers} layers; give files that fit")
    table = state.get("roformer.encoder.embed_positions.weight")
    if table is not None and (table.dim() != 2 or table.shape[1] != shape.width // shape.heads):
        raise UserError(
            f"{path}: its table of positions has the shape {tuple(table.shape)}, but heads of config.json have "
            f"{shape.width // shape.heads} numbers each ({shape.heads} heads); give files that fit"
        )
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
