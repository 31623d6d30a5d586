"""What a variant may change, and the attention that all variants share.

Tensor names end in their shape:
    B rows of the batch, N tokens of a row (queries), M tokens of a row (keys; M = N here),
    H heads, D size of a head, P = D/2 rotary pairs.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.errors import UserError

# Up to this length explicit batched products are faster than the fused kernel on CPUs (about twice as
# fast at 64); beyond it the N x N weights outgrow the cache and the fused kernel wins on both.
LONGEST_EXPLICIT = 128

# Queries whose logits are made explicitly at once where no fused kernel serves; bounds memory.
QUERIES_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Positions:
    """Base of all treatments of positions; as it stands, plain rotary positions.

    An arm takes another one to repair, at test time or in training, what goes wrong with distances longer than any
    seen in training (see `attnscale.attention.positions`). It is independent of the scale, so each can be crossed
    with every attention.
    """

    name: ClassVar[str] = "rotary"
    """What the configuration calls it."""
    plain_products: ClassVar[bool] = True
    """Whether logits are the products of rotated queries and keys, so that fused kernels can be used."""
    works_through: ClassVar[Sequence[str]] = ()
    """Methods of `Attention` that call it; a variant that overrides one of them cannot be combined with it."""
    source: ClassVar[str] = "Su et al. 2021, arXiv 2104.09864, eq. 15"
    """Paper or article."""

    def check(self, *, training_length: int) -> None:
        """Refuse parameters that have no meaning.

        Raises:
            UserError: one sentence that says what is wrong.
        """

    def attended(self, n_B: Tensor, training_length: int) -> Tensor:
        """Number of keys that a token in the middle of a row attends to, (B,) float64, out of n real ones."""
        return n_B

    def angles(self, context: "Context", theta: float) -> Tensor:
        """Rotary angles, (N, P) or, where rows differ, (B, N, P) float64; `theta` is the base of the frequencies."""
        pairs_P = torch.arange(0, context.head_size, 2, dtype=torch.float64, device=context.positions_N.device)
        return torch.outer(context.positions_N, theta ** (-pairs_P / context.head_size))

    def mask(self, context: "Context") -> Tensor | None:
        """True where a query may see a key, broadcasts to (B, H, N, M); None for everywhere."""
        return None

    def products(self, q_BHnD: Tensor, k_BHMD: Tensor, context: "Context", first: int) -> Tensor:
        """q·k of the queries from position `first` on, (B, H, n, M); set `plain_products` to False to override."""
        return q_BHnD @ k_BHMD.transpose(2, 3)


ROTARY = Positions()


@dataclasses.dataclass(frozen=True)
class Context:
    """What an attention may know about the rows it works on.

    n is counted by the core from the key mask, never from a shape, so padding cannot change a scale.
    """

    n_B: Tensor
    """(B,) or (1,) float64: number of real (unpadded) keys of a row; one value if all rows are full.

    A variant's `factor`, `queries` and `mix` see the number that the arm's settings make of it: not more keys than
    its positions let a token attend to, and within `n_at_least` and `n_at_most`. `angles` sees the real number."""
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
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    positions: Positions = ROTARY
    """Treatment of positions."""
    learned: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """What `Attention.learned` asked for, as trained in the layer at hand."""


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

    def learned(self, *, heads: int, training_length: int) -> Mapping[str, Tensor]:
        """Parameters that every layer learns for this variant, with their initial values.

        They reach `queries`, `bias`, `mask` and `mix` as `context.learned`, and one of these has to use them. Vectors
        with the same values at every call; AdamW trains them without weight decay.
        """
        return {}

    def factor(self, context: Context) -> Tensor:
        """Factor on q·k, (B,) or (1,) float64. Override this for a new scale."""
        return torch.full_like(context.n_B, 1.0 / math.sqrt(context.head_size))

    def angles(self, context: Context, theta: float) -> Tensor:
        """Rotary angles, (N, P) or (B, N, P) float64. Override this if the variant has positions of its own.

        Args:
            context: the rows.
            theta: base of the frequencies; RoFormer (arXiv 2104.09864, eq. 15) has 10000.
        """
        return context.positions.angles(context, theta)

    def queries(self, q_BHND: Tensor, context: Context) -> Tensor:
        """Queries as they meet the keys, (B, H, N, D). Override this for a factor per head or per position.

        Args:
            q_BHND: queries, rotated, with `factor` already multiplied in.
            context: the rows.
        """
        return q_BHND

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
        q_BHND = self.queries(q_BHND, context)
        if context.positions.plain_products:
            allowed, bias = self._allowed(context), self.bias(context)
            return softmax_attention(q_BHND, k_BHMD, v_BHMD, dropout, allowed=allowed, bias=bias)
        mixed = []
        for first in range(0, q_BHND.shape[2], QUERIES_AT_ONCE):
            logits_BHnM = self.logits(q_BHND[:, :, first : first + QUERIES_AT_ONCE], k_BHMD, context, first)
            weights_BHnM = functional.dropout(torch.softmax(logits_BHnM, dim=-1), dropout, training=dropout > 0)
            mixed.append(weights_BHnM.to(v_BHMD.dtype) @ v_BHMD)
        return torch.cat(mixed, dim=2)

    def logits(self, q_BHnD: Tensor, k_BHMD: Tensor, context: Context, first: int) -> Tensor:
        """Logits of some queries, (B, H, n, M), minus infinity where a key is not to be seen.

        The same numbers that `mix` takes the softmax of, unless a variant overrides `mix`; in parts, so that
        long rows fit into memory.

        Args:
            q_BHnD: what `queries` returned, from position `first` on.
            k_BHMD: keys, rotated.
            context: the rows.
            first: position of the first query.
        """
        logits_BHnM = context.positions.products(q_BHnD, k_BHMD, context, first)
        rows = slice(first, first + q_BHnD.shape[2])
        bias, allowed = self.bias(context), self._allowed(context)
        if bias is not None:
            logits_BHnM = logits_BHnM + _rows_of(bias, rows).to(logits_BHnM.dtype)
        if allowed is not None:
            logits_BHnM = logits_BHnM.masked_fill(~_rows_of(allowed, rows), -math.inf)
        return logits_BHnM

    def _allowed(self, context: Context) -> Tensor | None:
        masks = [mask for mask in (self.mask(context), context.positions.mask(context)) if mask is not None]
        if context.key_mask_BM is not None:
            keys_BHNM = context.key_mask_BM[:, None, None, :]
            if masks:
                # Padding far from the text would see no key at all, and what comes of that is no number.
                keys_BHNM = keys_BHNM | ~context.key_mask_BM[:, None, :, None]
            masks.append(keys_BHNM)
        return functools.reduce(operator.and_, masks) if masks else None


def _rows_of(tensor: Tensor, rows: slice) -> Tensor:
    """Some queries of something that broadcasts to (B, H, N, M)."""
    return tensor[..., rows, :] if tensor.ndim > 1 and tensor.shape[-2] > 1 else tensor


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
