"""Scalable softmax: a log n factor whose slope every head learns."""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context


@register("ssmax")
@dataclasses.dataclass(frozen=True)
class SSMax(Attention):
    """The usual scale times s log(n), s learned by each head of each layer.

    Every s starts from 1 / log(training length), where the attention equals attention_o at that length.

    Expected: like attention_e with base training_length, with heads that need more or less than it.
    """

    formula = "s * log(n) / sqrt(d), s learned per head"
    source = "Nakanishi 2025, arXiv 2501.19399"

    def learned(self, *, heads: int, training_length: int) -> Mapping[str, Tensor]:
        return {"slope": torch.full((heads,), 1.0 / math.log(training_length))}

    def factor(self, context: Context) -> Tensor:
        return torch.log(context.n_B) / math.sqrt(context.head_size)

    def queries(self, q_BHND: Tensor, context: Context) -> Tensor:
        return q_BHND * context.learned["slope"][:, None, None].to(q_BHND.dtype)
