"""The limits of consensus on a bucket alone, by counting: python -m bench.bucket

Processes commit to logs of their own through the protocol of `timespine.location.bucket`, in virtual time: a PUT takes
20 ms and a GET 15 ms, with tails, and nothing fails. The figures are counts and virtual milliseconds, so they do not
depend on the machine. Prices are list prices of S3 Standard: $5 per million PUT and LIST, $0.40 per million GET.
"""

from __future__ import annotations

import argparse
from collections import Counter

from timespine.location.bucket import checkpoint, commit, replica
from timespine.location.bucket.effects import ObjectProtocol
from timespine.location.bucket.formats import WriteGroup
from timespine.location.bucket.replica import CheckpointLimits, Replica
from timespine.testing.bucket.scheduler import BucketScheduler
from timespine.testing.bucket.world import BucketWorld
from timespine.testing.simulator.simulator import Faults

PUT_DOLLARS, GET_DOLLARS = 5e-6, 0.4e-6

PUTS = ("PutIfAbsent", "PutIfMatch", "ListObjects")
GETS = ("GetObject", "GetObjects", "GetObjectRange")

LOOKS_PER_HOUR = 60
"""How often an idle process looks at all its logs at once."""


class Committers:
    """Processes that commit as fast as they can, each to a log of its own."""

    def __init__(self, processes: int, seconds: float, seed: int) -> None:
        self.world = BucketWorld()
        self.scheduler = BucketScheduler(self.world, seed, Faults(0, 0, 0, 0, 0))
        self.scheduler.is_calm = True
        self.end_ms = seconds * 1000
        self.latencies: list[float] = []
        self.by_process: Counter[int] = Counter()
        self._ids = 0
        for process in range(processes):
            self.scheduler.start(f"p{process}", self._commit(process))
        self.scheduler.run(lambda: self.scheduler.now >= self.end_ms)

    def _fresh(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def _commit(self, process: int) -> ObjectProtocol[None]:
        log, key, head = Replica(self._fresh, CheckpointLimits()), f"k{process}", None
        yield from replica.open_bucket(log)
        while True:
            began = self.scheduler.now
            id = self._fresh()
            group = WriteGroup(id, ((key, head, bytes(500)),))
            outcomes = yield from commit.commit_groups(log, [group])
            assert outcomes[id] == commit.Outcome(), outcomes[id]
            head = log.logs.head(key)
            self.latencies.append(self.scheduler.now - began)
            self.by_process[process] += 1
            if head is not None and head % 128 == 127:  # as garbage collection does
                yield from commit.commit_groups(log, [WriteGroup(self._fresh(), (), ((key, head - 127),))])
            yield from checkpoint.keep_tail_short(log)


def calls(scheduler: BucketScheduler) -> tuple[int, int]:
    """Return the requests that cost as a PUT does, and those that cost as a GET does. Deletions are free."""
    return sum(scheduler.calls.get(kind, 0) for kind in PUTS), sum(scheduler.calls.get(kind, 0) for kind in GETS)


def measure_idle(looks: int) -> tuple[int, int]:
    """Count the requests of a process that looks at all its logs, and finds nothing new."""
    world = BucketWorld()
    scheduler = BucketScheduler(world, 0, Faults(0, 0, 0, 0, 0))
    scheduler.is_calm = True
    log = Replica(lambda: bytes(16), CheckpointLimits())

    def look() -> ObjectProtocol[None]:
        yield from replica.open_bucket(log)
        yield from replica.catch_up(log)
        scheduler.calls.clear()
        for _ in range(looks):
            yield from replica.catch_up(log)

    scheduler.start("idle", look())
    scheduler.run(lambda: False)
    return calls(scheduler)


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="bench.bucket", description="Limits of a bucket alone, by counting.")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of each line (default 60)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(
        f"{'processes':>9} {'commits/s':>9} {'p50 ms':>7} {'p99 ms':>7} {'PUT/commit':>10} {'GET/commit':>10}", end=""
    )
    print(f" {'$/million':>9} {'shares':>12}")
    for processes in (1, 2, 4, 8):
        run = Committers(processes, options.seconds, options.seed)
        ordered = sorted(run.latencies)
        puts, gets = calls(run.scheduler)
        commits = len(ordered)
        dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / commits * 1e6
        shares = f"{min(run.by_process.values())}..{max(run.by_process.values())}"
        print(f"{processes:9} {commits / options.seconds:9.1f} {ordered[commits // 2]:7.0f}", end=" ")
        print(f"{ordered[commits * 99 // 100]:7.0f} {puts / commits:10.2f} {gets / commits:10.2f}", end=" ")
        print(f"{dollars:9.2f} {shares:>12}")
    puts, gets = measure_idle(LOOKS_PER_HOUR)
    cost = puts * PUT_DOLLARS + gets * GET_DOLLARS
    print(f"idle: one look a minute at all logs is {gets} GET and {puts} PUT an hour, ${cost:.6f}")


if __name__ == "__main__":
    main()
