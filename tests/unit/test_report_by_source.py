"""The report of a run whose text has several sources, one of them with a Chinese name, and a character vocabulary."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attnscale.analysis.by_source import ACCURACY_COLUMNS, DIFFERENCE_COLUMNS
from attnscale.analysis.comparisons import comparisons
from attnscale.config import load_config
from attnscale.errors import UserError
from attnscale.manifest import deterministic_files
from attnscale.report.build import build_report
from attnscale.report.data import load_run
from attnscale.report.grids import source_grid
from tests.unit.synthetic_run import TARGETS, write_csv, write_json, write_run

SOURCES = ("三国演义", "laws", "poems")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds; no block is of the poems, and accuracy in the novel is half of that in the laws."""
    run = tmp_path_factory.mktemp("run") / "results" / "synthetic"
    sources = [{"kind": "files", "name": name, "paths": f"{number}/*.txt"} for number, name in enumerate(SOURCES)]
    write_run(run, seeds=[0, 1], corpus={"sources": sources}, evaluation={"lengths": [64, 256]})
    config = load_config(run / "config.yaml")
    accuracy, differences = [], []
    for place, source in enumerate(SOURCES[:2]):
        total = TARGETS // 4 * (1 + 2 * place)
        for arm, seed in config.runs():
            for length in config.evaluation.lengths:
                hits = round(0.2 * (1 + place) * total) + seed
                accuracy.append((source, arm, seed, length, 3 + place, 4 * (1 + place), hits, total, hits / total))
        for arm, other in comparisons(config):
            for length in config.evaluation.lengths:
                differences.append((source, arm, other, length, 2, 1.5 - place, 0.5 - place, math.nan))
    write_csv(run / "accuracy_by_source.csv", ACCURACY_COLUMNS, accuracy)
    write_csv(run / "differences_by_source.csv", DIFFERENCE_COLUMNS, differences)
    manifest = json.loads((run / "corpus/manifest.json").read_text(encoding="utf-8"))
    [one] = manifest["sources"]
    joined = {"documents_read": 120, "documents_after_cutting_and_joining": 106, "documents_kept": 105}
    manifest["sources"] = [{**one, "name": "三国演义", **joined}, {**one, "name": "laws"}, {**one, "name": "poems"}]
    write_json(run / "corpus/manifest.json", manifest)
    tokens = json.loads((run / "tokens/manifest.json").read_text(encoding="utf-8"))
    write_json(run / "tokens/manifest.json", {**tokens, "kind": "character", "held_out_unknown_tokens": 218})
    build_report(run, run / "report")
    return run


def test_every_source_has_its_accuracies_and_differences(run: Path) -> None:
    grid = source_grid(load_run(run))
    assert grid is not None
    assert [block.title for block in grid.blocks] == [
        f"三国演义, accuracy, %, on 3 documents and {TARGETS // 4:,} targets",
        "三国演义, difference, points, with 95 % interval",
        f"laws, accuracy, %, on 4 documents and {3 * (TARGETS // 4):,} targets",
        "laws, difference, points, with 95 % interval",
    ]
    novel, difference, laws, _ = (block.lines for block in grid.blocks)
    assert [line.label for line in novel] == ["attention_o", "attention_e", "acl2022", "attention_o_logn_at_test"]
    assert novel[0].fields[0].text == "20.00"
    assert laws[0].fields[1].text == "40.00"
    assert difference[0].fields[0].text == "+1.50"


def test_both_pages_show_them_and_what_could_not_be_measured(run: Path) -> None:
    for name in ("index.html", "report.md"):
        page = (run / "report" / name).read_text(encoding="utf-8")
        assert page.count("三国演义, accuracy, %, on 3 documents and") == 1
        assert "No block that is measured on is from poems." in page
        assert "218 characters are not among them and never to be predicted" in page
        assert "105 of 106, made from 120" in page
    assert '<a href="#sources">By source of the text</a>' in (run / "report/index.html").read_text(encoding="utf-8")


def test_in_markdown_a_blank_line_stands_before_the_table(run: Path) -> None:
    page = (run / "report/report.md").read_text(encoding="utf-8")
    section = page.partition("## By source of the text\n\n")[2]
    assert section.split("\n")[1] == ""
    assert section.split("\n")[2].startswith("|  | 64 | 256 | seeds |")


def test_the_figures_need_no_font_for_the_names_of_sources(run: Path) -> None:
    for path in (run / "report/figures").glob("*.svg"):
        assert "三" not in path.read_text(encoding="utf-8")


def test_the_manifest_covers_both_tables_only_where_there_are_several_sources(run: Path, tmp_path: Path) -> None:
    names = {"accuracy_by_source.csv", "differences_by_source.csv"}
    assert names < set(deterministic_files(load_config(run / "config.yaml")))
    one: dict[str, Any] = {"evaluation": {"lengths": [64]}}
    single = write_run(tmp_path / "results/single", **one)
    assert not names & set(deterministic_files(load_config(single / "config.yaml")))
    build_report(single, tmp_path / "report")
    for name in ("index.html", "report.md"):
        page = (tmp_path / "report" / name).read_text(encoding="utf-8")
        assert "By source" not in page
        assert "never to be predicted" not in page


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("laws,attention_o,1,64", "laws,attention_o,1,65", "lacks source laws, arm attention_o, seed 1, length 64"),
        ("laws,attention_o,1,64", "other,attention_o,1,64", "lacks source laws"),
        (",attention_o,1,64,3,4,", ",attention_o,1,64,3,4,9", "more right predictions"),
    ],
)
def test_a_damaged_table_is_told(run: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = run / "accuracy_by_source.csv"
    whole = path.read_text(encoding="utf-8")
    assert old in whole
    try:
        path.write_text(whole.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            load_run(run)
    finally:
        path.write_text(whole, encoding="utf-8")
