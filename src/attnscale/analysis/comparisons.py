"""Which arms of a configuration play which part, and which differences between them are taken.

Arms are found by what they do, not by their names, so a configuration may call them as it likes.
"""

import dataclasses

from attnscale.analysis.settings import DifferencesSettings
from attnscale.attention import make_variant
from attnscale.attention.base import Attention, Positions
from attnscale.attention.positions import BandPositions, ClippedPositions, make_positions
from attnscale.config import ArmConfig, Config


def differences_settings(config: Config) -> DifferencesSettings:
    """Settings of the table of differences; they do not depend on the order of the arms in the configuration."""
    return DifferencesSettings(
        comparisons=comparisons(config), training_length=config.training.length, statistics=config.statistics
    )


def comparisons(config: Config) -> tuple[tuple[str, str], ...]:
    """Which arm is compared with which: every difference that answers a question, each pair once, sorted by name.

    Every arm is compared with
    - the baseline, the trained arm with plain attention_o: the question of the article;
    - at test time, the arm whose weights it takes: nothing but the scale and the positions differ;
    - as a branch, the arm it branches from: what did it gain by changing late?
    - if its scale depends on the length, the arm of the same weights and positions whose scale does not: what is
      log n worth after this repair of positions?
    - in training other than the baseline (mixed lengths, a branch, other positions), the arm trained alike with plain
      attention_o: what is the scale worth there?
    The article's Attention-E is also compared with its scale switched on at test time on the baseline's weights: what
    does training with it gain?
    """
    fixed = [(arm, other) for arm in sorted(config.arms) for other in _fixed_references(config, arm)]
    more = [(arm, other) for arm in sorted(config.arms) for other in _unscaled_references(config, arm)]
    article, switch = article_arm(config), switch_arm(config)
    if article is not None and switch is not None:
        more.append((article, switch))
    pairs = dict.fromkeys([*fixed, *((arm, other) for arm, other in more if (other, arm) not in fixed)])
    return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))


def _fixed_references(config: Config, arm: str) -> list[str]:
    settings = config.arms[arm]
    found = baseline_arm(config), settings.weights_of, settings.branch.of if settings.branch else None
    return [name for name in found if name is not None]


def _unscaled_references(config: Config, arm: str) -> list[str]:
    if not depends_on_length(config, arm):
        return []
    others = [name for name in sorted(config.arms) if not depends_on_length(config, name)]
    return [name for name in others if _same_weights(config, arm, name) or _trained_alike(config, arm, name)]


def _same_weights(config: Config, arm: str, other: str) -> bool:
    same_positions = positions_of(config, arm) == positions_of(config, other)
    return same_positions and config.weights_of(arm) == config.weights_of(other)


def _trained_alike(config: Config, arm: str, other: str) -> bool:
    first, second = (
        (each.weights_of is None, each.branch, each.training_lengths, positions_of(config, name))
        for name, each in ((arm, config.arms[arm]), (other, config.arms[other]))
    )
    return first[0] and first == second


def depends_on_length(config: Config, arm: str) -> bool:
    """Whether an arm's scale changes with the length beyond training: it is not attention_o and not frozen."""
    settings = config.encoder_settings(arm)
    frozen = settings.n_at_most is not None and settings.n_at_most <= settings.training_length
    return settings.attention.name != "attention_o" and not frozen


def positions_of(config: Config, arm: str) -> Positions | None:
    """The treatment of positions of an arm, equal for arms that do the same; None for plain rotary ones.

    A width of 0 is written out as the training length that it stands for.
    """
    spec = config.arms[arm].positions
    if spec is None:
        return None
    positions = make_positions(spec.name, spec.parameters)
    if isinstance(positions, BandPositions | ClippedPositions) and not positions.width:
        return dataclasses.replace(positions, width=config.training.length)
    return positions


def baseline_arm(config: Config) -> str | None:
    """The trained arm with the usual scale and nothing else; the one called attention_o if several are."""
    fitting = [arm for arm in plainly_trained(config) if config.arms[arm].attention.name == "attention_o"]
    return "attention_o" if "attention_o" in fitting else next(iter(fitting), None)


def article_arm(config: Config) -> str | None:
    """The arm trained as the article's Attention-E, which is attention_e as it stands, with base 512."""
    wanted = make_variant("attention_e", {})
    return next((arm for arm in plainly_trained(config) if _variant(config, arm) == wanted), None)


def acl_arm(config: Config) -> str | None:
    """The arm trained with the ln n of the ACL 2022 paper."""
    return next((arm for arm in plainly_trained(config) if config.arms[arm].attention.name == "acl2022"), None)


def switch_arm(config: Config) -> str | None:
    """The arm that takes the baseline's weights and multiplies the scale by log n / log L at test time."""
    return next((arm for arm in _on_baseline(config, None) if is_switch(config, arm)), None)


def repaired_arms(config: Config, repair: str) -> tuple[str, str] | None:
    """Two arms on the baseline's weights with the same repair of positions: the usual scale, and log n on."""
    arms = _on_baseline(config, repair)
    for off in arms:
        for on in arms:
            same = positions_of(config, off) == positions_of(config, on)
            if same and config.arms[off].attention.name == "attention_o" and is_switch(config, on):
                return off, on
    return None


def plainly_trained(config: Config) -> list[str]:
    """Arms trained from the start, at one length, with plain positions and an unlimited n, sorted by name."""
    return [
        name
        for name in sorted(config.trained_arms)
        if _plain(config.arms[name])
        and config.arms[name].positions is None
        and config.arms[name].branch is None
        and config.arms[name].training_lengths in (None, (config.training.length,))
    ]


def _plain(settings: ArmConfig) -> bool:
    return settings.n_at_least is None and settings.n_at_most is None


def _on_baseline(config: Config, repair: str | None) -> list[str]:
    """Test-time arms on the baseline's weights with this treatment of positions, sorted by name."""
    baseline = baseline_arm(config)
    found = []
    for name in sorted(config.arms):
        settings = config.arms[name]
        positions = settings.positions.name if settings.positions else None
        if baseline is not None and settings.weights_of == baseline and _plain(settings) and positions == repair:
            found.append(name)
    return found


def is_switch(config: Config, arm: str) -> bool:
    """Whether an arm's scale is log n / log L / sqrt(d), equal to the usual one at the training length L."""
    variant = _variant(config, arm)
    base = getattr(variant, "base", None)
    return variant.name == "attention_e" and base in ("training_length", config.training.length)


def _variant(config: Config, arm: str) -> Attention:
    spec = config.arms[arm].attention
    return make_variant(spec.name, spec.parameters, spec.module)
