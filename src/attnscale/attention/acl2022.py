"""The length-scaled attention of the ACL 2022 paper."""

import dataclasses
import math

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context


@register("acl2022")
@dataclasses.dataclass(frozen=True)
class Acl2022(Attention):
    """The usual scale times the natural logarithm of the number of keys.

    Expected by the article's author: too large a factor, saturated weights and vanishing gradients. At
    n = 64 it is 4.16 times the usual scale, a constant that the projections can learn to undo.
    """

    formula = "ln(n) / sqrt(d)"
    source = "Chiang and Cholak 2022, arXiv 2202.12172, section 4.3, eq. 1"

    def factor(self, context: Context) -> Tensor:
        return torch.log(context.n_B) / math.sqrt(context.head_size)
