"""The state of one collection: an immutable value.

Every change is a transition to a new state that shares nearly everything with
the old one; the difference between the two is what gets stored. Nothing that is
done per commit walks over all batches.

What the fields promise (named and checked in `core/invariants.py`):

    since = join(old since, meet(retention, leases, critical holds))
    trace.upper <= upper; what lies between is in `unsealed` until it is drained
    every blob referred to was put by a writer that was registered at that time
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from timespine.core.batch import Count, HollowBatch, Part
from timespine.core.encoding.flat_spine import Id
from timespine.core.spine.layers import Merging
from timespine.core.spine.spine import Spine, empty_spine
from timespine.core.totals import NOTHING, Totals
from timespine.core.unsealed_index import Forest
from timespine.ids import check_segment
from timespine.model.frontier import Frontier
from timespine.model.time import check_arity

R = TypeVar("R", covariant=True)


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Writers and the like: there until their heartbeat stops."""

    until_ms: int
    """Whoever sees a later clock than this may remove it."""
    term_ms: Count
    """How far a heartbeat extends it."""


class Reader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leased claim on history."""

    since: Frontier
    """The reader may read from here on."""
    seqno: Count
    """Nothing that the state of this number or a later one refers to is deleted."""
    until_ms: int
    """Whoever sees a later clock than this may remove it."""
    term_ms: Count
    """How far a heartbeat extends it."""


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A critical hold: a claim on history that never expires."""

    since: Frontier
    """The holder may read from here on."""
    token: str
    """Whoever wants to move the hold must name the token that it has now."""


class Committer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process that commits in numbered groups."""

    group: Count
    """The last group of it that was committed here: what makes a retry harmless."""
    until_ms: int
    """Whoever sees a later clock than this may remove it."""
    term_ms: Count
    """How far a commit or a heartbeat extends it."""


class Rollup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A blob with the whole state as of a sequence number."""

    key: str
    """Where it is."""
    size: Count
    """Bytes of it."""
    dropped_bytes: Count = 0
    """Bytes that the collection had dropped as of that state: what collecting garbage from it frees."""
    rewritten_ms: int | None = None
    """`Forgetting.asked_ms`, if the rewrite that was asked for then was done as of that state."""
    is_last: bool = False
    """Whether every rollup that the state lists is without that history too: then it is gone once garbage goes."""


class Forgetting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """History that expired, and that batches, garbage, the log or a rollup may still hold.

    Its life: since moves (`expired_ms`); once the deadline has passed, maintenance asks for a rewrite of what
    may hold it (`asked_ms`, `below`); when that is merged, and garbage was collected from a rollup that no longer
    has it (`clean`), the next collection deletes the last rollup that had it, and the record goes.
    """

    expired_ms: int
    """When since first moved past it, by the clock of the one who committed that."""
    asked_ms: int | None = None
    """When a rewrite was asked for; None: not yet."""
    below: Count = 0
    """No insertion before this one may wait to be merged once the rewrite is done."""
    moved: bool = False
    """Whether since moved again after the rewrite was asked for."""
    clean: Count | None = None
    """The first rollup without it from which garbage was collected."""


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Somebody says that they are at work on a merge. A courtesy, not a lock."""

    claimant: str
    """The writer whose prefix the result will have."""
    until_ms: int
    """From then on nobody needs to respect it."""


class Turn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change that kept losing has the next commit, until a deadline. A courtesy, not a lock."""

    writer: str
    """The writer of the process that makes the change; empty: it has given the turn back."""
    from_ms: int
    """When it was claimed, by the clock of that process."""
    until_ms: int
    """From then on no other process respects it; when it was given back, if it was."""


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of what was committed when."""

    upper: Frontier
    """The upper after it."""
    committed_ms: int
    """The committer's clock."""
    operation: str
    """What it was: append, write, seal."""
    rows: Count
    """Updates in it."""
    size: Count
    """Bytes of them."""


class Status(enum.IntEnum):
    """Where the collection is in its life."""

    OPEN = 0
    FINALIZED = 1
    """A tombstone: closed, released by every reader, and emptied. Stays so."""


class Fields(msgspec.Struct, frozen=True, gc=False):
    """What a state is made of besides its batches: stored as it is (`core/encoding/codec.py`)."""

    collection: str
    """Its id: the first segment of all its blobs, and its key in consensus."""
    arity: int
    """Coordinates per time."""
    seqno: Count
    """How many commits there were before this state."""
    upper: Frontier
    """The collection is complete below this."""
    retention: Frontier
    """The built-in hold that `expire` moves."""
    unsealed_next: Count = 0
    """The number of the next write."""
    readers: dict[str, Reader] = {}
    """Leased readers by id."""
    holds: dict[str, Hold] = {}
    """Critical holds by name."""
    writers: dict[str, Lease] = {}
    """Leased writers by id: whose blobs may be committed."""
    committers: dict[str, Committer] = {}
    """Committers by id."""
    sinks: dict[str, int] = {}
    """The last batch committed per streaming sink. These never expire."""
    schemas: tuple[bytes, ...] = ()
    """Schemas by id. Opaque here."""
    rollups: dict[int, Rollup] = {}
    """Rollups by the sequence number of the state they hold."""
    claims: dict[Id, Claim] = {}
    """Soft claims on merges by the id of the fueled batch."""
    history: tuple[HistoryEntry, ...] = ()
    """What was committed when, bounded, for times not below since."""
    inline_bytes: Count = 0
    """Data that lives in the state itself."""
    totals: Totals = NOTHING
    """What it has cost so far."""
    forgetting: Forgetting | None = None
    """Expired history that may still be stored somewhere; None: there is none."""
    status: Status = Status.OPEN
    """Where the collection is in its life."""
    turn: Turn | None = None
    """The last turn that a change claimed; None: none ever was."""


class State(Fields, frozen=True, gc=False, kw_only=True):
    """One collection as of one sequence number."""

    trace: Spine
    """The batches; may lag behind `upper` until unsealed updates are drained into it."""
    unsealed: Forest = Forest()
    """Written ahead of the seal, in order of their number."""

    @property
    def since(self) -> Frontier:
        """History is exact from here on."""
        return self.trace.since

    @property
    def seqno_since(self) -> int:
        """States from this number on may still be read by somebody."""
        return min((reader.seqno for reader in self.readers.values()), default=self.seqno)

    def holders(self) -> Iterator[tuple[str, Frontier]]:
        """Who holds since back, and where: retention, leases, critical holds."""
        yield "retention", self.retention
        for id, reader in self.readers.items():
            yield f"reader {id}", reader.since
        for name, hold in self.holds.items():
            yield f"hold {name}", hold.since

    def hollow_batches(self) -> Iterator[HollowBatch]:
        """The batches of the trace, oldest first."""
        return self.trace.hollow_batches()

    def parts(self) -> Iterator[Part]:
        """Every part that this state refers to, in trace and unsealed; some perhaps twice."""
        for batch in self.trace.hollow_batches():
            yield from batch.parts
        for unsealed in self.unsealed:
            yield from unsealed.parts

    def keys(self) -> Iterator[str]:
        """Every blob that this state refers to directly."""
        for part in self.parts():
            if part.key:
                yield part.key
        for rollup in self.rollups.values():
            yield rollup.key


UNBORN = -1
"""The sequence number of a collection before its first entry: its creation is number 0."""


def new_state(collection: str, arity: int = 1, merging: Merging = Merging.FUELED) -> State:
    """The state of a collection at its creation, as sequence number 0."""
    check_segment(collection, "collection id")
    minimum = Frontier.minimum(check_arity(arity))
    return State(collection, arity, 0, minimum, minimum, trace=empty_spine(arity, merging))


def settle_since(state: State, now_ms: int) -> State:
    """The state with its since moved as far as the holds allow, and a note of when that was. Never back."""
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


def rewritten_ms(state: State) -> int | None:
    """When the rewrite of expired history was asked for that is done: the batches hold none of it. None: not done."""
    known = state.forgetting
    if known is None or any(batch.fueled and batch.id[0] < known.below for batch in state.trace.batches()):
        return None
    return known.asked_ms


def is_last(state: State) -> bool:
    """Whether a state, and every rollup that it lists, is without the expired history that was to be rewritten.

    The rollups that it does not list are deleted by a garbage collection from it.
    """
    clean = None if state.forgetting is None else state.forgetting.clean
    return clean is not None and all(seqno >= clean for seqno in state.rollups)


class Commit(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A command that changes something: the new state and what to tell the caller."""

    state: State
    reply: R


class NoOp(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A command that changes nothing, and what to tell the caller: an answer or a refusal."""

    reply: R
