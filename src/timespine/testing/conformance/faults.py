"""The contract of the Consensus port when requests and replies get lost, as tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from timespine.errors import CorruptionError, Determinate, Indeterminate, WrongProcess
from timespine.location.consensus import Consensus, LogEntry, LogWrite
from timespine.testing.conformance.checks import check, check_equal
from timespine.testing.conformance.consensus import fill

REQUEST_LOST = "request lost"
"""The request does not arrive, and no reply comes."""
REPLY_LOST = "reply lost"
"""The request is carried out, and its reply does not arrive."""
REFUSED = "refused"
"""The server, or the way to it, refuses the request before anything is done."""

KINDS = (REQUEST_LOST, REPLY_LOST, REFUSED)
"""The kinds of fault for `break_next`."""


CALLS: tuple[Callable[[Consensus], object], ...] = (
    lambda log: log.compare_and_set([LogWrite("a", 1, b"mine")]),
    lambda log: log.truncate("a", 1),
    lambda log: log.head("a"),
    lambda log: log.scan("a"),
    lambda log: log.list_keys(),
)
"""One call of every kind."""


class ConsensusUnderFaults:
    """The promises of an adapter whose way to storage the test breaks: every answer is true.

    A compare-and-set that raises Determinate has had no effect, and has none later. One that raises Indeterminate is in
    as a whole or not at all. One that returns None is in; one that names other heads is not, unless the adapter cannot
    know: then it must raise Indeterminate.
    """

    def make(self, tmp_path: Path) -> Consensus:
        """Return a fresh adapter with nothing in it."""
        raise NotImplementedError

    def break_next(self, adapter: Consensus, kind: str) -> bool:
        """Let the next write of an adapter meet one of KINDS below it; return False if that is impossible."""
        raise NotImplementedError

    def save(self, tmp_path: Path) -> Callable[[], None] | None:
        """Copy the files of a closed adapter; return a function that restores them. None if it would not notice."""
        return None

    limit_s = 0.0
    """How long a call may take while storage hangs, in the seconds that `hang` counts."""

    def hang(self, adapter: Consensus) -> contextlib.AbstractContextManager[Callable[[], float]] | None:
        """Let storage answer nothing; give a function for the seconds since then, on a clock that only waiting moves.

        None if nothing can hang.
        """
        return None

    refuses_children = False
    """Whether an adapter refuses calls in a forked child of the process that opened it."""

    def test_a_broken_compare_and_set_is_what_it_says_it_is(self, tmp_path: Path) -> None:
        for number, kind in enumerate(KINDS):
            with self._made(tmp_path, number) as log:
                fill(log, "a", 2)
                if not self.break_next(log, kind):
                    continue
                said = _said(log, [LogWrite("a", 1, b"mine"), LogWrite("b", None, b"mine")])
                there = [log.head("a") == LogEntry(2, b"mine"), log.head("b") == LogEntry(0, b"mine")]
                check(there in ([True, True], [False, False]), f"{kind}: half of it is there")
                check(said == "in doubt" or there[0] == (said == "done"), f"{kind}: said {said}, there {there[0]}")
                check(kind != REPLY_LOST or said in ("done", "in doubt"), f"its own success was reported as {said}")

    def test_a_compare_and_set_sent_again_after_doubt_is_in_once(self, tmp_path: Path) -> None:
        for number, kind in enumerate(KINDS):
            with self._made(tmp_path, number) as log:
                fill(log, "a", 1)
                if not self.break_next(log, kind):
                    continue
                write = LogWrite("a", 0, b"mine")
                if _said(log, [write]) != "done":
                    log.compare_and_set([write])
                check_equal(log.scan("a"), [LogEntry(0, b"0"), LogEntry(1, b"mine")])

    def test_what_did_not_happen_does_not_happen_later(self, tmp_path: Path) -> None:
        for number, kind in enumerate(KINDS):
            with self._made(tmp_path, number) as log:
                fill(log, "a", 1)
                if not self.break_next(log, kind):
                    continue
                if _said(log, [LogWrite("a", 0, b"mine")]) == "not done":
                    check_equal(log.compare_and_set([LogWrite("a", 0, b"other")]), None)
                    check_equal(log.scan("a"), [LogEntry(0, b"0"), LogEntry(1, b"other")])

    def test_a_broken_truncate_keeps_the_log_whole(self, tmp_path: Path) -> None:
        for number, kind in enumerate(KINDS):
            with self._made(tmp_path, number) as log:
                fill(log, "a", 4)
                if not self.break_next(log, kind):
                    continue
                with contextlib.suppress(Determinate, Indeterminate):
                    log.truncate("a", 2)
                seqnos = [entry.seqno for entry in log.scan("a")]
                check(seqnos in ([0, 1, 2, 3], [2, 3]), f"{kind}: {seqnos} are left")
                fill(log, "a", 1)
                check_equal(log.head("a"), LogEntry(4, b"4"))

    def test_a_log_that_goes_back_is_found(self, tmp_path: Path) -> None:
        for added in (1, 3):
            with self._made(tmp_path, added) as log:
                fill(log, "a", 2)
            put_back = self.save(tmp_path / str(added))
            if put_back is None:
                return
            with contextlib.closing(self.make(tmp_path / str(added))) as log:
                fill(log, "a", added)
            put_back()
            for _ in range(2):  # it stays an error
                try:
                    with contextlib.closing(self.make(tmp_path / str(added))) as log:
                        found = log.scan("a")
                except CorruptionError:
                    continue
                check(False, f"{added} entries are lost, and {len(found)} were given as all of them")

    def test_every_call_ends_in_time_though_storage_hangs(self, tmp_path: Path) -> None:
        for number, call in enumerate(CALLS):
            with self._made(tmp_path, number) as log:
                fill(log, "a", 2)
                hanging = self.hang(log)
                if hanging is None:
                    return
                with hanging as passed_s:
                    with contextlib.suppress(Determinate, Indeterminate):
                        call(log)
                    check(passed_s() <= self.limit_s, f"call {number} took {passed_s()} s")
                check(log.head("a") in (LogEntry(1, b"1"), LogEntry(2, b"mine")), "half of it is there")
                call(log)  # once storage answers, so does the adapter

    def test_a_forked_child_is_refused_at_once(self, tmp_path: Path) -> None:
        if not self.refuses_children:
            return
        with self._made(tmp_path, 0) as log:
            fill(log, "a", 2)
            said = _said_by_child(log)
            check_equal(said, b"refused " * len(CALLS))
            check_equal(log.scan("a"), [LogEntry(0, b"0"), LogEntry(1, b"1")])
            fill(log, "a", 1)  # the parent goes on

    def test_some_kind_of_fault_can_happen(self, tmp_path: Path) -> None:
        with self._made(tmp_path, 0) as log:
            fill(log, "a", 1)
            check(any(self.break_next(log, kind) for kind in KINDS), "nothing can be broken: the suite tests nothing")

    def _made(self, tmp_path: Path, number: int) -> contextlib.closing[Consensus]:
        folder = tmp_path / str(number)
        folder.mkdir()
        return contextlib.closing(self.make(folder))


def _said_by_child(log: Consensus) -> bytes:
    """Return the outcomes of calls in a forked child. It closes the adapter too, which must not disturb its parent."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            for call in CALLS:
                try:
                    call(log)
                    said += b"answered "
                except WrongProcess:
                    said += b"refused "
                except Exception as error:
                    said += type(error).__name__.encode() + b" "
            log.close()
        finally:
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def _said(log: Consensus, writes: list[LogWrite]) -> str:
    """Return the outcome that a compare-and-set reports."""
    try:
        return "done" if log.compare_and_set(writes) is None else "lost"
    except Determinate:
        return "not done"
    except Indeterminate:
        return "in doubt"
