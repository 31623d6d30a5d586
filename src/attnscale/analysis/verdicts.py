"""How intervals make a verdict, and how its reason is put into words.

Every claim is taken apart into statements about one number each, and the interval of that number decides: the
statement is *shown* if the whole interval agrees with it, *refuted* if the whole interval contradicts it, and *open*
otherwise, also where a number was not measured or rests on too few seeds. Then

- all statements shown: "reproduced",
- at least half of them shown: "partly",
- fewer shown and at least half refuted: "not reproduced",
- anything else: "not decidable at this scale".

So chance alone leads to "reproduced" at most as often as an interval misses on one side, 1 in 40 at 95 %; a claim
that needs several statements needs no correction for their number, as it fails if any of them does (Berger 1982,
Technometrics 24:295). Half of the statements, and not one of them, because one length of four may well be luck.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from attnscale.analysis.intervals import Estimate
from attnscale.config import Config

REPRODUCED = "reproduced"
PARTLY = "partly"
NOT_REPRODUCED = "not reproduced"
NOT_DECIDABLE = "not decidable at this scale"
VERDICTS = (REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_DECIDABLE)
CLAIMS = 9
"""How many claims there are on every run."""
FORMAL_CLAIMS = {"first": (10, 11), "parity": (12,)}
"""Numbers of those on formal languages, which a run has where the language is on."""


def claim_numbers(config: Config) -> list[int]:
    """Numbers of the claims of a run, rising."""
    return [*range(1, CLAIMS + 1), *(claim for task in config.formal for claim in FORMAL_CLAIMS[task])]


State = Literal["shown", "refuted", "open"]


@dataclasses.dataclass(frozen=True)
class Statement:
    """One part of a claim."""

    state: State
    text: str
    """What was found, with its numbers; a part of a sentence. Empty if the text of another statement tells it."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a verdict is made from."""

    quantity: str
    """What `estimate` is, with its unit."""
    estimate: Estimate | None
    """The number that stands for the claim in a table; None if it could not be measured."""
    statements: Sequence[Statement]
    published: float = math.nan
    """The same number in the article; NaN if it has none."""

    @property
    def verdict(self) -> str:
        """The verdict, by the rule at the head of this file."""
        states = [statement.state for statement in self.statements]
        if all(state == "shown" for state in states):
            return REPRODUCED
        if 2 * states.count("shown") >= len(states):
            return PARTLY
        return NOT_REPRODUCED if 2 * states.count("refuted") >= len(states) else NOT_DECIDABLE

    @property
    def reason(self) -> str:
        """Why, in one sentence made from the numbers."""
        return "; ".join(statement.text for statement in self.statements if statement.text) + "."

    @property
    def estimate_or_nan(self) -> Estimate:
        """The estimate, or one without a number."""
        return self.estimate or Estimate(math.nan, math.nan, math.nan, 0)


class MissingError(Exception):
    """The run lacks what a claim is about; the message completes "the run has no"."""


def all_of(states: Sequence[State]) -> State:
    """State of a statement that holds if all of these do, and fails if any of them does."""
    return "refuted" if "refuted" in states else "open" if "open" in states else "shown"


def any_of(states: Sequence[State]) -> State:
    """State of a statement that holds if any of these does; refuted if there are some and all are."""
    return "shown" if "shown" in states else "refuted" if states and set(states) == {"refuted"} else "open"


def by_state(states: Mapping[int, State], wanted: State) -> list[int]:
    """Lengths whose statement is in the wanted state."""
    return [length for length, state in states.items() if state == wanted]


def number(estimate: Estimate | None, *, signed: bool = True) -> str:
    """`+1.20 [+0.80, +1.60]`, mean and interval, with a true minus sign and no negative zero."""
    if estimate is None:
        return "not measured"
    mean, low, high = (_rounded(x, signed=signed) for x in (estimate.mean, estimate.low, estimate.high))
    return mean if math.isnan(estimate.low) else f"{mean} [{low}, {high}]"


def number_of_points(estimate: Estimate | None) -> str:
    """`+1.20 [+0.80, +1.60] points`."""
    return number(estimate) if estimate is None else f"{number(estimate)} points"


def _rounded(value: float, *, signed: bool) -> str:
    text = f"{value:+.2f}" if signed else f"{value:.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")


def in_points(points: float) -> str:
    """`1 point`, `10 points`."""
    return f"{points:g} {'point' if points == 1 else 'points'}"


def listed(items: Sequence[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    names = [str(item) for item in items]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
