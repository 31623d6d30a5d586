"""Entropy of softmax attention over random keys, computed without sampling: what the derivation can be held to.

Notation of the article (kexue.fm/archives/8823): d size of a head, n number of keys, L training length,
theta angle between query and key; |q| = |k| = sqrt(d), so that a logit is lambda d cos(theta), where lambda is the
factor on q·k. Entropy is in nats, log is natural.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import integrate, optimize, special

from attnscale.errors import UserError

Array = npt.NDArray[np.float64]

PRINTED_SLOPE = 0.24
"""The constant as the article prints it: entropy = log n - 0.24 lambda d."""

LAWS = {"log n": 1.0, "sqrt(log n)": 0.5}
"""Laws of the multiplier on the logits, as powers of log n / log L."""

# A trapezoidal rule of step h errs by about exp(-pi²/h) here: exp(-e^u) is analytic and bounded for |Im u| < pi/2.
_STEP = 0.3
_NEGLIGIBLE = 40.0  # e^-40 is below what a float64 sum can notice
_NUMBERS_AT_ONCE = 2**20  # bounds memory


class Saddle(NamedTuple):
    """Saddle point of the softmax average over the sphere, and the entropy it gives."""

    cos: float
    """cos(theta) where the integrand has its maximum."""
    sin2: float
    """sin²(theta) there; equals cos / lambda."""
    slope: float
    """Entropy below log n per dimension, -1/2 log(sin²); 0.2406 = 1/2 log((1 + sqrt 5)/2) at lambda = 1."""


@dataclasses.dataclass(frozen=True)
class Multiplier:
    """What the logits must be multiplied by at n keys for the entropy they have at L keys."""

    value: float
    """The multiplier; NaN if even equal weights fall short of that entropy (n well below L)."""
    power: float
    """Its exponent p as a law (log n / log L)^p; NaN where that has no meaning (n = L)."""
    nearest: str | None
    """The law of `LAWS` whose exponent is nearest (if p is well above 1, log n too is too little); None where `power`
    is NaN."""


def saddle_closed(factor: float) -> Saddle:
    """The saddle point in closed form: cos = (sqrt(1 + 4 lambda²) - 1) / (2 lambda).

    Args:
        factor: lambda, above 0.
    """
    _check_positive("lambda", factor)
    # The same fraction with the root below, where nothing cancels for small lambda.
    return _saddle(2 * factor / (math.sqrt(1 + 4 * factor * factor) + 1), factor)


def saddle_root(factor: float) -> Saddle:
    """The same by root finding: d/dtheta of lambda cos(theta) + log sin(theta) is zero.

    Args:
        factor: lambda, above 0.
    """
    _check_positive("lambda", factor)
    theta = optimize.brentq(
        lambda theta: math.cos(theta) / math.sin(theta) - factor * math.sin(theta), 1e-9, math.pi / 2, xtol=1e-15
    )
    return _saddle(math.cos(theta), factor)


def _saddle(cos: float, factor: float) -> Saddle:
    sin2 = cos / factor
    return Saddle(cos, sin2, -0.5 * math.log(sin2))


def entropy_drop(factor: float, head_size: int) -> dict[str, float]:
    """How far entropy lies below log n for very many keys uniform on the sphere, by four methods.

    Args:
        factor: lambda, above 0.
        head_size: d, at least 2.

    Returns:
        In nats, by method: `quadrature` (exact: lambda d E[cos] - log E[e^(lambda d cos)] over the density
        of theta), `saddle point` (Laplace's approximation, d/2 log(lambda / cos)), `quadratic` (lambda² d / 2,
        small lambda) and `linear` (0.24 lambda d, the article).
    """
    _check_positive("lambda", factor)
    _check_count("head_size", head_size)
    top = math.acos(saddle_closed(factor).cos)

    def log_density(theta: float) -> float:
        return factor * head_size * math.cos(theta) + (head_size - 2) * math.log(math.sin(theta))

    def integral(power: int) -> float:
        def integrand(theta: float) -> float:
            return float(math.cos(theta) ** power) * math.exp(log_density(theta) - log_density(top))

        value, _ = integrate.quad(integrand, 0.0, math.pi, points=[top], epsabs=0.0, epsrel=1e-12, limit=500)
        return float(value)

    mass = integral(0)
    log_mean = math.log(mass) + log_density(top) - float(special.betaln(0.5, (head_size - 1) / 2))
    return {
        "quadrature": factor * head_size * integral(1) / mass - log_mean,
        "saddle point": head_size * saddle_closed(factor).slope,
        "quadratic": factor * factor * head_size / 2,
        "linear": PRINTED_SLOPE * factor * head_size,
    }


def sphere_entropy(factor: float, head_size: int, n: int) -> float:
    """Mean entropy of softmax over n keys drawn uniformly from the sphere of radius sqrt(d), for a query on it.

    Args:
        factor: factor on q·k; its sign does not matter.
        head_size: d, at least 2.
        n: number of keys, at least 1.

    Returns:
        Nats, with an error of about 1e-10 (1e-5 for d = 3, where the density has a kink).
    """
    _check_count("head_size", head_size)
    _check_count("n", n, least=1)
    if not math.isfinite(factor):
        raise UserError(f"a factor on q·k must be a finite number, not {factor!r}")
    spread = abs(factor) * head_size
    # A midpoint rule is exact for the trigonometric polynomials that the density and its moments are.
    nodes = math.ceil(max(math.pi * spread / _STEP, 4 * head_size, 160))
    theta = (np.arange(nodes) + 0.5) * math.pi / nodes
    log_weights = (head_size - 2) * np.log(np.sin(theta))
    kept = log_weights > log_weights.max() - 1.3 * _NEGLIGIBLE
    return _mean_entropy(spread * np.cos(theta[kept])[::-1], np.exp(log_weights[kept])[::-1], n)


def gaussian_entropy(sigma: float, n: int) -> float:
    """Mean entropy of softmax over n independent normal logits.

    Args:
        sigma: standard deviation of the logits, above 0; time grows with its square.
        n: number of keys, at least 1.

    Returns:
        Nats, with an error of about 1e-10.
    """
    _check_positive("sigma", sigma)
    _check_count("n", n, least=1)
    half = math.ceil(8 / min(0.4, _STEP / sigma))
    z: Array = np.linspace(-8.0, 8.0, 2 * half + 1)
    return _mean_entropy(sigma * z, np.exp(-z * z / 2), n)


def _mean_entropy(logits: Array, weights: Array, n: int) -> float:
    """Mean entropy of softmax over n independent logits of a given distribution.

    With Z = sum_i e^(s_i) the entropy is log Z - sum_i s_i e^(s_i) / Z. Both means become integrals over the
    Laplace transform phi(t) = E e^(-t e^s), because keys are independent:
    E log Z = ∫ (e^-t - phi^n) dt/t (Frullani) and E sum_i s_i e^(s_i) / Z = n ∫ E[s e^s e^(-t e^s)] phi^(n-1) dt.
    They are taken over u = log t, where all is smooth.

    Args:
        logits: (S,) values s in ascending order, at most `_STEP` apart.
        weights: (S,) their probabilities, up to a common factor.
        n: number of logits.
    """
    weights = weights / weights.sum()
    log_mean = float(special.logsumexp(logits, b=weights))
    # Below `low`, t Z is negligible; above `high`, so is phi^n: that many logits are not all so small.
    low = -(math.log(n) + max(log_mean, 0.0)) - _NEGLIGIBLE
    likely_exceeded = np.searchsorted(np.cumsum(weights), math.exp(-_NEGLIGIBLE / n))
    high = max(-float(logits[max(int(likely_exceeded) - 1, 0)]), 0.0) + 4.0
    u = np.arange(low, high + _STEP, _STEP)
    psi, slope = np.empty_like(u), np.empty_like(u)  # 1 - phi, and E[s e^s e^(-t e^s)] t
    rows = max(1, _NUMBERS_AT_ONCE // len(logits))
    for first in range(0, len(u), rows):
        part = slice(first, first + rows)
        x = np.exp(np.minimum(u[part, None] + logits, 700.0))  # beyond, e^-x is 0 anyway
        # Sums, not matrix products: those start threads that cost more than they save here.
        psi[part] = (-np.expm1(-x) * weights).sum(axis=1)
        slope[part] = (x * np.exp(-x) * (weights * logits)).sum(axis=1)
    with np.errstate(divide="ignore"):
        log_phi = np.log1p(-np.minimum(psi, 1.0))
    log_z = (np.expm1(-np.exp(u)) - np.expm1(n * log_phi)).sum()
    # n = 1 leaves phi^0, which must be 1 where phi is 0.
    energy = (n * slope * (np.exp((n - 1) * log_phi) if n > 1 else 1.0)).sum()
    return float(_STEP * (log_z - energy))


def constant_entropy_multiplier(sigma: float, n: int, training_length: int) -> Multiplier:
    """What independent normal logits must be multiplied by at n keys to keep the entropy they have at L keys.

    The model behind it is that keys are background: the logits of more keys have the same distribution.

    Args:
        sigma: standard deviation of the logits at L keys, above 0, such as one measured in a trained head.
        n: number of keys, at least 2.
        training_length: L, at least 2.
    """
    _check_count("n", n)
    _check_count("training_length", training_length)
    if n == training_length:
        return Multiplier(1.0, math.nan, None)
    target = gaussian_entropy(sigma, training_length)
    if target > math.log(n) - 1e-9:
        return Multiplier(math.nan, math.nan, None)

    def excess(log_multiplier: float) -> float:
        return gaussian_entropy(sigma * math.exp(log_multiplier), n) - target

    # More keys have more entropy and need sharper weights, so the root lies on a known side of 1.
    reach = math.copysign(0.5, n - training_length)
    while excess(reach) * reach > 0:
        reach *= 2
    value = math.exp(optimize.brentq(excess, 0.0, reach, xtol=1e-12, rtol=1e-12))
    power = math.log(value) / math.log(math.log(n) / math.log(training_length))
    return Multiplier(value, power, min(LAWS, key=lambda law: abs(LAWS[law] - power)))


def freezing_sigma(n: int) -> float:
    """Spread of logits from which a few of n keys hold most of the weight: sqrt(2 log n).

    Beyond it, n times a mean over the distribution (as in the derivation) no longer stands for a sum over n keys.
    Source: the random-energy model, Derrida 1981, doi 10.1103/PhysRevB.24.2613.

    Args:
        n: number of keys, at least 2.
    """
    _check_count("n", n)
    return math.sqrt(2 * math.log(n))


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UserError(f"{name} must be a number above 0, not {value!r}")


def _check_count(name: str, value: int, least: int = 2) -> None:
    if isinstance(value, bool) or value != int(value) or value < least:
        raise UserError(f"{name} must be a whole number from {least} on, not {value!r}")
