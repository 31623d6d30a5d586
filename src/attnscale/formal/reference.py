"""One network on whole strings, written as plainly as can be: what the stacked trainer is held against.

It is the post-norm encoder of torch.nn.TransformerEncoderLayer with ReLU and without dropout, whose attention is a
registered one. The hand-built networks run in it too.

Tensor names end in their shape:
    B strings of one length, n bits, N tokens with CLS, Q tokens that attend, W width, F feed-forward width, H heads,
    D size of a head.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.config import Task
from attnscale.formal.scales import Scale
from attnscale.formal.tasks import Bits, answers, position_features, training_strings, whole_strings
from attnscale.formal.weights import Shape, Weights, initial_weights


@dataclasses.dataclass(frozen=True)
class Network:
    """How weights are used: the task, the scale, the norm."""

    task: Task
    heads: int
    layers: int
    scale: Scale
    training_keys: int
    """L: tokens of a training string with CLS."""
    epsilon: float | None = 1e-5
    """Added to the variance in a norm; None leaves the norms out."""

    def logits(self, weights: Mapping[str, Tensor], bits_Bn: Bits) -> Tensor:
        """The answers to strings, (B,): yes above zero, no below."""
        symbols_BN, cls = whole_strings(self.task, bits_Bn)
        embedding, tokens = weights["embedding"], symbols_BN.shape[1]
        x_BNW = embedding[symbols_BN]
        if "positions" in weights:  # hand-built: which numbers of a state hold the features
            rows = weights["positions"]
            x_BNW = x_BNW + position_features(self.task, tokens, len(rows), embedding.dtype) @ rows
        else:
            x_BNW = x_BNW + position_features(self.task, tokens, embedding.shape[1], embedding.dtype)
        for layer in range(self.layers):
            prefix = f"layers.{layer}."
            own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
            # Of the last layer only the CLS token is read, which leaves out most of the work on a long string.
            x_BNW = self._layer(own, x_BNW, x_BNW[:, cls : cls + 1] if layer == self.layers - 1 else x_BNW)
        return x_BNW[:, 0] @ weights["output.weight"] + weights["output.bias"]

    def losses(self, weights: Mapping[str, Tensor], bits_Bn: Bits) -> Tensor:
        """-log sigmoid of the logits, or of their negatives where the answer is no, (B,); nats."""
        return functional.softplus(-torch.from_numpy(answers(self.task, bits_Bn)) * self.logits(weights, bits_Bn))

    def _layer(self, own: Mapping[str, Tensor], x_BNW: Tensor, asking_BQW: Tensor) -> Tensor:
        z_BQW = self._norm(own, "norm1", asking_BQW + self._attention(own, x_BNW, asking_BQW))
        h_BQF = torch.relu(functional.linear(z_BQW, own["linear1.weight"], own["linear1.bias"]))
        return self._norm(own, "norm2", z_BQW + functional.linear(h_BQF, own["linear2.weight"], own["linear2.bias"]))

    def _norm(self, own: Mapping[str, Tensor], name: str, x_BNW: Tensor) -> Tensor:
        if self.epsilon is None:
            return x_BNW
        weight, bias = own[f"{name}.weight"], own[f"{name}.bias"]
        return functional.layer_norm(x_BNW, (x_BNW.shape[2],), weight, bias, self.epsilon)

    def _attention(self, own: Mapping[str, Tensor], x_BNW: Tensor, asking_BQW: Tensor) -> Tensor:
        strings, tokens, width = x_BNW.shape
        head_size = width // self.heads
        factor = self.scale.factor(tokens, self.training_keys, self.heads, head_size)
        plain = head_size**-0.5
        wq, bq = own["self_attn.q.weight"], own["self_attn.q.bias"]
        if self.scale.on_query_input:
            q_BQW = functional.linear(asking_BQW * (factor / plain), wq, bq) * plain
        else:
            q_BQW = functional.linear(asking_BQW, wq, bq) * factor
        k_BNW, v_BNW = functional.linear(x_BNW, own["self_attn.kv.weight"], own["self_attn.kv.bias"]).chunk(2, dim=2)
        q_BHQD, k_BHND, v_BHND = (
            y.reshape(strings, -1, self.heads, head_size).transpose(1, 2) for y in (q_BQW, k_BNW, v_BNW)
        )
        learned = {name.removeprefix("learned."): value for name, value in own.items() if name.startswith("learned.")}
        context = self.scale.context(tokens, self.training_keys, self.heads, head_size)
        context = dataclasses.replace(context, learned=learned)
        mixed_BHQD = self.scale.variant.mix(q_BHQD, k_BHND, v_BHND, context, 0.0)
        mixed_BQW = mixed_BHQD.transpose(1, 2).reshape(strings, -1, width)
        return functional.linear(mixed_BQW, own["self_attn.out_proj.weight"], own["self_attn.out_proj.bias"])


def train_alone(
    network: Network, shape: Shape, seed: int, length: int, epochs: int, steps: int, learning_rate: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[Weights, list[float]]:  # fmt: skip
    """Train one network by a plain loop: one string, autograd, torch's Adam, step by step.

    Returns:
        Its weights, and the loss before each step in nats.
    """
    weights = initial_weights(shape, seed, network.scale, network.training_keys, dtype)
    for value in weights.values():
        value.requires_grad_(True)
    adam = torch.optim.Adam(weights.values(), lr=learning_rate)
    losses = []
    for epoch in range(epochs):
        for bits_n in training_strings(network.task, seed, length, epoch, steps):
            adam.zero_grad()
            loss = network.losses(weights, bits_n[None]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            losses.append(loss.item())
    return {name: value.detach() for name, value in weights.items()}, losses
