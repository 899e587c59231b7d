"""Blobs of a remote place, with reads ahead: a reader says what it will need, and all of it is fetched at once.

A request to an object store takes 15 ms, whatever its size up to a megabyte. A reader that opens forty parts one after
the other waits for forty of them. So readers that know what they will need announce it (`fetch_ahead`), and a pool of
I/O threads fetches it, 32 requests at a time. A later `get_range` inside of what was announced waits for that request,
and makes none.

What is announced is a hint: it changes no answer. Blobs never change, so what was fetched stays right; a fetch that
failed is made again by the read that needs it. Fetched bytes are kept within a budget: those that were read go first,
then those that an earlier call announced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import NamedTuple

from timespine.errors import TimespineError
from timespine.location.blob import BLOB_BYTES_MAX, Blob, BlobInfo, delete_blobs
from timespine.location.checks import check_get, check_get_range, check_size
from timespine.locks import Lock
from timespine.pool import Pool, outcome

REQUESTS_MAX = 32
"""Requests in flight at once."""

AHEAD_BYTES_MAX = 64 << 20
"""Bytes that are fetched ahead and kept, at most."""


class BlobRange(NamedTuple):
    """Some bytes of a blob that a reader will need."""

    key: str
    """The blob."""
    start: int
    """The first byte."""
    stop: int
    """The byte after the last."""
    is_whole: bool = False
    """Whether these are all bytes of the blob."""


class _Piece:
    """Bytes that were announced."""

    __slots__ = ("call", "is_used", "range", "task")

    def __init__(self, range: BlobRange, task: Future[bytes | None], call: int) -> None:
        self.range = range
        self.task = task
        self.call = call
        """The number of the call that announced them last."""
        self.is_used = False

    @property
    def size(self) -> int:
        return self.range.stop - self.range.start


class ReadAheadBlob:
    """A Blob adapter around another one."""

    def __init__(self, inner: Blob, pool: Executor | None = None, *, bytes_max: int = AHEAD_BYTES_MAX) -> None:
        self._inner = inner
        self._pool = pool or Pool(REQUESTS_MAX, "timespine-fetch", "this store is closed: open it again")
        self._bytes_max = bytes_max
        self._lock = Lock("the blobs that are read ahead")
        self._pieces: dict[str, list[_Piece]] = {}
        self._bytes = 0
        self._calls = 0

    def fetch_ahead(self, wanted: Iterable[BlobRange]) -> None:
        """Begin to fetch what a reader will need, as far as the budget allows, and return at once."""
        with self._lock:
            self._calls += 1
            for each in wanted:
                known = self._covering(each.key, each.start, each.stop)
                if known is not None:
                    known.call, known.is_used = self._calls, False
                elif self._has_room(each.stop - each.start):
                    task = self._pool.submit(self._inner.get_range, each.key, each.start, each.stop)
                    self._pieces.setdefault(each.key, []).append(_Piece(each, task, self._calls))
                    self._bytes += each.stop - each.start

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        check_get_range(key, start, stop)
        with self._lock:
            piece = self._covering(key, start, stop)
        data = None if piece is None else self._fetched(piece)
        if piece is None or data is None:
            return self._inner.get_range(key, start, stop)
        return data[start - piece.range.start : stop - piece.range.start]

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        _, bytes_max = check_get(key, max_bytes)
        with self._lock:
            piece = next((each for each in self._pieces.get(key, ()) if each.range.is_whole), None)
        data = None if piece is None else self._fetched(piece)
        if data is None:
            return self._inner.get(key, max_bytes=max_bytes)
        check_size(key, len(data), bytes_max)
        return data

    def put(self, key: str, value: bytes) -> None:
        self._inner.put(key, value)

    def delete(self, key: str) -> bool | None:
        self._forget((key,))
        return self._inner.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete blobs, missing ones included."""
        self._forget(keys)
        delete_blobs(self._inner, keys, self._pool)

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        return self._inner.list_keys(prefix)

    def close(self) -> None:
        self._pool.shutdown()
        self._inner.close()

    def _covering(self, key: str, start: int, stop: int) -> _Piece | None:
        """Return the piece that has these bytes, if there is one."""
        found = self._pieces.get(key, ())
        return next((each for each in found if each.range.start <= start and stop <= each.range.stop), None)

    def _fetched(self, piece: _Piece) -> bytes | None:
        """Wait for a piece; None if it was not fetched, and a read has to do so itself."""
        try:
            data = outcome(piece.task)
        except (TimespineError, CancelledError):
            data = None
        with self._lock:
            if data is None:
                self._drop(piece)
            piece.is_used = True
        return data

    def _has_room(self, size: int) -> bool:
        """Make room for bytes; return False if all that is kept is still to be read, or if they are too many."""
        if size > self._bytes_max:
            return False
        if self._bytes + size > self._bytes_max:
            kept = [each for pieces in self._pieces.values() for each in pieces if each.call < self._calls]
            for piece in sorted(kept, key=lambda each: (not each.is_used, each.call)):
                if self._bytes + size <= self._bytes_max:
                    break
                self._drop(piece)
        return self._bytes + size <= self._bytes_max

    def _drop(self, piece: _Piece) -> None:
        pieces = self._pieces.get(piece.range.key, [])
        if piece in pieces:
            pieces.remove(piece)
            self._bytes -= piece.size
            if not pieces:
                del self._pieces[piece.range.key]
        piece.task.cancel()

    def _forget(self, keys: Sequence[str]) -> None:
        with self._lock:
            for piece in [each for key in keys for each in self._pieces.get(key, ())]:
                self._drop(piece)
