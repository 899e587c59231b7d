"""Small appends on their way to another process and back: the request, and the reply to it.

A request has the rows of some appends to one collection, as their callers gave them, and the group of the committer
that they belong to. The reply has the result of each, or says that they were not committed, or that this is in doubt.
Both are MessagePack in an envelope with a checksum (docs/format/entry.md). The other process is one of the same user,
and its bytes are checked like any from outside: a request that cannot be decoded gets a refusal, and a reply that
cannot be decoded leaves its request in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from timespine.client.arguments.argument_types import Row
from timespine.client.commit.leader_queue import GROUP_MAX
from timespine.client.commit.queued_append import AppendCalls
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import to_updates, upper_after
from timespine.client.write_results import CommitResult
from timespine.columnar.kernels.consolidate import consolidate
from timespine.core.encoding.envelope import HEADER, EnvelopeKind, decode_payload, unwrap_payload, wrap_payload
from timespine.core.group import Origin
from timespine.errors import Indeterminate, TimespineError
from timespine.location.machine.channel import REQUEST_BYTES_MAX
from timespine.model.frontier import Frontier


class AppendRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The rows of some appends, and the group that they belong to."""

    collection: str
    """The id of the collection."""
    schema: int
    """The newest schema that the process knew: the rows are converted by it, or not at all."""
    committer: str
    number: int
    writer: str
    appends: list[list[Row]]
    """The rows of each append, as they were given. Values of other than plain types are refused when the appends are
    made of them."""


class AppendReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What became of a request."""

    outcome: Literal["committed", "declined", "in doubt", "refused"]
    """`declined` and `refused`: it was not committed, and will not be. `refused`: it is no request at all."""
    results: list[tuple[int, int, int, int]] = []
    """If it was committed, for each append: time, upper, rows, sequence number."""
    reason: str = ""


_DECODE_REQUEST = msgspec.msgpack.Decoder(AppendRequest)
_DECODE_REPLY = msgspec.msgpack.Decoder(AppendReply)
_ENCODER = msgspec.msgpack.Encoder()

REASON_CHARS_MAX = 500
"""The most characters of a reason."""


def decode_request(request: bytes) -> AppendRequest:
    """Decode a request; raise CorruptionError or VersionError if it is none."""
    return decode_payload(_DECODE_REQUEST, unwrap_payload(EnvelopeKind.APPEND_REQUEST, request))


def decode_reply(reply: bytes) -> AppendReply:
    """Decode a reply; raise CorruptionError or VersionError if it is none."""
    return decode_payload(_DECODE_REPLY, unwrap_payload(EnvelopeKind.APPEND_REPLY, reply))


def encode_reply(outcome: str, results: Sequence[CommitResult] = (), reason: str = "") -> bytes:
    """Encode the reply to a request."""
    found = [(each.time, each.upper.time, each.rows, each.seqno) for each in results]
    payload = _ENCODER.encode((outcome, found, reason[:REASON_CHARS_MAX]))
    return wrap_payload(EnvelopeKind.APPEND_REPLY, payload)


class SmallAppends:
    """Appends of this process to one collection, while another one commits them."""

    def __init__(self, handle: CollectionHandle, group: AppendCalls) -> None:
        self._handle = handle
        self._group = group
        self._schema, _ = handle.schema(handle.known())

    def encode(self, origin: Origin) -> bytes | None:
        """Encode the rows for another process; None if it could not take them as they are."""
        rows = [each.item.rows for each in self._group]
        if len(rows) > GROUP_MAX or not all(type(each) is list for each in rows):
            return None
        fields = (self._handle.id, self._schema, origin.committer, origin.number, origin.writer)
        try:
            payload = _ENCODER.encode(AppendRequest(*fields, rows))
        except (msgspec.MsgspecError, OverflowError, TypeError, ValueError):  # an integer beyond 64 bits, or a bad text
            return None
        if len(payload) + HEADER > REQUEST_BYTES_MAX:
            return None
        return wrap_payload(EnvelopeKind.APPEND_REQUEST, payload)

    def accept(self, reply: bytes) -> bool:
        """Give each append its result; return False if they were not committed. Raise Indeterminate if in doubt."""
        try:
            found = decode_reply(reply)
            times = [CommitResult(time, Frontier.at(upper), rows, seqno) for time, upper, rows, seqno in found.results]
        except TimespineError as error:
            raise Indeterminate(f"the reply of the appending process cannot be read: {error}") from error
        if found.outcome == "in doubt" or (found.outcome == "committed" and len(times) != len(self._group)):
            raise Indeterminate(f"the appending process is in doubt: {found.reason}")
        for each, result in zip(self._group, times, strict=False):
            each.reply = result
        return found.outcome == "committed"

    def accept_recorded(self, seqno: int, first: int) -> None:
        """Give each append its result by the commit, and the time of the first one, that the state recorded.

        On a counter the appends of a request have consecutive times; on the wall clock they have the same.
        """
        handle = self._handle
        _, schema = handle.schema(handle.known())
        for number, each in enumerate(self._group):
            time = first + (number if handle.entry.timeline == "counter" else 0)
            rows = consolidate(to_updates(each.item.rows, schema, (0,)), (*schema.order_names, *schema.time_names))
            each.reply = CommitResult(time, upper_after(time), rows.num_rows, seqno)
