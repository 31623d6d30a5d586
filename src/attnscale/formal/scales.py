"""What a registered attention multiplies q·k with, for networks without rotary positions."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnscale.attention import Attention, Context, initial_values, make_variant, try_out
from attnscale.attention.trial import told
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


def make_scale(
    arm: FormalArm, train_lengths: Sequence[int], test_lengths: Sequence[int], *, heads: int, head_size: int
) -> Scale:
    """The scale of an arm, tried out at its lengths.

    Args:
        arm: its settings.
        train_lengths: lengths of training strings.
        test_lengths: lengths of the other strings that networks are tested on.
        heads: of the networks.
        head_size: of the networks.

    Raises:
        UserError: the attention fails, does more than scale, or refuses these lengths.
    """
    spec = arm.attention
    variant = make_variant(spec.name, spec.parameters, spec.module)
    overridden = [name for name in _NOT_SCALES if getattr(type(variant), name) is not getattr(Attention, name)]
    if overridden:
        raise UserError(f"{spec.name} has {overridden[0]} of its own, and here only a scale can be compared")
    lengths = sorted({*train_lengths, *test_lengths})
    keys = [length + 1 for length in lengths]
    longest_training = max(train_lengths) + 1
    try_out(variant, longest=keys[-1], training_length=longest_training, heads=heads, head_size=head_size)
    scale = Scale(variant, arm.scales == "query_input")
    try:
        for training in train_lengths:
            variant.check(longest=keys[-1], training_length=training + 1)
            learned = initial_values(variant, heads=heads, training_length=training + 1)
            if any(tuple(value.shape) != (heads,) for value in learned.values()):
                raise UserError(f"{spec.name} must learn one number per head, or here it is no scale; mend its learned")
            if learned and scale.on_query_input:
                raise UserError(
                    f"{spec.name} learns its factor, which goes on the logits; leave out scales: query_input"
                )
            for n in sorted({keys[0], training + 1, keys[-1]}):
                _check_queries(scale, learned, scale.context(n, training + 1, heads, head_size))
            factors = [scale.factor(n, training + 1, heads, head_size) for n in keys]
            if not all(abs(factor) <= torch.finfo(torch.float32).max for factor in factors):
                raise UserError(
                    f"{spec.name} has no factor that is finite in float32 at some of the lengths {lengths}; choose "
                    "other lengths or parameters"
                )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{spec.name} fails on a small example: {told(error)}") from error
    return scale


def _check_queries(scale: Scale, learned: Mapping[str, Tensor], context: Context) -> None:
    """Refuse what changes queries in another way than by `Scale.gains`, which is all that a stack of networks asks for.

    Raises:
        UserError: it does.
    """
    name, heads = scale.variant.name, context.heads
    # Places far enough apart for a factor of each place to show, and two networks that have learned different numbers.
    positions_N = torch.tensor([0.0, context.training_length, float(context.n_B)], dtype=torch.float64)
    apart_SH = 0.01 * torch.arange(1, 2 * heads + 1, dtype=torch.float64).view(2, heads)
    learned_SH = {key: value.double() + apart_SH for key, value in learned.items()}
    gains_SH = scale.gains(learned_SH, torch.float64) if learned else torch.ones(2, heads, dtype=torch.float64)
    size = context.head_size
    q_BHND = 0.1 * torch.arange(1, 3 * heads * size + 1, dtype=torch.float64).view(1, heads, 3, size)
    for network in range(2):
        own = {key: value_SH[network] for key, value_SH in learned_SH.items()}
        at = dataclasses.replace(context, learned=own, positions_N=positions_N)
        ones_BHND = scale.variant.queries(torch.ones_like(q_BHND), at)
        if not torch.equal(ones_BHND, ones_BHND[:, :, :1, :1].expand_as(q_BHND)):
            raise UserError(f"{name} has a factor for every position, and here one for all is needed")
        expected_BHND = q_BHND * gains_SH[network][:, None, None]
        if not torch.allclose(scale.variant.queries(q_BHND, at), expected_BHND, rtol=1e-5, atol=0.0):
            raise UserError(
                f"{name} does more with queries than multiplying them by what a head has learned, and here only a "
                "scale can be compared; what depends on n or is fixed belongs into its factor"
            )
