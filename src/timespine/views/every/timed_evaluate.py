"""How a plan changed at every time between two refreshes: the same algebra, with a column of times beside the counts.

With oL, oR for the rows as of the last refresh, and dL, dR for timed changes since then:

    linear      the operator on the changes; times stay
    join        d(L x R) = dL x oR + oL x dR + dL x dR           at the later of the two times
    aggregate   by accumulators: those of a group as of t are the old ones plus the sum of its changes up to t
    the others  the touched keys, as of each time that touches them (`timed_rows`)

So only rows as of the last refresh are read, and changes with their times. Stages get their net change, at the last
time.
"""

from __future__ import annotations

from typing import Protocol

import polars as pl
import pyarrow as pa

from timespine.columnar.schema.schema import TIME
from timespine.views.engine.accumulators import (
    ADD,
    COUNT,
    Grouping,
    decline_large,
    largest_total,
    refuse_negative_counts,
)
from timespine.views.engine.evaluate import Evaluator, Keys, Source, join_rows, set_operation
from timespine.views.engine.explode_rows import explode_rows
from timespine.views.engine.lowering import (
    POLARS_FAILURES,
    WEIGHT,
    Declined,
    declined_by,
    evaluate_columns,
    keep_rows,
    memory_type,
)
from timespine.views.engine.windows import top_rows, window_rows
from timespine.views.every.timed_rows import AT, differences_along, last_times, rows_at, sum_timed, touched_times
from timespine.views.plan.algebra import (
    Aggregate,
    Explode,
    Filter,
    InputScan,
    Join,
    PlanNode,
    Project,
    SetOperation,
    Top,
    Union,
    WindowNode,
    names_of,
)
from timespine.views.plan.delta import OLD
from timespine.views.plan.expressions import PlanColumn

_AT = PlanColumn(AT, pa.int64())
_AT_RIGHT = PlanColumn(f"{AT}_right", pa.int64())


class TimedSource(Source, Protocol):
    """Where rows come from, and timed changes."""

    def timed_changes(self, scan: InputScan) -> pl.DataFrame:
        """Read the changes of an input with their times."""
        ...


class TimedEvaluator:
    """The evaluation of one refresh at every time."""

    def __init__(self, source: TimedSource, before: int) -> None:
        self._source = source
        self._before = before
        self._old = Evaluator(source)
        self._changes: dict[PlanNode, pl.DataFrame] = {}
        self.groups: dict[Aggregate, tuple[pl.DataFrame, pl.DataFrame]] = {}
        """The groups of aggregates that changed, as of the last refresh and as of the last time."""

    def changes(self, plan: PlanNode) -> pl.DataFrame:
        """Evaluate the timed changes of a plan."""
        if plan not in self._changes:
            self._changes[plan] = sum_timed(self._changed(plan).select([*names_of(plan), TIME, WEIGHT]))
        return self._changes[plan]

    def _changed(self, plan: PlanNode) -> pl.DataFrame:
        if isinstance(plan, InputScan):
            return self._source.timed_changes(plan)
        if isinstance(plan, Filter):
            return keep_rows(self.changes(plan.child), plan.condition)
        if isinstance(plan, Project):
            outputs = [(column.name, each) for column, each in plan.outputs]
            return evaluate_columns(self.changes(plan.child), outputs, [TIME, WEIGHT])
        if isinstance(plan, Explode):
            return explode_rows(plan, self.changes(plan.child), [TIME, WEIGHT])
        if isinstance(plan, Union):
            names = [*names_of(plan), TIME, WEIGHT]
            return pl.concat([self.changes(child).select(names) for child in plan.children])
        if isinstance(plan, Join) and plan.kind == "inner":
            return self._join(plan)
        if isinstance(plan, Aggregate):
            return self._aggregate(plan)
        return self._by_key(plan)

    def _rows(self, plan: PlanNode, keys: Keys | None) -> pl.DataFrame:
        """Evaluate the rows of a plan as of the last refresh, at least those of some keys."""
        return self._old.rows_of(plan, OLD, keys)

    # Joins.

    def _join(self, plan: Join) -> pl.DataFrame:
        left, right = self.changes(plan.left), self.changes(plan.right)
        here = tuple(one.name for one, _ in plan.keys)
        there = tuple(two.name for _, two in plan.keys)
        parts = []
        if len(left):
            parts.append(self._pairs(plan, left, self._rows(plan.right, _keys(left, here, there))))
        if len(right):
            parts.append(self._pairs(plan, self._rows(plan.left, _keys(right, there, here)), right))
        if len(left) and len(right):
            parts.append(self._pairs(plan, left, right))
        return pl.concat(parts) if parts else _empty(plan)

    def _pairs(self, plan: Join, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Join two relations; the time of a pair is the later of those that its rows have."""
        one, two = PlanColumn("_time1", pa.int64()), PlanColumn("_time2", pa.int64())
        sides = []
        for rows, name in ((left, one.name), (right, two.name)):
            time = pl.col(TIME) if TIME in rows.columns else pl.lit(self._before, pl.Int64)
            sides.append(rows.with_columns(time.alias(name)).drop(TIME, strict=False))
        here, there = _columns((*plan.left.columns, one)), _columns((*plan.right.columns, two))
        timed = Join("inner", here, there, plan.keys, plan.condition)
        got = join_rows(timed, *sides)
        return got.with_columns(pl.max_horizontal(one.name, two.name).alias(TIME)).drop(one.name, two.name)

    # Aggregates.

    def _aggregate(self, node: Aggregate) -> pl.DataFrame:
        changed = self.changes(node.child)
        if not len(changed):
            return _empty(node)
        grouping = Grouping(node)
        if all(each.kind == ADD for each in grouping.accumulators):
            old = self._stored(node, grouping, changed)
            if old is not None:
                return self._running(node, grouping, changed, old)
        return self._regrouped(node, grouping, changed)

    def _stored(self, node: Aggregate, grouping: Grouping, changed: pl.DataFrame) -> pl.DataFrame | None:
        """Return the groups that changes touch as the stage has them; None if there is no stage."""
        keys = Keys(tuple(grouping.keys), changed.select(grouping.keys).unique()) if grouping.keys else None
        old = self._source.groups(node, keys)
        return old if old is None or keys is None else keys.only(old)

    def _running(self, node: Aggregate, grouping: Grouping, changed: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
        """Add changes to accumulators along the times of each group."""
        timed = Grouping(Aggregate(node.child, (*node.keys, PlanColumn(TIME, pa.int64())), node.calls))
        steps = timed.accumulate(changed)
        start = old.with_columns(pl.lit(self._before, pl.Int64).alias(TIME)).select(steps.columns)
        along = pl.concat([start, steps]).sort(TIME)
        names = [*(each.name for each in grouping.accumulators), COUNT]
        sums = [_running_sum(name, along.schema[name], grouping.keys) for name in names]
        for each in grouping.accumulators:
            if pa.types.is_decimal(each.type):
                decline_large(largest_total(along, grouping.keys, pl.col(each.name)), each.call)
        try:
            states = along.with_columns(sums).rename({TIME: AT})
        except POLARS_FAILURES as error:
            raise Declined(f"a sum is too large for its type: {declined_by(error)}") from error
        grouping.refuse_negative_counts(states)
        pairs = touched_times([(changed, {name: name for name in grouping.keys})], grouping.keys, self._before)
        last = states.join(last_times(pairs), on=[*grouping.keys, AT], how="semi", nulls_equal=True)
        if grouping.keys:
            states, last = (each.filter(pl.col(COUNT) != 0) for each in (states, last))
        self.groups[node] = (old, last.select(grouping.names))
        return self._differences(node, states, pairs)

    def _regrouped(self, node: Aggregate, grouping: Grouping, changed: pl.DataFrame) -> pl.DataFrame:
        """Compute the touched groups again, as of each time that touches them."""
        own = {name: name for name in grouping.keys}
        pairs = touched_times([(changed, own)], grouping.keys, self._before)
        members = rows_at(self._of_keys(node.child, pairs, own), changed, pairs, own)
        timed = Grouping(Aggregate(node.child, (*node.keys, _AT), node.calls))
        states = timed.accumulate(members)
        grouping.refuse_negative_counts(states)
        if not grouping.keys:
            missing = pairs.select(AT).join(states, on=AT, how="anti")
            none = grouping.accumulate(members.drop(AT).clear())
            states = pl.concat([states, none.join(missing, how="cross").select(states.columns)])
        last = states.join(last_times(pairs), on=[*grouping.keys, AT], how="semi", nulls_equal=True)
        first = states.filter(pl.col(AT) == self._before)
        self.groups[node] = (first.select(grouping.names), last.select(grouping.names))
        return self._differences(node, states, pairs)

    def _differences(self, node: Aggregate, states: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
        timed = Grouping(Aggregate(node.child, (*node.keys, _AT), node.calls))
        return differences_along(timed.show(states), pairs, [column.name for column in node.keys], self._before)

    # What treats the rows of each key apart.

    def _by_key(self, plan: PlanNode) -> pl.DataFrame:
        """Evaluate a node for its touched keys, as of each time that touches them."""
        sides = _sides(plan)
        changes = [(self.changes(child), own) for child, own in sides]
        if not any(len(each) for each, _ in changes):
            return _empty(plan)
        names = list(sides[0][1])
        pairs = touched_times(changes, names, self._before)
        parts = [
            rows_at(self._of_keys(child, pairs, own), each, pairs, own)
            for (child, own), (each, _) in zip(sides, changes, strict=True)
        ]
        for part in parts:
            refuse_negative_counts(plan, part[WEIGHT])
        return differences_along(_apply(plan, parts), pairs, names, self._before)

    def _of_keys(self, child: PlanNode, pairs: pl.DataFrame, own: dict[str, str]) -> pl.DataFrame:
        """Read the rows of touched keys as of the last refresh."""
        if not own:
            return self._rows(child, None)
        wanted = pairs.select(list(own)).unique().rename(own)
        return self._rows(child, Keys(tuple(own.values()), wanted))


def _columns(columns: tuple[PlanColumn, ...]) -> PlanNode:
    """Return a relation with some columns, to stand below a node that is applied to frames."""
    return InputScan("", tuple((each, each.name) for each in columns))


def _sides(plan: PlanNode) -> list[tuple[PlanNode, dict[str, str]]]:
    """Return the children of a node, each with the names of the key columns, by those in the result."""
    if isinstance(plan, WindowNode):
        return [(plan.child, {column.name: column.name for column in plan.partition})]
    if isinstance(plan, Top):
        return [(plan.child, {})]
    if isinstance(plan, SetOperation):
        left, right = names_of(plan.left), names_of(plan.right)
        return [(plan.left, dict(zip(left, left, strict=True))), (plan.right, dict(zip(left, right, strict=True)))]
    assert isinstance(plan, Join)
    here = {one.name: one.name for one, _ in plan.keys}
    there = {one.name: two.name for one, two in plan.keys}
    if len(here) < len(plan.keys) or len(set(there.values())) < len(plan.keys):
        here, there = {}, {}  # a column is compared with two others: look at all rows
    return [(plan.left, here), (plan.right, there)]


def _apply(plan: PlanNode, parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Apply a node to rows that are labelled with times, as if the time were part of the key."""
    if isinstance(plan, WindowNode):
        timed = WindowNode(_columns((*plan.child.columns, _AT)), (*plan.partition, _AT), plan.calls)
        return window_rows(timed, parts[0])
    if isinstance(plan, Top):
        tops = [top_rows(plan, each) for each in parts[0].partition_by(AT)]
        return pl.concat(tops) if tops else parts[0]
    if isinstance(plan, SetOperation):
        names = dict(zip(names_of(plan.right), names_of(plan.left), strict=True))
        return set_operation(plan.kind, parts[0], parts[1].rename(names).select(parts[0].columns))
    assert isinstance(plan, Join)
    timed_join = Join(plan.kind, plan.left, plan.right, (*plan.keys, (_AT, _AT_RIGHT)), plan.condition)
    return join_rows(timed_join, parts[0], parts[1].rename({AT: _AT_RIGHT.name}))


def _keys(rows: pl.DataFrame, names: tuple[str, ...], wanted: tuple[str, ...]) -> Keys | None:
    """Return the restriction of the other side of a join to the keys of rows; None if it has to be read whole."""
    if not names or len(set(names)) < len(names) or len(set(wanted)) < len(wanted):
        return None
    frame = rows.select(names).rename(dict(zip(names, wanted, strict=True))).drop_nulls().unique()
    return Keys(wanted, frame)


def _running_sum(name: str, kind: pl.DataType, keys: list[str]) -> pl.Expr:
    """Sum a column along the times of each group. Polars wraps integers around, so they are summed with more bits."""
    value = pl.col(name).fill_null(0)
    total = (value.cast(pl.Int128) if kind.is_integer() else value).cum_sum()
    total = total.over(keys) if keys else total
    return total.cast(kind, strict=True).alias(name) if kind.is_integer() else total.alias(name)


def _empty(plan: PlanNode) -> pl.DataFrame:
    types = {each.name: memory_type(each.type) for each in plan.columns}
    return pl.DataFrame(schema={**types, TIME: pl.Int64, WEIGHT: pl.Int64})
