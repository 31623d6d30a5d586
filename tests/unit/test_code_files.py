"""Which files a stage is made of: all that can change its output, and nothing else."""

import ast
import textwrap

import pytest

from attnscale import code_files
from attnscale.code_files import NOT_TRACKED, NOT_TRACKED_FOLDER, PACKAGE, module_files


def names(*modules: str) -> set[str]:
    return {path.relative_to(code_files.PACKAGE).as_posix() for path in module_files(*modules)}


def test_training_is_made_of_model_random_numbers_attention_base_and_batches():
    found = names("attnscale.train")
    wanted = {"train.py", "model.py", "rng.py", "counts.py", "files.py", "attention/base.py", "attention/__init__.py"}
    assert wanted | {"tokens/batches.py"} <= found


def test_training_is_not_made_of_command_line_configuration_or_errors():
    found = names("attnscale.train")
    assert not {"cli.py", "errors.py", "docs.py", "findings.py", "yaml_files.py"} & found
    assert not any(name.startswith("config/") for name in found)


def test_a_variant_is_tracked_by_its_own_rule_and_not_by_every_training():
    variants = {f"attention/{path.name}" for path in (PACKAGE / "attention").glob("*.py")}
    variants -= {f"attention/{name}.py" for name in ("__init__", "base", "positions", "trial")}
    assert "attention/acl2022.py" in variants
    assert not variants & names("attnscale.train")
    assert not variants & names("attnscale.evaluate")


@pytest.mark.parametrize("stage", ["attnscale.train", "attnscale.evaluate", "attnscale.corpus.build"])
def test_the_report_does_not_concern_the_stages_before_it(stage):
    assert not [name for name in names(stage) if name.startswith("report/")]


def test_the_corpus_is_not_made_of_the_model():
    assert not {"model.py", "train.py", "attention/base.py"} & names("attnscale.corpus.build")


def test_files_come_sorted_once_and_exist():
    found = module_files("attnscale.train", "attnscale.evaluate", "attnscale.train")
    assert found == sorted(set(found))
    assert all(path.is_file() and path.is_absolute() for path in found)
    assert set(found) >= set(module_files("attnscale.train"))


def test_what_is_not_tracked_exists():
    # A renamed module must not stay on the list and let its successor through unseen.
    for module in NOT_TRACKED - {"attnscale"}:
        place = PACKAGE.joinpath(*module.split(".")[1:])
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), module
    assert f"{NOT_TRACKED_FOLDER}run".rpartition(".")[0] in NOT_TRACKED


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package in place of the real one; returns a function that writes a module of it."""
    root = tmp_path / "attnscale"
    monkeypatch.setattr(code_files, "PACKAGE", root)

    def write(name: str, text: str = "") -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    for name in ("__init__.py", "config/__init__.py", "deep/__init__.py"):
        write(name)
    for name in ("cli.py", "errors.py", "progress.py", "other.py"):
        write(name)
    write("stage.py", "import os\nfrom pathlib import Path\n")
    write("deep/leaf.py")
    return write


def test_a_module_alone_is_itself(package):
    assert names("attnscale.stage") == {"stage.py"}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("import attnscale.other", {"other.py"}),
        ("import attnscale.other as something", {"other.py"}),
        ("from attnscale import other", {"other.py"}),
        ("from attnscale import other as something", {"other.py"}),
        ("from attnscale.other import name", {"other.py"}),
        ("from attnscale.deep.leaf import name", {"deep/leaf.py", "deep/__init__.py"}),
        ("from attnscale.deep import leaf, name", {"deep/leaf.py", "deep/__init__.py"}),
        ("from attnscale.deep import (\n    leaf,\n)", {"deep/leaf.py", "deep/__init__.py"}),
        ("def f():\n    from attnscale import other", {"other.py"}),
        ("if True:\n    import attnscale.deep.leaf", {"deep/leaf.py", "deep/__init__.py"}),
        ("from attnscale.config import Config\nfrom attnscale.errors import UserError", set()),
        ("import attnscalable.other\nimport other", set()),
        ("# import attnscale.other\ntext = 'import attnscale.other'", set()),
    ],
)
def test_a_new_import_is_picked_up_however_it_is_written(package, line, wanted):
    package("stage.py", line + "\n")
    assert names("attnscale.stage") == {"stage.py"} | wanted


def test_the_package_has_no_relative_imports_which_would_not_be_seen():
    relative = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == [], "write `from attnscale…`; attnscale.code_files reads absolute imports only"


def test_imports_are_followed_through_modules_and_circles(package):
    package("stage.py", "import attnscale.other\n")
    package("other.py", "from attnscale.deep import leaf\n")
    package("deep/leaf.py", "import attnscale.stage\nimport attnscale.third\n")
    package("third.py")
    assert names("attnscale.stage") == {"stage.py", "other.py", "deep/__init__.py", "deep/leaf.py", "third.py"}


def test_an_import_by_the_head_of_a_folder_is_followed(package):
    package("stage.py", "from attnscale.deep.leaf import name\n")
    package("deep/__init__.py", "from attnscale.other import name\n")
    assert "other.py" in names("attnscale.stage")


def test_what_an_untracked_module_imports_is_not_followed(package):
    package("stage.py", "from attnscale.config import Config\n")
    package("config/__init__.py", "import attnscale.other\n")
    assert names("attnscale.stage") == {"stage.py"}


def test_a_part_of_the_configuration_is_no_more_tracked_than_the_whole(package):
    package("stage.py", "from attnscale.config.section import Section\n")
    package("config/section.py", "import attnscale.other\n")
    assert names("attnscale.stage") == {"stage.py"}
