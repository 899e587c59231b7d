"""A store that needs nothing but its bucket: opened by its location, with the logs beside the blobs."""

from __future__ import annotations

import json

import obstore
import pytest

import timespine as ts
from timespine.errors import UsageError
from timespine.location.object_store.bucket import Bucket
from timespine.location.opening.descriptor import NAME

KEY = {"key": {"k": "int64"}, "timeline": "counter"}


@pytest.mark.parametrize("server", ["moto", "seaweed"])
def test_a_location_alone_is_enough_to_create_write_and_read(server, request):
    server = request.getfixturevalue(server)
    url = server.url()
    with ts.open(url, storage=server.storage, maintenance=False) as first:
        made = first.create("c", **KEY)
        made.append([{"k": 1}, {"k": 2}])
        with ts.open(url, storage=server.storage, maintenance=False) as second:
            second["c"].upsert([{"k": 3}])
        assert made.snapshot().to_pylist() == [{"k": 1}, {"k": 2}, {"k": 3}]
        with first.transaction() as transaction:
            transaction.append("c", [{"k": 4}])
    with ts.open(url, storage=server.storage, read_only=True) as third:
        assert third["c"].count() == 4
        assert third["c"].snapshot(as_of=0).to_pylist() == [{"k": 1}, {"k": 2}]
    bucket = Bucket(server.location(url))
    found = json.loads(bytes(obstore.get(bucket.objects(), bucket.path(NAME)).bytes()))
    assert found["consensus"] == {"kind": "bucket", "at": "logs/"}
    names = [each["path"] for page in obstore.list(bucket.objects(), bucket.path("logs")) for each in page]
    assert names
    assert all(name.startswith(bucket.path(f"logs/{found['store']}/")) for name in names)


def test_a_small_append_needs_no_blob_and_no_other_request_than_its_slot_and_the_base(moto):
    from servers.fault_proxy import HttpFaults

    proxy = HttpFaults(moto.port)
    with ts.open(moto.url(), storage=moto.via(proxy.endpoint), maintenance=False) as store:
        made = store.create("c", **KEY)
        made.append([{"k": 0}])
        proxy.seen.clear()
        made.append([{"k": number} for number in range(1, 1000)])
        assert proxy.seen == ["PUT", "GET"]
    proxy.close()


def test_logs_that_are_in_the_bucket_are_not_taken_for_others(moto):
    url = moto.url()
    ts.open(url, storage=moto.storage, consensus="bucket").close()
    with pytest.raises(UsageError, match="are in bucket, not in postgresql"):
        ts.open(url, storage=moto.storage, consensus="postgresql://nowhere.invalid/x")
