"""Patterns of the configuration and the files that they stand for."""

import os

import pytest

from attnscale.errors import UserError
from attnscale.user_files import matching_files


def test_files_are_sorted_and_named_below_the_fixed_part(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "notes [1].txt"):
        path = tmp_path / "wörk dir ñ" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    folder = tmp_path / "wörk dir ñ"
    assert list(matching_files(f"{folder}/*.txt")) == ["a.txt", "b.txt", "notes [1].txt"]
    assert list(matching_files(f"{folder}/**/*.txt")) == ["a.txt", "b.txt", "notes [1].txt", "sub/c.txt"]
    assert matching_files(f"{folder}/notes [1].txt") == {"notes [1].txt": folder / "notes [1].txt"}


def test_the_home_folder_may_be_written_short(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("")
    assert matching_files("~/*.txt") == {"a.txt": tmp_path / "a.txt"}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("none.txt", "does not exist; check paths"),
        ("*.none", "matches no file; check paths"),
        ("folder", "is a folder; name the files in it"),
        ("~nobody-of-that-name/*.txt", "a user whose home folder is unknown"),
        ("*}.txt", r"has a brace in its name; rename it"),
        ("a{b}.txt", r"has a brace in its name; rename it"),
    ],
)
def test_a_pattern_that_cannot_be_used_gets_a_sentence(pattern, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "a{b}.txt").write_text("")
    with pytest.raises(UserError, match=words):
        matching_files(pattern)


def test_a_name_that_is_no_utf8_is_told_in_ascii(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(UserError, match=r"whose name is no UTF-8; rename it") as caught:
        matching_files(f"{tmp_path}/*.txt")
    assert str(caught.value).isascii()
