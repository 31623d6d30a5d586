"""One arm and seed on its way out: its encoder, and what its scale is at every number of keys."""

import dataclasses
from pathlib import Path

from attnscale.config import Config
from attnscale.errors import UserError
from attnscale.export.folding import Scales, scales
from attnscale.finished import load_encoder
from attnscale.model import Encoder

LONGEST = 65536
"""Most tokens that an exported table of scales has a factor for, unless the attention refuses so many."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """One arm and seed on its way out."""

    config: Config
    arm: str
    seed: int
    length: int | None
    """n that the scale is folded at; None if it is looked up at every n, or is the same for all."""
    model: Encoder
    scales: Scales
    varies: bool
    """Whether the scale of the arm changes with n."""

    @property
    def roformer(self) -> bool:
        """Whether it is a RoFormer as transformers knows it, whose base of frequencies is fixed."""
        shape = self.model.config
        return shape.recipe == "faithful" and shape.rope_theta == 10000.0 and not self.has_table

    @property
    def has_table(self) -> bool:
        """Whether a table of scales goes with it."""
        return self.varies and self.length is None

    @property
    def positions(self) -> int:
        """Most tokens that an exported RoFormer can read: its table of positions is part of its weights."""
        return max(self.config.evaluation.lengths[-1], self.length or 0, 2048)


def prepared(run: Path, config: Config, arm: str, seed: int, length: int | None) -> Exported:
    """Load an arm and find its scale.

    Raises:
        UserError: its weights are missing or damaged, or its attention cannot be represented.
    """
    model = load_encoder(run, config, arm, seed)
    longest = config.evaluation.lengths[-1]
    try:
        model.variant.check(longest=max(longest, length or 0), training_length=model.training_length)
        found = scales(model, list(range(_longest(model, longest) + 1)), longest=longest)
        at_length = found if length is None else scales(model, [length], longest=max(longest, length))
        if found.heads_vary and length is None:
            raise UserError(f"the heads of {model.variant.name} change with n each in its own way; give one --length")
    except UserError as error:
        raise UserError(f"{arm} cannot be exported: {error}") from None
    # A row of one key has no choice, whatever its scale is.
    evaluated_B = found.common_B[2 : longest + 1]
    varies = found.heads_vary or bool((evaluated_B - evaluated_B[-1]).abs().max() > 1e-9)
    return Exported(config, arm, seed, length if varies else None, model, at_length, varies)


def _longest(model: Encoder, evaluated: int) -> int:
    try:
        model.variant.check(longest=LONGEST, training_length=model.training_length)
    except UserError:
        return evaluated
    return max(LONGEST, evaluated)
