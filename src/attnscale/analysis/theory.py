"""The derivation of the scale recomputed: `theory.csv`, and what follows from it in two sentences.

Source: kexue.fm/archives/8823 (notation d, n, L, lambda as in `theory_entropy`). Nothing here depends on a run's
weights, and nothing is sampled.

`theory.csv` has the columns quantity,d,n,parameter,method,value; a field is empty where it has no meaning:

| quantity | d | n | parameter | method | value |
|---|---|---|---|---|---|
| saddle_cos, saddle_sin2, saddle_slope | | | lambda = 1 | closed form, root finding | cos and sin² of the angle \
between query and key that dominates; entropy lost per dimension |
| kappa_of_slope, embedding_size_of_slope | | | | closed form | 1 / slope, kappa of log n / (slope · d); 2 / slope, \
the size per log of the vocabulary of archives/7695 |
| kappa_at_base | yes | 512 | | closed form | kappa for which kappa log n / d equals 1 / sqrt d at this n |
| entropy_drop | yes | | lambda | quadrature, saddle point, quadratic, linear | nats below log n, n → ∞ |
| scale_multiplier | yes | yes | variant(parameters) | formula | factor on q·k, times sqrt d |
| random_keys_entropy | yes | yes | variant(parameters) | quadrature | mean entropy in nats over n random keys |
| random_keys_left_out | yes | | variant(parameters) | why it has no such rows | |
| gaussian_entropy | | L | sigma | quadrature | mean entropy in nats of n normal logits of this spread |
| constant_entropy_multiplier | | yes | sigma | quadrature | multiplier that keeps the entropy of L keys; empty if \
there is none |
| constant_entropy_power | | yes | sigma | quadrature | its exponent p as a law (log n / log L)^p |
| nearest_law_power | | yes | sigma | quadrature | exponent of the nearest law: 1 for log n, 0.5 for sqrt(log n) |
| law_multiplier | | yes | | log n, sqrt(log n) | the law's multiplier at n |
| freezing_sigma | | yes | | random-energy model | spread of logits from which few keys hold most weight |
"""

import dataclasses
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from attnscale.analysis.theory_entropy import (
    LAWS,
    PRINTED_SLOPE,
    constant_entropy_multiplier,
    entropy_drop,
    freezing_sigma,
    gaussian_entropy,
    saddle_closed,
    saddle_root,
    sphere_entropy,
)
from attnscale.attention import Attention, Context, load_module, make_variant, registered, try_out
from attnscale.csv_files import read_table
from attnscale.errors import UserError
from attnscale.files import write_text

HEAD_SIZES = (32, 64, 128)
"""Head sizes for which the loss of entropy is tabulated, besides that of the model."""
FACTORS = (0.05, 0.2, 0.3, 0.5, 1.0)
"""lambda of that table, besides 1/sqrt d."""
SIGMAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""Spreads of logits for which the multiplier is tabulated."""
ARTICLE_BASE = 512
"""Where the article fixes kappa by agreement with 1/sqrt d."""
PARAMETER_SETS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("attention_e", {"base": ARTICLE_BASE}),
    ("attention_e", {"base": "training_length"}),
    ("attention_e_kappa", {"kappa": 1.0}),
    ("attention_e_kappa", {"kappa": 1 / PRINTED_SLOPE}),
)
"""Scales of the table of random keys besides every registered variant with its defaults."""

NEARLY, PARTLY = 0.25, 0.75
"""Shares of the usual growth of entropy up to which a scale is said to hold it nearly, or partly."""

_TYPES: dict[str, Any] = {"quantity": str, "d": "Int64", "n": "Int64", "parameter": str, "method": str, "value": float}
_Row = tuple[str, int | None, int | None, str, str, float]


@dataclasses.dataclass(frozen=True)
class Scale:
    """A registered attention as far as it is a factor on q·k that depends on the number of keys only."""

    label: str
    """Name with parameters, as in `attention_e(base=512)`."""
    factors: Mapping[int, float]
    """Factor on q·k by number of keys; empty if it is left out."""
    left_out: str | None = None
    """Why it is more, or something other, than such a factor; None if it is one."""


def write_theory(
    output: Path, *, head_size: int, lengths: Sequence[int], training_length: int, modules: Sequence[str] = ()
) -> None:
    """Write `theory.csv` (columns: see the top of this file).

    Args:
        output: the CSV file to write.
        head_size: d of the model, at least 2.
        lengths: numbers of keys n, at least 2 each; order and repetition do not matter.
        training_length: L, at least 2.
        modules: paths of .py files that register more variants.

    Raises:
        UserError: a number is out of range, or a module does not import.
    """
    table = theory_table(head_size=head_size, lengths=lengths, training_length=training_length, modules=modules)
    # Seven digits: more would show last bits in which machines may differ.
    write_text(output, table.to_csv(index=False, float_format="%.7g", lineterminator="\n"))


def read_theory(path: Path) -> pd.DataFrame:
    """Read `theory.csv` with the types that `theory_table` gives.

    Raises:
        UserError: the file is missing, damaged or empty.
    """
    return read_table(
        path,
        words=("quantity", "parameter", "method"),
        whole_or_empty=("d", "n"),
        real_or_empty=("value",),
    )


def theory_table(
    *, head_size: int, lengths: Sequence[int], training_length: int, modules: Sequence[str] = ()
) -> pd.DataFrame:
    """The content of `theory.csv`; for the arguments see `write_theory`."""
    for name, number in (("head_size", head_size), ("training_length", training_length), *(("n", n) for n in lengths)):
        if number < 2:
            raise UserError(f"the theory needs {name} from 2 on, not {number}")
    ns = sorted({training_length, *lengths})
    scales = random_key_scales(head_size, ns, training_length, modules)
    rows = itertools.chain(
        _constants(sorted({*HEAD_SIZES, head_size})),
        _drops(sorted({*HEAD_SIZES, head_size})),
        _random_keys(scales, head_size),
        _multipliers(ns, training_length),
    )
    return pd.DataFrame(list(rows), columns=list(_TYPES)).astype(_TYPES)


def consequences(table: pd.DataFrame) -> tuple[str, str]:
    """What follows from the numbers, in two plain sentences.

    Args:
        table: from `theory_table` or `read_theory`.
    """
    random_keys = table[table["quantity"] == "random_keys_entropy"]
    d = int(random_keys["d"].iloc[0])
    at_work = table[(table["quantity"] == "entropy_drop") & (table["d"] == d)]
    drop = at_work[at_work["parameter"] == _text(1 / math.sqrt(d))].set_index("method")["value"]
    first = (
        f"At the usual scale, lambda = 1/sqrt(d) with d = {d}, the entropy over many random keys is "
        f"{drop['quadrature']:.3f} nats below log n, where the article's {PRINTED_SLOPE} lambda d says "
        f"{drop['linear']:.2f}, {drop['linear'] / drop['quadrature']:.1f} times as much, and lambda² d / 2 says "
        f"{drop['quadratic']:.3f}."
    )
    return first, _constancy(random_keys, d)


def _constancy(random_keys: pd.DataFrame, d: int) -> str:
    entropy = random_keys.pivot(index="parameter", columns="n", values="value")
    shortest, longest = int(entropy.columns.min()), int(entropy.columns.max())
    if shortest == longest:
        return f"With n = {shortest} as the only length, nothing follows about constancy of entropy."
    growth = entropy[longest] - entropy[shortest]
    usual = growth["attention_o"]
    named = {
        _label("attention_e", {"base": ARTICLE_BASE}): f"log(n) / log({ARTICLE_BASE}) / sqrt(d)",
        _label("attention_e_kappa", {"kappa": 1 / PRINTED_SLOPE}): f"log(n) / ({PRINTED_SLOPE} d)",
    }
    told = [
        f"{formula} {_verdict(growth[label] / usual)} ({growth[label]:+.2f})".replace("-", "−")
        for label, formula in named.items()
    ]
    return (
        f"Before any training, with random keys and d = {d}, entropy grows by {usual:.2f} nats from n = {shortest} to "
        f"{longest} under 1/sqrt(d); {' and '.join(told)}."
    )


def _verdict(share: float) -> str:
    if abs(share) <= NEARLY:
        return "nearly keeps it constant"
    return "keeps it constant only in part" if abs(share) <= PARTLY else "does not keep it constant"


def random_key_scales(
    head_size: int, lengths: Sequence[int], training_length: int, modules: Sequence[str] = ()
) -> list[Scale]:
    """Every registered attention with its defaults, and `PARAMETER_SETS`, as factors at each number of keys.

    Args:
        head_size: d.
        lengths: numbers of keys n.
        training_length: L.
        modules: paths of .py files that register more variants.

    Returns:
        In the order of their labels, those that are left out among them.

    Raises:
        UserError: a module does not import.
    """
    for module in modules:
        load_module(module)
    sets: list[tuple[str, Mapping[str, Any]]] = [*((name, {}) for name in registered()), *PARAMETER_SETS]
    scales = [
        _scale(name, parameters, _home(name, modules), head_size, lengths, training_length) for name, parameters in sets
    ]
    # A parameter set may be a variant's default.
    return [scale for _, scale in sorted({scale.label: scale for scale in scales}.items())]


def _home(name: str, modules: Sequence[str]) -> str | None:
    """The module among those given that defines a variant; None if it is the package's."""
    source = Path(inspect.getsourcefile(registered()[name]) or "").resolve()
    return next((module for module in modules if Path(module).resolve() == source), None)


def _scale(
    name: str,
    parameters: Mapping[str, Any],
    module: str | None,
    head_size: int,
    lengths: Sequence[int],
    training_length: int,
) -> Scale:
    try:
        variant = make_variant(name, parameters, module)
        try_out(variant, longest=max(lengths), training_length=training_length)
    except UserError as error:
        return Scale(name, {}, f"it cannot be used as it is: {error}")
    label = _label(name, dataclasses.asdict(variant))
    reason = _more_than_a_factor(variant, _context(lengths[0], head_size, training_length))
    if reason:
        return Scale(label, {}, reason)
    factors = {n: variant.factor(_context(n, head_size, training_length)).item() for n in lengths}
    if not all(map(math.isfinite, factors.values())):
        return Scale(label, {}, "its factor is not finite at one of the lengths")
    return Scale(label, factors)


def _context(n: int, head_size: int, training_length: int) -> Context:
    """One full row of n keys."""
    return Context(
        n_B=torch.tensor([float(n)], dtype=torch.float64),
        key_mask_BM=None,
        positions_N=torch.arange(n, dtype=torch.float64),
        training_length=training_length,
        heads=1,
        head_size=head_size,
    )


def _more_than_a_factor(variant: Attention, context: Context) -> str | None:
    kind = type(variant)
    if variant.learned(heads=1, training_length=context.training_length):
        return "it learns a part of its scale"
    if kind.queries is not Attention.queries:
        return "its factor differs between heads or positions"
    if kind.mix is not Attention.mix or kind.logits is not Attention.logits:
        return "it replaces the softmax of scaled products"
    if variant.bias(context) is not None or variant.mask(context) is not None:
        return "it adds a bias or a mask to the logits"
    return None


def _label(name: str, parameters: Mapping[str, Any]) -> str:
    """`name(parameter=value, ...)`, or the name alone if there are no parameters."""
    given = ", ".join(f"{key}={_text(value)}" for key, value in parameters.items())
    return f"{name}({given})" if given else name


def _text(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _constants(head_sizes: Sequence[int]) -> Iterator[_Row]:
    for method, saddle in (("closed form", saddle_closed(1.0)), ("root finding", saddle_root(1.0))):
        for part, value in saddle._asdict().items():
            yield f"saddle_{part}", None, None, "1", method, value
    slope = saddle_closed(1.0).slope
    yield "kappa_of_slope", None, None, "", "closed form", 1 / slope
    yield "embedding_size_of_slope", None, None, "", "closed form", 2 / slope
    for d in head_sizes:
        yield "kappa_at_base", d, ARTICLE_BASE, "", "closed form", math.sqrt(d) / math.log(ARTICLE_BASE)


def _drops(head_sizes: Sequence[int]) -> Iterator[_Row]:
    for d in head_sizes:
        for factor in sorted({*FACTORS, 1 / math.sqrt(d)}):
            for method, value in entropy_drop(factor, d).items():
                yield "entropy_drop", d, None, _text(factor), method, value


def _random_keys(scales: Sequence[Scale], d: int) -> Iterator[_Row]:
    for scale in scales:
        if scale.left_out:
            yield "random_keys_left_out", d, None, scale.label, scale.left_out, math.nan
        for n, factor in scale.factors.items():
            yield "scale_multiplier", d, n, scale.label, "formula", factor * math.sqrt(d)
            yield "random_keys_entropy", d, n, scale.label, "quadrature", sphere_entropy(factor, d, n)


def _multipliers(ns: Sequence[int], training_length: int) -> Iterator[_Row]:
    for sigma in SIGMAS:
        entropy = gaussian_entropy(sigma, training_length)
        yield "gaussian_entropy", None, training_length, _text(sigma), "quadrature", entropy
    for n in ns:
        for law, power in LAWS.items():
            ratio = math.log(n) / math.log(training_length)
            yield "law_multiplier", None, n, "", law, ratio**power
        yield "freezing_sigma", None, n, "", "random-energy model", freezing_sigma(n)
        for sigma in SIGMAS:
            needed = constant_entropy_multiplier(sigma, n, training_length)
            yield "constant_entropy_multiplier", None, n, _text(sigma), "quadrature", needed.value
            if needed.nearest is not None:
                yield "constant_entropy_power", None, n, _text(sigma), "quadrature", needed.power
                yield "nearest_law_power", None, n, _text(sigma), "quadrature", LAWS[needed.nearest]
