"""The relay: one process of a machine commits the small appends of all of them.

Processes that lose compare-and-sets to each other share a commit instead. One of them takes the role of the appender.
The others hand their appends over to it, and it commits them together with its own. A lone process never does any of
this, and a process whose request is declined commits by itself, as it would without a relay.

Exactly-once stays in the state. What is handed over is the next group of the committer of its own process: the commit
of the appender records that committer and number (`core.group.Origin`). If no reply comes, the process expires its
committer: the state replies with the last number that it recorded, and admits none after it. So the rows are there,
with a time and a sequence number that the state recorded too, or they never will be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from timespine.client.commit.queued_append import AppendCalls, Handover, QueuedCalls, appends_by_kind
from timespine.core.group import CommandTransaction, Origin, Refused
from timespine.core.state import Committer
from timespine.core.transitions import ExpireCommitter
from timespine.errors import Determinate, Fenced, Indeterminate, TimespineError
from timespine.location.machine.channel import Answer, Channel
from timespine.locks import Lock

if TYPE_CHECKING:
    from timespine.client.commit.group_commit import GroupCommitter

LOSSES = 3
"""Compare-and-sets that a process loses before it takes part: a few are cheaper than a relay."""

OWN_COMMITTERS = 2
"""Committers that a lone process registers with a collection: of its threads, and of its maintenance."""

APART_S = 1.0
"""Seconds for which a process commits by itself after the appender did not reply, or declined."""


class Relay:
    """The part of one process in the relay: it appends for the others, or hands its queued appends over, or neither."""

    def __init__(self, channel: Channel, answer: Answer, monotonic: Callable[[], float]) -> None:
        self._channel = channel
        self._answer = answer
        """The function that carries out a request of another process."""
        self._monotonic = monotonic
        self._losses = 0
        """The compare-and-sets that were lost when this process last looked."""
        self._is_appender = False
        self._is_following = False
        self._apart_until = 0.0
        self._is_closed = False
        self._taking_role = Lock("the role of the appender")
        """The lock of calls that take the role, and of the end, after which none does."""

    def hand_over(self, committer: GroupCommitter, group: QueuedCalls) -> QueuedCalls:
        """Hand the queued appends of a group over to the appender; return the calls that are left to this process."""
        for appends in appends_by_kind(group):
            if self._follows(committer, appends[0].item.collection):
                self._hand_over(committer, appends)
        return [each for each in group if not each.is_done]

    def _follows(self, committer: GroupCommitter, collection: str) -> bool:
        """Return whether to hand queued appends over: after a few losses, to the process that has the role."""
        if self._is_following or self._is_appender or self._is_closed:
            return self._is_following and not self._is_closed
        is_alone = len(committer.known(collection).committers) <= OWN_COMMITTERS
        if is_alone or self._monotonic() < self._apart_until:
            return False
        losses = committer.counters.get("lost", 0)
        if losses - self._losses < LOSSES:
            return False
        self._losses = losses
        with self._taking_role:
            # SUBTLE: threads still commit while their store is closed. None may take the role after `close`, which
            # would keep it, and a thread (planted bug a_store_that_closes_takes_the_role_of_the_appender).
            if self._is_closed:
                return False
            if not self._channel.take():
                self._is_following = True
            elif self._channel.listen(self._answer):
                self._is_appender = True
            else:  # this system has no channel
                self._channel.release()
                self._apart_until = float("inf")
        return self._is_following

    def _hand_over(self, committer: GroupCommitter, appends: AppendCalls) -> None:
        """Let the appender commit some appends of one kind. Those that it does not commit stay without a reply."""
        item = appends[0].item
        handover: Handover | None = item.relay(appends)
        if handover is None:
            return

        def carry_out(origin: Origin) -> None:
            if not _has_half_a_term_left(committer, item.collection, origin):
                return  # this process commits by itself, which extends the lease
            is_done = False
            try:
                request = handover.encode(origin)
                if request is None:
                    return
                is_done = handover.accept(self._channel.ask(request))
            except Indeterminate as error:
                is_done = self._look(committer, appends, handover, origin, error)
            except Determinate:
                pass
            committer.session.count("handed over" if is_done else "not handed over", len(appends))
            if not is_done:
                self._step_aside()

        with contextlib.suppress(TimespineError):  # before anything was sent: this process commits, or gets the error
            committer.as_next_group(item.collection, carry_out)

    def _look(
        self,
        committer: GroupCommitter,
        appends: AppendCalls,
        handover: Handover,
        origin: Origin,
        error: Indeterminate,
    ) -> bool:
        """Find out what became of appends that were handed over; return whether they have a reply or an error."""
        self._step_aside()
        try:
            found = self._last_word(committer, appends[0].item.collection, origin, error)
        except (Indeterminate, Fenced) as in_doubt:
            for each in appends:
                each.error = in_doubt
            return True
        if found is not None:
            handover.accept_recorded(*found)
        return found is not None

    def _step_aside(self) -> None:
        """Commit alone for a while: the appender ended, hangs, or has too much to do."""
        self._is_following = False
        self._apart_until = self._monotonic() + APART_S

    def _last_word(
        self, committer: GroupCommitter, collection: str, origin: Origin, error: Indeterminate
    ) -> tuple[int, int] | None:
        """Find out what became of a group that was handed over: where it was committed; None if it never will be.

        SUBTLE: by expiring the committer. To read that its number is missing is not enough: the appender may still
        commit it (planted bug a_follower_commits_again_after_a_look).
        """
        committer.session.count("looked for after a lost reply")
        try:
            reply = committer.commit_alone(CommandTransaction(((collection, ExpireCommitter(origin.committer)),)))
        except Fenced as failure:
            raise Fenced(f"{error}; {failure}, so the state does not tell", in_doubt=True) from failure
        except TimespineError as failure:
            raise Indeterminate(f"{error}; the state could not be asked either: {failure}") from failure
        finally:
            committer.renew()
        last = None if isinstance(reply, Refused) else reply[0]
        if not isinstance(last, Committer):
            raise Fenced(f"{error}; its committer was expired, so the state does not tell", in_doubt=True)
        if last.group < origin.number:
            return None
        if last.relayed is None:
            raise Indeterminate(f"{error}; the state does not tell where it is")
        return last.relayed

    def close(self, limit_s: float) -> bool:
        """Take no more requests, and give the role back for good; return False if a request still runs after the limit.

        Twice is fine: the next call goes on.
        """
        with self._taking_role:
            self._is_closed = True
        if not self._channel.stop(limit_s):
            return False
        self._channel.release()
        return True


def _has_half_a_term_left(committer: GroupCommitter, collection: str, origin: Origin) -> bool:
    """Return whether the lease of a committer ends late enough for another process to commit its group.

    SUBTLE: after a long pause, maintenance may have expired the committer. A group that is handed over under it would
    be in doubt, though it never was committed (test_relay.py).
    """
    lease = committer.known(collection).committers.get(origin.committer)
    return lease is not None and committer.driver.now_ms() <= lease.until_ms - lease.term_ms // 2
