"""A read that names its columns decodes these, and what it needs to merge rows, and sends nothing else."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import InputPartition

import timespine as ts
from timespine.columnar.scan.part_access import Parts
from timespine.spark.options import READ, Options
from timespine.spark.read.read_plan import plan_read, read_schema
from timespine.spark.read.read_task import read_partition
from timespine.spark.type_mapping import struct_type

WIDE = {f"v{number}": "int64" for number in range(20)}


@pytest.fixture
def wide(tmp_path):
    with ts.open(tmp_path / "store", maintenance=False, config=ts.Config(inline_part_bytes=1)) as store:
        made = store.create("wide", key={"id": "int64"}, value=WIDE, timeline="counter")
        made.append([{"id": id, **dict.fromkeys(WIDE, id)} for id in range(100)])
        yield made


@pytest.fixture
def decoded(monkeypatch):
    """The columns that tasks decode."""
    found, read = set(), Parts._read

    def counted(self, reader, block, columns, hint):
        found.update(columns)
        return read(self, reader, block, columns, hint)

    monkeypatch.setattr(Parts, "_read", counted)
    return found


def sent(collection, **asked):
    """The batches that the tasks of a read send to Spark."""
    options = Options({"path": f"{collection._handle.context.location}/wide", **asked}, READ)
    promised = struct_type(read_schema(collection, options))
    planned = plan_read(collection, options, promised)
    partitions = [InputPartition((planned.reading, data)) for data in planned.slices]
    return [batch for partition in partitions for batch in read_partition(partition)]


def test_one_of_many_columns_of_rows_that_need_no_merge_is_decoded_alone(wide, decoded):
    (batch,) = sent(wide, columns="v7")
    assert batch.schema.names == ["v7"]
    assert batch.num_rows == 100
    assert {name for name in decoded if name.startswith("v")} == {"v7"}


def test_rows_that_are_merged_cost_their_key_as_well(wide, decoded):
    wide.upsert([{"id": 3, **dict.fromkeys(WIDE, -1)}])
    decoded.clear()
    rows = [row for batch in sent(wide, columns="v7") for row in batch.to_pylist()]
    assert sorted(row["v7"] for row in rows) == sorted([-1, *(id for id in range(100) if id != 3)])
    assert {name for name in decoded if name.startswith("v")} == {"v7"}
    assert all(set(row) == {"v7"} for row in rows)


def test_without_columns_all_are_read(wide, decoded):
    (batch,) = sent(wide)
    assert batch.schema.names == ["id", *WIDE]
    assert {name for name in decoded if name.startswith("v")} == set(WIDE)
