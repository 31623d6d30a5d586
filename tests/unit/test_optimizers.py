"""Muon: orthogonal steps, the same as torch's own, and every parameter in exactly one optimizer."""

import numpy as np
import pytest
import torch

from attnscale.attention import make_variant
from attnscale.config import ModelConfig, TrainingConfig
from attnscale.model import Encoder
from attnscale.optimizers import Muon, _iterate, _iterate_on_gram, make_optimizers, orthogonalise


def encoder(recipe: str = "fast", attention: str = "attention_o") -> Encoder:
    config = ModelConfig.model_validate({"preset": "smoke", "recipe": recipe})
    model = Encoder(config, 300, make_variant(attention, {}), 16)
    model.initialise(0)
    return model


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 64, 256), (2, 256, 64)])
def test_orthogonalised_matrices_keep_their_singular_vectors_and_lose_their_spread(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = orthogonalise(matrices)
    assert result.shape == shape
    left, values, right = np.linalg.svd(matrices.double().numpy(), full_matrices=False)
    seen = np.einsum("gik,gij,gkj->gk", left, result.double().numpy(), right)
    # Square random matrices have singular values near 0, which five steps cannot lift; all others come near 1.
    lifted = values / np.linalg.norm(values, axis=1, keepdims=True) > 0.01
    assert seen[lifted].min() > 0.6
    assert seen.max() < 1.3
    rest = result.double().numpy() - np.einsum("gik,gk,gkj->gij", left, seen, right)
    assert np.abs(rest).max() < 1e-4


def test_the_short_way_on_gram_matrices_goes_the_same_way():
    matrices = torch.randn(3, 32, 128, generator=torch.Generator().manual_seed(3)) * torch.logspace(0, -4, 128)
    matrices /= matrices.norm(dim=(1, 2), keepdim=True)
    assert torch.allclose(_iterate_on_gram(matrices), _iterate(matrices), atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 32), (16, 64), (64, 16)])
def test_steps_equal_those_of_torch_up_to_its_bf16(shape):
    weights = [torch.nn.Parameter(torch.zeros(shape)) for _ in range(2)]
    ours = Muon([{"params": weights[:1]}], lr=0.1, momentum=0.9, dtype=torch.bfloat16)
    torchs = torch.optim.Muon(weights[1:], lr=0.1, momentum=0.9, weight_decay=0.0)
    draw = torch.Generator().manual_seed(1)
    for _ in range(3):
        gradient = torch.randn(shape, generator=draw)
        for weight, optimizer in zip(weights, (ours, torchs), strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    assert weights[0].abs().max() > 0.01
    assert torch.allclose(weights[0], weights[1], atol=0.02 * float(weights[1].detach().abs().max()))


def test_maps_that_share_a_parameter_are_orthogonalised_one_by_one():
    gradient = torch.randn(3 * 16, 16, generator=torch.Generator().manual_seed(2))
    whole = torch.nn.Parameter(torch.zeros(3 * 16, 16))
    parts = [torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(3)]
    whole.grad = gradient
    for part, piece in zip(parts, gradient.chunk(3), strict=True):
        part.grad = piece.clone()
    Muon([{"params": [whole], "maps": 3}], lr=0.1, momentum=0.9, dtype=torch.float32).step()
    Muon([{"params": parts}], lr=0.1, momentum=0.9, dtype=torch.float32).step()
    assert torch.allclose(whole, torch.cat(list(parts)), atol=1e-6)


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("attention", ["attention_o", "ssmax"])
def test_every_parameter_is_in_one_group_and_only_matrices_of_blocks_go_to_muon(recipe, optimizer, attention):
    """What an attention learns, a slope per head in ssmax, is trained by AdamW without decay."""
    model = encoder(recipe, attention)
    learned = [name for name, _ in model.named_parameters() if ".learned." in name]
    assert len(learned) == (2 if attention == "ssmax" else 0)
    optimizers = make_optimizers(model, TrainingConfig(optimizer=optimizer), torch.float32)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [(kind, group) for kind in optimizers for group in kind.param_groups]
    seen = [names[id(parameter)] for _, group in groups for parameter in group["params"]]
    assert sorted(seen) == sorted(names.values())
    muon = {names[id(p)] for kind, group in groups if isinstance(kind, Muon) for p in group["params"]}
    hidden = {n for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2}
    assert muon == (hidden if optimizer == "muon" else set())
    assert len(hidden) == 8
    undecayed = {
        names[id(p)]
        for kind, group in groups
        if not isinstance(kind, Muon) and not group["weight_decay"]
        for p in group["params"]
    }
    assert undecayed == {name for name, parameter in model.named_parameters() if parameter.ndim < 2}
