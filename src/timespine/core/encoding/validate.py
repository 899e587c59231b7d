"""Checks that all times in a state have the same number of coordinates.

Decoding checks the types of structs. The functions here check that all times have the arity of the collection, for
values from a caller or from storage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from timespine.core.batch import HollowBatch, Part
from timespine.core.state import HistoryEntry, HoldRecord, Reader
from timespine.core.unsealed_index import UnsealedBatch
from timespine.ids import parse_blob_key
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import check_time


def check_frontiers(frontiers: Iterable[Frontier | None], arity: int) -> None:
    """Raise UsageError if a frontier has another arity."""
    for frontier in frontiers:
        if frontier is not None:
            check_arity_of(frontier, arity, "a frontier")


def check_parts(parts: Iterable[Part], arity: int) -> None:
    """Raise UsageError if a part has bounds of another arity, or its blob has no valid key."""
    for part in parts:
        if part.key or part.inline is None:
            parse_blob_key(part.key)
        if part.is_truncated or part.rewrite is not None:
            check_frontiers((part.lower, part.upper, part.rewrite), arity)


def check_hollow(batches: Collection[HollowBatch], arity: int) -> None:
    """Raise UsageError if a batch describes times of another arity."""
    for batch in batches:
        check_frontiers((batch.desc.lower, batch.desc.upper, batch.desc.since), arity)
    check_content(batches, arity)


def check_content(batches: Collection[HollowBatch], arity: int) -> None:
    """Raise UsageError if a part or a run of a batch has times of another arity, or a blob has no valid key."""
    for batch in batches:
        check_parts(batch.parts, arity)
        for run in batch.runs:
            if run.zero_from is not None:
                check_time(run.zero_from, arity)


def check_unsealed(batches: Iterable[UnsealedBatch], arity: int) -> None:
    """Raise UsageError if an unsealed batch has times of another arity."""
    for batch in batches:
        check_frontiers((batch.lower,), arity)
        check_time(batch.max, arity)
        check_parts(batch.parts, arity)


def check_holders(holders: Iterable[Reader | HoldRecord | None], arity: int) -> None:
    """Raise UsageError if a reader or hold is at times of another arity."""
    check_frontiers((each.since for each in holders if each is not None), arity)


def check_history(entries: Iterable[HistoryEntry], arity: int) -> None:
    """Raise UsageError if an entry of history has times of another arity."""
    check_frontiers((entry.upper for entry in entries), arity)
