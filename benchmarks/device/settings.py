"""Settings without pydantic: defaults are read from the text of `attnscale/config/`, which stays their only place."""

import ast
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import attnscale
from attnscale.errors import UserError

if TYPE_CHECKING:
    from attnscale.config import ModelConfig, TrainingConfig

TRAINING = Path(attnscale.__file__).with_name("config") / "training.py"


class Attention(NamedTuple):
    """A registered attention with values for its parameters."""

    name: str
    parameters: dict[str, Any]


# The arms of config/default.yaml: those that are trained, and those that take the weights of another.
TRAINED = {name: Attention(name, {}) for name in ("attention_o", "attention_e", "acl2022")}
AT_TEST = {"attention_o_logn_at_test": ("attention_o", Attention("attention_e", {"base": "training_length"}))}


def defaults(section: str) -> dict[str, Any]:
    """Keys of a section of the configuration and their defaults, as far as they are written as literals."""
    body = next(node.body for node in _statements() if isinstance(node, ast.ClassDef) and node.name == section)
    return {
        line.target.id: ast.literal_eval(keyword.value)
        for line in body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(line.value, ast.Call)
        for keyword in line.value.keywords
        if keyword.arg == "default"
    }


def presets() -> dict[str, dict[str, int]]:
    """Sizes of the encoder by preset."""
    for node in _statements():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "PRESETS":
            assert node.value is not None
            return cast(dict[str, dict[str, int]], ast.literal_eval(node.value))
    raise AssertionError(f"{TRAINING} has no PRESETS")


def model_settings(preset: str) -> "ModelConfig":
    """What the encoder reads of a `ModelConfig`."""
    return cast("ModelConfig", types.SimpleNamespace(**{**defaults("ModelConfig"), **presets()[preset]}))


def training_settings(**changes: Any) -> "TrainingConfig":
    """What training reads of a `TrainingConfig`: the default recipe with changes."""
    return cast("TrainingConfig", types.SimpleNamespace(**{**defaults("TrainingConfig"), **changes}))


def parse_change(text: str) -> tuple[str, Any]:
    """One KEY=VALUE for the training settings.

    Raises:
        UserError: there is no such key, or the value is of another type.
    """
    key, _, value = text.partition("=")
    known = {name: value for name, value in defaults("TrainingConfig").items() if name != "snapshots"}
    if key not in known:
        raise UserError(f"--set {text}: no training setting is called {key}; known: {', '.join(sorted(known))}")
    try:
        return key, type(known[key])(value)
    except ValueError:
        raise UserError(f"--set {text}: {key} must be like its default, {known[key]!r}") from None


def _statements() -> list[ast.stmt]:
    return ast.parse(TRAINING.read_text(encoding="utf-8")).body
