"""Write and seal: the older way to write, and how unsealed updates reach the trace.

`write` makes updates durable at any times not below the upper, in any order.
`seal` moves the upper, and with it, logically, all updates below it into the
trace. The rest is bookkeeping that may happen later, in pieces, or twice:

- drain pushes a batch [trace upper, upper) that refers to the unsealed parts,
  truncated to that range. No row is read.
- evict drops unsealed batches that lie wholly below the trace's upper.
- trim narrows those that lie partly below it: the bounds at once, the bytes when
  maintenance has rewritten them.

Unsealed batches are never merged with each other: a batch of five seconds ahead
merged with one of five hours ahead would be rewritten after five seconds, where
each alone is dropped or kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from timespine.config import DEFAULT
from timespine.core.batch import Part
from timespine.core.encoding.validate import check_parts
from timespine.core.state import Commit, HistoryEntry, NoOp, State
from timespine.core.transitions.command import Command
from timespine.core.transitions.trace_push import drain_trace, remember, truncate_batch
from timespine.core.transitions.writers import refuse_stale_schemas, refuse_unknown_schemas, refuse_unregistered
from timespine.core.unsealed_index import UnsealedBatch, UnsealedIndex
from timespine.errors import ClosedError, InlineBudgetExceeded, LateRows, TimespineError, UsageError
from timespine.model import time as times
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import Time, check_time


class Write(Command, frozen=True, array_like=True):
    """Make updates durable at times not below the upper."""

    lower: Frontier
    """Their minimal times."""
    max: Time
    """A time at or after all of them."""
    parts: tuple[Part, ...]
    schema: int | None = None
    inline_total_bytes: int = DEFAULT.inline_total_bytes
    judged_by: int | None = None
    """The newest schema, if the caller checked that rows of older schemas lose nothing under it."""


class Seal(Command, frozen=True, array_like=True):
    """Move the upper: updates that were written below it are part of the collection from now on."""

    upper: Frontier


class Drain(Command, frozen=True, array_like=True):
    """Push sealed updates that are not in the trace yet, by reference."""


class Evict(Command, frozen=True, array_like=True):
    """Drop unsealed batches that are in the trace as a whole."""


class Trim(Command, frozen=True, array_like=True):
    """Narrow one unsealed batch that is partly in the trace."""

    seqno: int
    """Its number."""
    parts: tuple[Part, ...] | None = None
    """The same updates without those below the trace's upper, rewritten; None to narrow the bounds only."""
    against: Frontier | None = None
    """The trace's upper that the rewritten parts were made against."""
    schema: int | None = None
    """The schema that they were written with; None: that of the batch."""
    inline_total_bytes: int = DEFAULT.inline_total_bytes


def write(state: State, command: Write, now_ms: int) -> Commit[int] | NoOp[int | TimespineError]:
    """Add an unsealed batch; reply its number."""
    check_arity_of(command.lower, state.arity, "lower")
    check_time(command.max, state.arity)
    rows = sum(part.rows for part in command.parts)
    if rows == 0:
        return NoOp(state.unsealed_next)
    if state.upper.is_closed:
        return NoOp(ClosedError(f"collection {state.collection} is closed"))
    refused = refuse_unregistered(state, command.parts) or refuse_unknown_schemas(state, (command.schema,))
    if refused is not None:
        return NoOp(refused)
    if any(part.rewrite is not None or part.is_truncated for part in command.parts):
        return NoOp(UsageError("rewritten or truncated data cannot be written ahead of the seal"))
    if command.lower.is_closed or not all(times.less_equal(least, command.max) for least in command.lower):
        return NoOp(UsageError(f"updates from {command.lower} on cannot all be at or before {command.max}"))
    if not state.upper <= command.lower:
        text = f"updates at {command.lower} are below the upper {state.upper}: it is sealed already"
        return NoOp(LateRows(text, command.lower, state.upper))
    stale = refuse_stale_schemas(state, (command.schema,), command.judged_by)
    if stale is not None:
        return NoOp(stale)
    inline = inline_bytes(command.parts)
    if inline and state.inline_bytes + inline > command.inline_total_bytes:
        return NoOp(InlineBudgetExceeded(inline, state.inline_bytes, command.inline_total_bytes))
    number = state.unsealed_next
    batch = UnsealedBatch(number, command.lower, command.max, rows, command.parts, command.schema)
    size = sum(part.total_bytes for part in command.parts)
    grown = msgspec.structs.replace(
        state,
        unsealed=state.unsealed.append(batch),
        unsealed_next=number + 1,
        inline_bytes=state.inline_bytes + inline,
        totals=state.totals.plus(appended_rows=rows, appended_bytes=size),
    )
    return Commit(remember(grown, HistoryEntry(state.upper, now_ms, "write", rows, size)), number)


def seal(state: State, command: Seal, now_ms: int) -> Commit[Frontier] | NoOp[Frontier | TimespineError]:
    """Move the upper forward. The same again is fine; back is an error."""
    check_arity_of(command.upper, state.arity, "upper")
    if command.upper == state.upper:
        return NoOp(state.upper)
    if state.upper.is_closed:
        return NoOp(ClosedError(f"collection {state.collection} is closed"))
    if not state.upper <= command.upper:
        return NoOp(UsageError(f"cannot seal {state.collection} at {command.upper}: it is sealed up to {state.upper}"))
    sealed = msgspec.structs.replace(state, upper=command.upper)
    return Commit(remember(sealed, HistoryEntry(command.upper, now_ms, "seal", 0, 0)), command.upper)


def drain(state: State, command: Drain, now_ms: int) -> Commit[Frontier] | NoOp[Frontier]:
    """Move the trace up to the upper; reply the trace's upper."""
    if state.trace.upper == state.upper:
        return NoOp(state.upper)
    return Commit(drain_trace(state), state.upper)


def evict(state: State, command: Evict, now_ms: int) -> Commit[int] | NoOp[int]:
    """Drop unsealed batches that are wholly in the trace; reply how many."""
    upper = state.trace.upper
    gone = [batch for batch in state.unsealed if batch.is_wholly_below(upper)]
    if not gone:
        return NoOp(0)
    kept = UnsealedIndex.of(batch for batch in state.unsealed if not batch.is_wholly_below(upper))
    inline = sum(inline_bytes(batch.parts) for batch in gone)
    evicted = _with_unsealed(state, kept, -inline)
    return Commit(_with_dropped(evicted, (part for batch in gone for part in batch.parts)), len(gone))


def trim(state: State, command: Trim, now_ms: int) -> Commit[bool] | NoOp[bool | TimespineError]:
    """Narrow an unsealed batch to the updates that are not in the trace; reply whether there was one to narrow."""
    upper = state.trace.upper
    batch = next((each for each in state.unsealed if each.seqno == command.seqno), None)
    if batch is None or batch.is_wholly_below(upper):
        return NoOp(False)
    if not batch.has_times_below(upper) and not (
        command.parts is not None and any(part.is_truncated for part in batch.parts)
    ):
        return NoOp(False)  # nothing of it is drained, or its bounds are narrow already
    parts = batch.parts
    if command.parts is not None:
        # Parts rewritten against a later upper than the trace has would lose updates that are
        # not in the trace yet; against an earlier one they keep some that are, to be hidden.
        if command.against is None or not command.against <= upper:
            return NoOp(UsageError(f"parts trimmed against {command.against}, the trace is at {upper}"))
        check_parts(command.parts, state.arity)
        refused = refuse_unregistered(state, command.parts) or refuse_unknown_schemas(state, (command.schema,))
        if refused is not None:
            return NoOp(refused)
        if command.schema is not None and batch.schema is not None and command.schema < batch.schema:
            return NoOp(UsageError(f"updates of schema {batch.schema} cannot be trimmed under {command.schema}"))
        parts = command.parts
    # SUBTLE: the parts themselves must hide what is drained. Bounds of the batch alone would let
    # the next drain take the batch for untouched, and drain those updates twice
    # (tests/simulation/planted.py: trim_without_truncation).
    if command.parts is None or command.against != upper:
        parts = tuple(truncate_batch(part, upper, None) for part in parts)
    rows = sum(part.rows for part in parts)
    if rows > batch.rows:
        return NoOp(UsageError(f"{rows} updates cannot come from trimming {batch.rows}"))
    inline = inline_bytes(parts) - inline_bytes(batch.parts)
    if inline > 0 and state.inline_bytes + inline > command.inline_total_bytes:
        return NoOp(InlineBudgetExceeded(inline, state.inline_bytes, command.inline_total_bytes))
    schema = batch.schema if command.schema is None else command.schema
    trimmed = UnsealedBatch(batch.seqno, batch.lower.join(upper), batch.max, rows, parts, schema)
    changed = _with_unsealed(
        state, UnsealedIndex.of(trimmed if each is batch else each for each in state.unsealed), inline
    )
    if command.parts is None:
        return Commit(changed, True)
    if rows > state.totals.budget_rows:
        return NoOp(False)
    size = sum(part.total_bytes for part in command.parts)
    totals = state.totals.plus(merged_rows=rows, merged_bytes=size, extra_rows=rows)
    return Commit(_with_dropped(msgspec.structs.replace(changed, totals=totals), batch.parts), True)


def _with_dropped(state: State, gone: Iterable[Part]) -> State:
    """Return the state with dropped bytes counted: those of unsealed parts that nothing refers to now."""
    sizes = {part.key: part.total_bytes for part in gone if part.key}
    for part in state.parts() if sizes else ():
        sizes.pop(part.key, None)
    return msgspec.structs.replace(state, totals=state.totals.plus(dropped_bytes=sum(sizes.values())))


def _with_unsealed(state: State, unsealed: UnsealedIndex, inline: int) -> State:
    """Return the state with other unsealed batches, and with more or fewer inline bytes."""
    return msgspec.structs.replace(
        state,
        unsealed=unsealed,
        inline_bytes=state.inline_bytes + inline,
    )


def inline_bytes(parts: tuple[Part, ...]) -> int:
    """Count the bytes of these parts that are in the state."""
    return sum(len(part.inline) for part in parts if part.inline is not None)
