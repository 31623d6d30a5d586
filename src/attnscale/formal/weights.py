"""The weights of the networks by name, and how they start.

Per layer i the names are those of `torch.nn.TransformerEncoderLayer`, whose in_proj of an attention is taken apart into
`q` and `kv`; beside them are the embedding of the three symbols, the output that reads the CLS token, and what a scale
learns, `layers.i.learned.NAME`.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from attnscale.formal.scales import Scale
from attnscale.formal.tasks import SYMBOLS
from attnscale.rng import Stream

Weights = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a network."""

    width: int
    heads: int
    feed_forward: int
    layers: int

    @property
    def head_size(self) -> int:
        return self.width // self.heads


def initial_weights(shape: Shape, seed: int, scale: Scale, training_keys: int, dtype: torch.dtype) -> Weights:
    """Weights of one network, drawn as the modules of torch draw theirs; the same for all arms of a seed.

    Embedding: normal. Projection to queries, keys and values: uniform within sqrt(6 / (rows + columns)) (Glorot), its
    bias and that of the projection back 0. Other matrices, and biases of linear layers: uniform within
    1 / sqrt(columns). Norms: 1 and 0. The numbers come from the project's own streams, which are the same bits on
    every machine.
    """
    width, inner = shape.width, shape.feed_forward
    weights: Weights = {"embedding": _normal(seed, "embedding", (SYMBOLS, width))}
    for layer in range(shape.layers):
        name = f"layers.{layer}."
        ones, zeros = torch.ones(width), torch.zeros(width)
        attention = f"{name}self_attn."
        inward = _uniform(seed, f"{attention}in_proj_weight", (3 * width, width), math.sqrt(6 / (4 * width)))
        weights |= {
            f"{attention}q.weight": inward[:width].clone(),
            f"{attention}q.bias": torch.zeros(width),
            f"{attention}kv.weight": inward[width:].clone(),
            f"{attention}kv.bias": torch.zeros(2 * width),
            f"{attention}out_proj.weight": _linear(seed, f"{attention}out_proj.weight", (width, width), width),
            f"{attention}out_proj.bias": zeros.clone(),
            f"{name}linear1.weight": _linear(seed, f"{name}linear1.weight", (inner, width), width),
            f"{name}linear1.bias": _linear(seed, f"{name}linear1.bias", (inner,), width),
            f"{name}linear2.weight": _linear(seed, f"{name}linear2.weight", (width, inner), inner),
            f"{name}linear2.bias": _linear(seed, f"{name}linear2.bias", (width,), inner),
            f"{name}norm1.weight": ones.clone(),
            f"{name}norm1.bias": zeros.clone(),
            f"{name}norm2.weight": ones.clone(),
            f"{name}norm2.bias": zeros.clone(),
        }
        for learned, value in scale.learned(training_keys, shape.heads).items():
            weights[f"{name}learned.{learned}"] = value.clone()
    weights["output.weight"] = _linear(seed, "output.weight", (width,), width)
    weights["output.bias"] = _linear(seed, "output.bias", (1,), width)
    return {name: value.to(dtype) for name, value in weights.items()}


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Weights, or gradients, of many networks in one flat tensor, so that one operation serves all of them."""

    flat: Tensor
    by_name: Weights
    """Parts of `flat`, the network first."""

    def zeros(self) -> "Stacked":
        """The same, filled with zeros."""
        return _parts_of(torch.zeros_like(self.flat), {name: value.shape for name, value in self.by_name.items()})


def stacked(networks: list[Weights]) -> Stacked:
    """Weights of many networks, the values of one name side by side."""
    shapes = {name: torch.Size([len(networks), *value.shape]) for name, value in networks[0].items()}
    size = sum(_padded(shape) for shape in shapes.values())
    stack = _parts_of(torch.zeros(size, dtype=networks[0]["embedding"].dtype), shapes)
    for name, part in stack.by_name.items():
        part.copy_(torch.stack([weights[name] for weights in networks]))
    return stack


def _parts_of(flat: Tensor, shapes: Mapping[str, torch.Size]) -> Stacked:
    sizes = [_padded(shape) for shape in shapes.values()]
    parts = zip(shapes.items(), torch.split(flat, sizes), strict=True)
    return Stacked(flat, {name: part[: shape.numel()].view(shape) for (name, shape), part in parts})


def _padded(shape: torch.Size) -> int:
    """Whole vectors of a processor only: what is left over is rounded by another instruction in some kernels."""
    return -(-shape.numel() // 64) * 64


def one_of(stack: Mapping[str, Tensor], place: int) -> Weights:
    """Weights of one network of a stack, copied."""
    return {name: value[place].clone() for name, value in stack.items()}


def _linear(seed: int, name: str, shape: tuple[int, ...], inputs: int) -> Tensor:
    return _uniform(seed, name, shape, 1 / math.sqrt(inputs))


def _uniform(seed: int, name: str, shape: tuple[int, ...], bound: float) -> Tensor:
    numbers = Stream("formal initial weights", seed, name).uniforms(math.prod(shape))
    return torch.from_numpy(((2 * numbers - 1) * bound).astype(np.float32)).view(shape)


def _normal(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(Stream("formal initial weights", seed, name).normals(math.prod(shape))).view(shape)
