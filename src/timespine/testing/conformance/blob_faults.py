"""The contract of the Blob port when requests and replies get lost, as tests."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from timespine.errors import Determinate, Indeterminate, Unavailable, UsageError, WrongProcess
from timespine.location.blob import Blob, BlobInfo
from timespine.testing.conformance.checks import check, check_equal
from timespine.testing.conformance.faults import KINDS, REPLY_LOST

PUT, GET, DELETE, LIST = "put", "get", "delete", "list"
"""The kinds of calls for `break_next`; "get" stands for ranges too."""

KEY = "a/b/c"
VALUE = b"12345"

CALLS: tuple[Callable[[Blob], object], ...] = (
    lambda blob: blob.put("a/b/d", b"mine"),
    lambda blob: blob.get(KEY),
    lambda blob: blob.get_range(KEY, 1, 3),
    lambda blob: blob.delete("a/b/e"),
    lambda blob: list(blob.list_keys()),
)
"""One call of every kind; none changes KEY."""

READS: tuple[tuple[str, Callable[[Blob], object], object], ...] = (
    (GET, lambda blob: blob.get(KEY), VALUE),
    (GET, lambda blob: blob.get_range(KEY, 1, 3), VALUE[1:3]),
    (GET, lambda blob: blob.get("a/b/missing"), None),
    (LIST, lambda blob: list(blob.list_keys("a/")), [BlobInfo(KEY, len(VALUE))]),
)
"""Reads of a place that has KEY alone: the kind, the call and its answer."""

PATIENCE_S = 60.0
"""How long a call may take though storage hangs: longer than any deadline of an adapter under test."""


class BlobUnderFaults:
    """The promises of an adapter whose way to storage the test breaks: every answer is true.

    A put or deletion that raises Determinate has had no effect. One that raises Indeterminate has had all of it or
    none, and may be repeated. A read gives what is there, or raises: never less, and never None for a blob that exists.
    """

    def make(self, tmp_path: Path) -> Blob:
        """Return a fresh adapter with nothing in it."""
        raise NotImplementedError

    def break_next(self, adapter: Blob, call: str, kind: str) -> bool:
        """Let the next call meet one of KINDS below the adapter; return False if that is impossible."""
        raise NotImplementedError

    def heal(self, adapter: Blob) -> None:
        """End the faults that `break_next` began."""

    def hang(self, adapter: Blob) -> contextlib.AbstractContextManager[object] | None:
        """Let storage answer nothing for longer than PATIENCE_S; None if nothing can hang."""
        return None

    in_children = ""
    """What a forked child of the process that opened the adapter gets: "answered", "refused", or "" if it has none."""

    def test_a_broken_put_is_what_it_says_it_is(self, tmp_path: Path) -> None:
        for blob, kind in self._broken(tmp_path, PUT):
            said = _said(lambda: blob.put(KEY, VALUE))  # noqa: B023 (called at once)
            self.heal(blob)
            found = blob.get(KEY)
            check(found in (None, VALUE), f"{kind}: a part of it is there")
            check(said == "in doubt" or (found == VALUE) == (said == "done"), f"{kind}: said {said}, there {found!r}")
            check(kind != REPLY_LOST or said != "not done", "its own success was reported as a failure")
            check_equal(list(blob.list_keys()), [] if found is None else [BlobInfo(KEY, len(VALUE))])

    def test_a_put_sent_again_after_doubt_is_done(self, tmp_path: Path) -> None:
        for blob, _ in self._broken(tmp_path, PUT):
            _said(lambda: blob.put(KEY, VALUE))  # noqa: B023
            self.heal(blob)
            blob.put(KEY, VALUE)
            check_equal([blob.get(KEY), list(blob.list_keys())], [VALUE, [BlobInfo(KEY, len(VALUE))]])

    def test_a_put_that_did_not_happen_leaves_its_key_free(self, tmp_path: Path) -> None:
        for blob, _ in self._broken(tmp_path, PUT):
            said = _said(lambda: blob.put(KEY, VALUE))  # noqa: B023
            self.heal(blob)
            if said == "not done":
                blob.put(KEY, b"other")
                check_equal(blob.get(KEY), b"other")

    def test_a_broken_put_of_other_bytes_changes_nothing(self, tmp_path: Path) -> None:
        for blob, kind in self._broken(tmp_path, PUT, KEY):
            said = _said(lambda: blob.put(KEY, b"other"))  # noqa: B023
            self.heal(blob)
            check(said != "done", f"{kind}: other bytes were accepted")
            check_equal(blob.get(KEY), VALUE)

    def test_a_broken_deletion_is_what_it_says_it_is(self, tmp_path: Path) -> None:
        for blob, kind in self._broken(tmp_path, DELETE, KEY):
            said = _said(lambda: blob.delete(KEY))  # noqa: B023
            self.heal(blob)
            found = blob.get(KEY)
            check(found in (None, VALUE), f"{kind}: a part of it is left")
            check(said == "in doubt" or (found is None) == (said == "done"), f"{kind}: said {said}, there {found!r}")
            blob.delete(KEY)
            blob.put(KEY, b"other")
            check_equal(blob.get(KEY), b"other")

    def test_a_broken_read_is_answered_with_the_truth_or_not_at_all(self, tmp_path: Path) -> None:
        for number, (call, read, wanted) in enumerate(READS):
            for blob, kind in self._broken(tmp_path / str(number), call, KEY):
                with contextlib.suppress(Unavailable):
                    check_equal((kind, read(blob)), (kind, wanted))
                self.heal(blob)
                check_equal(read(blob), wanted)

    def test_every_call_ends_though_storage_hangs(self, tmp_path: Path) -> None:
        for number, call in enumerate(CALLS):
            with self._made(tmp_path / str(number)) as blob:
                blob.put(KEY, VALUE)
                hanging = self.hang(blob)
                if hanging is None:
                    return
                with hanging:
                    thread = threading.Thread(target=_said, args=(lambda: call(blob),), daemon=True)  # noqa: B023
                    thread.start()
                    thread.join(PATIENCE_S)
                    check(not thread.is_alive(), f"call {number} does not end")
                call(blob)  # once storage answers, so does the adapter
                check_equal(blob.get(KEY), VALUE)

    def test_a_forked_child_is_answered_or_refused_at_once(self, tmp_path: Path) -> None:
        if not self.in_children:
            return
        with self._made(tmp_path) as blob:
            blob.put(KEY, VALUE)
            check_equal(_said_by_child(blob), f"{self.in_children} " * len(CALLS))
            check_equal(blob.get("a/b/d"), b"mine" if self.in_children == "answered" else None)
            blob.put("a/b/d", b"mine")  # the parent goes on
            check_equal([blob.get(KEY), blob.get("a/b/d")], [VALUE, b"mine"])

    def test_some_kind_of_fault_can_happen(self, tmp_path: Path) -> None:
        with self._made(tmp_path) as blob:
            for call in (PUT, GET, DELETE, LIST):
                check(any(self.break_next(blob, call, kind) for kind in KINDS), f"nothing can break a {call}")
                self.heal(blob)

    @contextlib.contextmanager
    def _made(self, folder: Path) -> Iterator[Blob]:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(self.make(folder)) as blob:
            yield blob

    def _broken(self, tmp_path: Path, call: str, *keys: str) -> Iterator[tuple[Blob, str]]:
        """Make an adapter with some blobs for every kind of fault, and let its next call meet it."""
        for kind in KINDS:
            with self._made(tmp_path / kind.replace(" ", "-")) as blob:
                for key in keys:
                    blob.put(key, VALUE)
                if self.break_next(blob, call, kind):
                    yield blob, kind


def _said(call: Callable[[], object]) -> str:
    """Return the outcome that a call reports."""
    try:
        call()
    except Determinate:
        return "not done"
    except Indeterminate:
        return "in doubt"
    except UsageError:
        return "refused"
    return "done"


def _said_by_child(blob: Blob) -> str:
    """Return the outcomes of calls in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            for call in CALLS:
                try:
                    call(blob)
                    said += "answered "
                except WrongProcess:
                    said += "refused "
                except Exception as error:
                    said += f"{type(error).__name__} "
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said
