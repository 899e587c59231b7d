"""Planted bugs of streams: unsealed updates, transactions over several collections, groups, and closing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
from mutations import bug, in_streams, patched, patched_entry

from timespine.core import group as group_module
from timespine.core.batch import Order, Run
from timespine.core.effects import CompareAndSet
from timespine.core.protocols import commit, garbage, maintain
from timespine.core.protocols.session import retry_determinate
from timespine.core.state import Commit, NoOp
from timespine.core.transitions import TRANSITIONS, Drain, Evict, ExpireCommitter, Seal, Write, apply
from timespine.core.unsealed_index import UnsealedIndex
from timespine.errors import UpperMismatch
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.testing.simulator import stream_workload

append_module = sys.modules["timespine.core.transitions.append"]
push_module = sys.modules["timespine.core.transitions.trace_push"]
unsealed_module = sys.modules["timespine.core.transitions.unsealed"]


# Transactions.


@in_streams
@bug
def a_seal_of_several_collections_moves_only_the_first() -> Iterator[None]:
    real = group_module._evaluate_transaction

    def judge(current, transaction, group, now_ms):
        seals = [name for name, command in transaction.commands if isinstance(command, Seal)]
        kept = [each for each in transaction.commands if not isinstance(each[1], Seal) or each[0] == seals[0]]
        return real(current, group_module.CommandTransaction(tuple(kept), transaction.reads), group, now_ms)

    with patched(group_module, "_evaluate_transaction", judge):
        yield


@in_streams
@bug
def a_refused_transaction_leaves_its_first_command_applied() -> Iterator[None]:
    real = group_module._evaluate_transaction

    def judge(current, transaction, group, now_ms):
        reply = real(current, transaction, group, now_ms)
        name, command = transaction.commands[0]
        if isinstance(reply, group_module.Refused) and len(transaction.commands) > 1 and name in current:
            outcome = apply(current[name], command, now_ms)
            if isinstance(outcome, Commit):
                current[name] = outcome.state
        return reply

    with patched(group_module, "_evaluate_transaction", judge):
        yield


@in_streams
@bug
def commands_of_a_transaction_do_not_see_each_other() -> Iterator[None]:
    real = group_module._evaluate_transaction

    def judge(current, transaction, group, now_ms):
        before = dict(current)
        reply = real(current, transaction, group, now_ms)
        if group.committer is not None and not isinstance(reply, group_module.Refused):
            outcomes = [(name, apply(before[name], command, now_ms)) for name, command in transaction.commands]
            current.update((name, outcome.state) for name, outcome in outcomes if isinstance(outcome, Commit))
        return reply

    with patched(group_module, "_evaluate_transaction", judge):
        yield


@in_streams
@bug
def an_upper_that_moved_on_satisfies_a_transaction_that_relied_on_it() -> Iterator[None]:
    real = group_module._evaluate_transaction

    def judge(current, transaction, group, now_ms):
        reads = [
            (name, current[name].upper if name in current and expected <= current[name].upper else expected)
            for name, expected in transaction.reads
        ]
        return real(current, group_module.CommandTransaction(transaction.commands, tuple(reads)), group, now_ms)

    with patched(group_module, "_evaluate_transaction", judge):
        yield


@in_streams
@bug
def what_was_only_read_is_not_compared_when_it_is_committed() -> Iterator[None]:
    real = group_module.evaluate

    def judge(states, group, now_ms):
        judged = real(states, group, now_ms)
        if not isinstance(judged, group_module.Evaluated):
            return judged
        written = {name for each in group.transactions for name, _ in each.commands}
        changed = {name: state for name, state in judged.changed.items() if name in written}
        return group_module.Evaluated(changed, judged.replies)

    with patched(commit, "evaluate", judge):
        yield


# Groups.


@in_streams
@bug
def a_later_transaction_is_judged_by_the_state_before_the_group() -> Iterator[None]:
    real_judge, real = group_module.evaluate, group_module._evaluate_transaction
    before = {}

    def judge(states, group, now_ms):
        before.clear()
        before.update(states)
        return real_judge(states, group, now_ms)

    def judge_transaction(current, transaction, group, now_ms):
        for name, expected in transaction.reads:
            if name in before and before[name].upper != expected:
                return group_module._refuse(current, transaction, UpperMismatch(expected, before[name].upper))
        return real(current, group_module.CommandTransaction(transaction.commands), group, now_ms)

    with patched(commit, "evaluate", judge), patched(group_module, "_evaluate_transaction", judge_transaction):
        yield


@in_streams
@bug
def a_refusal_names_the_state_that_its_group_led_to() -> Iterator[None]:
    real = group_module._refuse

    def refused(current, transaction, reason):
        reply = real(current, transaction, reason)
        return group_module.Refused(reason, tuple((name, seqno + 1) for name, seqno in reply.seqnos))

    with patched(group_module, "_refuse", refused):
        yield


@in_streams
@bug
def a_group_is_written_one_log_at_a_time() -> Iterator[None]:
    def store(session, sent):
        for write in sent.writes:
            mismatch = yield from retry_determinate(session, CompareAndSet((write,)))
            if mismatch is not None:
                return mismatch
        commit._remember_states(session, sent.judged)
        return None

    with patched(commit, "_store", store):
        yield


def judge_again(states, group, now_ms):
    """Judge a group that is in as if it were another one, under the next number."""
    judged = group_module.evaluate(states, group, now_ms)
    if isinstance(judged, group_module.AlreadyCommittedGroup):
        numbers = [state.committers[group.committer].group for state in states.values()]
        return group_module.evaluate(states, msgspec.structs.replace(group, number=max(numbers) + 1), now_ms)
    return judged


@in_streams
@bug
def a_group_whose_reply_was_lost_is_committed_once_more() -> Iterator[None]:
    def is_in(session, sent, states):
        return False
        yield

    with patched(commit, "evaluate", judge_again), patched(commit, "_is_in", is_in):
        yield


@in_streams
@bug
def own_success_taken_for_a_conflict_is_committed_again() -> Iterator[None]:
    def looked_up(session, sent, states):
        return (yield from commit._refresh_states(session, states, states)), False

    with patched(commit, "evaluate", judge_again), patched(commit, "_read_after_loss", looked_up):
        yield


@in_streams
@bug
def own_success_taken_for_a_conflict_is_called_a_loss() -> Iterator[None]:
    def looked_up(session, sent, states):
        return (yield from commit._refresh_states(session, states, states)), False

    with patched(commit, "_read_after_loss", looked_up):
        yield


@in_streams
@bug
def a_committer_that_gives_up_stays_registered() -> Iterator[None]:
    with patched_entry(TRANSITIONS, ExpireCommitter, lambda state, command, now_ms: NoOp(None)):
        yield


# Unsealed updates.


@in_streams
@bug
def writes_go_by_the_trace_and_not_by_the_upper() -> Iterator[None]:
    real = TRANSITIONS[Write]

    def write(state, command, now_ms):
        outcome = real(msgspec.structs.replace(state, upper=state.trace.upper), command, now_ms)
        if isinstance(outcome, NoOp):
            return outcome
        return Commit(msgspec.structs.replace(outcome.state, upper=state.upper), outcome.reply)

    with patched_entry(TRANSITIONS, Write, write):
        yield


def _later(frontier: Frontier) -> Frontier:
    return Frontier(tuple(tuple(c + 1 for c in time) for time in frontier))


@in_streams
@bug
def a_drain_begins_one_time_too_late() -> Iterator[None]:
    def drained(state, upper):
        lower = _later(state.trace.upper)
        return [
            Run(
                tuple(push_module.truncate_batch(part, lower, upper) for part in batch.parts),
                Order.UNORDERED,
                batch.schema,
            )
            for batch in state.unsealed.between(state.trace.upper, upper)
        ]

    with patched(push_module, "drained_runs", drained):
        yield


@in_streams
@bug
def a_drain_goes_by_the_upper_of_an_older_state() -> Iterator[None]:
    real = TRANSITIONS[Drain]

    def drain(state, command, now_ms):
        uppers = [entry.upper for entry in state.history if state.trace.upper < entry.upper <= state.upper]
        if len(uppers) < 2:
            return real(state, command, now_ms)
        # The batch is said to reach the upper of now, and has what an older state would have drained.
        runs = push_module.drained_runs(state, uppers[0])
        desc = Description(state.trace.upper, state.upper, Frontier.minimum(state.arity))
        return Commit(push_module.push_batch(state, runs, desc), state.upper)

    with patched_entry(TRANSITIONS, Drain, drain):
        yield


@in_streams
@bug
def evict_takes_what_is_only_partly_drained() -> Iterator[None]:
    def evict(state, command, now_ms):
        kept = [batch for batch in state.unsealed if not batch.has_times_below(state.trace.upper)]
        gone = len(state.unsealed) - len(kept)
        if not gone:
            return NoOp(0)
        return Commit(msgspec.structs.replace(state, unsealed=UnsealedIndex.of(kept)), gone)

    with patched_entry(TRANSITIONS, Evict, evict):
        yield


@in_streams
@bug
def evict_does_not_wait_for_the_drain() -> Iterator[None]:
    def tidy(session, collection):
        yield from maintain.commit(session, collection, Evict(), Drain())

    def evict(state, command, now_ms):
        kept = [batch for batch in state.unsealed if not batch.is_wholly_below(state.upper)]
        gone = len(state.unsealed) - len(kept)
        if not gone:
            return NoOp(0)
        return Commit(msgspec.structs.replace(state, unsealed=UnsealedIndex.of(kept)), gone)

    with patched(maintain, "tidy_unsealed", tidy), patched_entry(TRANSITIONS, Evict, evict):
        yield


@in_streams
@bug
def trim_loses_the_rows_at_the_bound() -> Iterator[None]:
    def truncated(part, lower, upper):
        return push_module.truncate_batch(part, None if lower is None else _later(lower), upper)

    with patched(unsealed_module, "truncate_batch", truncated):
        yield


@in_streams
@bug
def an_append_counts_the_unsealed_updates_in_its_range_twice() -> Iterator[None]:
    def drained(state, upper):
        return 2 * push_module.drained_runs(state, upper)

    with patched(append_module, "drained_runs", drained):
        yield


@in_streams
@bug
def unsealed_reads_begin_where_the_trace_ends() -> Iterator[None]:
    real = stream_workload.plan_unsealed

    def plan(state, lower, upper):
        return real(msgspec.structs.replace(state, upper=state.trace.upper), lower, upper)

    with patched(stream_workload, "plan_unsealed", plan):
        yield


@in_streams
@bug
def unsealed_reads_miss_batches_that_reach_beyond_the_range() -> Iterator[None]:
    real = UnsealedIndex.between

    def between(self, lower, upper):
        for batch in real(self, lower, upper):
            if batch.is_wholly_below(upper):
                yield batch

    real_plan = stream_workload.plan_unsealed

    def plan(state, lower, upper):
        with patched(UnsealedIndex, "between", between):
            return real_plan(state, lower, upper)

    with patched(stream_workload, "plan_unsealed", plan):
        yield


@in_streams
@bug
def garbage_collection_forgets_what_is_unsealed() -> Iterator[None]:
    real = garbage.references

    def references(state):
        return real(msgspec.structs.replace(state, unsealed=UnsealedIndex()))

    with patched(garbage, "references", references):
        yield
