"""Kill -9 of drivers, executors, PostgreSQL and the S3 server in the middle of streams: every row is there once.

`REMOTE_KILLS` is the number of rounds. One takes two minutes of CPU time for each place, so only `make soak` runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections import Counter

import pytest
from assertions import until
from crash.remote_worker import CONFIG
from crash.said_worker import Worker

import timespine as ts

pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes by /proc"),
    pytest.mark.skipif("REMOTE_KILLS" not in os.environ, reason="takes minutes: REMOTE_KILLS=1, or make soak"),
]

ROUNDS = int(os.environ.get("REMOTE_KILLS", "1"))
ROWS = 20
PLACES = ["S3 and PostgreSQL", "bucket alone"]


@pytest.mark.parametrize("remote_place", PLACES, indirect=True)
def test_streams_write_every_row_once_though_drivers_executors_and_servers_are_killed(remote_place, tmp_path):
    pytest.importorskip("pyspark", reason="needs timespine[spark]")
    where, kills = remote_place
    batches = ROUNDS * (3 * len(kills) + 4)
    (tmp_path / "files").mkdir()
    for batch in range(batches):
        (tmp_path / "files" / f"{batch:04}.json").write_text(
            "".join(row(ROWS * batch + place) for place in range(ROWS))
        )
    opened = {"location": where["url"], "storage": where["storage"], "consensus": where["consensus"]}
    with ts.open(**opened, config=CONFIG, maintenance=False) as store:
        for name in ("rows", "copy"):
            store.create(name, key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    said, counts = [], Counter()
    for turn in range(ROUNDS):
        driver = Worker("stream_worker.py", **where, folder=str(tmp_path), kill_executor=turn == 0)
        for kill in kills:
            go_on(driver)
            kill()
            counts["servers killed"] += 1
        go_on(driver)
        assert kill_driver(driver) == ""
        said += driver.lines
        counts["drivers killed"] += 1
    driver = Worker("stream_worker.py", **where, folder=str(tmp_path), kill_executor=False)
    until(lambda: driver.process.poll() is not None, 600)
    errors = driver.join()
    said += driver.lines
    assert ["done", "0", "0"] in driver.lines, errors
    counts["executors killed"] = len(list(tmp_path.glob("executor-*")))
    counts.update(f"{line[0]} {line[1]}" if line[0] == "failed" else line[0] for line in said)
    print(f"{where['consensus'][:10]}: {dict(counts)}, {batches} batches")
    with ts.open(**opened, config=CONFIG, maintenance=False) as store:
        for name in ("rows", "copy"):
            found = store[name].snapshot(multiplicity="column").to_pylist()
            assert {each["_diff"] for each in found} == {1}, "a row is doubled"
            assert sorted(each["id"] for each in found) == list(range(ROWS * batches)), "a row is lost"
        assert len(store["rows"].history()) == batches, "a batch is torn, or is in twice"
    assert {int(batch) for word, batch, _ in said if word == "ack"} == set(range(batches))
    assert counts["executors killed"] == 1
    assert counts["servers killed"] == ROUNDS * len(kills)


def row(id):
    """One line of a file: a name that does not compress, so that rows become blobs."""
    return json.dumps({"id": id, "name": hashlib.sha512(str(id).encode()).hexdigest()}) + "\n"


def go_on(driver):
    """Wait until the streams have made some more commits, so that they are in the middle of the next."""
    goal = driver.acknowledged + 2
    until(lambda: driver.acknowledged >= goal or driver.process.poll() is not None, 300)


def kill_driver(driver):
    """Kill the process of Python and its JVM, by their ids."""
    _, _, java = next(line for line in driver.lines if line[0] == "driver")
    os.kill(int(java), signal.SIGKILL)
    return driver.kill()
