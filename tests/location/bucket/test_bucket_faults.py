"""Consensus on a bucket alone, on a real server, through a proxy that breaks requests and replies."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from timespine.errors import Determinate, Indeterminate
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.bucket.obstore_objects import ObstoreObjects
from timespine.location.bucket.replica import CheckpointLimits
from timespine.location.consensus import LogWrite
from timespine.location.object_store.bucket import Bucket
from timespine.location.opening.store_location import parse_location
from timespine.testing.conformance import ConsensusUnderFaults
from timespine.testing.conformance.faults import REFUSED, REPLY_LOST, REQUEST_LOST

FEW = CheckpointLimits(slots=7, pack_bytes_small=200)

PUT_FAULTS = [500, 503, 409, "done 500", "cut reply", "drop", "half reply", "slow"]
GET_FAULTS = [500, 503, "cut reply", "drop", "half reply", "slow"]


@pytest.fixture
def make(moto, proxy):
    """Make adapters of one prefix: through the proxy, or directly."""
    url = moto.url()

    def made(*, direct=False, below=""):
        storage = moto.storage if direct else moto.via(proxy.endpoint)
        bucket = Bucket(parse_location(url, storage))
        objects = ObstoreObjects(bucket.objects(), bucket.path(f"logs{below}/"))
        return BucketConsensus(objects, limits=FEW, sleep=lambda _: None)

    return made


class OnServer(ConsensusUnderFaults):
    """The suite, with faults that the subclass names. obstore repeats most requests below the adapter."""

    refuses_children = True
    faults: dict[str, str | int]

    @pytest.fixture(autouse=True)
    def _server(self, make, proxy):
        self.make_log, self.proxy = make, proxy

    def make(self, tmp_path: Path) -> BucketConsensus:
        return self.make_log(below=f"/{tmp_path.parent.name}/{tmp_path.name}")

    def break_next(self, adapter: Any, kind: str) -> bool:
        self.proxy.faults.append(("PUT", self.faults[kind]))
        return True


class TestWithLostConnections(OnServer):
    faults = {REQUEST_LOST: "drop", REPLY_LOST: "cut reply", REFUSED: 503}


class TestWithErrorsOfTheServer(OnServer):
    faults = {REQUEST_LOST: 500, REPLY_LOST: "done 500", REFUSED: 409}


class TestWithHalfReplies(OnServer):
    faults = {REQUEST_LOST: "drop", REPLY_LOST: "half reply", REFUSED: "slow"}


@pytest.mark.parametrize("seed", range(int(os.environ.get("REMOTE_KILLS", "1"))))
def test_every_answer_is_true_whatever_breaks(seed, make, proxy):
    """Sixty compare-and-sets by two adapters, each of which meets some fault: every number has one winner, once."""
    chance = random.Random(seed)
    logs = [make(), make()]
    said: dict[bytes, str] = {}
    for number in range(60):
        log = chance.choice(logs)
        if chance.random() < 0.5:
            proxy.faults.append(("PUT", chance.choice(PUT_FAULTS)))
        if chance.random() < 0.3:
            proxy.faults.append(("GET", chance.choice(GET_FAULTS)))
        data = b"%d" % number
        try:
            head = log.head("a")
            write = LogWrite("a", None if head is None else head.seqno, data)
            said[data] = "in" if log.compare_and_set([write]) is None else "lost"
        except Indeterminate:
            said[data] = "in doubt"
        except Determinate:
            said[data] = "not"
    proxy.faults.clear()
    found = [entry.data for entry in make(direct=True).scan("a")]
    assert len(found) == len(set(found)), "an entry is there twice"
    outcomes = {data: data in found for data in said}
    assert all(there for data, there in outcomes.items() if said[data] == "in")
    assert not any(there for data, there in outcomes.items() if said[data] in ("lost", "not"))
    assert list(said.values()).count("in") > 40
