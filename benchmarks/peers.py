"""What people would use instead, of the same sizes, vocabulary, batches and masks.

A step is forward, loss on the masked tokens, backward, clipping, AdamW. The peers compute what their users get:
logits at all positions, labels of -100 where nothing is predicted, fused AdamW, clipping. What would only slow them
down is left out: dropout (our fast recipe has none), deterministic mode, making batches.

Tensor names end in their shape: B windows, N tokens of a window, V vocabulary.
"""

import importlib.util
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.tokens.load import EvaluationSet
from benchmarks.cases import Case

PACKAGES = {"huggingface": "transformers", "x_transformers": "x-transformers"}


def installed() -> dict[str, str]:
    """Versions of the peers that are here, by contestant."""
    found = {name: package for name, package in PACKAGES.items() if importlib.util.find_spec(package.replace("-", "_"))}
    return {name: metadata.version(package) for name, package in found.items()}


def roformer(case: Case, longest: int) -> Any:
    """`transformers.RoFormerForMaskedLM`, which has a table of positions as long as its longest text."""
    from transformers import RoFormerConfig, RoFormerForMaskedLM

    model = case.model
    config = RoFormerConfig(
        vocab_size=case.vocabulary_size, hidden_size=model.width, intermediate_size=model.feed_forward,
        num_hidden_layers=model.layers, num_attention_heads=model.heads, max_position_embeddings=longest,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return RoFormerForMaskedLM(config)


def encoder(case: Case) -> Any:
    """`x_transformers.Encoder` with rotary positions and a tied head."""
    from x_transformers import Encoder, TransformerWrapper

    model, head_size = case.model, case.model.width // case.model.heads
    layers = Encoder(
        dim=model.width, depth=model.layers, heads=model.heads, attn_dim_head=head_size,
        ff_mult=model.feed_forward / model.width, rotary_pos_emb=True, rotary_emb_dim=head_size, verbose=False,
    )  # fmt: skip
    return TransformerWrapper(
        num_tokens=case.vocabulary_size, max_seq_len=case.training.length, attn_layers=layers, tie_embedding=True
    )


def huggingface_training(case: Case, precision: str) -> Iterator[None]:
    """A turn's steps of `RoFormerForMaskedLM`."""
    model = roformer(case, case.training.length)
    return _training(case, precision, model, lambda ids_BN, labels_BN: model(input_ids=ids_BN, labels=labels_BN).loss)


def x_transformers_training(case: Case, precision: str) -> Iterator[None]:
    """A turn's steps of the `x_transformers` encoder."""
    model = encoder(case)
    return _training(
        case, precision, model,
        lambda ids_BN, labels_BN: functional.cross_entropy(model(ids_BN).flatten(0, 1).float(), labels_BN.flatten()),
    )  # fmt: skip


def _training(
    case: Case, precision: str, model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[None]:
    torch.set_num_threads(case.threads)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.training.learning_rate, fused=True)
    data = []
    for batch in case.batches:
        wanted_BN = np.full_like(batch.inputs_BN, -100)
        wanted_BN.reshape(-1)[batch.selected_S] = batch.targets_S
        data.append((torch.from_numpy(batch.inputs_BN), torch.from_numpy(wanted_BN)))
    yield
    while True:
        for ids_BN, labels_BN in data:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = loss_of(ids_BN, labels_BN)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), case.training.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
        yield


def huggingface_evaluation(case: Case, precision: str, data: EvaluationSet) -> Iterator[None]:
    """Right predictions of `RoFormerForMaskedLM` in all blocks of `data`, one block at a time."""
    torch.set_num_threads(case.threads)
    model = roformer(case, data.lengths[-1]).eval()
    yield
    while True:
        for ids_N, inputs_N, masked_N in zip(data.ids_KN, data.inputs_KN, data.masked_KN, strict=True):
            inputs_BN, ids_BN = (torch.from_numpy(array_N.astype(np.int64))[None] for array_N in (inputs_N, ids_N))
            with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                logits_BNV = model(input_ids=inputs_BN).logits
                ((logits_BNV.argmax(dim=2) == ids_BN) & torch.from_numpy(masked_N)).sum().item()
        yield
