"""A batch that goes to several collections is in all of them or in none, once, at one time."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from timespine.client.commit.group_commit import GroupCommitter
from timespine.core.transitions import CommitSink
from timespine.errors import Determinate, Indeterminate, UsageError
from timespine.spark import drop_sink, foreach_batch, foreach_batch_together
from timespine.spark.sink_progress import SinkProgress
from timespine.spark.stream.foreach_batch import ForeachBatchWriter
from timespine.spark.write import driver_or_tasks

BOTH = pytest.mark.parametrize("small_rows", [10_000, 1], ids=["driver", "executors"])


@pytest.fixture(autouse=True)
def shop(store):
    for name in ("orders", "items", "gone", "events"):
        store.create(name, key={"id": "int64"}, value={"name": "string"}, timeline="counter")


def batch(spark, *rows):
    return spark.createDataFrame(list(rows), "id long, name string, kind string, t long")


ROWS = [
    *((id, "new", "order", None) for id in (1, 2)),
    *((id, "new", "item", None) for id in (10, 11, 12)),
    *((id, None, "gone", None) for id in (7, 8)),
    *((id, "e", "event", id % 10) for id in (23, 28, 21)),
]


def split(frame, number):
    def of(kind):
        return frame.where(F.col("kind") == kind).drop("kind")

    return {
        "orders": of("order").drop("t"),
        "items": ("upsert", of("item").drop("t")),
        "gone": ("delete", of("gone").select("id")),
        "events": ("write", of("event"), {"times": "t", "seal": "delay 2", "late": "move"}),
    }


def names(store, name, as_of=None):
    return {row["id"]: row["name"] for row in store.collection(name).snapshot(as_of).to_pylist()}


def histories(store):
    return {name: store.collection(name).history() for name in store.names()}


def sinks(store, *asked):
    return [dict(store.collection(name)._handle.state().sinks) for name in asked]


@BOTH
def test_all_that_a_batch_is_split_into_is_committed_at_one_time(store, spark, small_rows):
    store["items"].append([{"id": 10, "name": "old"}, {"id": 99, "name": "old"}])
    store["gone"].append([{"id": id, "name": "x"} for id in (7, 8, 9)])
    store["gone"].seal(6)
    told = []
    write = foreach_batch_together(store, split, sink="shop", done=lambda *each: told.append(each))
    write(batch(spark, *ROWS), 0)
    ((number, done),) = told
    assert number == 0
    assert {name: done[name].rows for name in done} == {"orders": 2, "items": 4, "gone": 2, "events": 3}
    assert [done[name].time for name in ("orders", "items", "gone")] == [6, 6, 6]
    with store.snapshot(["orders", "items", "gone"]) as cut:
        assert cut.as_of == 6
        found = {name: {row["id"]: row["name"] for row in cut[name].to_pylist()} for name in cut}
    assert found == {
        "orders": {1: "new", 2: "new"},
        "items": {10: "new", 11: "new", 12: "new", 99: "old"},
        "gone": {9: "x"},
    }
    with store.snapshot(["orders", "items", "gone"], as_of=5) as cut:
        assert [cut[name].count() for name in cut] == [0, 2, 3]
    assert names(store, "events") == {23: "e", 21: "e"}
    assert store["events"].upper.elements == ((7,),)
    assert sinks(store, "orders", "items", "gone", "events") == [{"shop": 0}] * 4
    # Writers of jobs are gone with them.
    for name in done:
        handle = store[name]._handle
        assert handle.state().writers.keys() <= {handle.committer.session.writer}


@BOTH
def test_a_batch_that_comes_again_is_passed_over(store, spark, small_rows, monkeypatch):
    told = []
    write = foreach_batch_together(store, split, sink="shop", done=lambda *each: told.append(each))
    frame = batch(spark, *ROWS)
    write(frame, 0)
    before = histories(store)
    write(frame, 0)
    foreach_batch_together(store, split, sink="shop")(frame, 0)
    # Also if nobody sees it before the commit.
    monkeypatch.setattr("timespine.spark.sink_progress.SinkProgress.is_in", lambda *_: False)
    write(frame, 0)
    assert histories(store) == before
    assert [done is None for _, done in told] == [False, True, True]
    store.maintain(sweep=True)
    assert store.vacuum().blobs == []


def failing(monkeypatch, error, *, after):
    """The next commit of a batch fails: before it happens, or after."""
    original = GroupCommitter.commit

    def commit(self, *pairs, **options):
        if not any(isinstance(command, CommitSink) for _, command in pairs):
            return original(self, *pairs, **options)
        monkeypatch.setattr(GroupCommitter, "commit", original)
        if after:
            original(self, *pairs, **options)
        raise error

    monkeypatch.setattr(GroupCommitter, "commit", commit)


@BOTH
def test_a_commit_that_fails_leaves_nothing_anywhere_and_the_batch_goes_in_when_it_comes_again(
    store, spark, small_rows, monkeypatch
):
    store["gone"].append([{"id": 7, "name": "x"}])
    write = foreach_batch_together(store, split, sink="shop")
    frame = batch(spark, *ROWS).withColumn("name", F.repeat("name", 3000))
    failing(monkeypatch, Determinate("storage is away"), after=False)
    with pytest.raises(Determinate):
        write(frame, 0)
    assert [names(store, name) for name in ("orders", "items", "gone", "events")] == [{}, {}, {7: "x"}, {}]
    assert store["events"].unsealed().to_pylist() == []
    assert sinks(store, "orders", "items", "gone", "events") == [{}] * 4
    store.maintain(sweep=True)
    assert store.vacuum().blobs == []
    write(frame, 0)
    assert [len(names(store, name)) for name in ("orders", "items", "gone", "events")] == [2, 3, 0, 2]


@BOTH
def test_a_batch_is_in_once_though_the_reply_to_its_commit_was_lost(store, spark, small_rows, monkeypatch):
    write = foreach_batch_together(store, split, sink="shop")
    failing(monkeypatch, Indeterminate("no answer"), after=True)
    with pytest.raises(Indeterminate):
        write(batch(spark, *ROWS), 0)
    before = histories(store)
    write(batch(spark, *ROWS), 0)
    assert histories(store) == before
    assert [len(names(store, name)) for name in ("orders", "items", "events")] == [2, 3, 2]


def test_a_delta_is_computed_again_from_the_rows_of_an_earlier_commit(store, spark, monkeypatch):
    """An upsert that was worked out from rows that are not the newest any more is worked out anew, with its time."""
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 1)
    store["items"].append([{"id": 10, "name": "old"}])
    original = GroupCommitter.commit

    def commit(self, *pairs, **options):
        if any(isinstance(command, CommitSink) for _, command in pairs):
            monkeypatch.setattr(GroupCommitter, "commit", original)
            store["items"].append(
                [
                    {"id": 10, "name": "old", "_diff": -1},
                    {"id": 10, "name": "other"},
                    {"id": 11, "name": "other"},
                ]
            )
        return original(self, *pairs, **options)

    monkeypatch.setattr(GroupCommitter, "commit", commit)
    write = foreach_batch_together(store, split, sink="shop")
    write(batch(spark, *ROWS), 0)
    assert names(store, "items") == {10: "new", 11: "new", 12: "new"}
    assert names(store, "items", 1) == {10: "other", 11: "other"}
    assert store["orders"].upper == store["items"].upper
    store.maintain(sweep=True)
    assert store.vacuum().blobs == []


def test_batch_that_another_process_committed_first_leaves_no_writer_and_no_blob(store, spark, monkeypatch):
    """The collections said that the batch is new, and the commit that it is in."""
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 1)
    orders = store["orders"]
    rows = spark.createDataFrame([(id, "a") for id in range(3)], "id long, name string")
    foreach_batch(orders, sink="shop")(rows, 0)
    kept = sorted(info.key for info in orders._handle.context.blob.list_keys(f"{orders.id}/"))
    monkeypatch.setattr(SinkProgress, "is_in", lambda self, state, batch: False)
    foreach_batch(orders, sink="shop")(rows, 0)
    assert len(orders.history()) == 1
    assert [each for each in orders._handle.state().writers if each.startswith("wj")] == []
    assert sorted(info.key for info in orders._handle.context.blob.list_keys(f"{orders.id}/")) == kept


def only(**kinds):
    """Rows of a batch to collections by name."""
    return lambda frame, number: {name: frame.select("id", "name") for name in kinds.get(f"of_{number}", ())}


def test_collections_may_join_and_leave_and_any_one_of_them_knows_the_batch(store, spark):
    told = []
    of = only(of_0=["orders"], of_1=["orders", "items"], of_2=["items"])
    write = foreach_batch_together(store, of, sink="shop", done=lambda *each: told.append(each[1]))
    frame = batch(spark, (1, "a", "", 0))
    for number in (0, 1, 2, 3):
        write(frame, number)
    assert [None if done is None else sorted(done) for done in told] == [
        ["orders"],
        ["items", "orders"],
        ["items"],
        None,
    ]
    assert sinks(store, "orders", "items", "gone") == [{"shop": 2}, {"shop": 2}, {}]
    before = histories(store)
    # The last batch comes again, to a process that knows of no other, and that splits it otherwise.
    for names_ in (["items"], ["orders"], ["items", "gone"], ["gone", "orders"]):
        foreach_batch_together(store, only(of_2=names_), sink="shop")(frame, 2)
    assert histories(store) == before
    foreach_batch_together(store, only(of_3=["gone", "items"]), sink="shop")(frame, 3)
    assert sinks(store, "orders", "items", "gone") == [{"shop": 2}, {"shop": 3}, {"shop": 3}]


def test_a_collection_that_was_dropped_or_made_anew_does_not_stop_the_others(store, spark):
    of = only(of_0=["orders", "items"], of_1=["orders"], of_2=["orders", "items"])
    write = foreach_batch_together(store, of, sink="shop")
    frame = batch(spark, (1, "a", "", 0))
    write(frame, 0)
    store.drop("items")
    write(frame, 1)
    store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter", replace=True)
    write(frame, 2)
    assert sinks(store, "orders", "items") == [{"shop": 2}, {"shop": 2}]
    assert names(store, "items") == {1: "a"}


def test_changes_that_come_to_nothing_complete_their_time_too(store, spark):
    """Else a cut of all collections would stay behind at the one where nothing changes."""
    write = foreach_batch_together(
        store,
        lambda frame, _: {"orders": frame, "items": ("upsert", frame), "gone": ("delete", frame.select("id"))},
        sink="s",
    )
    frame = spark.createDataFrame([(1, "a")], "id long, name string")
    write(frame, 0)
    write(frame.limit(0), 1)
    write(frame, 2)
    assert [store[name].upper.elements for name in ("orders", "items", "gone")] == [((3,),)] * 3
    assert store["items"].count() == 1
    with store.snapshot(["orders", "items", "gone"]) as cut:
        assert (cut.as_of, cut["orders"].count()) == (2, 2)


def test_changes_by_key_say_what_goes_and_the_last_one_counts(store, spark):
    store["items"].append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    rows = [(1, "x", "update", 1), (1, None, "delete", 2), (3, "c", "insert", 1)]
    frame = spark.createDataFrame(rows, "id long, name string, _change_type string, n long")
    write = foreach_batch_together(
        store, lambda frame, _: {store["items"]: ("upsert", frame, {"sequence_by": "n"})}, sink="s"
    )
    write(frame, 0)
    assert names(store, "items") == {2: "b", 3: "c"}


def test_another_checkpoint_under_the_same_name_is_an_error(store, spark):
    of = only(of_0=["orders"], of_5=["orders", "items"], of_3=["items", "orders"])
    frame = batch(spark, (1, "a", "", 0))
    foreach_batch_together(store, of, sink="shop")(frame, 5)
    with pytest.raises(UsageError, match="belongs to another checkpoint"):
        foreach_batch_together(store, of, sink="shop")(frame, 3)
    assert [drop_sink(store[name], "shop") for name in ("orders", "items")] == [1, 1]
    foreach_batch_together(store, of, sink="shop")(frame, 3)
    with pytest.raises(UsageError, match="needs a name"):
        foreach_batch_together(store, of)(frame, 6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda frame: frame, "names of collections to rows"),
        (lambda frame: {"orders": [1]}, "for orders give a DataFrame"),
        (lambda frame: {"orders": ("replace", frame)}, "for orders give a DataFrame"),
        (lambda frame: {"orders": ("append",)}, "for orders give a DataFrame"),
        (lambda frame: {"orders": ("append", frame, {}, 1)}, "for orders give a DataFrame"),
        (lambda frame: {7: frame}, "not to 7"),
        (lambda frame: {"nothing": frame}, "nothing"),
        (lambda frame: {"orders": ("append", frame, {"late": "move"})}, "append has no option 'late'; it has: none"),
        (lambda frame: {"orders": ("write", frame, {"seal": "soon"})}, "none, max, or a delay"),
        (lambda frame: {"orders": ("write", frame)}, "no column '_time'"),
        (lambda frame: {"orders": frame.withColumn("_time", F.lit(1))}, "'write', frame, {'times': '_time'}"),
        (lambda frame: {"orders": frame, "items": frame.withColumn("x", F.lit(1))}, "x"),
        (lambda frame: {"orders": frame, "items": frame.withColumn("id", F.lit(None).cast("long"))}, "has nulls"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error_and_nothing_is_written(store, spark, given, says):
    frame = spark.createDataFrame([(1, "a")], "id long, name string")
    with pytest.raises(UsageError, match=says):
        foreach_batch_together(store, lambda frame, _: given(frame), sink="s")(frame, 0)
    assert not any(histories(store).values())


def test_it_travels_without_the_open_store_and_needs_a_name_then(store, spark):
    again = pickle.loads(pickle.dumps(foreach_batch_together(store, split, sink="shop")))
    assert isinstance(again, ForeachBatchWriter)
    assert again.route.store is not store
    again(batch(spark, *ROWS), 0)
    assert len(names(store, "orders")) == 2
    with pytest.raises(UsageError, match="name the sink, foreach_batch_together"):
        pickle.loads(pickle.dumps(foreach_batch_together(store, split)))


def test_a_stream_is_split_and_goes_on_after_a_crash_where_it_was(store, spark, tmp_path):
    source = store.create("source", key={"id": "int64"}, value={"name": "string", "kind": "string", "t": "int64"})
    source.append([dict(zip(("id", "name", "kind", "t"), row, strict=True)) for row in ROWS])
    frame = spark.readStream.format("timespine").load(f"{store.location}/source")
    checkpoint = tmp_path / "checkpoint"
    crashes = []

    def ran():
        def done(number, outcome):
            if crashes:
                raise RuntimeError(crashes.pop())

        writer = frame.writeStream.foreachBatch(foreach_batch_together(store, split, done=done))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    crashes.append("after the commit")
    with pytest.raises(PySparkException, match="after the commit"):
        ran()
    before = histories(store)
    assert len(names(store, "orders")) == 2
    ran()
    assert histories(store) == before
    source.append([{"id": 3, "name": "new", "kind": "order", "t": None}])
    ran()
    assert sorted(names(store, "orders")) == [1, 2, 3]
