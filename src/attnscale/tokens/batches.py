"""Training batches as a pure function of (seed, step).

Shapes: B windows per batch, N tokens per window, T tokens per batch, S tokens to predict in the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnscale.counts import masked_per_step
from attnscale.rng import Stream
from attnscale.tokens.load import check_long_enough
from attnscale.tokens.masks import mask_tokens
from attnscale.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from attnscale.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one training step sees.

    Attributes:
        inputs_BN: ids after masking.
        selected_S: positions to predict in the flattened B*N tokens, in rising order.
        targets_S: the original ids there.
    """

    inputs_BN: npt.NDArray[np.int64]
    selected_S: npt.NDArray[np.int64]
    targets_S: npt.NDArray[np.int64]


class TrainingBatches:
    """All batches of a training, each made when it is asked for.

    Nothing but data, training settings, seed and step enters, so every arm sees the same batches and a
    resumed training goes on as if it had never stopped.

    Args:
        ids: the training documents' ids, one after another.
        offsets: where each document starts, and the end of the last one; length documents+1.
        vocabulary: tells special from ordinary ids.
        training: window length, windows per batch and tokens to predict per batch.
        seed: the seed of the training.
        lengths: mixed lengths; the windows of a step are cut into pieces of one of them. All arms of a seed so see
            the same text and the same masks at every step, only with less context.

    Raises:
        UserError: no document has as many tokens as a window.
    """

    def __init__(
        self,
        ids: npt.NDArray[Any],
        offsets: npt.NDArray[np.int64],
        vocabulary: Vocabulary,
        training: TrainingConfig,
        seed: int,
        lengths: Sequence[int] = (),
    ) -> None:
        self._ids = ids
        self._starts = offsets[:-1]
        self._vocabulary = vocabulary
        self._training = training
        self._seed = seed
        self._lengths = tuple(lengths) or (training.length,)
        document_lengths = np.diff(offsets)
        check_long_enough(document_lengths, training.length)
        self._windows = np.maximum(document_lengths - training.length + 1, 0)
        self._cumulative = np.cumsum(self._windows)

    def window_starts(self, step: int) -> npt.NDArray[np.int64]:
        """Where the windows of a step start in `ids`: uniform over all places where a whole window fits.

        Args:
            step: number of the step, from 0.

        Returns:
            starts_B.
        """
        stream = Stream("training windows", self._seed, step)
        number_B = stream.integers(self._training.batch_size, int(self._cumulative[-1]))
        # Windows are numbered through all documents; find the document, then the place in it.
        document_B = np.searchsorted(self._cumulative, number_B, side="right")
        before_B = self._cumulative[document_B] - self._windows[document_B]
        return np.asarray(self._starts[document_B] + number_B - before_B, dtype=np.int64)

    def length(self, step: int) -> int:
        """Tokens that a window of a step has: uniform over the lengths given."""
        if len(self._lengths) == 1:
            return self._lengths[0]
        return self._lengths[int(Stream("training lengths", self._seed, step).integers(1, len(self._lengths))[0])]

    def batch(self, step: int) -> Batch:
        """The batch of a step (numbered from 0), whatever was asked for before."""
        starts_B = self.window_starts(step)
        ids_BN = self._ids[starts_B[:, None] + np.arange(self._training.length)].astype(np.int64)
        ids_T = ids_BN.reshape(-1)
        stream = Stream("training masks", self._seed, step)
        inputs_T, selected_S = mask_tokens(ids_T, masked_per_step(self._training), stream, self._vocabulary)
        return Batch(inputs_T.reshape(-1, self.length(step)), selected_S, ids_T[selected_S])
