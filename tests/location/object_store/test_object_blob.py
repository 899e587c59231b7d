"""Blobs in buckets keep the contract of the port, on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers.object_servers import ObjectServer

from timespine.errors import ReadOnlyStore, UsageError
from timespine.location.blob import Blob, BulkBlob
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.object_blob import ObjectBlob
from timespine.location.opening.store_location import parse_location
from timespine.testing.conformance import BlobConformance


class OnServer(BlobConformance):
    """The suite on a server that the subclass names; each test has a prefix of its own."""

    server: ObjectServer
    places: dict[Path, Any]

    def make(self, tmp_path: Path) -> Blob:
        self.places[tmp_path] = self.server.location()
        return ObjectBlob(Bucket(self.places[tmp_path]))

    def reopen(self, tmp_path: Path) -> Blob | None:
        return ObjectBlob(Bucket(self.places[tmp_path]))


class TestOnMoto(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, moto):
        self.server, self.places = moto, {}


class TestOnSeaweed(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, seaweed):
        self.server, self.places = seaweed, {}


@pytest.fixture
def blob(moto):
    return ObjectBlob(Bucket(moto.location()))


@pytest.fixture
def counted(moto, proxy):
    """Blobs behind a proxy that counts requests."""
    return ObjectBlob(Bucket(parse_location(moto.url(), moto.via(proxy.endpoint))))


def test_a_range_is_one_request_and_many_deletions_are_one(counted, proxy):
    assert isinstance(counted, BulkBlob)
    keys = [f"a/b/{number}" for number in range(5)]
    for key in keys:
        counted.put(key, b"0123456789" * 1000)
    proxy.seen.clear()
    assert counted.get_range("a/b/0", 9_997, 10_000) == b"789"
    assert proxy.seen == ["GET"]
    proxy.seen.clear()
    counted.delete_many([*keys[1:], "a/b/gone"])
    assert proxy.seen == ["POST"]
    assert [info.key for info in counted.list_keys()] == ["a/b/0"]


def test_a_large_blob_is_one_put_with_its_condition(counted, proxy):
    """Without a condition obstore puts more than 5 MiB in parts: POST, PUT, PUT, POST."""
    value = bytes(6 << 20)
    counted.put("a/b/0", value)
    assert proxy.seen == ["PUT"]
    with pytest.raises(UsageError, match="other bytes"):
        counted.put("a/b/0", value[1:] + b"1")
    assert proxy.seen == ["PUT", "PUT", "GET"]
    assert counted.get("a/b/0") == value


def test_listing_gives_more_than_one_page(moto, monkeypatch):
    monkeypatch.setattr("timespine.location.object_store.object_blob.LIST_PAGE", 2)
    blob = ObjectBlob(Bucket(moto.location()))
    for number in range(5):
        blob.put(f"a/b/{number}", b"")
    assert len(list(blob.list_keys("a/"))) == 5


def test_objects_of_others_below_the_prefix_are_no_blobs(moto):
    import obstore

    bucket = Bucket(moto.location())
    obstore.put(bucket.objects(), bucket.path("blobs/README.txt"), b"1")
    obstore.put(bucket.objects(), bucket.path("blobs/a/b/C"), b"1")
    assert list(ObjectBlob(bucket).list_keys()) == []


def test_an_adapter_for_reading_writes_nothing(moto):
    location = moto.location()
    ObjectBlob(Bucket(location)).put("a/b/c", b"1")
    blob = ObjectBlob(Bucket(location), read_only=True)
    assert blob.get("a/b/c") == b"1"
    for call in (lambda: blob.put("a/b/d", b"1"), lambda: blob.delete("a/b/c")):
        with pytest.raises(ReadOnlyStore):
            call()


def test_refused_credentials_say_what_to_give_and_repeat_nothing(seaweed, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-canary")
    blob = ObjectBlob(Bucket(seaweed.location()))
    for call in (lambda: blob.put("a/b/c", b"1"), lambda: blob.get("a/b/c"), lambda: list(blob.list_keys())):
        with pytest.raises(UsageError, match="credentials") as refused:
            call()
        assert "canary" not in str(refused.value).lower()
