"""What the rest of the program knows about the ids."""

import dataclasses

import numpy as np
import numpy.typing as npt

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[MASK]")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Which ids there are: special ones are 0 … special_count-1, ordinary ones special_count … size-1.

    Attributes:
        size: number of ids.
        mask_id: stands for a token to predict.
        pad_id: fills rows that are too short.
        unknown_id: stands for a character that the vocabulary lacks.
        special_count: number of special ids.
    """

    size: int
    mask_id: int = SPECIAL_TOKENS.index("[MASK]")
    pad_id: int = SPECIAL_TOKENS.index("[PAD]")
    unknown_id: int = SPECIAL_TOKENS.index("[UNK]")
    special_count: int = len(SPECIAL_TOKENS)

    @property
    def ordinary_count(self) -> int:
        """Number of ids that text can have and that a model may be asked to predict."""
        return self.size - self.special_count

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type that ids are stored with: two bytes where they fit, else four."""
        return np.uint16 if self.size <= 2**16 else np.uint32
