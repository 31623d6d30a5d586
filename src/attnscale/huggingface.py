"""Weights of Hugging Face's RoFormer in our layout, so that both can be compared or continued.

Ours and theirs compute the same function for the faithful recipe with `attention_o`; the rotary layout is
the same too (adjacent pairs are turned), so no rows have to be permuted.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def from_roformer(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Convert the state dict of a `transformers.RoFormerForMaskedLM`.

    Args:
        state: its state dict. The embedding size must equal the hidden size, as in RoFormer small.
        layers: number of blocks.

    Returns:
        A state dict for `attnscale.model.Encoder` with `recipe: faithful`; the embedding of segment 0, which
        every token of a single text gets, becomes the `segment` offset.
    """
    embeddings, head = "roformer.embeddings", "cls.predictions"
    ours = {
        "embedding.weight": state[f"{embeddings}.word_embeddings.weight"],
        "segment": state[f"{embeddings}.token_type_embeddings.weight"][0],
        "transform.0.weight": state[f"{head}.transform.dense.weight"],
        "transform.0.bias": state[f"{head}.transform.dense.bias"],
        "transform.2.weight": state[f"{head}.transform.LayerNorm.weight"],
        "transform.2.bias": state[f"{head}.transform.LayerNorm.bias"],
        "decoder_bias": state[f"{head}.bias"],
    }
    names = {"embedding_norm": f"{embeddings}.LayerNorm"}
    for number in range(layers):
        block, layer = f"blocks.{number}", f"roformer.encoder.layer.{number}"
        names |= _block_names(block, layer)
        for kind in ("weight", "bias"):
            parts = [state[f"{layer}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            ours[f"{block}.attention.qkv.{kind}"] = torch.cat(parts)
    ours |= {
        f"{mine}.{kind}": state[f"{theirs}.{kind}"] for mine, theirs in names.items() for kind in ("weight", "bias")
    }
    return ours


def to_roformer(state: Mapping[str, Tensor], layers: int, heads: int, positions: int) -> dict[str, Tensor]:
    """The inverse of `from_roformer`: weights of our encoder under the names of a `transformers.RoFormerForMaskedLM`.

    Args:
        state: a state dict of `attnscale.model.Encoder` with `recipe: faithful`, without learned factors.
        layers: number of blocks.
        heads: attention heads per block.
        positions: rows of the table of positions, the most tokens that theirs can read.

    Returns:
        All tensors that theirs saves. Segment 1, which ours has not, is that of segment 0.
    """
    embeddings, head = "roformer.embeddings", "cls.predictions"
    theirs = {
        f"{embeddings}.word_embeddings.weight": state["embedding.weight"],
        f"{embeddings}.token_type_embeddings.weight": state["segment"].repeat(2, 1),
        f"{head}.transform.dense.weight": state["transform.0.weight"],
        f"{head}.transform.dense.bias": state["transform.0.bias"],
        f"{head}.transform.LayerNorm.weight": state["transform.2.weight"],
        f"{head}.transform.LayerNorm.bias": state["transform.2.bias"],
        f"{head}.bias": state["decoder_bias"],
    }
    names = {"embedding_norm": f"{embeddings}.LayerNorm"}
    for number in range(layers):
        block, layer = f"blocks.{number}", f"roformer.encoder.layer.{number}"
        names |= _block_names(block, layer)
        for kind in ("weight", "bias"):
            parts = state[f"{block}.attention.qkv.{kind}"].chunk(3)
            for part, tensor in zip(("query", "key", "value"), parts, strict=True):
                theirs[f"{layer}.attention.self.{part}.{kind}"] = tensor
    theirs["roformer.encoder.embed_positions.weight"] = _sines(positions, len(state["segment"]) // heads)
    theirs |= {
        f"{their}.{kind}": state[f"{mine}.{kind}"] for mine, their in names.items() for kind in ("weight", "bias")
    }
    return {name: tensor.contiguous() for name, tensor in theirs.items()}


def _block_names(block: str, layer: str) -> dict[str, str]:
    """Our names and theirs for what has the same shape on both sides."""
    return {
        f"{block}.attention.out": f"{layer}.attention.output.dense",
        f"{block}.attention_norm": f"{layer}.attention.output.LayerNorm",
        f"{block}.feed_forward.0": f"{layer}.intermediate.dense",
        f"{block}.feed_forward.2": f"{layer}.output.dense",
        f"{block}.feed_forward_norm": f"{layer}.output.LayerNorm",
    }


def _sines(positions: int, size: int) -> Tensor:
    """Their table of positions, (N, D): sines of the rotary angles in the first half, cosines in the second."""
    pairs_P = torch.arange(0, size, 2, dtype=torch.float64)
    angles_NP = torch.outer(torch.arange(positions, dtype=torch.float64), 10000.0 ** (-pairs_P / size))
    return torch.cat([angles_NP.sin(), angles_NP.cos()], dim=1).float()
