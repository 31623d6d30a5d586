"""The result table refuses what is no evaluation."""

import subprocess
import sys
from pathlib import Path

import pytest

from attnscale.accuracy import collect_accuracy
from attnscale.errors import UserError

HEAD = "arm,seed,length,block,correct,total\n"
GOOD = HEAD + "o,0,16,0,5,10\no,0,16,1,6,10\n"


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("number", ["nan", "abc", "", "-1", "1.5", "1e1", "9" * 31, "inf", "٣"])
@pytest.mark.parametrize("column", ["correct", "total", "seed", "block"])
def test_what_is_no_whole_number_is_refused_in_one_sentence(tmp_path, column, number):
    values = {"arm": "e", "seed": "0", "length": "16", "block": "0", "correct": "5", "total": "10", column: number}
    bad = table(tmp_path / "bad.csv", HEAD + ",".join(values.values()) + "\n")
    with pytest.raises(UserError, match=rf"bad\.csv is no evaluation table \({column} .*; delete it") as told:
        collect_accuracy([bad], tmp_path / "accuracy.csv")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "accuracy.csv").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "e,0,16,0,11,10\n", "counts more right predictions than targets"),
        (HEAD + ",0,16,0,5,10\n", "an arm has no name"),
        (HEAD, "it has no rows"),
        (HEAD + "e,0,16,0,5\n", "row 2 has 5 fields, not 6"),
        (HEAD + "e,0,16,0,5,10,3\n", "row 2 has 7 fields, not 6"),
        (HEAD + "e,0,16,0,5,10\ne,0,16,0,5,10\n", "differ in their targets or blocks"),
        (HEAD + "e,0,16,1,5,10\n", "differ in their targets or blocks"),
        (HEAD + "e,0,16,0,5,10\n", "differ in their targets or blocks"),  # the good one has two blocks
        ("arm,arm,length,block,correct,total\n", "names no columns, or one twice"),
        (GOOD, "repeats arm o, seed 0, length 16"),
    ],
)
def test_tables_that_are_damaged_or_there_twice_are_refused(tmp_path, text, words):
    good, bad = table(tmp_path / "good.csv", GOOD), table(tmp_path / "bad.csv", text)
    with pytest.raises(UserError, match=words) as told:
        collect_accuracy([good, bad], tmp_path / "accuracy.csv")
    assert "bad.csv" in str(told.value)
    assert not (tmp_path / "accuracy.csv").exists()


def test_tables_without_rows_are_not_told_to_differ(tmp_path):
    with pytest.raises(UserError, match="it has no rows"):
        collect_accuracy([table(tmp_path / "empty.csv", HEAD)], tmp_path / "accuracy.csv")


def test_the_order_of_rows_inside_a_file_changes_no_byte(tmp_path):
    rows = [f"o,0,{n},{block},{block + 1},10\n" for n in (16, 64) for block in (0, 1)]
    for name, ordered in (("a", rows), ("b", rows[::-1])):
        evaluation = table(tmp_path / f"{name}.csv", HEAD + "".join(ordered))
        collect_accuracy([evaluation], tmp_path / f"{name}-accuracy.csv")
    assert (tmp_path / "a-accuracy.csv").read_bytes() == (tmp_path / "b-accuracy.csv").read_bytes()


def test_the_stage_does_without_scipy_and_torch():
    code = "import sys, attnscale.accuracy; print([name for name in ('scipy', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
