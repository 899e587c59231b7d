"""The threaded driver: performs the effects of protocols on real storage, with a real clock.

The simulator drives the same protocols. Many threads may use a driver; a session
commits for one thread at a time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from timespine.core.effects import (
    CompareAndSet,
    DeleteBlobs,
    Effect,
    FreshId,
    GetBlob,
    ListBlobs,
    MergeRuns,
    Now,
    Output,
    Protocol,
    PutBlob,
    Scan,
    Sleep,
    Truncate,
)
from timespine.errors import NoSpace
from timespine.location.blob import Blob, delete_blobs
from timespine.location.consensus import Consensus, LogWrite
from timespine.pool import Pool

T = TypeVar("T")

EffectValue: TypeAlias = Any
"""The result of an effect. Each class of effect says what it is."""

MergeFunction = Callable[[MergeRuns], Protocol[Output]]
"""A function that merges runs: a protocol, so that it may read and write blobs by effects of its own."""

DELETES_AT_ONCE = 8
"""Threads that delete blobs: deletions mostly wait for storage."""

SMALL_WRITES = (CompareAndSet, Truncate, PutBlob)
"""Effects that may use the reserve. Protocols put only rollups as blobs; a merge is too large."""


class Driver:
    """Two ports, an engine and a clock."""

    def __init__(
        self,
        blob: Blob,
        consensus: Consensus,
        engine: MergeFunction,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.blob = blob
        self.consensus = consensus
        self._engine = engine
        self._clock = clock
        self._sleep = sleep
        self._deleters = Pool(DELETES_AT_ONCE, "timespine-delete", "this driver is closed: open the store again")
        self._perform: dict[type[Effect], Callable[..., EffectValue]] = {
            Scan: lambda effect: self.consensus.scan(effect.key, effect.from_seqno, effect.limit),
            CompareAndSet: lambda effect: self.consensus.compare_and_set([LogWrite(*write) for write in effect.writes]),
            Truncate: lambda effect: self.consensus.truncate(effect.key, effect.below),
            PutBlob: lambda effect: self.blob.put(effect.key, effect.value),
            GetBlob: lambda effect: self.blob.get(effect.key),
            DeleteBlobs: lambda effect: delete_blobs(self.blob, effect.keys, self._deleters),
            ListBlobs: lambda effect: [info.key for info in self.blob.list_keys(effect.prefix)],
            MergeRuns: lambda effect: self.run(self._engine(effect)),
            Now: lambda effect: self.now_ms(),
            Sleep: lambda effect: self._sleep(effect.ms / 1000),
            FreshId: lambda effect: fresh_id(effect.prefix),
        }

    def now_ms(self) -> int:
        """Return the time of the clock of this process."""
        return int(self._clock() * 1000)

    def run(self, protocol: Protocol[T], *, frees_space: bool = False) -> T:
        """Run a protocol to its end; return its result or raise its error. One that frees space may use the reserve."""
        perform = self._perform_with_reserve if frees_space else self._perform_once
        value: EffectValue = None
        error: Exception | None = None
        while True:
            try:
                effect = protocol.send(value) if error is None else protocol.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                value, error = perform(effect), None
            except Exception as raised:
                value, error = None, raised

    def _perform_once(self, effect: Effect) -> EffectValue:
        return self._perform[type(effect)](effect)

    def _perform_with_reserve(self, effect: Effect) -> EffectValue:
        """Perform an effect, and once more with the space of the reserve if a small write finds the disk full."""
        try:
            return self._perform_once(effect)
        except NoSpace:
            if not isinstance(effect, SMALL_WRITES) or not self.consensus.release_reserve():
                raise
        return self._perform_once(effect)

    def close(self) -> None:
        """Close the driver and both ports, also if one of them fails. Twice is fine."""
        self._deleters.shutdown()
        try:
            self.blob.close()
        finally:
            self.consensus.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def fresh_id(prefix: str) -> str:
    """Return a globally unique id."""
    return f"{prefix}{uuid.uuid4().hex}"
