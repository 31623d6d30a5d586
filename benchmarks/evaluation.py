"""Evaluation of long text against Hugging Face: tokens per second, and memory.

One window at a time on both sides. Ours computes logits at the masked positions, as `attnscale evaluate` does; the
peer at all positions, as its users get them, in the same dtype.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnscale.rng import Stream
from attnscale.tokens.load import EvaluationSet
from attnscale.tokens.masks import mask_tokens
from attnscale.tokens.vocabulary import Vocabulary
from benchmarks import ours, peers
from benchmarks.cases import Case
from benchmarks.measures import Result, Row
from benchmarks.training import NO_PEER
from benchmarks.turns import Entry, Times, median_ratio, once, race

GROUP = "evaluation"
LENGTH = 4096
MASK_RATE = 0.15
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WORKS: dict[str, Callable[..., Iterator[None]]] = {
    "attnscale": ours.evaluation,
    "huggingface": peers.huggingface_evaluation,
}


def blocks(case: Case, length: int, count: int) -> EvaluationSet:
    """Evaluation blocks of random ids, with masks as the evaluation stage draws them."""
    vocabulary = Vocabulary(case.vocabulary_size)
    ids_T = vocabulary.special_count + Stream("benchmark text").integers(count * length, vocabulary.ordinary_count)
    inputs_KN, masked_KN = [], []
    for number, ids_N in enumerate(ids_T.reshape(count, length)):
        masked = round(MASK_RATE * length)
        inputs_N, selected_S = mask_tokens(ids_N, masked, Stream("benchmark masks", number), vocabulary)
        inputs_KN.append(inputs_N)
        masked_KN.append(np.isin(np.arange(length), selected_S))
    ids_KN = ids_T.reshape(count, length)
    return EvaluationSet(ids_KN, np.stack(inputs_KN), np.stack(masked_KN), (length,), MASK_RATE)


def measure(case: Case, precision: str, repeats: int, length: int = LENGTH) -> Result:
    """Speed and memory of both; two blocks a turn."""
    if "huggingface" not in peers.installed():
        return Result(left_out={"eval4096_vs_hf": NO_PEER, "eval4096_memory_vs_hf": NO_PEER})
    data = blocks(case, length, count=2)
    entries = {name: Entry(work, (case, precision, data)) for name, work in WORKS.items()}
    result = speed(race(entries, repeats), precision, tokens=data.ids_KN.size)
    one = blocks(case, length, count=1)
    if not os.access(CLEAR, os.W_OK):
        result.left_out["eval4096_memory_vs_hf"] = f"{CLEAR}, which starts a peak afresh, cannot be written here"
        return result
    result.add(memory({name: once(name, Entry(peak, (name, case, precision, one))) for name in WORKS}, precision))
    return result


def speed(times: Times, precision: str, tokens: int) -> Result:
    """Rows and measure of a race in which each turn reads `tokens` tokens."""
    rows = [
        Row(GROUP, name, precision, number, "tokens/s", tokens / of_turn)
        for name, seconds in times.items()
        for number, of_turn in enumerate(seconds[1:], start=1)
    ]
    return Result(rows, {"eval4096_vs_hf": median_ratio(times["huggingface"], times["attnscale"])})


def memory(peaks: dict[str, tuple[int, int]], precision: str) -> Result:
    """Rows and measure from bytes before the evaluation and at its peak, by contestant."""
    result = Result()
    for name, (before, highest) in peaks.items():
        result.rows.append(Row(GROUP, f"{name}_before", precision, 1, "bytes", before))
        result.rows.append(Row(GROUP, f"{name}_peak", precision, 1, "bytes", highest))
    grown = {name: highest - before for name, (before, highest) in peaks.items()}
    result.values["eval4096_memory_vs_hf"] = grown["attnscale"] / grown["huggingface"]
    return result


def peak(name: str, case: Case, precision: str, data: EvaluationSet) -> Iterator[Any]:
    """Memory in bytes right before an evaluation and at its peak, for a process that has done nothing else."""
    turns = WORKS[name](case, precision, data)
    next(turns)
    yield
    # Imports and building have needed more for a moment. What is free again goes back to the system, so that the
    # evaluation cannot hide in it, and 5 sets the peak to what is held now (proc(5)).
    with contextlib.suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5", encoding="ascii")
    before = _status("VmRSS")
    next(turns)
    yield before, _status("VmHWM")


def _status(key: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024
