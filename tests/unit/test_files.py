"""Files: whole or not at all, the same bytes for the same content, and sentences for what cannot be read."""

import errno
import io
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnscale import files, folders
from attnscale.errors import UserError, sentence_for_os_error


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_block_that_ends_well_replaces_the_file(tmp_path):
    path = tmp_path / "deep" / "er" / "a.txt"
    files.write_text(path, "one\n")
    files.write_text(path, "two\n")
    assert path.read_bytes() == b"two\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise failure

    with pytest.raises(type(failure)):
        write()
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["a.txt"]


def test_a_failed_rename_or_flush_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")
    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:

            def refuse(*args, **kwargs):
                raise OSError(errno.EIO, "Input/output error")

            patch.setattr(os, name, refuse)
            with pytest.raises(OSError, match="Input/output"):
                files.write_text(path, "new")
        assert path.read_text() == "old"
        assert names_in(tmp_path) == ["a.txt"]


def test_the_old_file_can_be_read_while_the_new_one_is_written(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with files.replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # a rename is one step inside one file system only
    assert path.read_text() == "new"


def test_two_writers_do_not_share_a_temporary_file(tmp_path):
    path = tmp_path / "a.txt"
    with files.replacing(path) as first, files.replacing(path) as second:
        assert first != second
        first.write_text("1")
        second.write_text("2")
    assert path.read_text() == "1"  # the outer block ends last


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask_and_leave_it_as_it_is(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        files.write_bytes(tmp_path / "a", b"x")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises((IsADirectoryError, UserError)) as caught:
        files.write_text(folder, "x")
    if isinstance(caught.value, OSError):
        assert str(folder) in sentence_for_os_error(caught.value)
    assert folder.is_dir()
    assert names_in(tmp_path) == ["a"]


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe"):
        files.write_text(pipe, "x")
    assert pipe.is_fifo()
    assert names_in(tmp_path) == ["pipe"]


def test_text_is_utf8_with_unix_line_ends(tmp_path):
    files.write_text(tmp_path / "a", "κ·log n\r\nnext\n")
    assert (tmp_path / "a").read_bytes() == "κ·log n\r\nnext\n".encode()


def test_json_has_sorted_keys_a_final_newline_and_readable_letters(tmp_path):
    files.write_json(tmp_path / "a", {"b": 1, "a": {"d": "ö", "c": None}})
    text = (tmp_path / "a").read_text(encoding="utf-8")
    assert text == '{\n  "a": {\n    "c": null,\n    "d": "ö"\n  },\n  "b": 1\n}\n'
    assert files.read_json(tmp_path / "a") == json.loads(text)


def test_canonical_json_is_the_same_for_equal_values_and_refuses_what_json_lacks():
    assert files.canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'
    assert files.canonical_json({"a": 1, "b": 2}) == files.canonical_json({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.canonical_json({"a": float("nan")})


@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.uint16, np.int64, np.float32, np.float64, np.bool_]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    )
)
def test_arrays_come_back_as_they_were_and_equal_ones_have_equal_bytes(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("arrays")
    files.write_array(folder / "a.npy", array)
    back = files.read_array(folder / "a.npy")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    # Fortran order and strides are how an array lies in memory, not what it holds.
    files.write_array(folder / "b.npy", np.asfortranarray(array))
    files.write_array(folder / "c.npy", np.repeat(array, 2, axis=0)[::2])
    assert len({(folder / name).read_bytes() for name in ("a.npy", "b.npy", "c.npy")}) == 1


def test_arrays_of_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Object arrays"):
        files.write_array(tmp_path / "a.npy", np.array([{}], dtype=object))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("read", [files.read_json, files.read_array])
def test_a_missing_file_is_named_with_a_way_out(tmp_path, read):
    with pytest.raises(UserError, match=r"nowhere is missing; run the stage that makes it"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": }', b"\xff\xfe", b"[1] 2"])
def test_broken_json_is_named_in_one_line(tmp_path, data):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(
        UserError, match=r"a\.json is no valid JSON .*; delete it and run the pipeline again$"
    ) as caught:
        files.read_json(tmp_path / "a.json")
    assert len(str(caught.value).splitlines()) == 1


def whole_array() -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(100), version=(1, 0))
    return stream.getvalue()


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"words", whole_array()[:60], whole_array()[:200], whole_array()[:-1], pickled()],
    ids=["empty", "text", "half a head", "half the numbers", "a byte short", "pickle"],
)
def test_a_damaged_array_is_named_in_one_line(tmp_path, data):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.npy is damaged .*; delete it and run the pipeline again$") as caught:
        files.read_array(tmp_path / "a.npy")
    assert len(str(caught.value).splitlines()) == 1


def test_sha256_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full; free some space"),
        (errno.EDQUOT, "quota is used up; free some space"),
        (errno.EACCES, "no permission; check the owner"),
        (errno.EROFS, "read-only; choose a folder"),
        (errno.ENOENT, "does not exist; check the path"),
        (errno.ENOTDIR, "is a file, not a folder; check the path"),
        (errno.EIO, "input/output error"),
    ],
)
def test_an_error_of_the_operating_system_becomes_one_sentence(number, words):
    sentence = sentence_for_os_error(OSError(number, os.strerror(number), "results/a.csv"))
    assert sentence.startswith("cannot use results/a.csv: ")
    assert words in sentence
    assert len(sentence.splitlines()) == 1


@pytest.mark.parametrize("step", ["mkstemp", "write", "fsync", "replace"])
def test_a_failed_write_names_the_file_it_was_for(tmp_path, monkeypatch, step):
    path = tmp_path / "table.csv"

    def refuse(*args, **kwargs):
        # As the system does it: a rename knows the names, a write to an open file knows none.
        raise OSError(errno.ENOSPC, "No space left on device", *([str(args[0])] if step == "replace" else []))

    def write() -> None:
        with files.replacing(path) as temporary:
            if step == "write":
                refuse()
            temporary.write_text("new")

    if step != "write":
        monkeypatch.setattr(files.tempfile if step == "mkstemp" else os, step, refuse)
    with pytest.raises(OSError, match="No space") as caught:
        write()
    assert sentence_for_os_error(caught.value).startswith(f"cannot use {path}: the disk is full")


def fill(path, *names: str) -> None:
    with folders.whole_folder(path) as part:
        for name in names:
            (part / name).write_text(name)


def test_a_whole_folder_takes_the_place_of_the_old_one_and_all_in_it(tmp_path):
    path = tmp_path / "deep" / "mine"
    fill(path, "a", "b")
    assert names_in(path) == ["a", "b"]
    fill(path, "c")
    assert names_in(path) == ["c"]
    assert names_in(path.parent) == ["mine"]


def test_a_whole_folder_whose_block_raises_leaves_the_old_one_and_tells_its_name(tmp_path):
    path = tmp_path / "mine"
    fill(path, "a")

    def fail() -> None:
        with folders.whole_folder(path) as part:
            (part / "b").write_text("b")
            raise OSError(errno.ENOSPC, "No space left on device", str(part / "b"))

    with pytest.raises(OSError, match="No space") as caught:
        fail()
    assert sentence_for_os_error(caught.value).startswith(f"cannot use {path / 'b'}: the disk is full")
    assert names_in(path) == ["a"]
    assert names_in(tmp_path) == ["mine"]
    # Also where the new one vanished and the old one had been moved away already.
    with pytest.raises(OSError, match="No such file"), folders.whole_folder(path) as part:
        part.rmdir()
    assert names_in(path) == ["a"]
    assert names_in(tmp_path) == ["mine"]
    long = tmp_path / ("x" * 250)
    with pytest.raises(OSError, match="too long") as caught:
        fill(long, "a")
    assert sentence_for_os_error(caught.value).startswith(f"cannot use {long}: ")


def test_what_cannot_become_a_new_folder_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nothing")
    monkeypatch.chdir(tmp_path / "empty")
    for name, words in (
        ("file", "exists already"), ("file/sub", "since .*file is a file"), ("link", "is a link"),
        ("dangling", "is a link"), ("empty", "is the folder that you are in"), ("empty/.", "folder that you are in"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            folders.check_target(tmp_path / name)
    with pytest.raises(UserError, match="folder that you are in"):
        folders.check_target(Path())
    folders.check_target(tmp_path / "new" / "er")
