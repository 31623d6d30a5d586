"""The encoder: RoFormer in two recipes, one file to read from top to bottom.

`fast` is pre-norm with another norm after the embedding, without biases or dropout; `faithful` is the post-norm BERT
layout of RoFormer. What differs between attentions is not here: an `Attention` object (see `attnscale.attention`)
supplies it.

Tensor names end in their shape:
    B rows of the batch, N tokens of a row, T = B*N tokens of the batch, S selected tokens (S <= T),
    E width of the residual stream, F feed-forward width, H heads, D size of a head, P = D/2 rotary pairs,
    V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.attention import Attention, Context, make_variant
from attnscale.attention.base import ROTARY, Positions
from attnscale.attention.positions import make_positions
from attnscale.rng import Stream

if TYPE_CHECKING:
    from attnscale.config import EncoderSettings, ModelConfig

INIT_STD = 0.02


class SelfAttention(nn.Module):
    """Projections and rotary positions around the variant's own mixing."""

    def __init__(self, config: ModelConfig, variant: Attention, training_length: int) -> None:
        super().__init__()
        bias = config.recipe == "faithful"
        self.heads = config.heads
        self.dropout = 0.1 if config.recipe == "faithful" else 0.0
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=bias)
        self.out = nn.Linear(config.width, config.width, bias=bias)
        learned = variant.learned(heads=config.heads, training_length=training_length)
        self.learned = nn.ParameterDict(
            {name: nn.Parameter(value.detach().float().clone()) for name, value in learned.items()}
        )

    def forward(
        self, x_TE: Tensor, variant: Attention, context: Context, rotation: Tensor, selected_S: Tensor | None
    ) -> Tensor:
        """Attend within rows.

        Args:
            x_TE: tokens of all rows, one after the other.
            variant: the attention under test.
            context: the rows, as the variant sees them.
            rotation: complex (B or 1, N, 2, 1, P); plane 0 turns and scales queries, plane 1 turns keys.
            selected_S: indices into T at which the result is wanted; None for all.

        Returns:
            (S, E), or (T, E) if nothing is selected.
        """
        rows_and_tokens = (-1, rotation.shape[1])
        qkv = self.qkv(x_TE).view(*rows_and_tokens, 3, self.heads, x_TE.shape[1] // self.heads)
        # Rotation in fp32 whatever the precision: bf16 cannot even count positions beyond 256.
        # Split, not sliced: the gradient of a slice is a tensor of zeros for the whole and an addition.
        qk, v = qkv.split((2, 1), dim=2)
        pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2)))
        q_BNHD, k_BNHD = torch.view_as_real(pairs * rotation).flatten(-2).to(qkv.dtype).unbind(2)
        v_BNHD = v.squeeze(2)
        dropout = self.dropout if self.training else 0.0
        if self.learned:
            context = dataclasses.replace(context, learned=dict(self.learned.items()))
        mixed_BHND = variant.mix(
            q_BNHD.transpose(1, 2), k_BNHD.transpose(1, 2), v_BNHD.transpose(1, 2), context, dropout
        )
        mixed_TE = mixed_BHND.transpose(1, 2).reshape(x_TE.shape)
        return self.out(mixed_TE if selected_S is None else mixed_TE[selected_S])  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward with residual connections."""

    def __init__(self, config: ModelConfig, variant: Attention, training_length: int) -> None:
        super().__init__()
        faithful = config.recipe == "faithful"
        self.post_norm = faithful
        self.dropout = nn.Dropout(0.1 if faithful else 0.0)
        self.attention = SelfAttention(config, variant, training_length)
        self.attention_norm = _norm(config)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, config.feed_forward, bias=faithful),
            nn.GELU(),
            nn.Linear(config.feed_forward, config.width, bias=faithful),
        )
        self.feed_forward_norm = _norm(config)

    def forward(
        self, x_TE: Tensor, variant: Attention, context: Context, rotation: Tensor, selected_S: Tensor | None
    ) -> Tensor:
        """One block, (S, E) or (T, E); see `SelfAttention.forward` for the arguments."""
        residual = x_TE if selected_S is None else x_TE[selected_S]
        if self.post_norm:
            attended = self.attention(x_TE, variant, context, rotation, selected_S)
            x_SE = self.attention_norm(residual + self.dropout(attended))
            return self.feed_forward_norm(x_SE + self.dropout(self.feed_forward(x_SE)))  # type: ignore[no-any-return]
        attended = self.attention(self.attention_norm(x_TE), variant, context, rotation, selected_S)
        x_SE = residual + attended
        return x_SE + self.feed_forward(self.feed_forward_norm(x_SE))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Masked language model with exchangeable attention.

    Args:
        config: sizes and recipe.
        vocabulary_size: V, number of ids.
        variant: the attention under test.
        training_length: L in tokens, for the variants whose formula holds it.
        positions: treatment of positions.
        n_limits: smallest and largest n that the variant's formula is given.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        variant: Attention,
        training_length: int,
        positions: Positions = ROTARY,
        n_limits: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        super().__init__()
        self.config = config
        self.variant = variant
        self.positions = positions
        self.n_limits = n_limits
        self.training_length = training_length
        faithful = config.recipe == "faithful"
        self.embedding = nn.Embedding(vocabulary_size, config.width)
        # RoFormer adds the embedding of segment 0 to every token; kept as what it is, a learned offset.
        self.segment = nn.Parameter(torch.zeros(config.width)) if faithful else None
        self.embedding_norm = _norm(config)
        self.dropout = nn.Dropout(0.1 if faithful else 0.0)
        self.blocks = nn.ModuleList(Block(config, variant, training_length) for _ in range(config.layers))
        self.final_norm = nn.Identity() if faithful else _norm(config)
        self.transform = (
            nn.Sequential(nn.Linear(config.width, config.width), nn.GELU(), _norm(config))
            if faithful
            else nn.Identity()
        )
        # The decoder shares the embedding's one parameter, so there is nothing to tie, load or lose.
        self.decoder_bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, ids_BN: Tensor, selected_S: Tensor | None = None, key_mask_BN: Tensor | None = None) -> Tensor:
        """Logits over the vocabulary.

        Only the selected tokens pass through the last block's output projection and feed-forward and
        through the decoder: in training 15 % of the tokens carry the loss, and nothing reads the others.

        Args:
            ids_BN: (B, N) int64 token ids.
            selected_S: (S,) int64 indices into the B*N tokens, each at most once; None for all.
            key_mask_BN: (B, N) bool, False for padding; None if there is none.

        Returns:
            (S, V) or (B*N, V), in the compute precision.
        """
        real = self._context(ids_BN, key_mask_BN)
        n_B = self.positions.attended(real.n_B, self.training_length).clamp(*self.n_limits)
        context = dataclasses.replace(real, n_B=n_B)
        rotation = self._rotation(self.variant.angles(real, self.config.rope_theta), self.variant.factor(context))
        x_TE = self.embedding(ids_BN.flatten())
        if self.segment is not None:
            x_TE = x_TE + self.segment
        x_TE = self.dropout(self.embedding_norm(x_TE))
        for number, block in enumerate(self.blocks, start=1):
            wanted = selected_S if number == len(self.blocks) else None
            x_TE = block(x_TE, self.variant, context, rotation, wanted)
        return functional.linear(self.transform(self.final_norm(x_TE)), self.embedding.weight, self.decoder_bias)

    def _context(self, ids_BN: Tensor, key_mask_BN: Tensor | None) -> Context:
        length, device = ids_BN.shape[1], ids_BN.device
        if key_mask_BN is None:
            n_B = torch.full((1,), length, dtype=torch.float64, device=device)
        else:
            n_B = key_mask_BN.sum(dim=1, dtype=torch.float64)
        return Context(
            n_B=n_B,
            key_mask_BM=key_mask_BN,
            positions_N=torch.arange(length, dtype=torch.float64, device=device),
            training_length=self.training_length,
            heads=self.config.heads,
            head_size=self.config.width // self.config.heads,
            rope_theta=self.config.rope_theta,
            positions=self.positions,
        )

    def _rotation(self, angles: Tensor, factor_B: Tensor) -> Tensor:
        """Complex (B or 1, N, 2, 1, P): the variant's factor times rotation for q, rotation alone for k.

        Made afresh for the length at hand, in float64 and rounded once, so there is no table that an
        evaluation could outgrow.
        """
        turns = torch.polar(torch.ones_like(angles), angles)  # (N, P), or (B, N, P) where rows differ
        planes = torch.stack([factor_B, torch.ones_like(factor_B)], dim=1)
        return (planes[:, None, :, None, None] * turns[..., :, None, None, :]).to(torch.complex64)

    def grad_norm_qk(self) -> Tensor:
        """Norm of the gradients of the weights that make queries and keys, of all layers together."""
        norms: list[Tensor] = []
        for name, weight in self.named_parameters():
            if name.endswith("qkv.weight") and weight.grad is not None:
                norms.append(torch.linalg.vector_norm(weight.grad[: 2 * weight.shape[1]]))
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    def initialise(self, seed: int) -> None:
        """Set all weights as a function of the seed alone, equal bits on every machine.

        Each parameter has its own stream named by its name, so attentions that share a shape share the
        weights. Normal with standard deviation 0.02 (BERT); `fast` divides what writes to the residual
        stream by sqrt(2 * layers), as GPT-2 does, so that its size does not grow with depth.
        """
        learned = self.variant.learned(heads=self.config.heads, training_length=self.training_length)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm.weight") or name.endswith("transform.2.weight"):
                    parameter.fill_(1.0)
                elif ".learned." in name:
                    parameter.copy_(learned[name.rpartition(".")[2]])
                elif parameter.ndim < 2 and name != "segment":
                    parameter.zero_()
                else:
                    std = INIT_STD
                    if self.config.recipe == "fast" and name.endswith(("out.weight", "feed_forward.2.weight")):
                        std /= math.sqrt(2 * self.config.layers)
                    values = Stream("initial weights", seed, name).normals(parameter.numel())
                    parameter.copy_(torch.from_numpy(values).view(parameter.shape) * std)


def make_encoder(settings: EncoderSettings, vocabulary_size: int) -> Encoder:
    """The encoder of an arm, its weights not yet set.

    Raises:
        UserError: the attention or the treatment of positions is not known, or refuses its parameters.
    """
    attention, positions = settings.attention, settings.positions
    return Encoder(
        settings.model,
        vocabulary_size,
        make_variant(attention.name, attention.parameters, attention.module),
        settings.training_length,
        ROTARY if positions is None else make_positions(positions.name, positions.parameters),
        (float(settings.n_at_least or 0), float(settings.n_at_most or math.inf)),
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    if config.recipe == "faithful":
        return nn.LayerNorm(config.width, eps=1e-12)
    return nn.LayerNorm(config.width, eps=1e-5, bias=False)
