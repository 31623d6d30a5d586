"""What of an attention can be multiplied into the weights that make the queries.

Tensor names end in their shape: B numbers of keys, G layers, H heads, N positions, D size of a head.
"""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from attnscale.attention import Attention, Context
from attnscale.errors import UserError
from attnscale.model import Encoder

# Whoever overrides one of these changes more than a factor on the queries.
_BEYOND_A_FACTOR = ("angles", "bias", "mask", "mix", "logits")
_WORDS = {
    "angles": "positions", "bias": "a bias on its logits", "mask": "a mask", "mix": "a mixing", "logits": "logits",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Scales:
    """Factors on q·k relative to 1 / sqrt(d), the part that every model has.

    Attributes:
        common_B: factor that all layers and heads share, for every n that was asked for, float64.
        heads_GH: factor of every head on top of it, at the largest of these n, float64.
        heads_vary: whether that of any head is another one at the smallest of these n.
    """

    common_B: Tensor
    heads_GH: Tensor
    heads_vary: bool


@torch.no_grad()
def scales(model: Encoder, numbers: list[int], *, longest: int) -> Scales:
    """The factors that an encoder multiplies its queries with, for rows of some numbers of keys.

    Args:
        model: the encoder of an arm, with its weights.
        numbers: n, real keys of a row, 1 or more each.
        longest: positions up to this one are looked at, to see that none has a factor of its own.

    Raises:
        UserError: the attention or its positions are more than a factor per head.
    """
    variant, size = model.variant, model.config.width // model.config.heads
    for method in _BEYOND_A_FACTOR:
        if getattr(type(variant), method) is not getattr(Attention, method):
            raise UserError(f"{variant.name} has {_WORDS[method]} of its own, which no weights of queries can hold")
    if type(model.positions).__name__ != "Positions":
        raise UserError(f"positions: {model.positions.name} change distances, which no weights of queries can hold")
    n_B = torch.tensor(numbers, dtype=torch.float64).clamp(*model.n_limits)
    context = Context(
        n_B=n_B,
        key_mask_BM=None,
        positions_N=torch.arange(longest, dtype=torch.float64),
        training_length=model.training_length,
        heads=model.config.heads,
        head_size=size,
        rope_theta=model.config.rope_theta,
    )
    common_B = variant.factor(context).expand(len(numbers)) * math.sqrt(size)
    layers = [dict(block.attention.learned.items()) for block in model.blocks]  # type: ignore[union-attr, operator]
    ends = [dataclasses.replace(context, n_B=end[None]) for end in (n_B.min(), n_B.max())]
    low_GH, high_GH = (torch.stack([_factor_of_heads(variant, end, learned) for learned in layers]) for end in ends)
    return Scales(common_B, high_GH, not torch.allclose(low_GH, high_GH, rtol=1e-6, atol=0.0))


def _factor_of_heads(variant: Attention, context: Context, learned: Mapping[str, Tensor]) -> Tensor:
    """What `queries` multiplies each head with, (H,) float64."""
    if type(variant).queries is Attention.queries:
        return torch.ones(context.heads, dtype=torch.float64)
    shape = (1, context.heads, len(context.positions_N), context.head_size)
    q_1HND = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ratio_1HND = variant.queries(q_1HND, dataclasses.replace(context, learned=learned)).double() / q_1HND
    first_1H11 = ratio_1HND[:, :, :1, :1]
    if not torch.allclose(ratio_1HND, first_1H11.expand_as(ratio_1HND), rtol=1e-6, atol=0.0):
        raise UserError(
            f"{variant.name} changes queries by more than a factor per head, such as one per position, which no "
            "weights of queries can hold"
        )
    return first_1H11.flatten()


def fold(state: Mapping[str, Tensor], factor_GH: Tensor) -> dict[str, Tensor]:
    """A state dict of an encoder with factors multiplied into the rows of its queries, and without learned factors.

    Args:
        state: weights by name, in the layout of `attnscale.model`.
        factor_GH: relative to 1 / sqrt(d).
    """
    folded = {name: tensor for name, tensor in state.items() if ".learned." not in name}
    for layer, factor_H in enumerate(factor_GH):
        for kind in ("weight", "bias"):
            name = f"blocks.{layer}.attention.qkv.{kind}"
            if name in folded:
                q, kv = folded[name].tensor_split([len(folded[name]) // 3])
                # The rows of a head lie side by side.
                by_head = q.double().view(len(factor_H), -1) * factor_H[:, None]
                folded[name] = torch.cat([by_head.view_as(q).to(q.dtype), kv])
    return folded
