"""Appends: the newer way to write, exactly once and fenced by the upper.

A commit is pushed into the trace as one batch [upper, new upper). If the trace
lags behind the upper, what was sealed is drained first, in the same commit; and
unsealed updates whose times the append seals become part of its batch.
"""

from __future__ import annotations

import msgspec

from timespine.config import DEFAULT
from timespine.core.hollow import HollowBatch, Run
from timespine.core.shape import check_hollow
from timespine.core.state import Commit, HistoryEntry, NoOp, State
from timespine.core.transitions.push import drained_runs, pushed, remember, truncated
from timespine.core.transitions.writers import refuse_unregistered
from timespine.errors import ClosedError, InlineBudgetExceeded, TimespineError, UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier, check_arity_of


class CompareAndAppend(msgspec.Struct, frozen=True, array_like=True):
    """Append batches for [expected_upper, new_upper), if the upper is what was expected."""

    batches: tuple[HollowBatch, ...]
    expected_upper: Frontier
    new_upper: Frontier
    operation: str = "append"
    inline_total_bytes: int = DEFAULT.inline_total_bytes


class Append(msgspec.Struct, frozen=True, array_like=True):
    """Append a batch that other writers may append too, with the same updates: what is there already is cut off."""

    batch: HollowBatch


class AdvanceUpper(msgspec.Struct, frozen=True, array_like=True):
    """Say that nothing more comes before `upper`. Going back is no error, and does nothing."""

    upper: Frontier


class Appended(msgspec.Struct, frozen=True):
    """The answer to `Append`."""

    upper: Frontier
    """The upper after it."""
    taken: bool
    """Whether some of the batch was taken; if not, its data was put in vain."""


AppendReply = Frontier | TimespineError


def compare_and_append(state: State, command: CompareAndAppend, now_ms: int) -> Commit[Frontier] | NoOp[AppendReply]:
    """Append all batches or none."""
    expected, new_upper = command.expected_upper, command.new_upper
    refusal = _refuse(state, command)
    if refusal is not None:
        return NoOp(refusal)
    if expected == new_upper:
        return NoOp(state.upper)
    appended = [run for batch in command.batches for run in _runs_within(batch, expected, new_upper)]
    rows = sum(batch.len for batch in command.batches)
    size = sum(part.size for run in appended for part in run.parts)
    since = Frontier.minimum(state.arity)
    for batch in command.batches:
        since = since.join(batch.desc.since)
    if state.trace.upper != state.upper:
        state = pushed(state, drained_runs(state, state.upper), state.upper)
    grown = pushed(state, [*appended, *drained_runs(state, new_upper)], new_upper, since)
    entry = HistoryEntry(new_upper, now_ms, command.operation, rows, size)
    return Commit(remember(msgspec.structs.replace(grown, upper=new_upper), entry), new_upper)


def append(state: State, command: Append, now_ms: int) -> Commit[Appended] | NoOp[Appended | TimespineError]:
    """Append what of the batch lies at or after the upper."""
    desc = command.batch.desc
    check_arity_of(desc.lower, state.arity, "lower")
    check_arity_of(desc.upper, state.arity, "upper")
    if desc.upper <= state.upper:
        return NoOp(Appended(state.upper, False))
    if not desc.lower <= state.upper:
        return NoOp(UpperMismatch(desc.lower, state.upper))
    outcome = compare_and_append(state, CompareAndAppend((command.batch,), state.upper, desc.upper), now_ms)
    if isinstance(outcome, Commit):
        return Commit(outcome.state, Appended(outcome.reply, True))
    return NoOp(outcome.reply if isinstance(outcome.reply, TimespineError) else Appended(outcome.reply, False))


def advance_upper(state: State, command: AdvanceUpper, now_ms: int) -> Commit[Frontier] | NoOp[AppendReply]:
    """Append nothing, up to a new upper."""
    check_arity_of(command.upper, state.arity, "upper")
    if command.upper <= state.upper:
        return NoOp(state.upper)
    return compare_and_append(state, CompareAndAppend((), state.upper, command.upper, "advance"), now_ms)


def _refuse(state: State, command: CompareAndAppend) -> TimespineError | None:
    """Why nothing is appended, if so."""
    expected, new_upper = command.expected_upper, command.new_upper
    check_arity_of(expected, state.arity, "expected upper")
    check_arity_of(new_upper, state.arity, "new upper")
    check_hollow(command.batches, state.arity)
    for batch in command.batches:
        # Fenced comes before the mismatch: a writer that was expired must not take
        # the upper of its own successor for that of a rival.
        unregistered = refuse_unregistered(state, batch.parts)
        if unregistered is not None:
            return unregistered
    if expected != state.upper:
        return UpperMismatch(expected, state.upper)
    if not expected <= new_upper:
        return UsageError(f"the new upper {new_upper} is not at or after the expected upper {expected}")
    if expected == new_upper:
        if any(batch.len or batch.runs for batch in command.batches):
            return UsageError(f"updates need some time to be in: [{expected}, {new_upper}) is empty")
        return ClosedError(f"collection {state.collection} is closed") if expected.is_closed else None
    for batch in command.batches:
        wrong = _refuse_batch(state, batch, expected, new_upper)
        if wrong is not None:
            return wrong
    inline = sum(batch.inline_bytes for batch in command.batches)
    if inline and state.inline_bytes + inline > command.inline_total_bytes:
        return InlineBudgetExceeded(inline, state.inline_bytes, command.inline_total_bytes)
    return None


def _refuse_batch(state: State, batch: HollowBatch, lower: Frontier, upper: Frontier) -> TimespineError | None:
    """Why a batch does not fit the interval, if so."""
    desc = batch.desc
    if not (desc.lower <= lower and upper <= desc.upper):
        return UsageError(f"a batch of [{desc.lower}, {desc.upper}) does not cover the append [{lower}, {upper})")
    if not desc.since <= state.since:
        return UsageError(f"a batch exact from {desc.since} on is past the since {state.since}")
    if sum(part.rows for part in batch.parts) < batch.len:
        return UsageError(f"a batch of {batch.len} updates whose parts have fewer")
    for part in batch.parts:
        if part.rewrite is not None and (state.arity != 1 or any(upper.less_equal(time) for time in part.rewrite)):
            return UsageError(f"a batch rewritten to {part.rewrite} does not lie below {upper}, or times are not total")
    exact = desc.lower == lower and desc.upper == upper
    if not exact and any(part.rewrite is not None or part.is_truncated for part in batch.parts):
        return UsageError(f"a rewritten or truncated batch of [{desc.lower}, {desc.upper}) cannot be cut to fit")
    if not exact and not desc.since <= Frontier.minimum(state.arity):
        return UsageError(f"a compacted batch of [{desc.lower}, {desc.upper}) cannot be cut to fit")
    return None


def _runs_within(batch: HollowBatch, lower: Frontier, upper: Frontier) -> list[Run]:
    """The runs of a batch, truncated if it spans more than [lower, upper)."""
    desc = Description(lower, upper, batch.desc.since)
    if desc == batch.desc:
        return list(batch.runs)
    return [
        Run(tuple(truncated(part, lower, upper) for part in run.parts), run.order, run.schema) for run in batch.runs
    ]
