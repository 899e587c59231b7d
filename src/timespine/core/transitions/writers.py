"""Writers, committers and sinks: the registrations that commits need.

A writer owns a prefix of blobs. A commit that refers to a blob of an unregistered writer is refused. So expiring a
writer by compare-and-set makes all its uncommitted blobs safe to delete.

A committer numbers its commits, so that a retry after a lost reply is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from timespine.core.batch import Part
from timespine.core.state import Commit, Committer, Lease, NoOp, Reader, State
from timespine.core.transitions.command import Command
from timespine.errors import Fenced, SchemaChanged, TimespineError, UsageError
from timespine.ids import check_segment, parse_blob_key

L = TypeVar("L", Lease, Reader, Committer)


class RegisterWriter(Command, frozen=True, array_like=True):
    """Reserve a prefix of blobs. The id must be fresh: no process ever used it."""

    writer: str
    term_ms: int


class HeartbeatWriter(Command, frozen=True, array_like=True):
    """Keep the writer's prefix, for its term; or once for longer, if its batches are to outlive it."""

    writer: str
    at_least_ms: int | None = None
    """The least remaining time of the lease, from now. The term stays as it is."""


class ExpireWriter(Command, frozen=True, array_like=True):
    """Give up the prefix, or fence its writer. Uncommitted blobs can be deleted then."""

    writer: str


class RegisterCommitter(Command, frozen=True, array_like=True):
    """Begin to commit in numbered groups. The id must be fresh."""

    committer: str
    term_ms: int


class ExpireCommitter(Command, frozen=True, array_like=True):
    """Stop committing, or fence the committer."""

    committer: str


class CommitSink(Command, frozen=True, array_like=True):
    """Record that a batch of a streaming sink is in this commit. An older one is refused as done."""

    sink: str
    batch: int


class DropSink(Command, frozen=True, array_like=True):
    """Forget a streaming sink."""

    sink: str


class AlreadyCommitted(msgspec.Struct, frozen=True):
    """An earlier commit holds the batch of a sink."""

    last: int
    """The newest committed batch of that sink."""


def register_writer(state: State, command: RegisterWriter, now_ms: int) -> Commit[None] | NoOp[None]:
    """Add the writer; registering again is a heartbeat."""
    check_segment(command.writer, "writer id")
    term_ms = check_term(command.term_ms)
    lease = Lease(now_ms + term_ms, term_ms)
    known = state.writers.get(command.writer)
    if known is not None and known.until_ms >= lease.until_ms:
        return NoOp(None)
    return Commit(msgspec.structs.replace(state, writers={**state.writers, command.writer: lease}), None)


def heartbeat_writer(state: State, command: HeartbeatWriter, now_ms: int) -> Commit[None] | NoOp[Fenced | None]:
    """Extend the lease; reply Fenced if it was removed."""
    lease = state.writers.get(command.writer)
    if lease is None:
        return NoOp(Fenced(f"writer {command.writer} of {state.collection} is not registered: start a new one"))
    extended = extend(lease, now_ms)
    if command.at_least_ms is not None:
        until = now_ms + check_term(command.at_least_ms)
        if until > extended.until_ms:
            extended = msgspec.structs.replace(extended, until_ms=until)
    if extended is lease:
        return NoOp(None)
    return Commit(msgspec.structs.replace(state, writers={**state.writers, command.writer: extended}), None)


def expire_writer(state: State, command: ExpireWriter, now_ms: int) -> Commit[None] | NoOp[None]:
    """Remove the writer, whatever the rest of its lease."""
    if command.writer not in state.writers:
        return NoOp(None)
    return Commit(msgspec.structs.replace(state, writers=without(state.writers, command.writer)), None)


def register_committer(state: State, command: RegisterCommitter, now_ms: int) -> Commit[None] | NoOp[None]:
    """Add the committer; registering again changes nothing."""
    check_segment(command.committer, "committer id")
    if command.committer in state.committers:
        return NoOp(None)
    term_ms = check_term(command.term_ms)
    committer = Committer(0, now_ms + term_ms, term_ms)
    committers = {**state.committers, command.committer: committer}
    return Commit(msgspec.structs.replace(state, committers=committers), None)


def expire_committer(state: State, command: ExpireCommitter, now_ms: int) -> Commit[Committer] | NoOp[None]:
    """Remove the committer, whatever the rest of its lease; reply with it as it was.

    No later group of it can be committed, so the reply is the last word about those before.
    """
    known = state.committers.get(command.committer)
    if known is None:
        return NoOp(None)
    committers = without(state.committers, command.committer)
    return Commit(msgspec.structs.replace(state, committers=committers), known)


def commit_sink(state: State, command: CommitSink, now_ms: int) -> Commit[None] | NoOp[AlreadyCommitted | UsageError]:
    """Record a batch of a sink, once."""
    check_segment(command.sink, "sink id")
    if command.batch < 0:
        return NoOp(UsageError(f"batch {command.batch} of sink {command.sink} must be an integer from 0 on"))
    last = state.sinks.get(command.sink, -1)
    if command.batch <= last:
        return NoOp(AlreadyCommitted(last))
    return Commit(msgspec.structs.replace(state, sinks={**state.sinks, command.sink: command.batch}), None)


def drop_sink(state: State, command: DropSink, now_ms: int) -> Commit[None] | NoOp[None]:
    """Forget a sink; fine if it is not there."""
    if command.sink not in state.sinks:
        return NoOp(None)
    return Commit(msgspec.structs.replace(state, sinks=without(state.sinks, command.sink)), None)


def refuse_unregistered(state: State, parts: Iterable[Part]) -> TimespineError | None:
    """Return why these parts must not be committed, or None: a foreign blob, or an unregistered writer."""
    for part in parts:
        if part.inline is not None and not part.key:
            continue
        try:
            collection, writer, _ = parse_blob_key(part.key)
        except UsageError as error:
            return error
        if collection != state.collection:
            return UsageError(f"blob {part.key} belongs to collection {collection}, not to {state.collection}")
        if writer not in state.writers:
            return Fenced(
                f"writer {writer} of {state.collection} is not registered: "
                "its blobs may be deleted, write them again with a new writer"
            )
    return None


def refuse_stale_schemas(state: State, schemas: Iterable[int | None], judged_by: int | None) -> TimespineError | None:
    """Return why new rows of these schemas must not be committed, or None: the newest one may lack their columns.

    Schemas are opaque here. A caller that has compared them with the newest one, and found that no value is lost, names
    that schema. Data without a schema is not checked: no reader can read it by columns.
    """
    newest = len(state.schemas) - 1
    for schema in schemas:
        if schema is not None and schema != newest and judged_by != newest:
            return SchemaChanged(state.collection, schema, newest)
    return None


def refuse_unknown_schemas(state: State, schemas: Iterable[int | None]) -> TimespineError | None:
    """Return why data of these schemas must not be committed, or None: no reader could decode an unknown schema."""
    for schema in schemas:
        if schema is not None and not 0 <= schema < len(state.schemas):
            return UsageError(
                f"data was written with schema {schema} of {state.collection}, which has {len(state.schemas)} of them"
            )
    return None


def check_term(term_ms: int) -> int:
    """Return the term of a lease if it is valid, or raise UsageError."""
    if not 1 <= term_ms <= 1 << 40:
        raise UsageError(f"the term of a lease must be an integer from 1 to 2^40 milliseconds, not {term_ms}")
    return term_ms


def extend(lease: L, now_ms: int) -> L:
    """Return the lease with its term counted from now.

    It is the same lease if less than a quarter of the term has passed, so that heartbeats along with other commits do
    not change the state every time.
    """
    until = now_ms + lease.term_ms
    if until - lease.until_ms < max(lease.term_ms // 4, 1):
        return lease
    return msgspec.structs.replace(lease, until_ms=until)


V = TypeVar("V")


def without(mapping: dict[str, V], key: str) -> dict[str, V]:
    """Return a copy of the mapping without one key."""
    return {each: value for each, value in mapping.items() if each != key}
