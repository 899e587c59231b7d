"""Decide when to rewrite a partly drained unsealed batch.

Draining narrows its bounds at once: that is metadata. Its blobs stay whole while the
trace refers to them too, so a rewrite frees nothing until merges have replaced those
references. After that a rewrite pays once half of its times are sealed: then each rewrite
frees about half of the rest, and a batch is rewritten a logarithmic number of times,
however finely its times are sealed. The budget of extra work pays for the written bytes
(`core/maintenance_policy.py`).
"""

from __future__ import annotations

from timespine.columnar.scan.part_access import meta_of
from timespine.core.state import State
from timespine.core.unsealed_index import UnsealedBatch
from timespine.model.frontier import Frontier

LEAST_BYTES = 1 << 16
"""Bytes below which a batch is never rewritten: it stays until it is evicted."""


def worth_rewriting(state: State) -> int | None:
    """Return the number of an unsealed batch that is worth rewriting, or None. For one coordinate only."""
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
    """Return whether half of the times of a batch, as they were written, are before a time."""
    if sum(part.total_bytes for part in batch.parts if part.key) < LEAST_BYTES:
        return False
    known = [meta for part in batch.parts if part.key and (meta := meta_of(part)) is not None]
    first = min((meta.min_time[0] for meta in known), default=upper)
    return first < upper and 2 * (upper - first) >= batch.max[0] - first
