"""The report of an imported checkpoint: does what changes at test time help a finished model?"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from attnscale.analysis.comparisons import depends_on_length
from attnscale.checkpoint.shape import CheckpointRecord
from attnscale.files import write_text
from attnscale.manifest import IMPORTED, imported_figures
from attnscale.records import read_record
from attnscale.report.arms import KINDS
from attnscale.report.data import RunData, load_run
from attnscale.report.figures import COLOURS, STYLE, Drawing, accuracy, entropy, repairs, write
from attnscale.report.grids import Grid, accuracy_grid, difference_grid, entropy_grid
from attnscale.report.page import arms_by_kind, template_environment
from attnscale.report.tables import Cell, difference_row
from attnscale.report.words import interval, share, signed, tokens

TEMPLATES = {"checkpoint.md": "report.md", "checkpoint.html": "index.html"}


def build_checkpoint_report(run_dir: Path, output_dir: Path) -> None:
    """Write the report of an imported checkpoint; nothing is evaluated.

    Args:
        run_dir: folder that an import has written.
        output_dir: gets `index.html` (self-contained), `report.md`, `figures/*.png` and `*.svg`.

    Raises:
        UserError: something is missing or damaged.
    """
    data = load_run(run_dir, trained=False)
    drawings = _draw(data)
    for drawing in drawings.values():
        write(drawing, output_dir / "figures")
    record = read_record(run_dir / IMPORTED, CheckpointRecord, "import the checkpoint again")
    context = _context(data, drawings, record)
    environment = template_environment()
    for template, name in TEMPLATES.items():
        write_text(output_dir / name, environment.get_template(template).render(context).strip() + "\n")


def _draw(data: RunData) -> dict[str, Drawing]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        # The article's model has nothing to do with this one.
        draw = {
            "accuracy_by_length": lambda: accuracy.draw(data, beside_published=False),
            "repairs": lambda: repairs.draw(data),
            "entropy": lambda: entropy.draw(data),
        }
        return {name: draw[name]() for name in imported_figures(data.config)}


def _context(data: RunData, drawings: Mapping[str, Drawing], record: CheckpointRecord) -> Mapping[str, Any]:
    return {
        "name": data.config.name,
        "data": data,
        "config": data.config,
        "answer": _answer(data),
        "accuracy": _of_checkpoint(accuracy_grid(data)),
        "differences": difference_grid(data) if not data.differences.empty else None,
        "entropy": _of_checkpoint(measured) if (measured := entropy_grid(data)) else None,
        "kinds": arms_by_kind(data),
        "figures": drawings,
        "colours": [(f"--arm{i}", light, dark) for i, (light, dark) in enumerate(COLOURS)],
        "record": record,
        "unknown": share(data.tokens.held_out_unknown_tokens / data.tokens.held_out_tokens),
    }


def _answer(data: RunData) -> list[str]:
    """A sentence for every arm whose scale changes with the length, against the same without."""
    length, config = data.config.training.length, data.config
    beyond = [n for n in data.lengths if n > length]
    if not beyond:
        return [f"No length beyond the {tokens(length)} of the training was evaluated, where the question would begin."]
    sentences = []
    for arm in data.arms:
        if not depends_on_length(config, arm):
            continue
        others = [
            other for other in data.arms
            if other != arm and not depends_on_length(config, other)
            and config.arms[other].positions == config.arms[arm].positions
        ]  # fmt: skip
        row = difference_row(data, arm, others[0]) if others else None
        if row is None:
            continue
        told = "; ".join(f"at {n} {_points(row.cells[n])}" for n in beyond)
        up, down = ([n for n in beyond if sign * row.cells[n].mean > 0 and row.cells[n].apart] for sign in (1, -1))
        verdict = _verdict(up, down)
        sentences.append(f"{arm} minus {others[0]}, same weights, in points of accuracy: {told}. {verdict}")
    return sentences or ["No arm has a scale that changes with the length, so the question was not asked."]


def _points(cell: Cell) -> str:
    return f"{signed(cell.mean)} {interval(cell.low, cell.high)}".rstrip()


def _verdict(up: list[int], down: list[int]) -> str:
    if not up and not down:
        return "At no length beyond the training is it clear of zero."
    parts = []
    if up:
        parts.append(f"above zero with its whole interval at {', '.join(map(str, up))}")
    if down:
        parts.append(f"below zero with its whole interval at {', '.join(map(str, down))}")
    return f"It is {' and '.join(parts)} tokens."


def _of_checkpoint(grid: Grid) -> Grid:
    """A table without the article's rows, and without the word that the checkpoint was trained here."""
    blocks = (
        dataclasses.replace(
            block,
            title="the checkpoint as it is" if block.title == KINDS["trained"] else block.title,
            lines=tuple(line for line in block.lines if not line.published),
        )
        for block in grid.blocks
    )
    return dataclasses.replace(grid, blocks=tuple(blocks))
