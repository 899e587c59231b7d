"""Kill -9 of writers, of PostgreSQL and of the S3 server in the middle of appends and upserts, again and again.

Nothing that was acknowledged is lost, nothing is doubled, and nothing that was refused is there. `REMOTE_KILLS` is the
number of rounds: `make soak` has more of them.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict

import pytest
from assertions import until
from crash.remote_worker import CONFIG
from crash.said_worker import Worker

import timespine as ts

ROUNDS = int(os.environ.get("REMOTE_KILLS", "1"))
WORKERS = 3


@pytest.mark.parametrize("remote_place", ["bucket alone", "S3 and PostgreSQL"], indirect=True)
def test_what_was_acknowledged_survives_kills_of_writers_and_servers(remote_place):
    where, kills = remote_place
    with ts.open(**rename(where), config=CONFIG, maintenance=False) as store:
        store.create("rows", key={"id": "string"}, timeline="counter")
        store.create("counters", key={"k": "int64"}, value={"n": "int64"}, timeline="counter")
    seeds = iter(range(1_000_000))
    workers = [Worker("remote_worker.py", **where, seed=next(seeds)) for _ in range(WORKERS)]
    dead, counts = [], Counter()
    try:
        for turn in range(ROUNDS):
            for kill in kills:
                go_on(workers)
                kill()
                counts["servers killed"] += 1
            go_on(workers)
            victim = workers.pop(turn % len(workers))
            assert victim.kill() == ""
            dead.append(victim)
            workers.append(Worker("remote_worker.py", **where, seed=next(seeds)))
            counts["writers killed"] += 1
        go_on(workers)
    finally:
        ended = [worker.kill() for worker in workers]
    assert not any(ended), ended
    said = [line for worker in [*dead, *workers] for line in worker.lines]
    with ts.open(**rename(where), config=CONFIG, maintenance=False) as store:
        rows = store["rows"].snapshot(multiplicity="column").to_pylist()
        counters = store["counters"].snapshot(multiplicity="column").to_pylist()
    check_appends(said, rows, counts)
    check_upserts(said, counters)
    counts |= Counter(line[0] for line in said)
    print(f"{where['consensus'][:10]}: {dict(counts)}, {len(rows)} rows")
    assert counts["ack"] >= 5 * WORKERS * ROUNDS


def rename(where):
    return {("location" if name == "url" else name): value for name, value in where.items()}


def go_on(workers):
    """Wait until every process has made some more commits."""
    goals = [(worker, worker.acknowledged + 4) for worker in workers]
    until(lambda: all(worker.acknowledged >= goal or worker.process.poll() is not None for worker, goal in goals), 180)


def outcomes(said, kind):
    """The last word about each thing that was tried."""
    found = {}
    for word, what, seed, number, count in said:
        if what == kind:
            found[int(seed), int(number), int(count)] = word
    return found


def check_appends(said, rows, counts):
    assert {row["_diff"] for row in rows} == {1}, "a row is doubled"
    there = defaultdict(set)
    for row in rows:
        seed, number, place = map(int, row["id"].split("-"))
        there[seed, number].add(place)
    found = outcomes(said, "append")
    for (seed, number, count), word in found.items():
        places = there.pop((seed, number), set())
        assert places in (set(), set(range(count))), "an append is torn"
        assert places or word != "ack", f"append {seed} {number} was acknowledged and is lost"
        assert not places or word != "not", f"append {seed} {number} was refused and is there"
        counts[f"{word}, {'there' if places else 'not there'}"] += 1
    assert not there, "rows that no process appended"


def check_upserts(said, counters):
    assert {row["_diff"] for row in counters} == {1}
    found = {row["k"]: row["n"] for row in counters}
    assert len(found) == len(counters), "a key is there twice"
    for seed, number in found.items():
        words = {number: word for (of, number, _), word in outcomes(said, "upsert").items() if of == seed}
        assert words[number] != "not"
        assert all(other < number or word != "ack" for other, word in words.items() if other != number)
    tried = outcomes(said, "upsert")
    assert {seed for (seed, _, _), word in tried.items() if word == "ack"} <= set(found)
