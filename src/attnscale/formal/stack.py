"""Many tiny networks at once: the same layers with one more axis in front, and their gradients by hand.

A width of 16 and one string a step leave a processor idle in a plain loop, where nearly all time goes into calling
operations. Here one call serves all networks of a stack. The gradients are written out, since autograd would cost as
much again, and held against autograd on the plain network in the tests.

Tensor names end in their shape:
    S networks, T strings of each, K rows of a string (tokens, or kinds of them), Q rows that attend, W width,
    H heads, D size of a head, F feed-forward width, C symbols; X = T·K, Y = T·Q, Z = S·T·H.
"""

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.formal.scales import Scale
from attnscale.formal.tasks import Batch
from attnscale.formal.weights import Shape, Weights

EPSILON = 1e-5
"""Added to the variance in a layer norm, as torch does."""


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
    """Attention weights, keys first."""
    mixed_SYW: Tensor
    norm1: tuple[Tensor, Tensor, Tensor]
    """Sum that is normed, mean, reciprocal standard deviation."""
    normed1_SYW: Tensor
    z_SYW: Tensor
    h_SYF: Tensor
    norm2: tuple[Tensor, Tensor, Tensor]
    normed2_SYW: Tensor
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

    def __init__(self, shape: Shape, scale: Scale, training_keys: list[int], weights: Weights) -> None:
        self.shape, self.scale, self.training_keys, self.weights = shape, scale, training_keys, weights
        self.dtype = weights["embedding"].dtype

    def factors(self, keys: list[int]) -> Tensor:
        """Factor on q·k of each network where its strings have that many tokens, (S, 1, 1)."""
        heads, size = self.shape.heads, self.shape.head_size
        pairs = zip(keys, self.training_keys, strict=True)
        found = [self.scale.factor(n, training, heads, size) for n, training in pairs]
        return torch.tensor(found, dtype=torch.float64).to(self.dtype).view(-1, 1, 1)

    def logits(self, batch: Batch, factors_S11: Tensor) -> Tensor:
        """Answers of every network to its strings, (S, T)."""
        return self._forward(batch, factors_S11)[0]

    def losses(self, batch: Batch, factors_S11: Tensor) -> tuple[Tensor, Tensor]:
        """-log sigmoid of the right answer in nats, and whether the answer is right; both (S, T)."""
        right_ST = self.logits(batch, factors_S11) * batch.signs_ST
        return functional.softplus(-right_ST), right_ST > 0

    def loss_and_gradients(self, batch: Batch, factors_S11: Tensor) -> tuple[Tensor, Weights]:
        """Loss of every string, (S, T), and the gradients of the sum over a network's strings, by name."""
        logits_ST, x_SXW, last_SYW, kept = self._forward(batch, factors_S11)
        right_ST = logits_ST * batch.signs_ST
        gradients: Weights = {}
        # d softplus(-r) / dr = -sigmoid(-r)
        d_logits_ST1 = (torch.sigmoid(-right_ST) * batch.signs_ST).neg_().unsqueeze(2)
        gradients["output.bias"] = d_logits_ST1.sum(1)
        gradients["output.weight"] = torch.bmm(d_logits_ST1.transpose(1, 2), last_SYW).squeeze(1)
        d_SYW = d_logits_ST1 * self.weights["output.weight"].unsqueeze(1)
        for layer in range(self.shape.layers - 1, -1, -1):
            d_SYW = self._layer_back(layer, kept[layer], d_SYW, batch, gradients)
        symbols_SXC = batch.symbols_STKC.flatten(1, 2)
        gradients["embedding"] = torch.bmm(symbols_SXC.transpose(1, 2), d_SYW)
        return functional.softplus(-right_ST), gradients

    def _forward(self, batch: Batch, factors_S11: Tensor) -> tuple[Tensor, Tensor, Tensor, list[_Kept]]:
        networks, strings, rows = batch.symbols_STKC.shape[:3]
        width, last = self.shape.width, self.shape.layers - 1
        x_SXW = torch.bmm(batch.symbols_STKC.flatten(1, 2), self.weights["embedding"])
        x_SXW = (x_SXW.view(networks, strings, rows, width) + batch.positions_KW).flatten(1, 2)
        first_SXW, kept = x_SXW, []
        for layer in range(self.shape.layers):
            # Of the last layer only the CLS token is read.
            queried = x_SXW.view(networks, strings, rows, width)[:, :, batch.cls] if layer == last else x_SXW
            x_SXW, of_layer = self._layer(layer, x_SXW, queried, batch, factors_S11)
            kept.append(of_layer)
        weight_SW1, bias_S1 = self.weights["output.weight"].unsqueeze(2), self.weights["output.bias"]
        logits_ST = torch.bmm(x_SXW, weight_SW1).squeeze(2) + bias_S1
        return logits_ST, first_SXW, x_SXW, kept

    def _layer(
        self, layer: int, x_SXW: Tensor, queried_SYW: Tensor, batch: Batch, factors_S11: Tensor
    ) -> tuple[Tensor, _Kept]:
        weights, name, width = self.weights, f"layers.{layer}.", self.shape.width
        inward_SVW, bias_S1V = weights[f"{name}self_attn.in_proj_weight"], self._bias(f"{name}self_attn.in_proj_bias")
        on_weight, on_bias = self._scaling(layer, factors_S11)
        projected_SYW = torch.bmm(queried_SYW, inward_SVW[:, :width].transpose(1, 2))
        q_SYW = projected_SYW * on_weight + bias_S1V[:, :, :width] * on_bias
        kv_SXU = torch.baddbmm(bias_S1V[:, :, width:], x_SXW, inward_SVW[:, width:].transpose(1, 2))
        strings = batch.symbols_STKC.shape[1]
        q_ZQD = self._to_heads(q_SYW, strings)
        k_ZKD, v_ZKD = self._to_heads(kv_SXU[:, :, :width], strings), self._to_heads(kv_SXU[:, :, width:], strings)
        logits_ZKQ = torch.bmm(k_ZKD, q_ZQD.transpose(1, 2))
        if batch.log_counts_STK is not None:
            counts_STK = batch.log_counts_STK
            logits_ZKQ = (
                logits_ZKQ.view(*counts_STK.shape[:2], self.shape.heads, *logits_ZKQ.shape[1:])
                + counts_STK[:, :, None, :, None]
            ).view(logits_ZKQ.shape)
        weights_ZKQ = torch.softmax(logits_ZKQ, dim=1)
        mixed_SYW = self._from_heads(torch.bmm(weights_ZKQ.transpose(1, 2), v_ZKD), strings)
        out_SWW = weights[f"{name}self_attn.out_proj.weight"].transpose(1, 2)
        summed1 = torch.baddbmm(self._bias(f"{name}self_attn.out_proj.bias"), mixed_SYW, out_SWW).add_(queried_SYW)
        normed1_SYW, mean1, rstd1 = torch.native_layer_norm(summed1, (width,), None, None, EPSILON)
        z_SYW = normed1_SYW * self._bias(f"{name}norm1.weight") + self._bias(f"{name}norm1.bias")
        first_SWF = weights[f"{name}linear1.weight"].transpose(1, 2)
        h_SYF = torch.baddbmm(self._bias(f"{name}linear1.bias"), z_SYW, first_SWF).relu_()
        second_SFW = weights[f"{name}linear2.weight"].transpose(1, 2)
        summed2 = torch.baddbmm(self._bias(f"{name}linear2.bias"), h_SYF, second_SFW).add_(z_SYW)
        normed2_SYW, mean2, rstd2 = torch.native_layer_norm(summed2, (width,), None, None, EPSILON)
        result_SYW = normed2_SYW * self._bias(f"{name}norm2.weight") + self._bias(f"{name}norm2.bias")
        kept = _Kept(
            x_SXW, queried_SYW, projected_SYW, q_ZQD, k_ZKD, v_ZKD, weights_ZKQ, mixed_SYW,
            (summed1, mean1, rstd1), normed1_SYW, z_SYW, h_SYF, (summed2, mean2, rstd2), normed2_SYW,
            factors_S11, on_weight, on_bias,
        )  # fmt: skip
        return result_SYW, kept

    def _layer_back(self, layer: int, kept: _Kept, d_SYW: Tensor, batch: Batch, gradients: Weights) -> Tensor:
        """Gradients of a layer's weights, into `gradients`; returns that of its input, (S, X, W)."""
        weights, name, width = self.weights, f"layers.{layer}.", self.shape.width
        d_SYW = self._norm_back(f"{name}norm2", kept.norm2, kept.normed2_SYW, d_SYW, gradients)
        gradients[f"{name}linear2.bias"] = d_SYW.sum(1)
        gradients[f"{name}linear2.weight"] = _outer(d_SYW, kept.h_SYF)
        d_SYF = torch.bmm(d_SYW, weights[f"{name}linear2.weight"])
        d_SYF = torch.ops.aten.threshold_backward(d_SYF, kept.h_SYF, 0)
        gradients[f"{name}linear1.bias"] = d_SYF.sum(1)
        gradients[f"{name}linear1.weight"] = _outer(d_SYF, kept.z_SYW)
        d_SYW = torch.baddbmm(d_SYW, d_SYF, weights[f"{name}linear1.weight"])
        d_SYW = self._norm_back(f"{name}norm1", kept.norm1, kept.normed1_SYW, d_SYW, gradients)
        gradients[f"{name}self_attn.out_proj.bias"] = d_SYW.sum(1)
        gradients[f"{name}self_attn.out_proj.weight"] = _outer(d_SYW, kept.mixed_SYW)
        strings = batch.symbols_STKC.shape[1]
        d_mixed_ZQD = self._to_heads(torch.bmm(d_SYW, weights[f"{name}self_attn.out_proj.weight"]), strings)
        d_v_ZKD = torch.bmm(kept.weights_ZKQ, d_mixed_ZQD)
        d_weights_ZKQ = torch.bmm(kept.v_ZKD, d_mixed_ZQD.transpose(1, 2))
        d_logits_ZKQ = torch.ops.aten._softmax_backward_data(d_weights_ZKQ, kept.weights_ZKQ, 1, self.dtype)
        d_k_ZKD = torch.bmm(d_logits_ZKQ, kept.q_ZQD)
        d_q_SYW = self._from_heads(torch.bmm(d_logits_ZKQ.transpose(1, 2), kept.k_ZKD), strings)
        d_kv_SXU = torch.cat([self._from_heads(d_k_ZKD, strings), self._from_heads(d_v_ZKD, strings)], dim=2)
        self._scaling_back(layer, kept, d_q_SYW, gradients)
        d_projected_SYW, d_bias_SYW = d_q_SYW * kept.on_weight, d_q_SYW * kept.on_bias
        inward_SVW = weights[f"{name}self_attn.in_proj_weight"]
        d_bias_SV = torch.cat([d_bias_SYW.sum(1), d_kv_SXU.sum(1)], dim=1)
        d_inward_SVW = torch.cat([_outer(d_projected_SYW, kept.queried_SYW), _outer(d_kv_SXU, kept.x_SXW)], dim=1)
        gradients[f"{name}self_attn.in_proj_bias"] = d_bias_SV
        gradients[f"{name}self_attn.in_proj_weight"] = d_inward_SVW
        d_SYW = torch.baddbmm(d_SYW, d_projected_SYW, inward_SVW[:, :width])
        d_x_SXW = torch.bmm(d_kv_SXU, inward_SVW[:, width:])
        networks, rows = d_x_SXW.shape[0], batch.symbols_STKC.shape[2]
        if d_SYW.shape == d_x_SXW.shape:
            return d_x_SXW.add_(d_SYW)
        d_x_SXW.view(networks, strings, rows, width)[:, :, batch.cls].add_(d_SYW)
        return d_x_SXW

    def _norm_back(
        self, name: str, statistics: tuple[Tensor, Tensor, Tensor], normed_SYW: Tensor, d_SYW: Tensor,
        gradients: Weights,
    ) -> Tensor:  # fmt: skip
        gradients[f"{name}.bias"] = d_SYW.sum(1)
        gradients[f"{name}.weight"] = (d_SYW * normed_SYW).sum(1)
        d_normed_SYW = d_SYW * self._bias(f"{name}.weight")
        summed, mean, rstd = statistics
        found = torch.ops.aten.native_layer_norm_backward(
            d_normed_SYW, summed, (self.shape.width,), mean, rstd, None, None, [True, False, False]
        )
        return found[0]  # type: ignore[no-any-return]

    def _scaling(self, layer: int, factors_S11: Tensor) -> tuple[Tensor, Tensor]:
        """The factor on what is projected to queries, and that on the bias of the projection."""
        if self.scale.on_query_input:
            return factors_S11, torch.full_like(factors_S11, 1 / math.sqrt(self.shape.head_size))
        learned_SH = self._learned(layer)
        if not learned_SH:
            return factors_S11, factors_S11
        gains_SH = self.scale.gains(learned_SH, self.dtype).detach()
        scaling_S1W = gains_SH.repeat_interleave(self.shape.head_size, dim=1).unsqueeze(1) * factors_S11
        return scaling_S1W, scaling_S1W

    def _scaling_back(self, layer: int, kept: _Kept, d_q_SYW: Tensor, gradients: Weights) -> None:
        """Gradients of what the scale learns, through the registered attention's own function."""
        learned = self._learned(layer)
        if not learned:
            return
        # q is (projected + bias) · factor · gain, so d gain is the sum of d q · q / gain over the rows of a head.
        bias_S1W = self._bias(f"layers.{layer}.self_attn.in_proj_bias")[:, :, : self.shape.width]
        plain_SYW = (kept.projected_SYW + bias_S1W) * kept.factors_S11
        d_gains_SH = (d_q_SYW * plain_SYW).sum(1).unflatten(1, (self.shape.heads, self.shape.head_size)).sum(2)
        learned_SH = {name: value.clone().requires_grad_(True) for name, value in learned.items()}
        with torch.enable_grad():
            gains_SH = self.scale.gains(learned_SH, self.dtype)
        found = torch.autograd.grad(gains_SH, list(learned_SH.values()), d_gains_SH)
        gradients |= {f"layers.{layer}.learned.{name}": value for name, value in zip(learned_SH, found, strict=True)}

    def _learned(self, layer: int) -> Weights:
        prefix = f"layers.{layer}.learned."
        return {name.removeprefix(prefix): v for name, v in self.weights.items() if name.startswith(prefix)}

    def _bias(self, name: str) -> Tensor:
        return self.weights[name].unsqueeze(1)

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


def _outer(d_SYV: Tensor, x_SYW: Tensor) -> Tensor:
    """Gradient of a matrix, (S, V, W); of one row it is a product without a sum."""
    if d_SYV.shape[1] == 1:
        return d_SYV.transpose(1, 2) * x_SYW
    return torch.bmm(d_SYV.transpose(1, 2).contiguous(), x_SYW)
