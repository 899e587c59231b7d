"""The state of one collection: an immutable value.

Every change is a transition to a new state that shares nearly everything with
the old one; a commit stores the difference between the two. No step of a commit
walks over all batches.

The promises of the fields (named and checked in `core/invariants.py`):

    since = join(old since, meet(retention, leases, critical holds))
    trace.upper <= upper; updates between them are in `unsealed` until they are drained
    every blob referred to was put by a writer that was registered at that time
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from timespine.core.batch import Count, HollowBatch, Part
from timespine.core.encoding.flat_spine import Id
from timespine.core.spine.layers import MergePolicyKind
from timespine.core.spine.spine import Spine, empty_spine
from timespine.core.totals import NOTHING, Totals
from timespine.core.unsealed_index import UnsealedIndex
from timespine.ids import check_segment
from timespine.model.frontier import Frontier
from timespine.model.time import check_arity

R = TypeVar("R", covariant=True)


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The registration of a writer, which ends when its heartbeat stops."""

    until_ms: int
    """The end of the lease: a process whose clock is later may remove it."""
    term_ms: Count
    """The term by which a heartbeat extends it."""


class Reader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease on history."""

    since: Frontier
    """The frontier from which on the reader may read."""
    seqno: Count
    """The first state that the reader may read: no blob of this or a later state is deleted."""
    until_ms: int
    """The end of the lease: a process whose clock is later may remove it."""
    term_ms: Count
    """The term by which a heartbeat extends it."""


class HoldRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A critical hold: a claim on history that never expires."""

    since: Frontier
    """The frontier from which on the holder may read."""
    token: str
    """The token that a process must present to move the hold."""


class Committer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process that commits in numbered groups."""

    group: Count
    """The last group of the committer that was committed here: it makes a retry harmless."""
    until_ms: int
    """The end of the lease: a process whose clock is later may remove it."""
    term_ms: Count
    """The term by which a commit or a heartbeat extends it."""
    relayed: tuple[Count, int] | None = None
    """If another process committed that group: the sequence number of the commit, and the first time of its rows."""


class Rollup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A blob with the whole state as of a sequence number."""

    key: str
    """The key of the blob."""
    size: Count
    """Bytes of the blob."""
    dropped_bytes: Count = 0
    """Bytes that the collection had dropped as of that state: collecting garbage from it frees them."""
    rewritten_ms: int | None = None
    """`Forgetting.asked_ms`, if that rewrite was done as of that state."""
    is_last: bool = False
    """Whether no rollup that the state lists holds that history: then the next garbage collection removes it."""
    added_ms: int | None = None
    """When it was recorded, by the clock of that process; None: by a version that kept no times."""


class Forgetting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Expired history that batches, garbage, the log or a rollup may still hold.

    Its life: since moves (`expired_ms`). Once the deadline has passed, maintenance requests a rewrite of the batches
    that may hold it (`asked_ms`, `below`). The rewrite is merged, and garbage is collected from a rollup without the
    history (`clean`). The next garbage collection deletes the last rollup with it, and removes this record.
    """

    expired_ms: int
    """When since first moved past it, by the clock of the committer."""
    asked_ms: int | None = None
    """When maintenance requested a rewrite; None: not yet."""
    below: Count = 0
    """The insertion before which no batch may wait to be merged once the rewrite is done."""
    moved: bool = False
    """Whether since moved again after the request for the rewrite."""
    clean: Count | None = None
    """The first rollup without it from which garbage was collected."""


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A registration that one process works on a merge. A courtesy, not a lock."""

    claimant: str
    """The writer whose prefix the result will have."""
    until_ms: int
    """The deadline after which no process respects it."""


class Turn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change that kept losing has the next commit, until a deadline. A courtesy, not a lock."""

    writer: str
    """The writer of the process that makes the change; empty: the process has released the turn."""
    from_ms: int
    """When it was claimed, by the clock of that process."""
    until_ms: int
    """The deadline after which no other process respects it; the moment of its release, if it was released."""


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the history of commits."""

    upper: Frontier
    """The upper after it."""
    committed_ms: int
    """The time of the commit, by the committer's clock."""
    operation: str
    """The kind of commit: append, write, seal."""
    rows: Count
    """Updates in it."""
    size: Count
    """Bytes of them."""


class Status(enum.IntEnum):
    """The stage of the collection's life."""

    OPEN = 0
    FINALIZED = 1
    """A tombstone: closed, released by every reader, and emptied. Stays so."""


class Fields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a state besides its batches: stored as they are (`core/encoding/codec.py`)."""

    collection: str
    """Its id: the first segment of all its blobs, and its key in consensus."""
    arity: int
    """Coordinates per time."""
    seqno: Count
    """The number of commits before this state."""
    upper: Frontier
    """The frontier below which the collection is complete."""
    retention: Frontier
    """The built-in hold that `expire` moves."""
    unsealed_next: Count = 0
    """The number of the next write."""
    readers: dict[str, Reader] = {}
    """Leased readers by id."""
    holds: dict[str, HoldRecord] = {}
    """Critical holds by name."""
    writers: dict[str, Lease] = {}
    """Leased writers by id: only their blobs may be committed."""
    committers: dict[str, Committer] = {}
    """Committers by id."""
    sinks: dict[str, int] = {}
    """The last batch committed per streaming sink. These never expire."""
    schemas: tuple[bytes, ...] = ()
    """Schemas by id. Opaque here."""
    rollups: dict[int, Rollup] = {}
    """Rollups by the sequence number of the state they hold."""
    claims: dict[Id, Claim] = {}
    """Claims on merges by the id of the fueled batch."""
    history: tuple[HistoryEntry, ...] = ()
    """The newest commits with their times, bounded, for times not below since."""
    inline_bytes: Count = 0
    """Bytes of data in the state itself."""
    totals: Totals = NOTHING
    """The cost of the collection so far."""
    forgetting: Forgetting | None = None
    """Expired history that may still be stored somewhere; None: there is none."""
    status: Status = Status.OPEN
    """The stage of the collection's life."""
    turn: Turn | None = None
    """The last turn that a change claimed; None if no change ever did."""


class State(Fields, frozen=True, gc=False, kw_only=True):
    """One collection as of one sequence number."""

    trace: Spine
    """The batches; may lag behind `upper` until unsealed updates are drained into it."""
    unsealed: UnsealedIndex = UnsealedIndex()
    """Updates that were written ahead of the seal, in order of their number."""

    @property
    def since(self) -> Frontier:
        """The frontier from which on history is exact."""
        return self.trace.since

    @property
    def seqno_since(self) -> int:
        """The first state that a reader may still read."""
        return min((reader.seqno for reader in self.readers.values()), default=self.seqno)

    def holders(self) -> Iterator[tuple[str, Frontier]]:
        """Yield the holders that keep since back, each with its frontier: retention, leases, critical holds."""
        yield "retention", self.retention
        for id, reader in self.readers.items():
            yield f"reader {id}", reader.since
        for name, hold in self.holds.items():
            yield f"hold {name}", hold.since

    def hollow_batches(self) -> Iterator[HollowBatch]:
        """Yield the batches of the trace, oldest first."""
        return self.trace.hollow_batches()

    def parts(self) -> Iterator[Part]:
        """Yield every part that this state refers to, in trace and unsealed; some perhaps twice."""
        for leaf in self.trace.leaves():
            for run in leaf.batch.runs:
                yield from run.parts
        for unsealed in self.unsealed:
            yield from unsealed.parts

    @property
    def is_inline(self) -> bool:
        """Whether the state itself holds all its updates, so that a read of it needs no blob."""
        return not any(part.key for part in self.parts())

    def parts_with_schemas(self) -> Iterator[tuple[int | None, Part]]:
        """Yield every part that this state refers to, with the id of its schema; some perhaps twice."""
        for batch in self.trace.hollow_batches():
            for run in batch.runs:
                yield from ((run.schema, part) for part in run.parts)
        for unsealed in self.unsealed:
            yield from ((unsealed.schema, part) for part in unsealed.parts)

    def keys(self) -> Iterator[str]:
        """Yield every blob that this state refers to directly."""
        for part in self.parts():
            if part.key:
                yield part.key
        for rollup in self.rollups.values():
            yield rollup.key


SEQNO_NOT_CREATED = -1
"""The sequence number of a collection before its first entry: its creation is number 0."""


def new_state(collection: str, arity: int = 1, merging: MergePolicyKind = MergePolicyKind.FUELED) -> State:
    """Return the state of a collection at its creation, as sequence number 0."""
    check_segment(collection, "collection id")
    minimum = Frontier.minimum(check_arity(arity))
    return State(collection, arity, 0, minimum, minimum, trace=empty_spine(arity, merging))


def settle_since(state: State, now_ms: int) -> State:
    """Move since as far as the holds allow, never back, and record when it first moved."""
    target = state.retention
    for reader in state.readers.values():
        target = target.meet(reader.since)
    for hold in state.holds.values():
        target = target.meet(hold.since)
    trace = state.trace.downgrade_since(target)
    if trace is state.trace:
        return state
    known = state.forgetting
    if known is None:
        known = Forgetting(now_ms) if trace.update_count or len(state.unsealed) else None
    elif known.asked_ms is not None and not known.moved:
        known = msgspec.structs.replace(known, moved=True)
    return msgspec.structs.replace(state, trace=trace, forgetting=known)


def rewrite_time_ms(state: State) -> int | None:
    """Return when the completed rewrite of expired history was requested; None if there is none."""
    known = state.forgetting
    if known is None or any(batch.fueled and batch.id[0] < known.below for batch in state.trace.batches()):
        return None
    return known.asked_ms


def is_last(state: State) -> bool:
    """Tell whether a state, and every rollup that it lists, is without the expired history under rewrite.

    A garbage collection from the state deletes the rollups that it does not list.
    """
    clean = None if state.forgetting is None else state.forgetting.clean
    return clean is not None and all(seqno >= clean for seqno in state.rollups)


class Commit(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """The outcome of a command that changes something: the new state and the reply."""

    state: State
    reply: R


class NoOp(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """The outcome of a command that changes nothing, and the reply: an answer or a refusal."""

    reply: R
