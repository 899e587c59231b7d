"""What a commit stream reports of one commit: the updates that it added, and the upper if it moved.

With content(state) = the trace, and the unsealed updates from the trace's upper on, a commit adds

    content(new) - content(old)
        == batches of [old trace upper, new trace upper)
         + unsealed(new) from new trace upper on
         - unsealed(old) from old trace upper on

The equation does not depend on the commands: a group may have written, sealed,
appended, drained, evicted and trimmed, all in one commit. Merges only change
batches below the old trace's upper, and keep their updates.

Unsealed batches that are in both states cancel out. The rest of
`unsealed(old)` was drained: the batches refer to its parts, so that these cancel
out too, by reference. Where they do not, since the same commit has rewritten
them, the reader subtracts their rows (`CommitDelta.without`).
"""

from __future__ import annotations

from collections import Counter

import msgspec

from timespine.core.batch import Order, Run
from timespine.core.encoding.state_diff import StateDiff
from timespine.core.state import State, Status
from timespine.core.transitions.trace_push import runs_between, truncate_batch
from timespine.core.unsealed_index import UnsealedBatch
from timespine.model.frontier import Frontier


class CommitDelta(msgspec.Struct, frozen=True):
    """The updates and the upper of one commit."""

    runs: tuple[Run, ...] = ()
    """The runs that hold its updates."""
    without: tuple[Run, ...] = ()
    """The runs with those of them that earlier commits reported: the reader subtracts their rows."""
    upper: Frontier | None = None
    """The upper, if it moved: reported after the updates."""


def delta_of_commit(old: State, change: StateDiff, new: State) -> CommitDelta:
    """Compute the delta of a commit from the state before it, its diff, and the state after it."""
    upper = new.upper if new.upper != old.upper else None
    if new.status is Status.FINALIZED:
        return CommitDelta(upper=upper)
    runs: list[Run] = []
    without: list[Run] = []
    for batch in change.t.a.values() if change.t is not None else ():
        if batch.runs and old.trace.upper <= batch.desc.lower:
            told, again = _unreported(batch.runs, runs_between(old.unsealed, batch.desc.lower, batch.desc.upper))
            runs += told
            without += again
    drained = new.trace.upper
    runs += [
        _updates_beyond(each, drained)
        for each in change.y
        if _is_written(old, each) and not each.is_wholly_below(drained)
    ]
    return CommitDelta(tuple(runs), tuple(without), upper)


def _unreported(runs: tuple[Run, ...], drained: list[Run]) -> tuple[list[Run], list[Run]]:
    """Split off the drained runs: return the runs without them, and the drained ones that are not among the runs.

    Each drained run removes one equal run.

    SUBTLE: one. A writer may append exactly what was written before; then the run occurs twice and only one of the two
    was reported (tests/core/test_commit_delta.py).
    """
    left = Counter(drained)
    untold = []
    for run in runs:
        if left[run]:
            left[run] -= 1
        else:
            untold.append(run)
    return untold, list(left.elements())


def _is_written(old: State, batch: UnsealedBatch) -> bool:
    """Tell whether an unsealed batch is new, and not one of the old state that was trimmed."""
    return batch.seqno >= old.unsealed_next


def _updates_beyond(batch: UnsealedBatch, drained: Frontier) -> Run:
    """Return the updates of an unsealed batch that are not in the trace."""
    parts = batch.parts
    if batch.has_times_below(drained):
        parts = tuple(truncate_batch(part, drained, None) for part in parts)
    return Run(parts, Order.UNORDERED, batch.schema)
