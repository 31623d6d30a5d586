"""A masked language model of attnscale for transformers; this file travels with the weights beside it.

Load it with `AutoModelForMaskedLM.from_pretrained(FOLDER, trust_remote_code=True)`. It needs torch and transformers and
nothing else. Two layouts (`recipe` in config.json): `fast` is pre-norm with a norm after the embedding and without
biases; `faithful` is the post-norm layout of RoFormer (arXiv 2104.09864). Positions are rotary.

The factor on q·k is 1 / sqrt(size of a head), times `scale_by_n[n]` if `scales` in config.json is above 0: a table of
what n real keys ask for. Otherwise a factor other than 1 is part of the weights that make the queries.

Tensor names end in their shape: B rows, N tokens of a row, E width, H heads, D size of a head, P = D/2 rotary pairs,
V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput


class AttnscaleConfig(PretrainedConfig):
    """Sizes and layout; see the file's head."""

    model_type = "attnscale"

    def __init__(
        self,
        vocab_size: int = 8192,
        hidden_size: int = 256,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 4,
        intermediate_size: int = 1024,
        recipe: str = "fast",
        rope_theta: float = 10000.0,
        scales: int = 0,
        pad_token_id: int = 0,
        **others: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.recipe = recipe
        self.rope_theta = rope_theta
        self.scales = scales
        super().__init__(pad_token_id=pad_token_id, **others)


def _norm(config: Any) -> nn.LayerNorm:
    if config.recipe == "faithful":
        return nn.LayerNorm(config.hidden_size, eps=1e-12)
    return nn.LayerNorm(config.hidden_size, eps=1e-5, bias=False)


class AttnscaleAttention(nn.Module):
    """Softmax attention with rotary positions."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        bias = config.recipe == "faithful"
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=bias)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)

    def forward(self, x_BNE: Tensor, turns_BN2P: Tensor, mask_B11N: Tensor | None) -> Tensor:
        """(B, N, E); `turns_BN2P` rotates queries (scaled) and keys, `mask_B11N` is True where a key is real."""
        rows, tokens, width = x_BNE.shape
        qkv = self.qkv(x_BNE).view(rows, tokens, 3, self.heads, width // self.heads)
        pairs = torch.view_as_complex(qkv[:, :, :2].float().unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * turns_BN2P[:, :, :, None]).flatten(-2).to(qkv.dtype)
        q_BHND, k_BHND = turned.transpose(1, 3).unbind(2)
        mixed_BHND = functional.scaled_dot_product_attention(
            q_BHND, k_BHND, qkv[:, :, 2].transpose(1, 2), attn_mask=mask_B11N
        )
        return self.out(mixed_BHND.transpose(1, 2).reshape(x_BNE.shape))  # type: ignore[no-any-return]


class AttnscaleBlock(nn.Module):
    """Attention and feed-forward with residual connections."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        bias = config.recipe == "faithful"
        self.post_norm = bias
        self.attention = AttnscaleAttention(config)
        self.attention_norm = _norm(config)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden_size, config.intermediate_size, bias=bias),
            nn.GELU(),
            nn.Linear(config.intermediate_size, config.hidden_size, bias=bias),
        )
        self.feed_forward_norm = _norm(config)

    def forward(self, x_BNE: Tensor, turns_BN2P: Tensor, mask_B11N: Tensor | None) -> Tensor:
        """(B, N, E); see `AttnscaleAttention.forward`."""
        if self.post_norm:
            x_BNE = self.attention_norm(x_BNE + self.attention(x_BNE, turns_BN2P, mask_B11N))
            return self.feed_forward_norm(x_BNE + self.feed_forward(x_BNE))  # type: ignore[no-any-return]
        x_BNE = x_BNE + self.attention(self.attention_norm(x_BNE), turns_BN2P, mask_B11N)
        return x_BNE + self.feed_forward(self.feed_forward_norm(x_BNE))  # type: ignore[no-any-return]


class AttnscaleForMaskedLM(PreTrainedModel):
    """Logits over the vocabulary at every token; the decoder is the embedding."""

    config_class = AttnscaleConfig
    base_model_prefix = "attnscale"

    def __init__(self, config: AttnscaleConfig) -> None:
        super().__init__(config)
        faithful = config.recipe == "faithful"
        width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.segment = nn.Parameter(torch.zeros(width)) if faithful else None
        self.embedding_norm = _norm(config)
        self.blocks = nn.ModuleList(AttnscaleBlock(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.Identity() if faithful else _norm(config)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), _norm(config)) if faithful else nn.Identity()
        self.decoder_bias = nn.Parameter(torch.zeros(config.vocab_size))
        # A parameter, so that it is saved and loaded like any weight; nothing trains it.
        table = torch.ones(config.scales) if config.scales else None
        self.scale_by_n = None if table is None else nn.Parameter(table, requires_grad=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding in its place."""
        self.embedding = value

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the weights come from the file."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """Logits, and the loss where there are labels.

        Args:
            input_ids: (B, N) token ids.
            attention_mask: (B, N), 0 for padding; None if there is none.
            labels: (B, N) ids to predict, -100 where nothing is asked.

        Returns:
            Logits of shape (B, N, V).
        """
        length = input_ids.shape[1]
        real_BN = None if attention_mask is None else attention_mask.bool()
        mask_B11N = None if real_BN is None or bool(real_BN.all()) else real_BN[:, None, None, :]
        turns_BN2P = self._turns(length, real_BN, input_ids.device)
        x_BNE = self.embedding(input_ids)
        if self.segment is not None:
            x_BNE = x_BNE + self.segment
        x_BNE = self.embedding_norm(x_BNE)
        for block in self.blocks:
            x_BNE = block(x_BNE, turns_BN2P, mask_B11N)
        x_BNE = self.transform(self.final_norm(x_BNE))
        logits_BNV = functional.linear(x_BNE, self.embedding.weight, self.decoder_bias)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits_BNV.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits_BNV)

    def _turns(self, length: int, real_BN: Tensor | None, device: torch.device) -> Tensor:
        """Complex (B or 1, N, 2, P): rotation with the scale for queries, rotation alone for keys."""
        size = self.config.hidden_size // self.config.num_attention_heads
        pairs_P = torch.arange(0, size, 2, dtype=torch.float64, device=device)
        positions_N = torch.arange(length, dtype=torch.float64, device=device)
        angles_NP = torch.outer(positions_N, self.config.rope_theta ** (-pairs_P / size))
        turns_NP = torch.polar(torch.ones_like(angles_NP), angles_NP)
        n_B = torch.full((1,), length, device=device) if real_BN is None else real_BN.sum(dim=1)
        if self.scale_by_n is None:
            factor_B = torch.ones(1, dtype=torch.float64, device=device)
        else:
            if int(n_B.max()) >= len(self.scale_by_n):
                raise ValueError(f"rows of {int(n_B.max())} tokens are longer than the table of scales in the weights")
            factor_B = self.scale_by_n.double()[n_B]
        planes_B2 = torch.stack([factor_B, torch.ones_like(factor_B)], dim=1)
        return (planes_B2[:, None, :, None] * turns_NP[None, :, None, :]).to(torch.complex64)
