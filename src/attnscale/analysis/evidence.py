"""What verdicts on claims are made from: accuracies, entropies and gradients of a run.

Numbers made of right predictions have the intervals of `attnscale.analysis.intervals`. Other numbers, such as
entropies, are one per seed, and their interval goes from the smallest to the largest seed: with k seeds it holds the
median with probability 1 - 2^(1-k), 97 % for six.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from attnscale.analysis import comparisons
from attnscale.analysis.differences import Evaluations, Place
from attnscale.analysis.intervals import Estimate
from attnscale.analysis.verdicts import MissingError, State, listed
from attnscale.config import Config, Task
from attnscale.csv_files import read_table


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A run, as far as claims are about it."""

    config: Config
    evaluations: Evaluations
    entropy: pd.DataFrame | None = None
    """What `read_entropy` returns."""
    histories: Mapping[tuple[str, int], Path] = dataclasses.field(default_factory=dict)
    """`history.csv` by trained arm and seed."""
    formal: Mapping[Task, pd.DataFrame] = dataclasses.field(default_factory=dict)
    """Tests on each formal language that is on, as `attnscale.formal.tables.read_complete` returns them."""

    @property
    def training_length(self) -> int:
        """L, tokens in a training window."""
        return self.config.training.length

    @property
    def beyond(self) -> tuple[int, ...]:
        """Lengths in tokens beyond L at which claims are decided, rising."""
        return tuple(multiple * self.training_length for multiple in self.config.claims.multiples)

    def baseline(self) -> str:
        """The trained arm with the usual scale."""
        return self.need(comparisons.baseline_arm(self.config), "arm trained with plain attention_o")

    def article(self) -> str:
        """The arm trained as the article's Attention-E."""
        return self.need(comparisons.article_arm(self.config), "arm trained with attention_e and base 512")

    def acl(self) -> str:
        """The arm trained with the scale of the ACL 2022 paper."""
        return self.need(comparisons.acl_arm(self.config), "arm trained with acl2022")

    def switch(self) -> str:
        """The arm with the baseline's weights and log n switched on at test time."""
        words = "arm with the weights of attention_o and, at test time, attention_e with base training_length"
        return self.need(comparisons.switch_arm(self.config), words)

    def repaired(self) -> tuple[str, str]:
        """Two arms with the baseline's weights and the repaired positions: log n off and on."""
        repair = self.config.claims.repair
        words = f"two arms with the weights of attention_o and the same positions {repair}, log n off and on"
        off, on = comparisons.repaired_arms(self.config, repair) or (None, None)
        return self.need(off, words), self.need(on, words)

    def need(self, arm: str | None, words: str) -> str:
        """The arm, if there is one and it was evaluated.

        Raises:
            MissingError: otherwise, in these words.
        """
        if arm is None or arm not in self.evaluations.arms:
            raise MissingError(words)
        return arm

    def need_length(self, length: int, *arms: str) -> None:
        """Make sure that arms were evaluated at a length.

        Raises:
            MissingError: one was not, or they share no seed.
        """
        if any((arm, length) not in self.evaluations.correct for arm in arms):
            raise MissingError(f"evaluation of {listed(arms)} at {length} tokens")
        if not self.evaluations.seeds(*((arm, length) for arm in arms)):
            raise MissingError(f"seed that {listed(arms)} share")

    def need_beyond(self, *arms: str) -> list[int]:
        """Lengths beyond L at which all of these arms were evaluated, rising.

        Raises:
            MissingError: there is none, or the arms share no seed.
        """
        lengths = [n for n in self.beyond if all((arm, n) in self.evaluations.correct for arm in arms)]
        if not lengths:
            raise MissingError(f"evaluation of {listed(arms)} at {listed(self.beyond)} tokens")
        self.need_length(lengths[0], *arms)
        return lengths

    def points(self, plus: Sequence[Place], minus: Sequence[Place], parts: int = 1) -> Estimate | None:
        """Difference of accuracies in points (see `Evaluations.points`)."""
        return self.evaluations.points(plus, minus, self.config.statistics, parts=parts)

    def state(
        self, estimate: Estimate | None, shown: Callable[[Estimate], bool], refuted: Callable[[Estimate], bool]
    ) -> State:
        """What an interval says to a statement; open if there is none, or if it rests on too few seeds."""
        if estimate is None or estimate.seeds < self.config.claims.min_seeds or math.isnan(estimate.low):
            return "open"
        return "shown" if shown(estimate) else "refuted" if refuted(estimate) else "open"

    def sign(self, estimate: Estimate | None) -> State:
        """Whether a number is above zero; refuted if it is below."""
        return self.state(estimate, lambda e: e.low > 0, lambda e: e.high < 0)

    def gain(self, estimate: Estimate | None) -> State:
        """Whether a number is above zero; refuted if any gain is too small to matter.

        An interval that holds zero does not refute a gain: it may just be wide.
        """
        limit = self.config.claims.negligible
        return self.state(estimate, lambda e: e.low > 0, lambda e: e.high < limit)

    def gradient_share(self, arm: str, baseline: str) -> Estimate | None:
        """Gradient norm of an arm's queries and keys over the baseline's at the same step: median over steps.

        Returns:
            None if the norms were not recorded.
        """
        shares = []
        for seed in self.config.seeds_of(arm):
            norms = [_gradient_norms(self.histories.get((name, seed))) for name in (arm, baseline)]
            both = pd.concat(norms, axis=1, join="inner", keys=["arm", "baseline"])
            both = both[both["baseline"] > 0]
            if len(both):
                shares.append(float(np.median(both["arm"] / both["baseline"])))
        return over_seeds(shares)

    def saturated(self, arm: str) -> Estimate | None:
        """Share of saturated rows of attention at L, mean over layers and heads; None if it was not measured."""
        if self.entropy is None or "saturated" not in self.entropy:
            return None
        rows = self.entropy[(self.entropy["arm"] == arm) & (self.entropy["length"] == self.training_length)]
        return over_seeds([math.fsum(of_seed) / len(of_seed) for _, of_seed in rows.groupby("seed")["saturated"]])

    def entropy_changes(self, arm: str) -> dict[int, "EntropyChange"]:
        """How the entropies of an arm's heads change from L to the last length beyond it, by seed.

        Raises:
            MissingError: there are no entropies at all.
        """
        if self.entropy is None:
            raise MissingError("entropy.csv")
        rows = self.entropy[self.entropy["arm"] == arm].set_index(["seed", "layer", "head"])
        ends = [rows.loc[rows["length"] == n, "entropy"] for n in (self.training_length, self.beyond[-1])]
        both = pd.concat(ends, axis=1, join="inner", keys=["short", "long"])
        changes = {}
        for seed in sorted(int(seed) for seed in both.index.unique("seed")):
            heads = both.loc[seed]
            change, before = heads["long"] - heads["short"], math.fsum(heads["short"]) / len(heads)
            if before > 0:
                share = math.fsum(change.abs()) / len(heads) / before
                changes[seed] = EntropyChange(before, share, math.fsum(change) / len(heads))
        return changes


class EntropyChange(NamedTuple):
    """How the entropies of all heads of an arm and seed change with the length."""

    before: float
    """Mean entropy at L, in nats."""
    share: float
    """Mean change without its sign over `before`, so that heads that rise and heads that fall do not cancel."""
    rise: float
    """Mean change with its sign, in nats."""


def over_seeds(values: Sequence[float]) -> Estimate | None:
    """Mean of one number per seed, with the smallest and largest as its interval; None without a number."""
    if not values:
        return None
    return Estimate(math.fsum(values) / len(values), min(values), max(values), len(values))


def read_entropy(path: Path) -> pd.DataFrame:
    """Read what claims need of `entropy.csv`: arm, seed, layer, head, length, entropy and, if it is there, saturated.

    Raises:
        UserError: the file is missing or damaged.
    """
    places = ("seed", "layer", "head", "length")
    return read_table(
        path,
        words=["arm"],
        whole=places,
        real=["entropy", "saturated"],
        optional=["saturated"],
        keys=["arm", *places],
        may_be_empty=True,
    )


def _gradient_norms(path: Path | None) -> "pd.Series[float]":
    """Gradient norm of queries and keys by step; empty if the training did not record it."""
    if path is None:
        return pd.Series(dtype="float64")
    norms = ["grad_norm_qk"]
    table = read_table(path, whole=["step"], real=norms, optional=norms, keys=["step"], may_be_empty=True)
    return table.set_index("step")["grad_norm_qk"] if "grad_norm_qk" in table else pd.Series(dtype="float64")
