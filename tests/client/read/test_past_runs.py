"""A compacted collection keeps its past apart: the newest rows are a plain scan, and expiry rewrites nothing."""

from dataclasses import replace

import polars as pl
import pytest
from memory_store import BLOBS

from timespine.client.diagnostics.doctor import FindingKind, examine
from timespine.columnar.merge import run_merge
from timespine.columnar.merge.split_past import SplitUpdates
from timespine.columnar.predicate.where import col
from timespine.columnar.scan import parallel_scan

SPLITS = replace(BLOBS, row_group_rows=16, part_bytes=2000, any_order_rows=1)
COUNT = 300


def rows(keys, value):
    return [{"id": key, "v": value} for key in keys]


@pytest.fixture
def store(place):
    return place.open(config=SPLITS)


@pytest.fixture
def collection(store):
    """Rows at time 0; a third of them replaced at time 1, and another third deleted at time 2; compacted."""
    collection = store.create("c", key={"id": "int64"}, value={"v": "string"}, timeline="counter")
    collection.append(rows(range(COUNT), "old"))
    collection.upsert(rows(range(0, COUNT, 3), "new"))
    collection.delete([{"id": key} for key in range(1, COUNT, 3)])
    collection.compact(wait=True)
    return collection


def values_as_of(time):
    values = dict.fromkeys(range(COUNT), "old")
    if time >= 1:
        values.update(dict.fromkeys(range(0, COUNT, 3), "new"))
    if time >= 2:
        values = {key: value for key, value in values.items() if key % 3 != 1}
    return values


def runs_of(collection):
    (batch,) = collection._handle.state().hollow_batches()
    return batch.runs


def found(rows):
    table = rows.to_arrow()
    assert table.num_rows == len(set(table["id"].to_pylist()))
    return dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


@pytest.fixture
def scans(monkeypatch):
    """The runs of settled scans."""
    seen = []
    true = parallel_scan.scan_settled
    monkeypatch.setattr(
        parallel_scan, "scan_settled", lambda parts, run, *more: seen.append(run) or true(parts, run, *more)
    )
    return seen


def test_the_newest_snapshot_is_a_plain_scan_of_the_live_run(collection, scans):
    live, past = runs_of(collection)
    assert (live.zero_from, past.zero_from) == (None, (2,))
    assert found(collection.snapshot()) == values_as_of(2)
    assert scans == [live]
    assert collection.snapshot().count() == len(values_as_of(2))


@pytest.mark.parametrize("time", [0, 1])
def test_older_snapshots_are_those_that_were(collection, time, scans):
    assert found(collection.snapshot(as_of=time)) == values_as_of(time)
    assert not scans


def test_changes_and_updates_read_the_past_too(collection):
    changed = collection.changes(after=0).to_arrow().to_pylist()
    assert {(each["id"], each["v"]): each["_diff"] for each in changed if each["id"] < 2} == {
        (0, "old"): -1,
        (0, "new"): 1,
        (1, "old"): -1,
    }
    assert collection.changes(after=2).count() == 0
    assert collection.updates().count() == COUNT + 3 * (COUNT // 3)


def test_lookups_and_further_changes_find_what_is_live(collection):
    assert collection.lookup([{"id": 0}, {"id": 1}]).to_pylist() == [{"id": 0, "v": "new"}]
    collection.upsert(rows([0, 1], "newest"))
    assert found(collection.snapshot()) == values_as_of(2) | {0: "newest", 1: "newest"}
    collection.compact(wait=True)
    assert found(collection.snapshot()) == values_as_of(2) | {0: "newest", 1: "newest"}
    assert found(collection.snapshot(as_of=0)) == values_as_of(0)
    assert len(runs_of(collection)) == 2


def test_expiry_drops_the_past_run_and_keeps_the_live_one_as_it_is(collection):
    live, _ = runs_of(collection)
    written = collection._handle.state().totals.merged_rows
    collection.expire(before=3)
    collection.append(rows([COUNT], "later"))
    collection.expire(before=3)
    collection.compact(wait=True)
    after = runs_of(collection)
    keys = {part.key for part in collection._handle.parts(collection._handle.state()).leaves(after[0].parts)}
    kept = {part.key for part in collection._handle.parts(collection._handle.state()).leaves(live.parts)}
    assert len(after) == 1
    assert len(kept - keys) <= 1, "but the last part, beside which a row came"
    assert collection._handle.state().totals.merged_rows - written <= COUNT // 2
    assert found(collection.snapshot()) == values_as_of(2) | {COUNT: "later"}


def test_the_doctor_finds_rows_of_the_past_that_do_not_add_up(place, monkeypatch):
    true = run_merge.split_past

    def wrong(*arguments):
        for live, past in true(*arguments):
            yield SplitUpdates(past, live)

    monkeypatch.setattr(run_merge, "split_past", wrong)
    store = place.open(config=SPLITS)
    collection = store.create("c", key={"id": "int64"}, value={"v": "string"}, timeline="counter")
    collection.append(rows(range(COUNT), "old"))
    collection.upsert(rows(range(0, COUNT, 3), "new"))
    collection.compact(wait=True)
    (finding,) = examine(store).findings
    assert (finding.kind, finding.what) == (FindingKind.DAMAGED, "past run")
    assert "add up" in finding.message


def test_the_doctor_believes_a_past_that_adds_up(store, collection):
    assert len(runs_of(collection)) == 2
    assert examine(store).is_sound


def test_a_frame_has_the_rows_of_a_table(collection):
    for _ in range(2):
        frame = collection.snapshot().to_polars()
        assert dict(frame.iter_rows()) == found(collection.snapshot())
        assert frame.schema == pl.DataFrame(pl.from_arrow(collection.snapshot().to_arrow())).schema
        collection.upsert(rows(range(0, COUNT, 9), "newest"))
    assert collection.snapshot(as_of=1, columns=["v"]).to_polars().height == COUNT
    empty = collection.snapshot(where=col("id") < 0).to_polars()
    assert (empty.height, empty.schema) == (0, frame.schema)
