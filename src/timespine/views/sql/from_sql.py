"""A qualified query as a plan: FROM and WHERE, GROUP BY, HAVING, windows, SELECT, set operations, ORDER BY with LIMIT.

Reasons for refusals are collected over the whole query. `subqueries` turns EXISTS, IN and scalar subqueries into joins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from timespine.errors import UnsupportedView
from timespine.views.plan.algebra import Aggregate, InputScan, PlanNode, Project, SetOperation, SortKey, Top, Union
from timespine.views.plan.expressions import Expression, PlanColumn
from timespine.views.sql.functions import NotListed
from timespine.views.sql.grouping import SelectGroups, sort_key
from timespine.views.sql.parse import Query, output_names, qualified
from timespine.views.sql.prune_columns import prune_columns
from timespine.views.sql.refusal_reasons import NoRule, Reason, check_args, refuse
from timespine.views.sql.relations import Fresh, Relation, aligned, combine, joined, outer_join
from timespine.views.sql.scalars import Scalars, and_parts
from timespine.views.sql.spark_types import SparkTypes
from timespine.views.sql.subqueries import apply_condition, is_subquery_condition, scalar_subquery

Named = list[tuple[str, PlanColumn]]
"""The columns of a query with their names, in order."""

LIMIT_MAX = 100_000
"""Most rows of ORDER BY ... LIMIT."""

_REFUSED = {
    "laterals": ("LATERAL VIEW has no rule", "store the exploded rows in a collection"),
    "pivots": ("PIVOT has no rule", "write CASE WHEN inside of aggregates"),
    "offset": ("OFFSET has no rule", "number the rows with row_number() and filter by it"),
    "qualify": ("QUALIFY has no rule", "filter by the window function in an outer SELECT"),
    "windows": ("named windows have no rule", "write the window after OVER"),
    "connect": ("CONNECT BY has no rule", "store the hierarchy in a collection"),
    "match": ("MATCH_RECOGNIZE has no rule", "use policy 'full'"),
}


_SELECT_ARGS = {
    "expressions",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "distinct",
    "with_",
    "hint",
}
# Hints say how to compute, and not what.
_QUERY_ARGS: dict[type, set[str]] = {exp.Subquery: {"this", "alias"}, exp.Select: {*_SELECT_ARGS, *_REFUSED}}
_SET_ARGS = {"this", "expression", "distinct", "with_", "order", "limit", "by_name"}


def plan_of(query: Query, inputs: Mapping[str, pa.Schema], types: SparkTypes | None = None) -> tuple[PlanNode, Named]:
    """Return the plan of a query, and its columns under their names as written; raise UnsupportedView with reasons.

    `types` has the types of what only Spark computes; without it, that is refused.
    """
    builder = Builder(inputs, types)
    tree = qualified(query, inputs)
    try:
        plan, named = builder.query(tree, {}, None)
    except NoRule as refused:
        builder.reasons.append(refused.reason)
        named = []
    if builder.reasons:
        found = tuple(dict.fromkeys(builder.reasons))
        raise UnsupportedView("there is no rule for parts of this query", found)
    names = output_names(query, inputs, [name for name, _ in named])
    return prune_columns(plan), list(zip(names, (column for _, column in named), strict=True))


class Builder:
    """The translation of one query and its subqueries."""

    def __init__(self, inputs: Mapping[str, pa.Schema], types: SparkTypes | None = None) -> None:
        self.fresh = Fresh()
        self.types = types
        self.reasons: list[Reason] = []
        self._inputs = {name.lower(): (name, schema) for name, schema in inputs.items()}

    def query(
        self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]], outer: Relation | None
    ) -> tuple[PlanNode, Named]:
        """Translate a query; `outer` has the columns of the query around it, for subqueries."""
        check_args(node, _QUERY_ARGS.get(type(node), _SET_ARGS))
        if isinstance(node, exp.Subquery):
            return self.query(node.this, ctes, outer)
        known = dict(ctes)
        with_ = node.args.get("with_")
        if with_ is not None:
            if with_.args.get("recursive"):
                raise refuse(with_, "recursion has no rule", "use policy 'full'")
            for each in with_.expressions:
                check_args(each.args["alias"], {"this"})
                known[each.alias.lower()] = self.query(each.this, known, None)
        if isinstance(node, exp.SetOperation):
            plan, named = self._set_operation(node, known)
        elif isinstance(node, exp.Select):
            plan, named = self.select(node, known, outer)
        else:
            raise refuse(node, f"{node.key} is no SELECT", "write one")
        return self._ordered(node, plan, named)

    # FROM.

    def relation(self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]) -> Relation:
        """Translate one table, CTE or derived table of a FROM clause."""
        alias_node = node.args.get("alias")
        if alias_node is not None:
            check_args(alias_node, {"this"})
        if isinstance(node, exp.Subquery):
            plan, named = self.query(node, ctes, None)
        elif isinstance(node, exp.Table):
            check_args(node, {"this", "alias", "laterals", "pivots"})
            for what in ("laterals", "pivots"):
                if node.args.get(what):
                    raise refuse(node, *_REFUSED[what])
            name = node.name.lower()
            if name in ctes:
                plan, named = ctes[name]
            else:
                plan, named = self._scan(name)
        else:
            raise refuse(node, f"{node.key} in FROM has no rule", "read collections, and SELECTs of them")
        # Every use has columns of its own, so that a table can be joined with itself.
        if not isinstance(plan, InputScan):
            renamed = [(name, self.fresh.column(name, column.type), column) for name, column in named]
            plan = Project(plan, tuple((new, old) for _, new, old in renamed))
            named = [(name, new) for name, new, _ in renamed]
        alias = node.alias_or_name.lower()
        return Relation(plan, {(alias, name.lower()): column for name, column in named})

    def _scan(self, name: str) -> tuple[PlanNode, Named]:
        input, schema = self._inputs[name]
        columns = [(each.name, self.fresh.column(each.name, each.type)) for each in schema]
        return InputScan(input, tuple((column, name) for name, column in columns)), columns

    def source(
        self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]
    ) -> tuple[list[PlanNode], Relation, list[Expression]]:
        """Translate FROM and its joins: plans that WHERE joins, their columns, and conditions that are left."""
        if node.args.get("from_") is None:
            raise refuse(node, "a SELECT without FROM has no rule", "read a collection")
        first = self.relation(node.args["from_"].this, ctes)
        plans, scope = [first.plan], dict(first.scope)
        conditions: list[Expression] = []
        for each in node.args.get("joins") or ():
            check_args(each, {"this", "on", "side", "kind", "method"})
            other = self.relation(each.this, ctes)
            side, kind = str(each.args.get("side") or "").upper(), str(each.args.get("kind") or "").upper()
            both = {**scope, **other.scope}
            on = [self.scalar(part, Relation(first.plan, both)) for part in and_parts(each.args.get("on"))]
            if each.args.get("method"):
                raise refuse(each, "NATURAL JOIN has no rule", "write the columns after ON")
            if not side and kind in ("", "INNER", "CROSS"):
                plans.append(other.plan)
                conditions += on
            else:
                left = combine(self.fresh, plans, conditions)
                conditions = []
                if kind in ("SEMI", "ANTI"):
                    plans, both = [joined(self.fresh, kind.lower(), left, other.plan, on)], scope
                elif side in ("LEFT", "RIGHT", "FULL"):
                    plans = [outer_join(self.fresh, side, left, other.plan, on)]
                else:
                    raise refuse(
                        each, f"{side} {kind} JOIN has no rule", "write INNER, LEFT, RIGHT, FULL, SEMI or ANTI"
                    )
            scope = both
        return plans, Relation(plans[0], scope), conditions

    # SELECT.

    def select(
        self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]], outer: Relation | None
    ) -> tuple[PlanNode, Named]:
        """Translate one SELECT."""
        for what, reason in _REFUSED.items():
            if node.args.get(what):
                raise refuse(node.args[what] if not isinstance(node.args[what], list) else node, *reason)
        plans, relation, conditions = self.source(node, ctes)
        where = and_parts(node.args["where"].this if node.args.get("where") else None)
        later = [each for each in where if is_subquery_condition(each)]
        for each in where:
            if each not in later:
                self._collect(lambda each=each: conditions.append(self.scalar(each, relation, outer)))
        relation.plan = combine(self.fresh, plans, conditions)
        for each in later:
            self._collect(lambda each=each: apply_condition(self, each, relation, ctes))
        groups = SelectGroups(self, relation, node, ctes)
        self._collect(groups.having)
        self._collect(groups.windows)
        named: list[tuple[str, Expression]] = []
        for each in node.expressions:
            self._collect(lambda each=each: named.append((each.alias_or_name, groups.scalar(_unaliased(each)))))
        outputs = [(self.fresh.column(name, each.type), each) for name, each in named]
        for (name, each), item in zip(named, node.expressions, strict=False):
            if pa.types.is_null(each.type):
                raise refuse(item, f"{name} is NULL without a type", "write CAST(NULL AS ...)")
        plan: PlanNode = Project(relation.plan, tuple(outputs))
        if node.args.get("distinct") is not None:
            if node.args["distinct"].args.get("on"):
                raise refuse(node, "DISTINCT ON has no rule", "use row_number()")
            self.check_keys(node, [column for column, _ in outputs], "DISTINCT")
            plan = Aggregate(plan, tuple(column for column, _ in outputs), ())
        return plan, [(name, column) for (name, _), (column, _) in zip(named, outputs, strict=True)]

    def scalar(self, node: Any, relation: Relation, outer: Relation | None = None) -> Expression:
        """Translate a scalar expression over the columns of a relation."""
        return Scalars(lambda each: self.resolve(each, relation, outer), self.types).translate(node)

    def resolve(self, node: Any, relation: Relation, outer: Relation | None = None) -> Expression | None:
        """Return the column of a relation that a node names, or of the query around it; None for other nodes."""
        if isinstance(node, exp.Column):
            place = (node.table.lower(), node.name.lower())
            found = relation.scope.get(place) or (outer.scope.get(place) if outer is not None else None)
            if found is None:
                raise refuse(node, f"{node.sql('spark')} is not a column here", "correlate over one level only")
            return found
        if isinstance(node, exp.Grouping | exp.GroupingId):
            raise refuse(
                node, f"{node.key} tells grouping sets apart", "write ROLLUP, CUBE or GROUPING SETS, or leave it out"
            )
        if isinstance(node, exp.AggFunc | exp.Window):
            raise refuse(node, f"{node.key} cannot stand here", "put it into SELECT or HAVING")
        if isinstance(node, exp.Subquery | exp.Exists):
            raise refuse(node, "a subquery cannot stand here", "put it into WHERE, beside the others by AND")
        return None

    def subquery_value(self, node: Any, relation: Relation, ctes: Mapping[str, tuple[PlanNode, Named]]) -> Expression:
        """Return the value of a scalar subquery as a column that is joined to the relation."""
        return scalar_subquery(self, node, relation, ctes)

    def _collect(self, step: Any) -> None:
        """Do one step; keep its refusal and go on, so that all reasons are found."""
        try:
            step()
        except NoRule as refused:
            self.reasons.append(refused.reason)

    def check_keys(self, node: Any, columns: Sequence[PlanColumn], what: str) -> None:
        """Refuse columns that are no keys: doubles have two zeros, and nested values no order."""
        for each in columns:
            if pa.types.is_floating(each.type) or pa.types.is_nested(each.type):
                raise refuse(
                    node, f"{what} by {each}, which is {each.type}, has no rule", "cast it to a decimal or text"
                )

    # Set operations, order.

    def _set_operation(self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]) -> tuple[PlanNode, Named]:
        left, named = self.query(node.left, ctes, None)
        right, others = self.query(node.right, ctes, None)
        if node.args.get("by_name"):
            raise refuse(node, "BY NAME has no rule", "name the columns in one order")
        left = Project(left, tuple((column, column) for _, column in named))
        right = Project(right, tuple((column, column) for _, column in others))
        try:
            left, right = aligned(self.fresh, left, right)
        except NotListed as error:
            raise refuse(node, str(error), "cast both sides to one type") from None
        self.check_keys(node, left.columns, node.key.upper())
        is_all = node.args.get("distinct") is False
        plan: PlanNode
        if isinstance(node, exp.Union):
            plan = Union((left, Project(right, tuple(zip(left.columns, right.columns, strict=True)))))
            if not is_all:
                plan = Aggregate(plan, plan.columns, ())
        else:
            kind = "intersect" if isinstance(node, exp.Intersect) else "except"
            plan = SetOperation(f"{kind} all" if is_all else kind, left, right)
        return plan, [(name, column) for (name, _), column in zip(named, plan.columns, strict=True)]

    def _ordered(self, node: Any, plan: PlanNode, named: Named) -> tuple[PlanNode, Named]:
        """Keep the first rows in an order. An order without a limit means nothing: a collection has none."""
        limit = node.args.get("limit")
        if limit is None:
            return plan, named
        number = self._limit(limit)
        by_name = {name.lower(): column for name, column in named}
        order: list[SortKey] = []
        for each in node.args["order"].expressions if node.args.get("order") else ():
            column = by_name.get(each.this.name.lower()) if isinstance(each.this, exp.Column) else None
            if column is None:
                raise refuse(each, "ORDER BY with LIMIT takes columns of the result", "add it to SELECT and name it")
            check_args(each, {"this", "desc", "nulls_first"})
            order.append(sort_key(each, column))
        if not order:
            raise refuse(limit, "LIMIT without ORDER BY keeps any rows", "add ORDER BY", forbidden=True)
        return Top(plan, tuple(order), number), named

    def _limit(self, limit: Any) -> int:
        value = limit.expression
        if not isinstance(value, exp.Literal) or value.is_string or not str(value.this).isdigit():
            raise refuse(limit, "LIMIT takes a whole number", "write one")
        number = int(value.this)
        if number > LIMIT_MAX:
            raise refuse(limit, f"LIMIT of more than {LIMIT_MAX} rows", "leave it out, or lower it")
        return number


def _unaliased(node: Any) -> Any:
    return node.this if isinstance(node, exp.Alias) else node
