"""The arms of the comparison: attentions, positions, and whose weights they take."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from attnscale.config.section import LARGEST, Section, Seed


class AttentionSpec(Section):
    """One registered attention with values for its parameters."""

    # In a file, parameters stand beside the name, so editors must allow keys that only the variant knows.
    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": {"type": ["integer", "number", "string", "boolean"]}}
    )

    name: str = Field(min_length=1, description="a registered variant, see `attnscale variants`")
    module: str | None = Field(default=None, description="path of the .py file that registers it, if it is your own")
    parameters: dict[str, int | float | str | bool] = Field(default_factory=dict, description="its parameters")


class PositionsSpec(Section):
    """A treatment of positions with values for its parameters."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": ["integer", "number"]}})

    name: Literal["band", "clipped", "ntk"] = Field(
        description="band: only keys less than `width` away; clipped: longer distances count as `width` - 1; "
        "ntk: frequencies stretched by the length"
    )
    parameters: dict[str, int | float] = Field(default_factory=dict, description="its parameters")


class BranchConfig(Section):
    """From where a branched arm goes on."""

    of: str = Field(description="the trained arm whose weights and optimizer state it takes over")
    at: float = Field(gt=0, lt=1, description="after which share of the training; one of training.snapshots")


def or_its_name(schema: dict[str, Any]) -> None:
    """For the JSON schema: a variant without parameters may be given as a word."""
    schema["anyOf"] = [{"type": "string", "minLength": 1}, {"$ref": schema.pop("$ref")}]


def _or_its_name_or_null(schema: dict[str, Any]) -> None:
    """For the JSON schema: as `or_its_name`, where nothing is allowed too."""
    schema["anyOf"].append({"type": "string", "enum": ["band", "clipped", "ntk"]})


def short_form(value: Any, *, module: bool) -> Any:
    """A name or a map of a name and parameters, as a spec."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and "parameters" not in value:
        special = ("name", "module") if module else ("name",)
        parameters = {key: item for key, item in value.items() if key not in special}
        given = {"name": "", **{key: value[key] for key in special if key in value}}
        return {**given, "parameters": parameters}
    return value


class ArmConfig(Section):
    """One row of the result table: a trained attention, or finished weights under another attention."""

    attention: AttentionSpec = Field(
        description="name of a variant, or a map of `name` and its parameters", json_schema_extra=or_its_name
    )
    weights_of: str | None = Field(
        default=None, description="test-time arm: take the weights of this trained arm and train nothing"
    )

    branch: BranchConfig | None = Field(
        default=None, description="branched arm: go on from a snapshot of another arm instead of from the start"
    )
    training_lengths: tuple[int, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=8,  # as many graphs as torch.compile keeps; beyond it, bits would depend on the order of lengths
        strict=False,
        description="mixed lengths: every step cuts its windows into pieces of one of these lengths, drawn at random",
    )
    positions: PositionsSpec | None = Field(
        default=None,
        description="treatment of positions instead of plain rotary ones: band, clipped or ntk, or a map of `name` "
        "and its parameters",
        json_schema_extra=_or_its_name_or_null,
    )
    n_at_least: int | Literal["training_length"] | None = Field(
        default=None, description="the formula is given this n where a row has fewer keys"
    )
    n_at_most: int | Literal["training_length"] | None = Field(
        default=None, description="the formula is given this n where a row has more; training_length freezes the scale"
    )
    seeds: tuple[Seed, ...] | None = Field(
        default=None, min_length=1, strict=False, description="only these of the run's seeds; null: all"
    )

    @field_validator("attention", mode="before")
    @classmethod
    def _accept_short_forms(cls, value: Any) -> Any:
        return short_form(value, module=True)

    @field_validator("positions", mode="before")
    @classmethod
    def _accept_positions_by_name(cls, value: Any) -> Any:
        return short_form(value, module=False)

    @field_validator("n_at_least", "n_at_most", mode="before")
    @classmethod
    def _check_limit(cls, limit: Any) -> Any:
        # At 1 a logarithm is 0.
        if limit is None or limit == "training_length" or (type(limit) is int and 2 <= limit <= LARGEST):
            return limit
        raise ValueError("give a whole number of 2 or more, or training_length")

    @field_validator("training_lengths")
    @classmethod
    def _check_training_lengths(cls, lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if lengths is not None and list(lengths) != sorted(set(lengths)):
            raise ValueError(f"{list(lengths)} must rise and hold no length twice; sort it")
        return lengths
