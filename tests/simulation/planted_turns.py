"""Planted bugs of turns, which histories of real stores are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from mutations import bug, in_stores, patched

from timespine.client.commit import replies
from timespine.client.commit.cross_process_turn import Patience
from timespine.core import group as group_module
from timespine.core.group import Answers
from timespine.core.state import Turn
from timespine.core.transitions import AppendNext, AppendNextResult, turns
from timespine.model.frontier import Frontier


@in_stores
@bug
def a_turn_ends_with_the_commit_of_another_process() -> Iterator[None]:
    real = group_module._next_state

    def committed(state, group, origins, now_ms):
        turn = state.turn
        if turn is not None and turn.writer not in ("", group.writer):
            state = msgspec.structs.replace(state, turn=Turn("", turn.from_ms, turn.until_ms))
        return real(state, group, origins, now_ms)

    with patched(group_module, "_next_state", committed):
        yield


@in_stores
@bug
def a_turn_is_given_to_a_second_process() -> Iterator[None]:
    def free_from(state, now_ms):
        return None

    with patched(turns, "free_from", free_from):
        yield


@in_stores
@bug
def what_waits_for_a_turn_is_said_to_be_in() -> Iterator[None]:
    real = Patience.offer

    def offer(self, transaction, offer):
        reply = offer(transaction)
        if not replies.is_turn_taken(reply):
            return reply
        if any(type(each) is not AppendNext for _, each in transaction.commands):
            return real(self, transaction, offer)
        told = [AppendNextResult(each.at, Frontier.at(each.at + 1)) for _, each in transaction.commands]
        return Answers(told, reply.seqnos)

    with patched(Patience, "offer", offer):
        yield


@in_stores
@bug
def what_waited_for_a_turn_is_committed_once_more() -> Iterator[None]:
    real = Patience.looks_again

    def looks_again(self, reply):
        waited = self.slept_ms > 0
        if real(self, reply):
            return True
        self.slept_ms = 0
        return waited and isinstance(reply, Answers)

    with patched(Patience, "looks_again", looks_again):
        yield
