"""What README, CONTRIBUTING and docs/ say must hold: paths, commands, links, examples, the variant in one file."""

import inspect
import math
import re
import sys
from pathlib import Path

import pytest
import torch
import typer
import yaml

from attnscale import __version__, attention
from attnscale.cli import app
from attnscale.code_files import module_files
from attnscale.config import load_config, parse_config
from attnscale.manifest import deterministic_files
from tests.unit import test_attention, test_model

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
# Names that the pages use for files which the reader is to make.
EXAMPLES = {"config/mine.yaml"}
SCRIPTS = Path(sys.executable).parent

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a language, also indented ones, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def prose(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    """Inline code."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def commands(text: str) -> list[str]:
    """Inline code and the lines of shell blocks, without comments."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [re.sub(r"(^|\s)#.*", "", line).strip() for line in [*lines, *spans(text)]]


def anchors(text: str) -> set[str]:
    """Headings as they stand in links."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def is_repository_path(text: str) -> bool:
    folders = {"src", "tests", "config", "docs", "envs", "workflow", "profiles", "benchmarks", ".ci"}
    if re.search(r"[^\w./\-]|NAME|/[A-Z]\.", text):  # commands, patterns and placeholders
        return False
    first, slash, _ = text.partition("/")
    return (bool(slash) and first in folders) or bool(re.fullmatch(r"\w+\.(md|cff|toml)|Makefile|Snakefile", text))


@pages
def test_every_path_in_backticks_exists(page):
    found = [span for span in spans(page.read_text(encoding="utf-8")) if is_repository_path(span)]
    assert [path for path in found if path not in EXAMPLES and not (ROOT / path).exists()] == []


def test_paths_are_told_from_other_code_and_examples_are_no_real_files():
    assert all(map(is_repository_path, ["src/attnscale/cli.py", "Makefile", "README.md", "envs/", "docs/x.md"]))
    assert not any(map(is_repository_path, ["results/NAME/", "make test", "config/X.yaml", "accuracy.csv", "src"]))
    assert sum(len(list(filter(is_repository_path, spans(page.read_text("utf-8"))))) for page in PAGES) > 40
    assert [path for path in EXAMPLES if (ROOT / path).exists()] == []


@pages
def test_every_make_target_and_subcommand_that_is_named_exists(page):
    targets = set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))
    subcommands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert {"all", "test"} <= targets
    assert {"verify", "evaluation-set"} <= subcommands
    for command in commands(page.read_text(encoding="utf-8")):
        assert set(re.findall(r"(?<![\w./-])make ([a-z][a-z-]*)", command)) <= targets, command
        assert set(re.findall(r"(?<![\w./-])attnscale ([a-z][a-z-]*)", command)) <= subcommands, command


@pages
def test_no_target_stands_after_configfile_which_would_swallow_it(page):
    for command in commands(page.read_text(encoding="utf-8")):
        if command.startswith("snakemake"):
            assert re.search(r"--configfile \S+ [^-]", command) is None, command


@pages
def test_links_lead_to_files_and_headings_that_exist(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if target.startswith("https://") or (file.exists() and not anchor):
            continue
        if not file.exists() or anchor not in anchors(file.read_text(encoding="utf-8")):
            broken.append(target)
    assert broken == []


@pages
def test_nothing_is_left_to_be_filled_in(page):
    assert re.findall(r"<!-- [A-Z_]+ -->|\bTODO\b|\bFIXME\b", page.read_text(encoding="utf-8")) == []


@pages
def test_lines_fit_the_width_of_the_project_unless_they_are_rows_of_a_table(page):
    if page.name != "configuration.md":  # generated
        lines = page.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_every_test_that_the_reliability_page_names_exists():
    rows = [line for line in read("docs/reliability.md").splitlines() if line.startswith("| ")]
    defined = {
        file.relative_to(ROOT).as_posix(): set(
            re.findall(r"^ *def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
        )
        for file in (ROOT / "tests").rglob("test_*.py")
    }
    missing, named = [], 0
    for row in rows:
        # Names stand in front of the file that holds them; those without a file may be in any.
        for names, file in re.findall(r"((?:`test_\w+`[,; ]*)+)(?:in `([\w/]+\.py)`)?", row):
            known = defined.get(file, set()) if file else set().union(*defined.values())
            found = re.findall(r"`(test_\w+)`", names)
            named += len(found)
            missing += [f"{name} in {file or 'tests'}" for name in found if name not in known]
    assert missing == []
    assert named > 40
    faults = [row for row in rows if not row.startswith(("| fault |", "| ---"))]
    assert [row for row in faults if row.count(" | ") != 3 or "`test_" not in row.rpartition(" | ")[2]] == []


def test_the_readme_shows_its_picture_with_a_text_for_those_who_do_not_see_it():
    (alt, target), *others = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", read("README.md"))
    assert others == []
    assert target == "docs/images/accuracy_by_length.png"
    assert len(alt) > 60


def test_the_readme_has_a_row_for_every_file_of_the_manifest():
    table = re.search(r"## What you get.*?(?=^## )", read("README.md"), flags=re.DOTALL | re.MULTILINE)
    assert table is not None
    cells = [row.split("|")[1] for row in table.group().splitlines() if row.startswith("| `")]
    patterns = [re.escape(path) for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    rules = (("seedS", r"seed\d+"), ("TRAINED", "[^/]+"), ("ARM", "[^/]+"), (r"\*", "[^/]+"))
    for old, new in rules:
        patterns = [pattern.replace(old, new) for pattern in patterns]
    whole = re.compile("|".join(pattern + ".*" if pattern.endswith("/") else pattern for pattern in patterns))
    files = [*deterministic_files(load_config(ROOT / "config" / "default.yaml")), "manifest.sha256", "environment.json"]
    assert [name for name in files if not whole.fullmatch(name)] == []


def test_the_readme_asks_for_the_python_versions_that_the_locks_are_for():
    assert 'requires-python = ">=3.11"' in read("pyproject.toml")
    assert "python_version < '3.14'" in read("pyproject.toml")
    assert "Python 3.11 to 3.13" in read("README.md")


def test_the_arms_of_the_readme_are_those_of_the_default_run():
    rows = re.findall(r"^\| `(\w+)` \|", read("README.md").partition("## Two commands")[0], flags=re.MULTILINE)
    assert rows == list(yaml.safe_load(read("config/default.yaml"))["arms"])


def test_citation_and_changelog_know_the_version():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert any(reference["url"].endswith("kexue.fm/archives/8823") for reference in citation["references"])
    assert re.findall(r"^## (.*)$", read("CHANGELOG.md"), flags=re.MULTILINE)[0] in ("Unreleased", __version__)


VARIANT = "power_law"


@pytest.fixture
def variant_file(monkeypatch) -> Path:
    """The file of the worked example, with a registry that forgets it again."""
    monkeypatch.setattr(attention, "_REGISTRY", dict(attention._REGISTRY))
    monkeypatch.chdir(ROOT)
    path = ROOT / "examples" / f"{VARIANT}.py"
    yield path
    for name in [name for name in sys.modules if name.startswith("attnscale_user_")]:
        del sys.modules[name]


def test_contributing_shows_the_worked_example_as_it_is(variant_file):
    (block,) = blocks(read("CONTRIBUTING.md"), "python")
    assert block == variant_file.read_text(encoding="utf-8")


@pytest.mark.parametrize("d", [32, 64])
def test_the_variant_of_the_worked_example_has_the_factor_that_it_says(variant_file, d):
    variant = attention.make_variant(VARIANT, {"exponent": 0.5}, str(variant_file))
    assert variant.formula == "(n / L)^exponent / sqrt(d)"
    lengths = [16, 64, 512, 1024]
    factor = variant.factor(test_attention.make_context(lengths, head_size=d, training_length=64))
    expected = [math.sqrt(n / 64) / math.sqrt(d) for n in lengths]
    torch.testing.assert_close(factor, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert factor[1].item() == pytest.approx(1 / math.sqrt(d))


def put_into_the_package(variant_file, monkeypatch):
    """Make the example known as if it lay in src/attnscale/attention/."""
    attention.load_module(str(variant_file))
    variant = attention.registered()[VARIANT]
    monkeypatch.setitem(sys.modules, f"attnscale.attention.{VARIANT}", sys.modules[variant.__module__])
    monkeypatch.setattr(variant, "__module__", f"attnscale.attention.{VARIANT}")


def test_the_worked_example_passes_the_tests_that_it_is_promised(variant_file, monkeypatch):
    put_into_the_package(variant_file, monkeypatch)
    suite = test_attention.TestEveryVariant()
    tests = [
        test
        for name, test in inspect.getmembers(suite, inspect.ismethod)
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["name"]
    ]
    assert len(tests) >= 3
    for test in tests:
        test(VARIANT)
    for recipe in ("fast", "faithful"):
        for padded_length in (40, 200):
            test_model.test_padding_leaves_the_logits_unchanged(VARIANT, recipe, padded_length)


def test_the_configurations_of_the_worked_example_are_valid(variant_file):
    (shown,) = (parse_config(yaml.safe_load(text), "example") for text in blocks(read("CONTRIBUTING.md"), "yaml"))
    whole = load_config(variant_file.with_suffix(".yaml"))
    for config in (shown, whole):
        assert config.trained_arms == ("attention_o", VARIANT)
        assert config.weights_of(f"{VARIANT}_at_test") == "attention_o"
        assert config.arms[VARIANT].attention.module == "examples/power_law.py"


def test_no_stage_depends_on_the_file_of_a_variant_it_does_not_use():
    stages = module_files("attnscale.train", "attnscale.evaluate", "attnscale.report.build", "attnscale.tokens.build")
    assert len(stages) > 20
    # Tests of users' own attentions register theirs in this process too.
    own = [path.stem for path in (ROOT / "src" / "attnscale" / "attention").glob("*.py")]
    names = [name for name in attention.registered() if name in own]
    assert len(names) > 5
    assert [name for name in names if attention.source_file(name) in stages] == []
