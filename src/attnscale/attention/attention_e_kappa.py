"""Attention-E with its free constant kappa."""

import dataclasses

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context
from attnscale.errors import UserError


@register("attention_e_kappa")
@dataclasses.dataclass(frozen=True)
class AttentionEKappa(Attention):
    """The derived form of Attention-E before its constant is fixed by agreement at n = 512.

    Expected: like attention_e once training has absorbed the constant into the projections.
    """

    kappa: float = 1.0
    formula = "kappa * log(n) / d"
    source = "kexue.fm/archives/8823, eq. 4"

    def check(self, *, longest: int, training_length: int) -> None:
        if isinstance(self.kappa, str | bool) or self.kappa <= 0:
            raise UserError(f"kappa must be a number above 0, not {self.kappa!r}")

    def factor(self, context: Context) -> Tensor:
        return self.kappa * torch.log(context.n_B) / context.head_size
