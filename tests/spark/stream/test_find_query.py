"""A sink reads the id of its query from the checkpoint. A read that fails fails the batch, and locks no sink out."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import obstore
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import timespine as ts
from timespine.client.api_for_engines import handle_of
from timespine.errors import CorruptionError, Determinate, UsageError
from timespine.location.object_store.bucket import RETRIES, Bucket
from timespine.location.opening.store_location import parse_location
from timespine.spark.options import Options
from timespine.spark.sink_progress import find_query
from timespine.spark.write.data_source_writer import stream_sink

NUMBERED = StructType([StructField("id", LongType())])


@pytest.fixture
def storage(moto, proxy):
    return parse_location(moto.url(), moto.via(proxy.endpoint)).storage


def put_metadata(moto, url, data=b'{"id": "5a5d"}'):
    bucket = Bucket(moto.location(url))
    obstore.put(bucket.objects(), bucket.path("metadata"), data)


@pytest.fixture
def sink(moto, proxy, tmp_path, monkeypatch):
    """Make sinks of a collection in a folder, with a checkpoint in a bucket behind the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    checkpoint = moto.url()
    put_metadata(moto, checkpoint)
    with ts.open(tmp_path / "store", maintenance=False) as store:
        store.create("items", key={"id": "int64"}, timeline="counter")

    def made(**options):
        given = {"path": str(tmp_path / "store" / "items"), "checkpointLocation": checkpoint, **options}
        sink = stream_sink(Options(given), NUMBERED, overwrite=False)
        sink.begin()
        return sink

    return made


def sinks(tmp_path):
    with ts.open(tmp_path / "store", read_only=True) as store:
        return dict(handle_of(store["items"]).state().sinks)


def sent(sink, query):
    """The message of a task with one row, which the id of a query goes with."""
    return replace(sink.write(iter([pa.record_batch({"id": [1]})])), query=query)


def test_a_checkpoint_that_cannot_be_read_fails_the_batch_and_not_the_sink(sink, proxy, tmp_path):
    proxy.faults.extend([("GET", 503)] * (1 + RETRIES))
    with pytest.raises(Determinate, match="cannot read metadata"):
        sink(sinkId="s").commit([], 0)
    assert sinks(tmp_path) == {}
    sink(sinkId="s").commit([], 0)  # Spark repeats the batch
    later = sink(sinkId="s")
    later.commit([sent(later, "5a5d")], 1)  # the tasks send the id of the query, and it is the same sink
    assert list(sinks(tmp_path).values()) == [1]


def test_the_checkpoint_is_asked_only_if_no_task_sent_the_query(sink, proxy, tmp_path):
    first = sink()
    first.commit([sent(first, "of-the-task")], 0)
    assert (proxy.seen, sinks(tmp_path)) == ([], {"of-the-task": 0})
    sink().commit([], 0)
    assert (proxy.seen, sinks(tmp_path)) == (["GET"], {"of-the-task": 0, "5a5d": 0})


def test_a_query_is_absent_only_where_there_is_no_checkpoint(moto, storage, tmp_path):
    url = moto.url()
    assert find_query(url, storage) is None
    put_metadata(moto, url)
    assert find_query(url, storage) == find_query(url.replace("s3:", "s3a:"), storage) == "5a5d"
    for wrong in (b"[]", b"{}", b'{"id": 5}', b'{"id'):
        put_metadata(moto, url, wrong)
        with pytest.raises(CorruptionError, match="not that of a checkpoint"):
            find_query(url, storage)
    put_metadata(moto, url, b" " * (1 << 17))
    with pytest.raises(CorruptionError, match="more than"):
        find_query(url, storage)
    assert find_query("hdfs://name/checkpoint", storage) is None
    assert find_query(str(tmp_path)) is None
    assert find_query(str(tmp_path / "nothing")) is None
    (tmp_path / "metadata").mkdir()
    with pytest.raises(Determinate, match=os.strerror(errno.EISDIR)):
        find_query(str(tmp_path))


def test_rights_that_are_missing_fail_the_batch(moto, proxy, storage):
    proxy.faults.append(("GET", 403))
    with pytest.raises(UsageError, match="storage refused it"):
        find_query(moto.url(), storage)
