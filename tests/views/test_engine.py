"""The engine in the process: equal to the naive oracle, for random plans and changes, with and without stages."""

import contextlib
import decimal
import random
from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from assertions import examples
from hypothesis import given, settings
from plans import TABLES, changed_plans

import timespine as ts
from timespine.testing.views import Versions, minus
from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.evaluate import Evaluator
from timespine.views.engine.lowering import WEIGHT, Declined, keep_rows
from timespine.views.engine.windows import top_after, top_around, top_rows
from timespine.views.plan.algebra import Aggregate, AggregateCall, Delta, InputScan, SortKey, Top, names_of, nodes_of
from timespine.views.plan.delta import NEW, OLD
from timespine.views.plan.expressions import Call, Literal, PlanColumn


class Memory:
    """A source of rows in memory, with a stage for each aggregate, and with the first rows of each order."""

    def __init__(self, plan, old, new, staged):
        self.tables = {OLD: old, NEW: new}
        self.stages, self.firsts = {}, {}
        if staged:
            first = Evaluator(self)
            before = Memory(plan, old, old, staged=False)
            first = Evaluator(before)
            first.rows(plan, NEW)
            for node in nodes_of(plan):
                if isinstance(node, Aggregate):
                    if node not in first.groups:
                        first.rows(node, NEW)
                    self.stages[node] = first.groups[node][1]
                elif isinstance(node, Top):
                    self.firsts[node] = first.rows(node, NEW)

    def rows(self, scan, version, keys):
        rows = self._frame(scan, self.tables[version][scan.input])
        return rows if keys is None else keys.only(rows)

    def changes(self, scan):
        return self._frame(scan, minus(self.tables[NEW][scan.input], self.tables[OLD][scan.input]))

    def groups(self, node, keys):
        stage = self.stages.get(node)
        return stage if stage is None or keys is None else keys.only(stage)

    def has_groups(self, node):
        return node in self.stages

    def first_rows(self, node):
        return self.firsts.get(node)

    def _frame(self, scan, counts):
        places = [TABLES[scan.input].index(source) for _, source in scan.outputs]
        data = [[*(row[place] for place in places), count] for row, count in counts.items()]
        schema = {**{column.name: pl.Int64 for column in scan.columns}, WEIGHT: pl.Int64}
        return pl.DataFrame(data, schema=schema, orient="row")


def counted(plan, frame):
    """Return consolidated rows with their counts, which are negative for those that go."""
    rows = frame.select([*names_of(plan), WEIGHT]).rows()
    assert len({row[:-1] for row in rows}) == len(rows), "a row occurs once"
    assert all(row[-1] for row in rows), "no row counts 0"
    return Counter({row[:-1]: row[-1] for row in rows})


@settings(max_examples=examples(80), deadline=None)
@given(changed_plans())
def test_rows_and_changes_are_those_of_the_oracle(case):
    plan, old, new = case
    world = Versions(old, new)
    for staged in (False, True):
        engine = Evaluator(Memory(plan, old, new, staged))
        assert counted(plan, engine.changes(plan)) == world.evaluate(Delta(plan))
        assert counted(plan, engine.rows(plan, NEW)) == world.at(plan, NEW)
        assert counted(plan, engine.rows(plan, OLD)) == world.at(plan, OLD)


@settings(max_examples=examples(80), deadline=None)
@given(changed_plans())
def test_stages_that_follow_changes_are_those_of_a_whole_computation(case):
    plan, old, new = case
    memory = Memory(plan, old, new, staged=True)
    engine = Evaluator(memory)
    engine.changes(plan)
    whole = Memory(plan, new, new, staged=True)
    for node, stage in memory.stages.items():
        before, after = engine.groups.get(node, (stage.clear(), stage.clear()))
        kept = Counter(stage.rows())
        kept.subtract(before.rows())
        kept.update(after.rows())
        assert Counter({row: n for row, n in kept.items() if n}) == Counter(whole.stages[node].rows())


def test_a_condition_on_rows_from_several_places_keeps_all_that_satisfy_it():
    """A comparison of a constant with a CASE, over rows in several chunks, as a union gives them."""
    column = PlanColumn("x", pa.int64())
    zero, one = Literal(0, pa.int64()), Literal(1, pa.int64())
    case = Call("case", (Call("is null", (column,), pa.bool_()), zero, column), pa.int64())
    rows = pl.concat([pl.DataFrame({"x": [1, 2]}), pl.DataFrame({"x": [None] * 3}, schema={"x": pl.Int64})])
    kept = keep_rows(rows, Call(">", (one, case), pa.bool_()))
    assert kept["x"].to_list() == [None] * 3


def test_first_rows_are_kept_up_from_what_is_stored_until_rows_behind_them_are_needed():
    x = PlanColumn("x#1", pa.int64())
    top = Top(InputScan("t", ((x, "x"),)), (SortKey(x, descending=False, nulls_last=False),), 3)

    def frame(counts):
        return pl.DataFrame(
            {"x#1": list(counts), WEIGHT: list(counts.values())}, schema={"x#1": pl.Int64, WEIGHT: pl.Int64}
        )

    def after(before, changed):
        got = top_after(top, frame(before), frame(changed))
        return None if got is None else dict(got.rows())

    full = {1: 1, 5: 2}
    assert after(full, {9: 1, 8: -1}) == full, "what is behind does not matter"
    assert after(full, {3: 1}) == {1: 1, 3: 1, 5: 1}
    assert after(full, {1: -1, 2: 4, 5: -7}) == {2: 3}
    assert after(full, {1: -1, 2: 1}) == {2: 1, 5: 2}
    assert after(full, {1: -1, 5: 1}) == {5: 3}
    assert after(full, {1: -1}) is None, "a row behind comes forward"
    assert after(full, {1: -1, 6: 1}) is None, "there may be one before it"
    assert after({1: 1, 5: 1}, {1: -1, 6: 4}) == {5: 1, 6: 2}, "these were all"


@pytest.mark.parametrize("seed", range(200))
def test_first_rows_before_follow_from_all_rows_after_and_what_changed(seed):
    rng = random.Random(seed)
    x = PlanColumn("x#1", pa.int64())
    top = Top(
        InputScan("t", ((x, "x"),)), (SortKey(x, descending=rng.random() < 0.5, nulls_last=False),), rng.randrange(5)
    )

    def frame(counts):
        kept = {value: count for value, count in counts.items() if count}
        schema = {"x#1": pl.Int64, WEIGHT: pl.Int64}
        return pl.DataFrame({"x#1": list(kept), WEIGHT: list(kept.values())}, schema=schema)

    old, new = ({value: rng.choice((0, 0, 1, 2, 3)) for value in (None, *range(8))} for _ in range(2))
    changed = {value: new[value] - old[value] for value in old}
    before, after = top_around(top, frame(new), frame(changed))
    assert (before.rows(), after.rows()) == (top_rows(top, frame(old)).rows(), top_rows(top, frame(new)).rows())


def decimal_sum(values, function="sum", precision=38):
    kind = pa.decimal128(precision, 0)
    x, made = PlanColumn("x", kind), PlanColumn("s", pa.decimal128(38, 0))
    scan = InputScan("t", ((x, "x"),))
    grouping = Grouping(Aggregate(scan, (), ((made, AggregateCall(function, x, pa.decimal128(38, 0))),)))
    rows = pl.DataFrame({"x": values, WEIGHT: [1] * len(values)}, schema={"x": pl.Decimal(38, 0), WEIGHT: pl.Int64})
    return grouping, rows


@pytest.mark.parametrize("function", ["sum", "sum distinct"])
def test_a_sum_of_decimals_with_more_digits_than_its_type_is_declined(function):
    most = decimal.Decimal(10**38 - 1)
    grouping, rows = decimal_sum([most, decimal.Decimal(1)], function)
    with pytest.raises(Declined, match="too large"):
        grouping.accumulate(rows)
    grouping, rows = decimal_sum([decimal.Decimal(10**37), decimal.Decimal(-7)], function)
    assert grouping.show(grouping.accumulate(rows))["s"].item() == 10**37 - 7


def test_a_sum_of_decimals_that_outgrows_its_type_by_changes_is_declined():
    grouping, rows = decimal_sum([decimal.Decimal(6 * 10**37)])
    old = grouping.accumulate(rows)
    with pytest.raises(Declined, match="too large"):
        grouping.fold(old, old, old.clear())


def test_spreads_of_numbers_whose_squares_are_no_doubles_are_declined():
    x = PlanColumn("x", pa.float64())
    node = Aggregate(
        InputScan("t", ((x, "x"),)), (), ((PlanColumn("s", pa.float64()), AggregateCall("var_pop", x, pa.float64())),)
    )
    for value, is_declined in ((1e200, True), (1e100, False)):
        rows = pl.DataFrame({"x": [value, value], WEIGHT: [1, 1]})
        with pytest.raises(Declined) if is_declined else contextlib.nullcontext():
            assert Grouping(node).accumulate(rows)["value0"].item() == 0.0


def test_pairs_of_rows_that_never_met_are_not_computed(tmp_path):
    """Both sides change at once: the new row of one would meet the old row of the other, and divide by zero."""
    store = ts.open(tmp_path / "store")
    for name, v in (("a", 1), ("b", 5)):
        store.create(name, key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
        store[name].append([{"k": 1, "v": v}])
    view = store.view("halves", sql="SELECT a.k, 12 / (a.v - b.v) AS h FROM a JOIN b ON a.k = b.k")
    grouped = store.view("sums", sql="SELECT a.k, sum(12 / (a.v - b.v)) AS h FROM a JOIN b ON a.k = b.k GROUP BY a.k")
    kept = store.view("kept", sql="SELECT k, 12 / (v - 5) AS h FROM a WHERE k IN (SELECT v FROM b)")
    with store.transaction() as tx:
        tx.upsert("a", [{"k": 1, "v": 5}])
        tx.upsert("b", [{"k": 1, "v": 1}])
    with pytest.raises(ts.UsageError, match="division by zero"):
        kept.refresh()
    assert [store.refresh([name])[name].changes for name in ("halves", "sums")] == [2, 2]
    assert view.snapshot().to_pylist() == grouped.snapshot().to_pylist() == [{"k": 1, "h": 3.0}]
    store.close()


def test_a_group_that_changes_and_looks_the_same_is_not_counted_twice_above(tmp_path):
    """Its terms cancel out: the rows before must be asked for the same keys as the rows after."""
    sql = "SELECT g, row_number() OVER (PARTITION BY g ORDER BY g) AS n FROM a GROUP BY g"
    with ts.open(tmp_path / "store") as store:
        store.create("a", key={"k": "int64"}, value={"g": "int64"}, timeline="counter")
        store["a"].append([{"k": 1, "g": 1}])
        view = store.view("numbered", sql=sql)
        store["a"].append([{"k": 2, "g": 1}])
        assert view.refresh().changes == 0
        assert view.snapshot().to_pylist() == [{"g": 1, "n": 1}]
