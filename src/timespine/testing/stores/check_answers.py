"""The checks of answers of stores: every write once or not at all, every read what was committed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from timespine.columnar.schema.schema import DIFF, Schema
from timespine.core.state import State
from timespine.testing.simulator.violation import name_of_check
from timespine.testing.stores.user_calls import UserCall, mark_rows
from timespine.testing.stores.world import Counts, StoreWorld, Written, decode_stored_schema

Pair = tuple[int, str]
"""A row as calls write it: its key and its value."""


def key_and_value(row: Written) -> Pair:
    """Return the key and the value of a row: the first two columns, which no history changes."""
    return row[0][1], row[1][1]  # type: ignore[return-value]


def written_of(row: Mapping[str, Any], schema: Schema) -> Written:
    """Return a row that a call read, as the world knows rows."""
    return tuple((each.id, row[each.name]) for each in schema.fields)


def count_read_rows(rows: Iterable[Mapping[str, Any]], schema: Schema) -> Counts:
    """Count the rows that a call read."""
    counts: Counts = {}
    for row in rows:
        written = written_of(row, schema)
        counts[written] = counts.get(written, 0) + row.get(DIFF, 1)
    return {row: count for row, count in counts.items() if count}


class StoreAnswerChecks:
    """The comparison of answers with the truth."""

    def __init__(self, world: StoreWorld) -> None:
        self.world = world

    # Writing.

    def check_effect(self, call: UserCall) -> None:
        """Check that the rows of a call are there once, or not at all, as it reported; all of them in one commit."""
        found = self.world.by_call.get(call.id, [])
        if not found:
            if call.is_done and call.rows:
                self.world.violate(f"{call} was acknowledged and is not there")
            return
        if call.is_refused:
            self.world.violate(f"{call} was refused with {call.error!r} and is there")
            return
        there: dict[str, list[Pair]] = {}
        for collection, commit in found:
            there.setdefault(collection, []).extend(
                key_and_value(row)
                for row, _, diff in commit.updates
                for _ in range(diff)
                if mark_rows(key_and_value(row)[1]) == call.id
            )
        wanted = {each: sorted(rows) for each, rows in call.rows.items()}
        if not call.varies and {each: sorted(rows) for each, rows in there.items()} != wanted:
            self.world.violate(f"{call} wrote {call.rows}, and {there} is there")
        events = {commit.event for _, commit in found}
        if len(events) > 1:
            self.world.violate(f"{call} is in {len(events)} commits, not in one")
        if call.until_event >= 0 and call.is_done and not all(call.since_event < e <= call.until_event for e in events):
            self.world.violate(f"{call} was acknowledged before it was there")

    def check_time(self, call: UserCall, collection: str, time: object) -> None:
        """Check that the rows of a call stand at the time that it reported."""
        for where, commit in self.world.by_call.get(call.id, []):
            times = {
                when for row, when, diff in commit.updates if diff > 0 and mark_rows(key_and_value(row)[1]) == call.id
            }
            if where == collection and times != {time}:
                self.world.violate(f"{call} was told that it stands at {time}, and stands at {sorted(times)}")

    def check_seqno(self, call: UserCall, collection: str, seqno: int) -> None:
        """Check that the state that a call reported committed its rows."""
        for where, commit in self.world.by_call.get(call.id, []):
            if where == collection and commit.seqno != seqno:
                self.world.violate(f"{call} was told that it is in state {seqno}, and is in {commit.seqno}")

    def check_change(self, call: UserCall, collection: str, reply: Any, holds: Callable[[list[Pair]], bool]) -> None:
        """Check that a change has been made as of its time, whatever others did before it."""
        if reply.time is not None:
            pairs = self.pairs_at(collection, reply.time)
            if not holds(pairs):
                self.world.violate(f"{call} stands at {reply.time}, where there is {sorted(pairs)[:8]}")
            return
        states = self.world.states_between(collection, call.since_event, call.until_event)
        if not any(holds(self.pairs_at(collection, last_time(state))) for state in states):
            self.world.violate(f"{call} found nothing to change, but there was something all along")

    def pairs_at(self, collection: str, time: int) -> list[Pair]:
        """Return the rows as of a time, each as often as its count."""
        counts = self.world.truths[collection].at(time, self.schema(collection))
        return [key_and_value(row) for row, count in counts.items() for _ in range(count)]

    def schema(self, collection: str) -> Schema:
        """Return the newest schema."""
        return decode_stored_schema(self.world.states[collection][-1].schemas[-1])

    # Reading.

    def check_snapshot(
        self, call: UserCall, collection: str, as_of: int | None, found: Counts, schema: Schema, *, asked: bool
    ) -> None:
        """Check that a read gives the commits up to its time; without a requested one, not older than the call."""
        states = self.world.states_between(collection, call.since_event, call.until_event)
        if not asked:
            newest = [last_time(state) for state in states]
            if as_of is None and min(newest) >= 0:
                self.world.violate(f"{call} found no complete time, but there was one")
            if as_of is not None and not min(newest) <= as_of <= max(newest):
                self.world.violate(f"{call} read {as_of}, but the newest complete time was in {sorted(set(newest))}")
        if as_of is None:
            if found:
                self.world.violate(f"{call} found rows before any time was complete")
            return
        expected = self.world.truths[collection].at(as_of, schema)
        if found != expected:
            self.rows_violate(call, f"as of {as_of}", found, expected)

    def check_changes(
        self, call: UserCall, collection: str, after: int, until: int, found: Counts, schema: Schema
    ) -> None:
        """Check that net changes are the difference of two snapshots."""
        truth = self.world.truths[collection]
        expected = truth.at(until, schema)
        for row, count in truth.at(after, schema).items():
            expected[row] = expected.get(row, 0) - count
        expected = {row: count for row, count in expected.items() if count}
        if found != expected:
            self.rows_violate(call, f"in ({after}, {until}]", found, expected)

    def rows_violate(self, call: UserCall, what: str, found: Counts, expected: Counts) -> None:
        """Report surplus rows and missing rows."""
        more = {
            key_and_value(row): count - expected.get(row, 0)
            for row, count in found.items()
            if count > expected.get(row, 0)
        }
        less = {
            key_and_value(row): count - found.get(row, 0)
            for row, count in expected.items()
            if count > found.get(row, 0)
        }
        other = "" if more or less else f"; {found} is not {expected}"
        found_and_missed = (
            f"found too many {dict(list(more.items())[:4])}, missed {dict(list(less.items())[:4])}{other}"
        )
        self.world.violate(f"{call} {what} {found_and_missed}", check=name_of_check(sys._getframe(1)))


def last_time(state: State) -> int:
    """Return the last time that is complete; -1 if there is none."""
    return (1 << 63) - 1 if state.upper.is_closed else state.upper.time - 1
