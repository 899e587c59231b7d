"""What a protocol may ask of the world.

A protocol is a generator: it yields an effect and is sent the result, or is
thrown the error. The threaded driver and the simulator both carry out these
effects, so both run the same protocols.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from timespine.core.batch import Count, HollowBatch
from timespine.core.spine.layers import MergeRequest


class MergeOutput(msgspec.Struct, frozen=True):
    """The result of a merge, and how much of it is new.

    Blobs of the batch are new, under the prefix of the merge's writer, or parts of the inputs that are passed
    through by reference. The batch lists a part that is passed through directly only if an input lists it directly.
    A part from inside a hollow run stays inside one: a new hollow run of the merge's writer lists it.
    """

    batch: HollowBatch
    """What replaces the inputs."""
    passed: tuple[str, ...] = ()
    """Of the parts that the inputs list directly, the keys of those that were passed through, whole or in part: the
    batch lists such a part, or a hollow run of the batch lists it or what is inside of it."""
    rows: Count = 0
    """Updates that were written: not those that were passed through."""
    size: Count = 0
    """Bytes that were written, lists of parts and inline data included."""
    ms: Count = 0
    """How long it took, in milliseconds."""


class Effect(msgspec.Struct, frozen=True):
    """The base of all effects."""


class Scan(Effect, frozen=True):
    """Entries of a log from a number on, oldest first, at most `limit`. Result: list of (seqno, bytes)."""

    key: str
    from_seqno: int
    limit: int | None = None


class CompareAndSet(Effect, frozen=True):
    """Append to one or more logs, all or nothing. Result: None, or the true heads of those that differed."""

    writes: tuple[tuple[str, int | None, bytes], ...]


class Truncate(Effect, frozen=True):
    """Drop entries below a number. Result: how many went."""

    key: str
    below: int


class PutBlob(Effect, frozen=True):
    """Make bytes durable under a new key. Result: None."""

    key: str
    value: bytes


class GetBlob(Effect, frozen=True):
    """Result: the bytes, or None if there are none."""

    key: str


class DeleteBlobs(Effect, frozen=True):
    """Delete some blobs, in any order, missing ones included. Result: None."""

    keys: tuple[str, ...]


class ListBlobs(Effect, frozen=True):
    """Result: list of keys below a prefix."""

    prefix: str


class MergeRuns(Effect, frozen=True):
    """Merge the inputs of a request and put the result under a writer's prefix.

    Result: a MergeOutput, or None if an input is missing (another merge was faster).
    """

    collection: str
    request: MergeRequest
    writer: str


class Now(Effect, frozen=True):
    """Result: this process's clock in milliseconds. It may jump and differ from that of others."""


class Sleep(Effect, frozen=True):
    """Pause. Result: None."""

    ms: int


class FreshId(Effect, frozen=True):
    """Result: an id that was never used before, beginning with the prefix."""

    prefix: str


T = TypeVar("T")
Protocol = Generator[Effect, Any, T]
"""A protocol that returns a T."""

Output = MergeOutput | None
"""What MergeRuns gives."""
