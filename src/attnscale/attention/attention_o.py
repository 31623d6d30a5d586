"""Attention-O: the usual scale."""

import dataclasses

from attnscale.attention import register
from attnscale.attention.base import Attention


@register("attention_o")
@dataclasses.dataclass(frozen=True)
class AttentionO(Attention):
    """Scaled dot-product attention, the baseline: the scale does not know the length.

    Expected: as more keys join, weights spread over them, entropy grows and accuracy falls beyond the
    training length.
    """

    formula = "1 / sqrt(d)"
    source = "Vaswani et al. 2017, arXiv 1706.03762, eq. 1; kexue.fm/archives/8823, eq. 1"
