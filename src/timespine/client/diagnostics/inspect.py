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
    """The key of its blob; empty if the state itself has the data."""
    rows: int
    """Updates in the data, also those that the batch does not show."""
    size: int
    """Bytes of the data, and of everything inside a hollow run."""
    inline: bool
    """Whether the state itself has the data."""
    hollow: bool
    """Whether it is a hollow run: a list of further parts."""
    truncated: bool
    """Whether the batch shows only the updates of some of its times."""
    rewritten: bool
    """Whether readers advance the times of its updates to a frontier."""
    times: list[list[int]] | None
    """The smallest and the largest value of each coordinate."""


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """One batch of the trace."""

    lower: PlainFrontier
    """The first times of its updates."""
    upper: PlainFrontier
    """The first times after those of its updates."""
    since: PlainFrontier
    """The first times from which on it is exact."""
    rows: int
    """The number of updates, at most: some may not be shown."""
    size: int
    """Bytes of its parts."""
    runs: int
    """The number of its runs."""
    parts: int
    """The number of its parts; a hollow run is one."""
    sorted: bool
    """Whether the rows of each of its runs are in order."""
    detail: list[PartInfo] = field(default_factory=list)
    """Its parts, if the caller asked for them."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A collection as of one state."""

    name: str
    """The name of the collection."""
    id: str
    """Its id, with which the keys of its blobs begin."""
    seqno: int
    """The sequence number of the state."""
    since: PlainFrontier
    """The first times from which on history is exact."""
    upper: PlainFrontier
    """The first times that are not complete."""
    rows: int
    """The number of updates, at most: some may cancel out when they are merged."""
    size: int
    """Bytes of parts that the state refers to."""
    inline_bytes: int
    """Bytes of rows in the state itself."""
    batches: list[BatchInfo]
    """The batches of the trace, oldest first."""
    levels: list[tuple[int, int]]
    """Per layer of the spine: batches and updates."""
    merges_due: int
    """Batches of the spine that wait to be merged."""
    unsealed: int
    """The number of unsealed batches."""
    readers: dict[str, PlainFrontier]
    """The leased readers by id, each with the first times that it may read."""
    holds: dict[str, PlainFrontier]
    """The critical holds by name, each with the first times that it keeps readable."""
    held_by: list[tuple[str, PlainFrontier]]
    """The readers and holds that keep since from moving."""
    writers: int
    """The number of registered writers."""
    schemas: int
    """The number of schemas that the collection has had, with the present one."""
    rollups: list[int]
    """The sequence numbers of the states that rollups hold."""
    history: int
    """The number of commits whose times the state lists."""
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
