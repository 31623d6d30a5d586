"""The nine claims on every run, what decides each, and `claims.csv`, with those on formal languages where they are on.

`attnscale.analysis.verdicts` tells how intervals make a verdict; the criteria are in the configuration's section
`claims`, set before a run. Published numbers are those of kexue.fm/archives/8823.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from attnscale.analysis.differences import load_evaluations
from attnscale.analysis.evidence import Evidence, over_seeds, read_entropy
from attnscale.analysis.formal_claims import formal_claims
from attnscale.analysis.intervals import Estimate
from attnscale.analysis.verdicts import (
    Finding,
    MissingError,
    State,
    Statement,
    all_of,
    any_of,
    by_state,
    claim_numbers,
    in_points,
    listed,
    number,
    number_of_points,
)
from attnscale.config import ClaimsConfig, Config, Task
from attnscale.files import write_text
from attnscale.formal.tables import read_complete
from attnscale.published import BASELINE, ROWS, TRAINING_LENGTH

COLUMNS = ("claim", "published", "measured", "ci_low", "ci_high", "verdict", "title", "quantity", "reason")


def write_claims(
    config: Config,
    evaluations: Sequence[Path],
    output: Path,
    *,
    entropy: Path | None = None,
    histories: Mapping[tuple[str, int], Path] | None = None,
    formal: Mapping[Task, Path] | None = None,
) -> None:
    """Write `claims.csv`, one row per claim.

    Args:
        config: the run, with the criteria.
        evaluations: CSV files of the evaluate stage, in any order.
        output: the CSV file to write. Columns: claim (see `claim_numbers`), published, measured, ci_low, ci_high,
            verdict, title (the claim), quantity (what was measured, with its unit) and reason (why, in one sentence).
            A claim that the run holds nothing on has empty numbers.
        entropy: `entropy.csv` of the run, if there is one.
        histories: `history.csv` by trained arm and seed; those that no claim needs are not read.
        formal: table of each formal language that is on.

    Raises:
        UserError: a file is missing or damaged.
    """
    table = None if entropy is None else read_entropy(entropy)
    tests = {task: read_complete(path, config.formal[task]) for task, path in (formal or {}).items()}
    evidence = Evidence(config, load_evaluations(evaluations), table, histories or {}, tests)
    write_text(output, claims_table(evidence).to_csv(index=False, float_format="%.17g", lineterminator="\n"))


def claims_table(evidence: Evidence) -> pd.DataFrame:
    """The table of `write_claims`."""
    rows = []
    arms = {*evidence.config.arms, *(arm for section in evidence.config.formal.values() for arm in section.arms)}
    for claim, title, decide in _all_claims(evidence):
        try:
            finding = _unless_few_seeds(decide(), evidence.config.claims.min_seeds)
        except MissingError as missing:
            finding = Finding("", None, [Statement("open", f"the run has no {missing}")])
        estimate = finding.estimate_or_nan
        numbers = finding.published, estimate.mean, estimate.low, estimate.high
        reason = finding.reason
        if reason.split(maxsplit=1)[0] not in arms:
            reason = reason[0].upper() + reason[1:]
        rows.append((claim, *numbers, finding.verdict, title, finding.quantity, reason))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _all_claims(evidence: Evidence) -> list[tuple[int, str, Callable[[], Finding]]]:
    """Number, title and decision of every claim of the run."""
    everywhere: list[tuple[str, Callable[[], Finding]]] = [
        (title, functools.partial(decide, evidence))
        for title, decide in zip(titles(evidence.config.claims), _DECISIONS, strict=True)
    ]
    numbers = claim_numbers(evidence.config)
    claims = [*everywhere, *formal_claims(evidence.config, evidence.formal)]
    return [(claim, title, decide) for claim, (title, decide) in zip(numbers, claims, strict=True)]


def titles(criteria: ClaimsConfig) -> list[str]:
    """The claims in words, with their criteria."""
    last, share = criteria.multiples[-1], criteria.remaining
    left = "a quarter" if share == 0.25 else f"{100 * share:g} %"
    return [
        "At the training length Attention-E and Attention-O are equally accurate, within "
        f"{in_points(criteria.same_within)} of each other.",
        "Attention-E is more accurate than Attention-O at every longer length.",
        f"The gap between them is largest at {criteria.peak_at} times the training length, and at least "
        f"{in_points(criteria.peak_points)} there.",
        "Attention-O loses accuracy from each length to the next, and about "
        f"{left} of it is left at {last} times the training length.",
        "The ln n of the ACL 2022 paper is too large a scale: attention saturates or the gradients of queries and keys "
        "vanish, and training suffers.",
        "Attention-E keeps the entropy of its attention nearly constant as the length grows.",
        "Switching log n on at test time, on weights trained without it, helps.",
        "log n helps more once positions beyond those seen in training are repaired.",
        "Training with log n gains over switching it on only at test time.",
    ]


def _unless_few_seeds(finding: Finding, needed: int) -> Finding:
    """The finding, or one open statement with its number if that rests on too few seeds."""
    seeds = finding.estimate_or_nan.seeds
    if finding.estimate is None or seeds >= needed:
        return finding
    few = f"it rests on {seeds} {'seed' if seeds == 1 else 'seeds'}, and {needed} are needed"
    so_far = number(finding.estimate, signed=finding.quantity.endswith("points"))
    return dataclasses.replace(finding, statements=[Statement("open", f"{few}; so far {so_far} ({finding.quantity})")])


def _same_at_training_length(evidence: Evidence) -> Finding:
    """Claim 1: the interval of the difference lies within ± same_within; refuted if it lies wholly outside."""
    article, baseline, length = evidence.article(), evidence.baseline(), evidence.training_length
    evidence.need_length(length, article, baseline)
    limit = evidence.config.claims.same_within
    estimate = evidence.points([(article, length)], [(baseline, length)])
    state = evidence.state(
        estimate, lambda e: e.low >= -limit and e.high <= limit, lambda e: e.high < -limit or e.low > limit
    )
    where = {"shown": "within", "refuted": "outside", "open": "neither wholly within nor outside"}[state]
    subject = f"{article} minus {baseline} at {length} tokens"
    statement = Statement(state, f"{subject} is {number(estimate)} points, {where} ±{limit:g}")
    return Finding(f"{subject}, points", estimate, [statement], _published_gap(1))


def _more_accurate_beyond(evidence: Evidence) -> Finding:
    """Claim 2: a gain at every length beyond L (see `_by_length`)."""
    article, baseline = evidence.article(), evidence.baseline()
    finding = _difference_by_length(evidence, article, baseline)
    gaps = [_published_gap(n // evidence.training_length) for n in evidence.need_beyond(article, baseline)]
    return dataclasses.replace(finding, published=math.fsum(gaps) / len(gaps))


def _gap_peaks(evidence: Evidence) -> Finding:
    """Claim 3: where the gap is largest, and how large it is there.

    The first is shown if there is a gap at that length and if it is larger than the gaps at L and at all other
    lengths, each decided by the interval of the difference between two gaps.
    """
    criteria, article, baseline = evidence.config.claims, evidence.article(), evidence.baseline()
    peak = criteria.peak_at * evidence.training_length
    evidence.need_length(peak, article, baseline)
    gap = evidence.points([(article, peak)], [(baseline, peak)])
    larger = {
        n: evidence.points([(article, peak), (baseline, n)], [(baseline, peak), (article, n)])
        for n in (evidence.training_length, *evidence.beyond)
        if n != peak
    }
    states = {n: evidence.sign(estimate) for n, estimate in larger.items()}
    where = all_of([evidence.sign(gap), *states.values()])
    blamed = [f"{n} tokens ({number_of_points(larger[n])})" for n in by_state(states, where)]
    subject = f"the gap of {article} over {baseline} at {peak} tokens"
    words = {
        "shown": f"{subject} is larger than at {listed(blamed)}",
        "refuted": f"{subject} is smaller than at {listed(blamed)}" if blamed else f"{subject} is below zero",
        "open": f"{subject} is not clearly larger than at {listed(blamed)}" if blamed else f"{subject} is not clear",
    }
    size = evidence.state(gap, lambda e: e.low >= criteria.peak_points, lambda e: e.high < criteria.peak_points)
    compared = {"shown": "at least", "refuted": "less than", "open": "not clearly above or below"}[size]
    text = f"it is {number(gap)} points, {compared} {criteria.peak_points:g}"
    statements = [Statement(where, words[where]), Statement(size, text)]
    quantity = f"{article} minus {baseline} at {peak} tokens, points"
    return Finding(quantity, gap, statements, _published_gap(criteria.peak_at))


def _baseline_falls(evidence: Evidence) -> Finding:
    """Claim 4: a loss from each length to the next, and the share of the accuracy at L that is left at the last."""
    criteria, baseline = evidence.config.claims, evidence.baseline()
    lengths = (evidence.training_length, *evidence.beyond)
    evidence.need_length(lengths[0], baseline)
    changes = {n: evidence.points([(baseline, n)], [(baseline, before)]) for before, n in itertools.pairwise(lengths)}
    states = {n: evidence.state(change, lambda e: e.high < 0, lambda e: e.low > 0) for n, change in changes.items()}
    falls = all_of(list(states.values()))
    steps = listed([f"{n} tokens ({number_of_points(changes[n])})" for n in by_state(states, falls)])
    words = {"shown": "loses accuracy up to", "refuted": "gains accuracy up to", "open": "does not clearly lose up to"}
    kept = evidence.evaluations.ratio((baseline, lengths[-1]), (baseline, lengths[0]), evidence.config.statistics)
    low, high = criteria.remaining - criteria.remaining_within, criteria.remaining + criteria.remaining_within
    share = evidence.state(kept, lambda e: e.low >= low and e.high <= high, lambda e: e.high < low or e.low > high)
    where = {"shown": "within", "refuted": "outside", "open": "neither wholly within nor outside"}[share]
    subject = f"accuracy of {baseline} at {lengths[-1]} tokens over that at {lengths[0]}"
    statements = [
        Statement(falls, f"{baseline} {words[falls]} {steps}"),
        Statement(share, f"{subject} is {number(kept, signed=False)}, {where} {low:.2f} to {high:.2f}"),
    ]
    printed = BASELINE.percent.get(criteria.multiples[-1] * TRAINING_LENGTH, math.nan)
    return Finding(f"{subject}, ratio", kept, statements, printed / BASELINE.percent[TRAINING_LENGTH])


def _acl_too_large(evidence: Evidence) -> Finding:
    """Claim 5: a mechanism, vanished gradients or saturated attention, and that accuracy at L suffers.

    Either measure can show the mechanism; it is refuted if all that were taken refute it. Accuracy suffers if it is
    more than same_within below that of the baseline, so that a slightly slower start does not count.
    """
    criteria, acl, baseline = evidence.config.claims, evidence.acl(), evidence.baseline()
    length, limit = evidence.training_length, criteria.same_within
    evidence.need_length(length, acl, baseline)
    gradients, saturated = evidence.gradient_share(acl, baseline), evidence.saturated(acl)
    measures: list[tuple[State, str]] = []
    if gradients is not None:
        state = evidence.state(gradients, lambda e: e.high < criteria.vanishing, lambda e: e.low >= criteria.vanishing)
        words = f"gradients of queries and keys are {number(gradients, signed=False)} times those of {baseline}"
        measures.append((state, f"{words}, vanished below {criteria.vanishing:g}"))
    if saturated is not None:
        state = evidence.state(saturated, lambda e: e.low > criteria.saturated, lambda e: e.high <= criteria.saturated)
        words = f"the saturated share of attention is {number(saturated, signed=False)}"
        measures.append((state, f"{words}, too large above {criteria.saturated:g}"))
    mechanism = any_of([state for state, _ in measures])
    told = "; ".join(text for _, text in measures) or "neither gradients nor saturation were measured"
    estimate = evidence.points([(acl, length)], [(baseline, length)])
    suffers = evidence.state(estimate, lambda e: e.high < -limit, lambda e: e.low > -limit)
    compared = {"shown": "more than", "refuted": "not more than", "open": "not clearly more than"}[suffers]
    subject = f"{acl} minus {baseline} at {length} tokens"
    text = f"{subject} is {number(estimate)} points, {compared} {limit:g} below zero"
    return Finding(f"{subject}, points", estimate, [Statement(mechanism, told), Statement(suffers, text)])


def _entropy_constant(evidence: Evidence) -> Finding:
    """Claim 6: the heads' entropies hardly change from L to the last length, and rise clearly less than the baseline's.

    What counts as hardly in the one and as clearly in the other is the same share of the entropy at L.
    """
    article, baseline, limit = evidence.article(), evidence.baseline(), evidence.config.claims.entropy_within
    short, long = evidence.training_length, evidence.beyond[-1]
    ours, theirs = evidence.entropy_changes(article), evidence.entropy_changes(baseline)
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        raise MissingError(f"entropies of {article} and {baseline} at {short} and {long} tokens with a common seed")
    share = over_seeds([ours[seed].share for seed in seeds])
    rises = [over_seeds([changes[seed].rise for seed in seeds]) for changes in (ours, theirs)]
    less = over_seeds([(theirs[seed].rise - ours[seed].rise) / theirs[seed].before for seed in seeds])
    constant = evidence.state(share, lambda e: e.high <= limit, lambda e: e.low > limit)
    below = evidence.state(less, lambda e: e.low > limit, lambda e: e.high <= limit)
    words = {"shown": "within", "refuted": "above", "open": "neither wholly within nor above"}[constant]
    compared = {"shown": "well below", "refuted": "not well below", "open": "perhaps below"}[below]
    subject = f"mean change of a head's entropy in {article} from {short} to {long} tokens"
    own = f"{subject} is {number(share, signed=False)} of that at {short}, {words} {limit:g}"
    other = f"with its sign it is {number(rises[0])} nats, {compared} the {number(rises[1])} of {baseline}"
    quantity = f"{subject}, share of that at {short}"
    return Finding(quantity, share, [Statement(constant, own), Statement(below, other)])


def _switch_helps(evidence: Evidence) -> Finding:
    """Claim 7: a gain at every length beyond L (see `_by_length`), paired on the same weights."""
    return _difference_by_length(evidence, evidence.switch(), evidence.baseline())


def _switch_helps_repaired(evidence: Evidence) -> Finding:
    """Claim 8: at every length beyond L log n gains after the repair, and gains more than without it.

    Both are needed: a smaller loss is no help.
    """
    baseline, switch = evidence.baseline(), evidence.switch()
    off, on = evidence.repaired()
    lengths = evidence.need_beyond(baseline, switch, off, on)
    more = {n: evidence.points([(on, n), (baseline, n)], [(off, n), (switch, n)]) for n in lengths}
    states = {
        n: all_of([evidence.gain(estimate), evidence.gain(evidence.points([(on, n)], [(off, n)]))])
        for n, estimate in more.items()
    }
    plus = [(arm, n) for n in lengths for arm in (on, baseline)]
    minus = [(arm, n) for n in lengths for arm in (off, switch)]
    subject = f"the gain of {on} over {off} minus that of {switch} over {baseline}"
    return _by_length(evidence, subject, evidence.points(plus, minus, len(lengths)), more, states)


def _training_gains(evidence: Evidence) -> Finding:
    """Claim 9: a gain at every length beyond L (see `_by_length`).

    Every training window has L tokens, so in training the two arms differ by a constant factor on the logits,
    log L / log 512, and in nothing else; the claim asks what the article's way of training is worth beyond the law.
    """
    return _difference_by_length(evidence, evidence.article(), evidence.switch())


def _difference_by_length(evidence: Evidence, arm: str, other: str) -> Finding:
    lengths = evidence.need_beyond(arm, other)
    gains = {n: evidence.points([(arm, n)], [(other, n)]) for n in lengths}
    mean = evidence.points([(arm, n) for n in lengths], [(other, n) for n in lengths], len(lengths))
    states = {n: evidence.gain(estimate) for n, estimate in gains.items()}
    return _by_length(evidence, f"{arm} minus {other}", mean, gains, states)


def _by_length(
    evidence: Evidence,
    subject: str,
    mean: Estimate | None,
    gains: Mapping[int, Estimate | None],
    states: Mapping[int, State],
) -> Finding:
    """One statement per length beyond L: there is a gain; refuted where any gain is below `negligible`."""
    limit = evidence.config.claims.negligible
    words: tuple[tuple[State, str], ...] = (
        ("shown", "is above zero"),
        ("refuted", f"is no gain of {limit:g} points"),
        ("open", "is not clear"),
    )
    statements: list[Statement] = []
    for state, found in words:
        lengths = by_state(states, state)
        told = f"{found} at {listed([f'{n} tokens ({number(gains[n])})' for n in lengths])}"
        statements += _same_state(state, told, len(lengths))
    unmeasured = [n for n in evidence.beyond if n not in gains]
    statements += _same_state("open", f"was not measured at {listed(unmeasured)} tokens", len(unmeasured))
    statements[0] = dataclasses.replace(statements[0], text=f"{subject} {statements[0].text}")
    return Finding(f"{subject}, mean over {listed(list(gains))} tokens, points", mean, statements)


def _same_state(state: State, text: str, count: int) -> list[Statement]:
    """Several statements in the same state, told together."""
    return [Statement(state, text if place == 0 else "") for place in range(count)]


def _published_gap(multiple: int) -> float:
    """Attention-E minus Attention-O in the article at a multiple of its training length; NaN where it has none."""
    percent = next(row.percent for row in ROWS if row.variant == "attention_e")
    length = multiple * TRAINING_LENGTH
    return percent[length] - BASELINE.percent[length] if length in percent else math.nan


_DECISIONS: Sequence[Callable[[Evidence], Finding]] = (
    _same_at_training_length,
    _more_accurate_beyond,
    _gap_peaks,
    _baseline_falls,
    _acl_too_large,
    _entropy_constant,
    _switch_helps,
    _switch_helps_repaired,
    _training_gains,
)
