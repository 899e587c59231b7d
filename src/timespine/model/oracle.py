"""The naive, obviously correct model: plain dicts that tests compare everything else with.

The guarantee of a batch and of compaction, for every row and every t >= since:

    sum(diff of the row in the batch at times <= t)
      == sum(diff of the row in history at times in [lower, upper) that are <= t)

which for whole histories reads: accumulate(compact(X, since), t) == accumulate(X, t).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from timespine.errors import NotSealed, SinceError, UpperMismatch, UsageError, short_repr
from timespine.model import time as times
from timespine.model.description import Description
from timespine.model.frontier import Frontier, advance_by
from timespine.model.time import INT64_MAX, INT64_MIN, Time, check_arity, check_time

OracleRow = Hashable
Update = tuple[OracleRow, Time, int]


def check_diff(diff: object) -> int:
    """Return the diff if it is an int64, or raise UsageError."""
    if type(diff) is not int or not INT64_MIN <= diff <= INT64_MAX:
        raise UsageError(f"{short_repr(diff)} is not a diff: an integer that fits 64 bits")
    return diff


def consolidate(updates: Iterable[Update]) -> list[Update]:
    """Sum the diffs of each (row, time), and drop sums of zero; raise UsageError if a sum does not fit an int64."""
    sums: dict[tuple[OracleRow, Time], int] = {}
    for row, time, diff in updates:
        sums[row, time] = sums.get((row, time), 0) + check_diff(diff)
    return [(row, time, check_diff(total)) for (row, time), total in sums.items() if total != 0]


def compact(updates: Iterable[Update], since: Frontier) -> list[Update]:
    """Return fewer updates that are the same collection for every reader at or after `since`."""
    return consolidate((row, advance_by(time, since), diff) for row, time, diff in updates)


def accumulate(updates: Iterable[Update], as_of: Time) -> dict[OracleRow, int]:
    """Return the count of each row as of a time, without counts of zero."""
    counts: dict[OracleRow, int] = {}
    for row, time, diff in updates:
        if times.less_equal(time, as_of):
            counts[row] = counts.get(row, 0) + diff
    return {row: check_diff(count) for row, count in counts.items() if count != 0}


def restrict(updates: Iterable[Update], description: Description) -> list[Update]:
    """Return the updates at times in [lower, upper)."""
    return [update for update in updates if description.contains(update[1])]


def difference(before: dict[OracleRow, int], after: dict[OracleRow, int]) -> dict[OracleRow, int]:
    """Return the diffs that turn `before` into `after`."""
    rows = before.keys() | after.keys()
    changes = {row: after.get(row, 0) - before.get(row, 0) for row in rows}
    return {row: check_diff(diff) for row, diff in changes.items() if diff != 0}


@dataclass(slots=True)
class Oracle:
    """A collection that keeps every update, and is never compacted."""

    arity: int = 1
    """Coordinates per time."""
    updates: list[Update] = field(default_factory=list)
    """Every update ever accepted."""
    upper: Frontier = field(init=False)
    """The frontier below which the collection is complete."""
    since: Frontier = field(init=False)
    """The frontier from which on the collection can be read."""

    def __post_init__(self) -> None:
        self.upper = self.since = Frontier.minimum(check_arity(self.arity))

    def append(self, updates: Iterable[Update], expected_upper: Frontier, new_upper: Frontier) -> None:
        """Append all updates at times in [expected_upper, new_upper), or none."""
        if expected_upper != self.upper:
            raise UpperMismatch(expected_upper, self.upper)
        bounds = Description(expected_upper, new_upper, self.since)
        accepted = list(updates)
        for _, time, diff in accepted:
            check_diff(diff)
            if not bounds.contains(check_time(time, self.arity)):
                raise UsageError(f"time {time} is not in [{bounds.lower}, {bounds.upper})")
        self.updates.extend(accepted)
        self.upper = new_upper

    def downgrade_since(self, since: Frontier) -> None:
        """Expire the history that only readers before `since` could see. Never goes back."""
        self.since = self.since.join(since)

    def snapshot(self, as_of: Time) -> dict[OracleRow, int]:
        """Return the collection as of a time that is complete and not expired."""
        if not self.since.less_equal(check_time(as_of, self.arity)):
            raise SinceError(as_of, self.since)
        if self.upper.less_equal(as_of):
            raise NotSealed(as_of, self.upper)
        return accumulate(self.updates, as_of)

    def changes(self, after: Time | None, until: Time) -> dict[OracleRow, int]:
        """Return the net changes in (after, until]; those from the empty collection if `after` is None."""
        before = {} if after is None else self.snapshot(after)
        return difference(before, self.snapshot(until))
