"""The environment record and what is refused before Snakemake meets it."""

import os
from pathlib import Path

import pytest

from attnscale import engine
from attnscale.environment import check_surroundings, describe, read_environment
from attnscale.errors import UserError
from attnscale.files import write_json


def test_the_record_decides_on_device_and_precision():
    record = describe(Path("none.lock"), "auto", "auto", 3)
    assert record["device"] in ("cpu", "cuda")
    assert record["precision"] in ("fp32", "bf16")
    assert record["threads"] == 3
    assert record["lock_sha256"] is None
    assert describe(Path("none.lock"), "cpu", "bf16", 1, "off")["precision"] == "bf16"


@pytest.mark.parametrize(
    ("device", "precision", "compilation"), [("gpu", "auto", "off"), ("auto", "fp8", "off"), ("auto", "fp32", "maybe")]
)
def test_words_that_mean_nothing_are_refused(device, precision, compilation):
    with pytest.raises(UserError, match="must be auto or one of"):
        describe(Path("none.lock"), device, precision, 1, compilation)


def test_only_bf16_is_compiled_by_itself(monkeypatch):
    monkeypatch.setattr(engine, "can_compile", lambda device: True)
    compiled = describe(Path("none.lock"), "cpu", "bf16", 1)
    assert compiled["compile"] is True
    assert compiled["compiler"] == engine.compiler()
    assert describe(Path("none.lock"), "cpu", "fp32", 1)["compiler"] is None
    assert describe(Path("none.lock"), "cpu", "fp32", 1)["compile"] is False
    assert describe(Path("none.lock"), "cpu", "fp32", 1, "on")["compile"] is True
    assert describe(Path("none.lock"), "cpu", "bf16", 1, "off")["compile"] is False


def test_without_a_compiler_auto_goes_without_and_on_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert describe(Path("none.lock"), "cpu", "bf16", 1)["compile"] is False
    with pytest.raises(UserError, match=r"compute\.compile is on, but torch cannot compile here"):
        describe(Path("none.lock"), "cpu", "bf16", 1, "on")


@pytest.mark.parametrize(
    "record",
    [
        {},
        [],
        {"device": "gpu", "precision": "fp32", "compile": False},
        {"device": "cpu", "precision": 4, "compile": False},
        {"device": "cpu", "precision": "fp32"},
    ],
)
def test_a_damaged_record_is_refused(tmp_path, record):
    write_json(tmp_path / "environment.json", record)
    with pytest.raises(UserError, match="is no environment record"):
        read_environment(tmp_path / "environment.json")


def test_surroundings_that_cannot_work_get_a_sentence(tmp_path):
    check_surroundings(tmp_path / "results" / "a", "project", None)
    check_surroundings(tmp_path / "results" / "a", "project", 1)
    with pytest.raises(UserError, match="--cores 0 leaves no core"):
        check_surroundings(tmp_path / "a", "project", 0)
    with pytest.raises(UserError, match="has a brace in its name"):
        check_surroundings(tmp_path / "a", "pro{b}ject", 1)
    (tmp_path / "results").write_text("")
    with pytest.raises(UserError, match="results is a file where a folder is needed"):
        check_surroundings(tmp_path / "results" / "a", "project", 1)


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(UserError, match="cannot be written; check its owner"):
        check_surroundings(tmp_path / "a", "project", 1)
