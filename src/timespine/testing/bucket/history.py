"""One history of a bucket from its seed: processes, faults, and what must be true when the faults stop."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

from timespine.errors import StoreFenced
from timespine.location.bucket import checkpoint, commit, replica
from timespine.location.bucket.effects import ObjectProtocol
from timespine.location.bucket.formats import WriteGroup
from timespine.location.bucket.replica import CheckpointLimits, Replica
from timespine.location.consensus import EPOCH
from timespine.testing.bucket.check_answers import BucketAnswerChecks, BucketCall
from timespine.testing.bucket.scheduler import FAULTS, BucketProcess, BucketScheduler
from timespine.testing.bucket.world import BucketWorld
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.simulator import Faults

KEYS = ("a", "b", "c")
"""The logs of a history."""

PROCESSES = (2, 3, 4)
"""Processes that use the bucket at the same time."""

SLOTS = 3
"""Slots after which a checkpoint is due: few, so that slots die while processes are paused."""

PACK_BYTES = (0, 80, 1 << 20)
"""The live bytes below which a pack is written again, and the size from which on there is another one. By process."""

FAULT_KINDS = (
    *("refused", "request lost", "reply lost", "late", "retried below", "conflict without a write"),
    *("pauses", "outages"),
)
"""What happens to requests and processes."""

REACHED = ("puts into dead slots", "checkpoints", "groups in doubt", "crashes", *FAULT_KINDS)
"""What must have happened in many histories: otherwise they are too tame."""

EVENTS_MAX = 40_000
"""Events after which a history that does not end is a violation."""


class BucketHistory:
    """One history."""

    def __init__(self, seed: int, operations: int, faults: Faults | None, tracing: bool) -> None:
        self.world = BucketWorld()
        self.checks = BucketAnswerChecks(self.world)
        self.scheduler = BucketScheduler(self.world, seed, replace(faults or FAULTS))
        self.scheduler.tracing = tracing
        self.scheduler.on_crash = lambda process: self.start()
        self.random = self.scheduler.random
        self.left = operations
        """Calls that are still to be made."""
        self.fences = seed % 10 == 6
        """Whether processes raise the epoch now and then."""
        self.removes = seed % 10 == 3
        """Whether processes make logs and remove them. No key of a removed log is used for another one."""
        self.digest = 0
        self._ids = 0
        self._brief: list[str] = []
        """The keys of logs that are made to be removed."""
        self._processes: list[BucketProcess] = []
        if faults is None:
            for name in ("fail", "crash", "pause", "outage"):
                scale = self.random.choice((0.0, 0.25, 1.0, 1.0))
                setattr(self.scheduler.faults, name, getattr(FAULTS, name) * scale)

    def fresh(self) -> bytes:
        """Make an id."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def _replica(self) -> Replica:
        small, largest = self.random.choice(PACK_BYTES), self.random.choice(PACK_BYTES)
        return Replica(self.fresh, CheckpointLimits(SLOTS, 1 << 30, small, largest))

    def start(self) -> None:
        """Start a process that makes calls until there are none left."""
        if self.left > 0:
            name = f"p{len(self._processes)}"
            self._processes.append(self.scheduler.start(name, self._live(name)))

    def run(self) -> None:
        """Run the history to its end."""
        for _ in range(self.random.choice(PROCESSES)):
            self.start()
        world = self.world
        self.scheduler.run(lambda: bool(world.violations) or world.step > EVENTS_MAX)
        if world.step > EVENTS_MAX:
            world.violate("the history does not end: no progress")
        if not world.violations:
            self._end()

    def _live(self, name: str) -> ObjectProtocol[None]:
        """Open the bucket and make calls."""
        log = self._replica()
        while log.base_tag is None and not self.world.violations:
            yield from self._tried(f"{name} open", replica.open_bucket(log))
        while self.fences and log.epoch is None and not self.world.violations:
            yield from self._tried(f"{name} learn the epoch", self._reopen(log))
        while self.left > 0 and not self.world.violations:
            self.left -= 1
            if self.fences and self.random.random() < 0.08:
                yield from self._tried(f"{name} fence", self._fence(log))
            if self.removes and self.random.random() < 0.5:
                other = self.random.choice((self._make_log, self._write_briefly, self._remove_log, self._remove_log))
                yield from self._tried(f"{name} {other.__name__[1:]}", other(log))
            call, chance = self._commit, self.random.random()
            for share, other in ((0.12, self._scan), (0.2, self._heads), (0.3, self._truncate)):
                if chance < share:
                    call = other
                    break
            else:
                if chance < 0.38:
                    call = self._checkpoint
                elif chance < 0.42:
                    call = self._sweep
            self.scheduler.note(f"{name} begins {call.__name__[1:]}")
            yield from self._tried(f"{name} {call.__name__[1:]}", call(log))

    def _tried(self, what: str, call: ObjectProtocol[None]) -> ObjectProtocol[None]:
        try:
            yield from call
        except Exception as error:
            self.scheduler.note(f"{what} failed: {error!r}")
            self.checks.check_error(what, error)

    def _commit(self, log: Replica) -> ObjectProtocol[None]:
        """Make one compare-and-set, or two of disjoint keys in one slot; then a checkpoint if one is due."""
        keys = list(KEYS)
        self.random.shuffle(keys)
        groups = [self._group(log, keys[: self.random.choice((1, 1, 2))])]
        if self.random.random() < 0.3:
            groups.append(self._group(log, keys[2:]))
        yield from self._answered(log, groups)
        if self.random.random() < 0.8:
            yield from checkpoint.keep_tail_short(log)

    def _group(self, log: Replica, keys: list[str]) -> WriteGroup:
        """Make a group that expects what its process knows, or what another process told it."""
        is_told = self.random.random() < 0.2
        bounds = self.world.bounds[-1]
        told = {key: bounds[key][1] if key in bounds else None for key in keys}
        known = {key: log.logs.head(key) for key in keys}
        id = self.fresh()
        heads = told if is_told else known
        return WriteGroup(id, tuple((key, heads[key], id + key.encode()) for key in keys))

    def _answered(self, log: Replica, groups: list[WriteGroup]) -> ObjectProtocol[None]:
        calls = [BucketCall(group, self.world.step, log.epoch) for group in groups]
        self.checks.calls += calls
        outcomes = yield from commit.commit_groups(log, groups)
        for call in calls:
            call.outcome, call.end = outcomes[call.group.id], self.world.step
            self.checks.check_commit(call)
            error = call.outcome.error
            self.world.counts["commits"] += error is None and call.outcome.heads is None
            self.world.counts["groups in doubt"] += error is not None
            said = f"{call.start} {call.end} {call.outcome.heads} {type(error).__name__}"
            self.digest = zlib.crc32(said.encode(), self.digest)
            if isinstance(error, StoreFenced):
                self.world.counts["fenced"] += 1
                log.epoch = log.logs.epoch  # the process opens the store again
            self.scheduler.note(f"answered {call.group.id.hex()[-6:]}: {said}")

    def _reopen(self, log: Replica) -> ObjectProtocol[None]:
        """Learn the epoch, as a process does that opens the store."""
        yield from replica.catch_up(log)
        log.epoch = log.logs.epoch

    def _fence(self, log: Replica) -> ObjectProtocol[None]:
        """Raise the epoch; go on in the new one."""
        group = WriteGroup(self.fresh(), ((EPOCH, log.logs.head(EPOCH), b""),))
        yield from self._answered(log, [group])
        outcome = self.checks.calls[-1].outcome
        if outcome == commit.Outcome() and log.epoch is not None:
            log.epoch += 1
            self.world.counts["fences"] += 1

    def _make_log(self, log: Replica) -> ObjectProtocol[None]:
        """Write the first entry of a log with a key that is never used again."""
        id = self.fresh()
        self._brief.append(f"brief-{len(self._brief)}")
        yield from self._answered(log, [WriteGroup(id, ((self._brief[-1], None, id),))])

    def _write_briefly(self, log: Replica) -> ObjectProtocol[None]:
        """Write on in such a log, as far as the process knows it, perhaps together with another log."""
        key, head = self._known_brief(log)
        if head is not None:
            id = self.fresh()
            other = self.random.choice(KEYS)
            writes = ((key, head, id), (other, log.logs.head(other), id))
            yield from self._answered(log, [WriteGroup(id, writes[: self.random.choice((1, 2))])])

    def _remove_log(self, log: Replica) -> ObjectProtocol[None]:
        """Remove such a log if it has the head that the process knows."""
        key, head = self._known_brief(log)
        if head is not None:
            yield from self._answered(log, [WriteGroup(self.fresh(), (), (), ((key, head),))])

    def _known_brief(self, log: Replica) -> tuple[str, int | None]:
        key = self.random.choice(self._brief[-2:]) if self._brief else ""
        return key, log.logs.head(key)

    def _scan(self, log: Replica) -> ObjectProtocol[None]:
        key, start = self.random.choice((*KEYS, *self._brief[-2:])), self.world.step
        first, entries = yield from replica.scan_log(log, key, 0, None)
        self.checks.check_scan(key, start, first, entries)

    def _heads(self, log: Replica) -> ObjectProtocol[None]:
        start = self.world.step
        yield from replica.catch_up(log)
        self.checks.check_heads(start, {key: log.logs.head(key) for key in (*KEYS, *self._brief)})

    def _truncate(self, log: Replica) -> ObjectProtocol[None]:
        key = self.random.choice(KEYS)
        head = log.logs.head(key)
        if head is not None:
            below = max(0, head - self.random.choice((0, 0, 1, 3)))
            yield from self._answered(log, [WriteGroup(self.fresh(), (), ((key, below),))])

    def _checkpoint(self, log: Replica) -> ObjectProtocol[None]:
        yield from checkpoint.checkpoint(log)

    def _sweep(self, log: Replica) -> ObjectProtocol[None]:
        yield from checkpoint.sweep_objects(log)

    def _end(self) -> None:
        """Stop the faults: all requests are done, and a last process finds the truth, goes on and cleans up."""
        self.scheduler.is_calm = True
        done: list[bool] = []
        self.scheduler.start("last", self._last(done.append))
        self.scheduler.run(lambda: self.world.step > 2 * EVENTS_MAX)
        if not done and not self.world.violations:
            self.world.violate("after the faults stopped, a process that opens the bucket does not come to an end")
        self.checks.check_refused()
        self.checks.check_epochs()
        for entry in self.world.truth:
            self.digest = zlib.crc32(f"{entry.slot} {entry.checksum}".encode(), self.digest)

    def _last(self, done: Callable[[bool], None]) -> ObjectProtocol[None]:
        log = self._replica()
        yield from self._tried("the last process", self._read_and_clean(log))
        done(True)

    def _read_and_clean(self, log: Replica) -> ObjectProtocol[None]:
        """Check that every log can be read and written, and that nothing is left but what the base needs."""
        yield from replica.open_bucket(log)
        for key in (*KEYS, *self._brief):
            yield from self._scan_of(log, key)
        for _ in range(SLOTS):
            id = self.fresh()
            group = WriteGroup(id, (("a", log.logs.head("a"), id),))
            outcomes = yield from commit.commit_groups(log, [group])
            if outcomes[id] != commit.Outcome():
                self.world.violate(f"after the faults stopped, a commit was answered by {outcomes[id]}")
        if not (yield from checkpoint.checkpoint(log)):
            self.world.violate("after the faults stopped, no checkpoint was made")
        yield from checkpoint.sweep_objects(log)
        left = sorted(name for name in self.world.objects if self.world.is_superfluous(name))
        if left:
            self.world.violate(f"objects are left that no process reads: {left[:3]}")
        for key in KEYS:
            yield from self._scan_of(log, key)

    def _scan_of(self, log: Replica, key: str) -> ObjectProtocol[None]:
        start = self.world.step
        first, entries = yield from replica.scan_log(log, key, 0, None)
        self.checks.check_scan(key, start, first, entries)


def run_bucket_history(
    seed: int, operations: int, faults: Faults | None = None, tracing: bool = False
) -> HistoryResult:
    """Run one history and all checks after it."""
    history = BucketHistory(seed, operations, faults, tracing)
    history.run()
    done = operations - max(history.left, 0)
    world = history.world
    world.counts["slots"] += len(world.truth)
    return HistoryResult(seed, done, world.counts, world.violations, history.scheduler.trace, history.digest)
