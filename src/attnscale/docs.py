"""Documentation and JSON schema of the configuration, made from the models so that neither can go stale."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from attnscale.config import PRESETS, Config, SourceRules
from attnscale.findings import PATTERNS

PAGE_COMMAND = "attnscale docs --output docs/configuration.md"
SCHEMA_COMMAND = "attnscale schema --output config/schema.json"

INTRODUCTION = f"""\
# Configuration

<!-- Made by `{PAGE_COMMAND}` from src/attnscale/config/ and docs.py; edit those. -->

A run is one YAML file, such as `config/default.yaml`. It names only what differs from the defaults below: `name` and
`arms` are required, everything else may be left out.

```sh
attnscale config --configfile config/mine.yaml                 # check it, show it with every default spelled out
snakemake --cores all --configfile config/mine.yaml --dry-run  # show which jobs are due
snakemake --cores all --configfile config/mine.yaml            # run it; results go to results/NAME
```

A file is checked as a whole before any job starts. An unknown key, a key that stands twice, and a value of the wrong
type or outside its limits are errors, each told in one sentence. Numbers must be numbers to YAML: it takes `1e-3` for
text, so write `0.001` or `1.0e-3`.

Editors that know JSON schemas complete and check the keys of a file in `config/` that begins with
`# yaml-language-server: $schema=schema.json`.

Some rules join several keys:

- `model.heads` divides `model.width`, and the quotient is even, because rotary positions turn pairs.
- Every length of `evaluation.lengths` is a multiple or a divisor of `training.length` and divides the largest one, so
  that all lengths get the same targets.
- `arms.NAME.weights_of` names an arm that is trained itself, and at least one arm is trained.
- `arms.NAME.branch.of` names an arm that is trained from the start, `arms.NAME.branch.at` one of
  `training.snapshots`, and every share there has a step of its own before the last one.
- An arm with `weights_of` or `branch` has the seeds of the arm that it names, or some of them, and an attention that
  can take those weights.
- `arms.NAME.training_lengths` divide `training.length`.
- A branch keeps no snapshots, so it cannot stand in `evaluation.snapshot_arms`.
- Parameters of an attention or of `positions` stand beside its `name`, as in `{{name: attention_e, base: 64}}` and
  `{{name: clipped, width: 32}}`. `band` and `clipped` take a `width` in tokens, by default `training.length`.
- An attention may refuse parameters or lengths that it cannot handle; `attnscale variants` shows all attentions.
"""

EXAMPLES = (
    (
        "Your own text files",
        "One file is one document. Blocks for the evaluation are cut inside single held-out documents, so some\n"
        "documents must be as long as the largest length; short texts need a shorter list of lengths.",
        """\
name: mine
arms:
  attention_o: {attention: attention_o}
  attention_e: {attention: attention_e}
corpus:
  sources:
    - {kind: files, name: my texts, paths: "texts/*.txt"}
evaluation: {lengths: [64, 128, 256, 512]}
""",
    ),
    (
        "More seeds",
        "One training per trained arm and seed. Seeds can be added later: what is trained already stays.",
        """\
name: seeds
seeds: [0, 1, 2, 3, 4]
arms:
  attention_o: {attention: attention_o}
  attention_e: {attention: attention_e}
  # Trains nothing: finished weights of attention_o, with the factor log n / log L switched on for testing.
  attention_o_logn_at_test:
    weights_of: attention_o
    attention: {name: attention_e, base: training_length}
""",
    ),
    (
        "Arms of every kind",
        "Without `weights_of` an arm trains: from the start, at mixed lengths, or the last quarter of a training.",
        """\
name: kinds
seeds: [0, 1, 2]
arms:
  attention_o: {attention: attention_o}
  # Finished weights: log n switched on, positions repaired, both.
  o_log_n: {weights_of: attention_o, attention: {name: attention_e, base: training_length}}
  o_clipped: {weights_of: attention_o, attention: attention_o, positions: clipped}
  o_band_log_n:
    weights_of: attention_o
    attention: {name: attention_e, base: training_length}
    positions: {name: band, width: 32}
  attention_e: {attention: attention_e, seeds: [0, 1]}
  # Trained with log n, which is taken away at test time.
  e_frozen: {weights_of: attention_e, attention: attention_e, n_at_most: training_length}
  mixed_e: {attention: attention_e, training_lengths: [16, 32, 64]}
  late_ssmax: {attention: ssmax, branch: {of: attention_o, at: 0.75}}
training: {snapshots: [0.5, 0.75]}
evaluation: {snapshot_arms: [attention_o, o_log_n]}
""",
    ),
    (
        "The article's model size with the faithful recipe",
        "The `small` preset in the post-norm layout of RoFormer with dropout; it wants a GPU or patience.",
        """\
name: small-faithful
arms:
  attention_o: {attention: attention_o}
  attention_e: {attention: attention_e}
model: {preset: small, recipe: faithful}
training: {tokens: 50000000, learning_rate: 0.0003, warmup_fraction: 0.1}
""",
    ),
)
"""Title, words and YAML of each example."""

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "minProperties": "at least {} entries",
}
_NOT_EMPTY = ("at least 1 characters", "at least 1 entries")
_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_PRESET_KEYS = frozenset(key for sizes in PRESETS.values() for key in sizes)


def json_schema() -> dict[str, Any]:
    """JSON schema of configuration files, for editors; `attnscale config` checks more than a schema can say."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def configuration_page() -> str:
    """The page docs/configuration.md as Markdown text."""
    schema = json_schema()
    parts = [INTRODUCTION, "## Examples\n"]
    parts += [f"### {title}\n\n{words}\n\n```yaml\n{text}```\n" for title, words, text in EXAMPLES]
    parts.append("## All keys\n")
    sections = {key: field for key, field in schema["properties"].items() if "$ref" in field}
    off = {key: field for key, field in schema["properties"].items() if any("$ref" in part for part in _anyof(field))}
    parts.append(_part("the run", schema["description"], _rows("", schema, leave_out=frozenset(sections))))
    models = schema["$defs"]
    sources = [models[name] for name in ("WheelSource", "HubSource", "FilesSource")]
    parts.append(_part("arms", models["ArmConfig"]["description"], _rows("arms.NAME.", models["ArmConfig"])))
    for key, name in (("attention", "AttentionSpec"), ("branch", "BranchConfig"), ("positions", "PositionsSpec")):
        place = f"arms.NAME.{key}"
        parts.append(_part(place, models[name]["description"], _rows(f"{place}.", models[name])))
    for key, field in sections.items():
        section = schema["$defs"][field["$ref"].rpartition("/")[2]]
        parts.append(_part(key, section["description"], _rows(f"{key}.", section)))
        if key == "corpus":
            for source in sources:
                kind = source["properties"]["kind"]["const"]
                parts.append(
                    _part(f"corpus.sources, kind {kind}", source["description"], _rows("corpus.sources[].", source))
                )
            for reader in (models[name] for name in ("TextReader", "JsonReader", "SqliteReader")):
                kind = reader["properties"]["kind"]["const"]
                parts.append(
                    _part(
                        f"corpus.sources, reader of kind {kind}",
                        reader["description"],
                        _rows("corpus.sources[].reader.", reader),
                    )
                )
        if key == "model":
            parts.append(_presets())
    for key, field in off.items():
        section = models[_anyof(field)[0]["$ref"].rpartition("/")[2]]
        parts.append(_part(key, section["description"], _rows(f"{key}.", section)))
    formal = models["FormalArm"]
    parts.append(_part("arms of first and parity", formal["description"], _rows("first.arms.NAME.", formal)))
    return "\n".join(parts)


def _anyof(field: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = field.get("anyOf", [])
    return found


def _part(title: str, words: str, rows: Iterable[Iterable[str]]) -> str:
    head = ("key", "type", "default", "limits", "meaning")
    return f"### {title}\n\n{words}\n\n{_table(head, rows)}"


def _presets() -> str:
    keys = sorted(_PRESET_KEYS, key=list(PRESETS["compact"]).index)
    return "The sizes of the presets:\n\n" + _table(
        ("preset", *keys), ((f"`{name}`", *(str(sizes[key]) for key in keys)) for name, sizes in PRESETS.items())
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def _rows(prefix: str, schema: dict[str, Any], leave_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", [])
    # What all sources share stands first in their schemas, and is the last that a reader looks for.
    for key, field in sorted(schema["properties"].items(), key=lambda item: item[0] in SourceRules.model_fields):
        if key not in leave_out:
            default = _default(key, field, required=key in required)
            yield f"`{prefix}{key}`", _type(field), default, _limits(field), field.get("description", "")


def _default(key: str, field: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    if "default" not in field:
        return "from the preset" if key in _PRESET_KEYS else "`{}`"
    if key == "sources":
        return "; ".join(f"{source['kind']} `{source['name']}` {source['version']}" for source in field["default"])
    value = field["default"]
    if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
        return ", ".join(f"`{name}`" for name in value)
    if isinstance(value, list) and len(value) > 8 and value == list(range(len(value))):
        return f"`0` to `{len(value) - 1}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _type(field: dict[str, Any]) -> str:
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        # Of two spellings of one choice, on and true, the page shows the word.
        return " or ".join(f"`{value}`" for value in field["enum"] if not isinstance(value, bool))
    if "oneOf" in field:
        return "map"
    if "anyOf" in field:
        return " or ".join("map" if "$ref" in part else _type(part) for part in field["anyOf"])
    if field.get("type") == "array":
        plural = _type(field["items"]) + "s" if "type" in field["items"] else "maps"
        return f"list of {plural}"
    return {**_TYPES, "object": "map", "null": "null"}[field["type"]]


def _limits(field: dict[str, Any]) -> str:
    found = [words.format(f"{field[key]:,}".replace(",", " ")) for key, words in _LIMITS.items() if key in field]
    found = [part if part not in _NOT_EMPTY else "not empty" for part in found]
    found += [PATTERNS[field["pattern"]]] if "pattern" in field else []
    found += [_limits(part) for part in field.get("anyOf", ()) if "$ref" not in part]
    each = _limits(field["items"]) if "items" in field else ""
    found += [f"each {each}"] if each else []
    found += [f"names {PATTERNS[pattern]}" for pattern in field.get("patternProperties", ())]
    found += [f"names {_limits(field['propertyNames'])}"] if "propertyNames" in field else []
    return "; ".join(part for part in found if part)
