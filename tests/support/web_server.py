"""A web server of files in memory, which misbehaves as a test tells it to."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self


@dataclass
class Page:
    """What the server gives for a path, after the answers of ``first`` (status, headers, body).

    ``cut`` are numbers of bytes after which the connection breaks, one an answer; ``pause`` seconds between bytes.
    """

    body: bytes
    ranges: bool = True
    etag: str | None = '"1"'
    kind: str = "application/octet-stream"
    first: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    length: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0


class LocalServer:
    """Serves on the loopback address from a thread of its own as long as its block lasts; `handle` answers."""

    def __init__(self, port: int = 0, protocol: str = "HTTP/1.1") -> None:
        handle = self.handle

        class Handler(BaseHTTPRequestHandler):
            protocol_version = protocol
            disable_nagle_algorithm = True  # or a body waits 40 ms until its headers are acknowledged

            def do_GET(self) -> None:
                handle(self)

            do_HEAD = do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 64  # as many as a busy machine lets wait, instead of 5

            def handle_error(self, *_: object) -> None:
                pass  # a client that went away is no matter of the test's output

        self._server = Server(("127.0.0.1", port), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        raise NotImplementedError

    def send(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        """Status and headers."""
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Site(LocalServer):
    """A server of files in memory that misbehaves as it is told; ``log`` has every request."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.log: list[tuple[str, str, dict[str, str]]] = []
        super().__init__(protocol="HTTP/1.0")

    def put(self, path: str, body: bytes, **how: object) -> str:
        """A file; returns its address."""
        self.pages[path] = Page(body, **how)
        return self.url + path

    def asked(self, path: str) -> int:
        """How often the file was asked for."""
        return sum(method == "GET" and at.partition("?")[0] == path for method, at, _ in self.log)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        self.log.append((handler.command, handler.path, dict(handler.headers)))
        page = self.pages.get(handler.path) or self.pages.get(handler.path.partition("?")[0])
        if page is None:
            handler.send_error(404)
            return
        if page.first:
            status, headers, body = page.first.pop(0)
            self._send(handler, status, {**headers, "Content-Length": str(len(body))}, body)
            return
        headers = {"Content-Type": page.kind} | page.headers | ({"ETag": page.etag} if page.etag else {})
        status, start = 200, 0
        wanted = handler.headers.get("Range")
        if wanted and page.ranges and handler.headers.get("If-Range") in (None, page.etag):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(page.body):
                self._send(handler, 416, {"Content-Range": f"bytes */{len(page.body)}", "Content-Length": "0"}, b"")
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}"
        body = page.body[start:]
        if page.length:
            headers["Content-Length"] = str(len(body))
        self._send(handler, status, headers, body[: page.cut.pop(0)] if page.cut else body, page.pause)

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, pause: float = 0.0
    ) -> None:
        self.send(handler, status, headers)
        if handler.command != "HEAD":
            with suppress(ConnectionError):  # who fetches may have heard enough
                for part in [body[at : at + 1] for at in range(len(body))] if pause else [body]:
                    handler.wfile.write(part)
                    time.sleep(pause)
        handler.close_connection = True
