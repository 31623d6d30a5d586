"""Patterns of the configuration and the files that they stand for."""

import errno
import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_links_to_folders_are_followed_and_no_folder_is_gone_into_twice(tmp_path):
    outside, texts = tmp_path / "outside", tmp_path / "texts"
    for name in ("outside/z.txt", "texts/a.txt", "texts/sub/b.txt", "texts/.hidden/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for number in range(4):
        (texts / f"self{number}").symlink_to(".")
        (texts / "sub" / f"up{number}").symlink_to("..")
    (texts / "more").symlink_to(outside)
    assert list(matching_files(f"{texts}/**/*.txt")) == ["a.txt", "more/z.txt", "sub/b.txt"]
    assert list(matching_files(f"{texts}/**")) == ["a.txt", "more/z.txt", "sub/b.txt"]
    assert list(matching_files(f"{texts}/**/sub/*.txt")) == ["sub/b.txt"]
    assert list(matching_files(f"{texts}/s*/b.txt")) == ["sub/b.txt"]
    assert list(matching_files(f"{texts}/.h*/*.txt")) == [".hidden/c.txt"]


@given(
    names=st.lists(st.sampled_from(["a", "b.txt", "ab.txt", ".c", "d[1]"]), min_size=1, max_size=4),
    parts=st.lists(st.sampled_from(["a", "*", "?", "**", "*.txt", "[ab]*", ".*", "d[[]1]"]), min_size=1, max_size=4),
)
def test_patterns_mean_what_they_mean_in_a_shell(tmp_path_factory, names, parts):
    folder = tmp_path_factory.mktemp("texts")
    for last in range(len(names)):
        path = folder.joinpath(*names[:last], f"{names[last]}_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (folder / "a.txt").write_text("")
    pattern = "/".join(parts)
    found = {Path(name).as_posix() for name in glob.glob(f"{pattern}*", root_dir=folder, recursive=True)}  # noqa: PTH207
    expected = [folder / name for name in sorted(found) if (folder / name).is_file()]
    if expected:
        assert list(matching_files(f"{folder}/{pattern}*").values()) == expected
    else:
        with pytest.raises(UserError, match="check paths"):
            matching_files(f"{folder}/{pattern}*")


def test_what_matches_and_cannot_be_read_is_a_problem(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    problems = []
    assert list(matching_files(f"{tmp_path}/*.txt", problems)) == ["a.txt"]
    assert [problem.removeprefix(f"{tmp_path}/").split(" and ")[0] for problem in problems] == [
        "loop.txt is a link to nothing",
        "pipe.txt is a pipe or device",
    ]
    with pytest.raises(UserError, match=r"loop\.txt is a link to nothing"):
        matching_files(f"{tmp_path}/*.txt")
    with pytest.raises(UserError, match=r"pipe\.txt is a pipe or device"):
        matching_files(f"{tmp_path}/pipe.txt")

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    # By hand, since a user who may do everything can list every folder.
    monkeypatch.setattr(Path, "iterdir", refuse)
    problems = []
    with pytest.raises(UserError, match="matches no file"):
        matching_files(f"{tmp_path}/**/*.txt", problems)
    assert problems == [f"cannot use {tmp_path}: no permission; check the owner and mode of the file and of its folder"]


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
