"""What an arm is, and which arms are shown where: decided by the configuration alone, before anything has run."""

from collections.abc import Sequence

from attnscale.analysis.comparisons import (
    acl_arm,
    article_arm,
    baseline_arm,
    depends_on_length,
    is_switch,
    plainly_trained,
    positions_of,
    switch_arm,
)
from attnscale.attention import Attention, make_variant
from attnscale.config import Config

MOST_MAIN_ARMS = 6
"""More arms than this would make a figure unreadable; the rest have figures of their own."""

KINDS = {
    "trained": "trained from the start",
    "mixed": "trained at mixed lengths",
    "branched": "changed late in the training",
    "switched": "changed only at test time, on finished weights",
    "repaired": "positions repaired",
}
"""Kinds of arms, in the order of the tables."""


def kind_of(config: Config, arm: str) -> str:
    """Which of `KINDS` an arm is."""
    settings = config.arms[arm]
    if settings.positions is not None:
        return "repaired"
    if settings.weights_of is not None:
        return "switched"
    if settings.branch is not None:
        return "branched"
    return "mixed" if settings.training_lengths not in (None, (config.training.length,)) else "trained"


def reference_of(config: Config, arm: str) -> str | None:
    """What an arm is first of all compared with: whose weights it takes, what it branches from, else the baseline."""
    settings = config.arms[arm]
    reference = settings.weights_of or (settings.branch.of if settings.branch else baseline_arm(config))
    return None if reference == arm else reference


def role_arms(config: Config) -> tuple[str, ...]:
    """The arms that the question is about: the usual scale, the article's, the ACL paper's, log n at test time."""
    found = baseline_arm(config), article_arm(config), acl_arm(config), switch_arm(config)
    return tuple(arm for arm in found if arm is not None)


def main_arms(config: Config) -> tuple[str, ...]:
    """Arms of the main figures: all if they are few, else those with a role and the user's own, sorted by name.

    Where these hold no two trained arms to compare, other trained ones fill up.
    """
    if len(config.arms) <= MOST_MAIN_ARMS:
        return tuple(sorted(config.arms))
    own = [arm for arm in sorted(config.arms) if config.arms[arm].attention.module is not None]
    chosen = list(dict.fromkeys([*role_arms(config), *own]))
    if sum(arm in config.trained_arms for arm in chosen) < 2:
        chosen = list(dict.fromkeys([*chosen, *plainly_trained(config), *sorted(config.trained_arms)]))
    return tuple(sorted(chosen[:MOST_MAIN_ARMS]))


def measured_arms(config: Config) -> tuple[str, ...]:
    """Arms whose attention is measured: none if nothing is to be measured, and none that replaces the softmax."""
    if config.attention_statistics.blocks == 0:
        return ()
    return tuple(arm for arm in sorted(config.arms) if type(variant_of(config, arm)).mix is Attention.mix)


def variant_of(config: Config, arm: str) -> Attention:
    """The attention of an arm."""
    spec = config.arms[arm].attention
    return make_variant(spec.name, spec.parameters, spec.module)


def growth_pairs(config: Config) -> list[tuple[str, str]]:
    """Arms and what they are compared with, where both are also evaluated during training."""
    snapshots = {arm for arm, _, _ in config.snapshot_runs()}
    pairs = [(arm, reference_of(config, arm)) for arm in sorted(snapshots)]
    return [
        (arm, reference)
        for arm, reference in pairs
        if reference is not None
        and reference in snapshots
        and set(config.seeds_of(arm)) & set(config.seeds_of(reference))
    ]


def crossed_positions(config: Config) -> dict[str, tuple[str, str]]:
    """By treatment of positions on the baseline's weights: the arm with the usual scale, and that with log n on.

    Empty unless at least one repair is crossed with both.
    """
    baseline = baseline_arm(config)
    crossed: dict[str, list[str | None]] = {}
    for arm in sorted(config.arms):
        settings = config.arms[arm]
        if baseline is None or config.weights_of(arm) != baseline:
            continue
        on = is_switch(config, arm)
        if not on and (depends_on_length(config, arm) or settings.n_at_least or settings.n_at_most):
            continue
        name = _positions_name(config, arm)
        cell = crossed.setdefault(name, [None, None])
        # The baseline itself is the arm without a switch, whatever else takes its weights unchanged.
        if cell[on] is None or arm == baseline:
            cell[on] = arm
    complete = {name: (off, on) for name, (off, on) in crossed.items() if off is not None and on is not None}
    ordered = {name: complete[name] for name in sorted(complete, key=lambda name: (name != "plain rotary", name))}
    return ordered if any(name != "plain rotary" for name in ordered) else {}


def _positions_name(config: Config, arm: str) -> str:
    """Name of a treatment of positions, with a width that is not the training length; the same for what is the same."""
    positions = positions_of(config, arm)
    if positions is None:
        return "plain rotary"
    width = getattr(positions, "width", config.training.length)
    return positions.name + (f" (width {width})" if width != config.training.length else "")


def lengths_beyond(config: Config) -> tuple[int, ...]:
    """Evaluation lengths above the training length."""
    return tuple(n for n in config.evaluation.lengths if n > config.training.length)


def figure_names(config: Config) -> tuple[str, ...]:
    """Figures of the report, in its order: one is drawn exactly when the configuration implies what it shows."""
    trained = [arm for arm in config.trained_arms if arm not in main_arms(config)]
    measured = measured_arms(config)
    wanted: Sequence[tuple[str, object]] = (
        ("accuracy_by_length", True),
        ("differences_by_kind", kinds_to_draw(config)),
        ("growth", growth_pairs(config)),
        ("repairs", crossed_positions(config)),
        ("entropy", set(measured) & set(main_arms(config))),
        ("entropy_of_others", set(measured) - set(main_arms(config))),
        ("logit_spread", lengths_beyond(config)),
        ("learning_curves", True),
        ("learning_curves_of_others", trained),
        ("gradient_norms", True),
        ("first_loss", config.first),
        ("first_by_scale", config.first),
        ("parity_loss", config.parity),
        ("exact_networks", config.formal),
    )
    return tuple(name for name, needed in wanted if needed)


def kinds_to_draw(config: Config) -> dict[str, list[str]]:
    """By kind, the arms that are compared with their references; without arms beyond the main figure none."""
    if set(main_arms(config)) == set(config.arms):
        return {}
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        arms = [arm for arm in sorted(config.arms) if kind_of(config, arm) == kind and _compared(config, arm)]
        if arms:
            found[kind] = arms
    return found


def _compared(config: Config, arm: str) -> bool:
    reference = reference_of(config, arm)
    return reference is not None and bool(set(config.seeds_of(arm)) & set(config.seeds_of(reference)))
