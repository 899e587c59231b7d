"""The fault suite of the Blob port on all of its adapters, and adapters that it must catch."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.fault_proxy import HttpFaults

from timespine.errors import Unavailable
from timespine.location.blob import BLOB_BYTES_MAX, Blob, BlobInfo
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.memory import MemoryBlob
from timespine.location.object_store.bucket import RETRIES, Bucket
from timespine.location.object_store.object_blob import ObjectBlob
from timespine.location.opening.store_location import parse_location
from timespine.location.remote.read_ahead import BlobRange, ReadAheadBlob
from timespine.testing.conformance import BlobUnderFaults
from timespine.testing.conformance.blob_faults import DELETE, GET, KEY, LIST, PUT, VALUE
from timespine.testing.conformance.faults import REFUSED, REPLY_LOST, REQUEST_LOST
from timespine.testing.unreliable import Fault, UnreliableBlob


class TestLocalBlob(BlobUnderFaults):
    """A folder whose system calls fail."""

    in_children = "answered"

    CALLS = {
        (PUT, REQUEST_LOST): ("link", errno.EIO, False),
        (PUT, REPLY_LOST): ("link", errno.EIO, True),
        (PUT, REFUSED): ("link", errno.ENOSPC, False),
        (DELETE, REQUEST_LOST): ("unlink", errno.EIO, False),
        (DELETE, REPLY_LOST): ("unlink", errno.EIO, True),
        (DELETE, REFUSED): ("unlink", errno.EACCES, False),
        (GET, REQUEST_LOST): ("fstat", errno.EIO, False),
        (GET, REFUSED): ("fstat", errno.EACCES, False),
        (LIST, REQUEST_LOST): ("scandir", errno.EIO, False),
        (LIST, REFUSED): ("scandir", errno.EACCES, False),
    }
    """The system call that fails in a call, its error, and whether it is done all the same."""

    @pytest.fixture(autouse=True)
    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def make(self, tmp_path: Path) -> Blob:
        return LocalBlob(tmp_path / "root")

    def break_next(self, adapter: Blob, call: str, kind: str) -> bool:
        if (call, kind) not in self.CALLS:
            return False
        name, code, is_done = self.CALLS[call, kind]
        works = getattr(os, name)

        def fail_once(*arguments: Any, **options: Any) -> None:
            self.patch.setattr(os, name, works)
            if is_done:
                works(*arguments, **options)
            raise OSError(code, os.strerror(code))

        self.patch.setattr(os, name, fail_once)
        return True

    def heal(self, adapter: Blob) -> None:
        self.patch.undo()


class TestObjectBlob(BlobUnderFaults):
    """A bucket behind a proxy that breaks one request."""

    in_children = "refused"
    METHODS = {PUT: "PUT", GET: "GET", LIST: "GET", DELETE: "POST"}  # deletions are bulk requests
    FAULTS: dict[str, str | int] = {REQUEST_LOST: "drop", REPLY_LOST: "cut reply", REFUSED: 503}
    times = 1
    """How many requests are broken one after the other."""

    @pytest.fixture(autouse=True)
    def _servers(self, moto: Any) -> Iterator[None]:
        self.server, self.proxy = moto, HttpFaults(moto.port)
        self.url = moto.url()
        yield
        self.proxy.close()

    def make(self, tmp_path: Path) -> Blob:
        return ObjectBlob(self.bucket(tmp_path), sleep=lambda _: None)

    def bucket(self, tmp_path: Path, **options: float) -> Bucket:
        self.folder = tmp_path
        below = "/".join(tmp_path.parts[-3:])
        return Bucket(parse_location(f"{self.url}/{below}", self.server.via(self.proxy.endpoint)), **options)

    def break_next(self, adapter: Blob, call: str, kind: str) -> bool:
        self.proxy.faults.extend([(self.METHODS[call], self.FAULTS[kind])] * self.times)
        return True

    def heal(self, adapter: Blob) -> None:
        self.proxy.faults.clear()

    def test_every_kind_of_call_meets_its_fault(self, tmp_path: Path) -> None:
        blob = self.make(tmp_path)
        blob.put(KEY, VALUE)
        for kind, call in (
            (PUT, lambda: blob.put("a/b/d", VALUE)),
            (GET, lambda: blob.get(KEY)),
            (GET, lambda: blob.get_range(KEY, 0, 1)),
            (LIST, lambda: list(blob.list_keys())),
            (DELETE, lambda: blob.delete(KEY)),
        ):
            self.break_next(blob, kind, REQUEST_LOST)
            with contextlib.suppress(Unavailable):
                call()
            assert not self.proxy.faults, kind


class TestObjectBlobOnAServerWithErrors(TestObjectBlob):
    """Every request of the call fails, and obstore gives up."""

    FAULTS = {REQUEST_LOST: 500, REPLY_LOST: "done 500", REFUSED: 409}
    times = 1 + RETRIES

    @contextlib.contextmanager
    def hang(self, adapter: Blob) -> Iterator[None]:
        """Answer no request, while the adapter has little patience."""
        assert isinstance(adapter, ObjectBlob)
        patient, adapter._bucket = adapter._bucket, self.bucket(self.folder, request_s=0.1)
        self.proxy._next = lambda method: "hang"  # type: ignore[method-assign]
        yield
        del self.proxy._next
        adapter._bucket = patient


class Script:
    """The faults of the next calls."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()

    def __call__(self, operation: str, key: str) -> Fault:
        return self.faults.popleft() if self.faults else Fault.NONE


class TestUnreliableBlob(BlobUnderFaults):
    """A place in memory that misreports what it did."""

    FAULTS = {
        REQUEST_LOST: Fault.INDETERMINATE_NOT,
        REPLY_LOST: Fault.INDETERMINATE_DONE,
        REFUSED: Fault.DETERMINATE,
    }

    @pytest.fixture(autouse=True)
    def _script(self) -> None:
        self.script = Script()

    def make(self, tmp_path: Path) -> Blob:
        return UnreliableBlob(MemoryBlob(), self.script)

    def break_next(self, adapter: Blob, call: str, kind: str) -> bool:
        self.script.faults.append(self.FAULTS[kind])
        return True

    def heal(self, adapter: Blob) -> None:
        self.script.faults.clear()


class TestReadAheadBlob(TestUnreliableBlob):
    """What was announced meets the fault, and the read that needs it asks again."""

    def make(self, tmp_path: Path) -> Blob:
        return ReadAheadBlob(super().make(tmp_path))

    def break_next(self, adapter: Blob, call: str, kind: str) -> bool:
        super().break_next(adapter, call, kind)
        if call == GET:
            assert isinstance(adapter, ReadAheadBlob)
            adapter.fetch_ahead([BlobRange(KEY, 0, len(VALUE), True)])
        return True


class SaysDone(UnreliableBlob):
    def put(self, key: str, value: bytes) -> None:
        with contextlib.suppress(Unavailable):
            super().put(key, value)

    def delete(self, key: str) -> None:
        with contextlib.suppress(Unavailable):
            super().delete(key)


class FindsNothing(UnreliableBlob):
    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        try:
            return super().get(key, max_bytes=max_bytes)
        except Unavailable:
            return None

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        try:
            return super().list_keys(prefix)
        except Unavailable:
            return iter(())


class PutsOver(UnreliableBlob):
    """Repeats a put whose reply was lost by deleting what is there."""

    def put(self, key: str, value: bytes) -> None:
        try:
            super().put(key, value)
        except Unavailable:
            self._inner.delete(key)
            self._inner.put(key, value)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (SaysDone, "test_a_broken_put_is_what_it_says_it_is"),
        (SaysDone, "test_a_broken_deletion_is_what_it_says_it_is"),
        (FindsNothing, "test_a_broken_read_is_answered_with_the_truth_or_not_at_all"),
        (PutsOver, "test_a_broken_put_of_other_bytes_changes_nothing"),
    ],
)
def test_a_broken_adapter_is_caught(broken: Callable[..., Blob], test: str, tmp_path: Path) -> None:
    suite = TestUnreliableBlob()
    suite.script = Script()
    suite.make = lambda tmp_path: broken(MemoryBlob(), suite.script)  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        getattr(suite, test)(tmp_path)


def test_an_adapter_that_answers_forked_children_and_promises_the_contrary_is_caught(tmp_path: Path) -> None:
    suite = TestLocalBlob()
    suite.in_children = "refused"
    with pytest.raises(AssertionError, match="answered"):
        suite.test_a_forked_child_is_answered_or_refused_at_once(tmp_path)


def test_a_suite_that_breaks_nothing_is_caught(tmp_path: Path) -> None:
    suite = TestUnreliableBlob()
    suite.script = Script()
    suite.break_next = lambda adapter, call, kind: False  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="nothing can break"):
        suite.test_some_kind_of_fault_can_happen(tmp_path)
