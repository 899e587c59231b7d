"""The fault-injecting wrappers do what they are told, and nothing else."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from timespine.errors import Determinate, Indeterminate
from timespine.location.consensus import Consensus, LogEntry, LogWrite
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.testing.conformance import BlobConformance, ConsensusConformance, ConsensusUnderFaults
from timespine.testing.conformance.faults import REFUSED, REPLY_LOST, REQUEST_LOST
from timespine.testing.unreliable import Fault, UnreliableBlob, UnreliableConsensus


def never(operation: str, key: str) -> Fault:
    return Fault.NONE


class TestReliableBlob(BlobConformance):
    def make(self, tmp_path: Path) -> UnreliableBlob:
        return UnreliableBlob(MemoryBlob(), never)


class TestReliableConsensus(ConsensusConformance):
    def make(self, tmp_path: Path) -> UnreliableConsensus:
        return UnreliableConsensus(MemoryConsensus(), never)

    def make_pair(self, tmp_path: Path) -> tuple[UnreliableConsensus, UnreliableConsensus]:
        log = MemoryConsensus()
        return UnreliableConsensus(log, never), UnreliableConsensus(log, never)


class TestUnreliableUnderFaults(ConsensusUnderFaults):
    FAULTS = {
        REQUEST_LOST: Fault.INDETERMINATE_NOT,
        REPLY_LOST: Fault.INDETERMINATE_DONE,
        REFUSED: Fault.DETERMINATE,
    }

    def make(self, tmp_path: Path) -> UnreliableConsensus:
        return UnreliableConsensus(MemoryConsensus(), Script())

    def break_next(self, adapter: Consensus, kind: str) -> bool:
        assert isinstance(adapter, UnreliableConsensus)
        assert isinstance(adapter._decide, Script)
        adapter._decide.faults.append(self.FAULTS[kind])
        return True


class Careless(TestUnreliableUnderFaults):
    """An adapter that goes back, hangs and answers forked children, and promises the contrary."""

    limit_s = 2.0
    refuses_children = True

    def save(self, tmp_path: Path) -> Callable[[], None]:
        return lambda: None

    @contextlib.contextmanager
    def hang(self, adapter: Consensus) -> Iterator[Callable[[], float]]:
        yield lambda: 3.0


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("test_a_log_that_goes_back_is_found", "entries are lost"),
        ("test_every_call_ends_in_time_though_storage_hangs", "took 3.0 s"),
        ("test_a_forked_child_is_refused_at_once", "answered"),
    ],
)
def test_the_suite_notices_an_adapter_that_breaks_what_it_promises(test: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=what):
        getattr(Careless(), test)(tmp_path)


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        (REPLY_LOST, Fault.CONFLICT_DONE),
        (REFUSED, Fault.INDETERMINATE_DONE),
    ],
)
def test_the_suite_notices_an_adapter_that_is_wrong_about_itself(kind: str, lie: Fault, tmp_path: Path) -> None:
    class Wrong(TestUnreliableUnderFaults):
        FAULTS = {**TestUnreliableUnderFaults.FAULTS, kind: lie}

        def make(self, tmp_path: Path) -> UnreliableConsensus:
            log = super().make(tmp_path)
            real = log.compare_and_set

            def compare_and_set(writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
                try:
                    return real(writes)
                except Indeterminate as error:
                    raise Determinate("it is said not to have happened") from error

            if kind == REFUSED:
                log.compare_and_set = compare_and_set  # type: ignore[method-assign]
            return log

    with pytest.raises(AssertionError):
        Wrong().test_a_broken_compare_and_set_is_what_it_says_it_is(tmp_path)


class Script:
    """Faults in the order given, then none; remembers what it was asked."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.asked: list[tuple[str, str]] = []

    def __call__(self, operation: str, key: str) -> Fault:
        self.asked.append((operation, key))
        return self.faults.pop(0) if self.faults else Fault.NONE


OUTCOMES = [
    (Fault.DETERMINATE, Determinate, False),
    (Fault.INDETERMINATE_NOT, Indeterminate, False),
    (Fault.INDETERMINATE_DONE, Indeterminate, True),
    (Fault.LATE, Indeterminate, False),
]


@pytest.mark.parametrize(("fault", "kind", "done"), OUTCOMES)
def test_a_faulty_write_is_done_or_not_as_decided(fault: Fault, kind: type[Exception], done: bool) -> None:
    blob = UnreliableBlob(MemoryBlob(), Script(fault))
    with pytest.raises(kind):
        blob.put("a/b/c", b"1")
    assert (blob.get("a/b/c") == b"1") is done
    log = UnreliableConsensus(MemoryConsensus(), Script(fault))
    with pytest.raises(kind):
        log.compare_and_set([LogWrite("a", None, b"1")])
    assert (log.head("a") == LogEntry(0, b"1")) is done
    assert log.counts == blob.counts == Counter({fault: 1, Fault.NONE: 1})


@pytest.mark.parametrize(("fault", "kind", "done"), OUTCOMES)
def test_a_faulty_read_raises(fault: Fault, kind: type[Exception], done: bool) -> None:
    blob = UnreliableBlob(MemoryBlob(), lambda operation, key: fault)
    log = UnreliableConsensus(MemoryConsensus(), lambda operation, key: fault)
    calls: list[Callable[[], object]] = [lambda: blob.get("a/b/c"), lambda: blob.list_keys()]
    calls += [lambda: blob.get_range("a/b/c", 0, 1)]
    calls += [lambda: log.head("a"), lambda: log.scan("a"), lambda: log.list_keys()]
    for call in calls:
        with pytest.raises(kind):
            call()
    assert blob.release_ghosts() == log.release_ghosts() == 0


def test_a_compare_and_set_that_succeeded_can_be_reported_as_lost_to_itself() -> None:
    log = UnreliableConsensus(MemoryConsensus(), lambda operation, key: Fault.CONFLICT_DONE)
    assert log.compare_and_set([LogWrite("a", None, b"1"), LogWrite("b", None, b"2")]) == {"a": 0, "b": 0}
    assert log.compare_and_set([LogWrite("a", 0, b"3")]) == {"a": 1}
    assert log.compare_and_set([LogWrite("a", 0, b"4")]) == {"a": 1}, "one that is lost is answered as it is"
    assert [log.scan("a"), log.head("b")] == [[LogEntry(0, b"1"), LogEntry(1, b"3")], LogEntry(0, b"2")]
    blob = UnreliableBlob(MemoryBlob(), lambda operation, key: Fault.CONFLICT_DONE)
    blob.put("a/b/c", b"1")
    assert blob.get("a/b/c") == b"1"


def test_slow_calls_pause_before_they_act() -> None:
    inner = MemoryConsensus()
    seen: list[LogEntry | None] = []

    def pause() -> None:
        seen.append(inner.head("a"))
        inner.compare_and_set([LogWrite("a", None, b"other")])

    log = UnreliableConsensus(inner, Script(Fault.SLOW), pause)
    assert log.compare_and_set([LogWrite("a", None, b"mine")]) == {"a": 0}
    assert seen == [None]


def test_a_late_compare_and_set_loses_to_what_came_before_its_release() -> None:
    log = UnreliableConsensus(MemoryConsensus(), Script(Fault.LATE, Fault.LATE))
    writes = [LogWrite("a", None, b"ghost")]
    with pytest.raises(Indeterminate):
        log.compare_and_set(writes)
    with pytest.raises(Indeterminate):
        log.compare_and_set([LogWrite("b", None, b"ghost")])
    writes.clear()
    log.compare_and_set([LogWrite("a", None, b"real")])
    assert log.head("b") is None
    assert log.release_ghosts() == 1
    assert (log.head("a"), log.head("b")) == (LogEntry(0, b"real"), LogEntry(0, b"ghost"))
    assert log.release_ghosts() == 0


def test_late_writes_of_every_kind_are_applied_in_order() -> None:
    blob = UnreliableBlob(MemoryBlob(), Script(Fault.NONE, Fault.NONE, Fault.LATE, Fault.LATE, Fault.LATE, Fault.LATE))
    blob.put("a/b/c", b"1")
    blob.put("a/b/d", b"1")
    for call in (
        lambda: blob.delete("a/b/c"),
        lambda: blob.delete("a/b/c"),
        lambda: blob.put("a/b/c", b"2"),
        lambda: blob.put("a/b/d", b"refused: it exists with other bytes"),
    ):
        with pytest.raises(Indeterminate):
            call()
    assert blob.release_ghosts() == 2
    assert (blob.get("a/b/c"), blob.get("a/b/d")) == (b"2", b"1")
    log = UnreliableConsensus(MemoryConsensus(), Script(Fault.NONE, Fault.NONE, Fault.LATE))
    log.compare_and_set([LogWrite("a", None, b"")])
    log.compare_and_set([LogWrite("a", 0, b"")])
    with pytest.raises(Indeterminate):
        log.truncate("a", 1)
    assert (log.release_ghosts(), len(log.scan("a"))) == (1, 1)


def test_the_decision_sees_the_operation_and_the_key() -> None:
    script = Script()
    blob, log = UnreliableBlob(MemoryBlob(), script), UnreliableConsensus(MemoryConsensus(), script)
    blob.put("a/b/c", b"")
    blob.get("a/b/c")
    blob.get_range("a/b/c", 0, 0)
    blob.delete("a/b/c")
    blob.list_keys("a/")
    log.compare_and_set([LogWrite("x", None, b""), LogWrite("y", None, b"")])
    log.head("x")
    log.scan("x")
    log.truncate("y", 1)
    log.list_keys("z")
    operations = ["put", "get", "get_range", "delete", "list_keys"]
    operations += ["compare_and_set", "head", "scan", "truncate", "list_keys"]
    keys = ["a/b/c", "a/b/c", "a/b/c", "a/b/c", "a/", "x,y", "x", "x", "y", "z"]
    assert script.asked == list(zip(operations, keys, strict=True))
