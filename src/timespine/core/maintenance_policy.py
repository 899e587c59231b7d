"""The decisions of maintenance, made from a state alone.

## What it may write

With n updates appended, maintenance writes at most

    n * (log2 n + 2)

updates, whatever the arrival pattern. (By the fueled rule. By level, this holds for batches of about the same
size, as `core/spine/policy_leveled.py` derives. The work of `compact` comes on top, and so does one rewrite per
`forget_within` of the batches that may hold expired history.)

- *Requests of the spine*: an update takes part in one only to rise at least one layer (`core/spine/policy_fueled.py`),
  and it is written once for all of them that are answered together. With n updates there are at most ceil(log2 n) + 2
  layers, and only the updates of one-row batches begin in the lowest. So at most log2 n + 1 per update.
  `tests/core/test_maintenance_policy.py` checks that together with the next point.
- *Extra work*, beyond the requests of the spine: the commit that schedules it charges it to `Totals.extra_rows`
  before it is done, and refuses it if that would be more than was appended. So at most 1 per update.

Idle time alone is no reason for either: a spine without writers makes no requests.

## When extra work pays

A reader of the newest time, who needs no past run, opens r runs with m updates, and merges all of them but those of
the largest run, which pass unsorted. Opening a run costs as much as reading RUN_ROWS updates. Merging these runs into
one saves every later read

    (r - 1) * RUN_ROWS + m - largest run

and costs m updates written, and those of past runs. It pays if READS reads save that much. Among the newest batches,
those are merged for which the difference is largest: a few small runs beside a large one are merged with each other,
not with it.

## When garbage is collected

To collect garbage, maintenance writes a rollup of s bytes. It is due when the garbage is at least

    max(live bytes / 2, ROLLUPS * s, GARBAGE_MIN)

So rollups for it cost at most 1/ROLLUPS of what was dropped, and at rest storage holds at most
1.5 * live + (ROLLUPS + 3) * s + GARBAGE_MIN: the parts, the garbage, and the three rollups that there may be. While
s is below a tenth of what is live, as it is for all but tiny collections, that is 2.2 * live + GARBAGE_MIN.

## What keeping deleted data costs

A store that keeps what it deletes for `keep_ms` collects garbage from a rollup that is at least as old. While garbage
waits, maintenance writes one rollup per keep_ms / KEPT_ROLLUPS, if there is enough new garbage for one. So at rest
storage holds, beyond what is said above,

    D + L + (KEPT_ROLLUPS + 3) * s

where D are the bytes that were dropped, and L the bytes of the log that was written, during the last
keep_ms * (1 + 1 / KEPT_ROLLUPS).
"""

from __future__ import annotations

import enum

from timespine.core.batch import HollowBatch, Order
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergePolicyKind, SpineBatch
from timespine.core.spine.spine import Spine
from timespine.core.state import Rollup, State, rewrite_time_ms

RUN_ROWS = 8192
"""Updates that a reader could read in the time that opening one more run takes, about (`docs/benchmarks.md`)."""

READS = 2
"""Reads that have to save as much as a merge for readers writes. The number of later reads is unknown: few are
assumed."""

REMOVED_SHARE = 5
"""Maintenance removes expired history before its deadline if the rewrite drops at least one of this number of
updates."""

ROLLUPS = 4
"""Rollups that the garbage must be as large as, before maintenance writes one to collect it."""

GARBAGE_MIN = 64 << 10
"""Bytes of garbage that a tiny collection may keep: collecting them would cost more than they do."""


KEPT_ROLLUPS = 8
"""Rollups that a store keeps of the time during which deleted data stay restorable, about."""


def worth_compacting(state: State) -> int | None:
    """Return the insertion from which on to merge everything into one run, for readers; None if nothing pays.

    Only where no request is pending. A collection that is merged by level keeps its batches as they are.
    """
    trace = state.trace
    if trace.merging is not MergePolicyKind.FUELED or trace.requests():
        return None
    best, chosen = 0, None
    for batch in trace.batches():
        asked = _request_of(trace, batch.id[0])
        if asked is not None and asked.len <= state.totals.budget_rows:
            gain = _gain(asked)
            if gain > best:
                best, chosen = gain, batch.id[0]
    return chosen


def _request_of(trace: Spine, lo: int) -> SpineBatch | None:
    """Return the request that rolling up from an insertion on would make, if it makes one."""
    return next((batch for batch in trace.roll_up_all(lo).batches() if batch.fueled), None)


def _gain(asked: SpineBatch) -> int:
    """Return what READS reads save by merging a batch into one run, less its cost, in updates."""
    runs = [rows for leaf in ropes.leaves(asked.rope) for rows in run_rows(leaf.batch, newest=True)]
    if len(runs) < 2:
        return 0
    return READS * ((len(runs) - 1) * RUN_ROWS + sum(runs) - max(runs)) - asked.len


def run_rows(batch: HollowBatch, *, newest: bool = False) -> list[int]:
    """Return the updates of each run that a reader has to merge: every part of an unordered run counts as one.

    A reader of the `newest` time needs no past run.
    """
    rows: list[int] = []
    for run in batch.runs:
        if newest and run.zero_from is not None:
            continue
        parts = [part.rows for part in run.parts]
        rows.extend([sum(parts)] if run.order is Order.SORTED else parts)
    return rows


def run_count(state: State) -> int:
    """Count the runs that a reader of everything has to merge: read amplification."""
    unsealed = sum(len(batch.parts) for batch in state.unsealed)
    return sum(len(run_rows(batch)) for batch in state.hollow_batches()) + unsealed


def is_forgetting_due(state: State, now_ms: int, forget_within_ms: int) -> bool:
    """Tell whether a rewrite of expired history is due, and not requested yet."""
    known = state.forgetting
    return known is not None and known.asked_ms is None and now_ms - known.expired_ms >= forget_within_ms


class CollectStep(enum.Enum):
    """The next step about garbage."""

    NOTHING = "nothing"
    """There is little."""
    WAIT = "wait"
    """There is a rollup to collect it from, but readers still hold older states."""
    ROLL_UP = "roll up"
    """Write a rollup to collect it from."""
    COLLECT = "collect"
    """Collect it: there is a rollup, and no reader reads anything older."""
    KEEP = "keep"
    """There is a rollup to collect it from, and the store keeps deleted data for longer than that rollup exists."""


def is_kept_long_enough(rollup: Rollup, now_ms: int, keep_ms: int) -> bool:
    """Tell whether a rollup is older than the time for which deleted data are kept. One of an unknown age is not."""
    return not keep_ms or (rollup.added_ms is not None and now_ms - rollup.added_ms >= keep_ms)


def excess_rollups(state: State, now_ms: int, keep_ms: int) -> list[int]:
    """List the rollups that are too close to the one before them to be worth their bytes.

    Never the oldest, and never the newest: garbage collection and processes that open the collection need them.
    """
    if len(state.rollups) <= KEPT_ROLLUPS + 3:
        return []
    pause_ms = keep_ms // KEPT_ROLLUPS
    seqnos = sorted(state.rollups)
    held = max((seqno for seqno in seqnos if seqno <= state.seqno_since), default=None)
    last_ms = state.rollups[seqnos[0]].added_ms or 0
    excess: list[int] = []
    for seqno in seqnos[1:-1]:
        added_ms = state.rollups[seqno].added_ms or 0
        if added_ms - last_ms < pause_ms and seqno != held:
            excess.append(seqno)
        else:
            last_ms = added_ms
    return excess


def next_collect_step(state: State, now_ms: int = 0, keep_ms: int = 0) -> CollectStep:
    """Decide the next step about garbage.

    Maintenance writes one rollup, and then waits: it writes no other while a reader holds older states. If the store
    keeps deleted data for `keep_ms`, it writes a few of them during that time, and collects when they are old enough.
    """
    known = state.forgetting
    asked_ms = rewrite_time_ms(state)
    if known is not None and asked_ms is not None:
        last = known.clean is not None
        useful = {
            seqno: rollup
            for seqno, rollup in state.rollups.items()
            if rollup.rewritten_ms == asked_ms and (rollup.is_last or not last)
        }
        return _step(state, useful, now_ms, keep_ms)
    limit = garbage_max(state)
    if state.totals.garbage_bytes < limit:
        return CollectStep.NOTHING
    least = state.totals.collected_bytes + limit
    useful = {seqno: each for seqno, each in state.rollups.items() if each.dropped_bytes >= least}
    step = _step(state, useful, now_ms, keep_ms)
    if step is not CollectStep.KEEP:
        return step
    newest = state.rollups[max(state.rollups)]
    is_paused = not is_kept_long_enough(newest, now_ms, keep_ms // KEPT_ROLLUPS)
    has_more = state.totals.dropped_bytes - newest.dropped_bytes >= limit
    return CollectStep.ROLL_UP if has_more and not is_paused else CollectStep.KEEP


def _step(state: State, useful: dict[int, Rollup], now_ms: int, keep_ms: int) -> CollectStep:
    """Decide the step, given the rollups that are of use."""
    if not useful:
        return CollectStep.ROLL_UP
    first = min(useful)
    if not is_kept_long_enough(useful[first], now_ms, keep_ms):
        return CollectStep.KEEP
    return CollectStep.COLLECT if first <= state.seqno_since else CollectStep.WAIT


def garbage_max(state: State) -> int:
    """Return the bytes of garbage that may be left."""
    newest = max(state.rollups, default=None)
    rollup_bytes = 0 if newest is None else state.rollups[newest].size
    return max(state.totals.live_bytes // 2, ROLLUPS * rollup_bytes, GARBAGE_MIN)
