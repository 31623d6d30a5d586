"""Treatments of positions beyond the distances seen in training: what an arm may name as `positions`.

Rotary angles of distances that no training window holds are out of distribution; each class here takes care that no
attended pair has one. Each can be crossed with every scale.

Tensor names end in their shape: B rows, H heads, N queries of a row, n queries of a part of it, M keys, D size of a
head, P = D/2 rotary pairs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnscale.attention.base import Attention, Context, Positions
from attnscale.errors import UserError

__all__ = ["POSITIONS", "BandPositions", "ClippedPositions", "NtkPositions", "check_together", "make_positions"]


@dataclasses.dataclass(frozen=True)
class BandPositions(Positions):
    """A token sees only keys less than `width` tokens away, so every distance was seen in training.

    The article calls this the baseline that any extrapolation has to beat. `width` 0 stands for the training length.
    """

    width: int = 0
    name = "band"
    works_through = ("mix",)
    source = "kexue.fm/archives/9431"

    def check(self, *, training_length: int) -> None:
        _check_width(self, training_length)

    def attended(self, n_B: Tensor, training_length: int) -> Tensor:
        return n_B.clamp(max=2.0 * _width(self, training_length) - 1.0)

    def mask(self, context: Context) -> Tensor | None:
        distance_NM = context.positions_N[:, None] - context.positions_N[None, :]
        return distance_NM.abs() < _width(self, context.training_length)


@dataclasses.dataclass(frozen=True)
class ClippedPositions(Positions):
    """Distances of `width` tokens and more count as one less than `width`, so all keys are seen at trained distances.

    ReRoPE without its step: within the window the distances are true, beyond it constant, on both sides of a token.
    `width` 0 stands for the training length.
    """

    width: int = 0
    name = "clipped"
    works_through = ("mix", "angles")
    plain_products = False
    source = "ReRoPE, kexue.fm/archives/9708"

    def check(self, *, training_length: int) -> None:
        _check_width(self, training_length)

    def products(self, q_BHnD: Tensor, k_BHMD: Tensor, context: Context, first: int) -> Tensor:
        limit = _width(self, context.training_length) - 1
        count, keys = q_BHnD.shape[2], k_BHMD.shape[2]
        logits_BHnM = q_BHnD @ k_BHMD.transpose(2, 3)
        # Key position minus query position, the distance that the rotation of a pair stands for.
        distance_nM = context.positions_N[None, :keys] - context.positions_N[first : first + count, None]
        turns_NP = torch.polar(torch.ones_like(angles := self.angles(context, context.rope_theta)), angles)
        # Undo the rotation to each token's own position, then turn the queries by the distance that is to count.
        plain_k_BHMD = _turned(k_BHMD, turns_NP[:keys].conj())
        for sign, beyond_nM in ((1, distance_nM > limit), (-1, distance_nM < -limit)):
            if not beyond_nM.any():
                continue
            at_limit = dataclasses.replace(context, positions_N=context.positions_N.new_tensor([-sign * limit]))
            angles_1P = self.angles(at_limit, context.rope_theta)
            shift_1P = torch.polar(torch.ones_like(angles_1P), angles_1P)
            moved_q_BHnD = _turned(q_BHnD, turns_NP[first : first + count].conj() * shift_1P)
            logits_BHnM = torch.where(beyond_nM, moved_q_BHnD @ plain_k_BHMD.transpose(2, 3), logits_BHnM)
        return logits_BHnM


@dataclasses.dataclass(frozen=True)
class NtkPositions(Positions):
    """The base of the frequencies grows with the length, so that the slowest pair turns no further than in training.

    theta is multiplied by s^(d/(d-2)), s = n / training length where that is above 1 ("NTK-aware", dynamic).
    """

    name = "ntk"
    works_through = ("angles",)
    source = "kexue.fm/archives/9706"

    def angles(self, context: Context, theta: float) -> Tensor:
        size = context.head_size
        stretch_B = (context.n_B / context.training_length).clamp(min=1.0)
        # A head of one pair turns by the position itself, whatever the base is.
        theta_B1 = theta * stretch_B[:, None] ** (size / max(size - 2, 1))
        pairs_P = torch.arange(0, size, 2, dtype=torch.float64, device=context.positions_N.device)
        return context.positions_N[None, :, None] * (theta_B1 ** (-pairs_P / size))[:, None, :]


POSITIONS: Mapping[str, type[Positions]] = {
    variant.name: variant for variant in (BandPositions, ClippedPositions, NtkPositions)
}


def make_positions(name: str, parameters: Mapping[str, Any]) -> Positions:
    """Build a treatment of positions from its configuration.

    Raises:
        UserError: unknown name or parameter.
    """
    if name not in POSITIONS:
        raise UserError(f"unknown positions {name}; known: {', '.join(POSITIONS)}")
    fields = [field.name for field in dataclasses.fields(POSITIONS[name])]
    for key in parameters:
        if key not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise UserError(f"{name} has no parameter {key}; {known}")
    return POSITIONS[name](**parameters)


def check_together(positions: Positions, variant: Attention) -> None:
    """Refuse a treatment of positions that methods of a variant's own would not know of.

    Raises:
        UserError: the variant overrides a method that the treatment works through.
    """
    for method in positions.works_through:
        if getattr(type(variant), method) is not getattr(Attention, method):
            raise UserError(
                f"{variant.name} has {method} of its own, which {positions.name} would not reach; leave out one of them"
            )


def _width(positions: BandPositions | ClippedPositions, training_length: int) -> int:
    return positions.width or training_length


def _check_width(positions: BandPositions | ClippedPositions, training_length: int) -> None:
    width = positions.width
    if isinstance(width, bool | float | str) or not (width == 0 or 2 <= width <= training_length):
        raise UserError(
            f"width of {positions.name} must be a whole number from 2 to the training length {training_length}, or 0 "
            f"for that length, not {width!r}"
        )


def _turned(x_BHND: Tensor, turns_NP: Tensor) -> Tensor:
    """Pairs of x turned, (B, H, N, D), in the dtype of x."""
    pairs = torch.view_as_complex(x_BHND.float().reshape(*x_BHND.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns_NP.to(torch.complex64)).flatten(-2).to(x_BHND.dtype)
