"""The logarithm of the position instead of the number of keys."""

import dataclasses
import math

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context, check_base, resolve_base


@register("log_position")
@dataclasses.dataclass(frozen=True)
class LogPosition(Attention):
    """The usual scale times max(1, log(i) / log(base)) for the query at position i, counted from 1.

    The form in which Qwen's first models and others carry log n: made for causal attention, where a query at position
    i attends to i keys. In an encoder all queries attend to n keys, so early positions get too little.

    Expected: less than attention_e with the same base.
    """

    base: int | str = "training_length"
    formula = "max(1, log(i) / log(base)) / sqrt(d), i = position of the query"
    source = "QwenLM/Qwen, use_logn_attn"

    def check(self, *, longest: int, training_length: int) -> None:
        check_base(self.name, self.base, training_length)

    def queries(self, q_BHND: Tensor, context: Context) -> Tensor:
        logarithms_N = torch.log(context.positions_N + 1.0) / math.log(resolve_base(self.base, context))
        return q_BHND * logarithms_N.clamp(min=1.0)[:, None].to(q_BHND.dtype)
