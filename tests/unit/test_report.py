"""The report is built from synthetic runs whose numbers are known."""

import dataclasses
import html.parser
import itertools
import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pandas as pd
import pytest
import yaml

from attnscale import cli
from attnscale.cli import resolved_yaml
from attnscale.config import load_config, parse_config
from attnscale.errors import UserError
from attnscale.manifest import TABLES, figures
from attnscale.published import published_for
from attnscale.report import answer as words_of
from attnscale.report.answer import answer, seeds_notes
from attnscale.report.arms import (
    KINDS,
    crossed_positions,
    figure_names,
    growth_pairs,
    kind_of,
    kinds_to_draw,
    main_arms,
    reference_of,
    role_arms,
)
from attnscale.report.build import build_report
from attnscale.report.data import RunData, load_run
from attnscale.report.figures import accuracy, draw_all
from attnscale.report.figures.drawing import Drawing
from attnscale.report.figures.parts import looks_of, spread, wrapped
from attnscale.report.figures.style import COLOURS, DASHES, MARKERS
from attnscale.report.figures.training import smoothed
from attnscale.report.grids import accuracy_grid, difference_grid, main_grid, needs_grid
from attnscale.report.page import _duration, _markdown_cell, _moment, render
from attnscale.report.spread import needs_of_heads, spread_lengths
from attnscale.report.tables import Cell, difference_row
from attnscale.report.words import interval, p_value, points, share, signed, span
from tests.unit.synthetic_run import ARMS, TARGETS, correct, reported, write_json, write_run

ROOT = Path(__file__).parents[2]
REFERENCE = load_config(ROOT / "config" / "reference.yaml")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported("one seed", tmp_path_factory)


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported("every kind", tmp_path_factory)


@pytest.fixture
def copy(one_seed: Path, tmp_path: Path) -> Path:
    """A finished run to be damaged, without its report."""
    run = tmp_path / "run"
    shutil.copytree(one_seed, run, ignore=shutil.ignore_patterns("report", "evaluations"))
    return run


def test_two_runs_give_the_same_bytes_in_everything_but_the_durations(one_seed: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "wörk dir ñ" / "synthetic")
    for path in sorted(other.rglob("run.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        record.update(seconds=17.0, tokens_per_second=5.5, git_commit=None, started="2031-05-05T00:00:00+0200")
        write_json(path, {**record, "resumed_from_steps": []})
    for path in other.rglob("history.csv"):
        path.write_text(re.sub(r",[0-9]+$", ",1.5", path.read_text("utf-8"), flags=re.MULTILINE), encoding="utf-8")
    shutil.rmtree(other / "benchmarks")
    # The settings of whoever plots beside us must not reach the bytes, nor ours them.
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "svg.fonttype": "none"}):
        build_report(other, other / "report")
        assert matplotlib.rcParams["font.size"] == 20
    first, second = files_of(one_seed / "report"), files_of(other / "report")
    assert sorted(first) == sorted(second)
    differing = [name for name in first if first[name] != second[name]]
    assert sorted(differing) == ["durations.html", "durations.md"]


@pytest.mark.parametrize("run", ["one_seed", "three_seeds"])
def test_every_promised_file_is_written(run: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(run)
    expected = {"index.html", "report.md", "durations.html", "durations.md"}
    names = figures(load_config(folder / "config.yaml"))
    expected |= {f"figures/{name}.{kind}" for name in names for kind in ("png", "svg")}
    expected |= {f"tables/{name}.csv" for name in TABLES}
    assert set(files_of(folder / "report")) == expected


def test_wall_clock_numbers_and_the_commit_stand_on_the_page_of_durations_only(one_seed: Path) -> None:
    report = one_seed / "report"
    for ending in ("html", "md"):
        durations = (report / f"durations.{ending}").read_text(encoding="utf-8")
        page = (report / ("index.html" if ending == "html" else "report.md")).read_text(encoding="utf-8")
        for wall_clock in ("1 h 02 min", "9,123", "0123456789ab", "2026-01-02 03:04:05 UTC", "train.attention_o.seed0"):
            text = durations.replace("<wbr>", "")
            assert wall_clock in text
            assert wall_clock not in page
        assert f"durations.{ending}" in page


def test_figure_files_hold_no_date_and_no_program(one_seed: Path) -> None:
    for path in sorted((one_seed / "report" / "figures").iterdir()):
        content = path.read_bytes()
        for word in (b"Software", b"dc:date", b"dc:creator", str(one_seed).encode()):
            assert word not in content, (path.name, word)


class Page(html.parser.HTMLParser):
    """What a page refers to, its ids, and the text of its table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["index.html", "durations.html"])
def test_a_page_is_well_formed_and_loads_nothing(one_seed: Path, name: str) -> None:
    text = (one_seed / "report" / name).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed"}
    assert not any("src" in attributes for _, attributes in page.tags)
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        reference = attributes.get("xlink:href") or attributes.get("aria-labelledby")
        assert reference is None or reference.removeprefix("#") in ids


def test_figures_on_the_page_have_a_role_a_text_and_colours_that_follow_the_reader(three_seeds: Path) -> None:
    text = (three_seeds / "report" / "index.html").read_text(encoding="utf-8")
    drawings = {
        name: re.search(rf'<figure id="figure-{name.replace("_", "-")}">\n(<svg .*?</svg>)', text, flags=re.DOTALL)
        for name in figures(load_config(three_seeds / "config.yaml"))
    }
    assert len(drawings) == len(re.findall("<svg ", text)) == 14
    for name, found in drawings.items():
        assert found, name
        element = ElementTree.fromstring(found[1])
        assert element.get("role") == "img"
        assert re.search(r"[0-9]\.[0-9]", element.get("aria-label") or ""), "the text has numbers"
        assert "width" not in element.attrib
        # Cells of a heat map have the same colour on light and on dark pages.
        if name != "repairs":
            assert "var(--arm" in found[1]
            assert not re.findall(r"(?:fill|stroke): #", found[1])
    assert "prefers-color-scheme: dark" in text


def test_colours_have_contrast_on_light_and_dark_pages() -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for light, dark in COLOURS:
        assert (1.05) / (luminance(light) + 0.05) >= 4.5
        assert (luminance(dark) + 0.05) / (luminance("#14171b") + 0.05) >= 4.5


def test_a_role_has_the_same_look_in_every_run_and_no_other_arm_has_its_colour() -> None:
    roles = role_arms(REFERENCE)
    looks = looks_of(REFERENCE, REFERENCE.arms)
    assert [looks[arm].colour for arm in roles] == [light for light, _ in COLOURS[:4]]
    assert looks_of(REFERENCE, reversed(list(REFERENCE.arms)))["acl2022"] == looks["acl2022"]
    for arm, look in looks.items():
        assert arm in roles or look.colour not in {looks[role].colour for role in roles}


def test_the_arms_of_a_kind_look_different() -> None:
    looks = looks_of(REFERENCE, REFERENCE.arms)
    for kind in KINDS:
        arms = [arm for arm in REFERENCE.arms if kind_of(REFERENCE, arm) == kind]
        assert len({(looks[arm].colour, looks[arm].dashes) for arm in arms}) == len(arms)
    assert len({(MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]) for i in range(12)}) == 12


def test_arms_are_told_apart_by_kind_whatever_their_names() -> None:
    kinds = {arm: kind_of(REFERENCE, arm) for arm in REFERENCE.arms}
    assert kinds["attention_e"] == kinds["kappa_1"] == "trained"
    assert kinds["mixed_e"] == "mixed"
    assert kinds["late_ssmax"] == kinds["late_mixed_e"] == "branched"
    assert kinds["o_log_n"] == kinds["e_frozen"] == "switched"
    assert kinds["o_band"] == kinds["o_ntk_log_n"] == "repaired"
    assert reference_of(REFERENCE, "e_frozen") == "attention_e"
    assert reference_of(REFERENCE, "late_ssmax") == reference_of(REFERENCE, "mixed_e") == "attention_o"
    assert reference_of(REFERENCE, "attention_o") is None


def test_the_main_figure_has_the_arms_of_the_question_and_all_arms_if_they_are_few() -> None:
    assert set(main_arms(REFERENCE)) == {"attention_o", "attention_e", "acl2022", "o_log_n"}
    assert set(main_arms(parse_config({"name": "x", "arms": ARMS}, "here"))) == set(ARMS)


def test_an_attention_of_the_users_own_is_in_the_main_figure(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text(
        "import dataclasses\nfrom attnscale.attention import Attention, register\n\n"
        '@register("report_test_variant")\n@dataclasses.dataclass(frozen=True)\nclass Mine(Attention):\n'
        '    """Made for a test."""\n\n    formula = "1"\n    source = "a test"\n',
        encoding="utf-8",
    )
    kappas = {f"k{i}": {"attention": {"name": "attention_e_kappa", "kappa": i + 1.0}} for i in range(8)}
    own = {"attention": {"name": "report_test_variant", "module": str(module)}}
    config = parse_config({"name": "x", "arms": {**ARMS, **kappas, "z_own": own}}, "here")
    assert "z_own" in main_arms(config)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, {"differences_by_kind", "growth", "repairs", "entropy_of_others", "learning_curves_of_others"}),
        ({"attention_statistics": {"blocks": 0}}, {"entropy", "entropy_of_others"}),
        ({"evaluation": {"lengths": [64]}}, {"logit_spread"}),
    ],
)
def test_a_figure_is_promised_exactly_when_the_configuration_implies_its_data(
    given: dict[str, Any], missing: set[str]
) -> None:
    config = parse_config({"name": "x", "arms": ARMS, **given}, "here")
    assert not missing & set(figure_names(config))
    assert set(figure_names(REFERENCE)) >= missing
    assert len(figure_names(REFERENCE)) == 10


def test_the_order_of_the_arms_changes_no_figure() -> None:
    turned = REFERENCE.model_copy(update={"arms": dict(reversed(REFERENCE.arms.items()))})
    assert figure_names(turned) == figure_names(REFERENCE)
    assert main_arms(turned) == main_arms(REFERENCE)
    assert crossed_positions(turned) == crossed_positions(REFERENCE)


def test_positions_are_crossed_with_log_n_on_the_same_weights() -> None:
    crossed = crossed_positions(REFERENCE)
    assert crossed == {
        "plain rotary": ("attention_o", "o_log_n"),
        "band": ("o_band", "o_band_log_n"),
        "clipped": ("o_clipped", "o_clipped_log_n"),
        "ntk": ("o_ntk", "o_ntk_log_n"),
    }
    assert next(iter(crossed)) == "plain rotary"
    assert crossed_positions(parse_config({"name": "x", "arms": ARMS}, "here")) == {}


def test_growth_is_drawn_for_arms_whose_reference_is_evaluated_on_the_way_too() -> None:
    pairs = growth_pairs(REFERENCE)
    assert pairs == [("acl2022", "attention_o"), ("attention_e", "attention_o"), ("o_log_n", "attention_o")]


def test_the_table_has_the_mean_the_spread_and_the_number_of_seeds_and_targets(three_seeds: Path) -> None:
    grid = accuracy_grid(load_run(three_seeds))
    lines = {line.label: line for block in grid.blocks for line in block.lines}
    percent = [100 * correct("attention_e", seed, 256, 1) / TARGETS for seed in (0, 1, 2)]
    mean, low, high = math.fsum(percent) / 3, min(percent), max(percent)
    assert low < mean < high
    field = lines["attention_e"].fields[grid.head.index("256") - 1]
    assert (field.text, field.under) == (f"{mean:.2f}", (f"{low:.2f}–{high:.2f}",))
    assert lines["attention_e"].fields[-1].text == "3"
    assert lines["late"].fields[-1].text == "2"
    text = (three_seeds / "report" / "report.md").read_text(encoding="utf-8")
    assert f"{mean:.2f} ({low:.2f}–{high:.2f})" in text
    assert "19,648 masked tokens" in text


def test_every_arm_stands_under_its_kind_with_its_origin(three_seeds: Path) -> None:
    blocks = {
        block.title: {line.label: line.note for line in block.lines}
        for block in accuracy_grid(load_run(three_seeds)).blocks
    }
    assert list(blocks) == list(KINDS.values())
    assert list(blocks[KINDS["trained"]]) == [
        "attention_o", "Attention-O (published)", "attention_e", "Attention-E (published)", "acl2022",
    ]  # fmt: skip
    assert blocks[KINDS["branched"]] == {"late": "branched from attention_o at 50 %"}
    assert blocks[KINDS["mixed"]] == {"mixed": "trained at 32 and 64 tokens"}
    assert blocks[KINDS["switched"]]["frozen"] == "on the weights of attention_e, n at most 64"
    assert blocks[KINDS["repaired"]]["o_band"] == "on the weights of attention_o, positions: band"


def test_published_numbers_stand_under_the_arm_they_belong_to(one_seed: Path) -> None:
    lines = (one_seed / "report" / "report.md").read_text(encoding="utf-8").splitlines()
    for arm, row in (
        ("attention_e", "| *Attention-E (published)* | 43.11 | 41.17 | 34.04 | 20.15 | 13.58 | – | – |"),
        ("attention_o", "| *Attention-O (published)* | 43.27 | 36.53 | 23.02 | 15.12 | 11.54 | – | – |"),
    ):
        places = [i for i, line in enumerate(lines) if line == row]
        assert len(places) == 2, "in the main table and in that of all arms"
        assert all(lines[place - 1].startswith(f"| {arm} |") for place in places)


@pytest.mark.parametrize(
    ("arm", "label"),
    [
        ({"attention": "attention_o"}, "Attention-O"),
        ({"attention": "attention_e"}, "Attention-E"),
        ({"attention": {"name": "attention_e", "base": 512}}, "Attention-E"),
        ({"attention": {"name": "attention_e", "base": 64}}, None),
        ({"attention": "attention_e", "weights_of": "trained"}, None),
        ({"attention": "acl2022"}, None),
    ],
)
def test_only_an_arm_with_the_formula_of_the_article_gets_its_numbers(arm: dict[str, Any], label: str | None) -> None:
    given = {"name": "x", "arms": {"trained": {"attention": "attention_o"}, "asked": arm}}
    found = published_for(parse_config(given, "here"), "asked")
    assert (found.label if found else None) == label


def test_differences_are_those_of_the_table_of_differences(three_seeds: Path) -> None:
    data = load_run(three_seeds)
    table = pd.read_csv(three_seeds / "differences.csv")
    grid = difference_grid(data)
    fields = {
        (line.label, line.note): line.fields for block in grid.blocks for line in block.lines if not line.published
    }
    assert len(fields) == len(table.groupby(["arm", "baseline"]))
    row = table[(table["arm"] == "attention_e") & (table["baseline"] == "attention_o") & (table["length"] == 256)].iloc[
        0
    ]
    field = fields[("attention_e", "minus attention_o")][grid.head.index("256") - 1]
    assert field.text == signed(row["mean"])
    assert field.under == (
        f"[{signed(row['ci_low'])}, {signed(row['ci_high'])}]",
        f"p {p_value(row['p'])}",
        f"Holm {p_value(row['p_holm'])}",
    )
    assert fields[("frozen", "minus attention_e, same weights")][-1].text == "3"
    assert fields[("late", "minus attention_o")][-1].text == "2"
    assert ("frozen", "minus attention_o, on the weights of attention_e") in fields


def test_the_report_estimates_nothing_itself(three_seeds: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(three_seeds, run, ignore=shutil.ignore_patterns("report"))
    table = pd.read_csv(run / "differences.csv")
    chosen = (table["arm"] == "attention_e") & (table["length"] == 256)
    table.loc[chosen, ["mean", "ci_low", "ci_high"]] = [-7.25, -8.5, -6.125]
    table.to_csv(run / "differences.csv", index=False)
    data = load_run(run)
    grid = main_grid(data)
    lines = [line for block in grid.blocks for line in block.lines if line.note == "minus attention_o"]
    (field,) = [line.fields[grid.head.index("256") - 1] for line in lines if line.label == "attention_e"]
    assert (field.text, field.under) == ("−7.25", ("[−8.5, −6.1]",))
    assert "attention_e is 7.2 points below attention_o ([−8.5, −6.1], 3 seeds" in " ".join(answer(data))


def test_published_differences_are_those_of_the_article(one_seed: Path) -> None:
    lines = [line for block in main_grid(load_run(one_seed)).blocks for line in block.lines]
    (line,) = [line for line in lines if line.published and line.note]
    assert [field.text for field in line.fields] == ["−0.16", "+4.64", "+11.02", "+5.03", "+2.04", "–", "–"]


def test_few_seeds_are_said_in_words(one_seed: Path, three_seeds: Path) -> None:
    for name in ("index.html", "report.md"):
        words = "Everything here rests on one seed: it is indicative."
        assert words in (one_seed / "report" / name).read_text(encoding="utf-8")
        text = (three_seeds / "report" / name).read_text(encoding="utf-8")
        assert words not in text
        assert "Not everything rests on the same number of seeds (3 seeds: 8 arms; 2 seeds: late)" in text


def test_trainings_from_several_kinds_of_machine_are_told_apart(three_seeds: Path, tmp_path: Path) -> None:
    assert words_of.machines(load_run(three_seeds)) == []
    run = tmp_path / "run"
    shutil.copytree(three_seeds, run, ignore=shutil.ignore_patterns("report"))
    for path in run.glob("runs/*/seed2/run.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        write_json(path, {**record, "precision": "fp32", "compile": False, "cpu_capability": "AVX2"})
    data = load_run(run)
    trainings = sum(record.seed != 2 for record in data.runs), sum(record.seed == 2 for record in data.runs)
    told = words_of.machines(data)
    assert told == [
        f"bf16, compiled, on cpu: {trainings[0]} trainings (seeds 0 and 1)",
        f"fp32, on AVX2: {trainings[1]} trainings (seed 2)",
    ]
    pages = render(data, placeholders(data))
    for page in ("index.html", "report.md"):
        assert pages[page].count(told[1]) == 2


def test_enough_seeds_everywhere_need_no_note(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", seeds=range(6), evaluation={"lengths": [64, 128]})
    assert seeds_notes(load_run(run)) == []


def test_the_smallest_possible_p_is_printed(one_seed: Path, three_seeds: Path) -> None:
    assert "smallest possible value is 0.5 with 2 seeds and 0.25 with 3 seeds" in words_of.tests_note(
        load_run(three_seeds)
    )
    assert "which one seed cannot give" in words_of.tests_note(load_run(one_seed))


def test_arms_of_one_figure_never_look_alike() -> None:
    arms = {
        **ARMS,
        "mixed": {"attention": "attention_e", "training_lengths": [16, 64]},
        "late": {"attention": "ssmax", "branch": {"of": "attention_o", "at": 0.5}},
        "late_too": {"attention": "attention_e", "branch": {"of": "attention_o", "at": 0.5}},
    }
    few = parse_config({"name": "x", "arms": arms, "training": {"snapshots": [0.5]}}, "here")
    for config in (few, REFERENCE):
        looks = looks_of(config, config.arms)
        for together in (main_arms(config), *kinds_to_draw(config).values()):
            assert len({looks[arm] for arm in together}) == len(together)


def test_the_question_does_not_say_that_mixed_lengths_are_one(one_seed: Path, three_seeds: Path) -> None:
    for name in ("index.html", "report.md"):
        assert "on windows of 64 tokens only." in (one_seed / "report" / name).read_text(encoding="utf-8")
        assert "on windows of at most 64 tokens." in (three_seeds / "report" / name).read_text(encoding="utf-8")


def test_the_articles_lines_are_left_out_where_they_would_press_the_others_flat(one_seed: Path) -> None:
    data = load_run(one_seed)
    assert "Dotted, the article's numbers" in accuracy.draw(data).caption
    low = dataclasses.replace(data, accuracy=data.accuracy.assign(percent=data.accuracy["percent"] / 4))
    caption = accuracy.draw(low).caption
    assert "Dotted" not in caption
    assert "The article's lines are left out, as they lie more than twice as high." in caption


def test_tables_have_the_columns_of_the_run_and_no_others(tmp_path: Path) -> None:
    data = load_run(write_run(tmp_path / "run", evaluation={"lengths": [64, 128, 4096]}))
    for grid in (main_grid(data), accuracy_grid(data), difference_grid(data)):
        assert grid.head[1:] == ("64", "128", "4096", "seeds")
        assert all(len(line.fields) == 4 for block in grid.blocks for line in block.lines)
    assert "Attention-O (published)" in [line.label for line in main_grid(data).blocks[0].lines]
    far = load_run(write_run(tmp_path / "far", evaluation={"lengths": [32, 2048]}))
    assert not any(line.published for block in main_grid(far).blocks for line in block.lines)


def test_a_report_of_other_settings_than_those_of_the_file_says_so(
    one_seed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(one_seed.parents[1])
    settings = yaml.safe_load((one_seed / "config.yaml").read_text(encoding="utf-8"))
    for seeds, note in (([0], ""), ([0, 1], "note: mine.yaml has changed since that run (seeds); the report is of")):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**settings, "seeds": seeds}), encoding="utf-8")
        monkeypatch.setattr(
            sys, "argv", ["attnscale", "report", "--configfile", str(tmp_path / "mine.yaml"), "--output", str(tmp_path)]
        )
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        said = capsys.readouterr().err.replace(f"{tmp_path}/", "")
        assert said.startswith(note) if note else said == ""
        assert (tmp_path / "index.html").is_file()


def test_markdown_has_no_runs_of_blank_lines(three_seeds: Path) -> None:
    for name in ("report.md", "durations.md"):
        assert "\n\n\n" not in (three_seeds / "report" / name).read_text(encoding="utf-8")


def test_a_difference_that_rounds_to_nothing_is_called_equal() -> None:
    told = words_of._versus(Cell(-0.04, -0.5, 0.4, 6), "attention_o")
    assert told == "is as accurate as attention_o, to a tenth of a point ([−0.5, +0.4], 6 seeds)"
    assert words_of._versus(Cell(-0.06, -0.5, 0.4, 6), "attention_o").startswith("is 0.1 points below attention_o")


def test_without_a_comparison_named_in_advance_the_answer_says_that_its_differences_were_picked(
    one_seed: Path, tmp_path: Path
) -> None:
    unnamed = {"primary_arm": "another", "resamples": 200}
    run = write_run(tmp_path / "run", evaluation={"lengths": [64, 128]}, statistics=unnamed)
    assert words_of.answer(load_run(run))[0].startswith("No comparison was named before this run")
    assert not any("picked afterwards" in sentence for sentence in words_of.answer(load_run(one_seed)))


def test_the_answer_begins_with_the_comparison_named_in_advance(three_seeds: Path) -> None:
    data = load_run(three_seeds)
    row = difference_row(data, "attention_e", "attention_o")
    assert row is not None
    cell = row.cells[256]
    first, second, *others = answer(data)
    assert first == (
        "At 256 tokens (4 times the training length), in the one comparison named before the run, attention_e is "
        f"{cell.mean:.1f} points above attention_o ([{signed(cell.low, 1)}, {signed(cell.high, 1)}], 3 seeds, "
        f"p\u00a0=\u00a0{p_value(cell.p)})."
    )
    assert second == "The article reports +11.0 points for Attention-E over Attention-O at 256 tokens."
    verdicts = [claim.verdict for claim in data.claims]
    assert set(verdicts) == {"not decidable at this scale"}
    assert others[-1] == "All 12 claims are not decidable at this scale."
    claims = [dataclasses.replace(data.claims[0], verdict=verdict) for verdict in ("reproduced", "partly", "partly")]
    told = answer(dataclasses.replace(data, claims=tuple(claims)))
    assert told[-1] == "Of 3 claims 1 is reproduced and 2 are partly reproduced."


def test_the_answer_names_what_runs_on_the_same_weights_and_the_longest_length(one_seed: Path) -> None:
    text = " ".join(answer(load_run(one_seed)))
    assert re.search(
        r"attention_o_logn_at_test is [0-9.]+ points (above|below) attention_o \(.*free of training noise", text
    )
    assert "; at 2048 it is " in text


def test_an_interval_that_holds_zero_is_no_difference(copy: Path) -> None:
    table = pd.read_csv(copy / "differences.csv")
    table["ci_low"], table["ci_high"] = -1.0, 1.0
    table.to_csv(copy / "differences.csv", index=False)
    text = " ".join(answer(load_run(copy)))
    told = "attention_e, acl2022 and attention_o_logn_at_test cannot be told apart from attention_o at any length"
    assert told in text


def test_every_claim_has_its_verdict_in_words_and_its_reason(three_seeds: Path) -> None:
    page = (three_seeds / "report" / "index.html").read_text(encoding="utf-8").replace("<wbr>", "")
    text = (three_seeds / "report" / "report.md").read_text(encoding="utf-8")
    claims = load_run(three_seeds).claims
    assert [claim.claim for claim in claims] == list(range(1, 13))
    for claim in claims:
        (row,) = re.findall(rf'<tr id="claim-{claim.claim}">.*?</tr>', page, flags=re.DOTALL)
        assert f"</span> {claim.verdict}</span>" in row
        assert claim.title in row
        assert claim.title in text
    assert len(re.findall("not decidable at this scale", text)) >= 1


def test_positions_bring_their_text_and_source_into_the_report(three_seeds: Path) -> None:
    for name in ("index.html", "report.md"):
        text = (three_seeds / "report" / name).read_text(encoding="utf-8")
        assert "A token sees only keys less than" in text
        assert "kexue.fm/archives/9431" in text


def test_the_theory_is_told_in_its_own_sentences(one_seed: Path) -> None:
    text = (one_seed / "report" / "report.md").read_text(encoding="utf-8")
    assert "At the usual scale, lambda = 1/sqrt(d) with d = 64" in text
    assert "- 0.2406: entropy lost per dimension" in text
    assert "| λ = 0.125 (1/sqrt(d)) | 0.489 | 0.489 | 0.500 | 1.920 |" in text


def test_heads_are_counted_by_what_they_need(one_seed: Path) -> None:
    data = load_run(one_seed)
    assert spread_lengths(data.config) == (256, 1024)
    needs = needs_of_heads(data, 256)
    assert list(needs) == list(data.trained_arms)
    for found in needs.values():
        assert found.more + found.between + found.less == len(found.sigmas) == 16
    grid = needs_grid(data)
    assert grid is not None
    (first, *_) = grid.blocks[0].lines
    ours = needs["attention_o"]
    assert [field.text for field in first.fields[3:]] == ["16", str(ours.more), str(ours.between), str(ours.less)]
    # A diffuse head needs more than log n; see the table of the theory.
    assert data.entropy is not None
    data.entropy["logit_std"] = 0.5
    assert needs_of_heads(data, 256)["attention_o"].more == 16
    data.entropy["logit_std"] = 8.0
    assert needs_of_heads(data, 256)["attention_o"].more == 0


def test_one_arm_at_one_length_makes_whole_pages(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", arms={"own": {"attention": "acl2022"}}, evaluation={"lengths": [64]})
    data = load_run(run)
    assert figures(data.config) == ("accuracy_by_length", "entropy", "learning_curves", "gradient_norms")
    pages = render(data, placeholders(data))
    percent = 100 * correct("own", 0, 64, 0) / TARGETS
    assert f"At 64 tokens own predicts {percent:.1f} % of the masked tokens." in pages["report.md"]
    assert "## All differences" not in pages["report.md"]
    assert 'href="#differences"' not in pages["index.html"]


DISJOINT = {
    "attention_o": {"attention": "attention_o", "seeds": [0]},
    "attention_e": {"attention": "attention_e", "seeds": [1]},
}


def words_on(pages: dict[str, str], name: str) -> str:
    return " ".join(pages[name].replace("<wbr>", "").split())


def test_arms_with_seeds_of_their_own_are_said_to_share_nothing(tmp_path: Path) -> None:
    data = load_run(write_run(tmp_path / "run", arms=DISJOINT, seeds=[0, 1], evaluation={"lengths": [64, 128]}))
    pages = render(data, draw_all(data))
    for name in ("index.html", "report.md"):
        text = words_on(pages, name)
        assert "All arms share seeds" not in text
        assert "here no two arms that would be compared have one" in text
        assert "mean over seeds" not in text.lower()
        assert "lowest and highest" not in text
        assert "Means over seeds" not in text
        assert "2 arms, 2 seeds" in text
        assert "seeds 0, 1<" in text or "seeds 0, 1 " in text
        assert "Everything here rests on" not in text
        assert "Every arm rests on one seed" in text
        assert "2 trainings of 2 arms" in text
        assert "one line per arm and seed" not in text
        assert "of the first seed" not in text


def test_arms_with_unequal_seeds_are_paired_by_those_they_have_in_common(three_seeds: Path, tmp_path: Path) -> None:
    shifted = {
        name: {**arm, "seeds": seeds} for (name, arm), seeds in zip(DISJOINT.items(), ([0, 1], [1, 2]), strict=True)
    }
    run = write_run(tmp_path / "run", arms=shifted, seeds=[0, 1, 2], evaluation={"lengths": [64, 128]})
    for data in (load_run(run), load_run(three_seeds)):
        text = words_on(render(data, placeholders(data)), "report.md")
        assert "All arms share seeds" not in text
        assert "Arms with a seed in common share the same order of the data" in text
        assert "mean over seeds, in brackets lowest and highest seed" in text
    assert "The arms do not all have the same seeds" in " ".join(seeds_notes(load_run(run)))


@pytest.mark.parametrize(
    ("lengths", "most"), [([8, 16, 32], "at most 32 tokens"), ([1], "1 token"), ([32], "32 tokens")]
)
def test_a_run_that_is_not_read_at_its_training_length_is_not_asked_about_it(
    tmp_path: Path, lengths: list[int], most: str
) -> None:
    run = write_run(tmp_path / "run", seeds=[0, 1], evaluation={"lengths": lengths})
    data = load_run(run)
    drawings = draw_all(data)
    pages = render(data, drawings)
    for name in ("index.html", "report.md"):
        text = words_on(pages, name)
        assert "at that length" not in text
        assert f"depend on the scale of its attention when it then reads windows of {most}?" in text
        assert not re.search(r"\b(?<![.,])1 tokens", text)
        assert "from 1 to 1" not in text
    for drawing in drawings.values():
        told = drawing.alt + drawing.caption
        assert not re.search(r"(?<![0-9.,])1 tokens|from (\d+) to \1 ", told), drawing.name


def test_a_confidence_of_nearly_one_is_not_shown_as_one() -> None:
    assert [share(part) for part in (0.95, 1 / 3, 1.0, 0.9996, 0.9999999999999999)] == [
        "95 %", "33.3 %", "100 %", "99.96 %", "99.99999999999999 %",
    ]  # fmt: skip


def test_lengths_are_told_in_words() -> None:
    assert [span(lengths) for lengths in ([1], [64], [1, 64], [64, 2048])] == [
        "at 1 token", "at 64 tokens", "from 1 to 64 tokens", "from 64 to 2048 tokens",
    ]  # fmt: skip


def test_the_file_named_for_a_rerun_is_there_and_works_as_a_configuration(one_seed: Path) -> None:
    for name in ("index.html", "report.md"):
        text = (one_seed / "report" / name).read_text(encoding="utf-8")
        (named,) = set(re.findall(r"make CONFIG=(\S+)", text))
        assert named == "results/synthetic/config.yaml"
        assert "config/synthetic.yaml" not in text.replace(named, "")
        config = load_config(one_seed.parents[1] / named)
        assert config == load_run(one_seed).config
        # What the workflow writes there again is the same file: it works on itself.
        assert parse_config(yaml.safe_load(resolved_yaml(config)), named) == config


def test_a_repair_is_crossed_however_its_width_is_written() -> None:
    on = {"name": "attention_e", "base": "training_length"}
    arms = {
        "plain": {"attention": "attention_o"},
        "plain_on": {"attention": on, "weights_of": "plain"},
        "off": {"attention": "attention_o", "weights_of": "plain", "positions": "band"},
        "on": {"attention": on, "weights_of": "plain", "positions": {"name": "band", "width": 64}},
        "narrow": {"attention": "attention_o", "weights_of": "plain", "positions": {"name": "band", "width": 32}},
        "narrow_on": {"attention": on, "weights_of": "plain", "positions": {"name": "band", "width": 32}},
    }
    assert crossed_positions(parse_config({"name": "x", "arms": arms}, "here")) == {
        "plain rotary": ("plain", "plain_on"),
        "band": ("off", "on"),
        "band (width 32)": ("narrow", "narrow_on"),
    }


def placeholders(data: RunData) -> dict[str, Drawing]:
    """Something in place of every figure, where only words and tables matter."""
    return {name: Drawing(name, "", b"", "<svg></svg>", "", "") for name in figures(data.config)}


def test_one_arm_with_one_row_of_history_and_unusual_lengths_makes_a_report(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        arms={"a_name_that_is_nearly_as_long_as_the_name_of_an_arm_may_be": {"attention": "acl2022"}},
        evaluation={"lengths": [2, 4, 8, 16, 32, 2048, 4096, 8192, 16384]},
        attention_statistics={"blocks": 0},
        rows=1,
    )
    build_report(run, tmp_path / "report")
    names = figures(load_config(run / "config.yaml"))
    assert names == ("accuracy_by_length", "logit_spread", "learning_curves", "gradient_norms")
    assert sorted(path.stem for path in (tmp_path / "report" / "figures").glob("*.svg")) == sorted(names)


def test_the_main_figure_of_a_run_without_the_articles_arms_shows_trained_ones() -> None:
    kappas = {f"k{i}": {"attention": {"name": "attention_e_kappa", "kappa": i + 1.0}} for i in range(8)}
    assert main_arms(parse_config({"name": "x", "arms": kappas}, "here")) == ("k0", "k1", "k2", "k3", "k4", "k5")
    config = parse_config({"name": "x", "arms": {**kappas, "o": {"attention": "attention_o"}}}, "here")
    assert main_arms(config) == ("k0", "k1", "k2", "k3", "k4", "o")


def test_rows_of_a_markdown_table_have_as_many_cells_as_its_head(three_seeds: Path) -> None:
    text = (three_seeds / "report" / "report.md").read_text(encoding="utf-8")
    tables = [
        list(rows) for is_row, rows in itertools.groupby(text.splitlines(), lambda x: x.startswith("|")) if is_row
    ]
    assert len(tables) > 10
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table}) == 1
        assert re.fullmatch(r"\|(:?-+:?\|)+", table[1])


def test_text_from_outside_is_escaped(copy: Path) -> None:
    manifest = json.loads((copy / "corpus" / "manifest.json").read_text(encoding="utf-8"))
    manifest["sources"][0]["licence"] = "<script>alert(1)</script> a|b & *c*"
    write_json(copy / "corpus" / "manifest.json", manifest)
    data = load_run(copy)
    pages = render(data, placeholders(data))
    assert "<script" not in pages["index.html"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt; a|b &amp; *c*" in pages["index.html"]
    assert r"a\|b & \*c\*" in pages["report.md"]


def delete(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        text = (run / name).read_text(encoding="utf-8")
        assert old in text
        (run / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return damage


def only_rows(name: str, rows: int) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        lines = (run / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (run / name).write_text("".join(lines[: 1 + rows]), encoding="utf-8")

    return damage


HISTORY = "runs/attention_e/seed0/history.csv"
HEAD = "step,tokens,loss,accuracy,grad_norm,grad_norm_qk\n"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (delete("config.yaml"), "config.yaml does not exist"),
        (delete("environment.json"), "environment.json is missing"),
        (delete("accuracy.csv"), "accuracy.csv is missing"),
        (delete("differences.csv"), "differences.csv is missing"),
        (delete("claims.csv"), "claims.csv is missing"),
        (delete("theory.csv"), "theory.csv is missing"),
        (delete("entropy.csv"), "entropy.csv is missing"),
        (
            replace("differences.csv", "attention_e,attention_o,512", "attention_e,attention_o,513"),
            "differences.csv lacks arm attention_e, baseline attention_o, length 512",
        ),
        (
            replace("differences.csv", "attention_e,attention_o,512,1,", "attention_e,attention_o,512,1,x"),
            "differences.csv is damaged",
        ),
        (replace("entropy.csv", "attention_o,0,0,0,64", "attention_o,0,9,0,64"), "entropy.csv lacks arm attention_o"),
        (replace("claims.csv", "verdict", "verdikt"), "claims.csv is damaged"),
        (only_rows("claims.csv", 2), "claims.csv does not hold the claims 1 to 9, each once"),
        (replace("claims.csv", "\n9,", "\n8,"), "claims.csv does not hold the claims 1 to 9, each once"),
        (replace("claims.csv", "not decidable at this scale", "perhaps"), "has the unknown verdict 'perhaps'"),
        (only_rows("theory.csv", 0), "theory.csv holds no rows"),
        (delete(HISTORY), "history.csv is missing"),
        (delete("runs/acl2022/seed0/run.json"), "run.json is missing"),
        (delete("tokens/evaluation.json"), "evaluation.json is missing"),
        (replace("environment.json", '"python"', '"pyton"'), "environment.json is damaged (python"),
        (replace("tokens/manifest.json", "{", ""), "manifest.json is no valid JSON"),
        (replace("corpus/manifest.json", '"overlap": 0', '"overlap": 2'), "damaged (split.overlap"),
        (replace("accuracy.csv", "total", "totl"), "accuracy.csv is damaged"),
        (
            replace("accuracy.csv", "attention_e,0,512", "attention_e,0,513"),
            "lacks arm attention_e, seed 0, length 512",
        ),
        (replace("accuracy.csv", "attention_e,0,512,", "attention_e,0,512,x"), "accuracy.csv is damaged"),
        (replace("accuracy.csv", "attention_e,0,512,", "attention_e,0,512,9"), "correct of 19648 for attention_e"),
        (replace("accuracy.csv", ",19648,", ",19647,"), "counts 19647 targets"),
        (
            replace("accuracy.csv", "attention_o,0,64,", "attention_o,0,64,1,19648,0.1\nattention_o,0,64,"),
            "has 25 rows",
        ),
        (replace("runs/acl2022/seed0/run.json", '"seed": 0', '"seed": 1'), "is of acl2022, seed 1"),
        (lambda run: (run / HISTORY).write_text("", encoding="utf-8"), "history.csv is damaged"),
        (
            lambda run: (run / HISTORY).write_bytes(
                b"step,tokens,loss,accuracy,grad_norm,grad_norm_qk\n1,2,\xff,0,1,1"
            ),
            "history.csv is damaged",
        ),
        (lambda run: (run / HISTORY).write_text(HEAD), "history.csv holds no rows"),
        (lambda run: (run / HISTORY).write_text(HEAD + "1,2,inf,0,1,1\n"), "infinite or missing loss"),
        (lambda run: (run / HISTORY).write_text(HEAD + "1,2,3,0,1,1\n1,1,3,0,1,1\n"), "order of training"),
    ],
)
def test_missing_and_damaged_files_are_named_in_one_sentence(
    copy: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(copy)
    with pytest.raises(UserError) as caught:
        load_run(copy)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "the sentence says what to do"


def test_a_missing_run_and_an_unusable_output_are_told(one_seed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no folder"):
        build_report(tmp_path / "nowhere", tmp_path / "report")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot use"):
        build_report(one_seed, tmp_path / "file" / "report")


def test_benchmarks_that_cannot_be_read_are_left_out(copy: Path) -> None:
    (copy / "benchmarks" / "broken.tsv").write_text("no\ttable", encoding="utf-8")
    (copy / "benchmarks" / "short.tsv").write_text("s\tmax_rss\n0.1\tNA\n", encoding="utf-8")
    found = {benchmark.job: benchmark for benchmark in load_run(copy).benchmarks}
    assert sorted(found) == ["corpus", "short", "tokens", "train.attention_o.seed0"]
    assert found["short"].max_rss_mb is None
    assert found["tokens"].max_rss_mb == 812.5


@pytest.mark.parametrize(
    "wanted", [[0.9, 0.5, 0.1], [0.5, 0.5, 0.5], [1.2, 1.0, 0.99], [0.02, 0.01, -0.3], [0.6, 0.59, 0.1], [0.3]]
)
def test_labels_never_overlap_and_stay_beside_the_figure(wanted: list[float]) -> None:
    heights = [0.1, 0.2, 0.1][: len(wanted)]
    centres = spread(wanted, heights)
    edges = [(y - h / 2, y + h / 2) for y, h in zip(centres, heights, strict=True)]
    assert all(above[0] >= below[1] - 1e-9 for above, below in itertools.pairwise(edges))
    assert edges[0][1] <= 1 + 1e-9
    assert edges[-1][0] >= -1e-9


def test_labels_with_room_stay_where_their_lines_end() -> None:
    assert spread([0.9, 0.5, 0.1], [0.1, 0.1, 0.1]) == pytest.approx([0.9, 0.5, 0.1])


def test_long_names_are_wrapped_and_lose_nothing() -> None:
    for name in ("attention_o", "attention_o_logn_at_test", "x" * 64, "a-b_c" * 12, "_" * 40):
        lines = wrapped(name).split("\n")
        assert "".join(lines) == name
        assert max(map(len, lines)) <= 17 or set(name) == {"_"}


def test_short_histories_are_not_smoothed_and_long_ones_keep_their_mean(one_seed: Path) -> None:
    short = load_run(one_seed).history
    assert smoothed(short)[1] == 1
    history = pd.concat([short.assign(seed=0)] * 14, ignore_index=True)
    smooth, window = smoothed(history)
    assert window == 13
    middle = history["arm"] == "attention_o"
    for column in ("loss", "grad_norm_qk"):
        expected = history.loc[middle, column].iloc[500 - 6 : 500 + 7].mean()
        assert smooth.loc[middle, column].iloc[500] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.25, "4.2 s"), (59.96, "60.0 s"), (185, "3 min 05 s"), (7380, "2 h 03 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


def test_moments_read_well() -> None:
    assert _moment("2026-01-02T03:04:05+0000") == "2026-01-02 03:04:05 UTC"
    assert _moment("2026-01-02T03:04:05+0200") == "2026-01-02 03:04:05+0200"
    assert _moment(None) == "–"


def test_markdown_keeps_names_and_escapes_markup() -> None:
    assert _markdown_cell("attention_o_logn_at_test") == "attention_o_logn_at_test"
    assert _markdown_cell("a|b _c_\nd") == r"a\|b \_c\_ d"


def test_numbers_read_well() -> None:
    assert [signed(value) for value in (1.234, -0.5, -0.001, 0.0)] == ["+1.23", "−0.50", "0.00", "0.00"]
    assert points(-1.25) == "−1.2 points"
    assert interval(-0.5, 2.0, 1) == "[−0.5, +2.0]"
    assert interval(math.nan, math.nan) == ""
    assert [p_value(p) for p in (0.03125, 0.5, 1e-5, math.nan)] == ["0.031", "0.50", "< 0.001", "–"]
