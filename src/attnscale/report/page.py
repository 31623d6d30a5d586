"""Puts data, tables, words and figures into the templates."""

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup, escape

from attnscale import published, published_formal
from attnscale.analysis.theory import consequences
from attnscale.attention import Attention, make_variant
from attnscale.attention.positions import make_positions
from attnscale.config import Task
from attnscale.formal.training import SHAPES
from attnscale.report.answer import answer, groups_of_seeds, machines, pairing_note, seeds_notes, tests_note
from attnscale.report.arms import KINDS, kind_of, lengths_beyond, main_arms, variant_of
from attnscale.report.data import Claim, RunData
from attnscale.report.figures import COLOURS, Drawing
from attnscale.report.formal import LANGUAGES, exact_sentence, formal_grid, parity_sentence
from attnscale.report.grids import (
    accuracy_grid,
    difference_grid,
    drop_grid,
    entropy_grid,
    growth_grid,
    main_grid,
    multiplier_grid,
    needs_grid,
    origin,
    random_keys_grid,
    source_grid,
)
from attnscale.report.spread import spread_lengths
from attnscale.report.words import count, joined, share, signed, tokens, unsigned

TEMPLATES = ("durations.html", "durations.md", "report.md", "index.html")

_MARKS = {"reproduced": "✓", "partly": "◐", "not reproduced": "✗"}
_CLASSES = {"reproduced": "yes", "partly": "partly", "not reproduced": "no"}


@dataclasses.dataclass(frozen=True)
class Formula:
    """What an arm computes."""

    arm: str
    kind: str
    variant: str
    formula: str
    source: str
    parameters: str
    text: str
    origin: str
    positions: str = ""
    """Treatment of positions with its parameters; empty for plain rotary ones."""
    positions_source: str = ""
    positions_text: str = ""


def render(data: RunData, drawings: Mapping[str, Drawing]) -> dict[str, str]:
    """Fill the templates.

    Args:
        data: the run.
        drawings: its figures.

    Returns:
        By name of the template, the text of the file, with a line end at its end.
    """
    environment, context = template_environment(), _context(data, drawings)
    pages = {name: environment.get_template(name).render(context).strip() + "\n" for name in TEMPLATES}
    # What templates leave out leaves its blank lines behind.
    return {name: re.sub(r"\n{3,}", "\n\n", text) for name, text in pages.items()}


def template_environment() -> jinja2.Environment:
    """Where templates are found, and the filters that they use."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnscale.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        cell=_markdown_cell,
        breakable=_breakable,
        code=_code,
        duration=_duration,
        moment=_moment,
        count=count,
        joined=joined,
        share=share,
        tokens=tokens,
        measured=_measured,
        published=_published,
        mark=lambda verdict: _MARKS.get(verdict, "?"),
        verdict_class=lambda verdict: _CLASSES.get(verdict, "open"),
    )
    return environment


def _context(data: RunData, drawings: Mapping[str, Drawing]) -> Mapping[str, Any]:
    parameters = {run.arm: run.parameters for run in data.runs}
    grids: dict[str, object] = {
        "main": main_grid(data),
        "accuracy": accuracy_grid(data),
        "differences": difference_grid(data),
        "sources": source_grid(data),
        "growth": growth_grid(data),
        "entropy": entropy_grid(data),
        "needs": needs_grid(data),
        "drop": drop_grid(data),
        "random_keys": random_keys_grid(data),
        "multiplier": multiplier_grid(data) if lengths_beyond(data.config) else None,
    }
    grids |= {str(task): formal_grid(data, task) for task in data.formal}
    return {
        "name": data.config.name,
        "data": data,
        "config": data.config,
        "several_seeds": data.several_seeds(),
        "unmeasured": [name for name in data.config.source_names if name not in data.by_source.sources]
        if data.by_source is not None
        else [],
        "mixed": any(kind_of(data.config, arm) == "mixed" for arm in data.arms),
        "growth_seeds": data.several_seeds(data.config.evaluation.snapshot_arms),
        "answer": answer(data),
        "notes": seeds_notes(data),
        "tests_note": tests_note(data),
        "pairing_note": pairing_note(data),
        "seed_groups": groups_of_seeds(data),
        "machines": machines(data),
        "main_arms": [arm for arm in data.arms if arm in main_arms(data.config)],
        "grids": grids,
        "needs_length": spread_lengths(data.config)[0] if lengths_beyond(data.config) else None,
        "theory_sentences": consequences(data.theory),
        "constants": _constants(data),
        "published": published,
        "published_formal": published_formal,
        "exact_sentence": exact_sentence(data) if data.formal else "",
        "parity_sentence": parity_sentence(data) if "parity" in data.formal else "",
        "formal_heads": [f"{SHAPES[task].head_size} ({LANGUAGES[task]})" for task in data.formal],
        "kinds": arms_by_kind(data),
        "parameters": parameters,
        "sizes": sorted(set(parameters.values())),
        "figures": drawings,
        "sections": _sections(data, drawings, grids),
        "colours": [(f"--arm{i}", light, dark) for i, (light, dark) in enumerate(COLOURS)],
    }


def _sections(data: RunData, drawings: Mapping[str, Drawing], grids: Mapping[str, object]) -> list[tuple[str, str]]:
    """Anchors and titles of the page's second part, in its order."""
    wanted = (
        ("all-arms", "All arms", True),
        ("differences", "All differences", not data.differences.empty),
        ("sources", "By source of the text", grids["sources"]),
        ("growth", "Growth over training", grids["growth"]),
        ("repairs", "Positions × log n", "repairs" in drawings),
        ("entropy", "Entropy", grids["entropy"]),
        ("spread", "Logit spread", "logit_spread" in drawings),
        ("curves", "Learning curves", True),
        ("gradients", "Gradients", True),
        ("first", "FIRST, and the ACL 2022 paper", "first" in data.formal),
        ("parity", "PARITY", "parity" in data.formal),
        ("exact", "Networks built by hand", data.formal),
        ("theory", "Theory", True),
        ("arms", "Formulas and sources", True),
        ("protocol", "How it was measured", True),
        ("run", "Data and environment", True),
    )
    return [(anchor, title) for anchor, title, there in wanted if there]


def arms_by_kind(data: RunData) -> dict[str, list[Formula]]:
    """What every arm computes, under the title of its kind or of its formal language."""
    formulas = _formulas(data)
    kinds = {title: found for kind, title in KINDS.items() if (found := [f for f in formulas if f.kind == kind])}
    return kinds | {LANGUAGES[task]: _formal_formulas(data, task) for task in data.formal}


def _formulas(data: RunData) -> list[Formula]:
    found = []
    for arm in data.arms:
        settings = data.config.arms[arm]
        variant = variant_of(data.config, arm)
        spec = settings.positions
        positions = make_positions(spec.name, spec.parameters) if spec is not None else None
        found.append(
            dataclasses.replace(
                _formula_of(arm, variant, kind_of(data.config, arm), origin(data, arm) or "trained from the start"),
                positions=f"{positions.name} ({_fields(positions)})".replace(" ()", "") if positions else "",
                positions_source=positions.source if positions else "",
                positions_text=_docstring(positions) if positions else "",
            )
        )
    return found


def _formal_formulas(data: RunData, task: Task) -> list[Formula]:
    where = {"logits": "on the logits", "query_input": "on what queries are projected from; their bias stays unscaled"}
    found = []
    for arm, settings in data.formal[task].section.arms.items():
        spec = settings.attention
        variant = make_variant(spec.name, spec.parameters, spec.module)
        found.append(_formula_of(arm, variant, task, where[settings.scales]))
    return found


def _formula_of(arm: str, variant: Attention, kind: str, origin: str) -> Formula:
    return Formula(
        arm=arm,
        kind=kind,
        variant=variant.name,
        formula=variant.formula,
        source=variant.source,
        parameters=_fields(variant),
        text=_docstring(variant),
        origin=origin,
    )


def _fields(thing: Any) -> str:
    return ", ".join(f"{field.name} = {getattr(thing, field.name)}" for field in dataclasses.fields(thing))


def _docstring(thing: object) -> str:
    return " ".join((inspect.getdoc(type(thing)) or "").split())


def _constants(data: RunData) -> list[tuple[str, str]]:
    """The constants of the derivation: what, and its number."""
    table = data.theory[data.theory["method"] == "closed form"]
    values = dict(zip(table["quantity"], table["value"], strict=True))
    names = {
        "saddle_cos": "cos of the dominating angle at λ = 1",
        "saddle_sin2": "its sin²",
        "saddle_slope": "entropy lost per dimension at λ = 1, ½ ln((1 + √5)/2)",
        "kappa_of_slope": "κ that this slope gives, 1 / slope",
    }
    return [(text, f"{values[name]:.4f}") for name, text in names.items() if name in values]


def _measured(claim: Claim) -> str:
    if math.isnan(claim.measured):
        return "–"
    number = signed if "points" in claim.quantity else unsigned
    if math.isnan(claim.ci_low):
        return number(claim.measured)
    return f"{number(claim.measured)} [{number(claim.ci_low)}, {number(claim.ci_high)}]"


def _published(claim: Claim) -> str:
    number = signed if "points" in claim.quantity else unsigned
    return "–" if math.isnan(claim.published) else number(claim.published)


def _markdown_cell(value: object) -> str:
    """Text that cannot break out of a cell of a Markdown table or be read as markup."""
    # Inside a word an underscore is no markup, and names read better without backslashes.
    return re.sub(r"([\\*|<>\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(value).split()))


def _breakable(name: str) -> Markup:
    """A name that may go to the next line after its underscores; copying gives the plain name."""
    return Markup("_<wbr>").join(name.split("_"))


def _code(text: str) -> Markup:
    """Text whose words in backticks become <code>."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _moment(value: str | None) -> str:
    """A moment in ISO form, easier to read: `2026-01-02 03:04:05 UTC`."""
    return re.sub(r"[+]00:?00$", " UTC", (value or "–").replace("T", " ", 1))


def _duration(seconds: float) -> str:
    """`42.1 s`, `3 min 05 s`, `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
