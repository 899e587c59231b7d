"""Whole stores at remote places while requests and replies break: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter

import pytest
from servers.fault_proxy import HttpFaults, StreamFaults

import timespine as ts
from timespine.errors import Indeterminate, Unavailable
from timespine.location.postgres.migration import migrate

BLOBS = ts.Config(inline_part_bytes=64)
"""Larger appends become blobs."""

PUT_FAULTS = [500, 503, 409, "done 500", "cut reply", "drop", "half reply", "slow"]
GET_FAULTS = [500, 503, "cut reply", "drop", "half reply", "slow"]


class Faults:
    """The proxies of a store, and the fault that the next operation meets."""

    def __init__(self, http: HttpFaults, stream: StreamFaults | None) -> None:
        self.http, self.stream = http, stream

    @contextlib.contextmanager
    def some(self, chance: random.Random):
        if chance.random() < 0.4:
            self.http.faults.append(("PUT", chance.choice(PUT_FAULTS)))
        if chance.random() < 0.2:
            self.http.faults.append(("GET", chance.choice(GET_FAULTS)))
        if self.stream is not None and chance.random() < 0.2:
            self.stream.mode = chance.choice(["drop request", "drop reply"])
            self.stream.when = lambda data: b"compare_and_set" in data or data[:1] in b"BP"
        yield
        if self.stream is not None:
            self.stream.heal()


@pytest.fixture(params=["bucket alone", "postgresql"])
def place(request, moto):
    """Open one store: through proxies that break requests, or directly."""
    url, direct, broken = moto.url(), "bucket", "bucket"
    with contextlib.ExitStack() as stack:
        http = HttpFaults(moto.port)
        stack.callback(http.close)
        stream = None
        if request.param == "postgresql":
            postgres = request.getfixturevalue("postgres")
            database = postgres.make_database()
            direct = postgres.conninfo(database)
            migrate(direct)
            stream = StreamFaults(postgres.port)
            stack.callback(stream.close)
            broken = postgres.conninfo(database, port=stream.port)

        def opened(*, through_proxies):
            if through_proxies:
                return ts.open(url, storage=moto.via(http.endpoint), consensus=broken, maintenance=False, config=BLOBS)
            return ts.open(url, storage=moto.storage, consensus=direct, maintenance=False, config=BLOBS)

        opened.faults = Faults(http, stream)
        yield opened


@pytest.mark.parametrize("seed", range(int(os.environ.get("REMOTE_KILLS", "1"))))
def test_appends_and_upserts_are_in_once_or_not_at_all(seed, place):
    chance = random.Random(seed)
    kept, doubtful = {}, {}
    outcomes = Counter()
    with place(through_proxies=False) as store:
        store.create("c", key={"k": "int64"}, value={"v": "string"}, timeline="counter")
    with place(through_proxies=True) as store:
        made = store["c"]
        for number in range(40):
            keys = [number * 100 + each for each in range(chance.choice([1, 3, 50]))]
            if kept and chance.random() < 0.4:
                keys = chance.sample(sorted(kept), min(len(kept), 3))
            is_new = not set(keys) & set(kept)
            rows = dict.fromkeys(keys, f"{number}")
            with place.faults.some(chance):
                try:
                    (made.append if is_new else made.upsert)([{"k": key, "v": v} for key, v in rows.items()])
                    kept |= rows
                    doubtful = {key: value for key, value in doubtful.items() if key not in rows}
                    outcomes["done"] += 1
                except Indeterminate:
                    doubtful |= rows
                    outcomes["in doubt"] += 1
                except Unavailable:
                    outcomes["refused"] += 1
        place.faults.http.faults.clear()
    with place(through_proxies=False) as store:
        rows = store["c"].snapshot(multiplicity="column").to_pylist()
    print(f"{dict(outcomes)}, {len(rows)} rows")
    assert {row["_diff"] for row in rows} == {1}
    found = {row["k"]: row["v"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    for key, value in kept.items():
        assert found[key] == value or found[key] == doubtful.get(key)
    assert set(found) <= set(kept) | set(doubtful)
    assert outcomes["done"] > 25
