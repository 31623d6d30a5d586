"""The formal languages FIRST and PARITY."""

from typing import Any, Literal

from pydantic import Field, field_validator

from attnscale.config.arms import AttentionSpec, or_its_name, short_form
from attnscale.config.section import Name, Section, Seed

Task = Literal["first", "parity"]
"""The formal languages."""


class FormalArm(Section):
    """A scale that tiny transformers are trained with on a formal language."""

    attention: AttentionSpec = Field(
        description="name of a variant that is a scale, or a map of `name` and its parameters; n is the number of "
        "tokens of a string with CLS, L that of a training string",
        json_schema_extra=or_its_name,
    )
    scales: Literal["logits", "query_input"] = Field(
        default="logits",
        description="logits: the scale multiplies q·k; query_input: it multiplies what queries are projected from, so "
        "that their bias stays unscaled, as in the code of the ACL 2022 paper",
    )

    @field_validator("attention", mode="before")
    @classmethod
    def _accept_short_forms(cls, value: Any) -> Any:
        return short_form(value, module=True)


def _formal_arm(attention: str, scales: Literal["logits", "query_input"] = "logits") -> FormalArm:
    return FormalArm(attention=AttentionSpec(name=attention), scales=scales)


FIRST_ARMS = {
    "attention_o": _formal_arm("attention_o"),
    "acl2022": _formal_arm("acl2022"),
    "acl2022_on_query_input": _formal_arm("acl2022", "query_input"),
    "attention_e": _formal_arm("attention_e"),
    "sqrt_log_n": _formal_arm("sqrt_log_n"),
    "ssmax": _formal_arm("ssmax"),
}


class FormalConfig(Section):
    """Tiny transformers that learn a formal language from random strings, one string a step."""

    arms: dict[Name, FormalArm] = Field(min_length=1, description="the scales, by name")
    seeds: tuple[Seed, ...] = Field(min_length=1, strict=False, description="one network per arm, length and seed")
    train_lengths: tuple[int, ...] = Field(
        min_length=1, strict=False, description="lengths n of training strings in bits; a network sees one of them"
    )
    test_lengths: tuple[int, ...] = Field(
        min_length=1, strict=False, description="lengths at which every network is tested, besides its own"
    )
    epochs: int = Field(ge=1, le=100_000, description="epochs of training")
    steps_per_epoch: int = Field(default=100, ge=1, le=100_000, description="strings, and steps, of an epoch")
    test_every: int = Field(ge=1, description="epochs between two tests; the last epoch is always tested")
    test_strings: int = Field(default=200, ge=100, le=100_000, description="random strings of a test, fixed per seed")
    learning_rate: float = Field(default=0.0003, gt=0, lt=1, description="learning rate of Adam")
    exact_lengths: tuple[int, ...] = Field(
        default=(2, 10, 30, 100, 300, 1000, 3000, 10_000),
        min_length=1,
        strict=False,
        description="lengths at which the hand-built networks are run",
    )

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{list(seeds)} holds a seed twice; every seed may stand once")
        return seeds

    @field_validator("train_lengths", "test_lengths", "exact_lengths")
    @classmethod
    def _check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if list(lengths) != sorted(set(lengths)) or lengths[0] < 2 or lengths[-1] > 100_000:
            raise ValueError(f"{list(lengths)} must rise, hold no length twice and lie between 2 and 100000")
        return lengths


class FirstConfig(FormalConfig):
    """FIRST, is the first bit 1? The experiment of the ACL 2022 paper (arXiv 2202.12172), and other scales.

    The defaults are the whole grid of the paper with three more scales.
    """

    arms: dict[Name, FormalArm] = Field(default=FIRST_ARMS, min_length=1, description="the scales, by name")
    seeds: tuple[Seed, ...] = Field(
        default=tuple(range(20)), min_length=1, strict=False, description="one network per arm, length and seed"
    )
    train_lengths: tuple[int, ...] = Field(
        default=(10, 30, 100, 300),
        min_length=1,
        strict=False,
        description="lengths n of training strings in bits; a network sees one of them",
    )
    test_lengths: tuple[int, ...] = Field(
        default=(1000, 10_000),
        min_length=1,
        strict=False,
        description="lengths at which every network is tested, besides its own",
    )
    epochs: int = Field(default=1000, ge=1, le=100_000, description="epochs of training")
    test_every: int = Field(default=20, ge=1, description="epochs between two tests; the last epoch is always tested")
    fails_below: float = Field(
        default=75.0, gt=50, lt=100, description="percent; accuracy at the first test length that counts as failing"
    )
    solves_above: float = Field(
        default=90.0, gt=50, lt=100, description="percent; accuracy at the first test length that counts as solving"
    )


class ParityConfig(FormalConfig):
    """PARITY, is the number of 1s odd? There are networks for it, and training is not known to find them."""

    arms: dict[Name, FormalArm] = Field(
        default={name: FIRST_ARMS[name] for name in ("attention_o", "acl2022_on_query_input")},
        min_length=1,
        description="the scales, by name",
    )
    seeds: tuple[Seed, ...] = Field(
        default=tuple(range(10)), min_length=1, strict=False, description="one network per arm, length and seed"
    )
    train_lengths: tuple[int, ...] = Field(
        default=(20,),
        min_length=1,
        strict=False,
        description="lengths n of training strings in bits, at most 1000; a network sees one of them",
    )
    test_lengths: tuple[int, ...] = Field(
        default=(40,),
        min_length=1,
        strict=False,
        description="lengths at which every network is tested, besides its own; at most 1000",
    )
    epochs: int = Field(default=300, ge=1, le=100_000, description="epochs of training")
    test_every: int = Field(default=10, ge=1, description="epochs between two tests; the last epoch is always tested")
    test_strings: int = Field(default=1000, ge=100, le=100_000, description="random strings of a test, fixed per seed")
    learned_above: float = Field(
        default=60.0, gt=50, lt=100, description="percent; accuracy at the training length that counts as learning"
    )

    @field_validator("train_lengths", "test_lengths")
    @classmethod
    def _check_memory(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if lengths[-1] > 1000:
            raise ValueError(
                f"{lengths[-1]} is above 1000, where attention between all tokens takes too much memory; choose "
                "shorter strings"
            )
        return lengths
