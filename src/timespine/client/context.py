"""How the handles of one collection get at its state, its schemas and its parts."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from timespine.client.catalog.catalog import Entry
from timespine.client.commit.group_commit import Committer
from timespine.client.commit.leader_queue import Line
from timespine.client.read.leases import Leases
from timespine.client.time_args import Moment, Progress, to_frontier, to_time
from timespine.columnar.parts.cache import PartCache
from timespine.columnar.scan.part_set import Parts
from timespine.columnar.schema.schema import Schema
from timespine.config import Config
from timespine.core.state import State, Status
from timespine.errors import ClosedError, CorruptionError
from timespine.location.blob import Blob
from timespine.locks import Bell, Lock
from timespine.model.frontier import Frontier
from timespine.model.time import Time

POLL_MIN_S = 0.002
POLL_MAX_S = 0.25
"""How long a waiting reader sleeps between two looks at a log: the longer nothing comes, the longer."""

CHANGE_S = 3600.0
"""How long a thread waits for the changes of other threads: one of them may run on Spark."""


@lru_cache(maxsize=4096)
def decoded_schema(data: bytes) -> Schema:
    """A schema from the state, decoded once per process."""
    return Schema.decode(data)


@dataclass(slots=True)
class Shared:
    """What all collections of an open store share."""

    committer: Committer
    leases: Leases
    blob: Blob
    cache: PartCache
    pool: Executor
    """Where parts are read ahead and encoded."""
    config: Config
    clock: Callable[[], float] = time.time
    committed: Bell = field(default_factory=Bell)
    """Rings whenever this process committed something."""
    monotonic: Callable[[], float] = time.monotonic
    """What waiting is measured by."""
    sleep: Callable[[float], None] = time.sleep
    """How to pause, in seconds."""
    retain_ms: int | None = None
    """How long collections without a policy of their own keep history; None: for ever."""
    forget_within_ms: int | None = None
    """By when expired history is physically gone, where a collection does not say so itself; None: as in Config."""
    audit: float = 0.0
    """The share of parts skipped by statistics that is read all the same, to check them."""
    writing: dict[tuple[str, str], float] = field(default_factory=dict)
    """Writers of jobs that are under way, by collection, and when they were last heard of."""
    location: str = ""
    """The folder of the store; empty if it is in none."""
    listeners: weakref.WeakKeyDictionary[Any, None] = field(default_factory=weakref.WeakKeyDictionary)
    """Those that listen, in the order in which they began, to be told when the store is closed. Changed under
    `listening`."""
    listening: Lock = field(default_factory=lambda: Lock("the listeners of this store"))
    """Held while listeners come and go."""
    counters: dict[str, float] = field(default_factory=dict)
    """What was put, encoded, retried, left to the sweep."""
    by_collection: dict[str, dict[str, float]] = field(default_factory=dict)
    """What was appended and merged, by collection."""
    buckets: dict[str, tuple[int, dict[str, float]]] = field(default_factory=dict)
    """Blobs and bytes by collection, and the state that they were added up for."""

    def counters_of(self, collection: str) -> dict[str, float]:
        """The counters of one collection."""
        return self.by_collection.setdefault(collection, {})


@dataclass(slots=True)
class Access:
    """One collection."""

    shared: Shared
    name: str
    entry: Entry
    changing: Lock = field(default_factory=lambda: Lock("a change of this collection", CHANGE_S))
    """Held while rows are read to be changed: threads of one process need not race for the upper."""
    appending: Line[Any] = field(default_factory=Line)
    """Where small appends wait for each other."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.entry.id

    @property
    def config(self) -> Config:
        """Limits and defaults."""
        return self.shared.config

    @property
    def committer(self) -> Committer:
        """Who commits."""
        return self.shared.committer

    def state(self) -> State:
        """The newest state."""
        return self.committer.state(self.id)

    def known(self) -> State:
        """The newest state that this process knows of."""
        return self.shared.committer.known(self.entry.id)  # not by properties: every write asks some ten times

    def schema(self, state: State) -> tuple[int, Schema]:
        """The newest schema and its id."""
        if state.status is Status.FINALIZED:
            raise ClosedError(f"collection {self.name} was dropped")
        if not state.schemas:
            raise CorruptionError(f"collection {self.name} has no schema")
        return len(state.schemas) - 1, decoded_schema(state.schemas[-1])

    def parts(self, state: State) -> Parts:
        """Its parts, as a state describes them."""

        def schema_of(id: int) -> Schema:
            if not 0 <= id < len(state.schemas):
                raise CorruptionError(f"a run of {self.name} was written with schema {id}, which is not known")
            return decoded_schema(state.schemas[id])

        shared = self.shared
        self.committer.check_open()
        parts = Parts(shared.blob, self.id, schema_of, shared.config, shared.cache, shared.pool)
        parts.audit = shared.audit
        return parts

    def closed(self) -> ClosedError:
        """Make the error for a collection that takes no more rows."""
        if self.known().status is Status.FINALIZED:
            return ClosedError(f"collection {self.name} was dropped")
        return ClosedError(f"collection {self.name} is closed: it was dropped, or closed for good")

    def time_of(self, given: Moment) -> Time:
        """A time of this collection from what a user gave."""
        return to_time(given, self.known().arity, self.entry.timeline)

    def frontier_of(self, given: Progress) -> Frontier:
        """A frontier of this collection from what a user gave."""
        return to_frontier(given, self.known().arity, self.entry.timeline)

    @property
    def forget_within_ms(self) -> int:
        """Expired history must be physically gone after so long: as the collection says, or its store, or Config."""
        for given in (self.entry.forget_within_ms, self.shared.forget_within_ms):
            if given is not None:
                return given
        return self.config.forget_within_ms

    def now_ms(self) -> int:
        """The wall clock."""
        return int(self.shared.clock() * 1000)

    def next_time(self) -> int:
        """The time that the next append is for, if it is not sealed by then."""
        return self.now_ms() if self.entry.timeline == "clock" else 0

    def wait(self, is_there: Callable[[State], bool], timeout_s: float) -> State | None:
        """The first state for which something holds; None if that takes too long.

        Commits of this process wake it at once; those of others are looked for, often at
        first and then less and less.
        """
        shared = self.shared
        deadline = shared.monotonic() + timeout_s
        pause = POLL_MIN_S
        while True:
            # SUBTLE: counted before the look, so that a commit after it is not missed; and nobody who commits has
            # to wait for the look, which may take long (test_to_spark.py).
            heard = shared.committed.count
            state = self.state()
            if is_there(state):
                return state
            left = deadline - shared.monotonic()
            if left <= 0:
                return None
            if shared.committed.count == heard:
                shared.committed.wait(heard, min(pause, left))
            pause = min(pause * 1.5, POLL_MAX_S)
