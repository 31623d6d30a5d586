"""InfoScale: entropy invariance without the linear approximation."""

import dataclasses
import math

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context, check_base, resolve_base


@register("infoscale")
@dataclasses.dataclass(frozen=True)
class InfoScale(Attention):
    """The cosine at which keys on a sphere carry log n of information, relative to the same at n = base.

    Made as a factor for finished weights. For large d it is nearly sqrt(log(n) / log(base)).

    Expected: close to sqrt_log_n.
    """

    base: int | str = "training_length"
    formula = "sqrt((1 - n^(-2/d)) / (1 - base^(-2/d))) / sqrt(d)"
    source = "arXiv 2501.08570"

    def check(self, *, longest: int, training_length: int) -> None:
        check_base(self.name, self.base, training_length)

    def factor(self, context: Context) -> Tensor:
        exponent = -2.0 / context.head_size
        share_B = (1.0 - context.n_B**exponent) / (1.0 - resolve_base(self.base, context) ** exponent)
        return torch.sqrt(share_B) / math.sqrt(context.head_size)
