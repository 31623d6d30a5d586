"""Puts data, tables, words and figures into the templates."""

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape

from attnscale.attention import make_variant
from attnscale.report import published
from attnscale.report.answer import ENOUGH_SEEDS, answer, count, seeds_note
from attnscale.report.data import RunData
from attnscale.report.figures import COLOURS, Drawing
from attnscale.report.tables import Cell, accuracy_rows, by_chance, difference_rows, lengths_of


@dataclasses.dataclass(frozen=True)
class Formula:
    """What an arm computes."""

    arm: str
    variant: str
    formula: str
    source: str
    parameters: str
    text: str
    weights_of: str | None


def render(template: str, data: RunData, drawings: Sequence[Drawing]) -> str:
    """Fill one template.

    Args:
        template: `index.html`, `report.md`, `durations.html` or `durations.md`.
        data: the run.
        drawings: its figures.

    Returns:
        The text of the file, with a line end at its end.
    """
    return _environment().get_template(template).render(_context(data, drawings)).strip() + "\n"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnscale.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=_percent,
        change=_change,
        cell=_markdown_cell,
        breakable=_breakable,
        code=_code,
        duration=_duration,
        moment=_moment,
        count=count,
    )
    return environment


def _context(data: RunData, drawings: Sequence[Drawing]) -> Mapping[str, Any]:
    accuracies, differences, chance = accuracy_rows(data), difference_rows(data), by_chance(data)
    parameters = {run.arm: run.parameters for run in data.runs}
    return {
        "name": data.config.name,
        "data": data,
        "config": data.config,
        "seeds": len(data.config.seeds),
        "enough_seeds": ENOUGH_SEEDS,
        "answer": answer(data, accuracies, differences, chance),
        "note": seeds_note(data),
        "accuracies": accuracies,
        "accuracy_lengths": lengths_of(accuracies),
        "differences": differences,
        "difference_lengths": lengths_of(differences),
        "chance": chance,
        "same_weights": any(row.weights_of is not None and row.weights_of == row.reference for row in differences),
        "published": published,
        "formulas": _formulas(data),
        "parameters": parameters,
        "sizes": sorted(set(parameters.values())),
        "drawings": drawings,
        "colours": [(f"--arm{i}", light, dark) for i, (light, dark) in enumerate(COLOURS)],
    }


def _formulas(data: RunData) -> list[Formula]:
    found = []
    for arm in data.arms:
        settings = data.config.arms[arm]
        spec = settings.attention
        variant = make_variant(spec.name, spec.parameters, spec.module)
        values = {field.name: getattr(variant, field.name) for field in dataclasses.fields(variant)}
        found.append(
            Formula(
                arm=arm,
                variant=spec.name,
                formula=variant.formula,
                source=variant.source,
                parameters=", ".join(f"{key} = {value}" for key, value in values.items()),
                text=" ".join((inspect.getdoc(type(variant)) or "").split()),
                weights_of=settings.weights_of,
            )
        )
    return found


def _percent(cell: Cell) -> str:
    return f"{cell.mean:.2f}"


def _change(value: float) -> str:
    """Signed points with a true minus sign; what rounds to nothing gets no sign."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")


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
