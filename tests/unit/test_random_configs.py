"""Random configurations: each is accepted as a whole, or refused in one sentence, before anything runs.

400 of them by default; ATTNSCALE_RANDOM_CONFIGS=10000 tries that many. They are the same ones every time.
"""

import os
import types
import typing
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from attnscale.cli import resolved_yaml
from attnscale.config import Config, load_config, parse_config
from attnscale.errors import UserError
from attnscale.manifest import deterministic_files, other_files
from tests.unit.test_config import assert_is_one_plain_sentence

ROOT = Path(__file__).parents[2]
EXAMPLES = int(os.environ.get("ATTNSCALE_RANDOM_CONFIGS", "400"))

random_configs = settings(
    max_examples=max(1, EXAMPLES // 2),  # there are two tests
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)

ARMS = ["o", "e", "late"]
ATTENTIONS = ["attention_o", "attention_e", "acl2022", "ssmax", "sqrt_log_n", "log_position", "yarn", "attention_p"]
# No word of Python's among them: the sentences must not have any, and they quote what they refuse.
TEXTS = st.text(alphabet="abz 019-_./*é字\n\t{}[]:#&'\"", max_size=8)
NUMBERS = st.one_of(
    st.integers(), st.integers(-3, 70), st.floats(), st.sampled_from([10**400, -(2**53), 2**63, 1e308, 5e-324])
)
SCALARS = st.one_of(NUMBERS, st.none(), st.booleans(), TEXTS, st.dates(), st.sampled_from(["1e6", "training_length"]))
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers() | st.none(), inner, max_size=3),
    max_leaves=5,
)
SEEDS = st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True).map(sorted)
LENGTHS = st.sampled_from([[64], [16, 64], [64, 128, 256], [128, 512], [1, 2, 64], [48, 96], [2**20], [64, 2**40]])
NAMED = {
    "name": st.sampled_from(["mine", "x-1", "Mine", "../up"]),
    "version": st.just("1.0"),
    "revision": st.just("v1"),
    "sha256": st.sampled_from(["0" * 64, "f" * 64, "0" * 63]),
    "kind": st.sampled_from(["bpe", "character", "files", "wheel", "hub", "json", "text", "sqlite"]),
    "module": st.sampled_from(["none.py", "README.md", "tests"]),
    "attention": st.sampled_from(ATTENTIONS)
    | st.fixed_dictionaries(
        {"name": st.sampled_from(ATTENTIONS)},
        optional={"base": st.sampled_from([512, 64, 1, 0.5, "training_length"]), "slope": NUMBERS, "x": JUNK},
    ),
    "positions": st.sampled_from(
        ["band", "clipped", "ntk", {"name": "band", "width": 64}, {"name": "ntk", "width": 1}]
    ),
    "weights_of": st.sampled_from(ARMS),
    "of": st.sampled_from(ARMS),
    "at": st.sampled_from([0.5, 0.25, 1.0]),
    "snapshots": st.sampled_from([[], [0.5], [0.25, 0.5], [0.5, 0.5]]),
    "snapshot_arms": st.lists(st.sampled_from(ARMS), max_size=2),
    "seeds": SEEDS,
    "training_lengths": st.sampled_from([[16, 64], [8], [64], [3], [64, 16]]),
    "lengths": LENGTHS,
    "length": st.sampled_from([64, 16, 48, 128, 8, 65536]),
    "multiples": st.sampled_from([[2, 4], [2, 4, 8, 16], [4], [4, 2]]),
}


def likely(annotation: object) -> st.SearchStrategy:
    """Values of a type as it stands in the configuration's models: right by type, not always in meaning."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return likely(arguments[0])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([likely(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(likely(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.sampled_from(ARMS), likely(arguments[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return section(annotation)
    simple = {
        bool: st.booleans(),
        int: st.sampled_from([1, 2, 4, 8, 64, 128, 300, 1000, 0, -1, 10**6, 2**60]),
        float: st.sampled_from([0.1, 0.5, 0.9, 0.001, 1.0, 0.0, 2.0]) | st.floats(0, 1),
        str: TEXTS,
        type(None): st.none(),
    }
    return simple[annotation]  # type: ignore[index]


def mostly(right: st.SearchStrategy) -> st.SearchStrategy:
    """Nineteen times of twenty the one, else anything at all."""
    return st.integers(0, 19).flatmap(lambda number: JUNK if number == 19 else right)


def section(model: type[BaseModel]) -> st.SearchStrategy:
    """A map for a model: what it must have, and some of what it may have."""
    keys = {
        name: mostly(NAMED[name] if name in NAMED else likely(field.annotation))
        for name, field in model.model_fields.items()
        if not (model is Config and name == "arms")
    }
    needed = {
        name: keys.pop(name) for name, field in model.model_fields.items() if field.is_required() and name in keys
    }
    # Few at a time, or nearly every map would be wrong somewhere.
    some = st.lists(st.sampled_from(sorted(keys)), max_size=3, unique=True) if keys else st.just([])
    more = some.flatmap(lambda names: st.fixed_dictionaries({name: keys[name] for name in names}))
    stray = st.integers(0, 39).flatmap(
        lambda number: st.dictionaries(TEXTS, SCALARS, max_size=1) if number == 39 else st.just({})
    )
    return st.tuples(st.fixed_dictionaries(needed), more, stray).map(lambda parts: {**parts[0], **parts[1], **parts[2]})


ARM = section(Config.model_fields["arms"].annotation.__args__[1])  # type: ignore[union-attr]
ALL_ARMS = st.dictionaries(st.sampled_from(ARMS), mostly(ARM), min_size=1, max_size=3)
CONFIGURATIONS = st.tuples(section(Config), mostly(ALL_ARMS)).map(lambda parts: {**parts[0], "arms": parts[1]})


def accepted_or_refused_in_one_sentence(read: typing.Callable[[], Config], where: str) -> None:
    try:
        config = read()
    except UserError as error:
        event("refused")
        assert_is_one_plain_sentence(str(error).replace(where, "mine.yaml"))
        return
    event("accepted")
    # What was accepted can be planned to its end, and means the same when it is read again.
    for arm, seed in config.runs():
        config.evaluate_settings(arm, seed)
    for arm, seed in config.runs(trained=True):
        config.train_settings(arm, seed)
    names = [*deterministic_files(config), *other_files(config)]
    assert len(set(names)) == len(names)
    assert parse_config(yaml.safe_load(resolved_yaml(config)), "again") == config
    assert Config.model_validate_json(config.canonical()) == config


@random_configs
@given(CONFIGURATIONS)
def test_random_keys_and_values_are_a_configuration_or_get_one_sentence(data):
    accepted_or_refused_in_one_sentence(lambda: parse_config(data, "mine.yaml"), "mine.yaml")


# Those with few arms: trying an attention out takes a while.
FILES = [(ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8") for name in ("smoke", "wiki-en", "zh")]
PIECES = st.sampled_from(
    [":", ": ", "{", "}", "[", "]", "- ", "\t", "\n", "\n  ", "#", "'", '"', "&a ", "*a", "<<: *a", "!!int ", "!!bool ",
     "!!float ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!x ", "? ", "| ", "> ", "---\n", "%", "@", "~", "=",
     "2026-13-45", "0x_", "0o9", "1:99", ".inf", "-", "1e999", "9" * 5000, "\x00", "\u2028", "\ufeff", "0"]
) | TEXTS  # fmt: skip


@st.composite
def damaged_files(draw: st.DrawFn) -> str:
    """One of the named runs after some slips of an editor: a piece is lost, doubled, put in, or overwritten."""
    text = draw(st.sampled_from(FILES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 12)))
        middle = draw(st.sampled_from(["", text[start:stop] * 2]) | PIECES)
        text = text[:start] + middle + text[stop:]
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("random")


@random_configs
@given(text=damaged_files())
def test_a_file_with_random_slips_is_a_configuration_or_gets_one_sentence(folder, text):
    path = folder / "mine.yaml"
    path.write_bytes(text.encode("utf-8"))
    accepted_or_refused_in_one_sentence(lambda: load_config(path), str(path))
