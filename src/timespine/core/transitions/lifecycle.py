"""Rollups, schemas, and the end of a collection."""

from __future__ import annotations

import msgspec

from timespine.core.batch import Count, Part, empty_batch
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import Layer, SpineBatch
from timespine.core.spine.spine import Spine
from timespine.core.state import Commit, Forgetting, NoOp, Rollup, State, Status
from timespine.core.transitions.command import Command
from timespine.core.transitions.writers import refuse_unregistered
from timespine.errors import CollectionInUse, SchemaConflict, TimespineError, UsageError
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier

SCHEMAS_MAX = 4096
"""The most schemas of one collection: they are never forgotten, so they need a limit."""

SCHEMA_BYTES_MAX = 256 * 1024
"""The most bytes of one schema."""


class AddRollup(Command, frozen=True, array_like=True):
    """Record where the whole state as of a sequence number is."""

    seqno: Count
    key: str
    size: Count
    dropped_bytes: Count = 0
    """The bytes that the collection had dropped as of that state."""
    rewritten_ms: int | None = None
    is_last: bool = False
    """The flag about expired history: see `Rollup`."""


class RemoveRollups(Command, frozen=True, array_like=True):
    """Forget rollups before the one that the log now begins after: their garbage is deleted."""

    below: int
    are_deleted: bool = False
    """Whether the blobs of the rollups before it are deleted too."""


class ThinRollups(Command, frozen=True, array_like=True):
    """Forget some rollups between others. The log still has all diffs between the oldest and the newest."""

    seqnos: tuple[Count, ...]


class AddSchema(Command, frozen=True, array_like=True):
    """Add a schema, if the newest one is still the expected one (None: there is none)."""

    expected: int | None
    schema: bytes


class Finalize(Command, frozen=True, array_like=True):
    """Turn a closed and released collection into a tombstone."""


def add_rollup(state: State, command: AddRollup, now_ms: int) -> Commit[bool] | NoOp[bool | TimespineError]:
    """Record a rollup; reply whether it is of use."""
    if command.seqno > state.seqno:
        return NoOp(UsageError(f"rollup {command.seqno} is from the future: the collection is at {state.seqno}"))
    unregistered = refuse_unregistered(state, [Part(command.key, 0)])
    if unregistered is not None:
        return NoOp(unregistered)
    if any(command.seqno <= seqno for seqno in state.rollups):
        return NoOp(False)
    if command.dropped_bytes > state.totals.dropped_bytes:
        return NoOp(UsageError(f"rollup {command.seqno} counts more dropped bytes than there were"))
    rollup = Rollup(command.key, command.size, command.dropped_bytes, command.rewritten_ms, command.is_last, now_ms)
    totals = state.totals.plus(rollup_bytes=command.size)
    return Commit(msgspec.structs.replace(state, rollups={**state.rollups, command.seqno: rollup}, totals=totals), True)


def remove_rollups(state: State, command: RemoveRollups, now_ms: int) -> Commit[int] | NoOp[int]:
    """Drop rollups that neither a live reader nor garbage collection needs; reply how many.

    SUBTLE: only those before where the log was cut. Garbage is what states since the oldest rollup referred to:
    dropping a rollup ahead of the log loses sight of the blobs that went in between (tests/simulation/planted.py:
    rollups_go_before_the_log_is_cut).
    """
    needed = max((seqno for seqno in state.rollups if seqno <= state.seqno_since), default=0)
    kept = {seqno: rollup for seqno, rollup in state.rollups.items() if seqno >= min(needed, command.below)}
    gone = len(state.rollups) - len(kept)
    base = state.rollups.get(command.below)
    collected = max(base.dropped_bytes - state.totals.collected_bytes, 0) if base is not None else 0
    forgetting = _left_to_forget(state.forgetting, command, base)
    if not gone and not collected and forgetting is state.forgetting:
        return NoOp(0)
    totals = state.totals.plus(collected_bytes=collected)
    return Commit(msgspec.structs.replace(state, rollups=kept, totals=totals, forgetting=forgetting), gone)


def thin_rollups(state: State, command: ThinRollups, now_ms: int) -> Commit[tuple[int, ...]] | NoOp[tuple[int, ...]]:
    """Drop rollups that are neither the oldest, nor the newest, nor held by a reader; reply which."""
    seqnos = sorted(state.rollups)
    needed = max((seqno for seqno in seqnos if seqno <= state.seqno_since), default=None)
    # SUBTLE: not the oldest. Garbage is what states since the oldest rollup referred to (test_keep_deleted.py).
    gone = {*command.seqnos} & {*seqnos[1:-1]} - {needed}
    if not gone:
        return NoOp(())
    kept = {seqno: rollup for seqno, rollup in state.rollups.items() if seqno not in gone}
    return Commit(msgspec.structs.replace(state, rollups=kept), tuple(sorted(gone)))


def _left_to_forget(known: Forgetting | None, command: RemoveRollups, base: Rollup | None) -> Forgetting | None:
    """Return the history that is still to be forgotten after a garbage collection from a rollup.

    SUBTLE: a rollup may be of an earlier rewrite, and tell nothing about this one (test_garbage_policy.py).
    """
    if known is None or known.asked_ms is None or base is None or base.rewritten_ms != known.asked_ms:
        return known
    if base.is_last or command.are_deleted:
        # History that expired later gets its own deadline, counted from here: so there is one rewrite per deadline.
        return Forgetting(known.asked_ms) if known.moved else None
    return msgspec.structs.replace(known, clean=command.below) if known.clean is None else known


def add_schema(state: State, command: AddSchema, now_ms: int) -> Commit[int] | NoOp[int | SchemaConflict | UsageError]:
    """Add a schema; reply its id. The newest one again is fine."""
    newest = len(state.schemas) - 1 if state.schemas else None
    if newest is not None and state.schemas[newest] == command.schema:
        return NoOp(newest)
    if command.expected != newest:
        return NoOp(SchemaConflict(command.expected, newest))
    if len(state.schemas) >= SCHEMAS_MAX or len(command.schema) > SCHEMA_BYTES_MAX:
        return NoOp(UsageError(f"at most {SCHEMAS_MAX} schemas of at most {SCHEMA_BYTES_MAX} bytes each"))
    added = msgspec.structs.replace(state, schemas=(*state.schemas, command.schema))
    return Commit(added, len(state.schemas))


def finalize(state: State, command: Finalize, now_ms: int) -> Commit[None] | NoOp[CollectionInUse | None]:
    """Empty a collection that is closed for writers and readers.

    The rest is small: the id, the upper and since, and the committers. Its blobs go with the garbage collection of the
    states that referred to them.
    """
    if state.status is Status.FINALIZED:
        return NoOp(None)
    if not state.upper.is_closed or not state.since.is_closed:
        return NoOp(
            CollectionInUse(
                f"collection {state.collection} can be finalized when upper and since are both closed; "
                f"they are {state.upper} and {state.since}"
            )
        )
    desc = Description(Frontier.minimum(state.arity), CLOSED, CLOSED)
    rest = SpineBatch(desc, ropes.leaf(0, max(state.trace.next_id, 1), empty_batch(desc)), False)
    trace = Spine(CLOSED, CLOSED, rest.rope.hi, (Layer((rest,)),), state.trace.merging)
    tombstone = State(
        state.collection,
        state.arity,
        state.seqno,
        CLOSED,
        CLOSED,
        state.unsealed_next,
        trace=trace,
        writers=state.writers,
        committers=state.committers,
        rollups=state.rollups,
        totals=state.totals.plus(dropped_bytes=state.totals.live_bytes),
        status=Status.FINALIZED,
    )
    return Commit(tombstone, None)
