"""Copy, restore, fence and the end of dropped collections on real servers: buckets alone, and with PostgreSQL."""

import json
import subprocess
import sys
import time

import pytest
from memory_store import Clock

import timespine as ts
from timespine.client.maintenance.sweep_claim import SWEEPS
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import parse_location
from timespine.location.postgres.migration import migrate

KEY = {"id": "int64"}
DAY_S = 86_400


@pytest.fixture(params=["moto", "seaweed", "moto and postgres"])
def bucket(request, monkeypatch):
    """Makes fresh places in a bucket; the environment says how it is reached, and where logs of new stores are."""
    server = request.getfixturevalue(request.param.split()[0])
    settings = {"AWS_ENDPOINT": server.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    if "postgres" in request.param:
        postgres = request.getfixturevalue("postgres")
        database = postgres.make_database()
        migrate(postgres.conninfo(database))
        settings |= {"PGUSER": "owner", "TIMESPINE_CONSENSUS": f"postgresql://127.0.0.1:{postgres.port}/{database}"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return server.url


def rows(location, **options):
    with ts.open(location, read_only=True, create=False) as store:
        return sorted(row["id"] for row in store["orders"].snapshot(**options).to_pylist())


def numbered(*numbers):
    return [{"id": number} for number in numbers]


def test_a_folder_is_copied_to_a_bucket_to_a_bucket_and_back(bucket, tmp_path):
    first, second = bucket(), bucket()
    with ts.open(tmp_path / "origin") as store:
        orders = store.create("orders", key=KEY, timeline="counter")
        orders.append(numbered(*range(3000)))
        made = ts.copy(store, first, verify="full")
        orders.append(numbered(-1))
        again = ts.copy(store, first)
    assert (made.copied_blobs, again.copied_blobs, again.store) == (1, 0, made.store)
    assert rows(first) == [-1, *range(3000)]
    assert rows(first, as_of=0) == list(range(3000))
    with pytest.raises(ts.ReadOnlyStore, match="copy of"), ts.open(first) as copied:
        copied["orders"].append(numbered(-2))
    assert ts.promote(first) == made.origin
    with ts.open(first) as copied:
        copied["orders"].append(numbered(-2))
    ts.copy(first, second)
    ts.copy(second, tmp_path / "back", read_only=True)
    assert rows(tmp_path / "back") == [-2, -1, *range(3000)]
    identities = [place_of(parse_location(each)).identity() for each in (first, second)]
    assert identities[0] != identities[1]


def test_a_wrong_drop_is_undone_and_the_process_before_it_is_fenced(bucket):
    clock = Clock(time.time())
    place = bucket()
    old = ts.open(place, clock=clock, maintenance=False)
    old.keep_deleted("1 hour")
    orders = old.create("orders", key=KEY, timeline="counter")
    orders.append(numbered(*range(2000)))
    orders.upsert(numbered(5))
    moment = (orders._handle.state().seqno, clock.ms)
    clock.advance(1)
    old.drop("orders")
    for _ in range(2):
        old.maintain(sweep=True)
    assert ts.restore(place, ("orders", moment[0])).epoch == 1
    with pytest.raises(ts.StoreFenced):
        old.create("more", key=KEY)
    with pytest.raises(ts.StoreFenced):
        orders.append(numbered(7))
    old.close()
    assert rows(place) == list(range(2000))
    assert ts.fence(place) == 2
    with ts.open(place, clock=clock) as store:
        store["orders"].append(numbered(-1))
        assert ts.examine(store).is_sound
    assert place_of(parse_location(place)).identity()[1] == 2


def test_a_fence_that_was_interrupted_is_finished_by_the_next_one(bucket, monkeypatch):
    from timespine.location.object_store.object_place import ObjectPlace

    place = bucket()
    with ts.open(place) as store:
        store.create("orders", key=KEY, timeline="counter").append(numbered(1))

    def die(self, epoch):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPlace, "record_epoch", die)
        with pytest.raises(KeyboardInterrupt):
            ts.fence(place)
    with pytest.raises((ts.StoreFenced, ts.UsageError), match="fence"), ts.open(place, maintenance=False) as store:
        store["orders"].append(numbered(2))
    assert ts.fence(place) == 2
    with ts.open(place) as store:
        store["orders"].append(numbered(2))
    assert rows(place) == [1, 2]


def test_a_dropped_collection_leaves_no_log_and_no_object(bucket):
    clock = Clock()
    place = bucket()
    with (
        ts.open(place, clock=clock, maintenance=False) as store,
        ts.open(place, clock=clock, maintenance=False) as other,
    ):
        store.create("orders", key=KEY, timeline="counter").append(numbered(*range(2000)))
        theirs = other["orders"]
        assert theirs.snapshot().to_arrow().num_rows == 2000
        other._leases.close()
        store.drop("orders")
        for _ in range(4):
            store.maintain(sweep=True)
            clock.advance(DAY_S)
        assert set(store._driver.consensus.list_keys()) <= {"catalog", SWEEPS}
        assert list(store._context.blob.list_keys()) == []
        with pytest.raises(ts.ClosedError):
            theirs.append(numbered(1))
        store.create("orders", key=KEY, replace=True).append(numbered(1))
    assert rows(place) == [1]


@pytest.mark.parametrize("bucket", ["moto and postgres"], indirect=True)  # the tests above have the other places
def test_the_command_line_copies_promotes_and_fences(bucket, tmp_path):
    target = bucket()
    with ts.open(tmp_path / "origin") as store:
        store.create("orders", key=KEY, timeline="counter").append(numbered(1))

    def timespine(*args):
        done = subprocess.run(
            [sys.executable, "-m", "timespine.cli", *args, "--output", "json"],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert timespine("copy", tmp_path / "origin", target)["collections"] == 1
    timespine("promote", target)
    assert timespine("fence", target) == {"store": target, "epoch": 1}
    assert rows(target) == [1]
