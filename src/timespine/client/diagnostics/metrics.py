"""Figures of an open store, as a dictionary; `prometheus.py` exports them.

Amplification, per collection:

    write   bytes written (appends, merges, rollups) per byte appended
    read    runs that a snapshot as of now has to merge
    space   bytes stored (parts, garbage, rollups, log) per byte that is live

They come from the state and the log of the collection, so they are the same in every process and in `inspect`,
`describe` and `list -v` (`amplification.py`).

Where data is, per collection: in the trace, or unsealed. Data that is drained and not evicted yet is in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from timespine.client.diagnostics.amplification import Amplification, amplification
from timespine.client.diagnostics.arrangement_metrics import arrangement_metrics
from timespine.client.inner_handles import CollectionHandle, StoreContext
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan.row_count import count_within_bounds
from timespine.core.maintenance_policy import run_rows
from timespine.core.read_plan import REPLANS
from timespine.core.state import State
from timespine.errors import LeaseExpired, TimespineError, Unavailable

if TYPE_CHECKING:
    from timespine.client.store import Store

GAUGES = {
    "seqno": "Commits so far.",
    "batches": "Hollow batches in the trace.",
    "runs": "Runs that a snapshot has to merge: read amplification.",
    "parts": "Parts that the state lists.",
    "updates": "Updates in the trace, as far as they are visible.",
    "rows": "Rows that count now, as often as they count.",
    "bytes": "Bytes of all parts of the trace, each once.",
    "inline_bytes": "Bytes of parts in the state itself.",
    "unsealed": "Batches written ahead of the seal.",
    "trace_blobs": "Blobs of the trace; a long run is the one that lists its parts.",
    "trace_blob_bytes": "Bytes of these, and of all parts that they list.",
    "unsealed_blobs": "Blobs of batches written ahead of the seal.",
    "unsealed_blob_bytes": "Bytes of these, and of all parts that they list.",
    "merges_due": "Merges that are due.",
    "readers": "Leased readers.",
    "holds": "Critical holds.",
    "writers": "Registered writers.",
    "rollup_lag": "Commits since the last rollup.",
    "write_amplification": "Bytes written by all processes per byte appended: appends, merges and rollups.",
    "read_amplification": "Runs that a snapshot has to merge, parts of unordered runs each for itself.",
    "space_amplification": "Bytes stored per byte that is live: parts, garbage, rollups and log.",
    "update_amplification": "Updates stored per row that counts.",
    "appended_rows": "Updates appended since the collection was created, by all processes.",
    "merged_rows": "Updates that maintenance wrote since then, in all processes.",
    "live_bytes": "Bytes of the parts that the state refers to.",
    "garbage_bytes": "Bytes of the parts that only older states refer to, and that are still stored.",
    "rollup_bytes": "Bytes of the rollups that the state lists.",
    "log_bytes": "Bytes of the entries of the log.",
    "compaction_seconds": "Seconds that merges took since the collection was created, in all processes.",
    "spine_compact": "Batches of the spine that are a single sorted run.",
    "spine_compacting": "Batches of the spine that wait to be merged.",
    "spine_noncompact": "Batches of the spine with several runs, or none in order, that nothing asks to merge.",
}

BUCKETS = ("trace_blobs", "trace_blob_bytes", "unsealed_blobs", "unsealed_blob_bytes")


def collection_metrics(handle: CollectionHandle) -> dict[str, float]:
    """Compute the figures of one collection, from its state and its log.

    This scans the log behind the known state and then the whole log. It also reads the times and diffs of each part
    that bounds cut, the first time that it sees the cut (`count_within_bounds`): statistics do not tell how many
    updates lie within bounds. The memory cache keeps the two numbers.
    """
    for _ in range(REPLANS):
        try:
            return _of_state(handle, handle.state())
        except MissingBlob:
            continue  # a merge replaced a part that bounds cut: the newest state does not refer to it
    raise LeaseExpired(f"the parts of {handle.name} were replaced while they were counted: ask again")


def _of_state(handle: CollectionHandle, state: State) -> dict[str, float]:
    batches = list(state.hollow_batches())
    parts = [part for batch in batches for part in batch.parts]
    updates, rows = _visible(handle, state)
    spine = state.trace.metrics()
    return {
        "seqno": state.seqno,
        "batches": len(batches),
        "runs": sum(len(batch.runs) for batch in batches) + len(state.unsealed),
        "parts": len(parts),
        "updates": updates,
        "rows": rows,
        "bytes": sum({part.key or id(part): part.total_bytes for part in parts}.values()),
        "inline_bytes": state.inline_bytes,
        "unsealed": len(state.unsealed),
        **buckets(handle.context, state),
        "merges_due": len(state.trace.requests()),
        "readers": len(state.readers),
        "holds": len(state.holds),
        "writers": len(state.writers),
        "rollup_lag": _rollup_lag(state),
        "update_amplification": updates / rows if rows > 0 else 0.0,
        **_costs(_cost(handle, state)),
        "spine_compact": spine.compact,
        "spine_compacting": spine.compacting,
        "spine_noncompact": spine.noncompact,
    }


def _cost(handle: CollectionHandle, state: State) -> Amplification:
    """Compute the cost of a collection, without another walk over its batches."""
    return amplification(handle, state, int(buckets(handle.context, state)["runs"]))


def _costs(found: Amplification) -> dict[str, float]:
    """Return the cost of a collection, by the names of the gauges."""
    return {
        "write_amplification": found.write,
        "read_amplification": found.read,
        "space_amplification": found.space,
        "appended_rows": found.appended_rows,
        "merged_rows": found.merged_rows,
        "live_bytes": found.live_bytes,
        "garbage_bytes": found.garbage_bytes,
        "rollup_bytes": found.rollup_bytes,
        "log_bytes": found.log_bytes,
        "compaction_seconds": found.merge_seconds,
    }


def _visible(handle: CollectionHandle, state: State) -> tuple[int, int]:
    """Count the updates of a trace within the bounds of its parts, and add up their diffs."""
    parts = handle.parts(state)
    updates = rows = 0
    for run in (run for batch in state.hollow_batches() for run in batch.runs):
        for part in run.parts:
            seen = count_within_bounds(parts, run, part)
            updates += seen[0]
            rows += seen[1]
    return updates, rows


def buckets(context: StoreContext, state: State) -> dict[str, float]:
    """Count the blobs of a collection and their bytes, by where they are. Computed once per state, on request."""
    known = context.buckets.get(state.collection)
    if known is not None and known[0] == state.seqno:
        return known[1]
    batches = list(state.hollow_batches())
    unsealed = [part for batch in state.unsealed for part in batch.parts]
    trace = [part for batch in batches for part in batch.parts]
    figures: dict[str, float] = {"runs": sum(len(run_rows(batch)) for batch in batches) + len(unsealed)}
    for bucket, parts in (("trace", trace), ("unsealed", unsealed)):
        # Two references may share a part, each with bounds of its own.
        sizes = {part.key: part.total_bytes for part in parts if part.key}
        figures[f"{bucket}_blobs"] = len(sizes)
        figures[f"{bucket}_blob_bytes"] = sum(sizes.values())
    context.buckets[state.collection] = (state.seqno, figures)
    return figures


def store_metrics(store: Store) -> dict[str, float]:
    """Return the counters of this process, and the figures and costs of its open collections.

    Counters and blobs come from memory. Amplification reads storage: for each open collection, it scans the log
    behind the known state, and then the whole log, whose bytes it counts. It reads no blob. If storage is
    unavailable, or the store is closed, figures that need storage are left out.
    """
    figures = process_metrics(store)
    states = store._committer.session.states
    handles = store._handles.all()
    found = [buckets(store._context, state) for handle in handles if (state := states.get(handle.id))]
    for name in BUCKETS:
        figures[name.replace("_", " ")] = sum(each[name] for each in found)
    for handle, costs in _costs_of(handles):
        for name, value in (("write", costs.write), ("read", costs.read), ("space", costs.space)):
            figures[f"{name} amplification of {handle.name}"] = value
        figures["compaction seconds"] = figures.get("compaction seconds", 0.0) + costs.merge_seconds
    figures["stream count"] = len(handles)
    for name, label, own in arrangement_metrics(store._context):
        figures.update({f"arrangement {each} of {name} by {label}": value for each, value in own.items()})
    return figures


def _costs_of(handles: Iterable[CollectionHandle]) -> Iterator[tuple[CollectionHandle, Amplification]]:
    """Compute the cost of each collection, as long as storage answers."""
    for handle in handles:
        try:
            yield handle, _cost(handle, handle.state())
        except Unavailable:
            return  # each further collection would wait for storage as long as this one did
        except TimespineError:
            continue  # dropped, damaged, or the store is closed


def process_metrics(store: Store) -> dict[str, float]:
    """Return the counters of this process, over all collections."""
    context = store._context
    # Copies: other threads count during the iteration.
    figures: dict[str, float] = {"commands failed": 0, **context.committer.counters}
    figures.update({f"upkeep {name}": value for name, value in dict(store._upkeep.counters).items()})
    for counters in (context.counters, *dict(context.by_collection).values()):
        for name, value in dict(counters).items():
            figures[name] = figures.get(name, 0) + value
    cache = context.cache
    figures.update({"cache hits": cache.hits, "cache misses": cache.misses, "cache evictions": cache.evictions})
    figures["cache bytes"] = cache.bytes
    for name, value in store._maintenance.report.counts().items():
        figures[f"maintenance {name.replace('_', ' ')}"] = value
    return figures


def _rollup_lag(state: State) -> int:
    return state.seqno - max(state.rollups, default=0)
