"""A qualified query as a plan: FROM and WHERE, GROUP BY, HAVING, windows, SELECT, set operations, ORDER BY with LIMIT.

Reasons for refusals are collected over the whole query. `subqueries` turns EXISTS, IN and scalar subqueries into joins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import exp

from timespine.errors import UnsupportedView
from timespine.views.plan.algebra import (
    Aggregate,
    InputScan,
    PlanNode,
    Project,
    SetOperation,
    SortKey,
    Top,
    Union,
)
from timespine.views.plan.expressions import Expression, PlanColumn
from timespine.views.sql.functions import NotListed
from timespine.views.sql.grouping import SelectGroups, name_outputs_in_order, sort_items, sort_key
from timespine.views.sql.laterals import explode_arrays
from timespine.views.sql.parse import Query, any_rows, has_no_answer, on_own_stack, output_names, qualified
from timespine.views.sql.prune_columns import prune_columns
from timespine.views.sql.refusal_reasons import (
    FollowsRefusal,
    NoRule,
    Reason,
    check_args,
    refuse,
    sorted_reasons,
    written_name,
)
from timespine.views.sql.relations import Fresh, Relation, aligned, combine, joined, outer_join, union_of, union_parts
from timespine.views.sql.scalars import Scalars, and_parts
from timespine.views.sql.spark_types import SparkTypes
from timespine.views.sql.subqueries import apply_condition, is_subquery_condition, scalar_subquery

T = TypeVar("T")

Named = list[tuple[str, PlanColumn]]
"""The columns of a query with their names, in order."""

Sorts = list[PlanColumn | None]
"""The columns that each item of ORDER BY with LIMIT sorts by; None for one that is refused."""

REFUSED = InputScan("", ())
"""The place of a plan that is refused, so that the rest of the query is looked at too."""

NESTED_UNIONS_MAX = 8
"""Most SELECTs of a UNION ALL that are put together two by two, as in the stored plans of views from before."""

LIMIT_MAX = 100_000
"""Most rows of ORDER BY ... LIMIT."""

_REFUSED = {
    "pivots": ("PIVOT has no rule", "write CASE WHEN inside of aggregates"),
    "offset": ("OFFSET has no rule", "number the rows with row_number() and filter by it"),
    "qualify": ("QUALIFY has no rule", "filter by the window function in an outer SELECT"),
    "windows": ("windows that name another one have no rule", "write all of the window after OVER"),
    "connect": ("CONNECT BY has no rule", "store the hierarchy in a collection"),
    "match": ("MATCH_RECOGNIZE has no rule", "use policy 'full'"),
}

_OTHER_GENERATOR = (
    "explode has no rule here",
    "name its columns, and write it without another one, aggregates and windows: use LATERAL VIEW, or a subquery",
)

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
    "laterals",
}
# Hints say how to compute, and not what.
_QUERY_ARGS: dict[type, set[str]] = {exp.Subquery: {"this", "alias"}, exp.Select: {*_SELECT_ARGS, *_REFUSED}}
_SET_ARGS = {"this", "expression", "distinct", "with_", "order", "limit", "by_name"}


def plan_of(query: Query, inputs: Mapping[str, pa.Schema], types: SparkTypes | None = None) -> tuple[PlanNode, Named]:
    """Return the plan of a query, and its columns under their names as written; raise UnsupportedView with reasons.

    `types` has the types of what only Spark computes; without it, that is refused.
    """
    asks = types is not None and types.asks
    return on_own_stack(lambda: _plan_of(query, inputs, types), stays=asks)


def _plan_of(query: Query, inputs: Mapping[str, pa.Schema], types: SparkTypes | None) -> tuple[PlanNode, Named]:
    builder = Builder(inputs, types, has_forbidden=bool(query.forbidden))
    plan, named = builder.query(qualified(query, inputs), {}, None)
    if query.forbidden or builder.reasons:
        what = "there is no rule for parts of this query"
        if any(each.forbidden for each in builder.reasons):
            what = "the query is wrong in itself: Spark refuses it too"
        if query.forbidden:
            what = "the query has no definite answer"
        raise UnsupportedView(what, sorted_reasons(query.forbidden, builder.reasons))
    names = output_names(query, inputs, [name for name, _ in named])
    return prune_columns(plan), list(zip(names, (column for _, column in named), strict=True))


class Builder:
    """The translation of one query and its subqueries."""

    def __init__(
        self, inputs: Mapping[str, pa.Schema], types: SparkTypes | None = None, *, has_forbidden: bool = False
    ) -> None:
        self.fresh = Fresh()
        self.types = types
        self.reasons: list[Reason] = []
        """Why the query has no plan, as far as it was translated. Whatever is refused, the rest is looked at too."""
        self.partial: set[PlanNode] = {REFUSED}
        """Plans that lack columns, because parts of them are refused."""
        self._has_forbidden = has_forbidden
        self._ambiguous: set[PlanColumn] = set()
        """Columns of derived tables and CTEs that share their name with another one there."""
        self._inputs = {name.lower(): (name, schema) for name, schema in inputs.items()}

    def query(
        self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]], outer: Relation | None
    ) -> tuple[PlanNode, Named]:
        """Translate a query; `outer` has the columns of the query around it, for subqueries.

        If it is refused, its reasons are noted, and its plan is one of `partial`.
        """
        self.collect(check_args, node, _QUERY_ARGS.get(type(node), _SET_ARGS))
        if isinstance(node, exp.Subquery):
            return self.query(node.this, ctes, outer)
        known = dict(ctes)
        with_ = node.args.get("with_")
        if with_ is not None:
            if with_.args.get("recursive"):
                self.note(refuse(with_, "recursion has no rule", "use policy 'full'"))
                known.update({each.alias.lower(): (REFUSED, []) for each in with_.expressions})
            for each in with_.expressions:
                self.collect(check_args, each.args["alias"], {"this"})
                known[each.alias.lower()] = self.query(each.this, known, None)
        made = self.collect(self._body, node, known, outer)
        return self._ordered(node, *(made or (REFUSED, [], [None for _ in sort_items(node)])))

    def _body(
        self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]], outer: Relation | None
    ) -> tuple[PlanNode, Named, Sorts]:
        if isinstance(node, exp.SetOperation):
            plan, named = self._set_operation(node, ctes)
            return plan, named, self._sorts_of_set(node, named)
        if isinstance(node, exp.Select):
            return self.select(node, ctes, outer)
        raise refuse(node, f"{node.key} is no SELECT", "write one")

    # FROM.

    def relation(self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]) -> Relation:
        """Translate one table, CTE or derived table of a FROM clause."""
        if isinstance(node, exp.Lateral):
            raise refuse(node, "LATERAL in FROM has no rule", "write LATERAL VIEW explode(...) name AS column")
        alias_node = node.args.get("alias")
        if alias_node is not None:
            check_args(alias_node, {"this"})
        if node.args.get("pivots"):
            self.note(refuse(node, *_REFUSED["pivots"]))
            raise FollowsRefusal
        if isinstance(node, exp.Subquery):
            plan, named = self.query(node, ctes, None)
        elif isinstance(node, exp.Table):
            check_args(node, {"this", "alias"})
            name = node.name.lower()
            if name in ctes:
                plan, named = ctes[name]
            else:
                plan, named = self._scan(name)
        else:
            raise refuse(node, f"{node.key} in FROM has no rule", "read collections, and SELECTs of them")
        if plan is REFUSED:
            raise FollowsRefusal
        is_partial = plan in self.partial
        # Every use has columns of its own, so that a table can be joined with itself.
        if not isinstance(plan, InputScan):
            renamed = [(name, self.fresh.column(name, column.type), column) for name, column in named]
            plan = Project(plan, tuple((new, old) for _, new, old in renamed))
            named = [(name, new) for name, new, _ in renamed]
            told = [name.lower() for name, _ in named]
            self._ambiguous.update(column for name, column in named if told.count(name.lower()) > 1)
        alias = node.alias_or_name.lower()
        return Relation(plan, {(alias, name.lower()): column for name, column in named}, is_partial)

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
        first = self._part(node.args["from_"].this, ctes)
        is_partial = first.is_partial or any(node.args.get(each) for each in ("pivots", "match"))
        plans, scope = [first.plan], dict(first.scope)
        conditions: list[Expression] = []
        for each in node.args.get("joins") or ():
            self.collect(check_args, each, {"this", "on", "side", "kind", "method"})
            other = self._part(each.this, ctes)
            is_partial = is_partial or other.is_partial
            side, kind = str(each.args.get("side") or "").upper(), str(each.args.get("kind") or "").upper()
            both = {**scope, **other.scope}
            columns = Relation(first.plan, both, is_partial)
            tests = [self.collected(part, columns) for part in and_parts(each.args.get("on"))]
            on = [made for made in tests if made is not None]
            if each.args.get("method"):
                self.note(refuse(each, "NATURAL JOIN has no rule", "write the columns after ON"))
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
                    known = "write INNER, LEFT, RIGHT, FULL, SEMI or ANTI"
                    self.note(refuse(each, f"{side} {kind} JOIN has no rule", known))
                    plans = [left]
            scope = both
        relation = Relation(plans[0], scope, is_partial)
        explode_arrays(self, node, plans, relation, conditions)
        return plans, relation, conditions

    def _part(self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]) -> Relation:
        """Translate a part of FROM; one that is refused has no known columns."""
        return self.collect(self.relation, node, ctes) or Relation(REFUSED, {}, is_partial=True)

    # SELECT.

    def select(
        self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]], outer: Relation | None
    ) -> tuple[PlanNode, Named, Sorts]:
        """Translate one SELECT; its plan has columns that only ORDER BY needs, too."""
        for what, reason in _REFUSED.items():
            if node.args.get(what):
                self.note(refuse(node.args[what][0] if isinstance(node.args[what], list) else node.args[what], *reason))
        plans, relation, conditions = self.source(node, ctes)
        where = and_parts(node.args["where"].this if node.args.get("where") else None)
        later = [each for each in where if is_subquery_condition(each)]
        for each in where:
            made = self.collected(each, relation, outer) if each not in later else None
            if made is not None:
                conditions.append(made)
        relation.plan = combine(self.fresh, plans, conditions)
        for each in later:
            self.collect(apply_condition, self, each, relation, ctes)
        self.reasons.extend(name_outputs_in_order(node))
        groups = SelectGroups(self, relation, node, ctes)
        groups.having()
        groups.windows()
        named: list[tuple[str, Expression]] = []
        for each in node.expressions:
            if each.find(exp.Explode) is not None:
                self.note(refuse(each, *_OTHER_GENERATOR))
                continue
            made = groups.collected(_unaliased(each))
            if made is None:
                continue
            if pa.types.is_null(made.type):
                what = f"{each.alias_or_name} is NULL without a type"
                self.note(refuse(each, what, "write CAST(NULL AS ...)"))
            named.append((each.alias_or_name, made))
        outputs = [(self.fresh.column(name, each.type), each) for name, each in named]
        columns = [(name, column) for (name, _), (column, _) in zip(named, outputs, strict=True)]
        sorts, hidden = self._sorts_of_select(node, groups, columns, outputs)
        plan: PlanNode = Project(relation.plan, (*outputs, *hidden))
        if node.args.get("distinct") is not None:
            if node.args["distinct"].args.get("on"):
                self.note(refuse(node, "DISTINCT ON has no rule", "use row_number()"))
            self.check_keys(node, [column for column, _ in outputs], "DISTINCT")
            plan = Aggregate(plan, tuple(column for column, _ in outputs), ())
        if len(named) < len(node.expressions) or relation.is_partial:
            self.partial.add(plan)
        return plan, columns, sorts

    def scalar(self, node: Any, relation: Relation, outer: Relation | None = None) -> Expression:
        """Translate a scalar expression over the columns of a relation."""
        return Scalars(lambda each: self.resolve(each, relation, outer), self.types).translate(node)

    def resolve(self, node: Any, relation: Relation, outer: Relation | None = None) -> Expression | None:
        """Return the column of a relation that a node names, or of the query around it; None for other nodes."""
        if self.leaves_open(node):
            raise FollowsRefusal
        if isinstance(node, exp.Column):
            place = (node.table.lower(), node.name.lower())
            found = relation.scope.get(place) or (outer.scope.get(place) if outer is not None else None)
            if found is None and (relation.is_partial or (outer is not None and outer.is_partial)):
                raise FollowsRefusal
            if found is None:
                raise refuse(node, f"{node.sql('spark')} is not a column here", "correlate over one level only")
            if found in self._ambiguous:
                what = f"{node.name} is ambiguous: several columns of {node.table} are called so"
                raise refuse(node, what, "name them differently with AS")
            return found
        if isinstance(node, exp.Grouping | exp.GroupingId):
            raise refuse(
                node, f"{node.key} tells grouping sets apart", "write ROLLUP, CUBE or GROUPING SETS, or leave it out"
            )
        if isinstance(node, exp.AggFunc | exp.Window):
            # In a subquery it may be an aggregate of the query around it.
            what = f"{written_name(node.this if isinstance(node, exp.Window) else node)} cannot stand here"
            raise refuse(node, what, "put it into SELECT or HAVING", forbidden=outer is None)
        if isinstance(node, exp.Subquery | exp.Exists) or (isinstance(node, exp.In) and node.args.get("query")):
            kind = "IN with a subquery" if isinstance(node, exp.In) else "a subquery"
            instead = "put it into WHERE, beside the others by AND; of groups, into WHERE of a SELECT around them"
            raise refuse(node, f"{kind} cannot stand here", instead)
        return None

    def subquery_value(self, node: Any, relation: Relation, ctes: Mapping[str, tuple[PlanNode, Named]]) -> Expression:
        """Return the value of a scalar subquery as a column that is joined to the relation."""
        return scalar_subquery(self, node, relation, ctes)

    def leaves_open(self, node: Any) -> bool:
        """Return whether a node has no definite answer, which is said of the query already."""
        return self._has_forbidden and has_no_answer(node)

    def note(self, refused: NoRule) -> None:
        """Keep a refusal: its reason is one of those that the query is refused with."""
        if not isinstance(refused, FollowsRefusal):
            self.reasons.append(refused.reason)

    def collect(self, step: Callable[..., T], *args: Any) -> T | None:
        """Do one step; keep its refusal and go on, so that all reasons are found."""
        try:
            return step(*args)
        except NoRule as refused:
            self.note(refused)
            return None

    def collected(self, node: Any, relation: Relation, outer: Relation | None = None) -> Expression | None:
        """Translate a scalar expression; if it is refused, keep the reasons of all its parts, and return None."""
        return self.collected_by(Scalars(lambda each: self.resolve(each, relation, outer), self.types), node)

    def collected_by(self, scalars: Scalars, node: Any) -> Expression | None:
        """Translate a scalar expression; if it is refused, keep the reasons of all its parts, and return None."""
        try:
            return scalars.translate(node)
        except NoRule as refused:
            self.note(refused)
            self.reasons.extend(scalars.reasons(node))
            return None

    def check_keys(self, node: Any, columns: Sequence[PlanColumn], what: str) -> None:
        """Note columns that are no keys: doubles have two zeros, and nested values no order."""
        for each in columns:
            if pa.types.is_floating(each.type) or pa.types.is_nested(each.type):
                said = f"{what} by {each}, which is {each.type}, has no rule"
                self.note(refuse(node, said, "cast it to a decimal or text"))

    # Set operations, order.

    def _set_operation(self, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]) -> tuple[PlanNode, Named]:
        parts = union_parts(node)
        if len(parts) > NESTED_UNIONS_MAX:
            return self._long_union(parts, ctes)
        left, named = self.query(node.left, ctes, None)
        right, others = self.query(node.right, ctes, None)
        if node.args.get("by_name"):
            self.note(refuse(node, "BY NAME has no rule", "name the columns in one order"))
        if left in self.partial or right in self.partial:
            raise FollowsRefusal
        left = Project(left, tuple((column, column) for _, column in named))
        right = Project(right, tuple((column, column) for _, column in others))
        try:
            left, right = aligned(self.fresh, left, right)
        except NotListed as error:
            raise refuse(node, str(error), "cast both sides to one type") from None
        is_all = node.args.get("distinct") is False
        if not (is_all and isinstance(node, exp.Union)):  # UNION ALL compares no rows
            self.check_keys(node, left.columns, node.key.upper())
        plan: PlanNode
        if isinstance(node, exp.Union):
            plan = Union((left, Project(right, tuple(zip(left.columns, right.columns, strict=True)))))
            if not is_all:
                plan = Aggregate(plan, plan.columns, ())
        else:
            kind = "intersect" if isinstance(node, exp.Intersect) else "except"
            plan = SetOperation(f"{kind} all" if is_all else kind, left, right)
        return plan, [(name, column) for (name, _), column in zip(named, plan.columns, strict=True)]

    def _long_union(self, parts: Sequence[Any], ctes: Mapping[str, tuple[PlanNode, Named]]) -> tuple[PlanNode, Named]:
        """Put the rows of many SELECTs together, as one node: its depth does not grow with their number."""
        found = [self.query(each, ctes, None) for each in parts]
        if any(plan in self.partial for plan, _ in found):
            raise FollowsRefusal
        try:
            whole = union_of(self.fresh, [[column for _, column in named] for _, named in found], [p for p, _ in found])
        except NotListed as error:
            raise refuse(parts[0], str(error), "cast all of them to one type") from None
        return whole, [(name, column) for (name, _), column in zip(found[0][1], whole.columns, strict=True)]

    def _sorts_of_select(
        self, node: Any, groups: SelectGroups, named: Named, outputs: Sequence[tuple[PlanColumn, Expression]]
    ) -> tuple[Sorts, list[tuple[PlanColumn, Expression]]]:
        """Return what ORDER BY with LIMIT sorts by, and the columns of it that SELECT does not have."""
        is_distinct = node.args.get("distinct") is not None
        sorts: Sorts = []
        hidden: list[tuple[PlanColumn, Expression]] = []
        for each in sort_items(node):
            if isinstance(each.this, exp.Column) and not each.this.table:
                sorts.append(self._output(each, named))
                continue
            if each.find(exp.Window) is not None:
                self.note(refuse(each, "a window in ORDER BY has no rule", "name it in SELECT, and order by the name"))
                sorts.append(None)
                continue
            # SUBTLE: `a.v` is not the column v of the result, which may be `-v AS v` (test_from_sql.py).
            made = groups.collected(each.this)
            column = next((column for column, other in [*outputs, *hidden] if other == made), None)
            is_named = isinstance(each.this, exp.Column) and (each.this.name, column) in named
            if made is not None and is_distinct and not is_named:
                what = "ORDER BY of SELECT DISTINCT takes columns of the result"
                self.note(refuse(each, what, "add it to SELECT and name it"))
            elif made is not None and column is None:
                column = self.fresh.column("sort", made.type)
                hidden.append((column, made))
            sorts.append(column)
        return sorts, hidden

    def _output(self, item: Any, named: Named) -> PlanColumn | None:
        """Return the column of the result that an item of ORDER BY names."""
        found = [column for name, column in named if name.lower() == item.this.name.lower()]
        if len(found) > 1:
            self.note(refuse(item, f"{item.this.name} is ambiguous", "name the columns of SELECT differently"))
        if not found and not self.reasons and not self._has_forbidden:  # else it may be a column that is refused
            self.note(refuse(item, f"{item.this.name} is no column of the result", "add it to SELECT and name it"))
        return found[0] if len(found) == 1 else None

    def _sorts_of_set(self, node: Any, named: Named) -> Sorts:
        """Return what ORDER BY with LIMIT of a set operation sorts by: columns of the result, by their names."""
        sorts: Sorts = []
        for each in sort_items(node):
            is_name = isinstance(each.this, exp.Column) and not each.this.table
            sorts.append(self._output(each, named) if is_name else None)
            if not is_name:
                what = f"ORDER BY with LIMIT of {node.key.upper()} takes columns of the result"
                self.note(refuse(each, what, "write the name of one, or order a SELECT FROM (...)"))
        return sorts

    def _ordered(self, node: Any, plan: PlanNode, named: Named, sorts: Sorts) -> tuple[PlanNode, Named]:
        """Keep the first rows in an order. An order without a limit means nothing: a collection has none."""
        limit = node.args.get("limit")
        if limit is None:
            return plan, named
        number = self.collect(self._limit, limit)
        order: list[SortKey] = []
        for each, column in zip(sort_items(node), sorts, strict=True):
            self.collect(check_args, each, {"this", "desc", "nulls_first"})
            if column is not None:
                order.append(sort_key(each, column))
        if not node.args.get("order"):
            self.note(NoRule(any_rows(limit)))
        if number is None or not order or None in sorts or plan is REFUSED:
            self.partial.add(plan)
            return plan, named
        top: PlanNode = Top(plan, tuple(order), number)
        if len(plan.columns) > len(named):  # the others are those that only the order needs
            top = Project(top, tuple((column, column) for _, column in named))
        if plan in self.partial:
            self.partial.add(top)
        return top, named

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
