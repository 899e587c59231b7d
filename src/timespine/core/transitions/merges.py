"""Merges as the state sees them: claims, results, and requests for more."""

from __future__ import annotations

import msgspec

from timespine.config import DEFAULT
from timespine.core.batch import Count, HollowBatch, Part
from timespine.core.encoding.validate import check_hollow
from timespine.core.spine.merge_result import MergeApplication, apply_merge_result
from timespine.core.spine.spine import Spine
from timespine.core.state import Claim, Commit, NoOp, State
from timespine.core.totals import Totals
from timespine.core.transitions.command import Command
from timespine.core.transitions.trace_push import with_live_claims
from timespine.core.transitions.writers import check_term, refuse_unregistered
from timespine.errors import Fenced, InlineBudgetExceeded, TimespineError, UsageError
from timespine.ids import check_segment, parse_blob_key
from timespine.model.frontier import Frontier


class ClaimMerge(Command, frozen=True, array_like=True):
    """Claim the merge of a fueled batch."""

    id: tuple[int, int]
    claimant: str
    term_ms: int


class ApplyMerge(Command, frozen=True, array_like=True):
    """Offer a merge result. Its new blobs are those of one writer, registered for this merge alone."""

    output: HollowBatch
    writer: str
    inline_total_bytes: int = DEFAULT.inline_total_bytes
    passed: tuple[str, ...] = ()
    """The parts that it passes through by reference (`MergeOutput.passed`): the result must replace all of them."""
    rows: Count = 0
    """Updates that the merge wrote, without those that it passed through."""
    size: Count = 0
    """Bytes that it wrote, lists of parts included."""
    ms: Count = 0
    """The duration of the merge, in milliseconds."""


class Exert(Command, frozen=True, array_like=True):
    """Spend fuel on an idle trace."""

    fuel: int


class Refresh(Command, frozen=True, array_like=True):
    """Request another merge of a merged batch by itself, up to since."""

    id: tuple[int, int]
    extra: bool = False
    """Whether maintenance asks on its own account: refused if its budget is spent (`Totals.extra_rows`)."""


class RollUpAll(Command, frozen=True, array_like=True):
    """Request one run of everything, or of everything from some insertion on."""

    lo: Count = 0
    extra: bool = False
    """Whether maintenance asks on its own account: refused if its budget is spent (`Totals.extra_rows`)."""


class Forget(Command, frozen=True, array_like=True):
    """Request a rewrite of the batches that may hold expired history, from some insertion on: its deadline has passed.

    None: no batch can hold any. Then at most garbage does, and without garbage there is nothing to do.
    """

    lo: Count | None
    since: Frontier
    """The since by which `lo` was worked out."""


def claim_merge(state: State, command: ClaimMerge, now_ms: int) -> Commit[bool] | NoOp[bool]:
    """Claim a fueled batch that no other process works on; reply whether it was granted.

    A writer whose merge failed leaves, and its claim only tells others to wait: a process that cannot wait may take it
    over.
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
    """Tell whether the claimant of a merge may still work on it."""
    return claim.until_ms >= now_ms and claim.claimant in state.writers


def apply_merge(
    state: State, command: ApplyMerge, now_ms: int
) -> Commit[MergeApplication] | NoOp[MergeApplication | TimespineError]:
    """Apply a merge result, or reply why not. The caller deletes orphaned blobs."""
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
    """Return the bytes of replaced parts that the state no longer refers to.

    Parts that were passed through stay, inside hollow runs too: they are the difference between the result and what the
    merge wrote. A part that was cut may be in other batches as well, and a drained one in an unsealed batch that is not
    evicted yet.
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
    """Return why a result refers to blobs that it must not, or None.

    SUBTLE: a blob that is not new must be one that the result replaces. A late
    result that passes a part through by reference, after another merge dropped
    that part, would bring back a blob that may be deleted already
    (tests/core/transitions/test_merges.py).

    A transition cannot look inside a hollow run, so a result names the listed parts that it passes through or
    takes parts from (`passed`). While the state lists a hollow run, all that is inside of it is reachable and
    is not deleted; from the commit on, the new hollow run keeps what it passes on reachable. The writer of such
    a part may be gone for long. That fences nothing: only a first reference needs a registered writer,
    and this blob was referred to ever since
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
    """Let merges progress without data; reply how many spine batches there are then."""
    trace = state.trace.exert(command.fuel)
    if trace.layers == state.trace.layers:
        return NoOp(trace.batch_count)
    return Commit(with_live_claims(msgspec.structs.replace(state, trace=trace)), trace.batch_count)


def refresh(state: State, command: Refresh, now_ms: int) -> Commit[bool] | NoOp[bool]:
    """Make a merged batch a request again; reply whether that gains anything, and fits the budget if it is extra."""
    trace = state.trace.refresh(command.id)
    totals = _charged(state, trace) if trace is not None and command.extra else state.totals
    if trace is None or totals is None:
        return NoOp(False)
    return Commit(msgspec.structs.replace(state, trace=trace, totals=totals), True)


def roll_up_all(state: State, command: RollUpAll, now_ms: int) -> Commit[int] | NoOp[int]:
    """Make everything from some insertion on one request; reply how many hollow batches there are."""
    trace = state.trace.roll_up_all(command.lo)
    totals = _charged(state, trace) if command.extra else state.totals
    if trace is state.trace or totals is None:
        return NoOp(state.trace.hollow_count)
    rolled_up = msgspec.structs.replace(state, trace=trace, totals=totals)
    return Commit(with_live_claims(rolled_up), trace.hollow_count)


def _charged(state: State, trace: Spine) -> Totals | None:
    """Return the totals with the updates of new requests charged; None if that is more than the budget."""
    known = {batch.id for batch in state.trace.batches() if batch.fueled}
    rows = sum(batch.len for batch in trace.batches() if batch.fueled and batch.id not in known)
    return state.totals.plus(extra_rows=rows) if rows <= state.totals.budget_rows else None


def forget(state: State, command: Forget, now_ms: int) -> Commit[bool] | NoOp[bool]:
    """Request the rewrite, once; reply whether there is anything left to forget.

    If since has moved in the meantime, other batches may hold expired history: the caller has to look again.

    SUBTLE: garbage counts. A merge may have dropped expired history, and its inputs are still there, in blobs or, if
    they were inline, in the log and in rollups (test_maintenance_cost.py).
    """
    known = state.forgetting
    if known is None or known.asked_ms is not None or command.since != state.since:
        return NoOp(known is not None)
    trace = state.trace if command.lo is None else state.trace.roll_up_all(command.lo)
    if trace is state.trace and not state.totals.garbage_bytes and not trace.requests():
        return Commit(msgspec.structs.replace(state, forgetting=None), False)
    asked = msgspec.structs.replace(known, asked_ms=now_ms, below=trace.next_id)
    return Commit(with_live_claims(msgspec.structs.replace(state, trace=trace, forgetting=asked)), True)
