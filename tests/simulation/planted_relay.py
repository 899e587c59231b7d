"""Planted bugs of the relay, which histories of real stores are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator

from mutations import bug, in_stores, patched

from timespine.client.commit.relay import Relay
from timespine.client.write.small_appends import serve_relayed_appends
from timespine.client.write.small_appends.relay_messages import SmallAppends, decode_reply, decode_request, encode_reply
from timespine.client.write.small_appends.serve_relayed_appends import AppendAnswers
from timespine.client.write_results import CommitResult
from timespine.core import group as group_module
from timespine.model.frontier import Frontier
from timespine.testing.stores.virtual_threads import Thread


@in_stores
@bug
def the_appender_acknowledges_before_its_compare_and_set() -> Iterator[None]:
    real = AppendAnswers.__call__

    def answer(self, request):
        asked = decode_request(request)
        state = self._committer.state(asked.collection)
        Thread(target=lambda: real(self, request), name="later").start()
        time = max(state.upper.time, self._committer.driver.now_ms() if asked.collection.startswith("clock") else 0)
        told = [
            CommitResult(time + n, Frontier.at(time + n + 1), len(each), state.seqno + 1)
            for n, each in enumerate(asked.appends)
        ]
        return encode_reply("committed", told)

    with patched(AppendAnswers, "__call__", answer):
        yield


@in_stores
@bug
def the_number_of_the_appender_is_recorded_instead_of_the_origins() -> Iterator[None]:
    real = group_module._next_state

    def committed(state, group, origins, now_ms):
        return real(state, group, (), now_ms)

    with patched(group_module, "_next_state", committed):
        yield


@in_stores
@bug
def a_follower_commits_again_without_a_look() -> Iterator[None]:
    def last_word(self, committer, collection, origin, error):
        return None

    with patched(Relay, "_last_word", last_word):
        yield


@in_stores
@bug
def a_follower_commits_again_after_a_look() -> Iterator[None]:
    real = Relay._last_word

    def last_word(self, committer, collection, origin, error):
        known = committer.state(collection).committers.get(origin.committer)
        if known is not None and known.group < origin.number:
            committer.renew()
            return None
        return real(self, committer, collection, origin, error)

    with patched(Relay, "_last_word", last_word):
        yield


@in_stores
@bug
def a_fenced_origin_is_committed_late() -> Iterator[None]:
    def stale_origins(current, transaction):
        return ()

    with patched(group_module, "_stale_origins", stale_origins):
        yield


@in_stores
@bug
def the_appender_declines_what_is_in_doubt() -> Iterator[None]:
    with patched(serve_relayed_appends, "did_not_commit", lambda error: True):
        yield


@in_stores
@bug
def relayed_appends_are_told_the_times_of_others() -> Iterator[None]:
    real = SmallAppends.accept

    def accept(self, reply):
        found = decode_reply(reply)
        told = [CommitResult(time, Frontier.at(upper), rows, seqno) for time, upper, rows, seqno in found.results]
        return real(self, encode_reply(found.outcome, told[::-1], found.reason))

    with patched(SmallAppends, "accept", accept):
        yield


@in_stores
@bug
def a_recorded_group_is_said_to_stand_right_before_the_upper() -> Iterator[None]:
    def first_time(upper, origin):
        return upper.time - 1

    with patched(group_module, "_first_time", first_time):
        yield


@in_stores
@bug
def a_store_that_closes_takes_the_role_of_the_appender() -> Iterator[None]:
    real = Relay.close

    def close(self, limit_s):
        is_over = real(self, limit_s)
        self._is_closed = False
        return is_over

    with patched(Relay, "close", close):
        yield
