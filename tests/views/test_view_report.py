"""What a view says of itself: its status, and how changes of its inputs reach it."""

import pytest
from memory_store import MemoryStore
from test_views import filled


@pytest.fixture
def place():
    with MemoryStore() as made:
        yield made


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
    ]
    whole = store.view("w", sql="SELECT k FROM a", policy="full")
    assert "policy 'full' asks for it" in whole.explain()
