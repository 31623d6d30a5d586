"""An attention of your own: a scale that grows with a power of the number of keys."""

import dataclasses
import math

from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context
from attnscale.errors import UserError


@register("power_law")
@dataclasses.dataclass(frozen=True)
class PowerLaw(Attention):
    """The usual scale times (n / L)^exponent, equal to it at the training length L.

    Expected: like attention_e for a small exponent, too sharp at long lengths for a large one.
    """

    exponent: float = 0.1
    formula = "(n / L)^exponent / sqrt(d)"
    source = "made for this example"

    def check(self, *, longest: int, training_length: int) -> None:
        if isinstance(self.exponent, str | bool) or not 0 <= self.exponent <= 1:
            raise UserError(f"exponent must be a number from 0 to 1, not {self.exponent!r}")

    def factor(self, context: Context) -> Tensor:
        return (context.n_B / context.training_length) ** self.exponent / math.sqrt(context.head_size)
