"""The inner handle of a collection: its state, its schemas and its parts, and what all handles of a store share."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from timespine.client.arguments.time_args import FrontierLike, TimeLike, parse_frontier, parse_time
from timespine.client.arrangement_protocols import OpenArrangement
from timespine.client.catalog.catalog import CatalogEntry, check_role
from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.read.follow.commit_signal import CommitSignal
from timespine.client.read.leases import Leases
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.schema.schema import Schema, decode_schema, schemas_by_id
from timespine.config import READ_THREADS_MAX, Config
from timespine.core.state import State, Status
from timespine.errors import ClosedError, CorruptionError
from timespine.location.blob import Blob
from timespine.location.opening.place import LOOK_S
from timespine.locks import Bell, Lock
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.pool import usable_cores

READ_THREADS_MIN = 4
"""Threads that read ahead and encode on a machine of fewer cores: they wait for storage too."""

CHANGE_S = 3600.0
"""Seconds that a thread waits for changes of other threads: one of them may run on Spark."""


def read_threads(config: Config) -> int:
    """Return how many threads of a store decode, read ahead and encode: what they call leaves the interpreter's
    lock."""
    by_default = min(max(usable_cores(), READ_THREADS_MIN), READ_THREADS_MAX)
    return max(config.read_threads or by_default, config.outstanding_parts)


class Closable(Protocol):
    """An object that ends with its store."""

    def close(self) -> None:
        """End it. Twice is fine."""


@dataclass(slots=True)
class StoreContext:
    """The objects that all collections of an open store share."""

    committer: GroupCommitter
    leases: Leases
    blob: Blob
    cache: PartCache
    pool: Executor
    """The threads that read ahead and encode parts."""
    config: Config
    clock: Callable[[], float] = time.time
    committed: Bell = field(default_factory=Bell)
    """The bell that rings after each commit of this process."""
    monotonic: Callable[[], float] = time.monotonic
    """The clock that measures waits, in seconds."""
    sleep: Callable[[float], None] = time.sleep
    """The function that pauses, in seconds."""
    retain_ms: int | None = None
    """How long collections without a policy of their own keep history; None: for ever."""
    forget_within_ms: int | None = None
    """The deadline for forgetting expired history of collections without one of their own; None: as in Config."""
    keep_deleted_ms: int = 0
    """How long deleted data stay restorable, as this process knows it; 0: maintenance deletes them at once."""
    read_keep_ms: Callable[[], int] = lambda: 0
    """The function that reads it from the catalog: every garbage collection calls it first."""
    audit: float = 0.0
    """The share of parts that statistics allow to skip and that are read anyway, to check the statistics."""
    writing: dict[tuple[str, str], float] = field(default_factory=dict)
    """Writers of running jobs, by collection, and the time of their last heartbeat."""
    location: str = ""
    """The absolute path of the folder of the store, or its URL; empty if other processes cannot find it."""
    listen: Callable[[Callable[[], None]], None] | None = None
    """The function of the logs that rings a bell at commits of other processes; None if they cannot."""
    look_s: float = LOOK_S
    """The longest pause in seconds of a waiting reader between two looks at a log."""
    storage: tuple[tuple[str, str], ...] = ()
    """How its bucket is reached: options without secrets."""
    consensus_address: str = ""
    """The address of its logs that the caller gave, without a password; empty: the descriptor has it."""
    store_id: str = ""
    """The id of the store, if its place has one; otherwise the catalog has it, from the first copy on."""
    listeners: weakref.WeakKeyDictionary[Closable, None] = field(default_factory=weakref.WeakKeyDictionary)
    """The open listeners, in the order in which they began: closing the store closes them. Changed under
    `listening`."""
    listening: Lock = field(default_factory=lambda: Lock("the listeners of this store"))
    """The lock for changes of `listeners`."""
    arrangements: list[OpenArrangement] = field(default_factory=list)
    """The open arrangements, of the layer above: they serve lookups and changes. Closing the store ends them."""
    arranging: Lock = field(default_factory=lambda: Lock("the arrangements of this store", CHANGE_S))
    """The lock for new arrangements: equal ones are made once, and to make one reads the collection."""
    counters: dict[str, float] = field(default_factory=dict)
    """Counters of blobs and bytes that were put, encoded, retried, left to the sweep."""
    by_collection: dict[str, defaultdict[str, float]] = field(default_factory=dict)
    """Counters of appends and merges, by collection."""
    buckets: dict[str, tuple[int, dict[str, float]]] = field(default_factory=dict)
    """Blobs and bytes by collection, and the sequence number of the state that they belong to."""

    def counters_of(self, collection: str) -> defaultdict[str, float]:
        """Return the counters of one collection."""
        return self.by_collection.setdefault(collection, defaultdict(int))

    def signal(self) -> CommitSignal:
        """Make the signal by which one thread waits for commits."""
        return CommitSignal(self.committed, self.look_s, self.listen)


@dataclass(slots=True)
class CollectionHandle:
    """One open collection of a store."""

    context: StoreContext
    name: str
    entry: CatalogEntry
    changing: Lock = field(default_factory=lambda: Lock("a change of this collection", CHANGE_S))
    """The lock of changes that read rows: threads of one process need not race for the upper."""

    @property
    def id(self) -> str:
        """The id of the collection."""
        return self.entry.id

    @property
    def config(self) -> Config:
        """The limits and defaults of the store."""
        return self.context.config

    @property
    def committer(self) -> GroupCommitter:
        """The committer of the store."""
        return self.context.committer

    def check_unowned(self) -> None:
        """Raise OwnedCollection if only the refresh of a view may change this collection."""
        check_role(self.name, self.entry)

    def state(self) -> State:
        """Read the newest state."""
        return self.committer.state(self.id)

    def known(self) -> State:
        """Return the newest state that this process knows, without a read."""
        return self.context.committer.known(self.entry.id)  # not by properties: every write calls this some ten times

    def schema(self, state: State) -> tuple[int, Schema]:
        """Return the newest schema of a state, and its id."""
        if state.status is Status.FINALIZED:
            raise ClosedError(f"collection {self.name} was dropped")
        if not state.schemas:
            raise CorruptionError(f"collection {self.name} has no schema")
        return len(state.schemas) - 1, decode_schema(state.schemas[-1])

    def parts(self, state: State) -> Parts:
        """Return access to the parts of a state."""
        context = self.context
        self.committer.check_open()
        id, schema_of = self.id, schemas_by_id(dict(enumerate(state.schemas)), self.name)
        parts = Parts(context.blob, id, schema_of, context.config, context.cache, context.pool)
        parts.audit = context.audit
        return parts

    def closed(self) -> ClosedError:
        """Make the error for a write to a closed collection."""
        if self.known().status is Status.FINALIZED:
            return ClosedError(f"collection {self.name} was dropped")
        return ClosedError(f"collection {self.name} is closed: it was dropped, or closed for good")

    def time_of(self, given: TimeLike) -> Time:
        """Convert a time that a caller gave to a time of this collection."""
        return parse_time(given, self.known().arity, self.entry.timeline)

    def frontier_of(self, given: FrontierLike) -> Frontier:
        """Convert a frontier that a caller gave to a frontier of this collection."""
        return parse_frontier(given, self.known().arity, self.entry.timeline)

    @property
    def forget_within_ms(self) -> int:
        """The deadline for forgetting expired history: of the collection, or of its store, or of Config."""
        for given in (self.entry.forget_within_ms, self.context.forget_within_ms):
            if given is not None:
                return given
        return self.config.forget_within_ms

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        return int(self.context.clock() * 1000)

    def next_time(self) -> int:
        """Return the time of the next append, if it is not sealed by then."""
        return self.now_ms() if self.entry.timeline == "clock" else 0

    def wait(self, is_there: Callable[[State], bool], timeout_s: float) -> State | None:
        """Wait for a state that satisfies a condition; return None after the timeout.

        Commits of this process wake the caller at once. For those of other processes it looks at the log, often at
        first and then less and less.
        """
        context, signal = self.context, self.context.signal()
        deadline = context.monotonic() + timeout_s
        while True:
            # SUBTLE: counted before the look, so that a commit after it is not missed. The look takes no lock, so no
            # committer waits for it (test_to_spark.py).
            heard = signal.mark
            state = self.state()
            if is_there(state):
                return state
            left = deadline - context.monotonic()
            if left <= 0:
                return None
            signal.wait(heard, left)
