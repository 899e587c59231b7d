"""Stores in a bucket: the descriptor, the check of the server, and which logs belong to which bucket."""

from __future__ import annotations

import json

import obstore
import pytest

import timespine as ts
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.location.object_store.bucket import Bucket
from timespine.location.opening.descriptor import NAME

KEY = {"key": {"k": "int64"}, "timeline": "counter"}


@pytest.fixture
def store_of(moto, tmp_path):
    """Open a store in a bucket whose logs are in a SQLite file."""
    url = moto.url()

    def opened(server=moto, log="logs.db", **options):
        options.setdefault("consensus", f"sqlite:{tmp_path / log}")
        return ts.open(url, storage=server.storage, maintenance=False, **options)

    opened.url = url
    return opened


def descriptor(server, url, value=None):
    bucket = Bucket(server.location(url))
    if value is not None:
        obstore.put(bucket.objects(), bucket.path(NAME), value)
    return bytes(obstore.get(bucket.objects(), bucket.path(NAME)).bytes())


def test_what_one_process_writes_another_reads_by_the_location_alone(store_of, moto):
    with store_of(config=ts.Config(inline_part_bytes=1)) as store:
        store.create("c", **KEY).append([{"k": 1}, {"k": 2}])
        assert store.location == store_of.url
        assert repr(store) == f"<store {store_of.url}>"
    with store_of(consensus=None, create=False) as store:
        assert store["c"].snapshot().to_pylist() == [{"k": 1}, {"k": 2}]
        store["c"].upsert([{"k": 3}])
        store.maintain(sweep=True)
        store["c"].compact()
    with store_of(consensus=None, read_only=True) as store:
        assert store["c"].count() == 3


def test_the_descriptor_names_store_and_logs_and_nothing_else(store_of, moto, tmp_path):
    store_of().close()
    found = json.loads(descriptor(moto, store_of.url))
    assert set(found) == {"timespine", "store", "epoch", "created_ms", "blobs", "consensus"}
    assert found["consensus"] == {"kind": "sqlite", "at": f"sqlite:{tmp_path / 'logs.db'}"}


def test_a_missing_store_or_bucket_is_not_created(store_of, moto, tmp_path):
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(UsageError, match="no store"):
            store_of(**options)
    with pytest.raises(UsageError, match="no such bucket"):
        ts.open("s3://no-such-bucket-here/x", storage=moto.storage, consensus=f"sqlite:{tmp_path / 'unused.db'}")


def test_logs_of_another_store_are_refused_on_both_sides(store_of, moto, tmp_path):
    store_of().close()
    other = moto.url()
    with pytest.raises(UsageError, match="logs of another store"):
        ts.open(other, storage=moto.storage, consensus=f"sqlite:{used(tmp_path, store_of)}")
    ts.open(other, storage=moto.storage, consensus=f"sqlite:{tmp_path / 'other.db'}").close()
    with pytest.raises(UsageError, match="does not have the logs"):
        store_of(log="other.db")
    with pytest.raises(UsageError, match="are in sqlite, not in postgresql"):
        store_of(consensus="postgresql://nowhere.invalid/x")


def used(tmp_path, store_of):
    """The file of logs that are in use."""
    with store_of() as store:
        store.create("c", **KEY)
    return tmp_path / "logs.db"


def test_a_creation_that_ended_before_its_descriptor_can_be_repeated(store_of, moto, monkeypatch):
    def lost(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("timespine.location.opening.descriptor.Descriptor.encode", lost)
        with pytest.raises(KeyboardInterrupt):
            store_of()
    with store_of() as store:
        assert store.names() == []


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", CorruptionError),
        (b"{}", CorruptionError),
        (b"[1]", CorruptionError),
        (b"x" * 100_000, CorruptionError),
        (b'{"timespine": 2, "more": 1}', VersionError),
    ],
)
def test_a_damaged_descriptor_is_an_error_that_changes_nothing(value, error, store_of, moto):
    store_of().close()
    descriptor(moto, store_of.url, value)
    with pytest.raises(error, match=r"timespine\.json"):
        store_of()
    assert descriptor(moto, store_of.url) == value


@pytest.mark.parametrize(
    "change",
    [
        {"store": "x"},
        {"epoch": -1},
        {"blobs": "elsewhere/"},
        {"consensus": {"kind": "postgresql", "at": "postgresql://user:secret@host/db"}},
        {"consensus": {"kind": "sqlite", "at": "postgresql://host/db"}},
        {"more": 1},
    ],
)
def test_a_descriptor_with_a_field_out_of_its_range_is_corrupt(change, store_of, moto):
    store_of().close()
    descriptor(moto, store_of.url, json.dumps({**json.loads(descriptor(moto, store_of.url)), **change}).encode())
    with pytest.raises(CorruptionError) as found:
        store_of()
    assert "secret" not in str(found.value)


def test_blobs_without_a_descriptor_are_no_new_store(store_of, moto):
    with store_of(config=ts.Config(inline_part_bytes=1)) as store:
        store.create("c", **KEY).append([{"k": 1}])
    bucket = Bucket(moto.location(store_of.url))
    obstore.delete(bucket.objects(), bucket.path(NAME))
    with pytest.raises(CorruptionError, match="has blobs"):
        store_of()


def test_a_server_that_ignores_conditions_is_refused_and_its_objects_stay(rclone, tmp_path):
    url = rclone.url()
    options = {"storage": rclone.storage, "consensus": f"sqlite:{tmp_path / 'logs.db'}"}
    for _ in range(2):
        with pytest.raises(UsageError, match="ignores the condition"):
            ts.open(url, **options)
    made = b"""{"timespine": 1, "store": "6b6bfa32-9f4c-4b8e-9c5d-0a4e6f0d8f11", "epoch": 0, "created_ms": 1,
        "blobs": "blobs/", "consensus": {"kind": "sqlite", "at": "sqlite:%s"}}""" % str(tmp_path / "logs.db").encode()
    descriptor(rclone, url, made)
    with pytest.raises(UsageError, match="ignores the condition"):
        ts.open(url, **options)
    assert descriptor(rclone, url) == made


def test_a_server_that_keeps_only_one_condition_is_refused(store_of, monkeypatch):
    from timespine.location.object_store import conditions

    store_of().close()
    for ignored in ("create", conditions._WRONG_VERSION):
        put = obstore.put

        def forgetful(*args, mode, ignored=ignored, put=put, **options):
            return put(*args, mode="overwrite" if mode == ignored else mode, **options)

        with monkeypatch.context() as patch:
            patch.setattr(obstore, "put", forgetful)
            with pytest.raises(UsageError, match="ignores the condition"):
                store_of()
    store_of().close()
