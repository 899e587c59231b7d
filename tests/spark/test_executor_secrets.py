"""What goes to executors has no secret in it, and tasks use the credentials of their own process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pyspark import cloudpickle
from servers.object_servers import SECRET_KEY

import timespine as ts
from timespine.location.postgres.migration import migrate
from timespine.spark.blob_location import blob_location_of
from timespine.spark.data_source import TimespineSource
from timespine.spark.merge_job import MergeRangeTask, over_ranges
from timespine.spark.read.read_task import over_slices
from timespine.spark.write.seal_rule import SealRule
from timespine.spark.write.write_job import WriteJob
from timespine.spark.write.write_task import DeltaTask, UnsealedOptions, append_task, delta_task, unsealed_task

PASSWORD = "canary-password-9876543210"


@pytest.fixture
def logs(postgres, monkeypatch):
    """The name of a database with tables, whose password is in the environment."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGUSER", "owner")
    name = postgres.make_database()
    migrate(postgres.conninfo(name))
    return name


@pytest.fixture
def made(seaweed, postgres, logs):
    """A collection with a part, of a store in a bucket with logs in PostgreSQL."""
    small = ts.Config(inline_part_bytes=1)
    url, consensus = seaweed.url(), postgres.conninfo(logs)
    with ts.open(url, storage=seaweed.storage, consensus=consensus, maintenance=False, config=small) as store:
        made = store.create("c", key={"k": "int64"}, value={"v": "string"}, timeline="counter")
        made.append([{"k": number, "v": "a"} for number in range(1000)])
        yield made


def building_of(made):
    """The options of tasks that write to a collection."""
    handle = made._handle
    return WriteJob(handle, *handle.schema(handle.state()), (1,)).building


def sent_by(made, seaweed):
    """What Spark pickles for executors and for processes beside the server, by its name."""
    store = made._handle.context
    options = {f"storage.{name}": str(value) for name, value in seaweed.storage.items()}
    source = TimespineSource({"path": f"{store.location}/c", **options})
    schema = source.schema()
    reader = source.reader(schema)
    partitions = reader.partitions()
    reading, slice = partitions[0].value
    building = building_of(made)
    changing = DeltaTask(building, slice, deletes=False)
    unsealed = UnsealedOptions("t", "drop", SealRule(0))
    yield "a data source", source
    yield "a reader", reader
    yield "partitions", partitions
    yield "a reader of a stream", source.streamReader(schema)
    yield "a sink", source.writer(schema, overwrite=False)
    yield "a sink of a stream", source.streamWriter(schema, overwrite=False)
    yield "a task that reads", over_slices(reading, [slice])
    yield "a task that appends", append_task(building)
    yield "a task that upserts", delta_task(changing)
    yield "a task that writes ahead of the seal", unsealed_task(building, unsealed, 1)
    yield "a task that merges", over_ranges(MergeRangeTask(blob_location_of(made._handle), (), ()))
    yield "foreach_batch", ts.spark.foreach_batch(made, sink="s")


def test_nothing_that_goes_to_executors_has_a_secret(made, seaweed):
    found = dict(sent_by(made, seaweed))
    assert len(found) == 12
    for name, each in found.items():
        pickled = cloudpickle.dumps(each)
        assert b"bucket" in pickled, name  # it says where the blobs are
        assert SECRET_KEY.encode() not in pickled, name
        assert PASSWORD.encode() not in pickled, name


def test_no_entry_of_a_log_has_a_secret(made, postgres, logs):
    rows = postgres.execute(logs, "SELECT to_jsonb(e)::text, e.data FROM timespine.entries e")
    rows += [(text, b"") for (text,) in postgres.execute(logs, "SELECT to_jsonb(s)::text FROM timespine.stores s")]
    assert len(rows) >= 4
    for text, data in rows:
        for secret in (SECRET_KEY, PASSWORD):
            assert secret not in text
            assert secret.encode() not in data


TASK = """
import sys

import pyarrow as pa
from pyspark import cloudpickle

with open(sys.argv[1], "rb") as file:
    task = cloudpickle.load(file)
(answer,) = task(iter([pa.RecordBatch.from_pylist([{"k": number, "v": "b"} for number in range(5000, 6000)])]))
print(answer.column("rows")[0], answer.column("error")[0])
"""


def test_a_task_uses_the_credentials_of_its_own_process(made, tmp_path):
    """A task of a driver with the right ones, in processes with the right ones and with others."""
    path = tmp_path / "task"
    path.write_bytes(cloudpickle.dumps(append_task(building_of(made))))

    def run(**environment):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        kept |= {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
        return subprocess.run(
            [sys.executable, "-c", TASK, str(path)], env=kept, capture_output=True, text=True, timeout=300, check=False
        )

    before = len(list(made._handle.context.blob.list_keys()))
    refused = run(AWS_SECRET_ACCESS_KEY="wrong")
    assert (refused.returncode, refused.stdout[:2]) == (0, "0 "), refused.stderr
    assert "credentials" in refused.stdout
    assert SECRET_KEY not in refused.stdout
    assert len(list(made._handle.context.blob.list_keys())) == before
    done = run()
    assert (done.returncode, done.stdout) == (0, "1000 None\n"), done.stderr
    assert len(list(made._handle.context.blob.list_keys())) == before + 1
    made.append([{"k": 9000, "v": "by the driver"}])
