"""Consensus on buckets of real servers, through obstore."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore, S3Store
from servers.object_servers import ObjectServer

from timespine.errors import StoreClosed, UsageError
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.bucket.effects import UNCHANGED
from timespine.location.bucket.obstore_objects import ObstoreObjects
from timespine.location.bucket.replica import CheckpointLimits
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.object_store.bucket import Bucket
from timespine.testing.conformance import ConsensusConformance
from timespine.testing.conformance.consensus import fill

FEW = CheckpointLimits(slots=7, pack_bytes_small=200)


class OnServer(ConsensusConformance):
    """The suite on a server that the subclass names; each test has a prefix of its own."""

    rounds = 0.1
    server: ObjectServer
    places: dict[Path, Bucket]

    def make(self, tmp_path: Path) -> BucketConsensus:
        self.places.setdefault(tmp_path, Bucket(self.server.location()))
        return BucketConsensus(objects_of(self.places[tmp_path]), limits=FEW)

    reopen = make

    def make_pair(self, tmp_path: Path) -> tuple[BucketConsensus, BucketConsensus]:
        return self.make(tmp_path), self.make(tmp_path)


class TestOnMoto(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, moto: ObjectServer) -> None:
        self.server, self.places = moto, {}


class TestOnSeaweed(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, seaweed: ObjectServer) -> None:
        self.server, self.places = seaweed, {}


def objects_of(bucket: Bucket, below: str = "logs/") -> ObstoreObjects:
    return ObstoreObjects(bucket.objects(), bucket.path(below))


@pytest.fixture(params=["memory", "moto", "seaweed"])
def objects(request: pytest.FixtureRequest) -> Iterator[ObstoreObjects]:
    if request.param == "memory":
        made = ObstoreObjects(MemoryStore(), "logs/")
    else:
        made = objects_of(Bucket(request.getfixturevalue(request.param).location()))
    with contextlib.closing(made) as adapter:
        yield adapter


def test_conditions_are_kept(objects: ObstoreObjects) -> None:
    assert objects.get("base") is None
    assert [objects.put_if_absent("base", data) for data in (b"one", b"two")] == [True, False]
    first = objects.get("base")
    assert first.data == b"one"
    assert objects.get("base", first.tag) is UNCHANGED
    assert [objects.put_if_match("base", data, first.tag) for data in (b"two", b"three")] == [True, False]
    assert objects.get("base", first.tag).data == b"two"
    assert objects.put_if_match("other", b"", first.tag) is False


def test_objects_are_read_in_pieces_and_many_at_once_and_listed_and_deleted(objects: ObstoreObjects) -> None:
    for number in range(40):
        objects.put_if_absent(f"log/{number:02}", b"%02d" % number)
    objects.put_if_absent("log-not/1", b"")
    assert objects.get_range("log/07", 1, 2) == b"7"
    assert objects.get_range("log/77", 0, 1) is None
    found = objects.get_many([f"log/{number:02}" for number in range(38, 42)])
    assert [None if each is None else each.data for each in found] == [b"38", b"39", None, None]
    assert objects.list_names("log/") == [f"log/{number:02}" for number in range(40)]
    objects.delete([f"log/{number:02}" for number in range(1, 45)])
    assert objects.list_names("log/") == ["log/00"]


def test_a_closed_adapter_and_a_wrong_prefix_are_refused(objects: ObstoreObjects) -> None:
    objects.close()
    objects.close()
    with pytest.raises(StoreClosed):
        objects.get("base")
    with pytest.raises(UsageError, match="slash"):
        ObstoreObjects(MemoryStore(), "logs")


def test_a_forked_child_is_refused_before_it_hangs(objects: ObstoreObjects) -> None:
    log = BucketConsensus(objects)
    fill(log, "a", 1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            log.head("a")
        except Exception as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"WrongProcess"
    assert log.head("a") == LogEntry(0, b"0")


def test_a_server_that_is_not_there_is_an_error_without_secrets() -> None:
    store = S3Store(
        "logs",
        endpoint="http://127.0.0.1:9",
        region="us-east-1",
        access_key_id="canary-id",
        secret_access_key="canary-secret",
        client_options={"allow_http": True, "timeout": "1s", "connect_timeout": "1s"},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(Exception, match="does not answer") as failed:
        BucketConsensus(ObstoreObjects(store), sleep=lambda s: None)
    shown = repr([failed.value, failed.value.__cause__, failed.value.__context__, ObstoreObjects(store)])
    assert "canary" not in shown


@pytest.mark.parametrize("server", ["moto", "seaweed"])
def test_a_second_store_in_the_same_bucket_is_another_one(server: str, request: pytest.FixtureRequest) -> None:
    bucket = Bucket(request.getfixturevalue(server).location())
    one, two = (BucketConsensus(objects_of(bucket, f"{name}/")) for name in ("one", "two"))
    assert one.compare_and_set([LogWrite("a", None, b"")]) is None
    assert (two.list_keys(), one.list_keys()) == ([], ["a"])
    one.close()
    two.close()
    found = obstore.list(bucket.objects(), bucket.path("").rstrip("/")).collect()
    assert len(list(found)) == 3  # two bases and one slot
