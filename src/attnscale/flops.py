"""FLOPs of the encoder: what the time of a training or evaluation is scaled by, and measured against."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscale.config import ModelConfig


def weight_products(
    model: ModelConfig, *, tokens: int, masked: int, vocabulary_size: int
) -> list[tuple[int, int, int]]:
    """Products with weights of one forward pass, (rows, in, out); only masked tokens pass the last block's end."""
    w, f = model.width, model.feed_forward
    shapes = []
    for rows in [tokens] * (model.layers - 1) + [masked]:
        shapes += [(tokens, w, 3 * w), (rows, w, w), (rows, w, f), (rows, f, w)]
    return [*shapes, (masked, w, vocabulary_size)]


def forward_flops(model: ModelConfig, *, tokens: int, masked: int, length: int, vocabulary_size: int) -> int:
    """FLOPs of one forward pass: a multiplication and an addition per element of every product.

    Args:
        model: shape of the encoder.
        tokens: tokens in all windows together.
        masked: how many of them are predicted.
        length: tokens per window; every query is multiplied with that many keys, and their weights with values.
        vocabulary_size: V.
    """
    shapes = weight_products(model, tokens=tokens, masked=masked, vocabulary_size=vocabulary_size)
    return 2 * sum(math.prod(shape) for shape in shapes) + 4 * tokens * length * model.width * model.layers
