"""Appends of more rows than are sorted together: sorted part by part, and otherwise as any other append."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_value_cases import now, parts_of
from memory_store import QUICK, MemoryStore, Script, counted

from timespine.client.write import prepare, stage_rows
from timespine.columnar.write import run_writer, upload
from timespine.columnar.write.update_checks import is_ascending
from timespine.config import Config
from timespine.errors import Determinate, Indeterminate, UpperMismatch
from timespine.testing.unreliable import Fault

LARGE = Config(
    part_bytes=2000,
    sort_bytes=3000,
    row_group_rows=16,
    inline_part_bytes=1,
    run_parts=2,
    retry_pause_ms=1,
    storage_attempts=3,
)
"""A few hundred rows are more than are sorted together."""

ROWS = [{"k": (n * 7919) % 400, "v": "value" * (n % 5)} for n in range(800)]
"""In no order, and each twice."""

DOORS = {
    "free": {},
    "at": {"at": 7},
    "upper": {"upper": 9},
    "expected": {"expected_upper": 0},
}
"""Ways to say where an append stands."""


def create(store, **options):
    return store.create("orders", key={"k": "int64"}, value={"v": "string"}, timeline="counter", **options)


def expected(rows):
    return Counter((row["k"], row["v"]) for row in rows)


def runs_of(collection):
    """The rows of each run of the newest state, read by nothing but pyarrow."""
    handle = collection._handle
    state = handle.state()
    parts, blob = handle.parts(state), handle.context.blob
    return [
        pa.concat_tables(pq.read_table(pa.BufferReader(blob.get(part.key))) for part in parts.leaves(run.parts))
        for batch in state.hollow_batches()
        for run in batch.runs
    ]


def check_runs(collection):
    """Each run is sorted and consolidated; and what the state says of it is true."""
    handle = collection._handle
    state = handle.state()
    _, schema = handle.schema(state)
    runs = runs_of(collection)
    for run in runs:
        assert is_ascending(run, (*schema.order_names, *schema.time_names))
    assert sum(run.num_rows for run in runs) == sum(batch.len for batch in state.hollow_batches())
    return runs


@pytest.mark.parametrize("door", DOORS)
def test_what_is_sorted_part_by_part_is_what_was_appended(place, door):
    orders = create(place.open(config=LARGE))
    committed = orders.append(ROWS, **DOORS[door])
    assert now(orders) == expected(ROWS)
    runs = check_runs(orders)
    assert len(runs) > 1
    assert committed.rows == sum(run.num_rows for run in runs)
    assert len(parts_of(place, orders)) > 4


def test_rows_with_times_of_their_own_are_sorted_part_by_part(place):
    orders = create(place.open(config=LARGE))
    orders.append([{**row, "_time": 3 + n % 3} for n, row in enumerate(ROWS)])
    assert now(orders) == expected(ROWS)
    check_runs(orders)
    assert orders.snapshot(as_of=3).count() == len([n for n in range(len(ROWS)) if n % 3 == 0])


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["", "a", "b" * 50]), st.sampled_from([-1, 1, 2]))))
@settings(max_examples=40, deadline=None)
def test_rows_that_cancel_or_repeat_in_other_parts_count_as_they_should(given_rows):
    config = Config(part_bytes=100, sort_bytes=200, inline_part_bytes=1, run_parts=2)
    rows = [{"k": k, "v": v, "_diff": diff} for k, v, diff in given_rows]
    wanted = Counter()
    for k, v, diff in given_rows:
        wanted[k, v] += diff
    with MemoryStore() as place:
        orders = create(place.open(config=config))
        orders.append(rows)
        net = Counter()
        for run in check_runs(orders):
            for row in run.to_pylist():
                net[row["k"], row["v"]] += row["_diff"]
        assert {key: diff for key, diff in net.items() if diff} == {key: diff for key, diff in wanted.items() if diff}


def test_no_more_than_a_part_is_sorted_at_once(place, monkeypatch):
    whole, pieces = [], []
    real = upload.consolidate
    monkeypatch.setattr(prepare, "consolidate", lambda table, order: (whole.append(table), real(table, order))[1])
    monkeypatch.setattr(
        upload, "consolidate", lambda table, order: (pieces.append(table.nbytes), real(table, order))[1]
    )
    orders = create(place.open(config=LARGE))
    orders.append(ROWS)
    assert whole == []
    assert len(pieces) > 4
    assert max(pieces) <= LARGE.part_bytes * 17 // 16


def test_a_small_append_is_sorted_once_and_needs_no_writer(place, monkeypatch):
    sorts = []
    real = prepare.consolidate
    monkeypatch.setattr(prepare, "consolidate", lambda table, order: (sorts.append(table), real(table, order))[1])
    monkeypatch.setattr(stage_rows, "RunWriter", None)
    monkeypatch.setattr(stage_rows, "UploadTarget", None)
    orders = create(place.open(config=QUICK))
    orders.append(ROWS[:50])
    assert len(sorts) == 1


def test_an_append_of_one_part_is_sorted_once_and_not_looked_at_again(place, monkeypatch):
    def refuse(*_):
        raise AssertionError("sorted again")

    for module in (upload, run_writer):
        monkeypatch.setattr(module, "consolidate", refuse)
    orders = create(place.open(config=Config(inline_part_bytes=1)))
    orders.append(ROWS)
    assert now(orders) == expected(ROWS)
    assert len(check_runs(orders)) == 1


def test_rows_that_come_in_order_are_one_run(place):
    orders = create(place.open(config=LARGE))
    rows = [{"k": n, "v": "value"} for n in range(800)]
    assert orders.append(rows).rows == 800
    assert len(check_runs(orders)) == 1
    assert any(part.hollow for part in orders._handle.state().parts())


def test_rows_that_all_cancel_are_no_rows(place):
    orders = create(place.open(config=LARGE))
    rows = [{"k": 1, "v": "value", "_diff": 1 if n % 2 else -1} for n in range(400)]
    assert orders.append(rows).rows == 0
    assert parts_of(place, orders) == []
    assert now(orders) == {}


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.DETERMINATE, Determinate), (Fault.INDETERMINATE_DONE, Indeterminate)]
)
@pytest.mark.parametrize("kind", ["/p", "/h"])
def test_what_was_put_before_a_put_failed_is_deleted(place, kind, fault, error):
    script = Script()
    orders = create(place.open(script=script, config=LARGE))
    script.add("put", fault, key=kind, skip=1, times=99)
    rows = [{"k": n, "v": "value" * 5} for n in range(800)]
    with pytest.raises(error):
        orders.append(rows)
    assert parts_of(place, orders) == []
    script.rules.clear()
    orders.append(rows)
    assert orders.count() == 800


def test_what_was_refused_is_deleted_and_what_may_be_committed_is_not(place):
    script = Script()
    orders = create(place.open(script=script, config=LARGE))
    with pytest.raises(UpperMismatch):
        orders.append(ROWS, expected_upper=5)
    assert parts_of(place, orders) == []
    script.add("compare_and_set", Fault.INDETERMINATE_DONE, key=orders.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=3)
    with pytest.raises(Indeterminate):
        orders.append(ROWS)
    assert parts_of(place, orders) != []


def test_rows_made_again_under_a_newer_schema_are_still_taken_for_unsorted(place):
    script = Script()
    store, other = place.open(script=script, config=LARGE), place.open(config=LARGE)
    orders = store.create("orders", key={"k": "int64"}, value={"v": "string", "w": "int64"}, timeline="counter")
    # Without the dropped column the rows take less than is sorted together: they are still in no order.
    script.add("compare_and_set", Fault.NONE, key=orders.id, hook=lambda: other["orders"].evolve(drop=["w"]))
    rows = [{"k": (n * 7) % 90, "v": "x", "w": None} for n in range(90)]
    table = pa.table({name: [row[name] for row in rows] for name in ("k", "v", "w")}, schema=orders.schema.arrow)
    assert table.nbytes + 16 * len(rows) > LARGE.sort_bytes > table.drop_columns("w").nbytes + 16 * len(rows)
    orders.append(table)
    assert script.is_done
    assert counted(orders.snapshot(multiplicity="column").to_pylist(), "k", "v") == expected(rows)
    check_runs(orders)
