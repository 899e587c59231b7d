"""Planted bugs: patches that break one thing each, to see that the checker notices.

Each is applied in tests only. `python tests/simulation/planted.py` searches, for
each, the first seed whose history gives it away; `--pin` writes them down for
`test_planted.py`. A survivor means that a property is missing. Those of streams are
in `planted_streams.py`, those of the client in `planted_client.py`, those of turns in
`planted_turns.py`, those of the relay in `planted_relay.py`, those of spines of arrangements in
`planted_spines.py`, those of a bucket alone in `planted_bucket.py`, those of views in
`planted_views.py`, those of deleted data in `planted_kept.py`, those of checkpoints of arrangements in
`planted_checkpoints.py`, those of copies and restores in `planted_copies.py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import planted_bucket  # noqa: F401 (for the bugs in it)
import planted_checkpoints  # noqa: F401 (for the bugs in it)
import planted_client  # noqa: F401 (for the bugs in it)
import planted_copies  # noqa: F401 (for the bugs in it)
import planted_following  # noqa: F401 (for the bugs in it)
import planted_kept  # noqa: F401 (for the bugs in it)
import planted_relay  # noqa: F401 (for the bugs in it)
import planted_spines  # noqa: F401 (for the bugs in it)
import planted_streams  # noqa: F401 (for the bugs in it)
import planted_turns  # noqa: F401 (for the bugs in it)
import planted_views  # noqa: F401 (for the bugs in it)
from mutations import (
    ARRANGEMENTS,
    BUCKET,
    BUGS,
    COPIES,
    KEPT,
    REAL,
    REAL_SPINES,
    SCHEMAS,
    SPINES,
    STORES,
    STREAMS,
    VIEWS,
    bug,
    catching,
    in_schemas,
    on_real_storage,
    patched,
    patched_entry,
    patched_everywhere,
)

from timespine.columnar.ingest import update_table
from timespine.columnar.merge import merge_plan as stretches_module
from timespine.columnar.merge import run_merge, split_past
from timespine.columnar.scan import prune as prune_module
from timespine.columnar.scan import visibility
from timespine.core import group as group_module
from timespine.core import read_plan as plan_module
from timespine.core import state as state_module
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.encoding import flat_spine as flat_module
from timespine.core.protocols import commit, garbage, maintain
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import retry
from timespine.core.spine import policy as loom_module
from timespine.core.state import Commit, NoOp
from timespine.core.transitions import (
    TRANSITIONS,
    AddRollup,
    AppendNext,
    ApplyMerge,
    CommitSink,
    Evict,
    ExpireLeases,
    RegisterHold,
    RegisterReader,
    RemoveRollups,
    Seal,
    Trim,
)
from timespine.errors import UpperMismatch
from timespine.model.frontier import Frontier
from timespine.testing.bucket.history import run_bucket_history
from timespine.testing.copies.copy_history import run_copy_history
from timespine.testing.refreshers.view_history import run_view_history
from timespine.testing.simulator import core_reads
from timespine.testing.simulator.checker import HistoryResult, run_core_history
from timespine.testing.simulator.violation import Violation
from timespine.testing.spines.history import run_spine_history
from timespine.testing.stores import history_run
from timespine.testing.stores.arranging_users import run_arrangement_history

SEEDS = Path(__file__).with_name("planted_seeds.json")

# By name in sys.modules: the package also exports functions of the same names.
append_module = sys.modules["timespine.core.transitions.append"]
merges_module = sys.modules["timespine.core.transitions.merges"]
push_module = sys.modules["timespine.core.transitions.trace_push"]
readers_module = sys.modules["timespine.core.transitions.readers"]
writers_module = sys.modules["timespine.core.transitions.writers"]
unsealed_module = sys.modules["timespine.core.transitions.unsealed"]

REAL_OPERATIONS = 25
"""Operations of such a history."""

STORE_CALLS = 40
"""Calls of a history of real stores."""

SPINE_CALLS = 60
"""Calls of a history of spines."""

BUCKET_CALLS = 40
"""Calls of a history of a bucket."""

COPY_CALLS = 20
"""Calls of a history of copies."""

VIEW_CALLS = 30
"""Calls of a history of views."""

SPREAD = 12
"""Seeds from the pinned one on that may give a bug of real rows or stores away: what their histories meet changes with
the columnar layer and the client."""


@bug
def group_number_is_not_recorded() -> Iterator[None]:
    def committed(state, group, origins, now_ms):
        return msgspec.structs.replace(state, seqno=state.seqno + 1)

    with patched(group_module, "_next_state", committed):
        yield


@bug
def a_lost_compare_and_set_counts_as_won() -> Iterator[None]:
    real = commit._store

    def store(session, sent):
        yield from real(session, sent)
        return None

    with patched(commit, "_store", store):
        yield


@bug
def a_no_is_judged_by_an_old_state() -> Iterator[None]:
    def commit_group(session, group, extra_writes=()):
        states = yield from commit._known_states(session, group)
        for _ in range(session.config.commit_attempts):
            now_ms = yield commit.Now()
            judged = group_module.evaluate(states, group, now_ms)
            if isinstance(judged, Exception):
                raise judged
            if not judged.changed:
                return judged.replies
            entries = [commit._entry(states[name], state, now_ms) for name, state in judged.changed.items()]
            sent = commit.InDoubt(group, judged, (*extra_writes, *entries))
            if (yield from commit._store(session, sent)) is None:
                return judged.replies
            states, is_in = yield from commit._read_after_loss(session, sent, states)
            if is_in:
                return judged.replies
        raise commit.Determinate("lost")

    with patched(commit, "commit_group", commit_group):
        yield


@in_schemas
@bug
def the_schema_of_new_rows_is_not_judged() -> Iterator[None]:
    def refuse_stale_schemas(state, schemas, judged_by):
        return None

    with (
        patched(append_module, "refuse_stale_schemas", refuse_stale_schemas),
        patched(unsealed_module, "refuse_stale_schemas", refuse_stale_schemas),
    ):
        yield


@in_schemas
@bug
def rows_that_were_judged_by_an_older_schema_are_taken() -> Iterator[None]:
    real = writers_module.refuse_stale_schemas

    def refuse_stale_schemas(state, schemas, judged_by):
        return None if judged_by is not None else real(state, schemas, judged_by)

    with patched(append_module, "refuse_stale_schemas", refuse_stale_schemas):
        yield


@bug
def since_ignores_leases() -> Iterator[None]:
    def settle(state, now_ms):
        target = state.retention
        for hold in state.holds.values():
            target = target.meet(hold.since)
        return msgspec.structs.replace(state, trace=state.trace.downgrade_since(target))

    with patched(readers_module, "settle_since", settle):
        yield


@bug
def since_ignores_critical_holds() -> Iterator[None]:
    def settle(state, now_ms):
        target = state.retention
        for reader in state.readers.values():
            target = target.meet(reader.since)
        return msgspec.structs.replace(state, trace=state.trace.downgrade_since(target))

    with patched(readers_module, "settle_since", settle):
        yield


@bug
def readers_are_not_clamped_to_since() -> Iterator[None]:
    def clamped(state, since):
        return state.since if since is None else since

    with patched(readers_module, "_clamped", clamped):
        yield


@bug
def readers_do_not_hold_states() -> Iterator[None]:
    with patched(state_module.State, "seqno_since", property(lambda self: self.seqno)):
        yield


@bug
def snapshot_forgets_unsealed() -> Iterator[None]:
    def runs(state, after, until):
        return tuple(run for batch in state.trace.hollow_batches() for run in batch.runs)

    with patched(plan_module, "_runs", runs):
        yield


@bug
def snapshot_counts_drained_updates_twice() -> Iterator[None]:
    def runs(state, after, until):
        found = [run for batch in state.trace.hollow_batches() for run in batch.runs]
        found.extend(Run(batch.parts, Order.UNORDERED, batch.schema) for batch in state.unsealed)
        return tuple(found)

    with patched(plan_module, "_runs", runs):
        yield


@bug
def drain_does_not_truncate() -> Iterator[None]:
    def drained(state, upper):
        lower = state.trace.upper
        return [
            Run(batch.parts, Order.UNORDERED, batch.schema)
            for batch in state.unsealed
            if not batch.is_wholly_below(lower) and batch.has_times_below(upper)
        ]

    with patched(push_module, "drained_runs", drained), patched(append_module, "drained_runs", drained):
        yield


@bug
def append_forgets_unsealed_in_its_range() -> Iterator[None]:
    with patched(append_module, "drained_runs", lambda state, upper: []):
        yield


@bug
def evict_goes_by_the_upper_of_the_collection() -> Iterator[None]:
    real = unsealed_module.evict

    def evict(state, command, now_ms):
        pretended = msgspec.structs.replace(state, trace=msgspec.structs.replace(state.trace, upper=state.upper))
        outcome = real(pretended, command, now_ms)
        if isinstance(outcome, NoOp):
            return outcome
        return Commit(msgspec.structs.replace(outcome.state, trace=state.trace), outcome.reply)

    with patched_entry(TRANSITIONS, Evict, evict):
        yield


@bug
def trim_without_truncation() -> Iterator[None]:
    with patched(unsealed_module, "truncate_batch", lambda part, lower, upper: part):
        yield


@bug
def trim_takes_parts_made_against_any_upper() -> Iterator[None]:
    real = unsealed_module.trim

    def trim(state, command, now_ms):
        if command.parts is not None:
            # Pretend that they were made against a later upper: drop one row too many.
            command = Trim(command.seqno, command.parts[:-1], state.trace.upper)
        return real(state, command, now_ms)

    with patched_entry(TRANSITIONS, Trim, trim):
        yield


@bug
def replicated_append_does_not_cut_what_is_there() -> Iterator[None]:
    with patched(append_module, "_runs_within", lambda batch, lower, upper: list(batch.runs)):
        yield


@bug
def append_next_does_not_rewrite() -> Iterator[None]:
    with patched(append_module, "rewrite_batch", lambda run, at: run):
        yield


@bug
def append_next_hides_what_it_should_rewrite() -> Iterator[None]:
    def cut(run, at):
        parts = tuple(msgspec.structs.replace(part, lower=at) for part in run.parts)
        return Run(parts, run.order, run.schema)

    with patched(append_module, "rewrite_batch", cut):
        yield


@bug
def append_next_tells_the_time_that_was_asked_for() -> Iterator[None]:
    real = TRANSITIONS[AppendNext]

    def append_next(state, command, now_ms):
        outcome = real(state, command, now_ms)
        if isinstance(outcome, NoOp):
            return outcome
        return Commit(outcome.state, msgspec.structs.replace(outcome.reply, time=command.at))

    with patched_entry(TRANSITIONS, AppendNext, append_next):
        yield


@bug
def append_next_loses_to_the_writer_that_sealed_its_time() -> Iterator[None]:
    real = TRANSITIONS[AppendNext]

    def append_next(state, command, now_ms):
        if not state.upper.less_equal((command.at,)):
            return NoOp(UpperMismatch(Frontier.at(command.at), state.upper))
        return real(state, command, now_ms)

    with patched_entry(TRANSITIONS, AppendNext, append_next):
        yield


@bug
def append_next_skips_a_free_time() -> Iterator[None]:
    real = TRANSITIONS[AppendNext]

    def append_next(state, command, now_ms):
        sealed = not state.upper.less_equal((command.at,)) if state.arity == 1 else False
        if not sealed:
            return real(state, command, now_ms)
        later = Frontier.at(state.upper.elements[0][0] + 1)
        return real(msgspec.structs.replace(state, upper=later), command, now_ms)

    with patched_entry(TRANSITIONS, AppendNext, append_next):
        yield


@bug
def hollow_runs_forget_that_they_are_rewritten() -> Iterator[None]:
    from timespine.testing.formats import naive

    def seen_through(run, child):
        return push_module.truncate_batch(child, run.lower, run.upper)

    with patched(core_reads, "apply_parent_bounds", seen_through), patched(naive, "apply_parent_bounds", seen_through):
        yield


@bug
def rewritten_appends_are_cut() -> Iterator[None]:
    def runs(batch, lower, upper):
        if batch.desc.lower == lower and batch.desc.upper == upper:
            return list(batch.runs)
        return [
            Run(tuple(push_module.truncate_batch(part, lower, upper) for part in run.parts), run.order, run.schema)
            for run in batch.runs
        ]

    with patched(append_module, "_runs_within", runs):
        yield


@bug
def rewritten_appends_may_reach_into_the_past() -> Iterator[None]:
    with patched(append_module, "_refuse_rewritten", lambda state, batch, lower, upper: None):
        yield


@bug
def cutting_forgets_what_was_cut_before() -> Iterator[None]:
    def truncated(part, lower, upper):
        return msgspec.structs.replace(part, lower=lower, upper=upper)

    with patched(append_module, "truncate_batch", truncated):
        yield


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


# The columnar layer and the adapters: only real rows on real storage give these away.


@on_real_storage
@bug
def a_part_is_passed_through_although_another_one_overlaps_it() -> Iterator[None]:
    def overlapping(pieces):
        for piece in sorted(pieces, key=lambda piece: piece.lower):
            yield [piece], piece.lower, piece.upper

    with patched(stretches_module, "_group_overlapping", overlapping):
        yield


@on_real_storage
@bug
def a_part_is_passed_through_as_if_it_were_whole() -> Iterator[None]:
    real_may, real_pass = run_merge.RunMerge._may_pass, run_merge.RunMerge._pass

    def may_pass(self, piece):
        return real_may(self, replace(piece, part=_whole(piece.part)))

    def pass_(self, output, piece):
        real_pass(self, output, replace(piece, part=_whole(piece.part)))

    with patched(run_merge.RunMerge, "_may_pass", may_pass), patched(run_merge.RunMerge, "_pass", pass_):
        yield


@on_real_storage
@bug
def the_update_after_the_last_zero_of_a_row_is_taken_for_past() -> Iterator[None]:
    real = split_past._past

    def past(diffs, repeats):
        found = real(diffs, repeats)
        if found is not None:
            found[1:] |= found[:-1] & repeats[1:]
        return found

    with patched(split_past, "_past", past):
        yield


@on_real_storage
@bug
def the_past_is_dropped_before_it_is_expired() -> Iterator[None]:
    with patched(run_merge.RunMerge, "_is_expired", lambda self, stretch: not stretch.tables):
        yield


@on_real_storage
@bug
def a_merge_forgets_that_times_are_rewritten() -> Iterator[None]:
    real = visibility.apply_visibility

    def seen(table, part, window, arity):
        if window.since is not None:
            part = msgspec.structs.replace(part, rewrite=None)
        return real(table, part, window, arity)

    with patched_everywhere(real, seen):
        yield


@on_real_storage
@bug
def a_merge_advances_times_before_it_looks_at_bounds() -> Iterator[None]:
    real = visibility.apply_visibility

    def seen(table, part, window, arity):
        if window.since is None:
            return real(table, part, window, arity)
        advanced = real(table, Part("", 0), window, arity)
        return real(advanced, part, window, arity)

    with patched_everywhere(real, seen):
        yield


@on_real_storage
@bug
def the_truncation_of_inline_data_is_ignored() -> Iterator[None]:
    real = visibility.apply_visibility

    def seen(table, part, window, arity):
        if part.inline is not None:
            part = msgspec.structs.replace(part, lower=None, upper=None)
        return real(table, part, window, arity)

    with patched_everywhere(real, seen):
        yield


@on_real_storage
@bug
def parts_are_skipped_by_times_that_were_rewritten_since() -> Iterator[None]:
    real = prune_module.Pruner._times_may_match

    def may_match(self, part, meta):
        return real(self, msgspec.structs.replace(part, rewrite=None), meta)

    with patched(prune_module.Pruner, "_times_may_match", may_match):
        yield


@on_real_storage
@bug
def updates_in_no_order_are_taken_for_sorted() -> Iterator[None]:
    real = run_merge.RunMerge.run

    def run(self, desc):
        self.runs = [Run(run.parts, Order.SORTED, run.schema) for run in self.runs]
        return real(self, desc)

    with patched(run_merge.RunMerge, "run", run):
        yield


@on_real_storage
@bug
def rows_from_before_a_column_was_added_do_not_hold_its_default() -> Iterator[None]:
    real = update_table._project_column

    def projected(table, there, written, field):
        return real(table, there, written, msgspec.structs.replace(field, default=None))

    with patched(update_table, "_project_column", projected):
        yield


@on_real_storage
@bug
def a_failed_merge_deletes_what_it_passed_through() -> Iterator[None]:
    real = run_merge.RunMerge._undo

    def undo(self):
        real(self)
        run_merge.delete_keys([part.key for run in self.runs for part in run.parts if part.key], self.blob, None)

    with patched(run_merge.RunMerge, "_undo", undo):
        yield


@on_real_storage
@bug
def the_parts_of_a_round_are_deleted_before_they_are_read() -> Iterator[None]:
    real = run_merge.RunMerge._round

    def round(self, found):
        written = real(self, found)
        self._delete_temporary()
        return written

    with patched(run_merge.RunMerge, "_round", round):
        yield


def _whole(part: Part) -> Part:
    return msgspec.structs.replace(part, lower=None, upper=None, rewrite=None)


def history(name: str, seed: int) -> HistoryResult:
    """A history of the kind that gives a bug away."""
    if name in REAL:
        return run_core_history(seed, REAL_OPERATIONS, real=True)
    if name in BUCKET:
        return run_bucket_history(seed, BUCKET_CALLS)
    if name in ARRANGEMENTS:
        return run_arrangement_history(seed, STORE_CALLS)
    if name in COPIES:
        return run_copy_history(seed, COPY_CALLS)
    if name in STORES:
        return history_run.run_store_history(seed, STORE_CALLS)
    if name in VIEWS:
        return run_view_history(seed, VIEW_CALLS)
    if name in SPINES:
        return run_spine_history(seed, SPINE_CALLS, real=name in REAL_SPINES)
    flavours = {"schemas": SCHEMAS, "streams": STREAMS, "kept": KEPT}
    return run_core_history(
        seed, 60, flavour=next((each for each, names in flavours.items() if name in names), "mixed")
    )


def is_caught(name: str, seed: int) -> bool:
    """Whether a check of its promise notices a planted bug at its pinned seed, or one of those right after it."""
    with BUGS[name]():
        later = range(SPREAD if name in REAL | STORES | ARRANGEMENTS | VIEWS | COPIES else 1)
        return any(catching(name, history(name, seed + each).violations) for each in later)


def first_seed(name: str, histories: int) -> tuple[int, Violation] | None:
    """The first seed at which a check of its promise notices a planted bug, and what the check says.

    A seed at which the history has a violation without the bug is passed over, and reported.
    """
    others: Counter[str] = Counter()
    for seed in range(histories):
        with BUGS[name]():
            violations = history(name, seed).violations
        caught = catching(name, violations)
        if caught is not None:
            clean = history(name, seed).violations
            if not clean:
                return seed, caught
            print(f"      seed {seed} has a violation without a planted bug: {clean[0]}", flush=True)
        else:
            others.update(f"{each.check}{' (crash)' if each.is_crash else ''}: {each}" for each in violations[:1])
    for other, _ in others.most_common(3):
        print(f"      not a check of its promise: {other[:200]}")
    return None


def main() -> int:
    pin = "--pin" in sys.argv
    names = [name for name in sys.argv[1:] if name != "--pin"] or list(BUGS)
    seeds: dict[str, int] = json.loads(SEEDS.read_text()) if SEEDS.exists() else {}
    survivors = 0
    for name in names:
        began = time.perf_counter()
        found = first_seed(name, 2000)
        seconds = time.perf_counter() - began
        if found is None:
            survivors += 1
            print(f"SURVIVED {name} ({seconds:.0f} s)", flush=True)
        else:
            seeds[name] = found[0]
            print(f"{found[0]:5} {name}: {found[1].check}: {found[1][:110]} ({seconds:.0f} s)", flush=True)
    if pin:
        kept = {name: seeds[name] for name in sorted(BUGS) if name in seeds}
        SEEDS.write_text(json.dumps(kept, indent=2) + "\n")
    print(f"{len(names) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
