"""What a registered attention multiplies q·k with, for networks without rotary positions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnscale.attention import Attention, Context, make_variant
from attnscale.config import FormalArm
from attnscale.errors import UserError

# What a scale may override; any other difference needs tokens in their order.
_NOT_SCALES = ("angles", "bias", "mask", "logits", "mix")


@dataclasses.dataclass(frozen=True)
class Scale:
    """A registered attention, and where its factor goes.

    n is the number of keys, that is of tokens with CLS among them, and L the same for a training string.
    """

    variant: Attention
    on_query_input: bool = False
    """Whether the factor is multiplied into what queries are projected from, so that their bias stays unscaled."""

    def context(self, keys: int, training_keys: int, heads: int, head_size: int) -> Context:
        """What the attention may know about strings of one length."""
        return Context(
            n_B=torch.tensor([keys], dtype=torch.float64),
            key_mask_BM=None,
            positions_N=torch.arange(1, dtype=torch.float64),
            training_length=training_keys,
            heads=heads,
            head_size=head_size,
        )

    def factor(self, keys: int, training_keys: int, heads: int, head_size: int) -> float:
        """The factor on q·k."""
        return float(self.variant.factor(self.context(keys, training_keys, heads, head_size)).item())

    def learned(self, training_keys: int, heads: int) -> Mapping[str, Tensor]:
        """What every layer learns beside the weights of a transformer, by name, one value per head, as it starts."""
        return self.variant.learned(heads=heads, training_length=training_keys)

    def gains(self, learned_SH: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Learned factor on the queries of every head of every model, (S, H), differentiable.

        Models stand where the attention has its heads: to it a stack of S models is one model of S·H heads.
        """
        shape_SH = next(iter(learned_SH.values())).shape
        context = dataclasses.replace(
            self.context(2, 2, shape_SH.numel(), 1), learned={k: v.flatten() for k, v in learned_SH.items()}
        )
        ones_BHND = torch.ones(1, shape_SH.numel(), 1, 1, dtype=dtype)
        return self.variant.queries(ones_BHND, context).view(shape_SH)


def make_scale(arm: FormalArm, train_lengths: Sequence[int], test_lengths: Sequence[int]) -> Scale:
    """The scale of an arm.

    Args:
        arm: its settings.
        train_lengths: lengths of training strings.
        test_lengths: lengths of the other strings that networks are tested on.

    Raises:
        UserError: the attention does more than scale, or refuses these lengths.
    """
    spec = arm.attention
    variant = make_variant(spec.name, spec.parameters, spec.module)
    overridden = [name for name in _NOT_SCALES if getattr(type(variant), name) is not getattr(Attention, name)]
    if overridden:
        raise UserError(f"{spec.name} has a {overridden[0]} of its own, and here only a scale can be compared")
    scale = Scale(variant, arm.scales == "query_input")
    lengths = sorted({*train_lengths, *test_lengths})
    for training in train_lengths:
        variant.check(longest=lengths[-1] + 1, training_length=training + 1)
        learned = scale.learned(training + 1, 1)
        if any(tuple(value.shape) != (1,) for value in learned.values()):
            raise UserError(f"{spec.name} learns more than a number per head, and here only a scale can be compared")
        if learned and scale.on_query_input:
            raise UserError(f"{spec.name} learns its factor, which goes on the logits; leave out scales: query_input")
        # Places far enough apart for a factor of each place to show.
        positions_N = torch.tensor([0.0, training, lengths[-1]], dtype=torch.float64)
        context = dataclasses.replace(scale.context(3, training + 1, 1, 2), learned=learned, positions_N=positions_N)
        rows = variant.queries(torch.ones(1, 1, 3, 2), context)
        if rows.shape != (1, 1, 3, 2) or not torch.equal(rows, rows[:, :, :1, :1].expand(1, 1, 3, 2)):
            raise UserError(f"{spec.name} has a factor for every position, and here one for all is needed")
        if not all(math.isfinite(scale.factor(n + 1, training + 1, 1, 2)) for n in lengths):
            raise UserError(f"{spec.name} has no finite factor at some of the lengths {lengths}; choose others")
    return scale
