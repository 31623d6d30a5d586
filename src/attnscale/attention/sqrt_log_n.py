"""The square root of Attention-E's factor."""

import dataclasses
import math

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context, check_base, resolve_base


@register("sqrt_log_n")
@dataclasses.dataclass(frozen=True)
class SqrtLogN(Attention):
    """The scale grows with the square root of the logarithm of the number of keys and equals 1/sqrt(d) at n = base.

    What a Gaussian model of the logits asks for where they vary much (the largest of n draws grows with
    sqrt(2 log n)), and what was proposed for diffusion models at sizes not trained on.

    Expected: between attention_o and attention_e at lengths above the base.
    """

    base: int | str = "training_length"
    formula = "sqrt(log(n) / log(base)) / sqrt(d)"
    source = "Jin et al. 2023, arXiv 2306.08645; kexue.fm/archives/9812"

    def check(self, *, longest: int, training_length: int) -> None:
        check_base(self.name, self.base, training_length)

    def factor(self, context: Context) -> Tensor:
        logarithms_B = torch.log(context.n_B) / math.log(resolve_base(self.base, context))
        return torch.sqrt(logarithms_B) / math.sqrt(context.head_size)
