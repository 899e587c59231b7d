"""Frontiers: antichains of times, and the lattice they form.

A frontier stands for the times at or after one of its elements. The order is
that of progress: `F <= G` when everything at or after G is also at or after F.
The empty frontier is the largest: closed, nothing more will come.

    join(F, G)   the earliest frontier at or after both   (minimal elements of a v b)
    meet(F, G)   the latest frontier at or before both    (minimal elements of the union)

`advance_by` is what makes compaction possible. For a non-empty `since`

    advance_by(t, since) = meet over s in since of join(t, s)

and for every time u with since <= u:   t <= u  iff  advance_by(t, since) <= u.

So no read at or after `since` can tell a time from the advanced one. (If u is
at or after t, and at or after some s, then it is at or after join(t, s), which
is at or after the meet. The other way round, t is at or before every join(t, s),
so at or before their meet.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import msgspec

from timespine.errors import UsageError, short_repr
from timespine.model import time as times
from timespine.model.time import INT64_MAX, Time, check_time

ELEMENTS_MAX = 256
"""Elements of one frontier, at most: a bound for decoders."""


class Frontier(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An immutable antichain of times, kept in sorted order."""

    elements: tuple[Time, ...] = ()
    """The minimal times, in lexicographic order. Empty means closed."""

    def __post_init__(self) -> None:
        elements = self.elements
        if type(elements) is tuple and len(elements) == 1:
            # Nearly every frontier is a single time: nothing to sort or to drop.
            check_time(elements[0])
        elif isinstance(elements, Iterable):
            msgspec.structs.force_setattr(self, "elements", _minimal([check_time(each) for each in elements]))
        else:
            raise UsageError(f"{short_repr(elements)} is not a frontier: it takes times, such as ((3,),)")

    @staticmethod
    def at(*coordinates: int) -> Frontier:
        """Return the frontier of a single time."""
        return Frontier((coordinates,))

    @staticmethod
    def minimum(arity: int) -> Frontier:
        """Return the frontier of all times with this number of coordinates."""
        return _minimum(times.check_arity(arity))  # checked first: a cache takes True for 1

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return not self.elements

    @property
    def arity(self) -> int | None:
        """Coordinates per time; None if closed."""
        return len(self.elements[0]) if self.elements else None

    @property
    def time(self) -> int:
        """The one coordinate of the one element of a totally ordered frontier. Any other frontier is a ValueError."""
        ((time,),) = self.elements
        return time

    def last_complete(self) -> int | None:
        """Give the last time that is not at or after a totally ordered frontier; None if there is no such time.

        Below a closed frontier every time is complete, so it is the last time that there is.
        """
        if not self.elements:
            return INT64_MAX
        return self.time - 1 if self.time > 0 else None

    def insert(self, time: Time) -> Frontier:
        """Return the frontier of this one and of everything at or after `time`."""
        return Frontier(_minimal([*self.elements, check_time(time)]))

    def less_equal(self, time: Time) -> bool:
        """Tell whether `time` is at or after the frontier."""
        elements = self.elements
        if len(elements) == 1:
            return times.less_equal(elements[0], time)
        return any(times.less_equal(element, time) for element in elements)

    def less_than(self, time: Time) -> bool:
        """Tell whether `time` is strictly after some element."""
        return any(times.less_than(element, time) for element in self.elements)

    def __le__(self, other: Frontier) -> bool:
        mine, theirs = self.elements, other.elements
        if mine is theirs:
            return True
        if len(mine) == 1 == len(theirs):
            first, second = mine[0], theirs[0]
            return first <= second if len(first) == 1 == len(second) else times.less_equal(first, second)
        return all(self.less_equal(element) for element in theirs)

    def __lt__(self, other: Frontier) -> bool:
        return self != other and self <= other

    def __ge__(self, other: Frontier) -> bool:
        return other <= self

    def __gt__(self, other: Frontier) -> bool:
        return other < self

    def join(self, other: Frontier) -> Frontier:
        """Return the earliest frontier at or after both; closed if either is."""
        # Most frontiers that meet are comparable: then one of them is the answer.
        if self <= other:
            return other
        if other <= self:
            return self
        return Frontier(_minimal([times.join(a, b) for a in self.elements for b in other.elements]))

    def meet(self, other: Frontier) -> Frontier:
        """Return the latest frontier at or before both; the other one if one is closed."""
        if self <= other:
            return self
        if other <= self:
            return other
        return Frontier(_minimal([*self.elements, *other.elements]))

    def __iter__(self) -> Iterator[Time]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __str__(self) -> str:
        inside = (str(t[0]) if len(t) == 1 else str(t) for t in self.elements)
        return f"[{', '.join(inside)}]"

    def __repr__(self) -> str:
        return f"Frontier({self})"


def advance_by(time: Time, since: Frontier) -> Time:
    """Return the time that stands for `time` once no reader reads before `since`.

    A closed `since` permits no read at all; the time then stays as it is.
    """
    if not since.elements:
        return time
    advanced = times.join(time, since.elements[0])
    for element in since.elements[1:]:
        advanced = times.meet(advanced, times.join(time, element))
    return advanced


def check_arity_of(frontier: Frontier, arity: int, what: str) -> Frontier:
    """Return the frontier if it is closed or has that arity, or raise UsageError."""
    if not isinstance(frontier, Frontier):
        raise UsageError(f"{what} must be a frontier, not {type(frontier).__name__}")
    if frontier.elements and len(frontier.elements[0]) != arity:
        raise UsageError(f"{what} {frontier} has {frontier.arity} coordinates per time where {arity} are needed")
    return frontier


@functools.cache
def _minimum(arity: int) -> Frontier:
    return Frontier((times.minimum(arity),))


def _minimal(candidates: list[Time]) -> tuple[Time, ...]:
    """Return the minimal elements of checked times, sorted; raise UsageError for mixed arity."""
    if len(candidates) > ELEMENTS_MAX * ELEMENTS_MAX:
        raise UsageError(f"a frontier of {len(candidates)} times is too large")
    kept: list[Time] = []
    # In lexicographic order a time can only be covered by one that came before it.
    for candidate in sorted(set(candidates)):
        if not any(times.less_equal(element, candidate) for element in kept):
            kept.append(candidate)
            if len(kept) > ELEMENTS_MAX:
                raise UsageError(f"a frontier may have at most {ELEMENTS_MAX} elements")
    return tuple(kept)


CLOSED = Frontier()
"""The empty frontier: nothing more will come."""
