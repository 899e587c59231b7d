"""Consensus on a bucket alone: the contract, broken requests, threads that share a slot, and counts of calls."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from assertions import until
from broken_objects import LIE, REQUEST_S, RETRIED, BrokenObjects

from timespine.errors import Contention, CorruptionError, Determinate, Indeterminate, ReadOnlyStore
from timespine.location.bucket import commit as commit_module
from timespine.location.bucket.consensus import WAIT_S, BucketConsensus
from timespine.location.bucket.formats import BASE_NAME, LOG_PREFIX, PACK_PREFIX, slot_name
from timespine.location.bucket.replica import CheckpointLimits
from timespine.location.consensus import LogEntry, LogWrite
from timespine.testing.conformance import ConsensusConformance, ConsensusUnderFaults
from timespine.testing.conformance.consensus import fill
from timespine.testing.conformance.faults import KINDS, REFUSED, REPLY_LOST, REQUEST_LOST

FEW = CheckpointLimits(slots=5, pack_bytes_small=64, pack_bytes_max=300)
"""Many checkpoints, and many packs."""

BUCKETS: dict[Path, BrokenObjects] = {}


def opened(folder: Path, limits: CheckpointLimits = FEW) -> BucketConsensus:
    return BucketConsensus(BUCKETS.setdefault(folder, BrokenObjects()), limits=limits, sleep=lambda s: None)


class TestBucketConsensus(ConsensusConformance):
    limits = FEW

    def make(self, tmp_path: Path) -> BucketConsensus:
        return opened(tmp_path, self.limits)

    reopen = make

    def make_pair(self, tmp_path: Path) -> tuple[BucketConsensus, BucketConsensus]:
        return self.make(tmp_path), self.make(tmp_path)


class TestBucketConsensusWithFewCheckpoints(TestBucketConsensus):
    limits = CheckpointLimits()


class TestBucketUnderFaults(ConsensusUnderFaults):
    refuses_children = True
    limit_s = WAIT_S + REQUEST_S

    def make(self, tmp_path: Path) -> BucketConsensus:
        objects = BUCKETS.setdefault(tmp_path, BrokenObjects())

        def sleep(seconds: float) -> None:
            if objects.hanging_s is not None:
                objects.hanging_s += seconds

        return BucketConsensus(objects, limits=FEW, clock=lambda: objects.hanging_s or 0.0, sleep=sleep)

    def break_next(self, adapter: BucketConsensus, kind: str) -> bool:
        adapter._objects.next_write = [kind]
        return True

    @contextlib.contextmanager
    def hang(self, adapter: BucketConsensus) -> Iterator[Callable[[], float]]:
        objects = adapter._objects
        objects.hanging_s = 0.0
        try:
            yield lambda: objects.hanging_s
        finally:
            objects.hanging_s = None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BucketConsensus]:
    with contextlib.closing(opened(tmp_path, CheckpointLimits())) as adapter:
        yield adapter


@pytest.fixture
def objects(tmp_path: Path, log: BucketConsensus) -> BrokenObjects:
    return BUCKETS[tmp_path]


# What a library below us may report.


@pytest.mark.parametrize("fault", [RETRIED, LIE, REPLY_LOST, REQUEST_LOST, REFUSED])
def test_a_commit_is_in_once_whatever_is_reported_of_its_put(
    log: BucketConsensus, objects: BrokenObjects, fault: str
) -> None:
    fill(log, "a", 2)
    for times in range(1, 4):
        objects.next_write = [fault] * times
        assert log.compare_and_set([LogWrite("a", times, b"mine")]) is None
    assert [entry.seqno for entry in log.scan("a")] == [0, 1, 2, 3, 4]


def test_a_put_that_is_refused_again_and_again_did_not_happen(log: BucketConsensus, objects: BrokenObjects) -> None:
    objects.next_write = [REFUSED] * 20
    with pytest.raises(Determinate, match="was not put"):
        log.compare_and_set([LogWrite("a", None, b"")])
    objects.next_write = []
    assert log.head("a") is None


def test_a_put_that_is_refused_after_one_without_an_answer_may_have_happened(
    log: BucketConsensus, objects: BrokenObjects
) -> None:
    objects.next_write = [REQUEST_LOST] + [REFUSED] * 20
    with pytest.raises(Indeterminate, match="may have been put"):
        log.compare_and_set([LogWrite("a", None, b"")])


def test_a_checkpoint_that_fails_in_any_way_costs_nothing(tmp_path: Path) -> None:
    for fault in (*KINDS, LIE, RETRIED):
        log = opened(tmp_path / fault)
        fill(log, "a", 4)
        for puts in range(1, 6):  # packs, index, base
            BUCKETS[tmp_path / fault].next_write = [""] * puts + [fault] * 7
            log._checkpoint_slot = 0
            head = log.head("a")
            with contextlib.suppress(Indeterminate, Determinate):
                fill(log, "a", 1)
            BUCKETS[tmp_path / fault].next_write = []
            assert log.head("a").seqno - head.seqno in (0, 1)
        with contextlib.closing(opened(tmp_path / fault)) as other:
            assert other.scan("a") == log.scan("a")
        log.close()


# Threads.


def test_compare_and_sets_that_wait_go_into_one_slot(log: BucketConsensus, objects: BrokenObjects) -> None:
    fill(log, "a", 1)
    said: dict[str, object] = {}

    def write(key: str) -> None:
        expected = 5 if key == "d" else None
        said[key] = log.compare_and_set([LogWrite(key, expected, key.encode())])

    threads = [threading.Thread(target=write, args=(key,)) for key in "bcd"]
    with log._lock:
        for thread in threads:
            thread.start()
        until(lambda: len(log._waiting) == 3)
        before = len(objects.list_names(LOG_PREFIX))
    for thread in threads:
        thread.join(60)
    assert said == {"b": None, "c": None, "d": {"d": None}}
    assert len(objects.list_names(LOG_PREFIX)) == before + 1
    assert log.list_keys() == ["a", "b", "c"]


def test_readers_that_wait_share_a_look_that_began_after_their_call(
    log: BucketConsensus, objects: BrokenObjects
) -> None:
    fill(log, "a", 1)
    threads = [threading.Thread(target=log.scan, args=("a",)) for _ in range(6)]
    with log._lock:
        for thread in threads:
            thread.start()
        until(lambda: len(log._lock._queue) == 7)
        objects.calls.clear()
    for thread in threads:
        thread.join(60)
    assert objects.calls == {"get_many": 1, "get in one go": 1, "get": 1}


@pytest.mark.parametrize(("is_taken", "error"), [(False, Determinate), (True, Indeterminate)])
def test_a_request_is_in_doubt_once_another_thread_has_taken_it(
    log: BucketConsensus, is_taken: bool, error: type[Exception]
) -> None:
    release = threading.Event()

    def hold() -> None:
        with log._lock:
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    until(lambda: log._lock._queue)
    log._lock._limit_s = 0.0
    if is_taken:
        log._waiting = _TakenAtOnce()
    with pytest.raises(error, match="busy"):
        log.compare_and_set([LogWrite("a", None, b"")])
    assert list(log._waiting) == []
    release.set()
    thread.join(60)


class _TakenAtOnce(deque):
    """A queue out of which another thread takes every request."""

    def append(self, request: object) -> None:
        return None


# Other processes.


def test_what_others_wrote_is_read_from_packs_and_from_slots(tmp_path: Path) -> None:
    log, other = opened(tmp_path), opened(tmp_path)
    fill(log, "a", 23)
    log.truncate("a", 3)
    fill(log, "b", 2)
    assert other.scan("a", 5, 7) == [LogEntry(seqno, b"%d" % seqno) for seqno in range(5, 12)]
    assert [entry.seqno for entry in other.scan("a")] == list(range(3, 23))
    assert other.heads(["a", "b", "c"]) == {"a": 22, "b": 1, "c": None}
    assert BUCKETS[tmp_path].list_names(PACK_PREFIX)


def test_processes_that_are_behind_begin_with_the_newest_index(tmp_path: Path) -> None:
    behind, log = opened(tmp_path), opened(tmp_path)
    fill(behind, "a", 1)
    fill(log, "a", 40)
    assert behind.compare_and_set([LogWrite("a", 0, b"old")]) == {"a": 40}
    assert behind.compare_and_set([LogWrite("a", 40, b"new")]) is None
    assert log.head("a") == LogEntry(41, b"new")
    slots = BUCKETS[tmp_path].list_names(LOG_PREFIX)
    assert len(slots) <= 2 * FEW.slots + 1


def test_a_process_holds_no_more_than_two_checkpoints_in_memory(tmp_path: Path) -> None:
    idle, log = opened(tmp_path), opened(tmp_path)
    for _ in range(12):
        fill(log, "a", 5)
        idle.head("a")
        for each in (idle, log):
            assert len(each._replica.logs.tail) <= 2 * FEW.slots
    assert idle.scan("a") == log.scan("a")


def test_a_sweep_removes_what_a_crashed_checkpoint_left(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, "a", 12)
    objects = BUCKETS[tmp_path]
    before = set(objects.objects)
    slot = f"{log._replica.base.slot:016d}"
    left = [f"pack/{slot}-00-0", f"index/{slot}-00-0", slot_name(1)]
    for name in left:
        objects.put_if_absent(name, b"left")
    objects.put_if_absent("pack/README", b"another's")
    assert log.sweep() == 3
    assert set(objects.objects) == before | {"pack/README"}
    assert len(log.scan("a")) == 12


def test_a_process_that_is_always_second_gives_up(
    log: BucketConsensus, objects: BrokenObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, "a", 1)
    other = BucketConsensus(objects)
    real = objects.put_if_absent

    def second(name: str, data: bytes) -> bool:
        monkeypatch.setattr(objects, "put_if_absent", real)
        fill(other, "b", 1)
        monkeypatch.setattr(objects, "put_if_absent", second)
        return real(name, data)

    monkeypatch.setattr(commit_module, "SLOTS_MAX", 7)
    monkeypatch.setattr(objects, "put_if_absent", second)
    with pytest.raises(Contention, match="first in 7 slots"):
        log.compare_and_set([LogWrite("a", 0, b"x")])
    monkeypatch.setattr(objects, "put_if_absent", real)
    assert log.head("a") == LogEntry(0, b"0")


# Counts.


def test_a_commit_is_one_put_and_one_look_and_a_read_two_looks(log: BucketConsensus, objects: BrokenObjects) -> None:
    fill(log, "a", 1)
    objects.calls.clear()
    assert log.compare_and_set([LogWrite("a", 0, b"x"), LogWrite("b", None, b"x")]) is None
    assert objects.calls == {"put": 1, "get": 1}
    objects.calls.clear()
    log.heads(["a", "b", "c"])
    assert objects.calls == {"get_many": 1, "get in one go": 1, "get": 1}


def test_opening_a_bucket_in_use_reads_slots_many_at_once(log: BucketConsensus, objects: BrokenObjects) -> None:
    fill(log, "a", 100)
    objects.calls.clear()
    other = BucketConsensus(objects)
    assert len(other.scan("a")) == 100
    assert objects.calls["get_many"] == 4  # of 8 + 32 + 32 + 32 slots, the last of which are missing
    assert objects.calls["put"] == 0


# Damage, and what is no store.


def test_a_bucket_for_reading_only_is_left_as_it_is() -> None:
    objects = BrokenObjects()
    log = BucketConsensus(objects, read_only=True)
    assert (log.list_keys(), log.head("a")) == ([], None)
    with pytest.raises(ReadOnlyStore):
        log.compare_and_set([LogWrite("a", None, b"")])
    with pytest.raises(ReadOnlyStore):
        log.sweep()
    assert objects.objects == {}


def test_a_base_that_is_gone_or_went_back_is_found(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, "a", 6)
    objects = BUCKETS[tmp_path]
    old = objects.objects[BASE_NAME]
    fill(log, "a", 12)
    new = objects.objects.pop(BASE_NAME)
    with pytest.raises(CorruptionError, match="base is gone"):
        log.head("a")
    with pytest.raises(CorruptionError, match="base is missing although the log has slots"):
        opened(tmp_path)
    objects.objects[BASE_NAME] = old
    with pytest.raises(CorruptionError, match="went back"):
        log.head("a")
    objects.objects[BASE_NAME] = new
    assert len(log.scan("a")) == 18


def test_a_slot_that_is_missing_before_another_is_found(log: BucketConsensus, objects: BrokenObjects) -> None:
    fill(log, "a", 5)
    objects.delete([slot_name(2)])
    with pytest.raises(CorruptionError, match="slot 2 of the log is missing"):
        BucketConsensus(objects).head("a")


def test_damage_that_a_checkpoint_finds_refuses_the_next_commit_and_not_the_last(tmp_path: Path) -> None:
    log = opened(tmp_path, CheckpointLimits(slots=5))
    fill(log, "a", 9)
    objects = BUCKETS[tmp_path]
    (name,) = objects.list_names(PACK_PREFIX)
    objects.objects[name] = objects.objects[name]._replace(data=b"damaged")
    assert log.compare_and_set([LogWrite("a", 8, b"x")]) is None
    with pytest.raises(CorruptionError, match=r"where .* should be"):
        log.compare_and_set([LogWrite("a", 9, b"x")])
    assert log.head("a") == LogEntry(9, b"x")
