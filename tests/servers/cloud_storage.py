"""A server in this process that speaks as much of the XML API of Cloud Storage as obstore asks for.

It keeps the documented conditions (`x-goog-if-generation-match`, `If-None-Match`), so that the adapter for `gs://` runs
against something. It is no emulator of the service: what Cloud Storage does beyond its documents is not in here.
"""

from __future__ import annotations

import email.utils
import hashlib
import itertools
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape


class CloudStorage:
    """Objects of one bucket, with generations."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.conditions: list[str] = []
        """The conditions of all writes."""
        self._lock = threading.Lock()
        self._generations = itertools.count(1_700_000_000_000_000)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, name: str, data: bytes, condition: str | None) -> int | None:
        """Store an object; return its generation, None if the condition does not hold."""
        with self._lock:
            self.conditions.append(condition or "")
            found = self.objects.get(name, (b"", 0))[1]
            if condition is not None and int(condition) != found:
                return None
            self.objects[name] = data, next(self._generations)
            return self.objects[name][1]

    def delete(self, name: str) -> bool:
        with self._lock:
            return self.objects.pop(name, None) is not None

    def listed(self, prefix: str, after: str, most: int) -> tuple[list[tuple[str, int]], bool]:
        with self._lock:
            names = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
            return [(name, len(self.objects[name][0])) for name in names[:most]], len(names) > most

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        storage = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                """Say nothing."""

            def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _name(self) -> str:
                path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
                return path.lstrip("/").partition("/")[2]

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                made = storage.put(self._name(), body, self.headers.get("x-goog-if-generation-match"))
                if made is None:
                    return self._answer(412)
                return self._answer(200, ETag=_tag(body), x_goog_generation=str(made))

            def do_DELETE(self) -> None:
                self._answer(204 if storage.delete(self._name()) else 404)

            def do_GET(self) -> None:
                name = self._name()
                if not name:
                    return self._list()
                found = storage.objects.get(name)
                if found is None:
                    return self._answer(404)
                data, generation = found
                about = {
                    "ETag": _tag(data),
                    "x_goog_generation": str(generation),
                    "Last_Modified": email.utils.formatdate(0, usegmt=True),
                }
                if self.headers.get("If-None-Match") == about["ETag"]:
                    return self._answer(304, **about)
                wanted = self.headers.get("Range")
                if wanted is None:
                    return self._answer(200, data, **about)
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last or len(data)) + 1, len(data))
                if start >= len(data):
                    return self._answer(416)
                return self._answer(
                    206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **about
                )

            do_HEAD = do_GET

            def _list(self) -> None:
                asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
                after = asked.get("continuation-token", asked.get("start-after", ""))
                found, has_more = storage.listed(asked.get("prefix", ""), after, int(asked.get("max-keys", 1000)))
                lines = [
                    f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                    for name, size in found
                ]
                if has_more:
                    lines.append(f"<NextContinuationToken>{escape(found[-1][0])}</NextContinuationToken>")
                body = f"<ListBucketResult>{''.join(lines)}</ListBucketResult>".encode()
                self._answer(200, body, Content_Type="application/xml")

        return Handler


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
