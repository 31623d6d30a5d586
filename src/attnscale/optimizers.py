"""The optimizers of a training, built from the model and its settings.

Tensor names end in their shape: G matrices of equal shape, I rows, J columns, K = min(I, J).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscale.model import Encoder

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig

# Coefficients and number of steps of the quintic iteration, from Jordan et al. 2024, "Muon: An optimizer for hidden
# layers in neural networks" (kellerjordan.github.io/posts/muon): singular values end up between 0.7 and 1.2.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are replaced by the nearest orthogonal ones before they are applied.

    Jordan et al. 2024 (see above). torch.optim.Muon computes in bf16 whatever the hardware, which takes 60 times
    as long as fp32 on a CPU without units for it (docs/performance.md), and goes matrix by matrix; this one
    computes in `dtype` and takes all matrices of a shape at once. Weights of several maps in one parameter, such
    as those of queries, keys and values, are orthogonalised one by one.

    Args:
        parameters: groups of weights (I, J); the key `maps` of a group says how many maps lie below one another.
        lr: learning rate: the spectral norm of a step, times sqrt(I/J) where a map has more rows than columns.
        momentum: decay of the gradients' running mean; Nesterov's form.
        dtype: of the iteration.
    """

    def __init__(self, parameters: Iterable[dict[str, Any]], lr: float, momentum: float, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "maps": 1})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one step; `closure` is part of torch's interface and not used."""
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor, float]]] = {}
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(state["mean"], group["momentum"])
                for map_IJ, update_IJ in zip(weight.chunk(group["maps"]), update.chunk(group["maps"]), strict=True):
                    by_shape.setdefault(tuple(map_IJ.shape), []).append((map_IJ, update_IJ, group["lr"]))
        for (rows, columns), members in by_shape.items():
            updates_GIJ = orthogonalise(torch.stack([update for _, update, _ in members]).to(self.dtype))
            for (map_IJ, _, lr), update_IJ in zip(members, updates_GIJ, strict=True):
                map_IJ.add_(update_IJ, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def state_shapes(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, torch.Size]:
    """What an optimizer of `make_optimizers` keeps for a weight from its first step on, by name."""
    if isinstance(optimizer, Muon):
        return {"mean": weight.shape}
    return {"step": torch.Size(), "exp_avg": weight.shape, "exp_avg_sq": weight.shape}


def orthogonalise(matrices_GIJ: Tensor) -> Tensor:
    """Matrices with the same singular vectors and all singular values near 1, by Newton-Schulz iteration.

    Returns:
        (G, I, J), in the dtype given.
    """
    rows, columns = matrices_GIJ.shape[1:]
    x_GKJ = matrices_GIJ.mT if rows > columns else matrices_GIJ
    x_GKJ = x_GKJ / (x_GKJ.norm(dim=(1, 2), keepdim=True) + 1e-7)
    # The short way squares singular values, for which bf16 has no digits to spare.
    if x_GKJ.dtype == torch.float32 and max(rows, columns) >= 2 * min(rows, columns):
        x_GKJ = _iterate_on_gram(x_GKJ)
    else:
        x_GKJ = _iterate(x_GKJ)
    return x_GKJ.mT if rows > columns else x_GKJ


def _iterate(x_GKJ: Tensor) -> Tensor:
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram_GKK = x_GKJ @ x_GKJ.mT
        polynomial_GKK = torch.baddbmm(gram_GKK, gram_GKK, gram_GKK, beta=b, alpha=c)
        x_GKJ = torch.baddbmm(x_GKJ, polynomial_GKK, x_GKJ, beta=a)
    return x_GKJ


def _iterate_on_gram(x_GKJ: Tensor) -> Tensor:
    """The same steps, collected in one (K, K) factor: x itself is multiplied twice, not three times a step.

    A step is x -> p x with p a polynomial of the Gram matrix g = x x^T, and takes g to p g p. For J = 4 K this
    halves the time; for square matrices the other form is faster.
    """
    a, b, c = NEWTON_SCHULZ
    gram_GKK = x_GKJ @ x_GKJ.mT
    identity_KK = torch.eye(x_GKJ.shape[1], dtype=x_GKJ.dtype, device=x_GKJ.device)
    factor_GKK = identity_KK.expand_as(gram_GKK)
    for _ in range(NEWTON_SCHULZ_STEPS):
        p_GKK = torch.baddbmm(gram_GKK, gram_GKK, gram_GKK, beta=b, alpha=c).add_(identity_KK, alpha=a)
        factor_GKK = p_GKK @ factor_GKK
        gram_GKK = p_GKK @ gram_GKK @ p_GKK
    return factor_GKK @ x_GKJ


def make_optimizers(model: Encoder, training: TrainingConfig, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
    """Optimizers that cover every parameter once; each group keeps its peak learning rate under `peak`.

    Args:
        model: the encoder.
        training: which optimizer and its settings.
        dtype: in which Muon iterates.
    """
    optimizers: list[torch.optim.Optimizer] = []
    named = dict(model.named_parameters())
    if training.optimizer == "muon":
        hidden = {name: named.pop(name) for name in list(named) if name.startswith("blocks.") and named[name].ndim == 2}
        groups = [
            {"params": [p for name, p in hidden.items() if name.endswith("qkv.weight")], "maps": 3},
            {"params": [p for name, p in hidden.items() if not name.endswith("qkv.weight")], "maps": 1},
        ]
        optimizers.append(Muon(groups, training.muon_learning_rate, training.muon_momentum, dtype))
    optimizers.append(
        torch.optim.AdamW(
            [
                {"params": [p for p in named.values() if p.ndim >= 2], "weight_decay": training.weight_decay},
                {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            fused=True,
        )
    )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers
