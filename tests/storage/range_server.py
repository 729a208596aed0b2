"""A server on the loopback interface that gives files by ranges, and does wrong what it is told
to.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self

Fault = Literal[
    "none",
    "refuses",
    "fails",
    "no ranges",
    "gzip",
    "cuts",
    "flips",
    "redirects",
    "circles",
    "hangs",
    "hangs up",
    "other place",
    "goes on",
]
FLOOD_BYTES = 1 << 28


class RangeServer:
    """Serves a folder below ``/data``.

    Attributes:
        fault: what it does wrong.
        only: of the files whose name holds this.
        asked: path and range of each request.
        flooded_bytes: that were taken of what goes on and on.
    """

    def __init__(self, folder: Path) -> None:
        """It does nothing wrong."""
        self.fault: Fault = "none"
        self.only, self.asked = "", list[tuple[str, str]]()
        self.flooded_bytes = 0
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                outer.answer(self, folder)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.port: int = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/data"

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler, folder: Path) -> None:
        """Answer one request."""
        place, asked = handler.path, handler.headers.get("Range") or ""
        self.asked.append((place, asked))
        fault = self.fault if self.only in place else "none"
        path = folder / place.removeprefix("/data/").removeprefix("moved/")
        match fault:
            case "refuses":
                return self._send(handler, 403, b"no")
            case "fails":
                return self._send(handler, 500, b"oops")
            case "hangs":
                self.released.wait()
                return None
            case "hangs up":
                handler.close_connection = True
                handler.connection.shutdown(socket.SHUT_RDWR)
                return None
            case "redirects" if "moved/" not in place:
                return self._send(handler, 302, b"", Location=f"/data/moved/{path.name}")
            case "circles":
                return self._send(handler, 302, b"", Location=place)
            case _:
                pass
        if not path.is_file():
            return self._send(handler, 404, b"nothing")
        content = path.read_bytes()
        if not asked or fault == "no ranges":
            return self._send(handler, 200, content)
        first, last = (int(part) for part in asked.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        shift = int(fault == "other place")
        shown = f"bytes {first + shift}-{first + len(part) - 1 + shift}/{len(content)}"
        encoding = {}
        match fault:
            case "goes on":
                return self._flood(handler, shown)
            case "gzip":
                part, encoding = gzip.compress(part), {"Content-Encoding": "gzip"}
            case "cuts":
                part = part[:-1]
            case "flips":
                part = bytes([part[0] ^ 1]) + part[1:]
            case _:
                pass
        return self._send(handler, 206, part, **{"Content-Range": shown}, **encoding)

    def _flood(self, handler: BaseHTTPRequestHandler, shown: str) -> None:
        """Send far more than was asked for, until nobody takes it any more."""
        handler.send_response(206)
        handler.send_header("Content-Range", shown)
        handler.send_header("Content-Length", str(FLOOD_BYTES))
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            for _ in range(FLOOD_BYTES >> 16):
                handler.wfile.write(bytes(1 << 16))
                self.flooded_bytes += 1 << 16

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, content: bytes, **headers: str) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
