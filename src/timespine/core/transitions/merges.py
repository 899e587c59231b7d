"""Merging as seen by the state: claims, results, and the ways to ask for more."""

from __future__ import annotations

import msgspec

from timespine.config import DEFAULT
from timespine.core.batch import Count, HollowBatch, Part
from timespine.core.encoding.validate import check_hollow
from timespine.core.spine.merge_result import Applied, apply_merge_result
from timespine.core.spine.spine import Spine
from timespine.core.state import Claim, Commit, NoOp, State
from timespine.core.totals import Totals
from timespine.core.transitions.trace_push import with_live_claims
from timespine.core.transitions.writers import check_term, refuse_unregistered
from timespine.errors import Fenced, InlineBudgetExceeded, TimespineError, UsageError
from timespine.ids import check_segment, parse_blob_key


class ClaimMerge(msgspec.Struct, frozen=True, array_like=True):
    """Say that one is at work on a fueled batch."""

    id: tuple[int, int]
    claimant: str
    term_ms: int


class ApplyMerge(msgspec.Struct, frozen=True, array_like=True):
    """Offer a merge result. Its new blobs are those of one writer, registered for this merge alone."""

    output: HollowBatch
    writer: str
    inline_total_bytes: int = DEFAULT.inline_total_bytes
    passed: tuple[str, ...] = ()
    """What it passes through by reference (`MergeOutput.passed`): all of it must be among what the result replaces."""
    rows: Count = 0
    """Updates that the merge wrote: not those that it passed on by reference."""
    size: Count = 0
    """Bytes that it wrote, lists of parts included."""
    ms: Count = 0
    """How long it took."""


class Exert(msgspec.Struct, frozen=True, array_like=True):
    """Spend fuel on an idle trace."""

    fuel: int


class Refresh(msgspec.Struct, frozen=True, array_like=True):
    """Ask for a merged batch to be merged again by itself, up to since."""

    id: tuple[int, int]
    extra: bool = False
    """Whether maintenance asks by itself: refused if its budget is spent (`Totals.extra_rows`)."""


class RollUpAll(msgspec.Struct, frozen=True, array_like=True):
    """Ask for everything to become one run, or for everything from some insertion on."""

    lo: Count = 0
    extra: bool = False
    """Whether maintenance asks by itself: refused if its budget is spent (`Totals.extra_rows`)."""


class Forget(msgspec.Struct, frozen=True, array_like=True):
    """Ask for a rewrite of what may hold expired history, from some insertion on, since its deadline has passed.

    None: no batch can hold any. Then at most garbage does, and there is nothing to do if there is none.
    """

    lo: Count | None


def claim_merge(state: State, command: ClaimMerge, now_ms: int) -> Commit[bool] | NoOp[bool]:
    """Claim a fueled batch that nobody else works on; whether it was granted.

    The claim of a writer that has left, since its merge came to nothing, is only a hint to let some time
    pass: whoever cannot wait may take it over.
    """
    check_segment(command.claimant, "claimant")
    if all(batch.id != command.id or not batch.fueled for batch in state.trace.batches()):
        return NoOp(False)
    known = state.claims.get(command.id)
    if known is not None and known.claimant != command.claimant and is_at_work(state, known, now_ms):
        return NoOp(False)
    claim = Claim(command.claimant, now_ms + check_term(command.term_ms))
    if known == claim:
        return NoOp(True)
    return Commit(msgspec.structs.replace(state, claims={**state.claims, command.id: claim}), True)


def is_at_work(state: State, claim: Claim, now_ms: int) -> bool:
    """Whether whoever claimed a merge may still be doing it."""
    return claim.until_ms >= now_ms and claim.claimant in state.writers


def apply_merge(state: State, command: ApplyMerge, now_ms: int) -> Commit[Applied] | NoOp[Applied | TimespineError]:
    """Put a merge result in its place, or say why not. The caller deletes what it wrote in vain."""
    check_hollow((command.output,), state.arity)
    if command.output.len != sum(part.rows for part in command.output.parts):
        return NoOp(UsageError(f"a merge result of {command.output.len} updates whose parts have another number"))
    if command.rows > command.output.len:
        return NoOp(UsageError(f"a merge result of {command.output.len} updates of which {command.rows} were written"))
    replacement = apply_merge_result(state.trace, command.output)
    if not replacement.applied.is_applied:
        return NoOp(replacement.applied)
    replaced = [part for leaf in replacement.removed for part in leaf.batch.parts]
    refusal = _refuse_blobs(state, command, {part.key for part in replaced if part.key})
    if refusal is not None:
        return NoOp(refusal)
    inline = command.output.inline_bytes - sum(len(part.inline) for part in replaced if part.inline is not None)
    if inline > 0 and state.inline_bytes + inline > command.inline_total_bytes:
        return NoOp(InlineBudgetExceeded(inline, state.inline_bytes, command.inline_total_bytes))
    merged = msgspec.structs.replace(state, trace=replacement.spine, inline_bytes=state.inline_bytes + inline)
    totals = state.totals.plus(
        merged_rows=command.rows,
        merged_bytes=command.size,
        dropped_bytes=_dropped(merged, command, replaced),
        merge_ms=command.ms,
    )
    return Commit(with_live_claims(msgspec.structs.replace(merged, totals=totals)), replacement.applied)


def _dropped(merged: State, command: ApplyMerge, replaced: list[Part]) -> int:
    """Bytes of replaced parts that the state does not refer to any longer.

    What was passed on by reference stays, inside hollow runs too: it is the difference between what the result has
    and what the merge wrote. A part that was cut may be in other batches as well, and one that was drained in an
    unsealed batch that is not evicted yet.
    """
    sizes = {part.key: part.total_bytes for part in replaced if part.key}
    cut = {part.key for part in replaced if part.key and part.is_truncated}
    for batch in merged.hollow_batches() if cut else ():
        for part in batch.parts:
            if part.key in cut:
                sizes.pop(part.key, None)
    for unsealed in merged.unsealed:
        for part in unsealed.parts:
            sizes.pop(part.key, None)
    inline = sum(len(part.inline) for part in replaced if part.inline is not None)
    passed = sum(part.total_bytes for part in command.output.parts) - command.size
    return max(sum(sizes.values()) + inline - max(passed, 0), 0)


def _refuse_blobs(state: State, command: ApplyMerge, replaced: set[str]) -> TimespineError | None:
    """Why a result refers to blobs that it must not, if so.

    SUBTLE: a blob that is not new must be one that the result replaces. A late
    result that passes a part through by reference, after another merge dropped
    that part, would bring back a blob that may be deleted already
    (tests/core/transitions/test_merges.py).

    A transition cannot look inside a hollow run, so a result names the listed parts that it passes through or
    takes parts from (`passed`). While the state lists a hollow run, all that is inside of it is reachable and
    is not deleted; from the commit on, the new hollow run keeps what it passes on reachable. The writer of such
    a part may be gone for long. That fences nothing: what a writer must be registered for is a first
    reference, and this blob was referred to ever since
    (test_late_result_that_takes_parts_out_of_a_dropped_run_is_refused).
    """
    for key in command.passed:
        if key not in replaced:
            return Fenced(f"the result passes parts of blob {key} on, which it does not replace: merge again")
    fresh: list[Part] = [part for part in command.output.parts if part.key not in replaced]
    for part in fresh:
        if part.key and parse_blob_key(part.key).writer != command.writer:
            return Fenced(f"blob {part.key} is neither new nor part of what the merge replaces: merge again")
    return refuse_unregistered(state, fresh)


def exert(state: State, command: Exert, now_ms: int) -> Commit[int] | NoOp[int]:
    """Let merges progress without data; how many spine batches there are then."""
    trace = state.trace.exert(command.fuel)
    if trace.layers == state.trace.layers:
        return NoOp(trace.batch_count)
    return Commit(with_live_claims(msgspec.structs.replace(state, trace=trace)), trace.batch_count)


def refresh(state: State, command: Refresh, now_ms: int) -> Commit[bool] | NoOp[bool]:
    """Make a merged batch a request again; whether there was anything to gain, and enough budget if it is extra."""
    trace = state.trace.refresh(command.id)
    totals = _charged(state, trace) if trace is not None and command.extra else state.totals
    if trace is None or totals is None:
        return NoOp(False)
    return Commit(msgspec.structs.replace(state, trace=trace, totals=totals), True)


def roll_up_all(state: State, command: RollUpAll, now_ms: int) -> Commit[int] | NoOp[int]:
    """Make everything from some insertion on one request; how many hollow batches there are."""
    trace = state.trace.roll_up_all(command.lo)
    totals = _charged(state, trace) if command.extra else state.totals
    if trace is state.trace or totals is None:
        return NoOp(state.trace.hollow_count)
    rolled_up = msgspec.structs.replace(state, trace=trace, totals=totals)
    return Commit(with_live_claims(rolled_up), trace.hollow_count)


def _charged(state: State, trace: Spine) -> Totals | None:
    """The totals with the updates of new requests charged; None if that is more than the budget."""
    known = {batch.id for batch in state.trace.batches() if batch.fueled}
    rows = sum(batch.len for batch in trace.batches() if batch.fueled and batch.id not in known)
    return state.totals.plus(extra_rows=rows) if rows <= state.totals.budget_rows else None


def forget(state: State, command: Forget, now_ms: int) -> Commit[bool] | NoOp[bool]:
    """Ask for the rewrite, once; whether there is anything left to forget.

    SUBTLE: garbage counts. A merge may have dropped what expired, and its inputs are still there, in blobs or, if
    they were inline, in the log and in rollups (test_maintenance_cost.py).
    """
    known = state.forgetting
    if known is None or known.asked_ms is not None:
        return NoOp(known is not None)
    trace = state.trace if command.lo is None else state.trace.roll_up_all(command.lo)
    if trace is state.trace and not state.totals.garbage_bytes and not trace.requests():
        return Commit(msgspec.structs.replace(state, forgetting=None), False)
    asked = msgspec.structs.replace(known, asked_ms=now_ms, below=trace.next_id)
    return Commit(with_live_claims(msgspec.structs.replace(state, trace=trace, forgetting=asked)), True)
