"""Statistics of the attention weights of one arm and seed, by layer, head and length: what `entropy.csv` holds.

They are taken from the logits that the model itself works with, while it reads the masked inputs of the first
evaluation blocks in the windows of the evaluation. All are means over queries, which are the rows of the softmax:

| column | meaning |
|---|---|
| entropy | -sum p log p of the weights p, in nats (kexue.fm/archives/8823) |
| entropy_ratio | entropy / log n, n = keys that the query may see; empty where no query sees more than one |
| logit_std | standard deviation (population) of the logits of those keys, scale and all |
| max_weight | largest weight |
| saturated | 1 where the largest weight is above `SATURATED`, else 0 |
| distance | sum p |i - j|, tokens between query i and key j |
| beyond | sum of p where |i - j| >= L, the training length: weight at distances that no training window holds |

`layer` and `head` count from 0, as in the names of the weights.

Tensor names end in their shape: K blocks, W windows, B windows of one batch, N tokens of a window, H heads, D size of
a head, n queries of a part of a window, M keys, G layers, C statistics, S selected tokens.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from attnscale import engine
from attnscale.analysis.evaluation_tables import AGAIN, read_words, whole_numbers
from attnscale.attention import Attention, Context
from attnscale.config import AttentionStatisticsSettings
from attnscale.environment import read_environment
from attnscale.errors import UserError
from attnscale.evaluate import load_model
from attnscale.files import write_text
from attnscale.model import Encoder
from attnscale.progress import Reporter, log
from attnscale.tokens.load import load_evaluation_set, load_vocabulary

STATISTICS = ("entropy", "entropy_ratio", "logit_std", "max_weight", "saturated", "distance", "beyond")
COLUMNS = ("arm", "seed", "layer", "head", "length", *STATISTICS)

SATURATED = 0.99
"""A query is saturated when one weight p is above this: then p (1 - p), the derivative of p with respect to its own
logit, is below 0.01, a twenty-fifth of the largest value it can have, and hardly a gradient comes through."""

LOGITS_AT_ONCE = 2**22
"""Logits that are looked at together, 32 MiB in float64; bounds memory, whatever the length."""


def attention_statistics(
    settings: AttentionStatisticsSettings, tokens_dir: Path, weights: Path, environment: Path, output: Path
) -> None:
    """Measure one arm and seed; one row per layer, head and length.

    A variant that replaces the mixing itself has no logits to be measured: its table has a header and no rows.

    Args:
        settings: the arm, its attention, the lengths and the number of blocks.
        tokens_dir: folder of the tokens and evaluation set.
        weights: model.safetensors of the trained arm.
        environment: the environment record, which decides device and precision.
        output: the CSV file to write.

    Raises:
        UserError: an input is missing, damaged or does not fit the settings, or logits are not finite.
    """
    if settings.blocks < 1:
        raise UserError("attention_statistics.blocks is 0, so there is nothing to measure; give 1 or more")
    record = read_environment(environment)
    engine.prepare(settings.threads)
    device = torch.device(record["device"])
    model = load_model(settings, load_vocabulary(tokens_dir).size, weights).to(device).eval()
    inputs_KN = load_evaluation_set(tokens_dir).inputs_KN
    write_text(output, statistics_table(settings, model, inputs_KN, device, bf16=record["precision"] == "bf16"))


def statistics_table(
    settings: AttentionStatisticsSettings,
    model: Encoder,
    inputs_KN: npt.NDArray[Any],
    device: torch.device,
    *,
    bf16: bool,
) -> str:
    """Attention statistics of a model, one row per layer, head and length, as the text of a CSV file.

    Args:
        settings: the arm, the lengths and the number of blocks.
        model: its encoder in evaluation mode.
        inputs_KN: masked ids of the evaluation blocks.
        device: where the model is.
        bf16: compute in bf16.

    Raises:
        UserError: logits are not finite.
    """
    inputs_KN = inputs_KN[: settings.blocks]
    means_CGH = {}
    if not has_logits(model.variant):
        log(f"{settings.arm} seed {settings.seed}: {model.variant.name} mixes in its own way, so nothing is measured")
    else:
        title = f"attention statistics {settings.arm} seed {settings.seed}"
        with Reporter(title, len(settings.lengths), unit="length") as reporter:
            for done, length in enumerate(settings.lengths, start=1):
                inputs_WN = inputs_KN.reshape(-1, length)
                rows = max(1, settings.batch_tokens // length)
                try:
                    means_CGH[length] = measure(model, inputs_WN, rows, device, bf16=bf16)
                except UserError as error:
                    raise UserError(f"{settings.arm} seed {settings.seed}: {error}") from None
                reporter.update(done, f"{length} tokens: mean entropy {means_CGH[length][0].mean():.3f} nats")
    return _table(settings, means_CGH)


def has_logits(variant: Attention) -> bool:
    """Whether the variant mixes by the softmax of `Attention.logits`, so that these can be looked at."""
    return type(variant).mix is Attention.mix


@torch.inference_mode()
def measure(
    model: Encoder, inputs_WN: npt.NDArray[Any], rows: int, device: torch.device, *, bf16: bool
) -> npt.NDArray[np.float64]:
    """Mean statistics of every layer and head, over all queries of some windows.

    Args:
        model: the encoder in evaluation mode; its variant must have logits.
        inputs_WN: token ids of the windows.
        rows: windows per forward pass.
        device: where the model is.
        bf16: compute in bf16; the logits themselves are made in fp32 from its queries and keys.

    Returns:
        (C, G, H), in the order of `STATISTICS`.

    Raises:
        UserError: logits are not finite.
    """
    variant = model.variant
    recorder = Recorder(variant, len(model.blocks), model.config.heads, device)
    # One token through the decoder: only the attention on the way is wanted.
    selected_S = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        model.variant = recorder  # type: ignore[assignment]
        for first in range(0, len(inputs_WN), rows):
            inputs_BN = torch.from_numpy(inputs_WN[first : first + rows].astype(np.int64))
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                model(inputs_BN.to(device), selected_S)
    finally:
        model.variant = variant
    return recorder.means()


class Recorder:
    """Stands in for a variant: adds up the statistics of the logits it is to mix, then lets the variant mix.

    To be the variant of an encoder during its forward passes. Nothing that the encoder computes changes.

    Args:
        variant: what really mixes.
        layers: number of layers G; they call one after another.
        heads: number of heads H.
        device: where the encoder is.
        logits_at_once: bounds memory (see `LOGITS_AT_ONCE`).
    """

    def __init__(
        self, variant: Attention, layers: int, heads: int, device: torch.device, logits_at_once: int = LOGITS_AT_ONCE
    ) -> None:
        self._variant = variant
        self._logits_at_once = logits_at_once
        self._calls = 0
        self._sums_GCH = torch.zeros(layers, len(STATISTICS), heads, dtype=torch.float64, device=device)
        self._counts_GCH = torch.zeros_like(self._sums_GCH)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variant, name)

    def mix(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, context: Context, dropout: float) -> Tensor:
        """Record, then mix as the variant does (see `Attention.mix`)."""
        layer = self._calls % len(self._sums_GCH)
        self._calls += 1
        with torch.autocast(q_BHND.device.type, enabled=False):
            for first, logits_BHnM in logits_in_parts(self._variant, q_BHND, k_BHMD, context, self._logits_at_once):
                self._add(layer, first, logits_BHnM, context)
        return self._variant.mix(q_BHND, k_BHMD, v_BHMD, context, dropout)

    def _add(self, layer: int, first: int, logits_BHnM: Tensor, context: Context) -> None:
        queries, keys = logits_BHnM.shape[2:]
        positions_N = context.positions_N
        distance_nM = (positions_N[first : first + queries, None] - positions_N[None, :keys]).abs()
        values_CBHn = query_statistics(logits_BHnM, distance_nM, context.training_length)
        counted_CBHn = torch.ones_like(values_CBHn, dtype=torch.bool)
        if context.key_mask_BM is not None:
            # Padding asks nothing.
            counted_CBHn &= context.key_mask_BM[:, None, first : first + queries]
        ratio = STATISTICS.index("entropy_ratio")
        counted_CBHn[ratio] &= ~values_CBHn[ratio].isnan()
        self._sums_GCH[layer] += torch.where(counted_CBHn, values_CBHn, 0.0).sum((1, 3))
        self._counts_GCH[layer] += counted_CBHn.sum((1, 3))

    def means(self) -> npt.NDArray[np.float64]:
        """Means over all queries seen so far, (C, G, H) in the order of `STATISTICS`.

        Raises:
            UserError: logits were not finite, or a query might see no key.
        """
        # Where a logit is not finite, the entropy is not either; the ratio alone may be undefined for other reasons.
        broken_G = ~self._sums_GCH[:, STATISTICS.index("entropy")].isfinite().all(dim=1)
        if broken_G.any():
            layer = int(broken_G.nonzero()[0])
            raise UserError(f"the logits of attention layer {layer} are not finite; check the attention of this arm")
        return (self._sums_GCH / self._counts_GCH).transpose(0, 1).cpu().numpy()


def logits_in_parts(
    variant: Attention, q_BHND: Tensor, k_BHMD: Tensor, context: Context, logits_at_once: int
) -> Iterator[tuple[int, Tensor]]:
    """Logits as the softmax gets them, for some queries at a time, in fp32.

    Args:
        variant: the attention.
        q_BHND: queries as `Attention.mix` gets them.
        k_BHMD: keys as it gets them.
        context: the rows.
        logits_at_once: numbers in a part; at least one query is in it.

    Yields:
        Position of the first query, and (B, H, n, M), minus infinity where a key is not to be seen.
    """
    q_BHND, k_BHMD = variant.queries(q_BHND.float(), context), k_BHMD.float()
    rows, heads, queries, _ = q_BHND.shape
    step = max(1, logits_at_once // (rows * heads * k_BHMD.shape[2]))
    for first in range(0, queries, step):
        yield first, variant.logits(q_BHND[:, :, first : first + step], k_BHMD, context, first)


def query_statistics(logits_BHnM: Tensor, distance_nM: Tensor, training_length: int) -> Tensor:
    """The statistics of each query, (C, B, H, n) float64 in the order of `STATISTICS`.

    Args:
        logits_BHnM: logits, minus infinity where a key is not to be seen.
        distance_nM: float64, tokens between query and key.
        training_length: L in tokens.

    Returns:
        The entropy is NaN for a query with a logit that is not finite, or without a key; its ratio also for a query
        with one key, which has no entropy to lose.
    """
    # Relative to the largest: its exponential is 1, which is the largest weight before the division by the sum.
    below_BHnM = logits_BHnM.to(torch.float64, copy=True)
    below_BHnM -= below_BHnM.amax(dim=-1, keepdim=True)
    unseen_BHnM = below_BHnM.isneginf()
    parts_BHnM = below_BHnM.exp()
    # 0 · log 0 = 0, and a key that is not seen has no logit.
    below_BHnM.masked_fill_(unseen_BHnM, 0.0)
    keys_BHn = below_BHnM.shape[-1] - unseen_BHnM.sum(dim=-1, dtype=torch.float64)
    summed_nM3 = torch.stack(
        [torch.ones_like(distance_nM), distance_nM, (distance_nM >= training_length).double()], dim=-1
    )
    total_BHn, distance_BHn, beyond_BHn = torch.einsum("bhnm,nmk->bhnk", parts_BHnM, summed_nM3).unbind(-1)
    entropy_BHn = total_BHn.log() - torch.linalg.vecdot(parts_BHnM, below_BHnM) / total_BHn
    mean_BHn = below_BHnM.sum(dim=-1) / keys_BHn
    variance_BHn = torch.linalg.vecdot(below_BHnM, below_BHnM) / keys_BHn - mean_BHn**2
    max_weight_BHn = 1.0 / total_BHn
    return torch.stack(
        [
            entropy_BHn,
            entropy_BHn / keys_BHn.log(),
            variance_BHn.clamp(min=0.0).sqrt(),
            max_weight_BHn,
            (max_weight_BHn > SATURATED).double(),
            distance_BHn / total_BHn,
            beyond_BHn / total_BHn,
        ]
    )


def collect_attention_statistics(tables: Sequence[Path], output: Path) -> None:
    """Put the tables of all arms and seeds one below the other into `entropy.csv`, digit by digit.

    Args:
        tables: CSV files of the attention statistics, in the order wanted.
        output: the CSV file to write.

    Raises:
        UserError: a file is missing, damaged or cut off, or a row is there twice.
    """
    parts: list[pd.DataFrame] = []
    seen: set[tuple[str, ...]] = set()
    places: tuple[Path, frozenset[Any]] | None = None
    for path in tables:
        table = _read(path)
        keys = list(zip(*(table[name] for name in COLUMNS[:5]), strict=True))
        if len(set(keys)) < len(keys) or not seen.isdisjoint(keys):
            raise UserError(f"{path} repeats rows, its own or those of another table; give every table once")
        seen.update(keys)
        for _, rows in table.groupby(["arm", "seed"], sort=False):
            found = frozenset(zip(rows["layer"], rows["head"], rows["length"], strict=True))
            places = places or (path, found)
            if len(found) != rows["layer"].nunique() * rows["head"].nunique() * rows["length"].nunique():
                raise UserError(f"{path} lacks rows, it is cut off; delete it and run the pipeline again")
            if found != places[1]:
                raise UserError(
                    f"{path} and {places[0]} differ in layers, heads or lengths; delete both and run the pipeline again"
                )
        parts.append(table)
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    write_text(output, whole.to_csv(index=False, lineterminator="\n"))


def _read(path: Path) -> pd.DataFrame:
    """One table as text, checked; it may have no rows, where nothing could be measured."""
    what = "table of attention statistics"
    table = read_words(path, what, "the attention statistics")
    if tuple(table.columns) != COLUMNS:
        raise UserError(f"{path} is no {what} (it has other columns); {AGAIN}")
    whole_numbers(path, table, COLUMNS[1:5], what)
    for name in STATISTICS:
        # Empty where no query sees more than one key.
        given = table[name][table[name] != ""] if name == "entropy_ratio" else table[name]
        if not np.isfinite(pd.to_numeric(given, errors="coerce").to_numpy(dtype=np.float64)).all():
            raise UserError(f"{path} is no {what} ({name} is no finite number); {AGAIN}")
    if not path.read_bytes().endswith(b"\n"):
        # The last number would still be one without its last digits.
        raise UserError(f"{path} is cut off in its last row; {AGAIN}")
    return table


def _table(settings: AttentionStatisticsSettings, means_CGH: dict[int, npt.NDArray[np.float64]]) -> str:
    rows = [
        (settings.arm, settings.seed, layer, head, length, *means[:, layer, head])
        for length, means in means_CGH.items()
        for layer in range(means.shape[1])
        for head in range(means.shape[2])
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(["layer", "head", "length"])
    stream = io.StringIO()
    table.to_csv(stream, index=False, float_format="%.17g", lineterminator="\n")
    return stream.getvalue()
