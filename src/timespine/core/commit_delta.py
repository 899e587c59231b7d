"""What one commit tells those who listen: the updates that came with it, and the upper if it moved.

With content(state) = the trace, and the unsealed updates from the trace's upper on, a commit adds

    content(new) - content(old)
        == batches of [old trace upper, new trace upper)
         + unsealed(new) from new trace upper on
         - unsealed(old) from old trace upper on

Nothing is said about how it was committed: a group may have written, sealed,
appended, drained, evicted and trimmed, all in one commit. Merges only change
batches below the old trace's upper, and those hold what they held.

Unsealed batches that are in both states cancel out. What is left of
`unsealed(old)` was drained: the batches refer to its parts, so that these cancel
out too, by reference. Where they do not, since the same commit has rewritten
them, rows are taken off by whoever reads (`Heard.without`).
"""

from __future__ import annotations

from collections import Counter

import msgspec

from timespine.core.batch import Order, Run
from timespine.core.encoding.state_diff import StateDiff
from timespine.core.state import State, Status
from timespine.core.transitions.trace_push import runs_between, truncated
from timespine.core.unsealed_index import UnsealedBatch
from timespine.model.frontier import Frontier


class Heard(msgspec.Struct, frozen=True):
    """What one commit tells."""

    runs: tuple[Run, ...] = ()
    """Where its updates are."""
    without: tuple[Run, ...] = ()
    """Where those among them are that were told before, and have to be taken off."""
    upper: Frontier | None = None
    """The upper, if it moved: told after the updates."""


def heard(old: State, change: StateDiff, new: State) -> Heard:
    """What a commit tells, from the state before it, its diff, and the state after it."""
    upper = new.upper if new.upper != old.upper else None
    if new.status is Status.FINALIZED:
        return Heard(upper=upper)
    runs: list[Run] = []
    without: list[Run] = []
    for batch in change.t.a.values() if change.t is not None else ():
        if batch.runs and old.trace.upper <= batch.desc.lower:
            told, again = _untold(batch.runs, runs_between(old.unsealed, batch.desc.lower, batch.desc.upper))
            runs += told
            without += again
    drained = new.trace.upper
    runs += [
        _beyond(each, drained) for each in change.y if _is_written(old, each) and not each.is_wholly_below(drained)
    ]
    return Heard(tuple(runs), tuple(without), upper)


def _untold(runs: tuple[Run, ...], drained: list[Run]) -> tuple[list[Run], list[Run]]:
    """The runs without those that were drained, each as often as it was; and the drained ones that are not there.

    SUBTLE: as often. Somebody may append exactly what was written before, and then it is there twice and only one
    of the two was told (tests/core/test_commit_delta.py).
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
    """Whether an unsealed batch is new, and not one of the old state that was trimmed."""
    return batch.seqno >= old.unsealed_next


def _beyond(batch: UnsealedBatch, drained: Frontier) -> Run:
    """What of an unsealed batch is not in the trace."""
    parts = batch.parts
    if batch.has_times_below(drained):
        parts = tuple(truncated(part, drained, None) for part in parts)
    return Run(parts, Order.UNORDERED, batch.schema)
