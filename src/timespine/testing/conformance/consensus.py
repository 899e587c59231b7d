"""The contract of the Consensus port as tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from timespine.errors import UsageError
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, Consensus, LogEntry, LogWrite, read_heads
from timespine.testing.conformance.checks import (
    BAD_NUMBERS,
    THREADS,
    Conformance,
    check,
    check_equal,
    expect,
    race,
    race_until,
)

BAD_LOGS: tuple[Any, ...] = ("", "a/b", "..", "A", "a.b", "a\0", "é", "-a", "x" * 65, None, 7, b"a")
"""Values that are no consensus keys."""


def fill(log: Consensus, key: str, entries: int) -> None:
    """Append this number of entries, whose data are their numbers."""
    for _ in range(entries):
        head = log.head(key)
        write = LogWrite(key, None if head is None else head.seqno, b"")
        check_equal(log.compare_and_set([write._replace(data=b"%d" % write.seqno)]), None)


class ConsensusConformance(Conformance[Consensus]):
    """The promises of `timespine.location.consensus`."""

    def uses(self, adapter: Consensus) -> list[Callable[[], object]]:
        return [
            lambda: adapter.head("a"),
            lambda: adapter.scan("a"),
            lambda: adapter.compare_and_set([LogWrite("a", None, b"")]),
            lambda: adapter.truncate("a", 1),
            lambda: adapter.list_keys(),
        ]

    def test_a_key_never_written_has_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            check_equal([log.head("a"), log.scan("a"), log.truncate("a", 5), log.list_keys()], [None, [], 0, []])

    def test_entries_are_dense_from_zero(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            for number in range(5):
                fill(log, "a", 1)
                check_equal(log.head("a"), LogEntry(number, b"%d" % number))
            check_equal(log.scan("a"), [LogEntry(number, b"%d" % number) for number in range(5)])

    def test_any_bytes_come_back(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            for number, data in enumerate((b"", b"\0", bytes(range(256)) * 40, b"x" * (3 << 20))):
                check_equal(log.compare_and_set([LogWrite("a", number - 1 if number else None, data)]), None)
                check(log.head("a") == LogEntry(number, data), f"entry {number} came back changed")

    def test_a_wrong_expectation_appends_nothing_and_names_the_head(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            check_equal(log.compare_and_set([LogWrite("a", 0, b"x")]), {"a": None})
            fill(log, "a", 3)
            for expected in (None, 0, 1, 3, 100, (1 << 63) - 2):
                check_equal(log.compare_and_set([LogWrite("a", expected, b"x")]), {"a": 2})
            check_equal(log.scan("a"), [LogEntry(number, b"%d" % number) for number in range(3)])

    def test_several_keys_are_appended_all_or_none(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 2)
            fill(log, "b", 1)
            wrong = [
                LogWrite("a", 1, b"x"),
                LogWrite("b", None, b"x"),
                LogWrite("c", 4, b"x"),
                LogWrite("d", None, b"x"),
            ]
            check_equal(log.compare_and_set(wrong), {"b": 0, "c": None})
            check_equal([len(log.scan(key)) for key in "abcd"], [2, 1, 0, 0])
            right = [
                LogWrite("a", 1, b"x"),
                LogWrite("b", 0, b"y"),
                LogWrite("c", None, b"z"),
                LogWrite("d", None, b""),
            ]
            check_equal(log.compare_and_set(right), None)
            wanted = [LogEntry(2, b"x"), LogEntry(1, b"y"), LogEntry(0, b"z"), LogEntry(0, b"")]
            check_equal([log.head(key) for key in "abcd"], wanted)

    def test_as_many_keys_as_allowed_and_no_more(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            writes = [LogWrite(f"k{number:05}", None, b"x") for number in range(WRITES_MAX + 1)]
            with expect(UsageError, "too many"):
                log.compare_and_set(writes)
            check_equal(log.list_keys(), [])
            check_equal(log.compare_and_set(writes[:-1]), None)
            check_equal(log.list_keys(), [write.key for write in writes[:-1]])

    def test_as_many_bytes_as_allowed_and_no_more(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            large = LogWrite("a", None, bytes(ENTRY_BYTES_MAX - 3))
            with expect(UsageError, "too many bytes"):
                log.compare_and_set([large, LogWrite("b", None, b"1234")])
            check_equal(log.list_keys(), [])
            check_equal(log.compare_and_set([large, LogWrite("b", None, b"123"), LogWrite("c", None, b"")]), None)
            check(log.head("a") == LogEntry(0, large.data), "the large entry came back changed")
            check_equal(log.list_keys(), ["a", "b", "c"])

    def test_bad_writes_are_refused_and_change_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 1)
            good = LogWrite("b", None, b"x")
            bad: list[Any] = [[], None, 7, [None], [("b", None, b"x")], [good, good], [good, LogWrite("b", 0, b"y")]]
            bad += [[good, LogWrite(key, None, b"x")] for key in BAD_LOGS]
            bad += [[good, LogWrite("a", expected, b"x")] for expected in (*BAD_NUMBERS, (1 << 63) - 1)]
            bad += [[good, LogWrite("a", 0, data)] for data in cast(list[bytes], [None, "x", 7, bytearray(b"x")])]
            bad += [[LogWrite("a", 0, bytes(ENTRY_BYTES_MAX + 1))]]
            for writes in bad:
                with expect(UsageError, writes):
                    log.compare_and_set(writes)
            check_equal([log.list_keys(), log.scan("a")], [["a"], [LogEntry(0, b"0")]])

    def test_bad_arguments_are_refused_and_change_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 3)
            for key in BAD_LOGS:
                for call in (log.head, log.scan, lambda key: log.truncate(key, 1)):
                    with expect(UsageError, key):
                        call(key)
            for number in BAD_NUMBERS:
                calls: list[Callable[[Any], object]] = [
                    lambda number: log.truncate("a", number),
                    lambda number: log.scan("a", number),
                    lambda number: log.scan("a", 0, number),
                ]
                for refused in calls:
                    with expect(UsageError, number):
                        refused(number)
            for prefix in cast(list[str], [None, 7, b"a"]):
                with expect(UsageError, prefix):
                    log.list_keys(prefix)
            check_equal(len(log.scan("a")), 3)

    def test_scan_starts_and_stops_where_told(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 6)
            log.truncate("a", 2)
            live = [2, 3, 4, 5]
            for start in range(8):
                for limit in (None, 0, 1, 3, 100):
                    wanted = [seqno for seqno in live if seqno >= start][:limit]
                    check_equal([entry.seqno for entry in log.scan("a", start, limit)], wanted)

    def test_truncate_drops_what_is_below_but_never_the_head(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 5)
            fill(log, "b", 5)
            check_equal([log.truncate("a", below) for below in (0, 2, 2, 1, 4)], [0, 2, 0, 0, 2])
            check_equal([log.truncate("b", (1 << 63) - 1), log.truncate("b", 9)], [4, 0])
            check_equal([log.scan("a"), log.head("b")], [[LogEntry(4, b"4")], LogEntry(4, b"4")])

    def test_what_was_truncated_cannot_be_written_again(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 5)
            log.truncate("a", 4)
            for expected in (None, 0, 1, 2, 3):
                check_equal(log.compare_and_set([LogWrite("a", expected, b"ghost")]), {"a": 4})
            fill(log, "a", 1)
            check_equal(log.scan("a"), [LogEntry(4, b"4"), LogEntry(5, b"5")])

    def test_heads_of_many_keys_are_those_of_each(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 3)
            fill(log, "b", 1)
            log.truncate("a", 2)
            check_equal(dict(read_heads(log, ["a", "b", "c"])), {"a": 2, "b": 0, "c": None})
            check_equal(dict(read_heads(log, [])), {})

    def test_list_keys_takes_any_prefix(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            keys = sorted(["a", "ab", "a-b", "a_b", "b", "z" * 64])
            for key in reversed(keys):
                fill(log, key, 3)
            for prefix in ("", "a", "ab", "a-", "a_", "%", "_", "*", "c", "z" * 65, "A", "é", "\0", "\x7f", "\udc80"):
                check_equal(log.list_keys(prefix), [key for key in keys if key.startswith(prefix)])

    def test_racing_writers_have_one_winner_per_number(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            won: dict[int, bytes] = {}
            rounds = self.scaled(15)

            def act(thread: int) -> None:
                for _ in range(rounds):
                    head = log.head("a")
                    write = LogWrite("a", None if head is None else head.seqno, b"%d" % thread)
                    while (lost := log.compare_and_set([write])) is not None:
                        check(lost["a"] != write.expected, "lost against the head it expected")
                        write = write._replace(expected=lost["a"])
                    check(won.setdefault(write.seqno, write.data) is write.data, f"two winners at {write.seqno}")

            race(act)
            check_equal(log.scan("a"), [LogEntry(number, won[number]) for number in range(THREADS * rounds)])

    def test_racing_instances_have_one_winner_per_number_and_see_each_other(self, tmp_path: Path) -> None:
        pair = self.make_pair(tmp_path)
        if pair is None:
            return
        with contextlib.closing(pair[0]), contextlib.closing(pair[1]):
            won: dict[int, bytes] = {}
            rounds = self.scaled(15)

            def act(thread: int) -> None:
                log, other = pair[thread % 2], pair[1 - thread % 2]
                for number in range(rounds):
                    data = b"%d-%d" % (thread, number)
                    head = log.head("a")
                    expected = None if head is None else head.seqno
                    while True:
                        both = [LogWrite("a", expected, data), LogWrite("b", expected, data)]
                        lost = log.compare_and_set(both)
                        if lost is None:
                            break
                        expected = lost["a"]
                    seqno = both[0].seqno
                    check(won.setdefault(seqno, data) is data, f"two winners at {seqno}")
                    seen = other.scan("b", seqno, 1)
                    check(seen == [LogEntry(seqno, data)], f"the other instance has {seen} at {seqno}")

            race(act)
            for log in pair:
                for key in "ab":
                    check_equal(log.scan(key), [LogEntry(number, won[number]) for number in range(THREADS * rounds)])

    def test_several_keys_are_never_seen_torn(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:

            def seqno(key: str) -> int:
                entry = log.head(key)
                return -1 if entry is None else entry.seqno

            def write() -> None:
                for _ in range(self.scaled(40)):
                    head = seqno("a")
                    expected = None if head < 0 else head
                    log.compare_and_set([LogWrite("a", expected, b"a"), LogWrite("b", expected, b"b")])

            def read(_: int) -> None:
                for first, second in ("ab", "ba"):
                    before = seqno(first)
                    check(seqno(second) >= before, f"{second} lags behind {first}")

            race_until(3, write, read)
            check_equal(seqno("a"), seqno("b"))

    def test_truncating_while_writing_and_scanning_leaves_no_gaps(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 1)

            def newest() -> int:
                seen = [entry.seqno for entry in log.scan("a")]
                check(seen and seen == list(range(seen[0], seen[-1] + 1)), f"gaps: {seen}")
                return seen[-1]

            def write() -> None:
                for _ in range(self.scaled(40)):
                    log.compare_and_set([LogWrite("a", newest(), b"x")])

            def read(thread: int) -> None:
                seqno = newest()
                if thread == THREADS - 1:
                    log.truncate("a", seqno)

            race_until(3, write, read)

    def test_the_reserve_changes_no_log(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 2)
            log.release_reserve()
            check_equal(log.release_reserve(), False)  # it is free: there is no more
            fill(log, "a", 1)
            log.restore_reserve()
            log.restore_reserve()
            check_equal([entry.seqno for entry in log.scan("a")], [0, 1, 2])

    def test_what_was_written_survives_reopening(self, tmp_path: Path) -> None:
        first = self.make(tmp_path)
        fill(first, "a", 3)
        first.truncate("a", 1)
        second = self.reopen(tmp_path)
        if second is None:
            return first.close()
        check_equal(second.head("a"), LogEntry(2, b"2"))  # while the first is open
        fill(second, "a", 1)
        check_equal(first.head("a"), LogEntry(3, b"3"))
        check_equal(first.compare_and_set([LogWrite("a", 2, b"x")]), {"a": 3})
        first.close()
        second.close()
        with contextlib.closing(cast(Consensus, self.reopen(tmp_path))) as third:
            check_equal([third.list_keys(), [entry.seqno for entry in third.scan("a")]], [["a"], [1, 2, 3]])
        return None
