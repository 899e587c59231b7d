"""Kill -9 of writers, readers and maintenance, again and again: nothing that was acknowledged is lost or doubled."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from crash.worker import CONFIG

import timespine as ts

WORKER = Path(__file__).with_name("worker.py")
ROLES = ("write", "write", "change", "change", "read", "maintain")
ROUNDS = 9
"""Times six processes: at least fifty kills."""


class Worker:
    """A process, and the lines that it has said."""

    def __init__(self, role, folder, seed):
        self.role = role
        self.seed = seed
        self.lines = []
        self.enough = threading.Event()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), role, str(folder), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self):
        for line in self.process.stdout:
            self.lines.append(line.split())
            if len(self.lines) >= (3 if self.role == "maintain" else 12):
                self.enough.set()
        self.enough.set()

    def kill(self):
        """Kill it in the middle of whatever it does; what it said on standard error, if it died before."""
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGKILL) if alive else None
        self.process.wait()
        self.thread.join()
        with self.process.stdout, self.process.stderr:
            return "" if alive else self.process.stderr.read()


@pytest.mark.slow
def test_acknowledged_commits_survive_kills_of_all_processes(tmp_path):
    with ts.open(tmp_path, maintenance=False, config=CONFIG) as store:
        store.create("orders", key={"id": "string"}, value={"n": "int64"}, timeline="counter")
        store.create("counters", key={"k": "int64"}, value={"by": "int64", "n": "int64"}, timeline="counter")
    acknowledged, tried, kills = Counter(), Counter(), 0
    changed = []
    for round in range(ROUNDS):
        workers = [Worker(role, tmp_path, 100 * round + i) for i, role in enumerate(ROLES)]
        silent = [worker.role for worker in workers if not worker.enough.wait(60)]
        random.Random(round).shuffle(workers)
        died = {worker.role: worker.kill() for worker in workers}
        kills += len(workers)
        assert not any(died.values()), "\n".join(f"{role} died: {text[-2000:]}" for role, text in died.items() if text)
        assert not silent, f"{silent} did not get far enough"
        for worker in workers:
            assert not any(line[0] == "wrong" for line in worker.lines), worker.lines[-1]
            if worker.role == "write":
                tried.update({(line[1], line[2]): int(line[3]) for line in worker.lines if line[0] == "try"})
                acknowledged.update({(line[1], line[2]): int(line[3]) for line in worker.lines if line[0] == "ack"})
            if worker.role == "change":
                changed += [(int(line[2]), int(line[1]), int(line[3])) for line in worker.lines if line[0] == "ack"]
    assert kills >= 50
    with ts.open(tmp_path, maintenance=False, config=CONFIG) as store:
        check(store, acknowledged, tried, changed)
        store.maintain(sweep=True)
        store["orders"].compact(wait=True)
        check(store, acknowledged, tried, changed)


def check(store, acknowledged, tried, changed):
    """Every acknowledged append is there once and whole; what was only tried, whole or not at all."""
    rows = store["orders"].snapshot(multiplicity="column").to_pylist()
    assert all(row["_diff"] == 1 for row in rows)
    found = Counter(tuple(row["id"].split("-")[:2]) for row in rows)
    for append, size in acknowledged.items():
        assert found[append] == size, f"append {append} of {size} rows has {found[append]}"
    for append, size in found.items():
        assert size == tried[append], f"append {append} of {tried[append]} rows has {size}"
    counters = store["counters"].snapshot(multiplicity="column").to_pylist()
    assert all(row["_diff"] == 1 for row in counters)
    assert len({row["k"] for row in counters}) == len(counters) == len({key for key, _, _ in changed})
    for row in counters:
        # The last one to change a row may not have lived to say so, but none of the same process came later.
        last = max((n for key, by, n in changed if (key, by) == (row["k"], row["by"])), default=-1)
        assert row["n"] >= last
