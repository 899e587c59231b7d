"""Planted bugs in views: each breaks one thing, and the comparison with the oracle and with DuckDB notices."""

import random
from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from plans import TABLES
from shapes import SHAPES
from test_engine import Memory, counted
from test_view_histories import answer_over, plain

from timespine.testing.views import Versions, minus
from timespine.views.engine import accumulators, lowering
from timespine.views.engine.evaluate import Evaluator
from timespine.views.plan import delta
from timespine.views.plan.algebra import Aggregate, At, Delta, Join, Project, Restrict, Union
from timespine.views.plan.delta import NEW, OLD
from timespine.views.sql import subqueries
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import parse_query

INT = pa.int64()
INPUTS = {name: pa.schema([("k", INT), ("g", INT), ("v", INT)]) for name in ("a", "b")}
NAMES = [
    *("inner", "left", "full", "sum", "total", "distinct count", "groups of groups", "except", "intersect all"),
    *("exists", "not exists", "not in", "correlated", "correlated count", "having scalar", "top groups", "rank"),
]
QUOTIENTS = ["average", "quotients", "share of a count", "ratio", "quotients of a union", "quotients of a join"]


def table(rng):
    cell = lambda limit: None if rng.random() < 0.2 else rng.randrange(limit)  # noqa: E731
    return Counter((cell(4), cell(3), cell(5)) for _ in range(rng.randrange(6)))


def changed(rng, old):
    new = Counter(old)
    new.update(table(rng))
    for row in list(new)[:2]:
        new[row] -= 1
    return Counter({row: count for row, count in new.items() if count > 0})


def is_wrong():
    """Whether some query is answered wrongly: whole, or after a change."""
    rng = random.Random(1)
    for name in [*NAMES, "min max", *QUOTIENTS]:
        sql = SHAPES[name].replace(", min(s) AS t", "")
        plan, _ = plan_of(parse_query(sql), INPUTS)
        for _ in range(6):
            old = {each: table(rng) for each in INPUTS}
            new = {each: changed(rng, old[each]) for each in INPUTS}
            world = Versions(old, new, TABLES)
            tables = {
                each: pa.table(
                    {column: pa.array([row[i] for row in new[each].elements()], INT) for i, column in enumerate("kgv")}
                )
                for each in INPUTS
            }
            told = Counter()
            for each, count in world.at(plan, NEW).items():
                told[tuple(map(plain, each))] += count
            if told != answer_over(tables, sql):
                return True
            wanted = minus(world.at(plan, NEW), world.at(plan, OLD))
            if world.evaluate(Delta(plan)) != wanted:
                return True
            for staged in (False, True):
                if counted(plan, Evaluator(Memory(plan, old, new, staged)).changes(plan)) != wanted:
                    return True
    return False


def test_without_a_bug_nothing_is_wrong():
    assert not is_wrong()


def a_term_reads_the_new_rows_where_the_old_belong(patch):
    rule = delta._join_rule

    def wrong(node):
        made = rule(node)
        if node.kind != "inner":
            return made
        return Union(
            (Join("inner", Delta(node.left), At(node.right, NEW), node.keys, node.condition), made.children[1])
        )

    patch.setattr(delta, "_join_rule", wrong)


def rows_whose_match_flips_are_forgotten(patch):
    rule = delta._join_rule
    patch.setattr(delta, "_join_rule", lambda node: rule(node) if node.kind == "inner" else rule(node).children[0])


def a_row_that_changes_sides_cancels_out(patch):
    def wrong(node, names):
        if not hasattr(node, "left"):
            return Delta(node.child)
        return Union(
            (
                Delta(node.left),
                Project(Delta(node.right), tuple(zip(node.left.columns, node.right.columns, strict=True))),
            )
        )

    patch.setattr(delta, "_changes_below", wrong)


def groups_are_computed_again_from_the_old_rows(patch):
    whole = delta._recompute_touched

    def wrong(node, names):
        if not isinstance(node, Aggregate):
            return whole(node, names)
        over = Restrict(At(node.child, OLD), names, Delta(node.child), names)
        return Union((delta.rebuild(node, (over,)), *whole(node, names).children[1:]))

    patch.setattr(delta, "_recompute_touched", wrong)


def a_sum_forgets_that_it_had_only_nulls(patch):
    shown = accumulators._shown
    patch.setattr(
        accumulators,
        "_shown",
        lambda call, place: pl.col(f"sum{place}") if call.function == "sum" else shown(call, place),
    )


def a_retracted_extreme_stays(patch):
    fold = accumulators.Grouping.fold

    def wrong(self, old, changes, retracted):
        return fold(self, old, changes, retracted.clear() if self.keys else retracted.clear(1))

    patch.setattr(accumulators.Grouping, "fold", wrong)


def an_empty_group_stays(patch):
    fold = accumulators.Grouping.fold

    def wrong(self, old, changes, retracted):
        new, again = fold(self, old, changes, retracted)
        gone = old.join(new, on=self.keys, how="anti", nulls_equal=True) if self.keys else new.clear()
        return pl.concat([new, gone.select(new.columns)]), again

    patch.setattr(accumulators.Grouping, "fold", wrong)


def not_in_is_two_valued(patch):
    def wrong(builder, node, relation, ctes):
        plan, value, _ = subqueries._one_column(builder, node, relation, ctes)
        wanted = builder.scalar(node.this, relation)
        equal = subqueries._equal(node, wanted, value)
        relation.plan = subqueries.joined(builder.fresh, "anti", relation.plan, plan, [equal])

    patch.setattr(subqueries, "_not_in", wrong)


def a_count_over_no_rows_is_lost(patch):
    patch.setattr(subqueries, "_rejects_null", lambda *_: True)


def one_value_for_all_rows_is_divided_by_through_its_reciprocal(patch):
    patch.setattr(lowering, "each_row", lambda operand: operand)
    patch.setattr(accumulators, "each_row", lambda operand: operand)


BUGS = [
    one_value_for_all_rows_is_divided_by_through_its_reciprocal,
    a_term_reads_the_new_rows_where_the_old_belong,
    rows_whose_match_flips_are_forgotten,
    a_row_that_changes_sides_cancels_out,
    groups_are_computed_again_from_the_old_rows,
    a_sum_forgets_that_it_had_only_nulls,
    a_retracted_extreme_stays,
    an_empty_group_stays,
    not_in_is_two_valued,
    a_count_over_no_rows_is_lost,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(bug, monkeypatch):
    bug(monkeypatch)
    assert is_wrong()
