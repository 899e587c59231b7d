"""When the bytes of a partly drained unsealed batch are worth writing anew.

Its bounds are narrowed at once: that is metadata. Its blobs stay whole for as long
as the trace refers to them too, so until those references are merged away nothing
could be freed. After that it pays once half of its times are behind: then every time
anew frees about half of what is left, and a batch is rewritten a logarithmic number
of times, however finely its times are sealed. What is written is charged to the budget
of extra work (`core/upkeep.py`).
"""

from __future__ import annotations

from timespine.columnar.scan.part_set import meta_of
from timespine.core.state import State
from timespine.core.unsealed_index import UnsealedBatch
from timespine.model.frontier import Frontier

LEAST_BYTES = 1 << 16
"""What is smaller than this is left as it is until it is evicted."""


def worth_rewriting(state: State) -> int | None:
    """The number of an unsealed batch that is worth rewriting, if there is one. Of one coordinate only."""
    if state.arity != 1 or not len(state.unsealed) or not state.trace.upper.elements:
        return None
    ((upper,),) = state.trace.upper.elements
    begun = state.unsealed.reaching(Frontier.minimum(1), (upper,))
    behind = [batch for batch in begun if _is_half_behind(batch, upper)]
    if not behind:
        return None
    needed = {key for batch in state.trace.hollow_batches() for key in batch.keys}
    budget = state.totals.budget_rows
    free = (
        batch.seqno for batch in behind if batch.rows <= budget and not any(part.key in needed for part in batch.parts)
    )
    return next(free, None)


def _is_half_behind(batch: UnsealedBatch, upper: int) -> bool:
    """Whether half of the times of a batch, as they were written, are before a time."""
    if sum(part.total_bytes for part in batch.parts if part.key) < LEAST_BYTES:
        return False
    known = [meta for part in batch.parts if part.key and (meta := meta_of(part)) is not None]
    first = min((meta.min_time[0] for meta in known), default=upper)
    return first < upper and 2 * (upper - first) >= batch.max[0] - first
