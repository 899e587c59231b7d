"""Views that are written anew or rebuilt, and inputs whose columns change."""

import pyarrow as pa
import pytest
from sorted_rows import rows

import timespine as ts
from timespine.client.collection import handle_of
from timespine.views.refresh.refresh_one_view import Carrier
from timespine.views.registry import definitions

SUMS = "SELECT g, sum(v) AS s, count(*) AS n FROM a GROUP BY g"


def filled(place, v="int64"):
    store = place.open()
    store.create("a", key={"k": "int64"}, value={"g": "int64", "v": v}, timeline="counter")
    store["a"].append([{"k": k, "g": k % 2, "v": k} for k in range(4)])
    return store


def stages(store):
    return [name for name in store.names(hidden=True) if name.startswith("timespine.stage.")]


# Another definition under the same name.


def test_a_replaced_view_is_built_first_and_takes_the_name_by_one_change(place):
    store = filled(place)
    old = store.view("sums", sql=SUMS)
    with pytest.raises(ts.CollectionExists):
        store.view("sums", sql="SELECT k FROM a")
    with pytest.raises(ts.UnsupportedView):
        store.view("sums", sql="SELECT nope FROM a", replace=True)
    assert store.view("sums").id == old.id
    new = store.view("sums", sql="SELECT g, max(v) AS m FROM a GROUP BY g", key=["g"], replace=True)
    assert new.id != old.id
    assert rows(new) == [{"g": 0, "m": 2}, {"g": 1, "m": 3}]
    assert list(definitions(store)) == [new.id]
    assert len(stages(store)) == 1
    assert sorted(handle_of(store["a"]).state().holds) == [f"view-{new.id}"]
    store["a"].append([{"k": 9, "g": 1, "v": 9}])
    assert new.refresh().changes == 2


def test_replacing_what_is_no_view_or_is_read_by_views_is_refused(place):
    store = filled(place)
    with pytest.raises(ts.CollectionExists, match="a is a collection, and no view"):
        store.view("a", sql="SELECT k FROM a", replace=True)
    store.view("sums", sql=SUMS)
    store.view("big", sql="SELECT g FROM sums WHERE s > 2")
    with pytest.raises(ts.CollectionInUse, match="sums is read by view big"):
        store.view("sums", sql="SELECT g FROM a", replace=True)
    assert store.view("sums").verify().is_exact


def test_the_name_of_a_dropped_view_is_given_again_by_replace(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    store.drop("sums")
    with pytest.raises(ts.NameBlocked):
        store.view("sums", sql=SUMS)
    assert store.view("sums", sql=SUMS, replace=True).verify().is_exact


# Rebuilding.


def test_a_rebuild_keeps_the_collection_its_history_and_its_readers(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS, key=["g"])
    big = store.view("big", sql="SELECT g FROM sums WHERE s > 2")
    id, before = view.id, stages(store)
    store["a"].append([{"k": 9, "g": 1, "v": 9}])
    done = view.rebuild()
    assert (done.time, done.changes, done.is_new) == (1, 2, False)
    assert (view.id, view.upper.time) == (id, 2)
    assert stages(store) != before
    assert len(stages(store)) == 1
    assert [row["_diff"] for row in view.changes(after=0).to_pylist()] == [-1, 1]
    again = view.rebuild()
    assert (again.changes, again.is_new) == (0, False)
    for number in range(3):
        store["a"].append([{"k": 20 + number, "g": 0, "v": 1}])
        store.refresh()
        assert view.verify().is_exact
        assert big.verify().is_exact
    assert len(stages(store)) == 1


def test_a_view_that_is_recomputed_whole_has_no_stages_after_a_rebuild_either(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS, policy="full")
    store["a"].append([{"k": 9, "g": 1, "v": 7}])
    assert not view.rebuild().is_new
    assert (rows(view), stages(store)) == ([{"g": 0, "s": 2, "n": 2}, {"g": 1, "s": 11, "n": 3}], [])


def test_a_refresh_that_was_planned_before_a_rebuild_plans_again(place, monkeypatch):
    one, two = filled(place), place.open()
    view = one.view("sums", sql=SUMS)
    whole, calls = Carrier.compute, []
    one["a"].append([{"k": 51, "g": 1, "v": 1}])
    view.refresh()

    def overtaken(*given):
        if not calls:
            calls.append(1)
            assert two.view("sums").rebuild().changes == 0  # nothing differs, and the upper of the view stays
            one["a"].append([{"k": 52, "g": 1, "v": 1}])
        whole(*given)

    two["a"].append([{"k": 60, "g": 0, "v": 1}])
    two.view("sums").refresh()
    one["a"].seal(one["a"].upper.time + 1)
    monkeypatch.setattr(Carrier, "compute", overtaken)
    view.refresh()
    monkeypatch.undo()
    assert view.upper == one["a"].upper
    assert store_is_exact(one)


def store_is_exact(store):
    store["a"].append([{"k": 70, "g": 1, "v": 70}])
    done = store.refresh()
    return all(each.how == "changes" for each in done.values()) and all(
        store.view(name).verify().is_exact for name in store.views()
    )


def test_stages_of_another_plan_are_made_new_by_a_rebuild(place, monkeypatch):
    from timespine.views import compute_changes

    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store["a"].append([{"k": 9, "g": 1, "v": 9}])
    digest = compute_changes.digest_of
    monkeypatch.setattr(compute_changes, "digest_of", lambda plan: f"other{digest(plan)}"[:32])
    monkeypatch.setattr("timespine.views.view.digest_of", lambda plan: f"other{digest(plan)}"[:32])
    with pytest.raises(ts.UsageError, match=r"view\.rebuild\(\)"):
        view.refresh()
    assert view.rebuild().changes == 2
    assert store_is_exact(store)


# Columns of inputs.


def test_columns_that_are_added_or_dropped_and_not_used_change_nothing(place):
    store = filled(place)
    view = store.view("counts", sql="SELECT g, count(*) AS n FROM a GROUP BY g")
    every = store.view("whole", sql="SELECT * FROM a")
    store["a"].evolve(add={"note": "string"})
    store["a"].append([{"k": 9, "g": 0, "v": 5, "note": "x"}])
    assert {each.how for each in store.refresh().values()} == {"changes"}
    assert "note" not in every.schema.names
    store["a"].evolve(drop=["v"])
    store["a"].append([{"k": 10, "g": 0}])
    assert view.refresh().how == "changes"
    assert view.verify().is_exact
    with pytest.raises(ts.UsageError, match=r"column v of a was dropped.*view\.rebuild\(\)"):
        every.refresh()
    assert every.rebuild().is_new
    assert every.schema.names == ("k", "g", "note")
    assert every.verify().is_exact


def test_a_widened_column_is_followed_where_no_type_of_the_view_changes(place):
    store = filled(place, v="int32")
    sums = store.view("sums", sql=SUMS)
    plain = store.view("plain", sql="SELECT k, v FROM a")
    most = store.view("most", sql="SELECT g, max(v) > 1 AS m FROM a GROUP BY g")
    above = store.view("above", sql="SELECT k FROM plain WHERE v > 1")
    wide = store.view("wide", sql="SELECT v FROM plain")
    store["a"].evolve(widen={"v": "int64"})
    store["a"].append([{"k": 9, "g": 0, "v": 1 << 40}])
    assert sums.refresh().how == "changes"
    assert sums.verify().is_exact
    assert max(row["s"] for row in rows(sums)) > 1 << 40
    for view in (plain, most):
        before = rows(view)
        with pytest.raises(ts.UsageError, match=r"v of a \(was int32, is int64\).*view\.rebuild\(\)"):
            view.refresh()
        assert rows(view) == before
    assert (plain.rebuild().is_new, most.rebuild().is_new) == (False, False)
    assert plain.schema.types["v"] == pa.int64()
    assert max(row["v"] for row in rows(plain)) == 1 << 40
    assert above.refresh().how == "changes"
    with pytest.raises(ts.UsageError, match=r"v of plain \(was int32, is int64\)"):
        wide.refresh()
    assert not wide.rebuild().is_new
    assert store_is_exact(store)


def test_a_rebuild_follows_renamed_columns_and_collections(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store["a"].evolve(rename={"v": "worth"})
    store.rename("a", "b")
    store["b"].append([{"k": 9, "g": 0, "worth": 5}])
    assert view.rebuild().changes == 2
    store["b"].append([{"k": 10, "g": 0, "worth": 5}])
    assert view.refresh().how == "changes"
    assert view.verify().is_exact


def test_a_rebuild_that_has_no_answer_leaves_the_view_as_it_is(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    before = rows(view)
    store["a"].evolve(drop=["v"])
    store["a"].append([{"k": 9, "g": 0}])
    with pytest.raises(ts.UnsupportedView, match="there is no column v: a has k, g"):
        view.rebuild()
    assert rows(view) == before
    store["a"].evolve(add={"v": "int64"})
    store["a"].append([{"k": 10, "g": 0, "v": 3}])
    view.rebuild()
    assert view.verify().is_exact


@pytest.mark.parametrize("sql", [SUMS, "SELECT k, v FROM a", "SELECT max(v) AS m FROM a"])
def test_a_rebuilt_view_stays_exact_at_every_time(place, sql):
    store = filled(place, "int32")
    view = store.view("v", sql=sql, times="every")
    id, first = view.id, view.upper.time
    for k in range(4, 8):
        store["a"].append([{"k": k, "g": k % 2, "v": k}])
    store["a"].evolve(widen={"v": "int64"})
    store["a"].append([{"k": 8, "g": 0, "v": 1 << 40}])
    done = view.rebuild()
    assert (done.is_new, done.time, view.id) == (False, first + 4, id)
    for time in range(first - 1, first + 5):
        assert view.verify(as_of=time).is_exact, time


def test_a_view_that_would_read_itself_is_refused(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    with pytest.raises(ts.UsageError, match="view sums cannot read itself"):
        store.view("sums", sql="SELECT g FROM SUMS WHERE s > 1", replace=True)
    assert store.view("sums").id == view.id
    store["a"].append([{"k": 9, "g": 1, "v": 9}])
    assert view.refresh().changes == 2


def test_the_handle_of_a_dropped_view_says_so(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store.drop("sums")
    for ask in (view.status, view.verify, view.rebuild, view.refresh, lambda: view.snapshot(5, fresh=True)):
        with pytest.raises(ts.UsageError, match="view sums"):
            ask()
