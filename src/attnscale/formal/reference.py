"""One network on one whole string, written as plainly as can be: what the stacked trainer is held against.

It is the post-norm encoder of torch.nn.TransformerEncoderLayer with ReLU and without dropout, whose attention is a
registered one. The hand-built networks run in it too.

Tensor names end in their shape:
    N tokens of the string with CLS, W width, F feed-forward width, H heads, D size of a head, B = 1 row.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.formal.scales import Scale
from attnscale.formal.tasks import Bits, Task, answers, position_features, training_strings, whole_string
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

    def logit(self, weights: Mapping[str, Tensor], bits_n: Bits) -> Tensor:
        """The answer to a string: yes above zero, no below."""
        symbols_N, cls = whole_string(self.task, bits_n)
        embedding = weights["embedding"]
        x_NW = embedding[symbols_N]
        if "positions" in weights:  # hand-built: which numbers of a state hold the features
            rows = weights["positions"]
            x_NW = x_NW + position_features(self.task, len(symbols_N), len(rows), embedding.dtype) @ rows
        else:
            x_NW = x_NW + position_features(self.task, len(symbols_N), embedding.shape[1], embedding.dtype)
        for layer in range(self.layers):
            prefix = f"layers.{layer}."
            own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
            x_NW = self._layer(own, x_NW)
        return weights["output.weight"] @ x_NW[cls] + weights["output.bias"][0]

    def loss(self, weights: Mapping[str, Tensor], bits_n: Bits) -> Tensor:
        """-log sigmoid of the logit, or of its negative where the answer is no; nats."""
        return functional.softplus(-int(answers(self.task, bits_n)) * self.logit(weights, bits_n))

    def _layer(self, own: Mapping[str, Tensor], x_NW: Tensor) -> Tensor:
        x_NW = self._norm(own, "norm1", x_NW + self._attention(own, x_NW))
        h_NF = torch.relu(functional.linear(x_NW, own["linear1.weight"], own["linear1.bias"]))
        return self._norm(own, "norm2", x_NW + functional.linear(h_NF, own["linear2.weight"], own["linear2.bias"]))

    def _norm(self, own: Mapping[str, Tensor], name: str, x_NW: Tensor) -> Tensor:
        if self.epsilon is None:
            return x_NW
        weight, bias = own[f"{name}.weight"], own[f"{name}.bias"]
        return functional.layer_norm(x_NW, (x_NW.shape[1],), weight, bias, self.epsilon)

    def _attention(self, own: Mapping[str, Tensor], x_NW: Tensor) -> Tensor:
        tokens, width = x_NW.shape
        head_size = width // self.heads
        factor = self.scale.factor(tokens, self.training_keys, self.heads, head_size)
        plain = head_size**-0.5
        wq, bq = own["self_attn.q.weight"], own["self_attn.q.bias"]
        if self.scale.on_query_input:
            q_NW = functional.linear(x_NW * (factor / plain), wq, bq) * plain
        else:
            q_NW = functional.linear(x_NW, wq, bq) * factor
        k_NW, v_NW = functional.linear(x_NW, own["self_attn.kv.weight"], own["self_attn.kv.bias"]).chunk(2, dim=1)
        q_BHND, k_BHND, v_BHND = (
            y.reshape(1, tokens, self.heads, head_size).transpose(1, 2) for y in (q_NW, k_NW, v_NW)
        )
        learned = {name.removeprefix("learned."): value for name, value in own.items() if name.startswith("learned.")}
        context = self.scale.context(tokens, self.training_keys, self.heads, head_size)
        context = dataclasses.replace(context, learned=learned)
        mixed_BHND = self.scale.variant.mix(q_BHND, k_BHND, v_BHND, context, 0.0)
        mixed_NW = mixed_BHND.transpose(1, 2).reshape(tokens, width)
        return functional.linear(mixed_NW, own["self_attn.out_proj.weight"], own["self_attn.out_proj.bias"])


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
            loss = network.loss(weights, bits_n)
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            losses.append(loss.item())
    return {name: value.detach() for name, value in weights.items()}, losses
