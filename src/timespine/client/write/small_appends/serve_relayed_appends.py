"""Carry out the requests of other processes: their small appends wait in the queue of this process, like its own."""

from __future__ import annotations

from collections.abc import Callable

from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.commit.relay import Relay
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.group_small_appends import RelayedAppends, pending_append
from timespine.client.write.small_appends.relay_messages import AppendRequest, decode_request, encode_reply
from timespine.client.write.stage_rows import did_not_commit
from timespine.core.group import Origin
from timespine.errors import CorruptionError, TimespineError, UsageError, VersionError
from timespine.ids import check_segment
from timespine.location.consensus import Consensus
from timespine.location.machine.channel import channel_of
from timespine.location.machine.role import APPENDER


class AppendAnswers:
    """The function that carries out a request (`location.machine.channel.Answer`)."""

    def __init__(self, committer: GroupCommitter, handle_of: Callable[[str], CollectionHandle | None]) -> None:
        self._committer = committer
        self._handle_of = handle_of
        """The function that returns the handle of a collection by its id; None if there is no such collection."""

    def __call__(self, request: bytes) -> bytes:
        """Commit the appends of a request together with those of this process; return the encoded reply."""
        try:
            asked = decode_request(request)
        except (CorruptionError, VersionError) as error:
            return encode_reply("refused", reason=str(error))
        try:
            append = self._queued_append(asked)
        except UsageError as error:
            return encode_reply("refused", reason=str(error))
        except TimespineError as error:  # storage is unavailable
            return encode_reply("declined", reason=str(error))
        if append is None:
            return encode_reply("declined", reason="this process knows another schema, or no such collection")
        try:
            results = self._committer.offer_append(append, append.collection)
        except TimespineError as error:
            return encode_reply("declined" if did_not_commit(error) else "in doubt", reason=str(error))
        return encode_reply("committed", results)

    def _queued_append(self, asked: AppendRequest) -> RelayedAppends | None:
        """Return the appends of a request; None if they must be converted by another schema than the newest here."""
        for id, what in ((asked.collection, "collection"), (asked.committer, "committer"), (asked.writer, "writer")):
            check_segment(id, what)
        handle = self._handle_of(asked.collection)
        if handle is None or not asked.appends:
            return None
        # The known state may be an old one.
        if len(handle.known().schemas) - 1 != asked.schema and len(handle.state().schemas) - 1 != asked.schema:
            return None
        appends = [pending_append(handle, rows) for rows in asked.appends]
        if any(each is None for each in appends):
            raise UsageError("an append of a request is not a list of a few plain rows of one shape")
        origin = Origin(asked.committer, asked.number, asked.writer)
        return RelayedAppends(handle, [each for each in appends if each is not None], origin)


def make_relay(
    consensus: Consensus,
    committer: GroupCommitter,
    handle_of: Callable[[str], CollectionHandle | None],
    monotonic: Callable[[], float],
) -> Relay | None:
    """Make the relay of a process; None if its storage has no channel."""
    channel = channel_of(consensus, APPENDER)
    return None if channel is None else Relay(channel, AppendAnswers(committer, handle_of), monotonic)
