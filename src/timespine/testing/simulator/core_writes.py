"""The appends of core histories: the data first, then the reference to it.

The smallest client that drives `core.protocols.commit`. Users append with the client,
which histories of stores drive.
"""

from __future__ import annotations

from typing import Any

import msgspec

from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.effects import FreshId, Protocol, PutBlob
from timespine.core.group import CommandTransaction, Refused
from timespine.core.protocols.commit import commit, commit_transactions
from timespine.core.protocols.maintain import delete_unreferenced
from timespine.core.protocols.session import Session, retry
from timespine.core.transitions import Append, AppendNext, AppendNextResult, Command, CompareAndAppend, Write
from timespine.errors import InlineBudgetExceeded
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.time import Time


class Data(msgspec.Struct, frozen=True):
    """Opaque bytes that hold updates, and their metadata."""

    value: bytes
    """The updates as inline data."""
    rows: int
    diff_sum: int | None = None
    order: Order = Order.SORTED
    schema: int | None = None
    """The id of the schema that they were written with."""

    def sealed(self, key: str) -> tuple[bytes, bytes]:
        """Return the updates as a blob of this key, and its metadata for the state (`Part.meta`)."""
        return self.value, b""


def put_part(session: Session, collection: str, data: Data) -> Protocol[Part]:
    """Make data durable under the session's writer."""
    key = f"{collection}/{session.writer}/{(yield FreshId('p'))}"
    value, meta = data.sealed(key)
    yield from retry(session, PutBlob(key, value))
    return Part(key, data.rows, len(value), data.diff_sum, meta=meta)


def inline_part(data: Data) -> Part:
    """Return the part of data in the state itself."""
    return Part("", data.rows, len(data.value), data.diff_sum, data.value)


def compare_and_append_data(
    session: Session, collection: str, data: Data | None, expected: Frontier, new_upper: Frontier
) -> Protocol[Frontier | Refused]:
    """Append data for [expected, new_upper): inline if it is tiny and fits, else as a blob."""
    reply: Frontier | Refused
    if data is None:
        reply = yield from _committed(session, collection, CompareAndAppend((), expected, new_upper), ())
        return reply
    desc = _interval(expected, new_upper)
    if len(data.value) <= session.config.inline_part_bytes:
        batch = _batch(inline_part(data), data, desc)
        command = CompareAndAppend((batch,), expected, new_upper, inline_total_bytes=session.config.inline_total_bytes)
        reply = yield from _committed(session, collection, command, ())
        if not (isinstance(reply, Refused) and isinstance(reply.reason, InlineBudgetExceeded)):
            return reply
    part = yield from put_part(session, collection, data)
    batch = _batch(part, data, desc)
    reply = yield from _committed(session, collection, CompareAndAppend((batch,), expected, new_upper), (part.key,))
    return reply


def append_data_next(session: Session, collection: str, data: Data, at: int) -> Protocol[AppendNextResult | Refused]:
    """Append data whose updates all stand at `at`: there, or at the next free time if that is sealed.

    It never loses to another append: after a lost compare-and-set it is evaluated again, at a later time. A caller that
    repeats the call after `Indeterminate` may append twice, since no upper tells.
    """
    reply: AppendNextResult | Refused
    desc = Description(Frontier.at(at), CLOSED, Frontier.minimum(1))
    if len(data.value) <= session.config.inline_part_bytes:
        batch = _batch(inline_part(data), data, desc)
        command = AppendNext(batch, at, inline_total_bytes=session.config.inline_total_bytes)
        reply = yield from _committed(session, collection, command, ())
        if not (isinstance(reply, Refused) and isinstance(reply.reason, InlineBudgetExceeded)):
            return reply
    part = yield from put_part(session, collection, data)
    batch = _batch(part, data, desc)
    reply = yield from _committed(session, collection, AppendNext(batch, at), (part.key,))
    return reply


def append_missing_data(
    session: Session, collection: str, data: Data, lower: Frontier, upper: Frontier
) -> Protocol[Frontier | Refused]:
    """Append the part of [lower, upper) that is missing: for writers that all write the same."""
    desc = _interval(lower, upper)
    part = yield from put_part(session, collection, data)
    replies = yield from commit(session, collection, Append(_batch(part, data, desc)))
    if isinstance(replies, Refused) or not replies[0].taken:
        yield from delete_unreferenced(session, (part.key,))
    if isinstance(replies, Refused):
        return replies
    reached: Frontier = replies[0].upper
    return reached


def write_data(session: Session, collection: str, data: Data, lower: Frontier, latest: Time) -> Protocol[int | Refused]:
    """Make updates durable ahead of the seal; return the number of the write."""
    part = yield from put_part(session, collection, data)
    replies = yield from commit(session, collection, Write(lower, latest, (part,), data.schema))
    if isinstance(replies, Refused):
        yield from delete_unreferenced(session, (part.key,))
        return replies
    number: int = replies[0]
    return number


def append_data_to_many(
    session: Session, appends: list[tuple[str, Data, Frontier, Frontier]]
) -> Protocol[tuple[Frontier, ...] | Refused]:
    """Append to several collections, all or nothing."""
    intervals = [_interval(expected, new_upper) for _, _, expected, new_upper in appends]
    commands: list[tuple[str, Command]] = []
    keys: list[str] = []
    for (collection, data, expected, new_upper), desc in zip(appends, intervals, strict=True):
        part = yield from put_part(session, collection, data)
        keys.append(part.key)
        batch = _batch(part, data, desc)
        commands.append((collection, CompareAndAppend((batch,), expected, new_upper)))
    (reply,) = yield from commit_transactions(session, CommandTransaction(tuple(commands)))
    if isinstance(reply, Refused):
        yield from delete_unreferenced(session, tuple(keys))
    return reply


def _interval(lower: Frontier, upper: Frontier) -> Description:
    """Return the times of an append; raise UsageError before a put if there are none."""
    return Description(lower, upper, Frontier.minimum(lower.arity or upper.arity or 1))


def _batch(part: Part, data: Data, desc: Description) -> HollowBatch:
    return HollowBatch(desc, part.rows, (Run((part,), data.order, data.schema),))


def _committed(session: Session, collection: str, command: Command, keys: tuple[str, ...]) -> Protocol[Any]:
    """Commit one append; return its reply, or delete its blobs and return Refused."""
    replies = yield from commit(session, collection, command)
    if not isinstance(replies, Refused):
        return replies[0]
    if keys:
        yield from delete_unreferenced(session, keys)
    return replies
