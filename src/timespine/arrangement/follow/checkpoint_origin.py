"""What a checkpoint says of the collection that its rows are of, and whether a restart may go on from it.

A checkpoint that fits has all updates of the collection before its upper, as the collection has them now. It does not
fit a collection that was put back from a backup: its upper is behind, or the commit at the upper is another one.
"""

from __future__ import annotations

import msgspec

from timespine.arrangement.follow.followed_rows import Question
from timespine.arrangement.manifest import StoredCheckpoint
from timespine.columnar.schema.schema import Schema
from timespine.core.state import HistoryEntry, State
from timespine.errors import CorruptionError, UsageError
from timespine.model.frontier import Frontier


class CheckpointOrigin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which rows of which collection a checkpoint has."""

    collection: str
    """The id of the collection."""
    by: tuple[int, ...] | None
    """Ids of the columns that rows are arranged by; None: the key."""
    columns: tuple[int, ...] | None
    """Ids of the columns of the rows; None: all."""
    condition: str | None
    """The condition on rows, with ids for names."""
    history: str
    """Which times can be read: "latest" or "all"."""
    commit: HistoryEntry | None = None
    """The last commit before the upper that the state still listed."""

    def encode(self) -> bytes:
        """Encode the origin for a manifest."""
        return msgspec.msgpack.encode(self)

    def at(self, upper: Frontier, state: State) -> CheckpointOrigin:
        """Return the same with the last commit before an upper."""
        before = [entry for entry in state.history if entry.upper <= upper]
        return msgspec.structs.replace(self, commit=before[-1] if before else None)


_decoder = msgspec.msgpack.Decoder(CheckpointOrigin)


def origin_of(collection: str, question: Question) -> CheckpointOrigin:
    """Return the origin of the checkpoints of a question."""
    assert not isinstance(question.condition, int)
    return CheckpointOrigin(collection, question.by, question.columns, question.condition, question.history)


def decode_origin(stored: StoredCheckpoint) -> CheckpointOrigin | None:
    """Decode the origin of a checkpoint; None if its rows are of no collection."""
    try:
        return None if stored.origin is None else _decoder.decode(stored.origin)
    except (msgspec.MsgspecError, UsageError) as error:
        raise CorruptionError("the origin of a checkpoint does not make sense") from error


def misfit(stored: StoredCheckpoint, wanted: CheckpointOrigin, schema: Schema, state: State) -> str | None:
    """Return why a checkpoint does not fit a collection as it is now; None if it fits.

    Raises a UsageError if it is of another arrangement altogether: its folder must not be taken from it.
    """
    found = decode_origin(stored)
    if found is None or msgspec.structs.replace(found, commit=None) != wanted:
        raise UsageError("the folder has checkpoints of another arrangement: use another folder")
    if stored.schema != schema.encode():
        return "the schema of the collection changed"
    upper = stored.upper
    if upper is None or upper == Frontier.minimum(1):
        return "it was saved before any time was complete"
    if not upper <= state.upper:
        return f"the collection is complete up to {state.upper} only, and the checkpoint up to {upper}"
    commit = found.commit
    if commit is not None:
        alike = [entry for entry in state.history if entry.upper == commit.upper]
        if alike and commit not in alike:
            return "another commit is where the checkpoint ends: the collection was put back from a backup"
    return None
