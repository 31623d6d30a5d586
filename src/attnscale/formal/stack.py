"""Many tiny networks at once: the same layers with one more axis in front, and their gradients by hand.

A width of 16 and one string a step leave a processor idle in a plain loop, where nearly all time goes into calling
operations. Here one call serves all networks of a stack. The gradients are written out, since autograd would cost as
much again, and held against autograd on the plain network in the tests.

Tensor names end in their shape:
    S networks, T strings of each, K rows of a string (tokens, or kinds of them), Q rows that attend, C symbols,
    W width, U = 2W, F feed-forward width, V any of these, H heads, D size of a head; X = T·K, Y = T·Q, Z = S·T·H.
"""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.formal.scales import Scale
from attnscale.formal.tasks import Batch
from attnscale.formal.weights import Shape, Stacked, Weights

EPSILON = 1e-5
"""Added to the variance in a layer norm, as torch does."""


class _Linear(NamedTuple):
    """A linear layer as its products need it; all of these are views, so that a step of training moves them too."""

    weight_SVW: Tensor
    weight_SWV: Tensor
    bias_S1V: Tensor


class _Norm(NamedTuple):
    """A layer norm's result before its weight and bias, and what the way back needs."""

    summed_SYW: Tensor
    normed_SYW: Tensor
    mean: Tensor
    rstd: Tensor


@dataclasses.dataclass
class _Kept:
    """What the way back needs of a layer."""

    x_SXW: Tensor
    queried_SYW: Tensor
    projected_SYW: Tensor
    """Queries without bias and factor."""
    q_ZQD: Tensor
    k_ZKD: Tensor
    v_ZKD: Tensor
    weights_ZKQ: Tensor
    """Attention weights, keys first: a softmax over the middle axis is the faster one here."""
    mixed_SYW: Tensor
    norm1: _Norm
    z_SYW: Tensor
    h_SYF: Tensor
    norm2: _Norm
    factors_S11: Tensor
    on_weight: Tensor
    on_bias: Tensor


class Stack:
    """Networks of one shape with one scale.

    Args:
        shape: sizes of every network.
        scale: the scale, the same for all.
        training_keys: L of each network, tokens of a training string with CLS.
        weights: as `weights.stacked` gives them; they are changed in place by whoever trains.
    """

    def __init__(self, shape: Shape, scale: Scale, training_keys: list[int], weights: Stacked) -> None:
        self.shape, self.scale, self.training_keys = shape, scale, training_keys
        self.weights, self.gradients = weights, weights.zeros()
        self.dtype = weights.flat.dtype
        own = weights.by_name
        self._linear = {
            name.removesuffix(".weight"): _Linear(
                value, value.transpose(1, 2), own[name.removesuffix("weight") + "bias"].unsqueeze(1)
            )
            for name, value in own.items()
            if name.endswith(".weight") and value.ndim == 3
        }
        self._norms = {
            name.removesuffix(".weight"): (value.unsqueeze(1), own[name.removesuffix("weight") + "bias"].unsqueeze(1))
            for name, value in own.items()
            if "norm" in name and name.endswith(".weight")
        }
        self._output_SW1 = own["output.weight"].unsqueeze(2)
        self._output_S1W = own["output.weight"].unsqueeze(1)
        self._prefixes = [f"layers.{layer}." for layer in range(shape.layers)]

    def factors(self, keys: list[int]) -> Tensor:
        """Factor on q·k of each network where its strings have that many tokens, (S, 1, 1)."""
        heads, size = self.shape.heads, self.shape.head_size
        pairs = zip(keys, self.training_keys, strict=True)
        found = [self.scale.factor(n, training, heads, size) for n, training in pairs]
        return torch.tensor(found, dtype=torch.float64).to(self.dtype).view(-1, 1, 1)

    def losses(self, batch: Batch, factors_S11: Tensor) -> tuple[Tensor, Tensor]:
        """-log sigmoid of the right answer in nats, and whether the answer is right; both (S, T)."""
        right_ST = self._forward(batch, factors_S11)[0] * batch.signs_ST
        return functional.softplus(-right_ST), right_ST > 0

    def losses_and_gradients(self, batch: Batch, factors_S11: Tensor) -> Tensor:
        """Loss of every string, (S, T); the gradients of the sum over a network's strings go to `gradients`."""
        logits_ST, last_SYW, kept = self._forward(batch, factors_S11)
        right_ST = logits_ST * batch.signs_ST
        gradients = self.gradients.by_name
        # d softplus(-r) / dr = -sigmoid(-r)
        d_logits_ST1 = torch.sigmoid(-right_ST).mul_(batch.signs_ST).neg_().unsqueeze(2)
        torch.sum(d_logits_ST1, 1, out=gradients["output.bias"])
        torch.sum(d_logits_ST1 * last_SYW, 1, out=gradients["output.weight"])
        d_SYW = d_logits_ST1 * self._output_S1W
        for layer in range(self.shape.layers - 1, -1, -1):
            d_SYW = self._layer_back(self._prefixes[layer], kept[layer], d_SYW, batch)
        torch.bmm(batch.symbols_STKC.flatten(1, 2).transpose(1, 2), d_SYW, out=gradients["embedding"])
        return functional.softplus(-right_ST)

    def _forward(self, batch: Batch, factors_S11: Tensor) -> tuple[Tensor, Tensor, list[_Kept]]:
        networks, strings, rows = batch.symbols_STKC.shape[:3]
        x_SXW = torch.bmm(batch.symbols_STKC.flatten(1, 2), self.weights.by_name["embedding"])
        x_SXW.view(networks, strings, rows, -1).add_(batch.positions_KW)
        kept = []
        for prefix in self._prefixes:
            # Of the last layer only the CLS token is read.
            last = prefix == self._prefixes[-1]
            queried = x_SXW.view(networks, strings, rows, -1)[:, :, batch.cls] if last else x_SXW
            x_SXW, of_layer = self._layer(prefix, x_SXW, queried, batch, factors_S11)
            kept.append(of_layer)
        logits_ST = torch.bmm(x_SXW, self._output_SW1).squeeze(2).add_(self.weights.by_name["output.bias"])
        return logits_ST, x_SXW, kept

    def _layer(
        self, prefix: str, x_SXW: Tensor, queried_SYW: Tensor, batch: Batch, factors_S11: Tensor
    ) -> tuple[Tensor, _Kept]:
        to_q, to_kv, back = (self._linear[f"{prefix}self_attn.{name}"] for name in ("q", "kv", "out_proj"))
        up, down = self._linear[f"{prefix}linear1"], self._linear[f"{prefix}linear2"]
        on_weight, on_bias = self._scaling(prefix, factors_S11)
        strings = batch.symbols_STKC.shape[1]
        projected_SYW = torch.bmm(queried_SYW, to_q.weight_SWV)
        q_ZQD = self._to_heads((projected_SYW * on_weight).add_(to_q.bias_S1V * on_bias), strings)
        kv_SXU = torch.baddbmm(to_kv.bias_S1V, x_SXW, to_kv.weight_SWV)
        k_ZKD, v_ZKD = (self._to_heads(part, strings) for part in kv_SXU.chunk(2, dim=2))
        logits_ZKQ = torch.bmm(k_ZKD, q_ZQD.transpose(1, 2))
        if batch.log_counts_STK is not None:
            networks, _, rows = batch.log_counts_STK.shape
            split = logits_ZKQ.view(networks, strings, self.shape.heads, rows, -1)
            split.add_(batch.log_counts_STK[:, :, None, :, None])
        weights_ZKQ = torch.softmax(logits_ZKQ, dim=1)
        mixed_SYW = self._from_heads(torch.bmm(weights_ZKQ.transpose(1, 2), v_ZKD), strings)
        norm1 = self._norm(torch.baddbmm(back.bias_S1V, mixed_SYW, back.weight_SWV).add_(queried_SYW))
        weight_S1W, bias_S1W = self._norms[f"{prefix}norm1"]
        z_SYW = torch.addcmul(bias_S1W, norm1.normed_SYW, weight_S1W)
        h_SYF = torch.baddbmm(up.bias_S1V, z_SYW, up.weight_SWV).relu_()
        norm2 = self._norm(torch.baddbmm(down.bias_S1V, h_SYF, down.weight_SWV).add_(z_SYW))
        weight_S1W, bias_S1W = self._norms[f"{prefix}norm2"]
        result_SYW = torch.addcmul(bias_S1W, norm2.normed_SYW, weight_S1W)
        kept = _Kept(
            x_SXW, queried_SYW, projected_SYW, q_ZQD, k_ZKD, v_ZKD, weights_ZKQ, mixed_SYW, norm1, z_SYW, h_SYF, norm2,
            factors_S11, on_weight, on_bias,
        )  # fmt: skip
        return result_SYW, kept

    def _layer_back(self, prefix: str, kept: _Kept, d_SYW: Tensor, batch: Batch) -> Tensor:
        """Gradients of a layer's weights, into `gradients`; returns that of its input, (S, X, W)."""
        strings = batch.symbols_STKC.shape[1]
        d_SYW = self._norm_back(f"{prefix}norm2", kept.norm2, d_SYW)
        d_SYF = self._linear_back(f"{prefix}linear2", kept.h_SYF, d_SYW)
        d_SYF = torch.ops.aten.threshold_backward(d_SYF, kept.h_SYF, 0)
        d_SYW = d_SYW.add_(self._linear_back(f"{prefix}linear1", kept.z_SYW, d_SYF))
        d_SYW = self._norm_back(f"{prefix}norm1", kept.norm1, d_SYW)
        d_mixed_SYW = self._linear_back(f"{prefix}self_attn.out_proj", kept.mixed_SYW, d_SYW)
        d_mixed_ZQD = self._to_heads(d_mixed_SYW, strings)
        d_v_ZKD = torch.bmm(kept.weights_ZKQ, d_mixed_ZQD)
        d_weights_ZKQ = torch.bmm(kept.v_ZKD, d_mixed_ZQD.transpose(1, 2))
        d_logits_ZKQ = torch.ops.aten._softmax_backward_data(d_weights_ZKQ, kept.weights_ZKQ, 1, self.dtype)
        d_k_ZKD = torch.bmm(d_logits_ZKQ, kept.q_ZQD)
        d_q_SYW = self._from_heads(torch.bmm(d_logits_ZKQ.transpose(1, 2), kept.k_ZKD), strings)
        d_kv_SXU = torch.cat([self._from_heads(d_k_ZKD, strings), self._from_heads(d_v_ZKD, strings)], dim=2)
        self._scaling_back(prefix, kept, d_q_SYW)
        name = f"{prefix}self_attn.q"
        d_projected_SYW = d_q_SYW * kept.on_weight
        torch.sum(d_q_SYW * kept.on_bias, 1, out=self.gradients.by_name[f"{name}.bias"])
        _outer(d_projected_SYW, kept.queried_SYW, self.gradients.by_name[f"{name}.weight"])
        d_SYW = d_SYW.add_(torch.bmm(d_projected_SYW, self._linear[name].weight_SVW))
        d_x_SXW = self._linear_back(f"{prefix}self_attn.kv", kept.x_SXW, d_kv_SXU)
        if prefix != self._prefixes[-1]:
            return d_x_SXW.add_(d_SYW)
        networks, _, rows = batch.symbols_STKC.shape[:3]
        d_x_SXW.view(networks, strings, rows, -1)[:, :, batch.cls].add_(d_SYW)
        return d_x_SXW

    def _linear_back(self, name: str, x_SYW: Tensor, d_SYV: Tensor) -> Tensor:
        """Gradients of a linear layer's weight and bias, into `gradients`; returns that of its input."""
        torch.sum(d_SYV, 1, out=self.gradients.by_name[f"{name}.bias"])
        _outer(d_SYV, x_SYW, self.gradients.by_name[f"{name}.weight"])
        return torch.bmm(d_SYV, self._linear[name].weight_SVW)

    def _norm(self, summed_SYW: Tensor) -> _Norm:
        normed_SYW, mean, rstd = torch.native_layer_norm(summed_SYW, (self.shape.width,), None, None, EPSILON)
        return _Norm(summed_SYW, normed_SYW, mean, rstd)

    def _norm_back(self, name: str, norm: _Norm, d_SYW: Tensor) -> Tensor:
        torch.sum(d_SYW, 1, out=self.gradients.by_name[f"{name}.bias"])
        torch.sum(d_SYW * norm.normed_SYW, 1, out=self.gradients.by_name[f"{name}.weight"])
        d_normed_SYW = d_SYW * self._norms[name][0]
        found: Tensor = torch.ops.aten.native_layer_norm_backward(
            d_normed_SYW, norm.summed_SYW, (self.shape.width,), norm.mean, norm.rstd, None, None, [True, False, False]
        )[0]
        return found

    def _scaling(self, prefix: str, factors_S11: Tensor) -> tuple[Tensor, Tensor]:
        """The factor on what is projected to queries, and that on the bias of the projection."""
        if self.scale.on_query_input:
            return factors_S11, torch.full_like(factors_S11, 1 / math.sqrt(self.shape.head_size))
        learned = self._learned(prefix)
        if not learned:
            return factors_S11, factors_S11
        gains_SH = self.scale.gains(learned, self.dtype)
        scaling_S1W = gains_SH.repeat_interleave(self.shape.head_size, dim=1).unsqueeze(1) * factors_S11
        return scaling_S1W, scaling_S1W

    def _scaling_back(self, prefix: str, kept: _Kept, d_q_SYW: Tensor) -> None:
        """Gradients of what the scale learns, through the registered attention's own function."""
        learned = self._learned(prefix)
        if not learned:
            return
        # q is (projected + bias) · factor · gain, so d gain is the sum of d q · q / gain over the rows of a head.
        plain_SYW = (kept.projected_SYW + self._linear[f"{prefix}self_attn.q"].bias_S1V) * kept.factors_S11
        d_gains_SH = (d_q_SYW * plain_SYW).sum(1).view(-1, self.shape.heads, self.shape.head_size).sum(2)
        learned = {name: value.clone().requires_grad_(True) for name, value in learned.items()}
        with torch.enable_grad():
            gains_SH = self.scale.gains(learned, self.dtype)
        for name, found in zip(learned, torch.autograd.grad(gains_SH, list(learned.values()), d_gains_SH), strict=True):
            self.gradients.by_name[f"{prefix}learned.{name}"].copy_(found)

    def _learned(self, prefix: str) -> Weights:
        start = f"{prefix}learned."
        return {name.removeprefix(start): v for name, v in self.weights.by_name.items() if name.startswith(start)}

    def _to_heads(self, x_SXW: Tensor, strings: int) -> Tensor:
        heads, size = self.shape.heads, self.shape.head_size
        rows = x_SXW.shape[1] // strings
        if heads == 1:
            return x_SXW.reshape(-1, rows, size)
        return x_SXW.reshape(-1, rows, heads, size).transpose(1, 2).reshape(-1, rows, size)

    def _from_heads(self, x_ZKD: Tensor, strings: int) -> Tensor:
        heads, width = self.shape.heads, self.shape.width
        rows = x_ZKD.shape[1]
        if heads > 1:
            x_ZKD = x_ZKD.view(-1, heads, rows, self.shape.head_size).transpose(1, 2)
        return x_ZKD.reshape(-1, strings * rows, width)


def _outer(d_SYV: Tensor, x_SYW: Tensor, result_SVW: Tensor) -> None:
    """Gradient of a matrix: products of the gradient of its result and its input, summed over the rows."""
    if d_SYV.shape[1] == 1:
        torch.mul(d_SYV.transpose(1, 2), x_SYW, out=result_SVW)
    else:
        torch.bmm(d_SYV.transpose(1, 2).contiguous(), x_SYW, out=result_SVW)
