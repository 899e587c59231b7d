"""Planted bugs of commits, appends and readers, which histories of the core are to notice: see `planted.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
from mutations import (
    bug,
    in_schemas,
    patched,
    patched_entry,
)

from timespine.core import group as group_module
from timespine.core import read_plan as plan_module
from timespine.core import state as state_module
from timespine.core.batch import Order, Run
from timespine.core.protocols import commit
from timespine.core.state import Commit, NoOp
from timespine.core.transitions import (
    TRANSITIONS,
    AppendNext,
    Evict,
    Trim,
)
from timespine.errors import UpperMismatch
from timespine.model.frontier import Frontier
from timespine.testing.simulator import core_reads

# By name in sys.modules: the package also exports functions of the same names.
append_module = sys.modules["timespine.core.transitions.append"]
push_module = sys.modules["timespine.core.transitions.trace_push"]
readers_module = sys.modules["timespine.core.transitions.readers"]
writers_module = sys.modules["timespine.core.transitions.writers"]
unsealed_module = sys.modules["timespine.core.transitions.unsealed"]


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
