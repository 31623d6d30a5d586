"""The numbers this bench replicates, as printed in the article."""

import dataclasses
from collections.abc import Mapping

from attnscale.attention import make_variant
from attnscale.config import Config

ARTICLE = "kexue.fm/archives/8823"
ARTICLE_URL = "https://kexue.fm/archives/8823"
TRAINING_LENGTH = 64
"""Tokens in a training window of the article."""


@dataclasses.dataclass(frozen=True)
class Published:
    """One row of the article's table."""

    label: str
    """What the article calls it."""
    variant: str
    """The registered attention with the same formula."""
    parameters: Mapping[str, int | float | str | bool]
    """Parameters for which the formula is the article's."""
    percent: Mapping[int, float]
    """Length in tokens -> accuracy on masked tokens in percent."""


ROWS = (
    Published("Attention-O", "attention_o", {}, {64: 43.27, 128: 36.53, 256: 23.02, 512: 15.12, 1024: 11.54}),
    Published(
        "Attention-E", "attention_e", {"base": 512}, {64: 43.11, 128: 41.17, 256: 34.04, 512: 20.15, 1024: 13.58}
    ),
)
BASELINE = ROWS[0]


def published_for(config: Config, arm: str) -> Published | None:
    """The article's row for an arm, if it has one.

    Args:
        config: the run.
        arm: name of one of its arms.

    Returns:
        The row whose formula the arm was trained and tested with; None for every other arm, also for one
        that takes the weights of another, since the article has no such row.
    """
    spec = config.arms[arm].attention
    if config.arms[arm].weights_of is not None:
        return None
    for row in ROWS:
        if row.variant == spec.name:
            given = make_variant(spec.name, spec.parameters, spec.module)
            if given == make_variant(row.variant, row.parameters):
                return row
    return None
