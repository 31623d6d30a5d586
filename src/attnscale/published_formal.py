"""What others found for FIRST: the ACL 2022 paper, which shows a figure, and a replication, which has numbers."""

import dataclasses
import math
from collections.abc import Mapping

PAPER = "Chiang and Cholak 2022"
PAPER_URL = "https://arxiv.org/abs/2202.12172"
PAPER_WORDS = (
    "the loss at 1000 bits rises as training strings become shorter, and stays low with ln n on the query input"
)
"""What the paper's figure shows for FIRST; it prints no numbers."""
REPLICATION = "giacomocamposampiero/palindrome-transformer"
REPLICATION_URL = "https://github.com/giacomocamposampiero/palindrome-transformer"
SEEDS, EPOCHS, TEST_LENGTH = 20, 1000, 1000
"""Of the replication: runs per cell, epochs of 100 strings, bits of a test string."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Means over the replication's runs at its last epoch, and their standard deviations."""

    percent: float
    percent_sd: float
    loss: float
    """Nats."""
    loss_sd: float


UNSCALED: Mapping[int, Cell] = {
    10: Cell(51.3, 11.9, 12.29, 4.01),
    30: Cell(73.3, 19.9, 4.82, 5.07),
    100: Cell(88.9, 17.7, 1.42, 2.61),
    300: Cell(97.4, 11.3, 0.62, 2.72),
}
"""By bits of a training string, without a factor."""
SCALED: Mapping[int, Cell] = {
    10: Cell(97.6, 10.7, 0.650, 2.84),
    30: Cell(100.0, 0.0, 0.0, 0.0),
    100: Cell(100.0, 0.0, 0.0, 0.0),
    300: Cell(100.0, 0.0, 0.0, 0.0),
}
"""The same with ln(n + 1) on the query input."""


def standard_error(deviation: float) -> float:
    """Standard error of the mean of a cell, from the standard deviation of its runs (with N in the denominator)."""
    return deviation / math.sqrt(SEEDS - 1)
