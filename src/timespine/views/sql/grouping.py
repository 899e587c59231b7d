"""GROUP BY, aggregates, HAVING and windows of one SELECT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from timespine.views.plan.algebra import Aggregate, Plan, SortKey, WindowNode
from timespine.views.plan.expressions import Expression, PlanColumn
from timespine.views.sql.aggregates import Aggregates, is_aggregate
from timespine.views.sql.reasons import check_args, refuse
from timespine.views.sql.relations import Relation, filtered, with_columns
from timespine.views.sql.scalars import Scalars
from timespine.views.sql.windows import window_call

if TYPE_CHECKING:
    from timespine.views.sql.from_sql import Builder, Named


class SelectGroups:
    """The part of a SELECT after WHERE: it replaces the plan of its relation step by step."""

    def __init__(self, builder: Builder, relation: Relation, node: Any, ctes: Mapping[str, tuple[Plan, Named]]) -> None:
        self._builder = builder
        self._relation = relation
        self._node = node
        self._ctes = ctes
        self._known: dict[str, PlanColumn] = {}
        """The columns of group expressions, aggregates and windows, by their text."""
        self.is_grouped = node.args.get("group") is not None or any(self._aggregates())
        if self.is_grouped:
            self._group()

    def scalar(self, node: Any) -> Expression:
        """Translate an expression of SELECT or HAVING."""
        return Scalars(self._resolve, self._builder.types).translate(node)

    def _resolve(self, node: Any) -> Expression | None:
        known = self._known.get(_text(node))
        if known is not None:
            return known
        if isinstance(node, exp.Subquery):
            return self._builder.subquery_value(node, self._relation, self._ctes)
        if self.is_grouped and isinstance(node, exp.Column):
            raise refuse(node, f"{node.sql('spark')} is neither grouped nor aggregated", "add it to GROUP BY")
        return self._builder.resolve(node, self._relation)

    def _aggregates(self) -> list[Any]:
        """List the aggregates of SELECT and HAVING, each text once."""
        found: dict[str, Any] = {}
        parts = [*self._node.expressions, self._node.args.get("having")]
        for part in parts:
            for each in _walk(part):
                is_whole = not isinstance(each.parent, exp.Filter | exp.Window) and not is_aggregate(each.parent)
                if (is_aggregate(each) or isinstance(each, exp.Filter)) and is_whole:
                    found.setdefault(_text(each), each)
        return list(found.values())

    def _group(self) -> None:
        builder, relation = self._builder, self._relation
        keys: list[tuple[str, Expression]] = []
        for each in self._group_expressions():
            keys.append((_text(each), builder.scalar(each, relation)))
        plan, columns = with_columns(builder.fresh, relation.plan, [each for _, each in keys])
        builder.check_keys(self._node.args.get("group") or self._node, columns, "GROUP BY")
        calls = []
        aggregates = Aggregates(lambda each: builder.scalar(each, relation), builder.types)
        for each in self._aggregates():
            made = aggregates.translate(each)
            column = builder.fresh.column(_text(each).lower(), made.type)
            self._known[_text(each)] = column
            calls.append((column, made))
        for (text, _), column in zip(keys, columns, strict=True):
            self._known[text] = column
        relation.plan = Aggregate(plan, tuple(dict.fromkeys(columns)), tuple(calls))

    def _group_expressions(self) -> list[Any]:
        group = self._node.args.get("group")
        if group is None:
            return []
        check_args(group, {"expressions", "all", "grouping_sets", "cube", "rollup", "totals"})
        for what in ("grouping_sets", "cube", "rollup", "totals"):
            if group.args.get(what):
                raise refuse(group, f"{what.replace('_', ' ').upper()} has no rule", "write a UNION ALL of GROUP BYs")
        if group.args.get("all"):
            items = [each.this if isinstance(each, exp.Alias) else each for each in self._node.expressions]
            return [each for each in items if not each.find(exp.AggFunc)]
        for each in group.expressions:
            if isinstance(each, exp.GroupingSets | exp.Rollup | exp.Cube):
                what = {exp.GroupingSets: "GROUPING SETS", exp.Rollup: "ROLLUP", exp.Cube: "CUBE"}[type(each)]
                raise refuse(group, f"{what} has no rule", "write a UNION ALL of GROUP BYs")
        return list(group.expressions)

    # HAVING and windows.

    def having(self) -> None:
        """Filter the groups."""
        having = self._node.args.get("having")
        if having is None:
            return
        condition = self.scalar(having.this)
        self._relation.plan = filtered(self._relation.plan, [condition])

    def windows(self) -> None:
        """Add the values of window functions, as columns."""
        found: dict[str, Any] = {}
        for each in self._node.expressions:
            for node in _walk(each):
                if isinstance(node, exp.Window):
                    found.setdefault(_text(node), node)
        for text, node in found.items():
            self._known[text] = self._window(node)

    def _window(self, node: Any) -> PlanColumn:
        if not node.args.get("partition_by"):
            raise refuse(
                node, "a window without PARTITION BY is recomputed whole at every change", "add one, or policy 'full'"
            )
        check_args(node, {"this", "partition_by", "order", "spec", "over"})
        parts = [self.scalar(each) for each in node.args["partition_by"]]
        order = node.args["order"].expressions if node.args.get("order") else []
        for each in order:
            check_args(each, {"this", "desc", "nulls_first"})
        wanted = [self.scalar(each.this) for each in order]
        plan, columns = with_columns(self._builder.fresh, self._relation.plan, [*parts, *wanted])
        self._builder.check_keys(node, columns, "a window")
        keys = tuple(sort_key(each, column) for each, column in zip(order, columns[len(parts) :], strict=True))
        made = window_call(node, keys, self.scalar, self._builder.types)
        column = self._builder.fresh.column(_text(node).lower(), made.type)
        self._relation.plan = WindowNode(plan, tuple(dict.fromkeys(columns[: len(parts)])), ((column, made),))
        return column


def sort_key(node: Any, column: PlanColumn) -> SortKey:
    """Return what an item of ORDER BY sorts by; nulls are first when ascending, as in Spark."""
    descending = bool(node.args.get("desc"))
    first = node.args.get("nulls_first")
    return SortKey(column, descending, nulls_last=not first if first is not None else descending)


def _walk(node: Any) -> list[Any]:
    """List the nodes of a tree, without those of subqueries."""
    if node is None:
        return []
    return list(node.walk(prune=lambda each: isinstance(each, exp.Subquery | exp.Query)))


def _text(node: Any) -> str:
    return str(node.sql("spark", comments=False))
