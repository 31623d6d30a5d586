"""Numbers and lists in words, the same everywhere in the report."""

import math
from collections.abc import Sequence


def signed(value: float, digits: int = 2) -> str:
    """`+1.20`, with a true minus sign; what rounds to nothing gets no sign."""
    text = f"{value:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def unsigned(value: float, digits: int = 2) -> str:
    """`1.20`, with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def points(value: float) -> str:
    """A difference in words: `+1.2 points`; never a negative zero."""
    return f"{signed(value, 1)} points"


def interval(low: float, high: float, digits: int = 2) -> str:
    """`[+0.80, +1.60]`; empty where there is none."""
    return "" if math.isnan(low) or math.isnan(high) else f"[{signed(low, digits)}, {signed(high, digits)}]"


def p_value(p: float) -> str:
    """`0.031`, `< 0.001`, `–` where there is none."""
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def count(number: int, thing: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def joined(names: Sequence[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = [str(name) for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def tokens(number: int) -> str:
    """`1 token`, `2048 tokens`."""
    return f"{number} token{'' if number == 1 else 's'}"


def span(lengths: Sequence[int]) -> str:
    """Rising lengths in words: `at 64 tokens`, `from 64 to 2048 tokens`."""
    if lengths[0] == lengths[-1]:
        return f"at {tokens(lengths[0])}"
    return f"from {lengths[0]} to {tokens(lengths[-1])}"


def share(fraction: float) -> str:
    """`75 %`, `33.3 %`; `99.99 %` where three digits would make a whole of less."""
    percent = 100 * fraction
    texts = (f"{percent:.{digits}g}" for digits in range(3, 18))
    return next((text for text in texts if (float(text) == 100) == (fraction == 1)), f"{percent!r}") + " %"
