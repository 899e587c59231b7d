"""Rows that were made under a schema that another process has changed since: nothing of them is lost silently."""

import pyarrow as pa
import pytest
from memory_store import BLOBS, QUICK, Gate, Script, together

from timespine.client.catalog import evolve_schema as evolving
from timespine.client.commit import accept_older_schema
from timespine.client.commit.retry_limits import RetryPolicy
from timespine.client.write.prebuilt.bulk_load import bulk_load
from timespine.columnar.ingest.update_table import to_update_table
from timespine.errors import Contention, SchemaChanged, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

CONFIGS = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def opened(place, **options):
    """A handle that has looked at its collection, and one of another process that may change its schema."""
    store = place.open(**options)
    collection = store.create("e", key={"k": "int64"}, value={"v": "int32"}, timeline="counter")
    collection.append([{"k": 0, "v": 0}])
    return store, collection, place.open()["e"]


def rows_of(collection):
    return sorted(map(tuple, (row.values() for row in collection.snapshot().to_pylist())))


def append(store, collection, rows):
    collection.append(rows)


def append_at(store, collection, rows):
    collection.append(rows, at=5)


def append_expecting(store, collection, rows):
    collection.append(rows, expected_upper=1)


def append_many(store, collection, rows):
    collection.append(pa.Table.from_pylist(rows * 100))


def write(store, collection, rows):
    collection.write(rows, at=3)
    collection.seal(4)


def write_by_rule(store, collection, rows):
    collection.write([{**row, "_time": 2} for row in rows], late="move")
    collection.seal(4)


def transaction(store, collection, rows):
    with store.transaction() as tx:
        tx.append(collection, rows)


def transaction_at(store, collection, rows):
    with store.transaction() as tx:
        tx.append(collection, rows, at=7)
        tx.seal(collection, 9)


def transaction_write(store, collection, rows):
    with store.transaction() as tx:
        tx.write(collection, rows, at=3)
        tx.seal(collection, 4)


def transaction_that_creates(store, collection, rows):
    with store.transaction() as tx:
        other = tx.create("other", key={"n": "int64"}, timeline="counter")
        tx.append(other, [{"n": 1}])
        tx.append(collection, rows)


WAYS = pytest.mark.parametrize(
    "way",
    [
        append,
        append_at,
        append_expecting,
        append_many,
        write,
        write_by_rule,
        transaction,
        transaction_at,
        transaction_write,
        transaction_that_creates,
    ],
    ids=lambda way: way.__name__,
)


@WAYS
@CONFIGS
def test_values_of_a_dropped_column_are_refused_and_nothing_is_written(place, way, config):
    store, stale, other = opened(place, config=config)
    blobs = place.blobs()
    other.evolve(drop=["v"])
    with pytest.raises(SchemaChanged, match="column v was dropped in e after these rows were made") as caught:
        way(store, stale, [{"k": 1, "v": 111}])
    assert (caught.value.written, caught.value.newest, caught.value.dropped) == (0, 1, ("v",))
    assert rows_of(other) == [(0,)]
    assert list(other.unsealed().to_pylist()) == []
    assert "other" not in store.names()
    assert place.blobs() == blobs


@WAYS
@CONFIGS
def test_a_column_dropped_and_added_again_is_another_one_and_takes_no_values(place, way, config):
    store, stale, other = opened(place, config=config)
    other.evolve(drop=["v"])
    other.evolve(add={"v": ("int32", -7)})
    with pytest.raises(SchemaChanged):
        way(store, stale, [{"k": 1, "v": 111}])
    assert rows_of(other) == [(0, -7)]
    way(store, stale, [{"k": 1, "v": 111}])  # given again, they are for the column that has the name now
    assert set(rows_of(other)) == {(0, -7), (1, 111)}


@WAYS
@CONFIGS
def test_rows_that_lose_nothing_are_committed_under_the_newest_schema(place, way, config):
    store, stale, other = opened(place, config=config)
    other.evolve(add={"w": ("string", "new")})
    other.evolve(rename={"v": "value"})
    other.evolve(widen={"value": "int64"})
    way(store, stale, [{"k": 1, "v": 111}])
    assert set(rows_of(other)) == {(0, 0, "new"), (1, 111, "new")}
    assert other.snapshot().to_arrow().schema.field("value").type == pa.int64()


@WAYS
@CONFIGS
def test_rows_without_a_value_for_the_dropped_column_are_committed(place, way, config):
    store, stale, other = opened(place, config=config)
    stale.evolve(add={"w": ("int64", 9)})
    other.evolve(drop=["v"])
    other.evolve(drop=["w"])
    other.evolve(add={"x": "string"})
    way(store, stale, [{"k": 1}])
    assert set(rows_of(other)) == {(0, None), (1, None)}


@pytest.mark.parametrize("value", [8, None])
def test_a_value_that_is_not_the_default_is_one_that_is_lost(place, value):
    _store, stale, other = opened(place)
    stale.evolve(add={"w": ("int64", 9)})
    other.evolve(drop=["w"])
    with pytest.raises(SchemaChanged, match="column w was dropped"):
        stale.append([{"k": 1, "w": value}])
    assert rows_of(other) == [(0, 0)]


def test_of_a_group_only_those_are_refused_whose_values_would_be_lost(place):
    script = Script()
    gate = Gate(place.consensus)
    store, stale, other = opened(place, consensus=gate, script=script)

    def evolve():
        other.evolve(drop=["v"])
        other.evolve(add={"v": ("int32", -7)})

    # The first append is one by itself. The others wait for it, and their commit meets another schema.
    script.add("compare_and_set", Fault.NONE, key=stale.id, hook=evolve, skip=1)
    given = [[{"k": 1}], [{"k": 2}], [{"k": 3, "v": 3}], [{"k": 4}], [{"k": 5, "v": 5}]]
    done = together(gate, store, [lambda rows=rows: stale.append(rows) for rows in given])
    assert script.is_done
    assert [isinstance(each, SchemaChanged) for each in done] == [False, False, True, False, True]
    assert rows_of(other) == [(0, -7), (1, -7), (2, -7), (4, -7)]


CHANGES = {
    "upsert": lambda c: c.upsert([{"k": 0, "v": 5}]),
    "update": lambda c: c.update(set={"v": 5}),
    "replace": lambda c: c.replace([{"k": 0, "v": 5}], where="k = 0"),
    "merge": lambda c: c.merge([{"k": 0}]).when_matched_update(set={"v": 5}).execute(),
    "transaction": None,
}
"""Ways to set v to 5."""


def racing(place, *changes):
    """A collection whose schema another process changes while the next commit of the first is under way."""
    script = Script()
    store, collection, other = opened(place, script=script)

    def evolve():
        for change in changes:
            other.evolve(**change)

    script.add("compare_and_set", Fault.NONE, key=collection.id, hook=evolve)
    return store, collection, other, script


def changed_by(store, collection, change):
    if change == "transaction":
        with store.transaction() as tx:
            tx.upsert(collection, [{"k": 0, "v": 5}])
    else:
        CHANGES[change](collection)


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_change_is_worked_out_again_when_its_column_is_dropped_meanwhile(place, change):
    store, collection, other, script = racing(place, {"drop": ["v"]})
    with pytest.raises(UsageError, match="column"):
        changed_by(store, collection, change)
    assert script.is_done
    assert rows_of(other) == [(0,)]


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_change_goes_through_when_a_column_is_added_meanwhile(place, change):
    store, collection, other, script = racing(place, {"add": {"w": ("int64", 3)}}, {"widen": {"v": "int64"}})
    changed_by(store, collection, change)
    assert script.is_done
    assert rows_of(other) == [(0, 5, 3)]


def test_a_delete_goes_through_when_a_column_is_dropped_meanwhile(place):
    _store, collection, other, script = racing(place, {"drop": ["v"]})
    collection.delete({"k": 0})
    assert script.is_done
    assert rows_of(other) == []


def built(collection, writer, rows):
    table = to_update_table(pa.Table.from_pylist(rows), collection.schema, (1,))
    with writer.builder(1) as builder:
        builder.add(table)
        return builder.finish(Frontier.at(2))


@CONFIGS
@pytest.mark.parametrize("how", ["compare_and_append", "append", "transmitted"])
def test_a_batch_built_before_a_column_was_dropped_is_refused_and_stays_its_builders(place, config, how):
    _store, stale, other = opened(place, config=config)
    writer = stale.writer()
    batch = built(stale, writer, [{"k": 1, "v": 111}])
    other.evolve(drop=["v"])
    with pytest.raises(SchemaChanged, match="column v was dropped in e"):
        offered(writer, batch, how)
    assert rows_of(other) == [(0,)]
    writer.delete(batch)


@CONFIGS
@pytest.mark.parametrize("how", ["compare_and_append", "append", "transmitted"])
def test_a_batch_built_before_a_column_was_added_is_committed_as_it_is(place, config, how):
    _store, stale, other = opened(place, config=config)
    writer = stale.writer()
    batch = built(stale, writer, [{"k": 1, "v": 111}])
    other.evolve(add={"w": ("int64", 3)})
    other.evolve(rename={"v": "value"})
    offered(writer, batch, how)
    assert rows_of(other) == [(0, 0, 3), (1, 111, 3)]


def offered(writer, batch, how):
    if how == "append":
        return writer.append(batch)
    if how == "transmitted":
        batch = writer.receive(writer.transmit(batch))
    return writer.compare_and_append([batch], 1, 2)


@CONFIGS
def test_a_load_is_refused_if_a_column_is_dropped_before_it_ends(place, config):
    _store, collection, other = opened(place, config=config)
    blobs = place.blobs()
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": 5}])
    with pytest.raises(SchemaChanged, match="column v was dropped in e"):
        bulk_load(collection._handle, iter([batch]), lambda _: other.evolve(drop=["v"]))
    assert rows_of(other) == [(0,)]
    assert place.blobs() == blobs


@CONFIGS
def test_a_load_goes_through_if_a_column_is_added_before_it_ends(place, config):
    _store, collection, other = opened(place, config=config)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": 5}])
    bulk_load(collection._handle, iter([batch]), lambda _: other.evolve(add={"w": ("int64", 3)}))
    assert rows_of(other) == [(0, 0, 3), (1, 5, 3)]


def test_a_change_of_a_schema_that_always_loses_ends_in_contention(place, monkeypatch):
    script = Script()
    _store, collection, other = opened(place, script=script)
    monkeypatch.setattr(evolving, "RETRY", RetryPolicy(schema_changes=3))
    number = iter(range(1000))

    def evolve():
        other.evolve(add={f"w{next(number)}": "int64"})
        script.add("compare_and_set", Fault.NONE, key=collection.id, hook=evolve)

    script.add("compare_and_set", Fault.NONE, key=collection.id, hook=evolve)
    with pytest.raises(Contention, match="changed the schema of e first, 3 times in a row"):
        collection.evolve(add={"mine": "int64"})
    script.rules.clear()
    assert "mine" not in collection.schema.names
    collection.evolve(add={"mine": "int64"})
    assert "mine" in other.schema.names


def test_a_schema_that_changes_before_every_commit_ends_in_an_error_and_not_in_a_loop(place, monkeypatch):
    script = Script()
    _store, collection, other = opened(place, script=script)
    monkeypatch.setattr(accept_older_schema, "RETRY", RetryPolicy(schema_judgements=2))
    number = iter(range(1000))

    def evolve():
        other.evolve(add={f"w{next(number)}": "int64"})
        script.add("compare_and_set", Fault.NONE, key=collection.id, hook=evolve)

    script.add("compare_and_set", Fault.NONE, key=collection.id, hook=evolve)
    with pytest.raises(SchemaChanged, match="the schema was changed in e"):
        collection.append([{"k": 1, "v": 1}])
    assert next(number) < 32
    script.rules.clear()
    assert collection.append([{"k": 1, "v": 1}]).rows == 1
