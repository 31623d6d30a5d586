"""A stand-in for the Hugging Face hub on the loopback device: one data set at one revision, and faults on demand."""

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "someone/texts"
REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `files` as the hub serves those of a data set.

    Attributes:
        files: content by path.
        faults: what goes wrong with the next downloads of a data file: `drop` cuts the answer in half, a number is
            answered as HTTP status; None lets one pass.
        down: every connection ends without an answer.
        log: path and range of every download of a data file, in order.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.down = False
        self.faults: list[str | int | None] = []
        self.log: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running_hub(files: dict[str, bytes]) -> Iterator[Hub]:
    hub = Hub(files)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body)

    def _answer(self, body: bytes = b"") -> None:
        if self.server.down:
            self.close_connection = True
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        api, resolve = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve/"
        if path.startswith(resolve):
            self._file(*path.removeprefix(resolve).split("/", 1))
        elif not path.startswith(api):
            self._error(404, "RepoNotFound")
        elif path.startswith(f"{api}/tree/"):
            revision, _, folder = path.removeprefix(f"{api}/tree/").partition("/")
            self._tree(revision, folder)
        elif path.startswith(f"{api}/paths-info/"):
            self._paths(path.removeprefix(f"{api}/paths-info/"), body)
        elif path in (api, f"{api}/revision/{REVISION}"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self._json({"id": NAME, "sha": REVISION, "siblings": siblings, "tags": [], "private": False})
        else:
            self._error(404, "RevisionNotFound")

    def _tree(self, revision: str, folder: str) -> None:
        if revision != REVISION:
            return self._error(404, "RevisionNotFound")
        prefix = f"{folder}/" if folder else ""
        inside = {name: data for name, data in self.server.files.items() if name.startswith(prefix)}
        folders = {prefix + name.removeprefix(prefix).split("/")[0] for name in inside if "/" in name[len(prefix) :]}
        entries = [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in sorted(folders)]
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        deep = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        files = [_entry(name, data) for name, data in inside.items() if deep or "/" not in name[len(prefix) :]]
        if not inside:
            return self._error(404, "EntryNotFound")
        return self._json(entries + files)

    def _paths(self, revision: str, body: bytes) -> None:
        if revision != REVISION:
            return self._error(404, "RevisionNotFound")
        try:
            paths = json.loads(body)["paths"]
        except ValueError:
            paths = urllib.parse.parse_qs(body.decode())["paths"]
        files = self.server.files
        found = [_entry(path, files[path]) for path in paths if path in files]
        found += [
            {"type": "directory", "path": path, "oid": "0"}
            for path in paths
            if any(name.startswith(f"{path}/") for name in files)
        ]
        return self._json(found)

    def _file(self, revision: str, name: str) -> None:
        if revision != REVISION:
            return self._error(404, "RevisionNotFound")
        if name not in self.server.files:
            return self._error(404, "EntryNotFound")
        whole = data = self.server.files[name]
        status, headers = 200, {}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) if last else len(whole) - 1, len(whole) - 1)
            data, status = whole[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{len(whole)}"
        fault = None
        if self.command == "GET" and name.endswith((".parquet", ".jsonl")):
            self.server.log.append((name, wanted))
            fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            return self._error(fault, None)
        headers |= {"ETag": f'"{hashlib.sha256(whole).hexdigest()}"', "X-Repo-Commit": REVISION}
        return self._send(status, data, {**headers, "Accept-Ranges": "bytes"}, cut=fault == "drop")

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", "X-Repo-Commit": REVISION})

    def _error(self, status: int, code: str | None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code} if code else {})

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True


def _entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
