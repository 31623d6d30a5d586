"""Findings of pydantic, told as one sentence that a user without Python can act on."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

NAME = r"^[a-z0-9][a-z0-9_-]*$"
SHA256 = r"^[0-9a-f]{64}$"
PACKAGE = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

PATTERNS = {
    NAME: "made of lower-case letters, digits, _ and -, with a letter or digit in front",
    SHA256: "64 hexadecimal digits in lower case",
    PACKAGE: "made of letters, digits, ., _ and -, with a letter or digit in front",
}
"""What each pattern of the configuration means, in words that complete "must be"."""

_LIMITS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}
_WHOLE_NUMBER = ("int_type", "int_parsing", "int_from_float", "int_parsing_size")
_NUMBER = ("float_type", "float_parsing")
_MAP = ("model_type", "dict_type", "model_attributes_type")
_EXAMPLES = {"ArmConfig": "; write {attention: attention_o}", "AttentionSpec": "; write attention_o"}


def explain(error: ValidationError, root: type[BaseModel]) -> str:
    """One sentence for the finding that helps most: where, what, and what would be right.

    Args:
        error: what pydantic raised while it checked data against `root`.
        root: the model, for the names of its keys.

    Returns:
        One line without a full stop.
    """
    findings = error.errors(include_url=False)
    first = findings[0]
    if first["type"] == "missing":
        # A key is missing and another is unknown at the same place: a slip of the pen, so name the slip.
        slips = [f for f in findings if f["type"] == "extra_forbidden" and f["loc"][:-1] == first["loc"][:-1]]
        first = slips[0] if slips else first
    return " ".join(_sentence(first, root).split())


def nearest(given: object, known: Iterable[str], what: str) -> str:
    """Say that a name is unknown, with the nearest known one, or all of them when none is near.

    Args:
        given: the unknown name.
        known: the names that would have been right.
        what: what it is the name of, such as "key".
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.6)
    return f"unknown {what} {_key(given)}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}")


def _sentence(finding: Any, root: type[BaseModel]) -> str:
    kind, context, given = finding["type"], finding.get("ctx", {}), finding["input"]
    parts, models, required = _walk(finding["loc"], root)
    where = _dotted(parts) or "it"
    if kind in ("extra_forbidden", "invalid_key"):
        parent = _dotted(parts[:-1])
        # The place holds a key that is no text in Python's words; what was given is the key itself.
        key = given if kind == "invalid_key" else parts[-1]
        return (f"{parent}: " if parent else "") + _unknown_key(key, models, root)
    if kind == "value_error":
        return f"{where}: {context['error']}" if parts else str(context["error"])
    if kind == "missing":
        return f"{where} is missing; add it"
    if kind == "json_invalid":
        return "it is no JSON; check quotes and brackets"
    if finding["loc"] and finding["loc"][-1] == "[key]":
        right = PATTERNS[NAME] if isinstance(given, str) else "text; put it in quotes"
        if kind == "string_too_long":
            right = f"at most {context['max_length']} characters long; shorten it"
        return f"{_dotted(parts[:-1])}: the name {_key(given)} must be {right}"
    if kind == "union_tag_not_found":
        return f"{where}.kind is missing; add it, {_choices(_kinds(models))}"
    if kind == "union_tag_invalid":
        return f"{where}.kind must be {_choices(_kinds(models))}, not {_shown(given['kind'])}"
    if "parameters" in parts[:-1]:
        # Usually written beside the name of the attention, without `parameters`; pydantic adds the type it tried.
        depth = parts.index("parameters")
        where = _dotted([*parts[:depth], parts[depth + 1]])
        words = "a finite number" if parts[depth - 1] == "positions" else "a finite number, text, true or false"
        return f"{where} must be {words}, not {_shown(given)}"
    if kind == "string_too_short":
        return f"{where} is empty; give it a value"
    if kind == "too_short" and context["min_length"] > 1:
        return f"{where} needs at least {context['min_length']} entries, not {context['actual_length']}"
    if kind == "too_short" or (given is None and kind in _MAP):
        return f"{where} is empty; give it at least one entry" + ("" if required else ", or leave it out")
    if kind in ("string_too_long", "too_long"):
        return f"{where} is longer than {context['max_length']}; shorten it"
    return f"{where} must be {_expected(kind, context)}, not {_shown(given)}{_advice(kind, context, given)}"


def _expected(kind: str, context: dict[str, Any]) -> str:
    if kind in _LIMITS:
        # Limits of numbers with a fraction arrive as 0.0 and 1.0.
        return _LIMITS[kind].format(**{key: f"{value:.12g}" for key, value in context.items()})
    if kind in _WHOLE_NUMBER:
        return "a whole number"
    if kind in _NUMBER:
        return "a number"
    if kind in _MAP:
        return "a map of keys and values"
    words: dict[str, str] = {
        "finite_number": "a finite number",
        "string_type": "text",
        "bool_type": "true or false",
        "tuple_type": "a list",
        "literal_error": str(context.get("expected")),
        "string_pattern_mismatch": PATTERNS.get(context.get("pattern", ""), "written differently"),
    }
    return words.get(kind, "as docs/configuration.md describes it")


def _advice(kind: str, context: dict[str, Any], given: Any) -> str:
    if kind in _WHOLE_NUMBER + _NUMBER and isinstance(given, str):
        return _as_number(given, whole=kind in _WHOLE_NUMBER)
    if kind == "string_type" and not isinstance(given, dict | list | None):
        return "; put it in quotes"
    if kind == "tuple_type" and isinstance(given, int | float | str):
        return f"; write [{given if isinstance(given, str) else _shown(given)}]"
    return _EXAMPLES.get(context.get("class_name", ""), "")


def _as_number(text: str, *, whole: bool) -> str:
    """How to write a number that YAML took for text: 1e6 needs a point and a sign there, or quotes stand around."""
    try:
        number = float(text)
    except ValueError:
        return ""
    if whole:
        return f"; write {int(number)}" if number.is_integer() else ""
    return f"; write {number!r}" if "e" not in repr(number) else f"; write {number:.6e}"


def _walk(location: Sequence[int | str], root: type[BaseModel]) -> tuple[list[int | str], list[type[BaseModel]], bool]:
    """Follow a place of the data through the models.

    Returns:
        The keys as the user wrote them, the models that may stand there (or around the last key, if it holds
        none), and whether the last key must be given.
    """
    parts: list[int | str] = []
    models: list[type[BaseModel]] = [root]
    required = True
    for part in location:
        if part == "[key]":
            continue
        tagged = [model for model in models if part in _tags(model)]
        if tagged and parts and isinstance(parts[-1], int):
            models = tagged  # pydantic puts the kind of a source into the place; the file has no such key
            continue
        parts.append(part)
        fields = [model.model_fields[part] for model in models if isinstance(part, str) and part in model.model_fields]
        models = [found for field in fields for found in _models_in(field.annotation)] or models
        required = all(field.is_required() for field in fields)
    return parts, models, required


def _unknown_key(key: Any, models: list[type[BaseModel]], root: type[BaseModel]) -> str:
    if len(models) == 1 and "parameters" in models[0].model_fields:
        # Parameters may stand beside the name only if there is no `parameters`.
        known = nearest(key, models[0].model_fields, "key")
        return known if "did you mean" in known else f"unknown key {_key(key)} beside parameters; put it into them"
    homes = sorted(
        name
        for name, field in root.model_fields.items()
        for model in _models_in(field.annotation)
        if isinstance(key, str) and key in model.model_fields and model not in models
    )
    if homes and len(models) == 1:
        return f"unknown key {_key(key)}; it belongs under {' or '.join(homes)}"
    return nearest(key, {name for model in models for name in model.model_fields}, "key")


def _kinds(models: list[type[BaseModel]]) -> list[str]:
    return [tag for model in models for tag in _tags(model)]


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    values = getattr(field.annotation, "__args__", ()) if field is not None else ()
    return values if len(values) == 1 else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _dotted(parts: Sequence[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in parts)
    return text.removeprefix(".")


def _choices(values: Sequence[str]) -> str:
    return ", ".join(values[:-1]) + f" or {values[-1]}" if len(values) > 1 else "".join(values)


def _key(key: object) -> str:
    text = _shown(key) if key is None or isinstance(key, bool) else str(key)
    return short(text if text.isprintable() and text else repr(text))


def _shown(value: object) -> str:
    """A value of the file as its author knows it: YAML's words, not Python's, and not pages of it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | BaseModel):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return short(text)


def short(text: str) -> str:
    """A text of the file, without its end if it is long."""
    return text if len(text) <= 60 else f"{text[:58]}…"
