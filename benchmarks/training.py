"""Training against peers and against this machine's rate of plain matrix products."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from attnscale import engine
from benchmarks import ours, peers, products
from benchmarks.cases import Case
from benchmarks.measures import Result, Row
from benchmarks.turns import Entry, Times, median_ratio, race

GROUP = "training"
NO_PEER = "transformers is not installed (extra `bench`)"


def matrix_products(case: Case, precision: str) -> Iterator[None]:
    """The weight products of a turn's steps: forward in order, then back as autograd computes them."""
    torch.set_num_threads(case.threads)
    engine.keep_freed_memory()  # as our loop does: the rate without page faults is the one to be measured against
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    work = products.matrix_products(case.products(), torch.device("cpu"), dtype)
    yield
    while True:
        for _ in range(case.steps):
            next(work)
        yield


def measure(case: Case, records: Mapping[str, dict[str, Any]], users: str, repeats: int) -> Result:
    """Rates of all contestants.

    Args:
        case: sizes and batches.
        records: an environment record for each precision to measure.
        users: the precision that our users get on this machine.
        repeats: turns that count.
    """
    here, entries = peers.installed(), {}
    for precision, record in records.items():
        entries[f"attnscale {precision}"] = Entry(ours.training, (case, record))
        if "huggingface" in here:
            entries[f"huggingface {precision}"] = Entry(peers.huggingface_training, (case, precision))
        if "x_transformers" in here:
            entries[f"x_transformers {precision}"] = Entry(peers.x_transformers_training, (case, precision))
        entries[f"matrix_products {precision}"] = Entry(matrix_products, (case, precision))
    return result_of(case, race(entries, repeats), records, users)


def result_of(case: Case, times: Times, records: Mapping[str, dict[str, Any]], users: str) -> Result:
    """Rows and measures of a race (see `measure`)."""
    result, tokens = Result(), case.steps * case.tokens
    flops = {"attnscale": case.step_flops(), "matrix_products": case.product_flops()}
    for name, seconds in times.items():
        what, precision = name.split()
        for number, of_turn in enumerate(seconds[1:], start=1):
            if what != "matrix_products":
                result.rows.append(Row(GROUP, what, precision, number, "tokens/s", tokens / of_turn))
            if what in flops:
                result.rows.append(Row(GROUP, what, precision, number, "FLOP/s", case.steps * flops[what] / of_turn))
        if what == "attnscale":
            extra = seconds[0] - statistics.median(seconds[1:])
            result.rows.append(Row(GROUP, what, precision, 0, "extra seconds of the first turn", extra))
            why = "compiling and first use" if records[precision]["compile"] else "first use; nothing is compiled"
            result.lines.append(f"our training in {precision}: its first turn took {extra:.1f} s more ({why})")
    our = times[f"attnscale {users}"]
    for precision in ("fp32", "bf16"):
        measure_name, peer = f"train_vs_hf_{precision}", times.get(f"huggingface {precision}")
        if precision not in records:
            result.left_out[measure_name] = f"this CPU does not multiply {precision} natively"
        elif peer is None:
            result.left_out[measure_name] = NO_PEER
        else:
            result.values[measure_name] = median_ratio(peer, our)
    bare = times[f"matrix_products {users}"]
    fraction = median_ratio(bare, our) * case.step_flops() / case.product_flops()
    result.values["train_matrix_rate_fraction"] = fraction
    return result
