"""The figures, drawn so that they read in print, on a phone, without colours, and in the same bytes each time.

Each is drawn once. The files get it on white; the page gets the same drawing with its colours exchanged
for CSS variables, so that it follows the reader's light or dark setting.
"""

from collections.abc import Callable, Mapping

import matplotlib

from attnscale.report.arms import figure_names
from attnscale.report.data import RunData
from attnscale.report.figures import accuracy, entropy, formal, growth, kinds, logit_spread, repairs, training
from attnscale.report.figures.drawing import Drawing, write
from attnscale.report.figures.style import COLOURS, INK, MUTED, PAPER, STYLE

__all__ = ["COLOURS", "INK", "MUTED", "PAPER", "STYLE", "Drawing", "draw_all", "write"]

_DRAW: Mapping[str, Callable[[RunData], Drawing]] = {
    "accuracy_by_length": accuracy.draw,
    "differences_by_kind": kinds.draw,
    "growth": growth.draw,
    "repairs": repairs.draw,
    "entropy": entropy.draw,
    "entropy_of_others": entropy.draw_others,
    "logit_spread": logit_spread.draw,
    "learning_curves": training.draw_curves,
    "learning_curves_of_others": training.draw_other_curves,
    "gradient_norms": training.draw_gradients,
    "first_loss": formal.draw_first_loss,
    "first_by_scale": formal.draw_first_by_scale,
    "parity_loss": formal.draw_parity,
    "exact_networks": formal.draw_exact,
}


def draw_all(data: RunData) -> dict[str, Drawing]:
    """Draw every figure of the report, by name."""
    with matplotlib.rc_context():
        # The user's own matplotlibrc must not reach the bytes.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return {name: _DRAW[name](data) for name in figure_names(data.config)}
