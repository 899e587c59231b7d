"""Views as collections: who may write them, what a refresh commits, and what becomes of them when things go wrong."""

import threading

import msgspec
import pytest
from memory_store import Script
from sorted_rows import rows

import timespine as ts
from timespine.client.catalog.catalog import decode_catalog, encode_catalog
from timespine.client.collection import handle_of
from timespine.errors import CorruptionError, VersionError
from timespine.testing.unreliable import Fault
from timespine.views.definition import decode_definition
from timespine.views.refresh import refresh_views as refreshing
from timespine.views.refresh.refresh_one_view import Carrier
from timespine.views.registry import definitions

SUMS = "SELECT g, sum(v) AS s, count(*) AS n FROM a GROUP BY g"


def filled(place, **options):
    store = place.open(**options)
    store.create("a", key={"k": "int64"}, value={"g": "int64", "v": "int64"}, timeline="counter")
    store["a"].append([{"k": k, "g": k % 2, "v": k} for k in range(4)])
    return store


# Ownership.


def test_only_refreshes_write_to_a_view_and_its_stages(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS, key=["g"])
    before, upper = rows(view), view.upper
    stage = next(name for name in store.names(hidden=True) if name.startswith("timespine.stage."))
    calls = [
        lambda name: store[name].append([{"g": 7}]),
        lambda name: store[name].append([{"g": 7}], at=50),
        lambda name: store[name].upsert([{"g": 7, "s": 1, "n": 1}]),
        lambda name: store[name].write([{"g": 7}], at=99),
        lambda name: store[name].seal(99),
        lambda name: store[name].finish(),
        lambda name: store[name].writer(),
        lambda name: store[name].evolve(add={"x": "int64"}),
        lambda name: store[name].expire(99, ahead=True),
        lambda name: store.seal(name, 99),
        lambda name: store.create(name, key={"x": "int64"}, replace=True),
        lambda name: _in_transaction(store, name),
    ]
    for name in ("sums", stage, "timespine.views"):
        for call in calls:
            with pytest.raises((ts.OwnedCollection, ts.InvalidRows)):
                call(name)
    with pytest.raises(ts.OwnedCollection):
        store.drop(stage)
    assert (rows(view), view.upper) == (before, upper)
    assert store.names() == ["a", "sums"]


def _in_transaction(store, name):
    with store.transaction() as tx:
        tx.append("a", [{"k": 100, "g": 1, "v": 1}])
        tx.append(name, [{"g": 7}])


def test_sealing_idle_collections_leaves_views_where_they_are(place):
    store = place.open()
    store.create("a", key={"k": "int64"}, value={"g": "int64", "v": "int64"})
    store["a"].append([{"k": 1, "g": 1, "v": 1}])
    view = store.view("sums", sql=SUMS)
    upper = view.upper
    place.clock.advance(60)
    store.seal_idle()
    assert view.upper == upper
    assert view.status().behind > 0
    assert view.refresh().how == "changes"
    assert view.status().behind == 0


def test_a_view_is_read_as_any_collection(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS, key=["g"])
    with view.subscribe(timeout=1) as feed:
        store["a"].delete({"k": 3})
        view.refresh()
        events = [next(feed) for _ in range(2)]
    assert events
    assert view.lookup({"g": 1}).to_pylist() == [{"g": 1, "s": 1, "n": 1}]
    assert [row["_diff"] for row in view.changes(after=0).to_pylist()] == [1, -1]
    view.expire(1)
    assert rows(view) == [{"g": 0, "s": 2, "n": 2}, {"g": 1, "s": 1, "n": 1}]


def test_older_code_refuses_a_catalog_with_views(place):
    store = filled(place)
    names = store._catalog.read()
    assert encode_catalog(names)[3] == 1
    store.view("sums", sql=SUMS)
    names = store._catalog.read()
    data = encode_catalog(names)
    assert data[3] == 2
    assert decode_catalog(names.seqno, data) == names


# One commit, exactly once.


def test_a_refresh_of_many_views_and_stages_is_one_compare_and_set_at_one_time(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    store.view("rows", sql="SELECT k, v FROM a WHERE v > 1")
    store.view("big", sql="SELECT g FROM sums WHERE s > 2")
    store["a"].append([{"k": 9, "g": 0, "v": 9}])
    ids = {store[name].id for name in store.names(hidden=True) if name not in ("a", "timespine.views")}
    calls, whole = [], place.consensus.compare_and_set

    def spy(writes, *others, **options):
        calls.append({each.key for each in writes})
        return whole(writes, *others, **options)

    place.consensus.compare_and_set = spy
    done = store.refresh()
    assert [call for call in calls if ids <= call] == [ids]
    assert {each.time for each in done.values()} == {1}
    assert {store[name].upper.time for name in store.names(hidden=True) if name not in ("a", "timespine.views")} == {2}


def test_a_refresh_without_changes_moves_the_time_and_writes_no_rows(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store["a"].seal(5)
    assert (view.refresh().time, view.refresh().changes) == (4, 0)
    assert view.changes(after=0).to_pylist() == []
    assert view.refresh().engine == "none"


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.CONFLICT_DONE])
def test_a_refresh_whose_reply_was_lost_is_applied_once(place, fault):
    script = Script()
    store = filled(place, script=script)
    view = store.view("sums", sql=SUMS, key=["g"])
    store["a"].append([{"k": 9, "g": 0, "v": 9}])
    script.add("compare_and_set", fault, key=view.id)
    view.refresh()
    assert script.is_done
    assert rows(view) == [{"g": 0, "s": 11, "n": 3}, {"g": 1, "s": 4, "n": 2}]
    assert view.verify().is_exact


def test_a_refresh_that_fails_before_its_commit_changes_nothing_and_can_be_repeated(place, monkeypatch):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store["a"].append([{"k": 9, "g": 0, "v": 9}])
    commit = refreshing._commit
    monkeypatch.setattr(refreshing, "_commit", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(RuntimeError):
        view.refresh()
    assert view.upper.time == 1
    monkeypatch.setattr(refreshing, "_commit", commit)
    assert view.refresh().changes == 2
    assert view.verify().is_exact


def test_two_refreshers_at_once_apply_each_interval_once(place):
    one, two = filled(place), place.open()
    view = one.view("sums", sql=SUMS, key=["g"])
    other = two.view("sums")
    for number in range(12):
        one["a"].upsert([{"k": number % 5, "g": number % 3, "v": number}])
        threads = [threading.Thread(target=each.refresh) for each in (view, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert view.upper == one["a"].upper
    assert view.verify().is_exact
    assert sum(row["n"] for row in rows(view)) == one["a"].count()


def test_a_refresher_that_was_overtaken_plans_again(place, monkeypatch):
    one, two = filled(place), place.open()
    view = one.view("sums", sql=SUMS)
    commit, calls = refreshing._commit, []

    def overtaken(store, works, time):
        if not calls:
            calls.append(time)
            two["a"].append([{"k": 50, "g": 1, "v": 1}])
            monkeypatch.setattr(refreshing, "_commit", commit)
            two.view("sums").refresh()
            monkeypatch.setattr(refreshing, "_commit", overtaken)
        commit(store, works, time)

    one["a"].append([{"k": 51, "g": 1, "v": 1}])
    monkeypatch.setattr(refreshing, "_commit", overtaken)
    assert view.refresh().time == 2
    assert view.verify().is_exact


# Holds, drops.


def test_history_that_a_view_needs_is_held_and_released_with_it(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    for number in range(10):
        store["a"].append([{"k": 10 + number, "g": 0, "v": 1}])
    store["a"].expire(9)
    assert store["a"].since.time == 0
    view.refresh()
    assert view.verify().is_exact
    with pytest.raises(ts.CollectionInUse, match="read by view sums"):
        store.drop("a")
    store.drop("sums")
    store["a"].expire(9)
    assert store["a"].since.time == 9
    assert store.names(hidden=True) == ["a", "timespine.views"]
    assert definitions(store) == {}
    assert store.drop("a")


def test_a_stage_keeps_no_history_before_its_last_refresh(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    (stage,) = [store[name] for name in store.names(hidden=True) if name.startswith("timespine.stage.")]
    for number in range(20):
        store["a"].upsert([{"k": 0, "g": 0, "v": number}])
        view.refresh()
        # Leases of readers may keep it back a little longer.
        assert handle_of(stage).state().retention.time == view.upper.time - 1
    assert view.since.time == 0
    assert view.verify().is_exact


def test_a_refresher_whose_stages_forgot_its_time_plans_again(place, monkeypatch):
    one, two = filled(place), place.open()
    view = one.view("sums", sql=SUMS)
    whole, calls = Carrier.compute, []

    def overtaken(*given):
        if not calls:
            calls.append(1)
            two.view("sums").refresh()
            two["a"].append([{"k": 60, "g": 1, "v": 1}])
        whole(*given)

    one["a"].append([{"k": 51, "g": 1, "v": 1}])
    monkeypatch.setattr(Carrier, "compute", overtaken)
    assert view.refresh().time == 2
    assert view.verify().is_exact


def test_dropping_an_input_names_the_views_that_read_it(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store.view("rows", sql="SELECT k FROM a")
    with pytest.raises(ts.CollectionInUse, match="collection a is read by views rows, sums; drop them first"):
        store.drop("a")
    before = rows(view)
    assert store.drop("a", force=True)
    assert rows(view) == before
    with pytest.raises(
        ts.UsageError, match="view sums is no longer refreshed, because its input a was dropped; drop the view too"
    ):
        view.refresh()
    assert store.drop("sums")


def test_the_hold_on_an_input_follows_the_view_now_and_then(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    held = set()
    for number in range(140):
        store["a"].append([{"k": 10 + number, "g": 0, "v": 1}])
        if number % 10 == 9:
            view.refresh()
        (hold,) = store["a"]._handle.state().holds.values()
        held.add(hold.since.time)
    assert len(held) == 3  # where it began, and two moves of at least 64


def test_a_view_that_another_view_reads_is_not_dropped(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    store.view("big", sql="SELECT g FROM sums WHERE s > 2")
    with pytest.raises(ts.CollectionInUse):
        store.drop("sums")
    assert store.drop("big")
    assert store.drop("sums")


def test_what_is_left_of_a_drop_that_was_interrupted_goes_with_the_next_call(place, monkeypatch):
    from timespine.views import registry

    store = filled(place)
    store.view("sums", sql=SUMS)
    whole = registry.remove_leftovers
    monkeypatch.setattr(registry, "remove_leftovers", lambda store: None)
    store.drop("sums")
    assert len(store.names(hidden=True)) == 3
    with pytest.raises(ts.CollectionInUse, match=r"a view that is being dropped \(view-sums-\w+\); drop it again"):
        store.drop("a")
    monkeypatch.setattr(registry, "remove_leftovers", whole)
    store.view("others", sql="SELECT k FROM a")
    assert store.names(hidden=True) == ["a", "others", "timespine.views"]
    assert sorted(store["a"]._handle.state().holds) == [f"view-{store['others'].id}"]


# Definitions.


def test_a_key_that_does_not_identify_rows_is_refused_at_the_build_and_at_a_refresh(place):
    store = filled(place)
    with pytest.raises(ts.UsageError, match="does not identify"):
        store.view("bad", sql="SELECT g, v FROM a", key=["g"])
    assert "bad" not in store
    view = store.view("good", sql="SELECT v, g FROM a", key=["v"])
    store["a"].append([{"k": 9, "g": 5, "v": 3}])
    with pytest.raises(ts.UsageError, match="does not identify"):
        view.refresh()
    assert view.upper.time == 1
    store["a"].delete({"k": 9})
    assert view.refresh().time == 2


def test_renamed_columns_of_inputs_change_nothing_and_dropped_ones_are_named(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store["a"].evolve(rename={"v": "worth"}, add={"note": "string"})
    store["a"].append([{"k": 9, "g": 0, "worth": 5, "note": "x"}])
    assert view.refresh().how == "changes"
    assert view.verify().is_exact
    store["a"].evolve(drop=["worth"])
    store["a"].append([{"k": 10, "g": 0}])
    with pytest.raises(ts.UsageError, match="column v of a was dropped"):
        view.refresh()
    assert len(rows(view)) == 2


def test_a_renamed_input_is_still_read(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    store.rename("a", "b")
    store["b"].append([{"k": 9, "g": 0, "v": 5}])
    assert view.refresh().changes == 2


def test_a_division_by_zero_leaves_the_view_where_it_was(place):
    store = filled(place)
    view = store.view("halves", sql="SELECT k, 12 / v AS h FROM a WHERE v > 0")
    whole = store.view("all_rows", sql="SELECT k, v % 2 AS h FROM a")
    assert whole.refresh().engine == "none"
    with pytest.raises(ts.UsageError, match="division by zero"):
        store.view("zero", sql="SELECT k, 12 / v AS h FROM a")
    assert view.verify().is_exact
    assert "zero" not in store


def test_definitions_of_newer_versions_and_damaged_ones_are_refused(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    (definition,) = definitions(store).values()
    assert decode_definition(definition.encode()) == definition
    newer = msgspec.structs.replace(definition, version=2)
    with pytest.raises(VersionError):
        decode_definition(newer.encode())
    for damaged in (b"", b"{}", b'{"version": 1}', definition.encode()[:-3], b"[1]"):
        with pytest.raises(CorruptionError):
            decode_definition(damaged)
    with pytest.raises(CorruptionError):
        decode_definition(msgspec.structs.replace(definition, mode="magic").encode())


def test_stored_definitions_stay_readable():
    stored = (
        b'{"version":1,"sql":"SELECT g FROM a","inputs":[["a","a-00",[["g",2,"int64"]]]],"policy":"auto",'
        b'"mode":"incremental","times":"refresh","token":"t1","stages":["s-01"],"digest":"00","reasons":[]}'
    )
    found = decode_definition(stored)
    assert (found.inputs[0].columns[0].id, found.stages, found.mode) == (2, ("s-01",), "incremental")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sql": SUMS, "policy": "sometimes"}, "policy"),
        ({"sql": SUMS, "times": "always"}, "times"),
        ({"sql": SUMS, "key": "g"}, "key"),
        ({"sql": SUMS, "key": ["nope"]}, "nope"),
        ({"sql": "DELETE FROM a"}, "one SELECT"),
        ({"sql": ""}, "text of a SELECT"),
        ({"sql": "SELECT k FROM nowhere"}, "nowhere"),
        ({"sql": "SELECT rand() AS r FROM a", "policy": "full"}, "no definite answer"),
    ],
)
def test_wrong_calls_say_what_to_change_and_create_nothing(place, options, what):
    store = filled(place)
    with pytest.raises(ts.UsageError, match=what):
        store.view("bad", **options)
    assert store.views() == []


def test_inputs_on_different_time_lines_are_refused(place):
    store = filled(place)
    store.create("b", key={"k": "int64"})
    store["b"].append([{"k": 1}])
    with pytest.raises(ts.UsageError, match="time lines"):
        store.view("both", sql="SELECT a.k FROM a JOIN b ON a.k = b.k")


def test_inputs_that_can_never_be_read_as_of_one_time_are_named_and_may_become_complete(place):
    store = filled(place)
    store["a"].append([{"k": 9, "g": 1, "v": 1}])
    store.create("slow", key={"g": "int64"}, value={"name": "string"}, timeline="counter")
    store["slow"].append([{"g": 0, "name": "x"}])
    store.view("sums", sql=SUMS, key=["g"])
    joined = "SELECT g, s, name FROM sums JOIN slow USING (g)"
    with pytest.raises(ts.UsageError, match=r"sums can be read from 1 on, and slow is complete up to 0: complete slow"):
        store.view("joined", sql=joined)
    assert "joined" not in store.names()
    store["slow"].append([{"g": 1, "name": "y"}])
    assert rows(store.view("joined", sql=joined)) == [{"g": 0, "s": 2, "name": "x"}, {"g": 1, "s": 5, "name": "y"}]


def test_what_has_no_rule_is_named_with_its_place_and_nothing_is_created(place):
    store = filled(place)
    with pytest.raises(ts.UnsupportedView) as refused:
        store.view("bad", sql="SELECT g,\n  skewness(v) AS s\nFROM a GROUP BY g", policy="incremental")
    (reason,) = refused.value.reasons
    assert (reason.line, reason.column) == (2, 3)
    assert "skewness" in str(reason)
    assert store.views() == []


# Sums that are too large.


def test_an_average_is_shown_though_the_sum_is_beyond_its_type(place):
    store = filled(place)
    view = store.view("means", sql="SELECT g, avg(v) AS m FROM a GROUP BY g", key=["g"])
    every = store.view("always", sql="SELECT g, avg(v) AS m FROM a GROUP BY g", key=["g"], times="every")
    store["a"].append([{"k": k, "g": 0, "v": (1 << 63) - 1} for k in range(10, 20)])
    store["a"].append([{"k": 30, "g": 0, "v": (1 << 62)}])
    store.refresh()
    assert view.verify().is_exact
    assert rows(view)[0]["m"] == (10 * ((1 << 63) - 1) + (1 << 62) + 2) / 13
    store["a"].delete([{"k": k} for k in [*range(10, 20), 30]])
    store.refresh()
    assert rows(view)[0]["m"] == 1.0
    assert rows(every) == rows(view)


@pytest.mark.parametrize("shown", ["sum(v)"])
def test_a_sum_beyond_its_type_is_an_error_and_the_view_stays_where_it_was(place, shown):
    store = filled(place)
    store["a"].append([{"k": 10, "g": 0, "v": 1 << 62}])
    view = store.view("sums", sql=f"SELECT g, {shown} AS s FROM a GROUP BY g", key=["g"])
    before, upper = rows(view), view.upper
    store["a"].append([{"k": 12, "g": 0, "v": 1 << 62}])
    with pytest.raises(ts.UsageError, match="was not refreshed"):
        view.refresh()
    assert (rows(view), view.upper) == (before, upper)
    store["a"].delete({"k": 12})
    view.refresh()
    assert rows(view) == before
    assert view.upper == store["a"].upper


def test_a_view_that_only_spark_can_compute_is_refused_with_reasons_without_a_session(place):
    store = filled(place)
    with pytest.raises(
        ts.UnsupportedView, match=r"there is no session.*\n  line 1, column 8: rank|PARTITION BY"
    ) as refused:
        store.view("v", sql="SELECT rank() OVER (ORDER BY v) AS r FROM a")
    assert len(refused.value.reasons) == 1
    assert "v" not in store


@pytest.mark.parametrize("times", ["refresh", "every"])
@pytest.mark.parametrize("value", ["sum(v)", "min(v)", "avg(CAST(v AS double))"])
def test_a_group_of_rows_with_a_negative_count_is_an_error_until_they_are_mended(tmp_path, value, times):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        rows = store.create("b", value={"k": "int64", "v": "int64"}, timeline="counter")
        rows.append([{"k": 1, "v": 2}, {"k": 1, "v": 2}])
        sql = f"SELECT k, {value} AS s, count(*) AS n FROM b GROUP BY k"
        view = store.view("s", sql=sql, key=["k"], times=times)
        rows.append([{"k": 7, "v": 3, "_diff": -1}])
        with pytest.raises(ts.UsageError, match="negative count"):
            view.refresh()
        assert [each["k"] for each in view.snapshot().to_pylist()] == [1]
        if times == "refresh":  # at every time, the time between stays wrong
            rows.append([{"k": 7, "v": 3, "_diff": 2}])
            view.refresh()
            assert [each["n"] for each in view.snapshot(multiplicity="column").to_pylist()] == [2, 1]
            assert view.verify().is_exact
