"""The conformance suites catch adapters that are less than the contracts.

Where a race is what the suite must catch, the broken adapter holds its threads
until they stand where the race is lost: no sleep makes that merely likely.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from timespine.errors import UsageError
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.checks import check_writes
from timespine.location.consensus import ENTRY_BYTES_MAX, LogEntry, LogWrite
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.testing.conformance import BlobConformance, ConsensusConformance
from timespine.testing.conformance.checks import THREADS

PATIENCE_S = 60.0
"""How long a latch holds somebody: longer than any test, so that a mistake here is a failure and no hang."""


class Latch:
    """Holds whoever waits until it was counted down; after that, nobody."""

    def __init__(self, count: int = 1) -> None:
        self._left = count
        self._changed = threading.Condition()

    def count_down(self) -> None:
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._left <= 0, timeout=PATIENCE_S):
                raise TimeoutError("nobody came")


class Overwrites(MemoryBlob):
    def put(self, key: str, value: bytes) -> None:
        self.delete(key)
        super().put(key, value)


class ChecksThenPuts(MemoryBlob):
    """Nobody puts before all have checked."""

    def __init__(self) -> None:
        super().__init__()
        self._all_checked = Latch(THREADS)

    def put(self, key: str, value: bytes) -> None:
        if self.get(key) is None:
            self._all_checked.count_down()
            self._all_checked.wait()
            self._values[key] = value  # and everybody believes that it won
        else:
            super().put(key, value)


class PutsInTwoSteps(MemoryBlob):
    """The second step waits until somebody has seen the first."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = Latch()

    def put(self, key: str, value: bytes) -> None:
        super().put(key, value[:-1])
        self._seen.wait()
        self.delete(key)
        super().put(key, value)

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        value = super().get(key, max_bytes=max_bytes)
        if value is not None:
            self._seen.count_down()
        return value

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        found = list(super().list_keys(prefix))
        if found:
            self._seen.count_down()
        return iter(found)


class RefusesRetries(MemoryBlob):
    def put(self, key: str, value: bytes) -> None:
        if self.get(key) is not None:
            raise UsageError("exists")
        super().put(key, value)


class RemembersTheDeleted(MemoryBlob):
    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[str] = set()

    def delete(self, key: str) -> bool:
        existed = super().delete(key)
        if existed:
            self._deleted.add(key)
        return existed

    def put(self, key: str, value: bytes) -> None:
        if key in self._deleted:
            raise UsageError("deleted")
        super().put(key, value)


class IgnoresMaxBytes(MemoryBlob):
    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        return super().get(key)


class RefusesLargeLimits(MemoryBlob):
    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        if max_bytes > BLOB_BYTES_MAX:
            raise UsageError("too large")
        return super().get(key, max_bytes=max_bytes)


class GivesWhatIsThere(MemoryBlob):
    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        value = self.get(key)
        return value and value[start:stop]


class TakesTheLastByteToo(MemoryBlob):
    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        value = self.get(key)
        return super().get_range(key, start, min(stop + 1, len(value or b"")))


class FailsWithoutTheKey(MemoryBlob):
    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        if self.get(key) is None:
            raise UsageError("nothing there")
        return super().get_range(key, start, stop)


class ListsByFolder(MemoryBlob):
    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        return iter(sorted(super().list_keys(prefix), key=lambda info: info.key.split("/")))


class LosesTheHead(MemoryConsensus):
    def truncate(self, key: str, below: int) -> int:
        dropped = super().truncate(key, below)
        if (log := self._logs.get(key)) is not None and below > log.head:
            del self._logs[key]
        return dropped


class AppendsWhatFits(MemoryConsensus):
    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        lost = super().compare_and_set(writes)
        fitting = [write for write in writes if lost is not None and write.key not in lost]
        if fitting:
            super().compare_and_set(fitting)
        return lost


class AppendsOneByOne(MemoryConsensus):
    """The next key waits until some thread has seen the first one ahead of the other."""

    def __init__(self) -> None:
        super().__init__()
        self._torn_seen = Latch()
        self._mine = threading.local()

    def head(self, key: str) -> LogEntry | None:
        entry = super().head(key)
        seqno = -1 if entry is None else entry.seqno
        if key == "a":
            self._mine.first = seqno
        elif seqno < getattr(self._mine, "first", -1):
            self._torn_seen.count_down()
        return entry

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        for write in check_writes(writes):
            super().compare_and_set([write])
            self._torn_seen.wait()
        return None


class ComparesThenAppends(MemoryConsensus):
    """Nobody appends before all have compared."""

    def __init__(self) -> None:
        super().__init__()
        self._all_compared = Latch(THREADS)

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        write = check_writes(writes)[0]
        if (self.head(write.key) or LogEntry(-1, b"")).seqno == write.seqno - 1:
            self._all_compared.count_down()
            self._all_compared.wait()
            while (lost := super().compare_and_set([write])) is not None:
                write = write._replace(expected=lost[write.key])
            return None
        return super().compare_and_set(writes)


class ScansOneMore(MemoryConsensus):
    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        return super().scan(key, from_seqno, limit + 1 if limit else limit)


class ScansInTwoSteps(MemoryConsensus):
    """One scan is held between its steps, and writers at the fourth entry, until what it was to read next is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._one_scan = threading.Lock()
        self._truncator: int | None = None
        self._held, self._gone = Latch(), Latch()

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        first = super().scan(key, from_seqno, 1)
        if self._truncator not in (None, threading.get_ident()) and self._one_scan.acquire(blocking=False):
            self._held.count_down()
            self._gone.wait()
        return first + super().scan(key, first[-1].seqno + 1)

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        if writes[0].seqno > 3:
            self._gone.wait()
        return super().compare_and_set(writes)

    def truncate(self, key: str, below: int) -> int:
        self._truncator = threading.get_ident()
        self._held.wait()
        dropped = super().truncate(key, below)
        if self._logs[key].first > 1:
            self._gone.count_down()
        return dropped


class BoundsEachEntryAlone(MemoryConsensus):
    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        if sum(len(write.data) for write in writes) > ENTRY_BYTES_MAX:
            return super().compare_and_set(writes[:1]) or super().compare_and_set(writes[1:])
        return super().compare_and_set(writes)


class TakesPatterns(MemoryConsensus):
    def list_keys(self, prefix: str = "") -> list[str]:
        return super().list_keys("" if prefix == "%" else prefix)


@pytest.mark.parametrize(
    ("suite", "broken", "test"),
    [
        (BlobConformance, Overwrites, "test_put_of_other_bytes_is_refused_and_changes_nothing"),
        (BlobConformance, ChecksThenPuts, "test_racing_puts_of_one_key_have_one_winner"),
        (BlobConformance, PutsInTwoSteps, "test_a_reader_sees_the_whole_value_or_none"),
        (BlobConformance, RefusesRetries, "test_put_of_the_same_bytes_again_succeeds"),
        (BlobConformance, IgnoresMaxBytes, "test_a_value_larger_than_expected_is_corrupt"),
        (BlobConformance, RefusesLargeLimits, "test_a_value_larger_than_expected_is_corrupt"),
        (BlobConformance, GivesWhatIsThere, "test_get_range_outside_of_the_value_is_corrupt"),
        (BlobConformance, TakesTheLastByteToo, "test_get_range_returns_exactly_the_bytes_asked_for"),
        (BlobConformance, FailsWithoutTheKey, "test_get_range_of_a_missing_key_is_none"),
        (BlobConformance, RemembersTheDeleted, "test_a_deleted_key_is_free_again"),
        (BlobConformance, ListsByFolder, "test_list_keys_is_in_order_of_the_whole_key"),
        (ConsensusConformance, LosesTheHead, "test_truncate_drops_what_is_below_but_never_the_head"),
        (ConsensusConformance, AppendsWhatFits, "test_several_keys_are_appended_all_or_none"),
        (ConsensusConformance, AppendsOneByOne, "test_several_keys_are_never_seen_torn"),
        (ConsensusConformance, ComparesThenAppends, "test_racing_writers_have_one_winner_per_number"),
        (ConsensusConformance, ScansOneMore, "test_scan_starts_and_stops_where_told"),
        (ConsensusConformance, ScansInTwoSteps, "test_truncating_while_writing_and_scanning_leaves_no_gaps"),
        (ConsensusConformance, BoundsEachEntryAlone, "test_as_many_bytes_as_allowed_and_no_more"),
        (ConsensusConformance, TakesPatterns, "test_list_keys_takes_any_prefix"),
    ],
)
def test_a_broken_adapter_is_caught(suite: Any, broken: Callable[[], object], test: str, tmp_path: Path) -> None:
    tests = suite()
    tests.make = lambda tmp_path: broken()
    with pytest.raises((AssertionError, UsageError)):
        getattr(tests, test)(tmp_path)
