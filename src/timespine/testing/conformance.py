"""The contracts of the two ports as tests that any adapter can run.

    class TestMyBlob(BlobConformance):
        def make(self, tmp_path):
            return MyBlob(tmp_path)

        def reopen(self, tmp_path):       # only if it is durable
            return MyBlob(tmp_path)

Under pytest that is all. Nothing of pytest is imported here, and nothing is an
`assert` statement, so the suites work in any runner and under `python -O`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from timespine.errors import CorruptionError, UsageError
from timespine.location.blob import BLOB_BYTES_MAX, Blob, BlobInfo
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, Consensus, Entry, Write

THREADS = 8
"""How many threads race."""

# fmt: off
BAD_KEYS: tuple[Any, ...] = (
    "", "a", "a/b", "a/b/c/d", "/a/b/c", "a/b/", "a//c", "../b/c", "a/../c", "a/b/..", "./b/c", "a/b/.c", "A/b/c",
    "a/b/c.d", "a/b/c\0", "a/b/c\n", "a\\b/c/d", "a/b/é", "-a/b/c", "a/b/" + "x" * 65, None, 7, b"a/b/c",
)
# fmt: on
"""What is no blob key: wrong shape, wrong letters, too long, not text, ways out of the folder."""

BAD_PREFIXES: tuple[Any, ...] = ("a", "a/b", "a/b/c", "a/b/c/", "/", "//", "../", "a//", "A/", "a/../", None, 7, b"a/")
"""What is no blob prefix."""

BAD_LOGS: tuple[Any, ...] = ("", "a/b", "..", "A", "a.b", "a\0", "é", "-a", "x" * 65, None, 7, b"a")
"""What is no consensus key."""

BAD_NUMBERS: tuple[Any, ...] = (-1, 1 << 63, 1.5, "1", True)
"""What is no sequence number, number of bytes or limit."""


def check(condition: object, message: str) -> None:
    """An assertion that `python -O` does not remove."""
    if not condition:
        raise AssertionError(message)


def check_equal(actual: object, wanted: object) -> None:
    """An assertion about a value, with both values in its message."""
    check(actual == wanted, f"got {actual!r:.400}, wanted {wanted!r:.400}")


@contextlib.contextmanager
def expect(kind: type[Exception], what: object = "") -> Iterator[None]:
    """The block must raise `kind`."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}: {what!r:.200}")


def race(action: Callable[[int], None], threads: int = THREADS) -> None:
    """Run action(0), action(1), ... at once, and fail if one of them does."""
    barrier = threading.Barrier(threads)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            action(number)
        except BaseException as failure:
            failures.append(failure)

    started = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # or threads that never wait would run one after the other
    try:
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


class BlobConformance:
    """Everything that `timespine.location.blob` promises."""

    def make(self, tmp_path: Path) -> Blob:
        """A fresh adapter with nothing in it."""
        raise NotImplementedError

    def reopen(self, tmp_path: Path) -> Blob | None:
        """Another adapter for what `make(tmp_path)` wrote to; None if it keeps nothing."""
        return None

    def test_get_returns_what_was_put(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            values = {"a/b/c": b"value", "a/b/empty": b"", "a/b/big": bytes(range(256)) * 20_000}
            for key, value in values.items():
                blob.put(key, value)
            check_equal({key: blob.get(key) for key in values}, values)

    def test_get_of_a_missing_key_is_none(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"1")
            for key in ("x/b/c", "a/x/c", "a/b/x"):
                check_equal(blob.get(key), None)

    def test_put_of_the_same_bytes_again_succeeds(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            for _ in range(3):
                blob.put("a/b/c", b"same")
            check_equal(list(blob.list_keys()), [BlobInfo("a/b/c", 4)])

    def test_put_of_other_bytes_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"first")
            for other in (b"other", b"", b"firs", b"first!", b"x" * 100_000):
                with expect(UsageError, other):
                    blob.put("a/b/c", other)
            check_equal(blob.get("a/b/c"), b"first")

    def test_a_deleted_key_is_free_again(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            check_equal(blob.delete("a/b/c"), False)
            blob.put("a/b/c", b"1")
            check_equal([blob.delete("a/b/c"), blob.delete("a/b/c")], [True, False])
            check_equal([blob.get("a/b/c"), *blob.list_keys()], [None])
            blob.put("a/b/c", b"2")
            check_equal(blob.get("a/b/c"), b"2")

    def test_a_value_larger_than_expected_is_corrupt(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"12345")
            check_equal(blob.get("a/b/c", max_bytes=5), b"12345")
            for max_bytes in (4, 0):
                with expect(CorruptionError, max_bytes):
                    blob.get("a/b/c", max_bytes=max_bytes)
            check_equal(blob.get("a/b/x", max_bytes=0), None)

    def test_a_value_that_no_adapter_may_hold_is_refused(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            with expect(UsageError, "too large"):
                blob.put("a/b/c", bytes(BLOB_BYTES_MAX + 1))  # zeroed lazily: costs no memory
            check_equal(list(blob.list_keys()), [])

    def test_bad_arguments_are_refused_and_change_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"1")
            for key in BAD_KEYS:
                for call in (lambda key: blob.put(key, b"x"), blob.get, blob.delete):
                    with expect(UsageError, key):
                        call(key)
            for value in ("text", None, 7, bytearray(b"x")):
                with expect(UsageError, value):
                    blob.put("a/b/d", cast(bytes, value))
            for max_bytes in BAD_NUMBERS:
                with expect(UsageError, max_bytes):
                    blob.get("a/b/c", max_bytes=max_bytes)
            for prefix in BAD_PREFIXES:
                with expect(UsageError, prefix):
                    list(blob.list_keys(prefix))
            check_equal(list(blob.list_keys()), [BlobInfo("a/b/c", 1)])

    def test_list_keys_takes_whole_segments(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            check_equal(list(blob.list_keys()), [])
            keys = ["a/b/c", "a/b/d", "a/bb/c", "aa/b/c"]
            for key in keys:
                blob.put(key, key.encode())
            for prefix in ("", "a/", "a/b/", "aa/", "b/", "a/c/"):
                wanted = [BlobInfo(key, len(key)) for key in keys if key.startswith(prefix)]
                check_equal(list(blob.list_keys(prefix)), wanted)

    def test_list_keys_is_in_order_of_the_whole_key(self, tmp_path: Path) -> None:
        keys = [f"{a}/{b}/{c}" for a in ("a", "a-b", "a0", "a_") for b in ("w", "w-", "w1") for c in ("z", "z-1", "0")]
        with contextlib.closing(self.make(tmp_path)) as blob:
            for key in reversed(keys):
                blob.put(key, b"")
            check_equal([info.key for info in blob.list_keys()], sorted(keys))

    def test_list_keys_survives_what_comes_and_goes(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            kept = [f"a/w{number}/kept" for number in range(6)]
            for key in kept:
                blob.put(key, b"1")
                blob.put(key.replace("kept", "gone"), b"2")
            listed = []
            for info in blob.list_keys():
                listed.append(info.key)
                for number in range(6):
                    blob.delete(f"a/w{number}/gone")
                blob.put(f"a/w{len(listed)}/new", b"3")
            check(set(kept) <= set(listed), f"not listed: {sorted(set(kept) - set(listed))}")
            check_equal(len(listed), len(set(listed)))

    def test_racing_puts_of_one_key_have_one_winner(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            for number in range(5):
                key = f"a/b/{number}"
                winners: list[bytes] = []

                def put(thread: int, key: str = key, winners: list[bytes] = winners) -> None:
                    value = b"%d" % thread * 5_000
                    with contextlib.suppress(UsageError):
                        blob.put(key, value)
                        winners.append(value)

                race(put)
                check_equal([blob.get(key)], winners)

    def test_a_reader_sees_the_whole_value_or_none(self, tmp_path: Path) -> None:
        value = bytes(range(256)) * 400
        done = threading.Event()
        with contextlib.closing(self.make(tmp_path)) as blob:

            def write() -> None:
                try:
                    for number in range(20):
                        blob.put(f"a/b/{number}", value)
                finally:
                    done.set()

            def read() -> None:
                while not done.is_set():
                    for number in range(20):
                        check(blob.get(f"a/b/{number}") in (None, value), f"value {number} is torn")
                    check({info.size for info in blob.list_keys("a/b/")} <= {len(value)}, "a size is torn")

            race(lambda thread: read() if thread else write(), threads=4)

    def test_racing_puts_and_deletes_never_fail(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:

            def act(thread: int) -> None:
                for number in range(20):
                    blob.put(f"a/b/{thread}-{number}", b"1")
                    check(blob.delete(f"a/b/{thread}-{number}"), "a value was lost")

            race(act)
            check_equal(list(blob.list_keys()), [])

    def test_what_was_put_survives_reopening(self, tmp_path: Path) -> None:
        first = self.make(tmp_path)
        first.put("a/b/c", b"1")
        second = self.reopen(tmp_path)
        if second is None:
            return first.close()
        check_equal(second.get("a/b/c"), b"1")  # while the first is open
        second.put("a/b/d", b"2")
        check_equal(first.get("a/b/d"), b"2")
        first.close()
        second.close()
        with contextlib.closing(cast(Blob, self.reopen(tmp_path))) as third:
            check_equal(list(third.list_keys()), [BlobInfo("a/b/c", 1), BlobInfo("a/b/d", 1)])
        return None

    def test_close_twice_is_fine_and_use_after_it_is_refused(self, tmp_path: Path) -> None:
        blob = self.make(tmp_path)
        blob.close()
        blob.close()
        uses: list[Callable[[], object]] = [
            lambda: blob.put("a/b/c", b""),
            lambda: blob.get("a/b/c"),
            lambda: blob.delete("a/b/c"),
            lambda: list(blob.list_keys()),
        ]
        for use in uses:
            with expect(UsageError, "closed"):
                use()


class ConsensusConformance:
    """Everything that `timespine.location.consensus` promises."""

    def make(self, tmp_path: Path) -> Consensus:
        """A fresh adapter with nothing in it."""
        raise NotImplementedError

    def reopen(self, tmp_path: Path) -> Consensus | None:
        """Another adapter for what `make(tmp_path)` wrote to; None if it keeps nothing."""
        return None

    def test_a_key_never_written_has_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            check_equal([log.head("a"), log.scan("a"), log.truncate("a", 5), log.list_keys()], [None, [], 0, []])

    def test_entries_are_dense_from_zero(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            for number in range(5):
                fill(log, "a", 1)
                check_equal(log.head("a"), Entry(number, b"%d" % number))
            check_equal(log.scan("a"), [Entry(number, b"%d" % number) for number in range(5)])

    def test_any_bytes_come_back(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            for number, data in enumerate((b"", b"\0", bytes(range(256)) * 40, b"x" * (3 << 20))):
                check_equal(log.compare_and_set([Write("a", number - 1 if number else None, data)]), None)
                check(log.head("a") == Entry(number, data), f"entry {number} came back changed")

    def test_a_wrong_expectation_appends_nothing_and_names_the_head(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            check_equal(log.compare_and_set([Write("a", 0, b"x")]), {"a": None})
            fill(log, "a", 3)
            for expected in (None, 0, 1, 3, 100, (1 << 63) - 2):
                check_equal(log.compare_and_set([Write("a", expected, b"x")]), {"a": 2})
            check_equal(log.scan("a"), [Entry(number, b"%d" % number) for number in range(3)])

    def test_several_keys_are_appended_all_or_none(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 2)
            fill(log, "b", 1)
            wrong = [Write("a", 1, b"x"), Write("b", None, b"x"), Write("c", 4, b"x"), Write("d", None, b"x")]
            check_equal(log.compare_and_set(wrong), {"b": 0, "c": None})
            check_equal([len(log.scan(key)) for key in "abcd"], [2, 1, 0, 0])
            right = [Write("a", 1, b"x"), Write("b", 0, b"y"), Write("c", None, b"z"), Write("d", None, b"")]
            check_equal(log.compare_and_set(right), None)
            wanted = [Entry(2, b"x"), Entry(1, b"y"), Entry(0, b"z"), Entry(0, b"")]
            check_equal([log.head(key) for key in "abcd"], wanted)

    def test_as_many_keys_as_allowed_and_no_more(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            writes = [Write(f"k{number:05}", None, b"x") for number in range(WRITES_MAX + 1)]
            with expect(UsageError, "too many"):
                log.compare_and_set(writes)
            check_equal(log.list_keys(), [])
            check_equal(log.compare_and_set(writes[:-1]), None)
            check_equal(log.list_keys(), [write.key for write in writes[:-1]])

    def test_bad_writes_are_refused_and_change_nothing(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 1)
            good = Write("b", None, b"x")
            bad: list[Any] = [[], None, 7, [None], [("b", None, b"x")], [good, good], [good, Write("b", 0, b"y")]]
            bad += [[good, Write(key, None, b"x")] for key in BAD_LOGS]
            bad += [[good, Write("a", expected, b"x")] for expected in (*BAD_NUMBERS, (1 << 63) - 1)]
            bad += [[good, Write("a", 0, data)] for data in cast(list[bytes], [None, "x", 7, bytearray(b"x")])]
            bad += [[good, Write("a", 0, bytes(ENTRY_BYTES_MAX + 1))]]
            for writes in bad:
                with expect(UsageError, writes):
                    log.compare_and_set(writes)
            check_equal([log.list_keys(), log.scan("a")], [["a"], [Entry(0, b"0")]])

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
            check_equal([log.scan("a"), log.head("b")], [[Entry(4, b"4")], Entry(4, b"4")])

    def test_what_was_truncated_cannot_be_written_again(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 5)
            log.truncate("a", 4)
            for expected in (None, 0, 1, 2, 3):
                check_equal(log.compare_and_set([Write("a", expected, b"ghost")]), {"a": 4})
            fill(log, "a", 1)
            check_equal(log.scan("a"), [Entry(4, b"4"), Entry(5, b"5")])

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

            def act(thread: int) -> None:
                for _ in range(15):
                    head = log.head("a")
                    expected = None if head is None else head.seqno
                    data = b"%d" % thread
                    while (lost := log.compare_and_set([Write("a", expected, data)])) is not None:
                        check(lost["a"] != expected, "lost against the head it expected")
                        expected = lost["a"]
                    number = 0 if expected is None else expected + 1
                    check(won.setdefault(number, data) is data, f"two winners at {number}")

            race(act)
            check_equal(log.scan("a"), [Entry(number, won[number]) for number in range(THREADS * 15)])

    def test_several_keys_are_never_seen_torn(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:

            def seqno(key: str) -> int:
                entry = log.head(key)
                return -1 if entry is None else entry.seqno

            def act(thread: int) -> None:
                for _ in range(40):
                    if thread < 3:
                        head = seqno("a")
                        expected = None if head < 0 else head
                        log.compare_and_set([Write("a", expected, b"a"), Write("b", expected, b"b")])
                        continue
                    for first, second in ("ab", "ba"):
                        before = seqno(first)
                        check(seqno(second) >= before, f"{second} lags behind {first}")

            race(act)
            check_equal(seqno("a"), seqno("b"))

    def test_truncating_while_writing_and_scanning_leaves_no_gaps(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as log:
            fill(log, "a", 1)

            def act(thread: int) -> None:
                for _ in range(40):
                    seen = [entry.seqno for entry in log.scan("a")]
                    check(seen and seen == list(range(seen[0], seen[-1] + 1)), f"gaps: {seen}")
                    if thread == 0:
                        log.truncate("a", seen[-1])
                    elif thread < 4:
                        log.compare_and_set([Write("a", seen[-1], b"x")])

            race(act)

    def test_what_was_written_survives_reopening(self, tmp_path: Path) -> None:
        first = self.make(tmp_path)
        fill(first, "a", 3)
        first.truncate("a", 1)
        second = self.reopen(tmp_path)
        if second is None:
            return first.close()
        check_equal(second.head("a"), Entry(2, b"2"))  # while the first is open
        fill(second, "a", 1)
        check_equal(first.head("a"), Entry(3, b"3"))
        check_equal(first.compare_and_set([Write("a", 2, b"x")]), {"a": 3})
        first.close()
        second.close()
        with contextlib.closing(cast(Consensus, self.reopen(tmp_path))) as third:
            check_equal([third.list_keys(), [entry.seqno for entry in third.scan("a")]], [["a"], [1, 2, 3]])
        return None

    def test_close_twice_is_fine_and_use_after_it_is_refused(self, tmp_path: Path) -> None:
        log = self.make(tmp_path)
        log.close()
        log.close()
        uses: list[Callable[[], object]] = [
            lambda: log.head("a"),
            lambda: log.scan("a"),
            lambda: log.compare_and_set([Write("a", None, b"")]),
            lambda: log.truncate("a", 1),
            lambda: log.list_keys(),
        ]
        for use in uses:
            with expect(UsageError, "closed"):
                use()


def fill(log: Consensus, key: str, entries: int) -> None:
    """Append so many entries whose data are their numbers."""
    for _ in range(entries):
        head = log.head(key)
        expected = None if head is None else head.seqno
        check_equal(
            log.compare_and_set([Write(key, expected, b"%d" % (0 if expected is None else expected + 1))]), None
        )
