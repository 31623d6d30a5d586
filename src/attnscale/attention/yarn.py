"""The logit factor of YaRN, without its change of frequencies."""

import dataclasses
import math

import torch
from torch import Tensor

from attnscale.attention import register
from attnscale.attention.base import Attention, Context
from attnscale.errors import UserError


@register("yarn")
@dataclasses.dataclass(frozen=True)
class Yarn(Attention):
    """The usual scale times (1 + slope ln s)^2, s = n / training length where that is above 1.

    YaRN multiplies rotated queries and keys by 1 + 0.1 ln s each, a value found by trial on language models.

    Expected: beyond the training length above attention_o, like sqrt_log_n or a little less.
    """

    slope: float = 0.1
    formula = "(1 + slope * ln(max(1, n / L)))^2 / sqrt(d)"
    source = "Peng et al. 2023, arXiv 2309.00071, section 3.4"

    def check(self, *, longest: int, training_length: int) -> None:
        if isinstance(self.slope, str | bool) or self.slope < 0:
            raise UserError(f"slope must be a number of at least 0, not {self.slope!r}")

    def factor(self, context: Context) -> Tensor:
        stretch_B = (context.n_B / context.training_length).clamp(min=1.0)
        return (1.0 + self.slope * torch.log(stretch_B)) ** 2 / math.sqrt(context.head_size)
