"""FIRST and PARITY: their strings, their labels, and what a network is given of a string.

Tensor names end in their shape:
    S models of a stack, T strings per model, K kinds of token (or tokens), C symbols (0, 1 and CLS), W width.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnscale.config import Task
from attnscale.rng import Stream

Bits = npt.NDArray[np.uint8]

CLS = 2
"""Symbol beside 0 and 1 at which a network answers."""
SYMBOLS = 3


@dataclasses.dataclass(frozen=True)
class Batch:
    """What networks are given of strings, T for each of S models."""

    symbols_STKC: Tensor
    """One-hot symbols."""
    positions_KW: Tensor
    """Added to the embedding of a symbol."""
    log_counts_STK: Tensor | None
    """Logarithm of how many tokens of the string a row stands for, minus infinity for none; None: one each."""
    signs_ST: Tensor
    """1 where the answer is yes, -1 where it is no."""
    cls: int
    """Row of the CLS token."""

    def part(self, strings: slice) -> "Batch":
        """Some of the strings."""
        counts = None if self.log_counts_STK is None else self.log_counts_STK[:, strings].contiguous()
        symbols, signs = self.symbols_STKC[:, strings].contiguous(), self.signs_ST[:, strings].contiguous()
        return Batch(symbols, self.positions_KW, counts, signs, self.cls)


def training_strings(task: Task, seed: int, length: int, epoch: int, count: int) -> Bits:
    """Random strings of one epoch, (count, length); every arm of a seed sees the same."""
    return _strings(Stream(f"{task} training strings", seed, length, epoch), count, length)


def test_strings(task: Task, seed: int, length: int, count: int) -> Bits:
    """Random strings to measure a seed on, (count, length), the same for all arms and training lengths."""
    return _strings(Stream(f"{task} test strings", seed, length), count, length)


def _strings(stream: Stream, count: int, length: int) -> Bits:
    words = stream.words(count * math.ceil(length / 64)).astype("<u8").view(np.uint8).reshape(count, -1)
    return np.unpackbits(words, axis=1, count=length, bitorder="little")


def answers(task: Task, bits: Bits) -> npt.NDArray[np.int64]:
    """1 where the answer is yes, -1 where it is no, for strings along the last axis."""
    yes = bits[..., 0] if task == "first" else bits.sum(axis=-1) % 2
    return 2 * yes.astype(np.int64) - 1


def whole_strings(task: Task, bits_Tn: Bits) -> tuple[Tensor, int]:
    """Symbols of strings with their CLS tokens, (T, n + 1), and the place of that token: in front, or behind."""
    before, behind = (1, 0) if task == "first" else (0, 1)
    symbols_TN = np.pad(bits_Tn.astype(np.int64), ((0, 0), (before, behind)), constant_values=CLS)
    return torch.from_numpy(symbols_TN), bits_Tn.shape[1] * behind


def position_features(task: Task, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
    """Position features of a whole string, (tokens, width), zero beyond the first or first two.

    FIRST has the one feature [i = 1], PARITY has i/N and cos(i pi) with N tokens, CLS among them.
    """
    positions_NW = torch.zeros(tokens, width, dtype=torch.float64)
    if task == "first":
        positions_NW[1, 0] = 1.0
    else:
        places_N = torch.arange(tokens, dtype=torch.float64)
        positions_NW[:, 0] = places_N / tokens
        positions_NW[:, 1] = 1.0 - 2.0 * (places_N % 2)
    return positions_NW.to(dtype)


def batch(task: Task, bits_STn: Iterable[Bits], width: int, dtype: torch.dtype) -> Batch:
    """What a stack is given: the strings of each model, (T, n), in FIRST of different lengths n if need be.

    A network without order but for its position features treats equal tokens alike. In FIRST there are four kinds of
    token: CLS, the first bit, a later 0, a later 1. Equal tokens have equal states in every layer, and attention over
    all n + 1 is attention over the four with ln(count) added to the logits. So a row stands for a kind, and a string
    of any length costs the same. In PARITY every place has features of its own, and a row is a token.
    """
    signs, symbols, firsts, ones, zeros = [], [], [], [], []
    for bits in bits_STn:  # one model after the other: the bits of all of them need not be there at once
        signs.append(answers(task, bits))
        if task == "parity":
            symbols.append(whole_strings(task, bits)[0])
            continue
        firsts.append(bits[:, 0].copy())
        ones.append(bits[:, 1:].sum(axis=1, dtype=np.int64))
        zeros.append(bits.shape[1] - 1 - ones[-1])
    signs_ST = torch.from_numpy(np.stack(signs)).to(dtype)
    if task == "parity":
        symbols_STKC = _one_hot(torch.stack(symbols), dtype)
        tokens = symbols_STKC.shape[2]
        return Batch(symbols_STKC, position_features(task, tokens, width, dtype), None, signs_ST, tokens - 1)
    firsts_ST, ones_ST, zeros_ST = np.stack(firsts), np.stack(ones), np.stack(zeros)
    kinds_STK = np.stack([np.full_like(firsts_ST, CLS), firsts_ST, firsts_ST * 0, firsts_ST * 0 + 1], axis=2)
    counts_STK = np.stack([np.ones_like(ones_ST), np.ones_like(ones_ST), zeros_ST, ones_ST], axis=2)
    log_counts_STK = torch.log(torch.from_numpy(counts_STK).to(torch.float64)).to(dtype)
    kinds = torch.from_numpy(kinds_STK.astype(np.int64))
    return Batch(_one_hot(kinds, dtype), position_features(task, 4, width, dtype), log_counts_STK, signs_ST, 0)


def _one_hot(symbols: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.eye(SYMBOLS, dtype=dtype)[symbols]
