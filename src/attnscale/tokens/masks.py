"""Which tokens are to be predicted, and what the model sees in their place.

Shapes: T tokens, S selected tokens.
"""

import numpy as np
import numpy.typing as npt

from attnscale.rng import Stream
from attnscale.tokens.vocabulary import Vocabulary

# Devlin et al. 2019 (BERT), section 3.1: 80 % [MASK], 10 % a random token, 10 % unchanged.
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


def mask_tokens(
    ids_T: npt.NDArray[np.int64], count: int, stream: Stream, vocabulary: Vocabulary
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Choose tokens to predict and hide most of them.

    Args:
        ids_T: ids, special ones among them allowed.
        count: how many tokens to choose; exact if there are that many ordinary tokens, else all ordinary ones.
        stream: where the random numbers come from.
        vocabulary: tells special from ordinary ids; neither choice nor random replacement is ever special.

    Returns:
        inputs_T, a changed copy of `ids_T`, and selected_S, the chosen positions in rising order.
    """
    ordinary = np.flatnonzero(ids_T >= vocabulary.special_count)
    selected_S = np.sort(ordinary[stream.choose(len(ordinary), count)])
    # One number per token, cut in three once: a second draw for "the rest" is where 80/10/10 usually goes wrong.
    fate_S = stream.uniforms(len(selected_S))
    random_S = vocabulary.special_count + stream.integers(len(selected_S), vocabulary.ordinary_count)
    shown_S = np.where(fate_S < MASK_SHARE + RANDOM_SHARE, random_S, ids_T[selected_S])
    shown_S[fate_S < MASK_SHARE] = vocabulary.mask_id
    inputs_T = ids_T.copy()
    inputs_T[selected_S] = shown_S
    return inputs_T, selected_S
