"""A hub on this machine with one data set or model: enough of the Hugging Face hub's protocol for a download."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    files: dict[str, bytes]
    gated: bool = False
    cut_after: int = 0  # bytes of the first answer with a body longer than that, then the connection ends; 0: never
    requests: list[str] = field(default_factory=list)  # "GET path range"
    url: str = ""


@contextmanager
def serve(hub: Hub, name: str = "tyzhu/geo3k") -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "name": name}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    name: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if f"/{self.name}/" not in path:
            self._answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif hub.gated:
            self._answer(403, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"})
        elif "/revision/" in path:
            siblings = [{"rfilename": file} for file in hub.files]
            self._answer(200, json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings}).encode())
        elif "/tree/" in path:
            tree = [{"type": "file", "path": file, "size": len(data), "oid": sha256(data).hexdigest()} for file, data in hub.files.items()]
            self._answer(200, json.dumps(tree).encode())
        else:
            self._file(path.partition("/resolve/")[2].partition("/")[2])

    def _file(self, file: str) -> None:
        data = self.hub.files[file]
        headers = {"ETag": f'"{sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._answer(206, data[start:], headers)
        else:
            self._answer(200, data, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut, hub = self.hub.cut_after, self.hub
        if cut and len(body) > cut and status == 200 and "ETag" in (headers or {}):
            hub.cut_after = 0
            self.wfile.write(body[:cut])
            self.close_connection = True
            return
        self.wfile.write(body)
