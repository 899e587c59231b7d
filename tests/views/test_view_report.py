"""What a view says of itself: its status, and how changes of its inputs reach it."""

from sorted_rows import rows
from test_views import filled


def test_the_status_says_what_each_input_has_that_the_view_lacks(place):
    store = place.open()
    for name in ("a", "b"):
        store.create(name, key={"k": "int64"}, value={"g": "int64"})
        store[name].append([{"k": 1, "g": 1}])
    store.seal_idle()
    view = store.view("counts", sql="SELECT a.g, count(*) AS n FROM a JOIN b ON a.k = b.k GROUP BY a.g")
    first = view.status()
    assert (first.behind, first.lag_s, [each.changes for each in first.refreshes]) == (0, 0.0, [1])
    place.clock.advance(5)
    store["a"].append([{"k": k, "g": 1} for k in range(2, 5)])
    found = view.status()
    assert (found.inputs["a"].updates, found.inputs["b"].updates) == (3, 0)
    assert (found.inputs["a"].behind > 0, found.inputs["b"].behind, found.behind) == (True, 0, 0)
    assert found.lag_s == 5.0
    store.seal_idle(place.clock.ms + 1)
    assert view.status().behind == found.inputs["a"].behind
    view.refresh()
    last = view.status()
    assert (last.behind, last.refreshes[-1].time, last.refreshes[-1].at_ms) == (0, last.time, place.clock.ms)
    assert last.bytes > last.stored.bytes > 0
    assert [each.rows for each in last.stages.values()] == [1]


def test_explain_says_how_changes_travel_and_what_is_computed_again(place):
    store = filled(place)
    store.create("b", key={"g": "int64", "k": "int64"}, value={"w": "int64"}, timeline="counter")
    store["b"].append([{"g": 1, "k": 1, "w": 1}])
    view = store.view(
        "v",
        sql="SELECT a.g, max(b.w) AS m, count(DISTINCT b.k) AS d FROM a JOIN b ON a.g = b.g WHERE a.v > 0 GROUP BY a.g",
        key=["g"],
    )
    assert view.explain().splitlines() == [
        "view v: incremental, exact at its refresh points",
        "  stage 1 (hidden): group by g; keeps max(w), count distinct(k)",
        "    changes of a -> b by g (key prefix) -> groups by g",
        "    changes of b -> a by g (scan of 2 columns) -> groups by g",
        "  changes of stage 1 -> the view",
        "  output: g, m, d; key g",
        "computed again from rows:",
        "  max(w): of groups whose extreme was retracted, from their rows",
        "  count distinct(k): of each touched group, from its rows",
        "next refresh: nothing, as no later time than 0 is complete in all inputs",
    ]
    whole = store.view("w", sql="SELECT k FROM a", policy="full")
    assert "policy 'full' asks for it" in whole.explain()


def test_explain_says_what_the_next_refresh_would_do(place):
    store = filled(place)
    store.create("b", key={"k": "int64"}, value={"w": "int64"}, timeline="counter")
    store["b"].append([{"k": 1, "w": 1}])
    view = store.view("v", sql="SELECT a.g, sum(b.w) AS s FROM a JOIN b ON a.k = b.k GROUP BY a.g")
    every = store.view("e", sql="SELECT g, count(*) AS n FROM a GROUP BY g", times="every")
    full = store.view("f", sql="SELECT g FROM a", policy="full")
    store["a"].append([{"k": 7, "g": 1, "v": 1}, {"k": 8, "g": 1, "v": 1}])
    store.seal(["b"], store["a"].upper)
    upper = view.upper

    def line(each):
        return each.explain().splitlines()[-1]

    to = store["a"].upper.time - 1
    assert line(view) == (
        f"next refresh: to {to}, from what changed, in the process (there is no session of Spark); "
        "changes, at most: a 2, b 0"
    )
    assert line(every).startswith(f"next refresh: to {to}, from what changed, in the process (each time is computed")
    assert line(full).startswith(f"next refresh: to {to}, whole, and compared, in the process (policy 'full')")
    assert view.upper == upper
    store.drop("b", force=True)
    assert line(store.view("f")).startswith("next refresh: to ")
    assert "fails: view v is no longer refreshed, because its input b was dropped" in line(view)


def test_a_fresh_read_refreshes_first_and_only_if_the_view_is_behind(place):
    store = filled(place)
    view = store.view("v", sql="SELECT count(*) AS n FROM a")
    first = view.upper.time - 1
    for k in (7, 8):
        store["a"].append([{"k": k, "g": 1, "v": 1}])
    before = view.snapshot().to_pylist()[0]["n"]
    assert view.snapshot(first, fresh=True).to_pylist() == [{"n": before}]
    assert view.upper.time == first + 1
    assert view.snapshot(first + 1, fresh=True, columns=["n"]).to_pylist() == [{"n": before + 1}]
    assert view.snapshot(fresh=True).to_pylist() == [{"n": before + 2}]
    assert view.upper == store["a"].upper


def test_first_rows_say_when_all_rows_below_are_read_and_these_are_read_once(place):
    store = filled(place)
    store["a"].append([{"k": 100 + k, "g": 1, "v": 100 + k} for k in range(500)])
    last = store.view("last", sql="SELECT k, v FROM a ORDER BY v, k LIMIT 2")
    below = store.view("below", sql="SELECT k FROM (SELECT k, v FROM a ORDER BY v, k LIMIT 2) WHERE k > 0")
    assert "the first 2 rows: from all rows below, when one of them leaves" in last.explain()
    assert "the first 2 rows: from all rows below, when any row below changes" in below.explain()
    store["a"].append([{"k": 900, "g": 1, "v": 900}])
    assert last.refresh().fetched < 10
    assert 500 < below.refresh().fetched < 520
    store["a"].delete([{"k": 0}])
    assert 500 < last.refresh().fetched < 520
    below.refresh()
    assert rows(last) == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]
    assert below.verify().is_exact


def test_explain_names_the_columns_that_would_identify_the_rows_of_a_view_without_a_key(place):
    store = filled(place)

    def output(sql, key=()):
        view = store.view("v", sql=sql, key=key, replace="v" in store)
        proven = next(line for line in view.explain().splitlines() if line.startswith("  output: "))
        assert view.definition.mode == "incremental"
        return proven.partition("; ")[2]

    assert output("SELECT sum(v) AS s, g AS h FROM a GROUP BY g") == "no key, though h would identify its rows"
    assert output("SELECT g, sum(v) AS s FROM a GROUP BY g", ["g"]) == "key g"
    assert output("SELECT DISTINCT g, v FROM a") == "no key, though g, v would identify its rows"
    shifted = "SELECT g, k, count(*) + 1 AS n FROM a GROUP BY k, g HAVING count(*) > 0 ORDER BY g, k LIMIT 3"
    assert output(shifted) == "no key, though k, g would identify its rows"
    for none in (
        "SELECT sum(v) AS s FROM a GROUP BY g",
        "SELECT g + 1 AS h, sum(v) AS s FROM a GROUP BY g",
        "SELECT count(*) AS n FROM a",
        "SELECT g, v FROM a",
        "SELECT g, count(*) AS n FROM a GROUP BY ROLLUP (g)",
    ):
        assert output(none) == ""
    view = store.view("v", sql="SELECT g, sum(v) AS s FROM a GROUP BY g", key=["g"], replace=True)
    store["a"].append([{"k": 77, "g": None, "v": 5}])
    assert view.refresh().changes == 1
    assert view.lookup({"g": None}).to_pylist() == [{"g": None, "s": 5}], "the group of nulls has a key too"


def test_explain_says_that_an_order_without_a_limit_is_ignored(place):
    store = filled(place)
    ordered = store.view("ordered", sql="SELECT k FROM (SELECT k, g FROM a ORDER BY g) t\nORDER BY k DESC")
    assert [line for line in ordered.explain().splitlines() if "ignored" in line] == [
        "line 1, column 44: ORDER BY without LIMIT is ignored: sort what you read",
        "line 2, column 10: ORDER BY without LIMIT is ignored: sort what you read",
    ]
    first = store.view(
        "first", sql="SELECT k, row_number() OVER (PARTITION BY g ORDER BY k) AS n FROM a ORDER BY k LIMIT 2"
    )
    assert "ignored" not in first.explain()
