"""What a variant may change, and the attention that all variants share.

Tensor names end in their shape:
    B rows of the batch, N tokens of a row (queries), M tokens of a row (keys; M = N here),
    H heads, D size of a head, P = D/2 rotary pairs.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.errors import UserError

# Up to this length explicit batched products are faster than the fused kernel on CPUs (about twice as
# fast at 64); beyond it the N x N weights outgrow the cache and the fused kernel wins on both.
LONGEST_EXPLICIT = 128


@dataclasses.dataclass(frozen=True)
class Context:
    """What an attention may know about the rows it works on.

    n is counted by the core from the key mask, never from a shape, so padding cannot change a scale.
    """

    n_B: Tensor
    """(B,) or (1,) float64: number of real (unpadded) keys of a row; one value if all rows are full."""
    key_mask_BM: Tensor | None
    """(B, M) bool: True where a key is real; None if all are."""
    positions_N: Tensor
    """(N,) float64: position of each token in its row, from 0."""
    training_length: int
    """L, tokens in a training window."""
    heads: int
    """Number of heads H."""
    head_size: int
    """Size of a head d."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """Base of all variants; as it stands it is scaled dot-product attention with rotary positions.

    A variant overrides only what differs. Its docstring becomes its entry in `attnscale variants` and in
    the report; `formula` and `source` are required.
    """

    name: ClassVar[str]
    """Registered name, set by the decorator."""
    formula: ClassVar[str] = ""
    """The factor on q·k, or the whole formula where more differs, in plain text."""
    source: ClassVar[str] = ""
    """Paper or article with equation number."""

    def check(self, *, longest: int, training_length: int) -> None:
        """Refuse what this variant cannot do, before any job starts.

        Args:
            longest: largest evaluation length in tokens.
            training_length: L in tokens.

        Raises:
            UserError: one sentence that says what cannot be done and what to change.
        """

    def factor(self, context: Context) -> Tensor:
        """Factor on q·k, (B,) or (1,) float64. Override this for a new scale."""
        return torch.full_like(context.n_B, 1.0 / math.sqrt(context.head_size))

    def angles(self, context: Context, theta: float) -> Tensor:
        """Rotary angles, (N, P) float64. Override this for another treatment of positions.

        Args:
            context: the rows.
            theta: base of the frequencies; RoFormer (arXiv 2104.09864, eq. 15) has 10000.
        """
        pairs_P = torch.arange(0, context.head_size, 2, dtype=torch.float64, device=context.positions_N.device)
        return torch.outer(context.positions_N, theta ** (-pairs_P / context.head_size))

    def bias(self, context: Context) -> Tensor | None:
        """Added to the scaled logits, shape that broadcasts to (B, H, N, M); None for nothing."""
        return None

    def mask(self, context: Context) -> Tensor | None:
        """True where a query may see a key, broadcasts to (B, H, N, M); None for everywhere."""
        return None

    def mix(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, context: Context, dropout: float) -> Tensor:
        """Mix the values, (B, H, N, D). Override this only if softmax attention itself is replaced.

        Args:
            q_BHND: queries, rotated, with `factor` already multiplied in.
            k_BHMD: keys, rotated.
            v_BHMD: values.
            context: the rows.
            dropout: probability to drop an attention weight (0 outside training).
        """
        return softmax_attention(
            q_BHND, k_BHMD, v_BHMD, dropout, allowed=self._allowed(context), bias=self.bias(context)
        )

    def _allowed(self, context: Context) -> Tensor | None:
        mask = self.mask(context)
        if context.key_mask_BM is None:
            return mask
        keys = context.key_mask_BM[:, None, None, :]
        return keys if mask is None else keys & mask


def softmax_attention(
    q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, dropout: float, allowed: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Softmax attention whose logits are q·k + bias where allowed, (B, H, N, D).

    Args:
        q_BHND: queries with their scale multiplied in.
        k_BHMD: keys.
        v_BHMD: values.
        dropout: probability to drop an attention weight.
        allowed: bool, broadcasts to (B, H, N, M); every query needs at least one allowed key.
        bias: broadcasts to (B, H, N, M).
    """
    on_cpu = q_BHND.device.type == "cpu"
    if on_cpu and k_BHMD.shape[2] <= LONGEST_EXPLICIT:
        logits_BHNM = q_BHND @ k_BHMD.transpose(2, 3)
        if bias is not None:
            logits_BHNM = logits_BHNM + bias.to(logits_BHNM.dtype)
        if allowed is not None:
            logits_BHNM = logits_BHNM.masked_fill(~allowed, -math.inf)
        weights_BHNM = torch.softmax(logits_BHNM, dim=-1)
        if dropout:
            weights_BHNM = functional.dropout(weights_BHNM, dropout)
        return weights_BHNM.to(v_BHMD.dtype) @ v_BHMD
    if bias is not None:
        bias = bias.to(q_BHND.dtype)
        if allowed is not None:
            bias = bias.masked_fill(~allowed, -math.inf)
    mask = allowed if bias is None else bias
    return functional.scaled_dot_product_attention(q_BHND, k_BHMD, v_BHMD, mask, dropout, scale=1.0)


def resolve_base(base: int | str, context: Context) -> float:
    """The base of a logarithm that may be written as a number or as `training_length`."""
    return float(context.training_length if base == "training_length" else base)


def check_base(name: str, base: int | str, training_length: int) -> None:
    """Refuse a base of the logarithm that has no meaning.

    Raises:
        UserError: it is neither a number above 1 nor the word training_length.
    """
    number = training_length if base == "training_length" else base
    if isinstance(number, str | bool) or not 1 < number <= 1e300:
        raise UserError(f"base of {name} must be a number above 1 or training_length, not {base!r}")


def describe(variant: type[Attention]) -> Sequence[str]:
    """Name, formula, source and parameters of a variant, as the table of variants shows them."""
    parameters = ", ".join(
        f"{field.name}={'(required)' if field.default is dataclasses.MISSING else field.default}"
        for field in dataclasses.fields(variant)
    )
    return variant.name, variant.formula, variant.source, parameters
