"""Views that are refused or broken: names that are taken, open ties, lost inputs, rows that make one fail."""

import pytest
from test_views import SUMS, filled, rows

import timespine as ts
from timespine.client.catalog import create_in_transaction
from timespine.columnar.schema.schema import DIFF
from timespine.views import compute_changes, definition
from timespine.views.refresh import refresh_one_view


@pytest.mark.parametrize("policy", ["auto", "full"])
def test_a_text_for_spark_whose_order_leaves_ties_open_is_refused_with_what_to_add(place, policy):
    """A plan breaks ties by the other columns; Spark by the order in which it reads the rows."""
    store = filled(place)
    tied = "SELECT k, v FROM a ORDER BY v LIMIT 2"
    assert store.view("plan", sql=tied, policy=policy).definition.mode != "spark"
    with pytest.raises(ts.UnsupportedView, match="which of several rows come first") as refused:
        store.view("bad", sql="SELECT k, v, row_number() OVER (ORDER BY v) AS n FROM a", policy=policy)
    assert "add a.k to ORDER BY of the window" in str(refused.value)
    assert "without PARTITION BY" in str(refused.value), "why there is no plan is said too"
    with pytest.raises(ts.UnsupportedView, match="there is no session"):
        store.view("good", sql="SELECT k, v, row_number() OVER (ORDER BY v, k) AS n FROM a", policy=policy)


@pytest.mark.parametrize("name", ["timespine.views", "timespine.stage." + "x.0"])
def test_names_of_hidden_collections_are_no_names_of_others(place, name):
    store = filled(place)
    for create in (
        lambda: store.create(name, value={"x": "int64"}),
        lambda: store.view(name, sql=SUMS),
        lambda: store.rename("a", name),
    ):
        with pytest.raises(ts.OwnedCollection, match=f"{name} is a name of the hidden collections of views"):
            create()
    with pytest.raises(ts.OwnedCollection, match="hidden collections"), store.transaction() as tx:
        tx.create(name, value={"x": "int64"})
    assert rows(store.view("timespine", sql=SUMS)) != []


def test_a_collection_that_took_the_name_of_the_registry_before_is_named(place, monkeypatch):
    store = filled(place)
    monkeypatch.setattr(create_in_transaction, "REGISTRY", "nothing")
    store.create("timespine.views", value={"x": "int64"}, timeline="counter")
    monkeypatch.undo()
    assert (store.views(), store.refresh()) == ([], {})
    with pytest.raises(ts.CollectionExists, match="rename the collection that has it"):
        store.view("sums", sql=SUMS)
    store.rename("timespine.views", "mine")
    assert store.view("sums", sql=SUMS).verify().is_exact


def test_a_view_whose_input_was_dropped_is_reported_and_does_not_hold_back_the_others(place):
    store = filled(place)
    store.create("b", key={"k": "int64"}, value={"g": "int64"}, timeline="counter")
    store["b"].append([{"k": 1, "g": 1}])
    sums, sound = store.view("sums", sql=SUMS), store.view("sound", sql="SELECT k FROM b")
    store.view("both", sql="SELECT a.k FROM a JOIN b ON a.k = b.k")
    store.view("above", sql="SELECT g FROM sums")
    store.drop("a", force=True)
    store["b"].append([{"k": 2, "g": 1}])
    done = store.refresh()
    assert (done["sound"].time, done["sound"].changes, done["sound"].error) == (1, 1, "")
    assert {name: each.engine for name, each in done.items() if each.error} == {
        "sums": "none",
        "both": "none",
        "above": "none",
    }
    assert "view both is no longer refreshed, because its input a was dropped; drop the view too" in done["both"].error
    assert done["above"].error == "view above was not refreshed, because its input sums was not"
    assert (done["both"].time, store["both"].upper.time) == (0, 1)
    for fails in (lambda: store.refresh(["both", "sound"]), store.view("both").rebuild, store.view("both").verify):
        with pytest.raises(ts.UsageError, match="view both is no longer refreshed"):
            fails()
    status = store.view("both").status()
    assert (list(status.inputs), status.behind, "was dropped" in status.error) == (["b"], 1, True)
    assert (sums.status().inputs, sums.status().behind, sound.status().error) == ({}, 0, "")
    assert "was dropped" in store.view("both").explain()
    store.view("both", sql="SELECT k FROM b", replace=True)
    store.drop("above")
    store.drop("sums")
    assert [each.error for each in store.refresh().values()] == ["", ""]


def test_a_view_with_stages_of_another_version_is_named_and_does_not_hold_back_the_others(place, monkeypatch):
    store = filled(place)
    monkeypatch.setattr(definition, "STAGES_VERSION", 1)
    store.view("sums", sql=SUMS)
    store.view("above", sql="SELECT g FROM sums")
    monkeypatch.undo()
    sound = store.view("sound", sql="SELECT v, count(*) AS n FROM a GROUP BY v")
    compute_changes.compile_definition.cache_clear()
    store["a"].append([{"k": 9, "g": 1, "v": 1}])
    done = store.refresh()
    assert done["sums"].error.startswith("view sums: the stages of this view were made by another version")
    assert (done["sound"].error, done["sound"].changes, sound.verify().is_exact) == ("", 2, True)
    assert "because its input sums was not" in done["above"].error or done["above"].error.startswith(
        "view above: the stages"
    )
    store.view("sums").rebuild()
    store.view("above").rebuild()
    assert [each.error for each in store.refresh().values()] == ["", "", ""]


FAILING = {
    "division": ("SELECT k, 10 / v AS q FROM a", [], "a division by zero"),
    "key": ("SELECT v AS k FROM a", ["k"], "does not identify its rows"),
    "count": ("SELECT k, max(k) AS m FROM b GROUP BY k", [], "a negative count"),
    "column": ("SELECT k, w FROM a", [], "column w of a was dropped"),
}


@pytest.mark.parametrize("case", list(FAILING))
def test_a_view_that_fails_does_not_hold_back_the_others_of_a_refresh_of_all(place, case):
    sql, key, why = FAILING[case]
    store = filled(place)
    store["a"].upsert([{"k": 0, "g": 0, "v": 8}])
    store["a"].evolve(add={"w": "int64"})
    store.create("b", value={"k": "int64"}, timeline="counter")
    store["b"].append([{"k": 1}], at=1)
    fails = store.view("fails", sql=sql, key=key)
    above = store.view("above", sql="SELECT k, count(*) AS n FROM fails GROUP BY k")
    sums = store.view("sums", sql=SUMS)
    if case == "column":
        store["a"].evolve(drop=["w"])
    store["a"].append([{"k": 9, "g": 1, "v": 0}, {"k": 10, "g": 1, "v": 1}])
    store["b"].append([{"k": 1, DIFF: -2}], at=2)
    done = store.refresh()
    assert why in done["fails"].error
    assert done["above"].error == "view above was not refreshed, because its input fails was not"
    assert (done["sums"].time, done["sums"].error, sums.verify().is_exact) == (2, "", True)
    assert (done["fails"].time, done["fails"].engine, done["above"].time) == (1, "none", 1)
    assert (fails.upper.time, above.upper.time) == (2, 2)
    for refuses in (fails.refresh, lambda: store.refresh(["sums", "fails"])):
        with pytest.raises(ts.UsageError, match=why):
            refuses()
    if case in ("division", "key"):  # and it comes back with what it missed
        store["a"].upsert([{"k": 9, "g": 1, "v": 20}, {"k": 10, "g": 1, "v": 21}])
        store["b"].seal(4)
        assert [(each.time, each.error) for each in store.refresh().values()] == [(3, "")] * 3
        assert fails.verify().is_exact
        assert above.verify().is_exact


def test_an_error_of_python_leaves_out_one_view_and_an_error_of_storage_all(place, monkeypatch):
    store = filled(place)
    store.view("bad", sql="SELECT k FROM a")
    store.view("sums", sql=SUMS)
    real = refresh_one_view.Carrier.compute

    def compute(self, work, time, fresh):
        if work.name == "bad":
            raise wrong
        real(self, work, time, fresh)

    monkeypatch.setattr(refresh_one_view.Carrier, "compute", compute)
    store["a"].append([{"k": 9, "g": 1, "v": 0}])
    for wrong in (ts.Determinate("away"), ts.StoreClosed("closed"), OSError("no disk"), AssertionError("a bug")):
        with pytest.raises(type(wrong)):
            store.refresh()
    wrong = ZeroDivisionError("in a function")
    done = store.refresh()
    assert done["bad"].error == "view bad: ZeroDivisionError: in a function"
    assert (done["sums"].changes, done["sums"].error) == (2, "")


# What is said of texts and arguments that are wrong.


WRONG = {
    f"SELECT k FROM a WHERE k = {'9' * 44}": ("column 27: a number of 44 digits, and a decimal has 38 at most"),
    f"SELECT 0.{'0' * 46}1 AS x, k FROM a": "column 8: a number of 47 digits, and a decimal has 38 at most",
    "SELECT g, v FROM a GROUP BY g": "column 11: v is neither grouped nor aggregated: add it to GROUP BY",
    "SELECT sum(sum(v)) AS s FROM a": "column 12: sum cannot stand here: put it into SELECT or HAVING",
    "SELECT k FROM a WHERE sum(v) > 1": "column 23: sum cannot stand here: put it into SELECT or HAVING",
    "SELECT DATE'2020-13-45' AS x, k FROM a": "there is no day 2020-13-45: write another date",
    "SELECT o.k FROM a o JOIN a o ON o.k = o.k": "two tables of this FROM are called so: name one of them differently",
    "SELECT k FROM a GROUP BY": "GROUP BY without columns: name some",
    "SELECT :p AS x, k FROM a": "line 1, column 8: parameters are not supported: write the value",
    "SELECT k FROM a\nWHERE k = ?": "line 2, column 11: parameters are not supported: write the value",
    "SELECT ${x} AS k FROM a": "line 1, column 8: parameters are not supported: write the value",
    "SELECT approx_count_distinct(k) AS n FROM a": "column 8: approx_count_distinct() gives another answer each time",
    "SELECT string_agg(g) AS n FROM a": "line 1, column 8: string_agg() gives values in any order",
}
"""Texts that no engine computes, and what is said of them."""


@pytest.mark.parametrize("sql", WRONG)
def test_a_text_that_is_wrong_in_itself_is_refused_with_the_place_and_without_advice_to_use_spark(place, sql):
    with pytest.raises(ts.UnsupportedView) as refused:
        filled(place).view("bad", sql=sql)
    assert WRONG[sql] in str(refused.value)
    assert "give one, spark" not in str(refused.value)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT v + g AS x FROM a GROUP BY g + v", "v is neither grouped nor aggregated"),
        ("SELECT k, INTERVAL 1 DAY AS x FROM a", "line 1, column 29: interval is not on the list"),
        (
            "SELECT k, g IN (SELECT v FROM a) AS x FROM a",
            "column 11: IN with a subquery cannot stand here: put it into",
        ),
        ("SELECT g, sum(v) AS s FROM a GROUP BY g HAVING g IN (SELECT v FROM a)", "into WHERE of a SELECT around them"),
        ("SELECT o.k FROM a o LEFT JOIN a c ON o.k = c.k AND o.g IN (SELECT v FROM a)", "IN with a subquery cannot"),
    ],
)
def test_a_text_that_spark_may_compute_is_refused_with_the_advice_to_use_it(place, sql, said):
    with pytest.raises(ts.UnsupportedView, match="give one, spark") as refused:
        filled(place).view("bad", sql=sql)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"key": None}, "key is a list of names of columns, not None"),
        ({"key": 3}, "key is a list of names of columns, not 3"),
        ({"spark": "x"}, "spark is a session of Spark, not 'x'"),
    ],
)
def test_arguments_of_a_view_that_are_none_are_named(place, wrong, said):
    with pytest.raises(ts.UsageError, match=said):
        filled(place).view("bad", sql="SELECT k FROM a", **wrong)


def test_hidden_collections_are_no_inputs_of_views(place):
    store = filled(place)
    stage = next(iter(store.view("sums", sql=SUMS).status().stages))
    for hidden in ("timespine.views", stage):
        with pytest.raises(ts.UsageError, match="is state of views, which changes with every version"):
            store.view("bad", sql=f"SELECT * FROM `{hidden}`")


def test_one_key_that_several_rows_have_is_told_in_the_singular(place):
    with pytest.raises(ts.UsageError, match="1 key has several"):
        filled(place).view("bad", sql="SELECT k, g FROM a WHERE g = 1", key=["g"])
