"""Step through keys in order, through the values of a key in order, and through the times of a value in order.

A cursor sums over batches. It hides a value whose diffs add up to zero at every time, and a key without values. It
works by windows (`window`), so that a step costs about a microsecond however many batches there are. `fetch` and `scan`
are a hundred times as fast per row: use them for many rows.

Keys and values are dictionaries: a key has the arranged columns, a value has the others. A call may seek the first
columns only. Forwards, it finds the first key or value that begins with them, and backwards the last.

A cursor begins at the first key. Keys go forwards until `fast_forward_keys`, and backwards until `rewind_keys`. Calls
of the other direction are UsageErrors, and change nothing. Values have a direction of their own, which is forwards
again at every new key. A cursor keeps the batches that it was made of, so what it reads never changes.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from timespine.arrangement.read.key_window import WINDOW_ROWS, WINDOW_ROWS_MAX, KeyTest, KeyWindow, WindowSource
from timespine.columnar.kernels.comparable_words import Key
from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.schema.schema import shown_names
from timespine.errors import UsageError
from timespine.model.time import Time, check_time, less_equal

ValueTest = Callable[[dict[str, Any]], bool]


class CursorPosition(NamedTuple):
    """How far a cursor is."""

    offset: int
    """Updates of the keys before it, in all batches."""
    total: int
    """Updates of all keys, in all batches."""


class _Keys(Enum):
    """How a cursor moves over keys."""

    FORWARDS = "keys go forwards: call fast_forward_keys to go backwards"
    BACKWARDS = "keys go backwards: call rewind_keys to go forwards"
    EXACT = "this cursor looks for exact keys: call rewind_keys before other moves"


class Cursor:
    """A place among the keys, values and times of some batches. Not for several threads at once: `copy` it."""

    def __init__(self, windows: WindowSource) -> None:
        self._windows = windows
        self._layout = windows.layout
        self._key = self._value = 0
        self._keys = _Keys.FORWARDS
        self._vals_forwards = True
        self._rows = WINDOW_ROWS
        """Updates of the window."""
        self._first_window: KeyWindow | None = None
        self._sought: Key | None = None
        """The last key of an exact seek."""
        self._is_moved = False
        self.rewind_keys()

    def copy(self) -> Cursor:
        """Return a cursor at the same place that moves by itself. It shares the batches and the window."""
        return copy.copy(self)

    # Where it is.

    @property
    def key_valid(self) -> bool:
        """Return whether it is at a key, and not before the first or after the last."""
        return 0 <= self._key < self._window.keys

    @property
    def val_valid(self) -> bool:
        """Return whether it is at a value of a key, and not before the first or after the last."""
        if not self.key_valid:
            return False
        start, stop = self._values
        return start <= self._value < stop

    def key(self) -> dict[str, Any]:
        """Return the key that it is at. UsageError if it is at none."""
        self._check_key()
        return self._window.key(self._key)

    def val(self) -> dict[str, Any]:
        """Return the value that it is at: the columns that rows are not arranged by. UsageError if it is at none."""
        self._check_val()
        return self._window.value(self._value)

    def position(self) -> CursorPosition:
        """Return how far it is. Updates that cancel count, so this is for showing progress."""
        total = self._windows.rows
        if self.key_valid:
            return CursorPosition(self._windows.rows_before(self._window.search_key(self._key), inclusive=False), total)
        if self._keys is _Keys.EXACT and self._sought is not None:
            return CursorPosition(self._windows.rows_before(self._sought, inclusive=False), total)
        return CursorPosition(0 if self._keys is _Keys.BACKWARDS else total, total)

    # Times and weights.

    def map_times(self, logic: Callable[[Time, int], object]) -> None:
        """Call a function with every time of the value in order, and with the diff at it, which is not zero.

        A cursor of a view has one time, that of the view. UsageError if the cursor is at no value.
        """
        self._check_val()
        for time, diff in self._window.times(self._value):
            logic(time, diff)

    def map_times_through(self, upper: Time, logic: Callable[[Time, int], object]) -> None:
        """Call a function as `map_times` does, but only with times not after one, in the partial order of times."""
        bound = check_time(upper, self._layout.schema.arity)
        self._check_val()
        for time, diff in self._window.times(self._value):
            if less_equal(time, bound):
                logic(time, diff)

    def weight(self) -> int:
        """Return the sum of the diffs of the value over all its times. UsageError if the cursor is at no value.

        For a cursor of a view this is the count of the row. With several times it may be zero.
        """
        self._check_val()
        return self._window.weight(self._value)

    def weight_checked(self) -> int:
        """Return the weight; UsageError if values of this cursor may have several times."""
        if self._windows.as_of is None:
            raise UsageError("values of this cursor have times of their own: use `map_times`, or a cursor of a view")
        return self.weight()

    def map_values(self, logic: Callable[[dict[str, Any], int], object]) -> None:
        """Call a function with every value from this one on, in the direction of values, and with its weight.

        The cursor is then after the last value, or before the first. UsageError if it is at no key, and for cursors
        that `weight_checked` refuses.
        """
        self._check_key()
        while self.val_valid:
            logic(self.val(), self.weight_checked())
            self._value += 1 if self._vals_forwards else -1

    # Keys forwards.

    def step_key(self) -> None:
        """Go to the next key and its first value. After the last key the cursor is at none, and stays so."""
        self._must_be(_Keys.FORWARDS)
        self._is_moved = True
        if self.key_valid:
            self._go_to(self._key + 1)
            if not self.key_valid:
                self._next_window()

    def seek_key(self, key: Mapping[str, Any]) -> None:
        """Go to the first key not before one. Does nothing if the cursor is there already, or further."""
        self._must_be(_Keys.FORWARDS)
        wanted = self._key_of(key)
        self._is_moved = True
        if not self.key_valid or self._window.key_encoded(self._key) >= wanted.encoded:
            return
        place = bisect_left(range(self._window.keys), wanted.encoded, self._key, key=self._window.key_encoded)
        if place < self._window.keys:
            self._go_to(place)
        elif self._window.edge is None:
            self._end()
        else:
            self._forwards_from(wanted)

    def seek_key_with(self, test: KeyTest) -> None:
        """Go to the first key from here on that passes a test, which all later keys must pass too.

        Does nothing if the key that the cursor is at passes it.
        """
        self._must_be(_Keys.FORWARDS)
        self._is_moved = True
        if not self.key_valid:
            return
        place = bisect_left(
            range(self._window.keys), True, self._key, key=lambda number: bool(test(self._window.key(number)))
        )
        if place < self._window.keys:
            if place != self._key:
                self._go_to(place)
            return
        first = None if self._window.edge is None else self._windows.first_with(test)
        if first is None:
            self._end()
        else:
            self._forwards_from(first)

    def seek_key_exact(self, key: Mapping[str, Any]) -> bool:
        """Go to a key if it is there, and return whether it is. Bounds and filters of batches are asked first.

        All arranged columns must be given. Keys must ascend from call to call, and other moves over keys need
        `rewind_keys` before: everything else is a UsageError. After False the cursor is at no key.
        """
        if self._keys is _Keys.BACKWARDS or (self._keys is _Keys.FORWARDS and self._is_moved):
            raise UsageError("this cursor has moved over keys: call rewind_keys before it looks for exact ones")
        wanted = self._key_of(key)
        if len(key) < len(self._layout.by):
            raise UsageError(f"an exact key has all of the columns {shown_names(self._layout.by)}")
        if self._sought is not None and wanted.encoded < self._sought.encoded:
            raise UsageError("exact keys must ascend: call rewind_keys before a smaller one")
        is_there = self._sought is not None and wanted.encoded == self._sought.encoded
        self._keys, self._sought = _Keys.EXACT, wanted
        if not is_there:
            self._window = self._windows.of_key(wanted)
        self._go_to(0)
        return self.key_valid

    def rewind_keys(self) -> None:
        """Go to the first key and its first value. Keys go forwards from now on."""
        self._keys, self._sought, self._is_moved, self._rows = _Keys.FORWARDS, None, False, WINDOW_ROWS
        if self._first_window is None:
            self._window = self._windows.after(None, self._rows, inclusive=True)
            self._settle_forwards()
            self._first_window = self._window
        self._window = self._first_window
        self._go_to(0)

    # Keys backwards.

    def step_key_reverse(self) -> None:
        """Go to the key before and its first value. Before the first key the cursor is at none, and stays so."""
        self._must_be(_Keys.BACKWARDS)
        if self.key_valid:
            self._go_to(self._key - 1)
            if not self.key_valid:
                self._window_before()

    def seek_key_reverse(self, key: Mapping[str, Any]) -> None:
        """Go to the last key not after one. Does nothing if the cursor is there already, or further."""
        self._must_be(_Keys.BACKWARDS)
        wanted = self._key_of(key)
        length = len(wanted.encoded)

        def beginning(number: int) -> bytes:
            return self._window.key_encoded(number)[:length]

        if not self.key_valid or beginning(self._key) <= wanted.encoded:
            return
        place = bisect_right(range(self._key), wanted.encoded, key=beginning)
        if place:
            self._go_to(place - 1)
        elif self._window.edge is None:
            self._end()
        else:
            self._backwards_from(wanted)

    def seek_key_with_reverse(self, test: KeyTest) -> None:
        """Go to the last key up to here that passes a test, which all earlier keys must pass too.

        Does nothing if the key that the cursor is at passes it.
        """
        self._must_be(_Keys.BACKWARDS)
        if not self.key_valid:
            return
        passed = bisect_left(range(self._key + 1), True, key=lambda number: not test(self._window.key(number)))
        if passed:
            if passed - 1 != self._key:
                self._go_to(passed - 1)
            return
        last = None if self._window.edge is None else self._windows.last_with(test)
        if last is None:
            self._end()
        else:
            self._backwards_from(last)

    def fast_forward_keys(self) -> None:
        """Go to the last key and its first value. Keys go backwards from now on."""
        self._keys, self._sought, self._is_moved, self._rows = _Keys.BACKWARDS, None, True, WINDOW_ROWS
        self._window = self._windows.before(None, self._rows, inclusive=True)
        self._settle_backwards()

    # Values.

    def step_val(self) -> None:
        """Go to the next value of the key. After the last one the cursor is at no value, and stays so."""
        self._values_must_go(forwards=True)
        if self.val_valid:
            self._value += 1

    def seek_val(self, val: Mapping[str, Any]) -> None:
        """Go to the first value of the key not before one. Does nothing if the cursor is there already, or further."""
        self._values_must_go(forwards=True)
        wanted, (_, stop) = self._value_of(val), self._values
        if self.val_valid:
            self._value = bisect_left(range(stop), wanted, self._value, key=self._window.value_encoded)

    def seek_val_with(self, test: ValueTest) -> None:
        """Go to the first value of the key from here on that passes a test, which all later values must pass too."""
        self._values_must_go(forwards=True)
        if self.val_valid:
            stop = self._values[1]
            self._value = bisect_left(range(stop), True, self._value, key=lambda n: bool(test(self._window.value(n))))

    def rewind_vals(self) -> None:
        """Go to the first value of the key. Values go forwards from now on."""
        self._check_key()
        self._value, self._vals_forwards = self._values[0], True

    def step_val_reverse(self) -> None:
        """Go to the value before. Before the first one the cursor is at no value, and stays so."""
        self._values_must_go(forwards=False)
        if self.val_valid:
            self._value -= 1

    def seek_val_reverse(self, val: Mapping[str, Any]) -> None:
        """Go to the last value of the key not after one. Does nothing if the cursor is there already, or further."""
        self._values_must_go(forwards=False)
        wanted, (start, _) = self._value_of(val), self._values
        length = len(wanted)
        if self.val_valid:
            values = range(self._value + 1)
            self._value = bisect_right(values, wanted, start, key=lambda n: self._window.value_encoded(n)[:length]) - 1

    def seek_val_with_reverse(self, test: ValueTest) -> None:
        """Go to the last value of the key up to here that passes a test, which all earlier values must pass too."""
        self._values_must_go(forwards=False)
        if self.val_valid:
            values, start = range(self._value + 1), self._values[0]
            self._value = bisect_left(values, True, start, key=lambda n: not test(self._window.value(n))) - 1

    def fast_forward_vals(self) -> None:
        """Go to the last value of the key. Values go backwards from now on."""
        self._check_key()
        self._value, self._vals_forwards = self._values[1] - 1, False

    # Windows.

    @property
    def _values(self) -> tuple[int, int]:
        """The numbers of the values of the key in the window."""
        starts = self._window.key_values
        return int(starts[self._key]), int(starts[self._key + 1])

    def _go_to(self, key: int) -> None:
        """Stand at a key of the window, and at its first value."""
        self._key, self._vals_forwards = key, True
        self._value = int(self._window.key_values[key]) if 0 <= key < self._window.keys else 0

    def _end(self) -> None:
        """Stand after the last key, or before the first."""
        self._go_to(self._window.keys if self._keys is _Keys.FORWARDS else -1)

    def _next_window(self) -> None:
        """Take the next window that is not empty, twice as large as this one."""
        self._rows = min(2 * self._rows, WINDOW_ROWS_MAX)
        if self._window.edge is not None:
            self._window = self._windows.after(self._window.edge, self._rows, inclusive=False)
            self._settle_forwards()

    def _forwards_from(self, key: Key) -> None:
        """Take the window that begins at a key."""
        self._rows = WINDOW_ROWS
        self._window = self._windows.after(key, self._rows, inclusive=True)
        self._settle_forwards()

    def _settle_forwards(self) -> None:
        """Stand at the first key of the window, or of the first one after it that is not empty."""
        while not self._window.keys and self._window.edge is not None:
            self._rows = min(2 * self._rows, WINDOW_ROWS_MAX)
            self._window = self._windows.after(self._window.edge, self._rows, inclusive=False)
        self._go_to(0)

    def _window_before(self) -> None:
        """Take the window before that is not empty, twice as large as this one."""
        self._rows = min(2 * self._rows, WINDOW_ROWS_MAX)
        if self._window.edge is not None:
            self._window = self._windows.before(self._window.edge, self._rows, inclusive=False)
            self._settle_backwards()

    def _backwards_from(self, key: Key) -> None:
        """Take the window that ends with a key."""
        self._rows = WINDOW_ROWS
        self._window = self._windows.before(key, self._rows, inclusive=True)
        self._settle_backwards()

    def _settle_backwards(self) -> None:
        """Stand at the last key of the window, or of the first one before it that is not empty."""
        while not self._window.keys and self._window.edge is not None:
            self._rows = min(2 * self._rows, WINDOW_ROWS_MAX)
            self._window = self._windows.before(self._window.edge, self._rows, inclusive=False)
        self._go_to(self._window.keys - 1)

    # What is given.

    def _key_of(self, key: Mapping[str, Any]) -> Key:
        names = _leading(key, self._layout.by, 1, "a key")
        return Key.of([key[name] for name in names], self._layout.by_types[: len(names)])

    def _value_of(self, val: Mapping[str, Any]) -> bytes:
        self._check_key()
        types: Mapping[str, pa.DataType] = self._layout.schema.types
        names = _leading(val, self._layout.value_names, 0, "a value")
        return b"".join(encode_scalar(val[name], types[name]) for name in names)

    def _must_be(self, direction: _Keys) -> None:
        if self._keys is not direction:
            raise UsageError(self._keys.value)

    def _values_must_go(self, *, forwards: bool) -> None:
        self._check_key()
        if self._vals_forwards is not forwards:
            there, other = ("forwards", "fast_forward_vals") if not forwards else ("backwards", "rewind_vals")
            raise UsageError(f"values go {there}: call {other} to go the other way")

    def _check_key(self) -> None:
        if not self.key_valid:
            raise UsageError("this cursor is at no key: ask `key_valid` before")

    def _check_val(self) -> None:
        if not self.val_valid:
            raise UsageError("this cursor is at no value: ask `val_valid` before")

    def go_between(self, lower: Key | None, upper: Key | None, *, reverse: bool) -> None:
        """Go to the first key from one on, or in reverse to the last before the other."""
        if reverse:
            self.fast_forward_keys()
            if upper is not None:
                self._window = self._windows.before(upper, self._rows, inclusive=False)
                self._settle_backwards()
        elif lower is not None:
            self._is_moved = True
            self._forwards_from(lower)

    def is_between(self, lower: Key | None, upper: Key | None) -> bool:
        """Return whether it is at a key from one on and before the other."""
        if not self.key_valid:
            return False
        encoded = self._window.key_encoded(self._key)
        return not (lower is not None and encoded < lower.encoded) and not (
            upper is not None and encoded >= upper.encoded
        )


def items(
    cursor: Cursor, lower: Key | None, upper: Key | None, *, reverse: bool
) -> Iterator[tuple[dict[str, Any], list[tuple[dict[str, Any], int]]]]:
    """Give the keys from one to before another, each with its values and their weights."""
    cursor.go_between(lower, upper, reverse=reverse)
    while cursor.is_between(lower, upper):
        values: list[tuple[dict[str, Any], int]] = []
        cursor.map_values(partial(_append, values))
        yield cursor.key(), values
        if reverse:
            cursor.step_key_reverse()
        else:
            cursor.step_key()


def _append(found: list[tuple[dict[str, Any], int]], value: dict[str, Any], weight: int) -> None:
    found.append((value, weight))


def _leading(given: Iterable[str], names: Sequence[str], least: int, what: str) -> Sequence[str]:
    """Return the columns that are given, if these are the first of some."""
    chosen = list(given)
    leading = names[: len(chosen)]
    if not least <= len(chosen) <= len(names) or set(chosen) != set(leading):
        raise UsageError(f"{what} has the columns {shown_names(names)} or the first of them, not {shown_names(chosen)}")
    return leading
