"""The parts that a read has to read, and the bounds within which it sees them.

A row of a part counts at time t for a reader as of `as_of` when

    part.lower <= t, not part.upper <= t          (truncation, where there is one)
    advance_by(t, part.rewrite) <= as_of          (rewriting, where there is one)

Trace and unsealed are read together: unsealed updates count from the trace's
upper on, whether they are drained, evicted or trimmed or not.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.state import State
from timespine.core.transitions.trace_push import truncate_batch
from timespine.errors import NotSealed, SinceError, UsageError
from timespine.model import time as times
from timespine.model.frontier import CLOSED, Frontier, advance_by, check_arity_of
from timespine.model.time import INT64_MAX, Time, check_time

REPLANS = 16
"""Times that a read without a lease is planned, because a merge replaced the batches of its plan."""


class Plan(msgspec.Struct, frozen=True):
    """The parts to read, and the times that count."""

    seqno: int
    """The sequence number of the state that the plan was made from."""
    since: Frontier
    """That state's since."""
    after: Time | None
    """Updates at or before this do not count; None: all count."""
    until: Time
    """Updates not at or before this do not count."""
    runs: tuple[Run, ...]
    """The runs that may hold an update that counts, with their order and schema."""
    upper: Frontier
    """That state's upper."""

    @property
    def parts(self) -> Iterator[Part]:
        """All parts of all runs."""
        return (part for run in self.runs for part in run.parts)

    def summed(self) -> Plan:
        """Return the plan for a reader that sums diffs over all times that count: without runs that add nothing.

        A past run adds nothing as of a time from which on its rows add up to zero. So it adds nothing to the
        difference of two such times.
        """
        ends = (self.until,) if self.after is None else (self.after, self.until)
        runs = tuple(run for run in self.runs if not all(_is_zero(run, time) for time in ends))
        return self if len(runs) == len(self.runs) else msgspec.structs.replace(self, runs=runs)

    def counts(self, part: Part, time: Time) -> bool:
        """Tell whether an update of a part, at the time it was written with, counts."""
        if part.lower is not None and not part.lower.less_equal(time):
            return False
        if part.upper is not None and part.upper.less_equal(time):
            return False
        seen = time if part.rewrite is None else advance_by(time, part.rewrite)
        if not times.less_equal(seen, self.until):
            return False
        return self.after is None or not times.less_equal(seen, self.after)


class NewestTime(msgspec.Struct, frozen=True):
    """The newest complete time of a state, and whether it can be read."""

    time: Time | None
    """The time; None if no time is complete."""
    is_readable: bool
    """Whether it is at or after since: not if times were expired ahead."""
    is_final: bool
    """Whether since is closed, so that no later state can be read either."""


def newest_time(state: State) -> NewestTime:
    """Find the newest complete time of a state, for times of one coordinate."""
    since, last = state.trace.since, state.upper.last_complete()
    if last is None:
        return NewestTime(None, False, since == CLOSED)
    return NewestTime((last,), since.less_equal((last,)), since == CLOSED)


def plan_snapshot(state: State, as_of: Time) -> Plan | SinceError | NotSealed:
    """Plan a read of the collection as of one time."""
    refusal = _refuse(state, as_of)
    if refusal is not None:
        return refusal
    return Plan(state.seqno, state.since, None, as_of, _runs(state, None, as_of), state.upper)


def plan_ahead(state: State, until: Time, after: Time | None = None) -> Plan | SinceError:
    """Plan a read as of a time that need not be complete yet; with `after`, only of the updates later than that."""
    for time in (until,) if after is None else (after, until):
        if not state.since.less_equal(check_time(time, state.arity)):
            return SinceError(time, state.since)
    return Plan(state.seqno, state.since, after, until, _runs(state, after, until), state.upper)


def plan_changes(state: State, after: Time, until: Time) -> Plan | SinceError | NotSealed:
    """Plan a read of the net changes in (after, until]."""
    if not times.less_equal(check_time(after, state.arity), check_time(until, state.arity)):
        raise UsageError(f"changes after {after} until {until}: the second must not be before the first")
    refusal = _refuse(state, after) or _refuse(state, until)
    if refusal is not None:
        return refusal
    return Plan(state.seqno, state.since, after, until, _runs(state, after, until), state.upper)


def plan_all(state: State) -> Plan:
    """Plan a read of all updates, sealed or not."""
    return plan_runs(state, _runs(state, None, _last(state)))


def plan_runs(state: State, runs: tuple[Run, ...]) -> Plan:
    """Plan a read of all updates in runs of a state, or of an earlier one."""
    return Plan(state.seqno, state.since, None, _last(state), runs, state.upper)


def plan_unsealed(state: State, lower: Frontier, upper: Frontier) -> tuple[Run, ...]:
    """Return the runs that may hold unsealed updates in [lower, upper), truncated to it.

    An update below the collection's upper is no longer unsealed, whether it is in the trace yet or not.
    """
    check_arity_of(lower, state.arity, "lower")
    check_arity_of(upper, state.arity, "upper")
    if not lower <= upper:
        raise UsageError(f"unsealed updates from {lower} to {upper}: the second must not be before the first")
    lower = lower.join(state.upper)
    if upper <= lower:
        return ()
    return tuple(
        Run(tuple(truncate_batch(part, lower, upper) for part in batch.parts), Order.UNORDERED, batch.schema)
        for batch in state.unsealed.between(lower, upper)
    )


def apply_parent_bounds(run: Part, child: Part) -> Part:
    """Return a part of a hollow run, with the truncation and rewriting of the reference to the run."""
    child = truncate_batch(child, run.lower, run.upper)
    if run.rewrite is None:
        return child
    rewrite = run.rewrite if child.rewrite is None else child.rewrite.join(run.rewrite)
    return msgspec.structs.replace(child, rewrite=rewrite)


def _is_zero(run: Run, time: Time) -> bool:
    """Tell whether the diffs of every row of a run add up to zero as of a time.

    SUBTLE: what a truncated reference shows need not add up (test_read_plan.py).
    """
    if run.zero_from is None or not times.less_equal(run.zero_from, time):
        return False
    return all(not part.is_truncated and part.rewrite is None for part in run.parts)


def _last(state: State) -> Time:
    """Return the time that every time is at or before."""
    return (INT64_MAX,) * state.arity


def _refuse(state: State, time: Time) -> SinceError | NotSealed | None:
    if not state.trace.since.less_equal(check_time(time, state.arity)):
        return SinceError(time, state.since)
    if state.upper.less_equal(time):
        return NotSealed(time, state.upper)
    return None


def _runs(state: State, after: Time | None, until: Time) -> tuple[Run, ...]:
    """Return the runs of batches that may have a time at or before `until` and not at or before `after`."""
    found: list[HollowBatch] = []
    reaches = False
    # Batches tile the times. So from the newest back, all before one that begins at or before `until` do too, and all
    # before one that ends at or before `after` end there too.
    for batch in reversed(list(state.trace.hollow_batches())):
        reaches = reaches or batch.desc.lower.less_equal(until)
        if _is_before(batch, after):
            break
        if reaches:
            found.append(batch)
    runs = [run for batch in reversed(found) for run in batch.runs]
    drained = state.trace.upper
    for unsealed in state.unsealed.reaching(drained, until):
        parts = tuple(truncate_batch(part, drained, None) for part in unsealed.parts)
        runs.append(Run(parts, Order.UNORDERED, unsealed.schema))
    return tuple(runs)


def _is_before(batch: HollowBatch, after: Time | None) -> bool:
    """Tell whether surely every update of the batch is at or before `after`.

    Only claimed for totally ordered times: then all lie below the one element of the upper, and advancing them to a
    since at or before `after` keeps them there.
    """
    if after is None or len(after) != 1 or batch.desc.upper.is_closed:
        return False
    return batch.desc.upper.time <= after[0] + 1
