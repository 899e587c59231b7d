"""Keys of a join travel to the other side through casts that only widen: few rows are read, and the answer is exact."""

import random

import polars as pl
import pyarrow as pa
import pytest
from sorted_rows import rows

import timespine as ts
from timespine.views.engine import kept_rows
from timespine.views.engine.evaluate import Keys
from timespine.views.plan.expressions import Call, PlanColumn, widened_column

NARROW, WIDE = pa.int16(), pa.int64()


def joined(store, policy="incremental"):
    return store.view("joined", sql="SELECT l.k, l.j, o.c FROM l JOIN o ON l.j = o.j", policy=policy)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "KEPT_ROWS", -1)  # as if the inputs were large
    with ts.open(tmp_path / "store") as made:
        made.create("l", key={"k": "int64"}, value={"j": "int64"}, timeline="counter")
        made.create("o", key={"j": "int16"}, value={"c": "int64"}, timeline="counter")
        yield made


def test_a_change_reads_the_rows_of_its_keys_and_not_all_of_a_narrower_or_wider_key(store):
    with store.transaction() as tx:
        tx.append("l", [{"k": k, "j": k % 300} for k in range(600)])
        tx.append("o", [{"j": j, "c": j} for j in range(300)])
    view = joined(store)
    assert "changes of l -> o by " in view.explain()
    assert "computed, so all rows are read" not in view.explain()
    with store.transaction() as tx:
        tx.upsert("l", [{"k": 5, "j": 7}])
        tx.seal("o", 2)
    assert view.refresh().fetched < 10
    with store.transaction() as tx:
        tx.upsert("o", [{"j": 7, "c": 70}])
        tx.seal("l", 3)
    assert view.refresh().fetched < 20
    assert view.verify().is_exact


@pytest.mark.parametrize("seed", range(8))
def test_keys_beyond_the_narrower_type_and_null_match_what_a_whole_computation_matches(store, seed):
    rng = random.Random(seed)
    some = [None, 0, 1, 2, -32768, 32767, 32768, 65536, 65537, -32769, -(1 << 63), (1 << 63) - 1]
    store.create("n", value={"j": "int16", "c": "int64"}, timeline="counter")
    sql = {
        "inner": "SELECT l.k, n.c FROM l JOIN n ON l.j = n.j",
        "nulls": "SELECT l.k, n.c FROM l JOIN n ON l.j <=> n.j",
        "outer": "SELECT l.k, n.c FROM l FULL JOIN n ON l.j = n.j",
        "twice": "SELECT l.k, n.c FROM l JOIN n ON l.j = n.j AND l.k = n.j",
        "union": "SELECT l.k, w.c FROM l JOIN (SELECT j, c FROM n UNION ALL SELECT k, j FROM l) w ON l.j = w.j",
        "anti": "SELECT l.k FROM l WHERE l.j NOT IN (SELECT j FROM n WHERE j IS NOT NULL)",
    }
    with store.transaction() as tx:
        tx.append("l", [{"k": k, "j": rng.choice(some)} for k in range(6)])
        tx.append("n", [{"j": rng.choice(some[:6]), "c": c} for c in range(4)])
    views = [store.view(name, sql=text, policy="incremental") for name, text in sql.items()]
    for c in range(4, 10):
        with store.transaction() as tx:
            tx.upsert("l", [{"k": rng.randrange(6), "j": rng.choice(some)}])
            tx.append("n", [{"j": rng.choice(some[:6]), "c": c}])
        done = store.refresh()
        assert not any(each.error for each in done.values())
        for view in views:
            assert view.verify().is_exact, (view.name, c, rows(view))


def test_only_casts_to_wider_whole_numbers_keep_the_value():
    column = PlanColumn("a", NARROW)
    assert widened_column(Call("cast", (column,), WIDE)) == column
    assert widened_column(column) == column
    for given, to in ((WIDE, NARROW), (NARROW, pa.float64()), (NARROW, pa.string()), (pa.date32(), WIDE)):
        assert widened_column(Call("cast", (PlanColumn("a", given),), to)) is None
    assert widened_column(Call("abs", (column,), NARROW)) is None


def test_narrowed_keys_keep_null_and_drop_what_is_out_of_range():
    keys = Keys(("a", "b"), pl.DataFrame({"a": [1, None, 40_000, -32_768], "b": [1, 2, 3, None]}))
    narrowed = keys.narrowed({"a": PlanColumn("x", NARROW), "b": PlanColumn("y", WIDE)})
    assert narrowed.frame.to_dict(as_series=False) == {"x": [1, None, -32_768], "y": [1, 2, None]}
    assert narrowed.frame.schema == {"x": pl.Int16, "y": pl.Int64}
