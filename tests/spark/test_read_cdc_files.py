"""Logs of changes in every shape become rows, what happened to them, and an order."""

from __future__ import annotations

import hashlib
import json

import polars as pl
import pytest
from pyspark.errors import PySparkException

import timespine as ts
from examples.spark_pipeline.files import cut_into_files
from examples.spark_pipeline.generate_log import generate_log
from timespine.errors import UsageError
from timespine.spark import foreach_batch
from timespine.spark.read_cdc_files import SEQUENCE, collection_columns, has_key_columns, read_changes, stream_changes

ROWS = [
    {"id": 1, "name": "a", "op": "c"},
    {"id": 2, "name": "b", "op": "r"},
    {"id": 1, "name": "c", "op": "u"},
    {"id": 2, "name": None, "op": "d"},
    {"id": 3, "name": "d", "op": "I"},
]
KINDS = [(1, "insert"), (2, "insert"), (1, "update_postimage"), (2, "delete"), (3, "insert")]
AFTER = {1: "c", 3: "d"}


def written(path, rows=ROWS):
    """A log in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(rows, infer_schema_length=None)
    {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}[path.suffix](path)
    return path


def lines(path, *objects):
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


def kinds(frame):
    return [(row["id"], row["_change_type"]) for row in frame.collect()]


def applied(tmp_path, frame):
    """What is there when all changes are applied in one batch."""
    with ts.open(tmp_path / "store", maintenance=False) as store:
        key, value = collection_columns(frame)
        collection = store.create("rows", key=key, value=value, timeline="counter")
        write = foreach_batch(collection, "upsert", sink="log", sequence_by=SEQUENCE)
        if frame.isStreaming:
            writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
        else:
            write(frame, 0)
        return {row["id"]: row["name"] for row in collection.snapshot().to_pylist()}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_log_of_each_format_a_file_or_a_folder(spark, tmp_path, suffix):
    path = written(tmp_path / "log" / f"changes.{suffix}")
    (path.parent / "_SUCCESS").touch()
    for place in (path, path.parent):
        frame = read_changes(spark, place)
        assert kinds(frame) == KINDS
        assert frame.columns == ["id", "name", "_change_type", SEQUENCE]
        assert applied(tmp_path / place.name, frame) == AFTER
    assert applied(tmp_path / "stream", stream_changes(spark, path)) == AFTER


def test_rows_that_say_nothing_are_upserts_and_the_last_line_of_a_key_wins(spark, tmp_path):
    path = written(tmp_path / "log.csv", [{"id": n % 100, "name": f"n{n}"} for n in range(1000)])
    frame = read_changes(spark, path)
    assert {kind for _, kind in kinds(frame)} == {"upsert"}
    assert applied(tmp_path, frame) == {id: f"n{900 + id}" for id in range(100)}


def test_files_count_in_the_order_of_their_names_and_a_sequence_before_that(spark, tmp_path):
    written(tmp_path / "log" / "1.jsonl", [{"id": 1, "name": "old", "n": 7}, {"id": 2, "name": "new", "n": 9}])
    written(tmp_path / "log" / "2.jsonl", [{"id": 1, "name": "new", "n": 8}, {"id": 2, "name": "old", "n": 8}])
    by_name, by_n = read_changes(spark, tmp_path / "log"), read_changes(spark, tmp_path / "log", sequence="n")
    assert applied(tmp_path / "a", by_name) == {1: "new", 2: "old"}
    assert applied(tmp_path / "b", by_n) == {1: "new", 2: "new"}


def test_a_log_is_dealt_out_into_files_in_its_order(spark, tmp_path):
    rows = [{"id": n % 3, "name": f"n{n}"} for n in range(20)]
    frame = read_changes(spark, written(tmp_path / "log.csv", rows))
    assert cut_into_files(frame, tmp_path / "cut", 7) == 3
    files = sorted((tmp_path / "cut").glob("*.parquet"))
    assert [name for file in files for name in pl.read_parquet(file)["name"]] == [row["name"] for row in rows]
    again = stream_changes(spark, tmp_path / "cut")
    assert again.columns == frame.columns
    assert applied(tmp_path, again) == {0: "n18", 1: "n19", 2: "n17"}


def event(op, before, after, **source):
    return {"before": before, "after": after, "op": op, "ts_ms": 1_000, "source": {"db": "shop", **source}}


EVENTS = [
    event("r", None, {"id": 1, "name": "a"}, lsn=None),
    event("u", None, {"id": 1, "name": "c"}, lsn=30),
    event("u", {"id": 1, "name": "a"}, {"id": 1, "name": "b"}, lsn=9),
    event("c", None, {"id": 2, "name": "b"}, lsn=31),
    event("d", {"id": 2, "name": None}, None, lsn=32),
    event("c", None, {"id": 3, "name": "d"}, lsn=33),
]


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["bare", "payload"])
def test_an_envelope_gives_its_rows_in_the_order_of_the_database(spark, tmp_path, is_wrapped):
    events = [{"schema": {"type": "struct"}, "payload": each} for each in EVENTS] if is_wrapped else EVENTS
    tombstone = {"schema": None, "payload": None} if is_wrapped else {"before": None, "after": None, "op": None}
    frame = read_changes(spark, lines(tmp_path / "log.json", *events, tombstone))
    assert sorted(kinds(frame)) == sorted([(1, "insert"), (1, "update_postimage"), (1, "update_postimage"),
                                           (2, "insert"), (2, "delete"), (3, "insert")])  # fmt: skip
    assert applied(tmp_path, frame) == AFTER


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"file": "b.2", "pos": 99, "row": 0}, {"file": "b.3", "pos": 1, "row": 0}),
        ({"pos": 9}, {"pos": 10}),
        ({"scn": "9"}, {"scn": "10"}),
        ({"commit_lsn": "1:2", "change_lsn": "1:1"}, {"commit_lsn": "1:2", "change_lsn": "1:2"}),
        ({"ts_ms": 5}, {"ts_ms": 6}),
    ],
    ids=["file", "pos", "scn", "change_lsn", "ts_ms"],
)
def test_every_database_has_an_order_of_its_own(spark, tmp_path, first, second):
    log = lines(
        tmp_path / "log.json",
        event("u", None, {"id": 1, "name": "new"}, **second),
        event("u", None, {"id": 1, "name": "old"}, **first),
    )
    (last,) = read_changes(spark, log).orderBy(SEQUENCE, ascending=False).limit(1).collect()
    assert last["name"] == "new"


def test_a_log_of_deletes_alone_has_its_columns_from_before(spark, tmp_path):
    log = lines(tmp_path / "log.json", event("d", {"id": 2, "name": "b"}, None))
    assert kinds(read_changes(spark, log)) == [(2, "delete")]


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ([{"n": 1, "op": "c"}], {}, "name the key columns; there are: n"),
        ([{"id": 1}], {"key": "name"}, "no column 'name' to be the key; there are: id"),
        ([{"id": 1}], {"key": "id,id"}, "each once"),
        ([{"id": 1}], {"sequence": "n"}, "no column 'n' to order"),
        ([{"id": 1}], {"format": "xml"}, "csv, json, parquet"),
        ([{"id": 1, "op": "x"}], {}, "op is one of c, r, .*, not 'x'"),
        ([{"id": 1, "op": None}, {"id": 1, "op": "c"}], {}, "not null"),
        ([{"id": 1, "_change_type": "merge"}], {}, "_change_type is one of .*, not 'merge'"),
        ([{"payload": {"op": "c", "row": 1}}], {}, "neither before nor after"),
        ([{"before": None, "after": "{}", "op": "c"}], {}, "not as text"),
        ([event("d", None, {"id": 1})], {}, "a delete has nothing in before"),
        ([event("c", {"id": 1}, None)], {}, "op c has nothing in after"),
        ([event("t", {"id": 1}, None)], {}, "not 't'"),
        ([event("c", None, {"id": 1})], {"sequence": "id"}, "its own order"),
    ],
)
def test_what_cannot_be_understood_is_one_clear_error(spark, tmp_path, rows, options, says):
    log = lines(tmp_path / "log.json", *rows)
    for read in (read_changes, stream_changes):
        with pytest.raises(UsageError, match=says):
            read(spark, log, **options)


def test_places_that_are_no_log_are_errors(spark, tmp_path):
    with pytest.raises(UsageError, match="no file and no folder"):
        read_changes(spark, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no CSV"):
        read_changes(spark, tmp_path)
    written(tmp_path / "a.csv")
    written(tmp_path / "b.jsonl")
    with pytest.raises(UsageError, match="holds csv and json"):
        read_changes(spark, tmp_path)
    with pytest.raises(UsageError, match="format="):
        read_changes(spark, "s3a://bucket/changes")
    (tmp_path / "c.json").write_text('{"id": 1, "op": "c"}\n{"id": 2,\n')
    with pytest.raises(UsageError, match="cannot be read as json"):
        read_changes(spark, tmp_path / "c.json")


def test_what_comes_later_is_looked_at_when_it_comes(spark, tmp_path):
    written(tmp_path / "log" / "1.csv")
    frame = stream_changes(spark, tmp_path / "log")
    written(tmp_path / "log" / "2.csv", [{"id": 9, "name": "z", "op": "truncate"}])
    with pytest.raises(PySparkException, match="op is one of"):
        applied(tmp_path, frame)


def test_keys_are_named_by_one_name_or_several():
    assert has_key_columns("a, b") == has_key_columns(["a", "b"]) == ("a", "b")
    assert has_key_columns(None) is None


# Generated logs


def digest(folder):
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.jsonl"))
    text = b"".join(str(name).encode() + (folder / name).read_bytes() for name in names)
    return len(names), hashlib.sha256(text).hexdigest()[:16]


def test_a_generated_log_is_a_function_of_its_seed(tmp_path):
    folders = [generate_log(tmp_path / str(n), rows=500, batches=4, seed=seed) for n, seed in enumerate((7, 7, 8))]
    first, again, other = map(digest, folders)
    assert first == again == (8, "fa527b844281ca26")
    assert other != first


def test_a_generated_log_says_only_what_can_happen(tmp_path):
    folder = generate_log(tmp_path, rows=5_000, batches=5)
    files = [pl.read_ndjson(path) for path in sorted((folder / "orders").iterdir())]
    log = pl.concat(files, how="vertical_relaxed").sort("_sequence")
    assert log["_sequence"].to_list() == list(range(1, 5_001))
    assert set(log["op"].unique()) == {"c", "u", "d"}
    assert not files[2]["_sequence"].is_sorted()
    assert files[2]["_sequence"].min() > files[1]["_sequence"].max()
    assert any(file["id"].n_unique() < len(file) for file in files)
    there = pl.col("op").shift(1, fill_value="d").over("id") != "d"
    assert log.select(((pl.col("op") != "c") == there).all()).item()
    with pytest.raises(UsageError, match="at least one change"):
        generate_log(tmp_path / "none", rows=3, batches=4)
