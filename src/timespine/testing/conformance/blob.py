"""The contract of the Blob port as tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from timespine.errors import CorruptionError, UsageError
from timespine.location.blob import BLOB_BYTES_MAX, Blob, BlobInfo
from timespine.testing.conformance.checks import BAD_NUMBERS, Conformance, check, check_equal, expect, race, race_until

# fmt: off
BAD_KEYS: tuple[Any, ...] = (
    "", "a", "a/b", "a/b/c/d", "/a/b/c", "a/b/", "a//c", "../b/c", "a/../c", "a/b/..", "./b/c", "a/b/.c", "A/b/c",
    "a/b/c.d", "a/b/c\0", "a/b/c\n", "a\\b/c/d", "a/b/é", "-a/b/c", "a/b/" + "x" * 65, None, 7, b"a/b/c",
)
# fmt: on
"""Values that are no blob keys: wrong shape, wrong letters, too long, not text, ways out of the folder."""

BAD_PREFIXES: tuple[Any, ...] = ("a", "a/b", "a/b/c", "a/b/c/", "/", "//", "../", "a//", "A/", "a/../", None, 7, b"a/")
"""Values that are no blob prefixes."""


class BlobConformance(Conformance[Blob]):
    """The promises of `timespine.location.blob`."""

    def uses(self, adapter: Blob) -> list[Callable[[], object]]:
        return [
            lambda: adapter.put("a/b/c", b""),
            lambda: adapter.get("a/b/c"),
            lambda: adapter.get_range("a/b/c", 0, 0),
            lambda: adapter.delete("a/b/c"),
            lambda: list(adapter.list_keys()),
        ]

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

    def test_get_range_returns_exactly_the_bytes_asked_for(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            values = {"a/b/c": b"12345", "a/b/big": bytes(range(251)) * 20_000}
            for key, value in values.items():
                blob.put(key, value)
                size = len(value)
                for start, stop in ((0, size), (0, 1), (2, 4), (size - 1, size), (0, 0), (3, 3), (size, size)):
                    check_equal(blob.get_range(key, start, stop), value[start:stop])
            check_equal(blob.get_range("a/b/big", 1_000_003, 3_000_001), values["a/b/big"][1_000_003:3_000_001])

    def test_get_range_of_a_missing_key_is_none(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"1")
            for key in ("x/b/c", "a/x/c", "a/b/x"):
                for start, stop in ((0, 0), (0, 1), (7, 1 << 40)):
                    check_equal(blob.get_range(key, start, stop), None)

    def test_get_range_outside_of_the_value_is_corrupt(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"12345")
            blob.put("a/b/empty", b"")
            for key, start, stop in (("c", 0, 6), ("c", 5, 6), ("c", 6, 6), ("c", 9, 12), ("empty", 0, 1)):
                with expect(CorruptionError, (key, start, stop)):
                    blob.get_range(f"a/b/{key}", start, stop)
            with expect(CorruptionError, "far too much"):
                blob.get_range("a/b/c", 0, (1 << 63) - 1)
            check_equal(blob.get_range("a/b/empty", 0, 0), b"")

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
            check(blob.delete("a/b/c") in (False, None), "a missing key was there")
            blob.put("a/b/c", b"1")
            told = [blob.delete("a/b/c"), blob.delete("a/b/c")]
            check(told in ([True, False], [None, None]), f"two deletions answered {told}")
            check_equal([blob.get("a/b/c"), blob.get_range("a/b/c", 0, 1), *blob.list_keys()], [None, None])
            blob.put("a/b/c", b"2")
            check_equal(blob.get("a/b/c"), b"2")

    def test_a_value_larger_than_expected_is_corrupt(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:
            blob.put("a/b/c", b"12345")
            for max_bytes in (5, BLOB_BYTES_MAX, BLOB_BYTES_MAX + 1, (1 << 63) - 1):  # above the limit: the limit
                check_equal(blob.get("a/b/c", max_bytes=max_bytes), b"12345")
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
                for call in (
                    lambda key: blob.put(key, b"x"),
                    blob.get,
                    lambda key: blob.get_range(key, 0, 0),
                    blob.delete,
                ):
                    with expect(UsageError, key):
                        call(key)
            for value in ("text", None, 7, bytearray(b"x")):
                with expect(UsageError, value):
                    blob.put("a/b/d", cast(bytes, value))
            for max_bytes in BAD_NUMBERS:
                with expect(UsageError, max_bytes):
                    blob.get("a/b/c", max_bytes=max_bytes)
            for number in BAD_NUMBERS:
                for start, stop in ((number, 1), (0, number)):
                    with expect(UsageError, (start, stop)):
                        blob.get_range("a/b/c", start, stop)
            with expect(UsageError, "backwards"):
                blob.get_range("a/b/c", 1, 0)
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
        with contextlib.closing(self.make(tmp_path)) as blob:

            def write() -> None:
                for number in range(20):
                    blob.put(f"a/b/{number}", value)

            def read(_: int) -> None:
                for number in range(20):
                    check(blob.get(f"a/b/{number}") in (None, value), f"value {number} is torn")
                    try:
                        end = blob.get_range(f"a/b/{number}", 9, len(value))
                    except CorruptionError:
                        end = b"nothing"
                    check(end in (None, value[9:]), f"the end of value {number} is torn")
                check({info.size for info in blob.list_keys("a/b/")} <= {len(value)}, "a size is torn")

            race_until(1, write, read, threads=4)

    def test_racing_puts_and_deletes_never_fail(self, tmp_path: Path) -> None:
        with contextlib.closing(self.make(tmp_path)) as blob:

            def act(thread: int) -> None:
                for number in range(20):
                    blob.put(f"a/b/{thread}-{number}", b"1")
                    check(blob.delete(f"a/b/{thread}-{number}") is not False, "a value was lost")

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
