"""The effects that a protocol may request.

A protocol is a generator: it yields an effect, and receives the result or the error. The threaded driver and the
simulator both carry out these effects, so both run the same protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import msgspec

from timespine.core.arrangement.level_transitions import MergePlan
from timespine.core.arrangement.levels import SpineLevels
from timespine.core.arrangement.spine_files import Manifest
from timespine.core.batch import Count, HollowBatch
from timespine.core.spine.layers import MergeRequest
from timespine.model.frontier import Frontier


class MergeOutput(msgspec.Struct, frozen=True):
    """The result of a merge, and how much of it is new.

    Blobs of the batch are new, under the prefix of the merge's writer, or parts of the inputs that are passed
    through by reference. The batch lists a part that is passed through directly only if an input lists it directly.
    A part from inside a hollow run stays inside one: a new hollow run of the merge's writer lists it.
    """

    batch: HollowBatch
    """The batch that replaces the inputs."""
    passed: tuple[str, ...] = ()
    """The keys of the parts that the inputs list directly and that were passed through, whole or in part. The batch
    lists such a part, or a hollow run of the batch lists it or its contents."""
    rows: Count = 0
    """Updates that the merge wrote, without those that it passed through."""
    size: Count = 0
    """Bytes that the merge wrote, lists of parts and inline data included."""
    ms: Count = 0
    """The duration of the merge, in milliseconds."""


class Effect(msgspec.Struct, frozen=True):
    """The base of all effects."""


class Scan(Effect, frozen=True):
    """Read the entries of a log from a number on, oldest first, at most `limit`. Result: list of (seqno, bytes)."""

    key: str
    from_seqno: int
    limit: int | None = None


class CompareAndSet(Effect, frozen=True):
    """Append to one or more logs, all or nothing. Result: None, or the true heads of those that differed."""

    writes: tuple[tuple[str, int | None, bytes], ...]


class Truncate(Effect, frozen=True):
    """Drop entries below a number. Result: the number of dropped entries."""

    key: str
    below: int


class PutBlob(Effect, frozen=True):
    """Make bytes durable under a new key. Result: None."""

    key: str
    value: bytes


class GetBlob(Effect, frozen=True):
    """Read a blob. Result: the bytes, or None if there is no such blob."""

    key: str


class DeleteBlobs(Effect, frozen=True):
    """Delete some blobs, in any order, missing ones included. Result: None."""

    keys: tuple[str, ...]


class ListBlobs(Effect, frozen=True):
    """List the blobs below a prefix. Result: list of keys."""

    prefix: str


class MergeRuns(Effect, frozen=True):
    """Merge the inputs of a request and put the result under a writer's prefix.

    Result: a MergeOutput, or None if an input is missing (another merge was faster).
    """

    collection: str
    request: MergeRequest
    writer: str


class Now(Effect, frozen=True):
    """Read this process's clock. Result: milliseconds. The clock may jump, and differ from that of others."""


class Sleep(Effect, frozen=True):
    """Pause. Result: None."""

    ms: int


class FreshId(Effect, frozen=True):
    """Make an id. Result: an id that was never used before, beginning with the prefix."""

    prefix: str


class Swap(Effect, frozen=True):
    """Replace the state of a spine by what a transition makes of it, at once. Result: the answer of the transition."""

    transition: Callable[[SpineLevels[Any]], tuple[SpineLevels[Any], Any]]


class WaitUntil(Effect, frozen=True):
    """Wait until the state of a spine meets a condition. Result: whether it did before the limit."""

    condition: Callable[[SpineLevels[Any]], bool]
    limit_ms: int


class MergeTurn(msgspec.Struct, frozen=True):
    """The turn of a task of a level."""

    levels: SpineLevels[Any]
    """The state of the spine now."""
    is_alone: bool
    """Whether no other task waits for its turn."""


class TakeTurn(Effect, frozen=True):
    """Let the tasks that wait run first. Result: a MergeTurn."""


class MeasureResources(Effect, frozen=True):
    """Measure memory and disk. Result: Resources."""


class OpenMerge(Effect, frozen=True):
    """Prepare a merge of batches of a spine. Result: the merge."""

    plan: MergePlan[Any]


class SliceResult(msgspec.Struct, frozen=True):
    """What a slice of a merge did."""

    rows: int
    """Rows of the inputs that it read."""
    is_last: bool
    """Whether all inputs are read."""


class MergeSlice(Effect, frozen=True):
    """Merge the next rows of the inputs, about as many as given, or all of them. Result: a SliceResult."""

    merge: Any
    rows: int | None


class FinishMerge(Effect, frozen=True):
    """Make a batch of what the slices of a merge gave. Result: the batch, or None if nothing is left."""

    merge: Any


class DropMerge(Effect, frozen=True):
    """Give up a merge. Result: the names of the files that it wrote, which nothing names."""

    merge: Any


class WriteBatch(Effect, frozen=True):
    """Write a batch to a new file, not durable yet. Result: the same batch with this file."""

    batch: Any
    frees_memory: bool = False
    """Whether the result is only mapped: the caller gives up the batch in memory."""


class SyncFiles(Effect, frozen=True):
    """Make files of batches durable, and their names in the folder. Result: None."""

    names: tuple[str, ...]


class SavedManifest(msgspec.Struct, frozen=True):
    """The contents of a checkpoint."""

    manifest: Manifest
    """Its number and its files."""
    is_dirty: bool
    since: Frontier | None
    upper: Frontier | None


class WriteManifest(Effect, frozen=True):
    """Make a checkpoint durable, whole or not at all. Result: None."""

    saved: SavedManifest


class ReadManifests(Effect, frozen=True):
    """Read the checkpoints that are there. Result: list of SavedManifest, the newest first."""


class OpenBatch(Effect, frozen=True):
    """Open a file of a checkpoint. Result: its batch. Raises CorruptionError if it is missing or damaged."""

    name: str


class ListFiles(Effect, frozen=True):
    """List the files of batches in the folder. Result: list of names."""


class KeptFiles(NamedTuple):
    """Manifests and files that were not deleted, because a reader of another process needs them."""

    manifests: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


class DeleteFiles(Effect, frozen=True):
    """Delete manifests by their numbers, then files of batches. Result: KeptFiles, or None if all are gone."""

    manifests: tuple[int, ...]
    names: tuple[str, ...]


T = TypeVar("T")
Protocol = Generator[Effect, Any, T]
"""A protocol that returns a T."""

Output = MergeOutput | None
"""The result of MergeRuns."""
