"""Data sets of the hub: a stand-in server with faults, local files laid out like the hub's, and the cache of pieces."""

import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from attnscale.config import HubSource
from attnscale.corpus.hub import HubRows
from attnscale.errors import UserError

from .hub_server import NAME, REVISION, Hub, running_hub

Fetch = Callable[..., dict[str, Any]]
SUBSET = "20231101.zh"
README = f"---\nconfigs:\n- config_name: '{SUBSET}'\n  data_files:\n  - split: train\n    path: {SUBSET}/train-*\n---\n"
FIRST, SECOND = (f"{SUBSET}/train-0000{number}-of-00002.parquet" for number in range(2))
# Reads sources, one a line, in a process of its own: the hub's client takes its address when it is imported. It loses
# no time with waiting, neither in the client's own tries nor in ours.
PROGRAM = """
import contextlib, io, json, sys, time
from pathlib import Path
time.sleep = lambda seconds: None
from attnscale.config import HubSource
from attnscale.corpus.download import keep_hub_files_in
keep_hub_files_in(Path(sys.argv[1]))
import huggingface_hub
from attnscale.corpus.hub import HubRows
from attnscale.errors import UserError
for line in sys.stdin:
    source, cache = json.loads(line)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    log, answer = io.StringIO(), {}
    with contextlib.redirect_stderr(log):
        try:
            answer["rows"] = list(HubRows(HubSource.model_validate(source), Path(cache)))
        except UserError as error:
            answer["error"] = str(error)
    print(json.dumps({**answer, "log": log.getvalue()}), flush=True)
"""


def parquet(first: int, count: int = 10, *, wide: bool = True) -> bytes:
    """Rows in groups of four, with a column beside the text that nobody asks for."""
    rows = range(first, first + count)
    stream = io.BytesIO()
    noise = {"noise": [os.urandom(100_000).hex() for _ in rows]} if wide else {}
    table = pa.table({"id": list(rows), **noise, "text": [f"Row {row}." for row in rows]})
    pa.parquet.write_table(table, stream, row_group_size=4)
    return stream.getvalue()


FILES = {"README.md": README.encode(), FIRST: parquet(0, wide=False), SECOND: parquet(10, wide=False)}
ROWS = [[str(row), f"Row {row}."] for row in range(20)]


class Client:
    """The process that reads sources."""

    def __init__(self, hub: Hub, cache: Path) -> None:
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(cache)],
            env={**surroundings, "HF_ENDPOINT": hub.address, "no_proxy": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def fetch(self, cache: Path, **change: object) -> dict[str, Any]:
        """Read a source: `log`, and `rows` or `error`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([source_of(**change).model_dump(mode="json"), str(cache)]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Client]]:
    with running_hub(dict(FILES)) as server:
        client = Client(server, tmp_path_factory.mktemp("client"))
        yield server, client
        client.process.communicate()


@pytest.fixture
def hub(both: tuple[Hub, Client]) -> Hub:
    server = both[0]
    server.files, server.faults, server.log, server.down = dict(FILES), [], [], False
    return server


@pytest.fixture
def fetch(both: tuple[Hub, Client], tmp_path: Path) -> Fetch:
    return functools.partial(both[1].fetch, tmp_path)


def source_of(**change: object) -> HubSource:
    values = {"kind": "hub", "name": NAME, "revision": REVISION, "subset": SUBSET, "licence": "CC0", **change}
    return HubSource.model_validate(values)


def test_all_rows_come_once_and_the_second_time_without_a_network(hub: Hub, fetch: Fetch) -> None:
    assert fetch()["rows"] == ROWS
    assert {name for name, _ in hub.log} == {FIRST, SECOND}
    hub.down = True
    assert fetch()["rows"] == ROWS


def test_a_cap_on_documents_fetches_no_file_beyond_it_and_can_be_raised(hub: Hub, fetch: Fetch, tmp_path: Path) -> None:
    assert fetch(max_documents=4)["rows"] == ROWS[:4]
    assert {name for name, _ in hub.log} == {FIRST}
    assert len(pieces_in(tmp_path)) == 1
    assert fetch(max_documents=12)["rows"] == ROWS[:12]
    hub.down = True
    assert fetch(max_documents=5)["rows"] == ROWS[:5]


def test_dropped_connections_and_busy_servers_are_tried_again(hub: Hub, fetch: Fetch) -> None:
    hub.faults = ["drop", 503, None, "drop", 429]
    assert fetch()["rows"] == ROWS
    assert not hub.faults


def test_a_download_that_ends_for_good_goes_on_with_the_piece_that_is_missing(
    hub: Hub, fetch: Fetch, tmp_path: Path
) -> None:
    hub.faults = [None, *["drop"] * 200]
    answer = fetch()
    told = f"cannot load the data set {NAME} at revision {REVISION} (reading piece 0 of train-00001-of-00002.parquet: "
    assert answer["error"].startswith(told)
    assert "trying again in 2 s" in answer["log"]
    assert len(pieces_in(tmp_path)) == 3
    hub.faults, hub.log = [], []
    assert fetch()["rows"] == ROWS
    assert {name for name, _ in hub.log} == {SECOND}


def test_a_damaged_piece_is_fetched_again(hub: Hub, fetch: Fetch, tmp_path: Path) -> None:
    fetch()
    pieces = pieces_in(tmp_path)
    assert [piece.name for piece in pieces] == [
        f"0000{file}-0000{group}.piece" for file in (0, 1) for group in range(3)
    ]
    data = bytearray(pieces[1].read_bytes())
    data[len(data) // 2] ^= 1
    pieces[1].write_bytes(data)
    pieces[4].write_bytes(pieces[4].read_bytes()[:50])
    answer = fetch()
    assert answer["rows"] == ROWS
    assert answer["log"].count("is damaged and is fetched again") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"revision": "f" * 40}, "Revision 'ffffffffffffffffffffffffffffffffffffffff' doesn't exist"),
        ({"name": "someone/else"}, "'someone/else' doesn't exist on the Hub"),
        ({"subset": "20231101.xx"}, "'20231101.xx' not found"),
        ({"split": "test"}, "has no split test; split must be one of: train"),
        ({"text_field": "body"}, "has no column body; text_field must be one of: id, text"),
    ],
)
def test_what_the_hub_does_not_have_is_told_at_once_and_in_one_sentence(
    hub: Hub, fetch: Fetch, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    answer = fetch(**change)
    assert message in answer["error"]
    assert "\n" not in answer["error"]
    assert "trying again" not in answer["log"]
    assert not pieces_in(tmp_path)


def test_without_a_network_the_first_time_ends_in_one_sentence(hub: Hub, fetch: Fetch) -> None:
    hub.down = True
    answer = fetch()
    assert answer["error"].startswith(f"cannot load the data set {NAME} at revision {REVISION} (finding its files: ")
    assert "trying again" in answer["log"]


def test_a_truncated_file_on_the_hub_is_told(hub: Hub, fetch: Fetch) -> None:
    hub.files[FIRST] = hub.files[FIRST][:-30]
    answer = fetch()
    assert "reading piece 0 of train-00000-of-00002.parquet: " in answer["error"]
    assert "trying again" not in answer["log"]


def test_only_the_column_of_the_text_is_fetched(hub: Hub, fetch: Fetch) -> None:
    hub.files[FIRST] = parquet(0, 40)
    assert fetch(max_documents=40)["rows"][-1] == ["39", "Row 39."]
    fetched = 0
    for _, wanted in hub.log:
        assert wanted is not None
        first, last = wanted.removeprefix("bytes=").split("-")
        fetched += int(last) + 1 - int(first)
    assert fetched < len(hub.files[FIRST])


def pieces_in(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.piece"))


def lay_out(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def local_rows(folder: Path, **change: object) -> list[list[str]]:
    return [list(row) for row in HubRows(source_of(**{"name": str(folder), **change}), folder / "cache")]


def test_a_folder_laid_out_like_the_hubs_is_read_in_place(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, FILES)
    assert local_rows(folder) == ROWS
    assert local_rows(folder, max_documents=13) == ROWS[:13]
    assert not (folder / "cache").exists()


@pytest.mark.parametrize("keep", [0, 3, 100, 600])
def test_a_truncated_file_in_a_folder_is_told_with_its_name(tmp_path: Path, keep: int) -> None:
    folder = lay_out(tmp_path, {**FILES, SECOND: FILES[SECOND][:keep]})
    with pytest.raises(UserError, match=r"reading piece 0 of train-00001-of-00002\.parquet") as caught:
        local_rows(folder)
    assert "\n" not in str(caught.value)


def test_files_that_are_neither_parquet_nor_jsonl_are_refused(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, {"train.csv": b"text\nsome text\n"})
    with pytest.raises(UserError, match=r"holds train\.csv, but only \.parquet and \.jsonl files can be read"):
        local_rows(folder, subset=None)
