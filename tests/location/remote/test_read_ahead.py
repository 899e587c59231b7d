"""Reads ahead change no answer, keep within their budget, and make requests overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from timespine.errors import CorruptionError, Determinate
from timespine.location.memory import MemoryBlob
from timespine.location.remote.read_ahead import REQUESTS_MAX, BlobRange, ReadAheadBlob
from timespine.testing.conformance import BlobConformance
from timespine.testing.latency import S3, SlowBlob, VirtualClock, VirtualPool
from timespine.testing.unreliable import Fault, UnreliableBlob


class TestReadAheadBlob(BlobConformance):
    def make(self, tmp_path: Path) -> ReadAheadBlob:
        return ReadAheadBlob(MemoryBlob())


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def slow(clock: VirtualClock) -> SlowBlob:
    blob = SlowBlob(clock)
    for number in range(100):
        blob.put(f"c/w/{number}", b"%03d" % number * 100)
    clock.now = 0.0
    blob.calls.clear()
    return blob


def ahead_of(slow: SlowBlob, bytes_max: int = 1 << 20) -> ReadAheadBlob:
    return ReadAheadBlob(slow, VirtualPool(slow.clock, REQUESTS_MAX), bytes_max=bytes_max)


def test_what_is_announced_is_fetched_32_at_a_time_and_each_blob_once(slow: SlowBlob, clock: VirtualClock) -> None:
    blob = ahead_of(slow)
    blob.fetch_ahead(BlobRange(f"c/w/{number}", 0, 300, True) for number in range(64))
    assert clock.now == 0.0
    for number in range(64):
        assert blob.get_range(f"c/w/{number}", 3, 6) == b"%03d" % number
        assert blob.get(f"c/w/{number}") == b"%03d" % number * 100
    assert clock.now == 2 * S3.get
    assert slow.calls == {"get": 64}


def test_what_was_not_announced_is_read_as_ever(slow: SlowBlob, clock: VirtualClock) -> None:
    blob = ahead_of(slow)
    blob.fetch_ahead([BlobRange("c/w/1", 100, 200)])
    assert blob.get_range("c/w/1", 0, 3) == b"001"
    assert blob.get_range("c/w/1", 150, 201)[:1] == b"0"
    assert blob.get("c/w/1")[:3] == b"001"
    assert blob.get_range("c/w/2", 0, 3) == b"002"
    assert (slow.calls["get"], clock.now) == (5, 4 * S3.get)


def test_missing_blobs_and_ranges_beyond_the_end_answer_as_without_it(slow: SlowBlob) -> None:
    blob = ahead_of(slow)
    blob.fetch_ahead([BlobRange("c/w/none", 0, 10), BlobRange("c/w/1", 0, 301)])
    assert blob.get_range("c/w/none", 0, 10) is None
    with pytest.raises(CorruptionError):
        blob.get_range("c/w/1", 0, 301)
    slow.put("c/w/none", b"0123456789")
    assert blob.get_range("c/w/none", 0, 10) == b"0123456789"


def test_a_fetch_that_failed_is_made_again_by_the_read(slow: SlowBlob) -> None:
    faults = [Fault.DETERMINATE, Fault.NONE, Fault.DETERMINATE, Fault.DETERMINATE]
    flaky = UnreliableBlob(slow, lambda operation, key: faults.pop(0))
    blob = ReadAheadBlob(flaky, VirtualPool(slow.clock, 4))
    blob.fetch_ahead([BlobRange("c/w/1", 0, 3)])
    assert blob.get_range("c/w/1", 0, 3) == b"001"
    blob.fetch_ahead([BlobRange("c/w/1", 0, 3)])
    with pytest.raises(Determinate):
        blob.get_range("c/w/1", 0, 3)


def test_a_blob_that_is_deleted_is_gone(slow: SlowBlob) -> None:
    blob = ahead_of(slow)
    blob.fetch_ahead(BlobRange(f"c/w/{number}", 0, 300, True) for number in range(3))
    assert blob.delete("c/w/0") is True
    blob.delete_many(["c/w/1", "c/w/77", "c/w/none"])
    assert [blob.get_range(f"c/w/{number}", 0, 1) for number in (0, 1, 2, 77)] == [None, None, b"0", None]


def test_what_is_kept_stays_within_its_budget_and_what_was_read_goes_first(slow: SlowBlob) -> None:
    blob = ahead_of(slow, bytes_max=900)
    blob.fetch_ahead(BlobRange(f"c/w/{number}", 0, 300) for number in range(5))
    assert slow.calls == {"get": 3}  # the others are more than the budget
    blob.get_range("c/w/1", 0, 300)
    blob.fetch_ahead([BlobRange("c/w/9", 0, 300)])
    assert slow.calls == {"get": 4}
    blob.get_range("c/w/0", 0, 300)
    blob.get_range("c/w/2", 0, 300)
    blob.get_range("c/w/9", 0, 300)
    assert slow.calls == {"get": 4}
    blob.get_range("c/w/1", 0, 300)
    assert slow.calls == {"get": 5}
    blob.fetch_ahead([BlobRange("c/w/8", 0, 901)])
    assert slow.calls == {"get": 5}
    assert blob._bytes <= 900


def test_reads_that_were_given_up_do_not_fill_the_budget_for_ever(slow: SlowBlob) -> None:
    blob = ahead_of(slow, bytes_max=900)
    for number in range(30):
        blob.fetch_ahead([BlobRange(f"c/w/{number}", 0, 300)])
    assert slow.calls == {"get": 30}
    assert blob._bytes == 900
