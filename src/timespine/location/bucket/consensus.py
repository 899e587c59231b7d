"""The Consensus port on a bucket alone: the protocol of this package, carried out on an `ObjectStore`.

The threads of a process share one replica, and one of them at a time talks to the bucket. Readers share a catch-up that
began after their call. Compare-and-sets that wait are put into one slot, each all or nothing by itself.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from timespine.errors import CorruptionError, Determinate, Indeterminate, ReadOnlyStore, Unavailable, WrongProcess
from timespine.location.bucket import replica as reads
from timespine.location.bucket.checkpoint import keep_tail_short, sweep_objects
from timespine.location.bucket.commit import Outcome, commit_groups
from timespine.location.bucket.effects import (
    DeleteObjects,
    GetObject,
    GetObjectRange,
    GetObjects,
    ListObjects,
    ObjectEffect,
    ObjectProtocol,
    Pause,
    PutIfAbsent,
    PutIfMatch,
)
from timespine.location.bucket.formats import ID_BYTES, WriteGroup
from timespine.location.bucket.object_store import ObjectStore
from timespine.location.bucket.replica import CheckpointLimits, Replica
from timespine.location.checks import check_key, check_open, check_scan, check_text, check_truncate, check_writes
from timespine.location.consensus import ENTRY_BYTES_MAX, EPOCH, WRITES_MAX, LogEntry, LogWrite, store_fenced
from timespine.location.machine.channel import Channel
from timespine.location.machine.remote_roles import RemoteRoles
from timespine.location.machine.role import Role
from timespine.locks import Lock

WAIT_S = 30.0
"""How long a call goes on to ask a bucket that does not answer. A request that is under way then may end later."""

CHECKPOINTS_PER_SWEEP = 16
"""A process sweeps after the first checkpoint that it makes, and then after this number of them."""

RETRY_SLOTS = 16
"""Slots after a checkpoint that failed or lost, before this process tries the next one."""

DEFAULT_LIMITS = CheckpointLimits()

T = TypeVar("T")


class _Request:
    """One compare-and-set or truncation that waits for a slot."""

    __slots__ = ("group", "outcome")

    def __init__(self, group: WriteGroup) -> None:
        self.group = group
        self.outcome: Outcome | None = None


class BucketConsensus:
    """Logs on a bucket alone. Close the adapter to close the objects."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        read_only: bool = False,
        epoch: int | None = None,
        limits: CheckpointLimits = DEFAULT_LIMITS,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        store: str | None = None,
    ) -> None:
        self._objects = objects
        self._roles = RemoteRoles(store)
        self._read_only = read_only
        self._replica = Replica(lambda: os.urandom(ID_BYTES), limits)
        self._replica.epoch = epoch
        self._wait_s, self._clock, self._sleep = wait_s, clock, sleep
        self._lock = Lock("the log of the bucket")
        self._waiting: deque[_Request] = deque()
        self._begun = 0
        """Catch-ups that began."""
        self._caught_up = 0
        """The number of the newest one that ended well."""
        self._checkpoint_slot = 0
        """The slot before which this process makes no checkpoint."""
        self._checkpoints = 0
        self._damage: CorruptionError | None = None
        """The damage that a checkpoint found."""
        self._closed = False
        self._pid = os.getpid()
        if not read_only:
            self._run(reads.open_bucket(self._replica))

    def head(self, key: str) -> LogEntry | None:
        check_key(key)
        begun = self._begun
        with self._lock:
            self._refresh(begun)
            log = self._replica.logs.logs.get(key)
            entries = [] if log is None else self._scan(key, log.head, None)
        return entries[-1] if entries else None

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        check_scan(key, from_seqno, limit)
        begun = self._begun
        with self._lock:
            self._refresh(begun)
            return self._scan(key, from_seqno, limit)

    def heads(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the newest number of each key, None for those never written, as of one moment."""
        for key in keys:
            check_key(key)
        begun = self._begun
        with self._lock:
            self._refresh(begun)
            return {key: self._replica.logs.head(key) for key in keys}

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        group = WriteGroup(os.urandom(ID_BYTES), tuple((*write,) for write in check_writes(writes)))
        outcome = self._commit(_Request(group))
        return None if outcome.heads is None else dict(outcome.heads)

    def truncate(self, key: str, below: int) -> int:
        check_truncate(key, below)
        begun = self._begun
        with self._lock:
            self._refresh(begun)
            log = self._replica.logs.logs.get(key)
            if log is None or not log.droppable(below):
                return 0
        return self._commit(_Request(WriteGroup(os.urandom(ID_BYTES), (), ((key, below),)))).dropped

    @property
    def epoch(self) -> int:
        if self._replica.epoch is None:
            begun = self._begun
            with self._lock:
                self._refresh(begun)
                self._replica.epoch = self._replica.logs.epoch
        return self._replica.epoch

    def fence(self) -> int:
        opened = self.epoch
        if self.compare_and_set([LogWrite(EPOCH, opened - 1 if opened else None, b"")]) is not None:
            raise store_fenced(opened, opened + 1)
        self._replica.epoch = opened + 1
        return opened + 1

    def forget(self, key: str, expected: int) -> bool:
        check_key(key)
        begun = self._begun
        with self._lock:
            self._refresh(begun)
            if self._replica.logs.head(key) != expected:
                return False
        group = WriteGroup(os.urandom(ID_BYTES), (), (), ((key, expected),))
        return self._commit(_Request(group)).dropped > 0

    def list_keys(self, prefix: str = "") -> list[str]:
        check_text(prefix, "prefix")
        begun = self._begun
        with self._lock:
            self._refresh(begun)
            return sorted(key for key in self._replica.logs.logs if key.startswith(prefix))

    def role(self, name: str) -> Role:
        """Return a role among the processes of this machine that have these logs open."""
        return self._roles.role(check_text(name, "role"))

    def channel(self, name: str) -> Channel | None:
        """Return a role with requests to the process of this machine that has it."""
        return self._roles.channel(check_text(name, "role"))

    def sweep(self) -> int:
        """Delete objects that crashed processes left; return how many."""
        with self._lock:
            self._check_usable(writing=True)
            return self._run(sweep_objects(self._replica))

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> None:
        """Do nothing: a bucket has no reserve."""

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            self._objects.close()

    def _check_usable(self, *, writing: bool = False) -> None:
        if self._pid != os.getpid():
            raise WrongProcess("this bucket was opened by another process: open the store again in this one")
        check_open(self._closed, "consensus")
        if writing and self._read_only:
            raise ReadOnlyStore("the bucket is open for reading only")
        if writing and self._damage is not None:
            raise self._damage

    def _refresh(self, begun: int) -> None:
        """Catch up, unless another thread did so from its beginning after `begun` catch-ups had begun."""
        self._check_usable()
        if self._caught_up <= begun:
            self._begun += 1
            number = self._begun
            self._run(reads.catch_up(self._replica))
            self._caught_up = number

    def _scan(self, key: str, from_seqno: int, limit: int | None) -> list[LogEntry]:
        first, entries = self._run(reads.scan_log(self._replica, key, from_seqno, limit, is_fresh=True))
        return [LogEntry(first + place, entry.data) for place, entry in enumerate(entries)]

    def _commit(self, request: _Request) -> Outcome:
        """Wait for the turn of this thread, unless another one has put the request into its slot."""
        self._check_usable(writing=True)
        self._waiting.append(request)
        try:
            with self._lock:
                if self._take(request):
                    self._check_usable(writing=True)
                    self._lead(request)
        except Determinate as error:  # the lock was busy for too long
            if self._take(request):
                raise
            raise Indeterminate(f"another thread of this process commits it: {error.message}") from error
        if request.outcome is None:  # the thread that had taken it was interrupted, or found the log damaged
            raise Indeterminate("another thread of this process was interrupted while it committed")
        if request.outcome.error is not None:
            raise request.outcome.error
        return request.outcome

    def _lead(self, first: _Request) -> None:
        """Commit the requests that wait, as far as they fit into one slot with the first."""
        batch = [first, *filter(self._take, _fitting(first, list(self._waiting)))]
        outcomes = self._run(commit_groups(self._replica, [request.group for request in batch]))
        for request in batch:
            request.outcome = outcomes[request.group.id]
        self._keep_tail_short()

    def _take(self, request: _Request) -> bool:
        """Take a request out of the queue; return False if another thread has taken it."""
        try:
            self._waiting.remove(request)
        except ValueError:
            return False
        return True

    def _keep_tail_short(self) -> None:
        """Make a checkpoint if it is due; one that fails costs nothing but the work."""
        replica = self._replica
        is_due = replica.is_checkpoint_due and replica.logs.slot >= self._checkpoint_slot
        if not is_due and replica.base.slot <= replica.logs.index_slot:
            return
        try:
            if self._run(keep_tail_short(replica)):
                if self._checkpoints % CHECKPOINTS_PER_SWEEP == 0:
                    self._run(sweep_objects(replica))
                self._checkpoints += 1
            elif is_due:
                self._checkpoint_slot = replica.logs.slot + RETRY_SLOTS
        except Unavailable:
            return  # the commits before it are done; the next ones try again
        except CorruptionError as error:
            self._damage = error  # the commits before it are done; the next one is refused

    def _run(self, protocol: ObjectProtocol[T]) -> T:
        """Carry out a protocol. After the time limit, requests are refused instead of sent."""
        deadline = self._clock() + self._wait_s
        result: object = None
        error: Unavailable | None = None
        while True:
            try:
                effect = protocol.send(result) if error is None else protocol.throw(error)
            except StopIteration as ended:
                value: T = ended.value
                return value
            try:
                result, error = self._perform(effect, deadline), None
            except Unavailable as failure:
                result, error = None, failure

    def _perform(self, effect: ObjectEffect, deadline: float) -> Any:
        objects, left_s = self._objects, deadline - self._clock()
        if left_s <= 0:
            raise Determinate(f"the bucket did not answer within {self._wait_s:.0f} s")
        match effect:
            case Pause(ms):
                return self._sleep(min(ms / 1000, left_s))
            case GetObject(name, unless):
                return objects.get(name, unless)
            case GetObjects(names):
                return objects.get_many(names)
            case GetObjectRange(name, start, stop):
                return objects.get_range(name, start, stop)
            case PutIfAbsent(name, data):
                return objects.put_if_absent(name, data)
            case PutIfMatch(name, data, tag):
                return objects.put_if_match(name, data, tag)
            case DeleteObjects(names):
                return objects.delete(names)
            case ListObjects(prefix):
                return objects.list_names(prefix)
        raise TypeError(f"{effect!r} is no effect on objects")


def _fitting(first: _Request, waiting: list[_Request]) -> list[_Request]:
    """Return the requests that fit into one slot with the first: they write other keys, within the limits of a slot."""
    fitting, keys, size = [], {key for key, _, _ in first.group.writes}, _size(first)
    for request in waiting:
        wanted = {key for key, _, _ in request.group.writes}
        size += _size(request)
        if keys & wanted or len(keys) + len(wanted) > WRITES_MAX or size > ENTRY_BYTES_MAX:
            break  # those behind it wait for the next slot too, so that no request is passed over for ever
        fitting.append(request)
        keys |= wanted
    return fitting


def _size(request: _Request) -> int:
    return sum(len(data) for _, _, data in request.group.writes)
