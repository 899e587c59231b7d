"""The storage of a collection, for people and for `--output json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import msgspec

from timespine.client.arguments.time_args import PlainFrontier, plain_frontier
from timespine.client.diagnostics.amplification import Amplification, amplification
from timespine.client.inner_handles import CollectionHandle
from timespine.columnar.scan.part_access import meta_of
from timespine.core.batch import HollowBatch, Order, Part
from timespine.core.maintenance_policy import run_count
from timespine.core.state import State


@dataclass(frozen=True, slots=True)
class PartInfo:
    """One part of a batch in an `Inspection`."""

    key: str
    rows: int
    size: int
    inline: bool
    hollow: bool
    truncated: bool
    rewritten: bool
    times: list[list[int]] | None
    """The smallest and the largest value of each coordinate."""


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """One batch of the trace."""

    lower: PlainFrontier
    upper: PlainFrontier
    since: PlainFrontier
    rows: int
    size: int
    runs: int
    parts: int
    sorted: bool
    detail: list[PartInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A collection as of one state."""

    name: str
    id: str
    seqno: int
    since: PlainFrontier
    upper: PlainFrontier
    rows: int
    """The number of updates, at most: some may cancel out when they are merged."""
    size: int
    """Bytes of parts that the state refers to."""
    inline_bytes: int
    batches: list[BatchInfo]
    levels: list[tuple[int, int]]
    """Per layer of the spine: batches and updates."""
    merges_due: int
    unsealed: int
    readers: dict[str, PlainFrontier]
    holds: dict[str, PlainFrontier]
    held_by: list[tuple[str, PlainFrontier]]
    """The readers and holds that keep since from moving."""
    writers: int
    schemas: int
    rollups: list[int]
    history: int
    amplification: Amplification
    """The cost relative to the contents, over all processes."""
    spine: dict[str, int]
    """Batches of the spine that are compact, that wait for a merge, and others."""

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values."""
        return asdict(self)


def inspect_state(handle: CollectionHandle, state: State, *, parts: bool = False) -> Inspection:
    """Describe one state."""
    batches = list(state.hollow_batches())
    return Inspection(
        name=handle.name,
        id=handle.id,
        seqno=state.seqno,
        since=plain_frontier(state.since),
        upper=plain_frontier(state.upper),
        rows=state.trace.update_count + sum(each.rows for each in state.unsealed),
        size=sum({part.key or id(part): part.total_bytes for part in state.parts()}.values()),
        inline_bytes=state.inline_bytes,
        batches=[_batch(batch, parts) for batch in batches],
        levels=state.trace.describe(),
        merges_due=len(state.trace.requests()),
        unsealed=len(state.unsealed),
        readers={name: plain_frontier(reader.since) for name, reader in state.readers.items()},
        holds={name: plain_frontier(hold.since) for name, hold in state.holds.items()},
        held_by=[(who, plain_frontier(since)) for who, since in state.holders() if since <= state.since],
        writers=len(state.writers),
        schemas=len(state.schemas),
        rollups=sorted(state.rollups),
        history=len(state.history),
        amplification=amplification(handle, state, run_count(state)),
        spine=msgspec.structs.asdict(state.trace.metrics()),
    )


def _batch(batch: HollowBatch, parts: bool) -> BatchInfo:
    listed = list(batch.parts)
    return BatchInfo(
        lower=plain_frontier(batch.desc.lower),
        upper=plain_frontier(batch.desc.upper),
        since=plain_frontier(batch.desc.since),
        rows=batch.len,
        size=sum(part.total_bytes for part in listed),
        runs=len(batch.runs),
        parts=len(listed),
        sorted=all(run.order is Order.SORTED for run in batch.runs),
        detail=[_part(part) for part in listed] if parts else [],
    )


def _part(part: Part) -> PartInfo:
    meta = meta_of(part)
    times = [list(pair) for pair in zip(meta.min_time, meta.max_time, strict=True)] if meta is not None else None
    return PartInfo(
        key=part.key,
        rows=part.rows,
        size=part.total_bytes,
        inline=part.inline is not None,
        hollow=part.hollow,
        truncated=part.is_truncated,
        rewritten=part.rewrite is not None,
        times=times,
    )
