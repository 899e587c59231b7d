"""The memory adapters are the contracts, nothing more; and the suites catch adapters that are less."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from timespine.errors import UsageError
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.consensus import Entry, Write
from timespine.location.memory import MemoryBlob, MemoryConsensus, check_writes
from timespine.testing.conformance import BlobConformance, ConsensusConformance


class TestMemoryBlob(BlobConformance):
    def make(self, tmp_path: Path) -> MemoryBlob:
        return MemoryBlob()


class TestMemoryConsensus(ConsensusConformance):
    def make(self, tmp_path: Path) -> MemoryConsensus:
        return MemoryConsensus()


class Overwrites(MemoryBlob):
    def put(self, key: str, value: bytes) -> None:
        self.delete(key)
        super().put(key, value)


class ChecksThenPuts(MemoryBlob):
    def put(self, key: str, value: bytes) -> None:
        if self.get(key) is None:
            time.sleep(1e-4)
            self._values.pop(key, None)
        super().put(key, value)


class PutsInTwoSteps(MemoryBlob):
    def put(self, key: str, value: bytes) -> None:
        if self.get(key) is None:
            super().put(key, value[:-1])
            time.sleep(1e-4)
            self.delete(key)
        super().put(key, value)


class RefusesRetries(MemoryBlob):
    def put(self, key: str, value: bytes) -> None:
        if self.get(key) is not None:
            raise UsageError("exists")
        super().put(key, value)


class IgnoresMaxBytes(MemoryBlob):
    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        return super().get(key)


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
    def compare_and_set(self, writes: Sequence[Write]) -> Mapping[str, int | None] | None:
        lost = super().compare_and_set(writes)
        fitting = [write for write in writes if lost is not None and write.key not in lost]
        if fitting:
            super().compare_and_set(fitting)
        return lost


class AppendsOneByOne(MemoryConsensus):
    def compare_and_set(self, writes: Sequence[Write]) -> Mapping[str, int | None] | None:
        for write in check_writes(writes):
            super().compare_and_set([write])
            time.sleep(1e-4)
        return None


class ComparesThenAppends(MemoryConsensus):
    def compare_and_set(self, writes: Sequence[Write]) -> Mapping[str, int | None] | None:
        write = check_writes(writes)[0]
        if (self.head(write.key) or Entry(-1, b"")).seqno == (-1 if write.expected is None else write.expected):
            time.sleep(1e-4)
            while (lost := super().compare_and_set([write])) is not None:
                write = write._replace(expected=lost[write.key])
            return None
        return super().compare_and_set(writes)


class ScansOneMore(MemoryConsensus):
    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[Entry]:
        return super().scan(key, from_seqno, limit + 1 if limit else limit)


class ScansInTwoSteps(MemoryConsensus):
    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[Entry]:
        first = super().scan(key, from_seqno, 1 if limit is None else limit)
        time.sleep(1e-4)
        return first + super().scan(key, first[-1].seqno + 1) if first and limit is None else first


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
        (BlobConformance, ListsByFolder, "test_list_keys_is_in_order_of_the_whole_key"),
        (ConsensusConformance, LosesTheHead, "test_truncate_drops_what_is_below_but_never_the_head"),
        (ConsensusConformance, AppendsWhatFits, "test_several_keys_are_appended_all_or_none"),
        (ConsensusConformance, AppendsOneByOne, "test_several_keys_are_never_seen_torn"),
        (ConsensusConformance, ComparesThenAppends, "test_racing_writers_have_one_winner_per_number"),
        (ConsensusConformance, ScansOneMore, "test_scan_starts_and_stops_where_told"),
        (ConsensusConformance, ScansInTwoSteps, "test_truncating_while_writing_and_scanning_leaves_no_gaps"),
        (ConsensusConformance, TakesPatterns, "test_list_keys_takes_any_prefix"),
    ],
)
def test_a_broken_adapter_is_caught(suite: Any, broken: Callable[[], object], test: str, tmp_path: Path) -> None:
    tests = suite()
    tests.make = lambda tmp_path: broken()
    with pytest.raises((AssertionError, UsageError)):
        getattr(tests, test)(tmp_path)
