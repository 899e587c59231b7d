"""Whether what stores answered is the truth: every write once or not at all, every read what was committed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from timespine.columnar.schema.schema import DIFF, Schema
from timespine.core.state import State
from timespine.testing.simulator.violation import check_name
from timespine.testing.stores.calls import Call, marked
from timespine.testing.stores.world import Counts, StoreWorld, Written, schema_of

Pair = tuple[int, str]
"""A row as calls write it: its key and its value."""


def pair_of(row: Written) -> Pair:
    """The key and the value of a row: the first two columns, which no history changes."""
    return row[0][1], row[1][1]  # type: ignore[return-value]


def written_of(row: Mapping[str, Any], schema: Schema) -> Written:
    """A row that was read, as the world knows rows."""
    return tuple((each.id, row[each.name]) for each in schema.fields)


def counted(rows: Iterable[Mapping[str, Any]], schema: Schema) -> Counts:
    """Rows that were read, and how often each counts."""
    counts: Counts = {}
    for row in rows:
        written = written_of(row, schema)
        counts[written] = counts.get(written, 0) + row.get(DIFF, 1)
    return {row: count for row, count in counts.items() if count}


class Answers:
    """Compares answers with the truth."""

    def __init__(self, world: StoreWorld) -> None:
        self.world = world

    # Writing.

    def check_effect(self, call: Call) -> None:
        """What a call wrote is there once, or not at all, as its caller was told; all of it in one commit."""
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
                pair_of(row)
                for row, _, diff in commit.updates
                for _ in range(diff)
                if marked(pair_of(row)[1]) == call.id
            )
        wanted = {each: sorted(rows) for each, rows in call.rows.items()}
        if not call.varies and {each: sorted(rows) for each, rows in there.items()} != wanted:
            self.world.violate(f"{call} wrote {call.rows}, and {there} is there")
        events = {commit.event for _, commit in found}
        if len(events) > 1:
            self.world.violate(f"{call} is in {len(events)} commits, not in one")
        if call.until_event >= 0 and call.is_done and not all(call.since_event < e <= call.until_event for e in events):
            self.world.violate(f"{call} was acknowledged before it was there")

    def check_time(self, call: Call, collection: str, time: object) -> None:
        """What a call wrote stands at the time that it was told."""
        for where, commit in self.world.by_call.get(call.id, []):
            times = {when for row, when, diff in commit.updates if diff > 0 and marked(pair_of(row)[1]) == call.id}
            if where == collection and times != {time}:
                self.world.violate(f"{call} was told that it stands at {time}, and stands at {sorted(times)}")

    def check_seqno(self, call: Call, collection: str, seqno: int) -> None:
        """What a call wrote was committed by the state that it was told."""
        for where, commit in self.world.by_call.get(call.id, []):
            if where == collection and commit.seqno != seqno:
                self.world.violate(f"{call} was told that it is in state {seqno}, and is in {commit.seqno}")

    def check_change(self, call: Call, collection: str, reply: Any, holds: Callable[[list[Pair]], bool]) -> None:
        """As of the time of a change, it has been made: whatever others did before it."""
        if reply.time is not None:
            pairs = self.pairs_at(collection, reply.time)
            if not holds(pairs):
                self.world.violate(f"{call} stands at {reply.time}, where there is {sorted(pairs)[:8]}")
            return
        states = self.world.states_between(collection, call.since_event, call.until_event)
        if not any(holds(self.pairs_at(collection, last_of(state))) for state in states):
            self.world.violate(f"{call} found nothing to change, but there was something all along")

    def pairs_at(self, collection: str, time: int) -> list[Pair]:
        """The rows as of a time, each as often as it counts."""
        counts = self.world.truths[collection].at(time, self.schema(collection))
        return [pair_of(row) for row, count in counts.items() for _ in range(count)]

    def schema(self, collection: str) -> Schema:
        """The newest schema."""
        return schema_of(self.world.states[collection][-1].schemas[-1])

    # Reading.

    def check_snapshot(
        self, call: Call, collection: str, as_of: int | None, found: Counts, schema: Schema, *, asked: bool
    ) -> None:
        """A read gives what was committed up to its time; which, if none is asked for, is not older than the call."""
        states = self.world.states_between(collection, call.since_event, call.until_event)
        if not asked:
            newest = [last_of(state) for state in states]
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

    def check_changes(self, call: Call, collection: str, after: int, until: int, found: Counts, schema: Schema) -> None:
        """Net changes are the difference of two snapshots."""
        truth = self.world.truths[collection]
        expected = truth.at(until, schema)
        for row, count in truth.at(after, schema).items():
            expected[row] = expected.get(row, 0) - count
        expected = {row: count for row, count in expected.items() if count}
        if found != expected:
            self.rows_violate(call, f"in ({after}, {until}]", found, expected)

    def rows_violate(self, call: Call, what: str, found: Counts, expected: Counts) -> None:
        """Report rows that should not be there, and rows that should."""
        more = {
            pair_of(row): count - expected.get(row, 0) for row, count in found.items() if count > expected.get(row, 0)
        }
        less = {pair_of(row): count - found.get(row, 0) for row, count in expected.items() if count > found.get(row, 0)}
        other = "" if more or less else f"; {found} is not {expected}"
        found_and_missed = (
            f"found too many {dict(list(more.items())[:4])}, missed {dict(list(less.items())[:4])}{other}"
        )
        self.world.violate(f"{call} {what} {found_and_missed}", check=check_name(sys._getframe(1)))


def last_of(state: State) -> int:
    """The last time that is complete; -1 if there is none."""
    return (1 << 63) - 1 if state.upper.is_closed else state.upper.time - 1
