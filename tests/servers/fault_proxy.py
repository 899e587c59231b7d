"""Proxies between an adapter and its server that break requests: one for HTTP, one for any stream of bytes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_BYTES, SLOW_S = 20, 0.005
"""How many bytes of a slow reply come alone, and the pause before each."""

PATIENCE_S = 120.0
"""How long a connection hangs at most, if its client has no deadline. Tests look into `ended` for who it was."""

LOOK_S = 0.02
"""The pause between two looks whether the client of a connection that hangs has left."""


class HttpFaults:
    """A proxy that forwards requests of S3. Each fault in `faults` breaks one request of its method.

    500, 503, 409   answer with this status, and forward nothing
    "done 500"      forward the request, and answer 500
    "cut reply"     forward the request, and close the connection instead of answering
    "drop"          close the connection, and forward nothing
    "half reply"    forward the request, and close the connection in the middle of the reply
    "slow"          forward the request, and answer byte by byte, with pauses
    "hang"          forward nothing and answer nothing, until the client leaves
    """

    def __init__(self, port: int) -> None:
        self.faults: deque[tuple[str, str | int]] = deque()
        self.seen: list[str] = []
        """The methods of all requests, in order."""
        self.ended: list[str] = []
        """Who ended each connection that hung: "client" or "proxy"."""
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(port))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _next(self, method: str) -> str | int | None:
        if self.faults and self.faults[0][0] == method:
            return self.faults.popleft()[1]
        return None

    def _handler(self, port: int) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            slow = False

            def log_message(self, *args: object) -> None:
                """Say nothing."""

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.seen.append(self.command)
                fault = proxy._next(self.command)
                if fault == "hang":
                    _hang(proxy, self._has_left)
                if fault in ("hang", "drop"):
                    return self._cut()
                if isinstance(fault, int):
                    return self._answer(fault, [], b"")
                status, headers, reply = self._ask(body)
                if fault == "cut reply":
                    return self._cut()
                self.slow = fault == "slow"
                self._answer(500 if fault == "done 500" else status, headers, reply, cut=fault == "half reply")
                return None

            def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                with contextlib.closing(connection):
                    connection.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
                    reply = connection.getresponse()
                    return reply.status, reply.getheaders(), reply.read()

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
                self.send_response_only(status)
                is_head = self.command == "HEAD"
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection") or (
                        is_head and name.lower() == "content-length"
                    ):
                        self.send_header(name, value)
                if not is_head:
                    self.send_header("Content-Length", str(max(len(body), int(cut))))
                self.end_headers()
                if cut:
                    self.wfile.write(body[: len(body) // 2])
                    self._cut()
                elif not is_head:
                    for byte in body[:SLOW_BYTES] if self.slow else b"":
                        time.sleep(SLOW_S)
                        self.wfile.write(bytes([byte]))
                    self.wfile.write(body[SLOW_BYTES:] if self.slow else body)

            def _has_left(self) -> bool:
                try:
                    return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return False
                except OSError:
                    return True

            def _cut(self) -> None:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

        return Handler


class StreamFaults:
    """A proxy for a stream of bytes. `mode` says what happens to the next bytes in either direction.

    "ok"            pass them on
    "drop request"  close both sides instead of passing a request on
    "drop reply"    close both sides instead of passing a reply on
    "hang"          keep replies back, and keep both sides open until the client leaves
    """

    def __init__(self, port: int) -> None:
        self.mode = "ok"
        self.when: Callable[[bytes], bool] = lambda data: True
        """Which bytes of a request arm the mode: others pass."""
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._armed = False
        self.ended: list[str] = []
        """Who ended each connection that hung: "client" or "proxy"."""
        self._closing = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._listening.close()
        for each in list(self._open):
            _end(each)

    def heal(self) -> None:
        """Pass everything on again. Connections that hang stay as they are."""
        self.mode, self._armed = "ok", False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._open += [client, server]
            for source, target, is_request in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, target, is_request), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and self.mode != "ok" and self.when(data):
                    self._armed = True
                    if self.mode == "drop request":
                        break
                if not is_request and self._armed and self.mode == "drop reply":
                    break
                if not is_request and self._armed and self.mode == "hang":
                    _hang(self, lambda: target.fileno() == -1)  # the thread of the requests ends it with its client
                    break
                target.sendall(data)
        _end(source)
        _end(target)


def _hang(proxy: HttpFaults | StreamFaults, has_left: Callable[[], bool]) -> None:
    """Wait until a client leaves, or the proxy is closed; note who ended the connection."""
    deadline = time.monotonic() + PATIENCE_S
    while not proxy._closing.wait(LOOK_S):
        if has_left():
            proxy.ended.append("client")
            return
        if time.monotonic() > deadline:
            proxy.ended.append("proxy")
            return


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
