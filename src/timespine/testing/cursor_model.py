"""A cursor in plain Python, to compare the real one with: lists, and walks over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from timespine.model.time import Time, less_equal
from timespine.testing.spine_model import ComparableRow, SpineModel

TimedDiffs = list[tuple[Time, int]]


class CursorModel:
    """The contract of `arrangement.read.cursor`, on rows of the model. Wrong calls answer False, and change nothing."""

    def __init__(self, keys: Sequence[tuple[ComparableRow, list[tuple[ComparableRow, TimedDiffs]]]]) -> None:
        self.keys = list(keys)
        """Keys in order, with their values in order, with their times in order."""
        self.forwards = self.vals_forwards = True
        self.exact: ComparableRow | None = None
        """The last key of an exact seek."""
        self.is_moved = False
        self.at, self.value = 0, 0
        """The place of the key, and of the value in it."""

    def copy(self) -> CursorModel:
        """Return a cursor of its own at the same place."""
        other = CursorModel(self.keys)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def key_valid(self) -> bool:
        """Return whether it is at a key."""
        return 0 <= self.at < len(self.keys)

    @property
    def val_valid(self) -> bool:
        """Return whether it is at a value."""
        return self.key_valid and 0 <= self.value < len(self.values)

    @property
    def values(self) -> list[tuple[ComparableRow, TimedDiffs]]:
        """Return the values of the key."""
        return self.keys[self.at][1]

    def times(self, upper: Time | None = None) -> TimedDiffs:
        """Return the times of the value, those not after a bound."""
        return [(time, diff) for time, diff in self.values[self.value][1] if upper is None or less_equal(time, upper)]

    # Keys.

    def move_key(self, passes: Callable[[ComparableRow], bool], *, forwards: bool) -> bool:
        """Go to the first key from here on that passes, in a direction."""
        if self.forwards is not forwards or self.exact is not None:
            return False
        self.is_moved = True
        step, at = (1 if forwards else -1), self.at
        while 0 <= at < len(self.keys) and not passes(self.keys[at][0]):
            at += step
        if at != self.at:
            self._stand(at)
        return True

    def step_key(self, *, forwards: bool) -> bool:
        """Go one key on."""
        if self.forwards is not forwards or self.exact is not None:
            return False
        self.is_moved = True
        if self.key_valid:
            self._stand(self.at + (1 if forwards else -1))
        return True

    def seek_key_exact(self, key: ComparableRow) -> bool | None:
        """Go to a key; None if the call is wrong."""
        if not self.forwards or (self.exact is None and self.is_moved) or (self.exact is not None and key < self.exact):
            return None
        self.exact = key
        self._stand(next((at for at, (each, _) in enumerate(self.keys) if each == key), -1))
        return self.key_valid

    def go_to_end(self, *, forwards: bool) -> None:
        """Rewind, or fast-forward."""
        self.forwards, self.exact, self.is_moved = forwards, None, not forwards
        self._stand(0 if forwards else len(self.keys) - 1)

    def _stand(self, at: int) -> None:
        self.at, self.value, self.vals_forwards = at, 0, True

    # Values.

    def move_val(self, passes: Callable[[ComparableRow], bool], *, forwards: bool) -> bool:
        """Go to the first value from here on that passes, in a direction."""
        if not self.key_valid or self.vals_forwards is not forwards:
            return False
        while self.val_valid and not passes(self.values[self.value][0]):
            self.value += 1 if forwards else -1
        return True

    def step_val(self, *, forwards: bool) -> bool:
        """Go one value on."""
        if not self.key_valid or self.vals_forwards is not forwards:
            return False
        if self.val_valid:
            self.value += 1 if forwards else -1
        return True

    def go_to_end_of_vals(self, *, forwards: bool) -> bool:
        """Rewind values, or fast-forward them."""
        if not self.key_valid:
            return False
        self.value, self.vals_forwards = (0 if forwards else len(self.values) - 1), forwards
        return True


def model_cursor(model: SpineModel, as_of: Time | None) -> CursorModel:
    """Return a cursor over all updates of a model, or over its rows as of a time."""
    if as_of is not None:
        found = [(row, [(as_of, count)]) for row, count in model.as_of(as_of)]
    else:
        by_row: dict[ComparableRow, TimedDiffs] = {}
        for (row, time), diff in model.updates.items():
            by_row.setdefault(row, []).append((time, diff))
        found = sorted((row, sorted(times)) for row, times in by_row.items())
    keys: list[tuple[ComparableRow, list[tuple[ComparableRow, TimedDiffs]]]] = []
    for row, times in found:
        key, value = row[: model.depth], row[model.depth :]
        if not keys or keys[-1][0] != key:
            keys.append((key, []))
        keys[-1][1].append((value, times))
    return CursorModel(keys)
