"""Networks for FIRST and PARITY that no training made: every constant is put in by hand.

They follow the constructions of Chiang and Cholak 2022 (arXiv 2202.12172); the derivation here is our own. Two layers;
a token's state is a vector of named numbers, which the list of names below tells apart. N is the number of tokens with
CLS, n = N - 1 that of bits, i the place of a token, k the number of 1s.

**Why layer norm makes the answer certain.** Without norms the answer is a share of attention, and one token of n gets a
share of about 1/n: the logit has the right sign and shrinks, so that the cross-entropy tends to ln 2, a coin's. A norm
divides by the standard deviation, whatever that is. If all that is left of a state is the answer, the norm makes it as
large as any: +sqrt(W/2) or -sqrt(W/2).

**How layer norm is kept from doing harm.** A norm also subtracts the mean and multiplies each token by a number of its
own. (1) Every number x of a state gets a twin -x, so that means are zero and nothing is subtracted. (2) Everything up
to the answer is a sign, or a comparison of numbers of one token: with all biases zero, ReLU and linear maps let a
positive factor through, and no sign changes. (3) The epsilon is 0, or it would be larger than the variance of an answer
of size 1/n², and the norm would leave it small.

Numbers are float64: PARITY compares k/N with i/N and needs differences of 1/N, and its answer is of size 1/N², 1e-8 at
10,000 bits, which the rounding of float32 (6e-8) would drown.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnscale.attention import make_variant
from attnscale.config import ExactSettings, Task
from attnscale.files import write_text
from attnscale.formal.reference import Network
from attnscale.formal.scales import Scale
from attnscale.formal.tasks import Bits, answers, test_strings
from attnscale.formal.weights import Weights
from attnscale.progress import Reporter

COLUMNS = ("task", "layer_norm", "length", "strings", "accuracy", "loss")
# A string of n bits takes n² steps in the first layer; so many of them are run at a length, at least four.
_STRINGS, _BITS_SQUARED = 100, 4e7

# What the output multiplies the answer with. Without norms 1, as in the paper: a larger number would only move the
# length at which the cross-entropy has come near ln 2. With norms the answer is ±sqrt(W/2), at least 2.4, and 4 times
# that is a cross-entropy below 1e-4.
_OUTPUT, _OUTPUT_NORMED = 1.0, 4.0


class _Builder:
    """Matrices with names for their rows and columns instead of numbers.

    Args:
        names: numbers of a state, in their order.
        features: those that hold the position features.
        heads: attention heads.
        normed: whether every number has a twin with the opposite sign.
    """

    def __init__(self, names: Sequence[str], features: Sequence[str], heads: int, *, normed: bool) -> None:
        self.names, self.heads, self.normed = tuple(names), heads, normed
        self.half = len(names)
        self.width = 2 * self.half if normed else self.half
        self.weights: Weights = {}
        embedding = torch.zeros(3, self.width, dtype=torch.float64)
        # Row 0 is the symbol 0, row 1 the symbol 1, row 2 is CLS: each is told by a 1 in the number of its name.
        for symbol, name in enumerate(("is 0", "is 1", "is CLS")):
            self._put(embedding[symbol], name, 1.0)
        self.weights["embedding"] = embedding
        self.features = torch.zeros(len(features), self.width, dtype=torch.float64)
        for row, name in enumerate(features):
            self._put(self.features[row], name, 1.0)

    def place(self, name: str) -> int:
        return self.names.index(name)

    def _put(self, row: Tensor, name: str, value: float) -> None:
        row[self.place(name)] = value
        if self.normed:
            row[self.half + self.place(name)] = -value

    def layer(
        self,
        number: int,
        *,
        queries: Sequence[tuple[str, float]] = (),
        keys: Sequence[tuple[str, float]] = (),
        values: Sequence[Sequence[dict[str, float]]],
        back: dict[str, Sequence[tuple[int, int, float]]],
        hidden: Sequence[dict[str, float]] = (),
        out: dict[str, Sequence[float]] | None = None,
        only: str | None = None,
    ) -> None:
        """Add a layer.

        Args:
            number: of the layer.
            queries: per head, the number that the first entry of the query copies, and its factor; none: all zero.
            keys: the same of the key.
            values: per head, what each entry of the value is made of: factors by name.
            back: number of the state that gets a sum of (head, entry, factor).
            hidden: what each unit of the feed-forward layer is the ReLU of: factors by name.
            out: number of the state that gets a sum of the units, with these factors.
            only: instead of `hidden`: the only number that the feed-forward layer leaves, all others become zero.
        """
        width, size, prefix = self.width, self.width // self.heads, f"layers.{number}."
        q, kv = torch.zeros(width, width, dtype=torch.float64), torch.zeros(2 * width, width, dtype=torch.float64)
        for head, (name, factor) in enumerate(queries):
            q[head * size, self.place(name)] = factor
        for head, (name, factor) in enumerate(keys):
            kv[head * size, self.place(name)] = factor
        for head, entries in enumerate(values):
            for entry, sources in enumerate(entries):
                for name, factor in sources.items():
                    kv[width + head * size + entry, self.place(name)] = factor
        merge = torch.zeros(width, width, dtype=torch.float64)
        for name, parts in back.items():
            for head, entry, factor in parts:
                merge[self.place(name), head * size + entry] = factor
                if self.normed:
                    merge[self.half + self.place(name), head * size + entry] = -factor
        if only is not None:
            up, down = self._all_but(only)
        else:
            up = torch.zeros(max(1, len(hidden)), width, dtype=torch.float64)
            for unit, sources in enumerate(hidden):
                for name, factor in sources.items():
                    up[unit, self.place(name)] = factor
            down = torch.zeros(width, len(up), dtype=torch.float64)
            for name, factors in (out or {}).items():
                for unit, factor in enumerate(factors):
                    self._put(down[:, unit], name, factor)
        self.weights |= {
            f"{prefix}self_attn.q.weight": q,
            f"{prefix}self_attn.kv.weight": kv,
            f"{prefix}self_attn.out_proj.weight": merge,
            f"{prefix}linear1.weight": up,
            f"{prefix}linear2.weight": down,
        }
        # Point (2) of the head of this file: no biases; and norms that do nothing but norm.
        for name in ("self_attn.q", "self_attn.kv", "self_attn.out_proj", "linear1", "linear2"):
            self.weights[f"{prefix}{name}.bias"] = torch.zeros(
                len(self.weights[f"{prefix}{name}.weight"]), dtype=torch.float64
            )
        for name in ("norm1", "norm2"):
            self.weights[f"{prefix}{name}.weight"] = torch.ones(width, dtype=torch.float64)
            self.weights[f"{prefix}{name}.bias"] = torch.zeros(width, dtype=torch.float64)

    def _all_but(self, only: str) -> tuple[Tensor, Tensor]:
        """A feed-forward layer that takes away all of a state but one number and its twin.

        The units hold relu(x) and, thanks to the twins, relu(-x); x itself is relu(x) - relu(-x), and minus that is
        added to the residual stream.
        """
        up, same = torch.eye(self.width, dtype=torch.float64), torch.eye(self.half, dtype=torch.float64)
        same[self.place(only), self.place(only)] = 0.0
        down = torch.cat([torch.cat([-same, same], dim=1), torch.cat([same, -same], dim=1)])
        return up, down

    def output(self, name: str) -> Weights:
        """All weights, with the output that reads one number."""
        weight = torch.zeros(self.width, dtype=torch.float64)
        weight[self.place(name)] = _OUTPUT_NORMED if self.normed else _OUTPUT
        return {
            **self.weights,
            "positions": self.features,
            "output.weight": weight,
            "output.bias": torch.zeros(1, dtype=torch.float64),
        }


def first_weights(*, layer_norm: bool) -> Weights:
    """FIRST in two layers of one head."""
    names = ("is 0", "is 1", "is CLS", "is first", "first is 1", "answer")
    build = _Builder(names, ["is first"], 1, normed=layer_norm)
    build.layer(
        0,
        # No attention: the values are zero.
        values=[[]],
        back={},
        # relu([i = 1] - [0]) is 1 at a 1 in the first place, 0 at a 0 there (1 - 1) and everywhere else (0 or -1).
        # The paper's code has relu([1] + [i = 1] - 1) here; its bias would not survive a norm, see point (2).
        hidden=[{"is first": 1.0, "is 0": -1.0}],
        out={"first is 1": [1.0]},
    )
    build.layer(
        1,
        # CLS asks for the first place: logit 1/sqrt(d) there, 0 at the n others. The other tokens ask for nothing.
        queries=[("is CLS", 1.0)],
        keys=[("is first", 1.0)],
        # At the first place 1 - 1/2 if there is a 1 and 0 - 1/2 if not; 0 at all others, so that attention paid to
        # them makes the answer smaller and never wrong.
        values=[[{"first is 1": 1.0, "is first": -0.5}]],
        # The mixed value is the answer.
        back={"answer": [(0, 0, 1.0)]},
        # Only before a norm there is something to be gained from taking all else away.
        only="answer" if layer_norm else None,
    )
    return build.output("answer")


def parity_weights(*, layer_norm: bool) -> Weights:
    """PARITY in two layers of two heads."""
    names = ("is 0", "is 1", "is CLS", "i/N", "cos(i pi)", "k/N", "1/N", "is kth", "answer", "unused")
    build = _Builder(names, ["i/N", "cos(i pi)"], 2, normed=layer_norm)
    build.layer(
        0,
        # Queries and keys are zero, so every token attends to all alike: the mean of [1] is k/N, and that of [CLS]
        # is 1/N. The second head does nothing.
        values=[[{"is 1": 1.0}, {"is CLS": 1.0}], []],
        back={"k/N": [(0, 0, 1.0)], "1/N": [(0, 1, 1.0)]},
        # With x = (k - i)/N, which is a multiple of 1/N: relu(x - 1/N) - 2 relu(x) + relu(x + 1/N), a hat of height
        # 1/N above x = 0. So it is 1/N at the token whose place is k, and 0 at all others. Place k always exists: CLS
        # stands at place n. Multiplied by a positive number of the token, all of it is multiplied by that number.
        hidden=[
            {"k/N": 1.0, "i/N": -1.0, "1/N": -1.0},
            {"k/N": 1.0, "i/N": -1.0},
            {"k/N": 1.0, "i/N": -1.0, "1/N": 1.0},
        ],
        out={"is kth": [1.0, -2.0, 1.0]},
    )
    build.layer(
        1,
        # CLS asks; cos(i pi) is 1 at even places and -1 at odd ones. The first head prefers even places, the second,
        # whose key has the opposite sign, odd ones.
        queries=[("is CLS", 1.0), ("is CLS", 1.0)],
        keys=[("cos(i pi)", 1.0), ("cos(i pi)", -1.0)],
        # Both average a number that is 0 but at place k. If k is odd, the second head gives it the larger share.
        values=[[{"is kth": 1.0}], [{"is kth": 1.0}]],
        # Share of the second minus share of the first: above zero for odd k, below for even k. Both are about 1/N, and
        # the number at place k is 1/N, so the answer is of size 1/N². At an odd k the shares are exp(a)/Z2 and
        # exp(-a)/Z1, a = 1/sqrt(d), with Z1 and Z2 the sums of the two heads: the sign is right if exp(2a) > Z2/Z1, and
        # for an even k if exp(2a) > Z1/Z2. There are as many even as odd places or one more, so Z1/Z2 is largest at
        # N = 3, where it is 1.33 and exp(2a) is 2.45. With norms a is 2.5 to 5 times as large beside a larger d, and
        # varies a little from token to token; exp(2a) is at least 4.8 then.
        back={"answer": [(0, 0, -1.0), (1, 0, 1.0)]},
        only="answer" if layer_norm else None,
    )
    return build.output("answer")


class Row(NamedTuple):
    """How a hand-built network does at one length."""

    task: Task
    layer_norm: bool
    length: int
    strings: int
    accuracy: float
    loss: float
    """Mean cross-entropy, nats."""


def hand_built(task: Task, *, layer_norm: bool) -> tuple[Network, Weights]:
    """A network and its weights; its logits have the right sign for strings of every length."""
    weights = (first_weights if task == "first" else parity_weights)(layer_norm=layer_norm)
    heads = 1 if task == "first" else 2
    # The usual scale; nothing here depends on L.
    return Network(task, heads, 2, Scale(make_variant("attention_o", {})), 2, 0.0 if layer_norm else None), weights


def measure(task: Task, length: int, *, layer_norm: bool) -> Row:
    """Run a hand-built network on random strings of a length."""
    network, weights = hand_built(task, layer_norm=layer_norm)
    count = min(_STRINGS, max(4, int(_BITS_SQUARED / length**2)))
    strings: Bits = test_strings(task, 0, length, count)
    # Attention over many strings at once would hold all of their N² weights where no fused kernel serves.
    logits = [float(network.logits(weights, strings[place : place + 1])[0]) for place in range(count)]
    right = [logit * int(answer) for logit, answer in zip(logits, answers(task, strings), strict=True)]
    losses = [_softplus(-value) for value in right]
    return Row(task, layer_norm, length, count, sum(value > 0 for value in right) / count, math.fsum(losses) / count)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def write_exact(settings: ExactSettings, output: Path) -> None:
    """Write how the hand-built networks of a task do, without and with layer norm, at each length.

    Args:
        settings: task and lengths.
        output: CSV file with the columns task, layer_norm (off or on), length, strings, accuracy (a share) and loss
            (nats).
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in _rows(settings):
        norm = "on" if row.layer_norm else "off"
        table.writerow([row.task, norm, row.length, row.strings, f"{row.accuracy:.9g}", f"{row.loss:.9g}"])
    write_text(output, text.getvalue())


def _rows(settings: ExactSettings) -> Iterator[Row]:
    title = f"hand-built networks for {settings.task}"
    with torch.inference_mode(), Reporter(title, 2 * len(settings.lengths), unit="length") as reporter:
        for done, (layer_norm, length) in enumerate(
            ((norm, length) for norm in (False, True) for length in settings.lengths), start=1
        ):
            row = measure(settings.task, length, layer_norm=layer_norm)
            reporter.update(done, f"{length} bits, layer norm {'on' if layer_norm else 'off'}, loss {row.loss:.4f}")
            yield row
