"""Load a run, draw, fill the templates, write."""

from pathlib import Path

from attnscale.errors import UserError, sentence_for_os_error
from attnscale.files import write_text
from attnscale.report.data import load_run
from attnscale.report.figures import draw_all, write
from attnscale.report.page import TEMPLATES, render
from attnscale.report.tables import accuracy_rows, to_frame


def build_report(run_dir: Path, output_dir: Path) -> None:
    """Write the report of a finished run; nothing is trained or evaluated.

    Args:
        run_dir: results/NAME, holding `config.yaml`, `environment.json`, `corpus/manifest.json`,
            `tokens/manifest.json`, `tokens/evaluation.json`, `accuracy.csv`, `differences.csv`, `claims.csv`,
            `theory.csv`, `runs/TRAINED/seedS/history.csv` and `run.json`; where the configuration asks for them
            `entropy.csv` and `snapshots.csv`; and if there are any `benchmarks/*.tsv`.
        output_dir: gets `index.html` (self-contained), `report.md`, `figures/*.png` and `*.svg`,
            `tables/accuracy.csv`, and the two pages with wall-clock numbers, `durations.html` and `durations.md`.

    Raises:
        UserError: something is missing or damaged, or `output_dir` cannot be written.
    """
    try:
        data = load_run(run_dir)
        table = to_frame(accuracy_rows(data)).to_csv(index=False, lineterminator="\n", float_format="%.4f")
        write_text(output_dir / "tables" / "accuracy.csv", table)
        drawings = draw_all(data)
        for drawing in drawings.values():
            write(drawing, output_dir / "figures")
        pages = render(data, drawings)
        for template in TEMPLATES:
            write_text(output_dir / template, pages[template])
    except OSError as error:
        raise UserError(sentence_for_os_error(error)) from None
