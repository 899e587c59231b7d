"""Kill -9 of drivers, executors, PostgreSQL and the S3 server in the middle of streams: every row is there once.

The first test is one small round. `REMOTE_KILLS` is the number of rounds of the second one: each takes two minutes of
CPU time for each place, so only `make soak` runs it.
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

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes by /proc")

ROUNDS = int(os.environ.get("REMOTE_KILLS", "1"))
ROWS = 20
BATCHES = 6
PLACES = ["S3 and PostgreSQL", "bucket alone"]


@pytest.mark.parametrize("remote_place", PLACES[:1], indirect=True)
def test_a_stream_of_upserts_survives_kills_of_the_s3_server_postgresql_and_the_driver(remote_place, tmp_path):
    """Each at a marked point: S3 before a task puts its blobs, the others between the blobs and their commit."""
    pytest.importorskip("pyspark", reason="needs timespine[spark]")
    where, (kill_s3, kill_postgres) = remote_place
    put_files(tmp_path, BATCHES, ROWS // 2)
    opened = {"location": where["url"], "storage": where["storage"], "consensus": where["consensus"]}
    with ts.open(**opened, config=CONFIG, maintenance=False) as store:
        store.create("rows", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    driver = Worker("upsert_stream_worker.py", **where, folder=str(tmp_path))
    for point, kill in (("s3", kill_s3), ("postgres", kill_postgres)):
        wait_for(driver, tmp_path / f"at-{point}")
        kill(while_dead=(tmp_path / f"go-{point}").touch)
    wait_for(driver, tmp_path / "at-driver")
    assert kill_driver(driver) == ""
    said = driver.lines
    driver = Worker("upsert_stream_worker.py", **where, folder=str(tmp_path))
    until(lambda: driver.process.poll() is not None, 600)
    errors = driver.join()
    said = [*said, *driver.lines]
    assert ["done", "0", "0"] in driver.lines, errors
    print(f"{Counter(line[0] for line in said)}, {BATCHES} batches")
    with ts.open(**opened, config=CONFIG, maintenance=False) as store:
        found = store["rows"].snapshot(multiplicity="column").to_pylist()
        history = [entry.operation for entry in store["rows"].history()]
    last = {id: min(id // (ROWS // 2), BATCHES - 1) for id in range(ROWS // 2 * (BATCHES + 1))}
    assert {each["id"]: each["name"] for each in found} == {id: name(id, batch) for id, batch in last.items()}
    assert {each["_diff"] for each in found} == {1}
    assert len(found) == len(last), "a row is doubled"
    assert history == ["upsert"] * BATCHES, "a batch is torn, or is in twice"
    assert {int(batch) for word, batch, _ in said if word == "ack"} == set(range(BATCHES))


def put_files(folder, batches, step):
    """Write a file a batch, with rows half of which the next one replaces if the step is half of them."""
    (folder / "files").mkdir()
    for batch in range(batches):
        rows = (row(step * batch + place, batch) for place in range(ROWS))
        path = folder / "files" / f"{batch:04}.json"
        path.write_text("".join(rows))
        os.utime(path, (1_700_000_000 + batch,) * 2)  # Spark takes the oldest first


def wait_for(driver, marker):
    """Wait until a driver has come to a marked point."""
    until(lambda: marker.exists() or driver.process.poll() is not None, 300)
    assert marker.exists(), driver.join()


@pytest.mark.skipif("REMOTE_KILLS" not in os.environ, reason="takes minutes: REMOTE_KILLS=1, or make soak")
@pytest.mark.parametrize("remote_place", PLACES, indirect=True)
def test_streams_write_every_row_once_though_drivers_executors_and_servers_are_killed(remote_place, tmp_path):
    pytest.importorskip("pyspark", reason="needs timespine[spark]")
    where, kills = remote_place
    batches = ROUNDS * (3 * len(kills) + 4)
    put_files(tmp_path, batches, ROWS)
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


def row(id, batch):
    """One line of a file."""
    return json.dumps({"id": id, "name": name(id, batch)}) + "\n"


def name(id, batch):
    """Make a name that does not compress, so that rows become blobs."""
    return hashlib.sha512(f"{id} {batch}".encode()).hexdigest()


def go_on(driver):
    """Wait until the streams have made some more commits, so that they are in the middle of the next."""
    goal = driver.acknowledged + 2
    until(lambda: driver.acknowledged >= goal or driver.process.poll() is not None, 300)


def kill_driver(driver):
    """Kill the process of Python and its JVM, by their ids. Neither sees the other one end."""
    _, _, java = next(line for line in driver.lines if line[0] == "driver")
    driver.process.send_signal(signal.SIGSTOP)
    os.kill(int(java), signal.SIGKILL)
    return driver.kill()
