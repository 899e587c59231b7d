"""Appends: the newer way to write, exactly once and fenced by the upper.

A commit is pushed into the trace as one batch [upper, new upper). If the trace
lags behind the upper, the same commit first drains the sealed updates; unsealed
updates whose times the append seals become part of its batch.
"""

from __future__ import annotations

import functools

import msgspec

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Run
from timespine.core.encoding.validate import check_content, check_hollow
from timespine.core.state import Commit, HistoryEntry, NoOp, State
from timespine.core.transitions.command import Command
from timespine.core.transitions.trace_push import (
    drain_trace,
    drained_runs,
    push_batch,
    remember,
    rewrite_batch,
    truncate_batch,
)
from timespine.core.transitions.writers import refuse_stale_schemas, refuse_unknown_schemas, refuse_unregistered
from timespine.errors import (
    ClosedError,
    ConcurrentWrite,
    InlineBudgetExceeded,
    TimespineError,
    UpperMismatch,
    UsageError,
)
from timespine.model.description import Description
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import INT64_MAX, check_time


class CompareAndAppend(Command, frozen=True, array_like=True):
    """Append batches for [expected_upper, new_upper), if the upper is the expected one."""

    batches: tuple[HollowBatch, ...]
    expected_upper: Frontier
    new_upper: Frontier
    operation: str = "append"
    inline_total_bytes: int = DEFAULT.inline_total_bytes
    written: int | None = None
    """The number of the next write, as the caller has seen it: the append is refused if a later write has updates that
    it seals."""
    judged_by: int | None = None
    """The newest schema, if the caller checked that rows of older schemas lose nothing under it."""


class Append(Command, frozen=True, array_like=True):
    """Append a batch that other writers may append too, with the same updates: those that are there already are cut
    off."""

    batch: HollowBatch
    judged_by: int | None = None
    """The newest schema, if the caller checked that rows of older schemas lose nothing under it."""


class AppendNext(Command, frozen=True, array_like=True):
    """Append a batch whose updates have one time: at that time, or at the next free time if it is sealed.

    With `time = max(at, upper)`, every update counts from `time` on, and the new upper is right after it. The command
    expects no upper, so writers that only add never lose to each other.
    """

    batch: HollowBatch
    """The batch; its description is replaced by that of the interval it is appended for."""
    at: int
    """The time that all its updates were written with: like any times inside of parts, this is not checked."""
    upper: int | None = None
    """The time up to which this completes the collection, if that is later than its own time."""
    operation: str = "append"
    inline_total_bytes: int = DEFAULT.inline_total_bytes
    judged_by: int | None = None
    """The newest schema, if the caller checked that rows of older schemas lose nothing under it."""


class AppendNextResult(msgspec.Struct, frozen=True):
    """The answer to `AppendNext`."""

    time: int
    """The time of the updates."""
    upper: Frontier
    """The upper after it."""


class AdvanceUpper(Command, frozen=True, array_like=True):
    """Complete all times before `upper`. Going back is no error, and does nothing."""

    upper: Frontier


class AppendResult(msgspec.Struct, frozen=True):
    """The result of an append of batches that were built before, for an expected upper."""

    upper: Frontier
    """The upper after it."""
    taken: bool
    """Whether some of the batch was appended; if not, its blobs are orphaned."""


UpperOrError = Frontier | TimespineError


def compare_and_append(state: State, command: CompareAndAppend, now_ms: int) -> Commit[Frontier] | NoOp[UpperOrError]:
    """Append all batches or none."""
    expected, new_upper = command.expected_upper, command.new_upper
    refusal = _refuse(state, command)
    if refusal is not None:
        return NoOp(refusal)
    if expected == new_upper:
        return NoOp(state.upper)
    appended = [run for batch in command.batches for run in _runs_within(batch, expected, new_upper)]
    rows = sum(batch.len for batch in command.batches)
    grown = _push(state, appended, _description(state, command), rows, command.operation, now_ms)
    return Commit(grown, new_upper)


def append(state: State, command: Append, now_ms: int) -> Commit[AppendResult] | NoOp[AppendResult | TimespineError]:
    """Append the updates of the batch at or after the upper."""
    desc = command.batch.desc
    check_arity_of(desc.lower, state.arity, "lower")
    check_arity_of(desc.upper, state.arity, "upper")
    if desc.upper <= state.upper:
        return NoOp(AppendResult(state.upper, False))
    if not desc.lower <= state.upper:
        return NoOp(UpperMismatch(desc.lower, state.upper))
    fitted = CompareAndAppend((command.batch,), state.upper, desc.upper, judged_by=command.judged_by)
    outcome = compare_and_append(state, fitted, now_ms)
    if isinstance(outcome, Commit):
        return Commit(outcome.state, AppendResult(outcome.reply, True))
    return NoOp(outcome.reply if isinstance(outcome.reply, TimespineError) else AppendResult(outcome.reply, False))


def append_next(state: State, command: AppendNext, now_ms: int) -> Commit[AppendNextResult] | NoOp[TimespineError]:
    """Append at the requested time or the next free one: for a later time, rewrite the reference and not the data."""
    if state.arity != 1:
        return NoOp(UsageError(f"times of {state.arity} coordinates have no next free one: append at given times"))
    batch = command.batch
    if any(part.rewrite is not None or part.is_truncated for part in batch.parts):
        return NoOp(UsageError("a rewritten or truncated batch does not have all its updates at one time"))
    if state.upper.is_closed:
        return NoOp(ClosedError(f"collection {state.collection} is closed"))
    (at,) = check_time((command.at,), 1)
    time = max(at, state.upper.time)
    if time == INT64_MAX:
        return NoOp(UsageError(f"time {time} is the last there is: nothing completes it but closing the collection"))
    further = 0 if command.upper is None else check_time((command.upper,), 1)[0]
    new_upper = Frontier.at(max(time + 1, further))
    desc = Description(state.upper, new_upper, Frontier.minimum(1))
    # SUBTLE: by the present state, not by one that the caller knew: after a lost compare-and-set the
    # append is evaluated again, and may need a later time (planted.py: append_next_does_not_rewrite).
    runs = batch.runs if time == at else tuple(rewrite_batch(run, Frontier.at(time)) for run in batch.runs)
    # The interval is made here, from the upper on: that the batch fits it need not be asked. Its content is checked.
    check_content((batch,), 1)
    refusal = (
        refuse_unregistered(state, batch.parts)
        or _refuse_rows(state, batch, command.judged_by)
        or _refuse_inline(state, (batch,), command.inline_total_bytes)
    )
    if refusal is not None:
        return NoOp(refusal)
    grown = _push(state, list(runs), desc, batch.len, command.operation, now_ms)
    return Commit(grown, AppendNextResult(time, new_upper))


def advance_upper(state: State, command: AdvanceUpper, now_ms: int) -> Commit[Frontier] | NoOp[UpperOrError]:
    """Append nothing, up to a new upper."""
    check_arity_of(command.upper, state.arity, "upper")
    if command.upper <= state.upper:
        return NoOp(state.upper)
    return compare_and_append(state, CompareAndAppend((), state.upper, command.upper, "advance"), now_ms)


def _push(state: State, runs: list[Run], desc: Description, rows: int, operation: str, now_ms: int) -> State:
    """Return the state after an append of runs: with the batch in its trace, and an entry of history."""
    size = sum(part.total_bytes for run in runs for part in run.parts)
    drained = drain_trace(state)
    grown = push_batch(drained, [*runs, *drained_runs(drained, desc.upper)], desc)
    entry = HistoryEntry(desc.upper, now_ms, operation, rows, size)
    totals = state.totals.plus(appended_rows=rows, appended_bytes=size)
    return remember(msgspec.structs.replace(grown, upper=desc.upper, totals=totals), entry)


def _is_exact(batch: HollowBatch, lower: Frontier, upper: Frontier) -> bool:
    """Tell whether a batch describes exactly the times of an append."""
    return batch.desc.lower == lower and batch.desc.upper == upper


def _description(state: State, command: CompareAndAppend) -> Description:
    """Describe all batches of an append as one: exact from where all of them are."""
    first = command.batches[0].desc.since if command.batches else Frontier.minimum(state.arity)
    since = functools.reduce(Frontier.join, (batch.desc.since for batch in command.batches[1:]), first)
    for batch in command.batches[:1]:
        if since is first and _is_exact(batch, command.expected_upper, command.new_upper):
            return batch.desc
    return Description(command.expected_upper, command.new_upper, since)


def _refuse(state: State, command: CompareAndAppend) -> TimespineError | None:
    """Return why nothing is appended, or None."""
    expected, new_upper = command.expected_upper, command.new_upper
    # A description ends at or after its lower, with times of the same arity. So batches that are exactly from the
    # state's upper to the new one need no comparison of frontiers.
    is_exact = expected == state.upper and len(command.batches) > 0
    is_exact = is_exact and all(_is_exact(batch, expected, new_upper) for batch in command.batches)
    if is_exact:
        check_content(command.batches, state.arity)
    else:
        check_arity_of(expected, state.arity, "expected upper")
        check_arity_of(new_upper, state.arity, "new upper")
        check_hollow(command.batches, state.arity)
    for batch in command.batches:
        # Fenced comes before the mismatch: an expired writer must not take
        # the upper of its own successor for that of a rival.
        unregistered = refuse_unregistered(state, batch.parts)
        if unregistered is not None:
            return unregistered
    if expected != state.upper:
        return UpperMismatch(expected, state.upper)
    if not is_exact and not expected <= new_upper:
        return UsageError(f"the new upper {new_upper} is not at or after the expected upper {expected}")
    if expected == new_upper:
        if any(batch.len or batch.runs for batch in command.batches):
            return UsageError(f"updates need some time to be in: [{expected}, {new_upper}) is empty")
        return ClosedError(f"collection {state.collection} is closed") if expected.is_closed else None
    if command.written is not None and _is_written_since(state, command.written, new_upper):
        return ConcurrentWrite(expected, state.upper)
    rewritten = any(part.rewrite is not None for batch in command.batches for part in batch.parts)
    for batch in command.batches:
        wrong = _refuse_rows(state, batch, command.judged_by)
        if wrong is None and not is_exact:
            wrong = _refuse_interval(batch, expected, new_upper)
        if wrong is None and rewritten:
            wrong = _refuse_rewritten(state, batch, expected, new_upper)
        if wrong is not None:
            return wrong
    return _refuse_inline(state, command.batches, command.inline_total_bytes)


def _refuse_inline(state: State, batches: tuple[HollowBatch, ...], limit: int) -> TimespineError | None:
    """Return why the state has no room for the inline data of batches, or None."""
    inline = sum(batch.inline_bytes for batch in batches)
    if inline and state.inline_bytes + inline > limit:
        return InlineBudgetExceeded(inline, state.inline_bytes, limit)
    return None


def _refuse_rows(state: State, batch: HollowBatch, judged_by: int | None) -> TimespineError | None:
    """Return why the rows of a batch are not appended, whatever their times, or None."""
    schemas = [run.schema for run in batch.runs]
    unknown = refuse_unknown_schemas(state, schemas)
    if unknown is not None:
        return unknown
    if sum(part.rows for part in batch.parts) < batch.len:
        return UsageError(f"a batch of {batch.len} updates whose parts have fewer")
    # SUBTLE: by the present state. Another process may have dropped a column after the rows were
    # made, and no reader would see their values (planted.py: the_schema_of_new_rows_is_not_judged).
    return refuse_stale_schemas(state, schemas, judged_by)


def _is_written_since(state: State, number: int, upper: Frontier) -> bool:
    """Tell whether a write from a number on has updates below a frontier."""
    return any(batch.seqno >= number for batch in state.unsealed.between(state.upper, upper))


def _refuse_interval(batch: HollowBatch, lower: Frontier, upper: Frontier) -> TimespineError | None:
    """Return why a batch does not fit the interval, or None. A batch that spans more is cut at both ends.

    Cutting goes by the times in the data. A batch whose since is past its lower has had times advanced: an update from
    before `lower` may stand at or after it now, and would be appended a second time; one from before `upper` may stand
    after it, and would be lost. A since at or before the batch's own lower has moved nothing. That no batch is exact
    from past the state's since on, the spine checks (`MergePolicy.insert`).
    """
    desc = batch.desc
    if not (desc.lower <= lower and upper <= desc.upper):
        return UsageError(f"a batch of [{desc.lower}, {desc.upper}) does not cover the append [{lower}, {upper})")
    if not _is_exact(batch, lower, upper) and not desc.since <= desc.lower:
        return UsageError(f"a compacted batch of [{desc.lower}, {desc.upper}) cannot be cut to fit")
    return None


def _refuse_rewritten(state: State, batch: HollowBatch, lower: Frontier, upper: Frontier) -> TimespineError | None:
    """Return why a batch does not fit an append with rewritten parts, or None.

    Such an append cuts nothing, to keep it simple: it must follow from the bounds alone that every update is seen in
    [lower, upper). Those of a part are seen at or after the batch's lower and the part's rewriting, if it has one, and
    before the batch's upper if that rewriting is before it.
    """
    if state.arity != 1:
        return UsageError(f"times of {state.arity} coordinates cannot be rewritten: they have no total order")
    if batch.desc.upper != upper:
        return UsageError(f"a rewritten batch may have updates from {upper} on, up to {batch.desc.upper}")
    for part in batch.parts:
        # SUBTLE: strictly before. Advancing by the closed frontier leaves times as they are, so that one
        # is no bound (test_append_cut.py: test_part_rewritten_to_no_time_at_all_is_a_usage_error).
        if part.rewrite is not None and not part.rewrite < upper:
            return UsageError(f"a batch rewritten to {part.rewrite} does not lie below {upper}")
        bound = batch.desc.lower if part.rewrite is None else batch.desc.lower.join(part.rewrite)
        if not lower <= bound:
            return UsageError(f"a rewritten batch may have updates before {lower}, from {bound} on")
    return None


def _runs_within(batch: HollowBatch, lower: Frontier, upper: Frontier) -> list[Run]:
    """Return the runs of a batch, truncated if it spans more than [lower, upper).

    SUBTLE: a rewritten part is not truncated, whatever its bounds. All of it is seen in [lower, upper), and truncation,
    which goes by the times before that, would hide it (planted.py: rewritten_appends_are_cut).
    """
    if _is_exact(batch, lower, upper) or any(part.rewrite is not None for part in batch.parts):
        return list(batch.runs)
    return [
        Run(tuple(truncate_batch(part, lower, upper) for part in run.parts), run.order, run.schema)
        for run in batch.runs
    ]
