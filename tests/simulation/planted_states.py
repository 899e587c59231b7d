"""Planted bugs of merges, garbage, rollups and holds, which histories of the core are to notice: see `planted.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
from mutations import (
    bug,
    patched,
    patched_entry,
)

from timespine.core import group as group_module
from timespine.core import read_plan as plan_module
from timespine.core import state as state_module
from timespine.core.batch import HollowBatch, Run
from timespine.core.encoding import flat_spine as flat_module
from timespine.core.protocols import commit, garbage, maintain
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import retry
from timespine.core.spine import policy as loom_module
from timespine.core.state import Commit, NoOp
from timespine.core.transitions import (
    TRANSITIONS,
    AddRollup,
    ApplyMerge,
    CommitSink,
    ExpireLeases,
    RegisterHold,
    RegisterReader,
    RemoveRollups,
    Seal,
)
from timespine.model.frontier import Frontier

# By name in sys.modules: the package also exports functions of the same names.
append_module = sys.modules["timespine.core.transitions.append"]
merges_module = sys.modules["timespine.core.transitions.merges"]
push_module = sys.modules["timespine.core.transitions.trace_push"]
readers_module = sys.modules["timespine.core.transitions.readers"]
unsealed_module = sys.modules["timespine.core.transitions.unsealed"]


@bug
def expired_writers_may_commit() -> Iterator[None]:
    with (
        patched(append_module, "refuse_unregistered", lambda state, parts: None),
        patched(unsealed_module, "refuse_unregistered", lambda state, parts: None),
        patched(merges_module, "refuse_unregistered", lambda state, parts: None),
    ):
        yield


@bug
def a_late_merge_brings_back_a_dropped_part() -> Iterator[None]:
    with patched(merges_module, "_refuse_blobs", lambda state, command, replaced: None):
        yield


@bug
def merges_reach_past_the_since_of_the_spine() -> Iterator[None]:
    def past(self):
        return self.upper

    # Without the validation of states, which refuses such a merge wherever it is read.
    with (
        patched(loom_module.MergePolicy, "_merge_since", past),
        patched(flat_module, "validate", lambda spine, arity: None),
    ):
        yield


@bug
def a_merge_result_drops_a_neighbour() -> Iterator[None]:
    real = merges_module.apply_merge_result

    def apply(spine, output):
        replacement = real(spine, output)
        runs = tuple(Run(run.parts[:-1], run.order, run.schema) for run in output.runs)
        if not replacement.applied.is_applied or not runs or not runs[0].parts:
            return replacement
        return real(spine, HollowBatch(output.desc, output.len, runs))

    with patched(merges_module, "apply_merge_result", apply):
        yield


@bug
def a_dropped_merge_deletes_what_it_passed_through() -> Iterator[None]:
    real = maintain.delete_unreferenced

    def merge_as(session, collection, request, writer):
        output = yield maintain.MergeRuns(collection, request, writer)
        if output is None:
            return None
        replies = yield from maintain.commit(
            session, collection, ApplyMerge(output.batch, writer, passed=output.passed)
        )
        if not isinstance(replies, group_module.Refused) and replies[0].is_applied:
            return replies[0]
        yield from real(session, tuple(output.batch.keys))
        return None

    with patched(maintain, "_merge_as", merge_as):
        yield


@bug
def sweep_reads_the_state_before_it_lists() -> Iterator[None]:
    def sweep(session, collection):
        state = yield from refresh_state(session, collection)
        if state is None:
            return 0
        entries = yield from retry(session, garbage.Scan(collection, 0))
        oldest = yield from garbage._oldest_state(session, state, entries)
        if oldest is None:
            return 0
        live = {**garbage.references(state), **garbage.references(oldest)}
        live.update(garbage._references_of(entries))
        live.update((yield from garbage._children(session, live))[0])
        listed = yield from retry(session, garbage.ListBlobs(f"{collection}/"))
        orphans = [key for key in listed if key not in live and key.split("/")[1] not in state.writers]
        yield from garbage._delete(session, orphans)
        return len(orphans)

    with patched(garbage, "sweep", sweep):
        yield


@bug
def sweep_forgets_what_is_inside_hollow_runs() -> Iterator[None]:
    def children(session, runs):
        return {}, []
        yield

    with patched(garbage, "_children", children):
        yield


@bug
def a_dropped_merge_deletes_what_it_passed_through_in_runs() -> Iterator[None]:
    def delete(session, listed, writer):
        own = {key: hollow for key, hollow in listed.items() if garbage._is_of(key, writer)}
        inside, _ = yield from garbage._children(session, own)
        yield from garbage._delete_inside_first(session, {**own, **inside}, inside)

    with patched(maintain, "delete_written", delete):
        yield


@bug
def run_before_children() -> Iterator[None]:
    def delete(session, past, live):
        unreachable = {key: hollow for key, hollow in past.items() if key not in live}
        reachable = {**live, **(yield from garbage._children(session, live))[0]}
        inside, _ = yield from garbage._children(session, {key: True for key, hollow in unreachable.items() if hollow})
        yield from garbage._delete(session, list(unreachable))
        yield from garbage._delete(session, [key for key in inside if key not in reachable])
        return len(unreachable)

    with patched(garbage, "delete_with_children", delete):
        yield


@bug
def the_log_is_cut_before_garbage_is_deleted() -> Iterator[None]:
    def collect_garbage(session, collection, keep_ms=0):
        state = yield from refresh_state(session, collection)
        base = max((seqno for seqno in state.rollups if seqno <= state.seqno_since), default=None)
        if base is None:
            return 0
        entries = yield from retry(session, garbage.Scan(collection, 0))
        oldest = yield from garbage._oldest_state(session, state, entries)
        newer = yield from garbage._rollup(session, state, base)
        if oldest is not None and newer is not None and oldest.seqno < base:
            past = garbage.references(oldest)
            past.update(garbage._references_of(entry for entry in entries if entry[0] <= base))
            live = garbage.references(newer)
            live.update(garbage._references_of(entry for entry in entries if entry[0] > base))
            yield from retry(session, garbage.Truncate(collection, base + 1))
            yield from garbage.delete_with_children(session, past, live)
        yield from garbage.commit(session, collection, RemoveRollups(base))
        return 0

    with patched(garbage, "collect_garbage", collect_garbage):
        yield


@bug
def only_the_newest_rollup_is_kept() -> Iterator[None]:
    def remove(state, command, now_ms):
        newest = max(state.rollups, default=None)
        kept = {seqno: rollup for seqno, rollup in state.rollups.items() if seqno == newest}
        if len(kept) == len(state.rollups):
            return NoOp(0)
        return Commit(msgspec.structs.replace(state, rollups=kept), 1)

    with patched_entry(TRANSITIONS, RemoveRollups, remove):
        yield


@bug
def rollups_go_before_the_log_is_cut() -> Iterator[None]:
    real = TRANSITIONS[RemoveRollups]

    def remove(state, command, now_ms):
        return real(state, RemoveRollups(state.seqno), now_ms)

    with patched_entry(TRANSITIONS, RemoveRollups, remove):
        yield


@bug
def a_rollup_says_it_is_newer_than_it_is() -> Iterator[None]:
    real = TRANSITIONS[AddRollup]

    def add(state, command, now_ms):
        return real(state, msgspec.structs.replace(command, seqno=min(command.seqno + 1, state.seqno)), now_ms)

    with patched_entry(TRANSITIONS, AddRollup, add):
        yield


@bug
def a_reader_registers_for_the_next_state() -> Iterator[None]:
    real = TRANSITIONS[RegisterReader]

    def register(state, command, now_ms):
        outcome = real(state, command, now_ms)
        if isinstance(outcome, NoOp):
            return outcome
        reader = outcome.state.readers[command.reader]
        late = msgspec.structs.replace(reader, seqno=state.seqno + 3)
        readers = {**outcome.state.readers, command.reader: late}
        return Commit(msgspec.structs.replace(outcome.state, readers=readers), outcome.reply)

    with patched_entry(TRANSITIONS, RegisterReader, register):
        yield


@bug
def compaction_folds_times_up_to_the_upper() -> Iterator[None]:
    from timespine.testing.formats import naive

    def compact(updates, since):
        ahead = Frontier(tuple(tuple(c + 1 for c in time) for time in since))
        return engine_compact(updates, ahead)

    engine_compact = naive.compact
    with patched(naive, "compact", compact):
        yield


@bug
def past_runs_are_left_out_before_they_are_over() -> Iterator[None]:
    with patched(plan_module, "_is_zero", lambda run, time: run.zero_from is not None):
        yield


@bug
def inline_budget_is_not_counted() -> Iterator[None]:
    real = push_module.push_batch

    def pushed(state, runs, desc):
        grown = real(state, runs, desc)
        return msgspec.structs.replace(grown, inline_bytes=state.inline_bytes)

    with patched(append_module, "push_batch", pushed):
        yield


@bug
def a_critical_hold_is_granted_and_not_kept() -> Iterator[None]:
    def register(state, command, now_ms):
        since = readers_module._clamped(state, command.since)
        return NoOp(readers_module.Grant(since, state.seqno))

    with patched_entry(TRANSITIONS, RegisterHold, register):
        yield


@bug
def expiry_takes_critical_holds_too() -> Iterator[None]:
    real = TRANSITIONS[ExpireLeases]

    def expire(state, command, now_ms):
        keys_only = state_module.settle_since(msgspec.structs.replace(state, holds={}), now_ms)
        outcome = real(keys_only, command, now_ms)
        return Commit(keys_only, 0) if isinstance(outcome, NoOp) and keys_only != state else outcome

    with patched_entry(TRANSITIONS, ExpireLeases, expire):
        yield


@bug
def replicated_append_cuts_too_much() -> Iterator[None]:
    real = append_module._runs_within

    def runs(batch, lower, upper):
        later = Frontier(tuple(tuple(c + 1 for c in time) for time in lower))
        return real(batch, later if batch.desc.lower != lower and later <= upper else lower, upper)

    with patched(append_module, "_runs_within", runs):
        yield


@bug
def diffs_forget_holds() -> Iterator[None]:
    real = commit.diff

    with patched(commit, "diff", lambda old, new: msgspec.structs.replace(real(old, new), holds={})):
        yield


@bug
def diffs_forget_history() -> Iterator[None]:
    real = commit.diff

    with patched(commit, "diff", lambda old, new: msgspec.structs.replace(real(old, new), h=(), f=0)):
        yield


@bug
def a_seal_is_acknowledged_and_not_done() -> Iterator[None]:
    with patched_entry(TRANSITIONS, Seal, lambda state, command, now_ms: NoOp(command.upper)):
        yield


@bug
def a_sink_does_not_remember_its_batch() -> Iterator[None]:
    with patched_entry(TRANSITIONS, CommitSink, lambda state, command, now_ms: NoOp(None)):
        yield


@bug
def a_refused_transaction_takes_its_neighbours_along() -> Iterator[None]:
    real = group_module.evaluate

    def judge(states, group, now_ms):
        judged = real(states, group, now_ms)
        if isinstance(judged, group_module.Evaluated):
            refused = [reply for reply in judged.replies if isinstance(reply, group_module.Refused)]
            if refused and len(judged.replies) > 1:
                return group_module.Evaluated({}, tuple(refused[0] for _ in judged.replies))
        return judged

    with patched(commit, "evaluate", judge):
        yield


@bug
def uppers_that_were_relied_on_are_not_looked_at() -> Iterator[None]:
    real = group_module._evaluate_transaction

    def judge(current, transaction, group, now_ms):
        return real(current, group_module.CommandTransaction(transaction.commands), group, now_ms)

    with patched(group_module, "_evaluate_transaction", judge):
        yield
