"""A collection that a view reads is not dropped, also if the view is created while another process drops it."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timespine as ts
from timespine.views import build
from timespine.views.refresh import refresh_views

WAIT_S = 60

SHAPE = {"key": {"k": "int64"}, "value": {"v": "int64"}, "timeline": "counter"}
SQL = "SELECT v, count(*) AS n FROM a GROUP BY v"


@pytest.fixture
def stores(tmp_path):
    """Two processes with one store, and a collection in it."""
    with ts.open(tmp_path / "store") as one, ts.open(tmp_path / "store") as other:
        one.create("a", **SHAPE).append([{"k": 1, "v": 2}])
        yield one, other


def still_refreshed(store, rows):
    store.refresh()
    assert store["seen"].snapshot().to_pylist() == rows


def test_a_transaction_replaces_no_collection_that_a_view_reads_since_it_began(stores):
    one, other = stores

    def replace():
        with one.transaction() as tx:
            tx.append(tx.create("a", replace=True, **SHAPE), [{"k": 1, "v": 3}])
            other.view("seen", sql=SQL)

    with pytest.raises(ts.CollectionInUse, match="read by view seen"):
        replace()
    assert one["a"].snapshot().to_pylist() == [{"k": 1, "v": 2}]
    still_refreshed(one, [{"v": 2, "n": 1}])


@pytest.mark.parametrize("how", ["drop", "create", "load"])
def test_a_view_created_between_the_look_at_holds_and_the_commit_keeps_its_input(stores, how, monkeypatch, tmp_path):
    one, other = stores
    pq.write_table(pa.table({"k": [1], "v": [3]}), tmp_path / "rows.parquet")
    catalog = one._catalog
    look, store = catalog.check_droppable, catalog._store
    looked = []

    def watched(before, after):
        look(before, after)
        if set(after.dropped) - set(before.dropped):
            looked.append(after)

    def store_later(change, names, *rest, **options):
        if len(looked) == 1 and "seen" not in other.views():
            other.view("seen", sql=SQL)
        return store(change, names, *rest, **options)

    monkeypatch.setattr(catalog, "check_droppable", watched)
    monkeypatch.setattr(catalog, "_store", store_later)
    calls = {
        "drop": lambda: one.drop("a"),
        "create": lambda: one.create("a", replace=True, **SHAPE),
        "load": lambda: one.load("a", tmp_path / "rows.parquet", key=["k"], replace=True, timeline="counter"),
    }
    with pytest.raises(ts.CollectionInUse, match="read by view seen"):
        calls[how]()
    assert looked  # the first look found no view
    still_refreshed(other, [{"v": 2, "n": 1}])
    assert sorted(one.names()) == ["a", "seen"]


def test_a_forced_drop_takes_the_input_of_a_view(stores):
    one, _ = stores
    one.view("seen", sql=SQL)
    assert one.drop("a", force=True)
    assert one.names() == ["seen"]


@pytest.mark.parametrize("how", ["drop", "replace"])
def test_no_view_is_created_on_an_input_that_was_dropped_while_it_was_computed(stores, how, monkeypatch):
    one, other = stores
    compute = build.FirstBuild.compute

    def compute_beside(self, *arguments):
        changes = compute(self, *arguments)
        if how == "drop":
            # The other process is slow between the catalog and the end of the collection.
            monkeypatch.setattr(other._drop_service, "close", lambda: None)
            other.drop("a")
        else:
            other.create("a", replace=True, **SHAPE).append([{"k": 5, "v": 5}])
        return changes

    with monkeypatch.context() as patch:
        patch.setattr(build.FirstBuild, "compute", compute_beside)
        with pytest.raises(ts.UsageError, match="collection a was dropped or replaced"):
            one.view("seen", sql=SQL)
    assert one.views() == []
    held = [one._committer.state(entry.id).holds for entry in one._catalog.read().entries.values()]
    assert not any(held)
    if how == "replace":
        assert one.drop("a")


def test_a_refresh_of_a_view_that_was_replaced_gives_the_other_view_none_of_its_rows(stores, monkeypatch):
    """The refresh is planned before another process replaces the view, and committed after it."""
    one, other = stores
    one.view("seen", sql="SELECT k, v + 1 AS m FROM a")
    planned, replaced = threading.Event(), threading.Event()
    commit, add_definition = refresh_views._commit, build.add_definition
    refresher = threading.Thread(target=one.refresh)

    def commit_late(*arguments):
        planned.set()
        assert replaced.wait(WAIT_S)
        commit(*arguments)

    def add_late(*arguments):
        add_definition(*arguments)
        one["a"].append([{"k": 2, "v": 10}])  # the other view is computed as of the time before
        with monkeypatch.context() as patch:
            patch.setattr(refresh_views, "_commit", commit_late)
            refresher.start()
            assert planned.wait(WAIT_S)

    with monkeypatch.context() as patch:
        patch.setattr(build, "add_definition", add_late)
        view = other.view("seen", sql="SELECT k, v * 100 AS m FROM a", replace=True)
    replaced.set()
    refresher.join(WAIT_S)
    other.refresh()
    assert sorted(row["m"] for row in view.snapshot().to_pylist()) == [200, 1000]
    assert view.verify().is_exact
