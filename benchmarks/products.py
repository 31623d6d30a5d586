"""The matrix products of a training step, as numbers and as work. Imports nothing that a bare machine lacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from attnscale import counts
from attnscale.flops import weight_products

if TYPE_CHECKING:
    from attnscale.config import ModelConfig, TrainingConfig


def products(model: ModelConfig, training: TrainingConfig, vocabulary_size: int) -> list[tuple[int, int, int]]:
    """Products with weights of one forward pass, (rows, in, out); only masked tokens pass the last block's end."""
    tokens, masked = counts.tokens_per_step(training), counts.masked_per_step(training)
    return weight_products(model, tokens=tokens, masked=masked, vocabulary_size=vocabulary_size)


def product_flops(shapes: list[tuple[int, int, int]]) -> int:
    """FLOPs of a step's weight products: multiply and add, once forward and twice backward."""
    return 6 * sum(math.prod(shape) for shape in shapes)


def attention_flops(model: ModelConfig, training: TrainingConfig) -> int:
    """FLOPs of the two products of attention in every block, forward and backward."""
    return 12 * counts.tokens_per_step(training) * training.length * model.width * model.layers


def matrix_products(shapes: list[tuple[int, int, int]], device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """A step's weight products alone: forward in order, then back as autograd computes them."""
    tensors = [
        [torch.randn(s[i], s[j], dtype=dtype, device=device) for i, j in ((0, 1), (2, 1), (0, 2))] for s in shapes
    ]
    while True:
        for inputs, weight, _ in tensors:
            torch.nn.functional.linear(inputs, weight)
        for inputs, weight, gradient in reversed(tensors):
            torch.mm(gradient, weight)
            torch.mm(gradient.t(), inputs)
        yield
