"""The page of runs that go on, live: `/` is the page, `/data.json?tag=…` its data when they are newer than the tag's.

Nothing is written and nothing else of the disk is served.
"""

import errno
import ipaddress
import logging
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tandem.errors import UserError
from tandem.report.page import embedded, page, page_data
from tandem.report.runs import run_folders
from tandem.report.samples import Budget

log = logging.getLogger(__name__)
LIVE_BUDGET = Budget(num_samples=2000, text_bytes=6 << 20, image_bytes=2 << 20)  # is sent again whenever a step is done


class LiveData:
    """The data of the page, made again when a file of a run has changed. Safe to use from several threads."""

    def __init__(self, paths: Sequence[Path], budget: Budget = LIVE_BUDGET):
        self._paths, self._budget = list(paths), budget
        self._lock, self._tag = threading.Lock(), ""
        self._data: dict[str, Any] = {}

    def newer_than(self, tag: str) -> dict[str, Any] | None:
        """None when there is nothing newer. Raises UserError when a run's files cannot be read."""
        with self._lock:
            runs = run_folders(self._paths)
            now = "_".join(run.changes for run in runs)
            if now != self._tag:
                self._data = page_data(runs, self._budget, live=True) | {"tag": now}
                self._tag = now
            return None if tag == now else self._data


class LiveServer(ThreadingHTTPServer):
    """Use as a context manager, with `serve_forever`.

    Args:
        port: 0: a free one, then in `server_port`.

    Raises:
        UserError: a path is no run's folder, or the address cannot be had.
    """

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], host: str, port: int):
        run_folders(list(paths))
        self.data, self.host = LiveData(paths), host
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error)
            raise UserError(f"cannot listen on {host}:{port}", why, "choose another: --port 0 takes a free one") from error

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.server_port}/"

    def is_called_by_its_name(self, host: str) -> bool:
        """False for a page of another site whose name was made to point to this machine (DNS rebinding)."""
        return not is_loopback(self.host) or is_loopback(urlsplit(f"//{host}").hostname or "")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if not self.server.is_called_by_its_name(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "ask for this machine by its own name\n")
        elif asked.path not in ("/", "/data.json"):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is / and /data.json\n")
        else:
            self._answer(asked.path, parse_qs(asked.query).get("tag", [""])[0])

    def _answer(self, path: str, tag: str) -> None:
        try:
            data = self.server.data.newer_than("" if path == "/" else tag)
        except UserError as error:  # a resumed run cuts its files while they are read
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
            return
        if data is None:
            self._send(HTTPStatus.NO_CONTENT, "application/json", "")
        elif path == "/":
            self._send(HTTPStatus.OK, "text/html", page(data))
        else:
            self._send(HTTPStatus.OK, "application/json", embedded(data))

    def _send(self, status: HTTPStatus, media_type: str, text: str) -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
