"""Attention-E: the entropy-invariant scale with the constant fixed at one length."""

import dataclasses
import math

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context, check_base, resolve_base


@register("attention_e")
@dataclasses.dataclass(frozen=True)
class AttentionE(Attention):
    """The scale grows with the logarithm of the number of keys and equals 1/sqrt(d) at n = base.

    With base 512 this is the article's Attention-E. With base `training_length` it is attention_o during
    training and differs only at other lengths, which makes it a switch for finished weights.

    Expected: entropy of the weights changes less with length, so accuracy falls later.
    """

    base: int | str = 512
    formula = "log(n) / log(base) / sqrt(d)"
    source = "kexue.fm/archives/8823, eq. 5"

    def check(self, *, longest: int, training_length: int) -> None:
        check_base(self.name, self.base, training_length)

    def factor(self, context: Context) -> Tensor:
        return torch.log(context.n_B) / math.log(resolve_base(self.base, context)) / math.sqrt(context.head_size)
