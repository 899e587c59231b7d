"""The process that appends for the others is killed: every row is there at most once, and every acknowledged one is."""

import contextlib
import subprocess
import sys
import threading

import pytest
from assertions import until

import timespine as ts

CHILD = """
import os, sys, threading, time
import timespine as ts
from timespine.client.commit import relay

relay.LOSSES = 1
root, number = sys.argv[1], int(sys.argv[2])
store = ts.open(root)
log = store["log"]

def work(thread):
    for n in range(1_000_000):
        id = (number * 3 + thread) * 1_000_000 + n
        os.write(1, b"%d %d\\n" % (id, log.append([{"id": id}]).time))

sys.stdin.readline()
for thread in range(3):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
while not store._committer.relay._is_appender:
    time.sleep(0.01)
os.write(1, b"appender\\n")
time.sleep(600)
"""


class Child:
    """A process that appends, and what it said."""

    def __init__(self, stack, root, number):
        command = [sys.executable, "-c", CHILD, str(root), str(number)]
        self.process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self.process.kill)
        self.times = {}
        self.is_appender = False
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def read(self):
        for line in self.process.stdout:
            if line == "appender\n":
                self.is_appender = True
            elif line.endswith("\n"):
                id, time = map(int, line.split())
                self.times[id] = time

    def kill(self):
        self.process.kill()
        self.thread.join(60)


def go_on(children, rows=30):
    """Wait until each process has appended some more rows."""
    goal = {each: len(each.times) + rows for each in children}
    until(lambda: all(len(each.times) > goal[each] for each in children))


@pytest.mark.parametrize("timeline", ["counter", "clock"])
def test_rows_are_there_once_though_the_appender_is_killed(tmp_path, timeline):
    with ts.open(tmp_path, maintenance=False) as store:
        store.create("log", key={"id": "int64"}, timeline=timeline)
    with contextlib.ExitStack() as stack:
        children = [Child(stack, tmp_path, number) for number in range(4)]
        left = list(children)
        for _ in range(2):
            until(lambda: any(each.is_appender for each in left))
            go_on(left)
            appender = next(each for each in left if each.is_appender)
            appender.kill()
            left.remove(appender)
            go_on(left)
        for each in left:
            each.kill()
    told = {id: time for each in children for id, time in each.times.items()}
    with ts.open(tmp_path, maintenance=False) as store:
        found = store["log"].updates().to_pylist()
    assert len({each["id"] for each in found}) == len(found), "a row is there twice"
    times = {each["id"]: each["_time"] for each in found}
    assert {id: times.get(id) for id in told} == told
