"""Followers are killed at any moment: each interval of the inputs is applied to the views once, by the next one."""

import contextlib
import random
import subprocess
import sys
import threading

import pytest
from assertions import until

import timespine as ts
from timespine.views.registry import definitions

CHILD = """
import os, sys
import timespine as ts

store = ts.open(sys.argv[1])

def tell(done):
    for name, each in done.items():
        os.write(1, b"%s %d %d\\n" % (name.encode(), each.time, each.changes))

with store.follow(every=0.001, callback=tell):
    os.write(1, b"ready 0 0\\n")
    sys.stdin.readline()
"""

VIEWS = {
    "sums": "SELECT g, sum(v) AS s, count(*) AS n, max(v) AS top FROM a GROUP BY g",
    "joined": "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.g = b.k",
    "best": "SELECT g, s FROM sums ORDER BY s DESC, g LIMIT 2",
}
KILLS = 6


class Child:
    """A process that follows, and the refreshes that it told of."""

    def __init__(self, stack, root):
        self.process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        stack.callback(self.process.kill)
        self.told = []
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            if line.endswith("\n"):
                name, time, _ = line.split()
                self.told.append((name, int(time)))

    def kill(self):
        self.process.kill()
        self.thread.join(60)


def write(rng, store, number):
    with store.transaction() as tx:
        tx.upsert("a", [{"k": rng.randrange(20), "g": rng.randrange(4), "v": number}])
        tx.upsert("b", [{"k": rng.randrange(4), "v": number}])


@pytest.mark.slow
def test_followers_that_are_killed_leave_views_that_are_their_queries(tmp_path):
    rng = random.Random(7)
    with contextlib.ExitStack() as stack, ts.open(tmp_path, maintenance=False) as store:
        store.create("a", key={"k": "int64"}, value={"g": "int64", "v": "int64"}, timeline="counter")
        store.create("b", key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
        write(rng, store, 0)
        views = [store.view(name, sql=sql) for name, sql in VIEWS.items()]
        children, everyone, points, number = [], [], set(), 0
        for _ in range(KILLS):
            while len(children) < 2:
                children.append(Child(stack, tmp_path))
                everyone.append(children[-1])
            goal = views[0].upper.time + 10 + rng.randrange(10)

            def advance(goal=goal):
                nonlocal number
                number += 1
                write(rng, store, number)
                return views[0].upper.time >= goal

            until(advance)
            points.add(views[0].upper.time - 1)
            victim = children.pop(rng.randrange(len(children)))
            victim.kill()
        until(lambda: views[0].upper == store["a"].upper)
        for each in children:
            each.kill()
        # a follower that is killed right after a refresh has not told of it, and there may be no other one
        points |= {time for each in everyone for name, time in each.told if name != "ready"}
        assert len(points) >= KILLS
        for view in views:
            assert view.upper == store["a"].upper
            for time in sorted({*rng.sample(sorted(points), min(len(points), 25)), view.upper.time - 1}):
                assert view.verify(as_of=time).is_exact, (view.name, time)
        assert len(definitions(store)) == len(VIEWS)
