"""Subqueries as joins.

    EXISTS (S), x IN (S)             a semi join on what correlates, and x = y
    NOT EXISTS (S)                   an anti join
    x NOT IN (S)                     rows with x: no y = x, and no y is null; rows without: S is empty
      correlated                     an anti join on what correlates, and (x = y, or x is null, or y is null)
    (SELECT aggregate FROM S)        a cross join with one row; correlated by equalities, an outer join with groups

The third is three-valued: a null on either side makes NOT IN unknown. In the fourth, a row without a group sees what
the aggregate gives for no rows: 0 for a count, null for the others. What stands under OR or NOT is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from timespine.views.plan.algebra import Aggregate, Filter, Join, PlanNode, Project, Union, names_of
from timespine.views.plan.expressions import Call, Expression, Literal, PlanColumn, columns_of, replace_columns
from timespine.views.sql.functions import NotListed, call
from timespine.views.sql.grouping import SelectGroups
from timespine.views.sql.refusal_reasons import FollowsRefusal, refuse
from timespine.views.sql.relations import Relation, combine, filtered, joined, outer_join, with_columns
from timespine.views.sql.scalars import Scalars, and_parts

if TYPE_CHECKING:
    from timespine.views.sql.from_sql import Builder, Named

Ctes = Mapping[str, tuple["PlanNode", "Named"]]

_ARITHMETIC = {"+", "-", "*", "/", "cast", "negative"}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_SIMPLE = {"expressions", "from_", "joins", "where", "laterals", "order", "hint"}
"""The parts of a subquery that may be correlated. Its order means nothing, as LIMIT and OFFSET are not among them."""
_PLAIN = (exp.Paren, exp.Mul, exp.Add, exp.Sub, exp.Div, exp.Neg)


def is_subquery_condition(node: Any) -> bool:
    """Return whether a condition contains a subquery."""
    return node.find(exp.Subquery, exp.Exists, exp.Select) is not None


def apply_condition(builder: Builder, node: Any, relation: Relation, ctes: Ctes) -> None:
    """Restrict a relation by a condition that contains a subquery."""
    negated = False
    inner = node
    while isinstance(inner, exp.Not | exp.Paren):
        negated = negated != isinstance(inner, exp.Not)
        inner = inner.this
    if isinstance(inner, exp.Exists):
        _exists(builder, inner, relation, ctes, "anti" if negated else "semi")
    elif isinstance(inner, exp.In) and inner.args.get("query") is not None:
        (_not_in if negated else _in)(builder, inner, relation, ctes)
    else:
        if node.find(exp.Exists) or any(each.args.get("query") for each in node.find_all(exp.In)):
            _look_inside(builder, node, relation, ctes)
            raise refuse(node, "EXISTS or IN under OR has no rule", "write a UNION, or put it beside the others by AND")

        def resolve(each: Any) -> Expression | None:
            if isinstance(each, exp.Subquery):
                return scalar_subquery(builder, each, relation, ctes)
            return builder.resolve(each, relation)

        condition = Scalars(resolve, builder.types).translate(node)
        relation.plan = filtered(relation.plan, [condition])


def _look_inside(builder: Builder, node: Any, relation: Relation, ctes: Ctes) -> None:
    """Note what is refused inside of a condition that is refused itself: in its subqueries, and beside them."""
    if isinstance(node, exp.And | exp.Or | exp.Not | exp.Paren):
        for each in node.iter_expressions():
            _look_inside(builder, each, relation, ctes)
    elif not is_subquery_condition(node):
        builder.collected(node, relation)
    else:
        query = node.find(exp.Select, exp.SetOperation)
        if query.args.get("limit") is None:
            builder.query(query, ctes, relation)


def _is_simple(select: Any, ignored: frozenset[str] = frozenset()) -> bool:
    """Return whether a subquery is only FROM and WHERE, so that it may be correlated."""
    if not isinstance(select, exp.Select) or not _has_only(select, _SIMPLE | ignored):
        return False
    return not any(isinstance(each, exp.AggFunc) for item in select.expressions for each in item.walk())


def _has_only(select: Any, parts: set[str]) -> bool:
    return all(name in parts for name, value in select.args.items() if value)


def _meaningless(select: Any) -> frozenset[str]:
    """Return the parts of a SELECT that do not change whether it has rows: DISTINCT, and a LIMIT of at least one."""
    limit = select.args.get("limit")
    number = limit.expression if isinstance(limit, exp.Limit) else None
    keeps_one = isinstance(number, exp.Literal) and not number.is_string and str(number.this).strip("0").isdigit()
    return frozenset(("distinct", "limit") if keeps_one else ("distinct",))


def _body(builder: Builder, select: Any, outer: Relation, ctes: Ctes) -> tuple[Relation, list[Expression]]:
    """Translate FROM and WHERE of a subquery; return it, and conditions on columns of the query around it."""
    plans, inner, conditions = builder.source(select, ctes)
    there = {name for plan in plans for name in names_of(plan)}
    correlated: list[Expression] = []
    later = []
    for each in and_parts(select.args["where"].this if select.args.get("where") else None):
        if is_subquery_condition(each):
            later.append(each)
            continue
        made = builder.collected(each, inner, outer)
        if made is None:
            continue
        (conditions if columns_of(made) <= there else correlated).append(made)
    inner.plan = combine(builder.fresh, plans, conditions)
    for each in later:
        builder.collect(apply_condition, builder, each, inner, ctes)
    return inner, correlated


def _query_of(node: Any) -> Any:
    found = node
    while isinstance(found, exp.Subquery):
        found = found.this
    return found


def _exists(builder: Builder, node: Any, relation: Relation, ctes: Ctes, kind: str) -> None:
    select = _query_of(node.this)
    if not _is_simple(select, _meaningless(select)):
        _look_inside(builder, node, relation, ctes)
        raise refuse(node, "EXISTS over groups or limits has no rule", "write IN, or join with the groups")
    inner, correlated = _body(builder, select, relation, ctes)
    relation.plan = joined(builder.fresh, kind, relation.plan, inner.plan, correlated)


def _one_column(
    builder: Builder, node: Any, relation: Relation, ctes: Ctes
) -> tuple[PlanNode, Expression, list[Expression]]:
    """Translate the query of IN; return its plan, its one expression, and what correlates."""
    select = _query_of(node.args["query"])
    number = len(select.selects)
    if number != 1 or isinstance(node.this, exp.Tuple):
        _look_inside(builder, node, relation, ctes)
        tested = len(node.this.expressions) if isinstance(node.this, exp.Tuple) else 1
        if tested == number:
            raise refuse(node, "IN with several columns has no rule", "write EXISTS, and compare each of them")
        what = f"IN compares {tested} column{'s' if tested > 1 else ''} with the {number} of its subquery"
        raise refuse(select, what, f"select {tested} there", forbidden=not isinstance(node.this, exp.Struct))
    if _is_simple(select):
        inner, correlated = _body(builder, select, relation, ctes)
        item = select.expressions[0]
        value = builder.scalar(item.this if isinstance(item, exp.Alias) else item, inner)
        return inner.plan, value, correlated
    plan, named = builder.query(select, ctes, None)
    if plan in builder.partial:
        raise FollowsRefusal
    return plan, named[0][1], []


def _in(builder: Builder, node: Any, relation: Relation, ctes: Ctes) -> None:
    plan, value, correlated = _one_column(builder, node, relation, ctes)
    wanted = builder.scalar(node.this, relation)
    relation.plan = joined(builder.fresh, "semi", relation.plan, plan, [_equal(node, wanted, value), *correlated])


def _not_in(builder: Builder, node: Any, relation: Relation, ctes: Ctes) -> None:
    plan, value, correlated = _one_column(builder, node, relation, ctes)
    if correlated:
        tested = builder.scalar(node.this, relation)
        is_met = _equal(node, tested, value)
        for each in (tested, value):
            is_met = call("or", is_met, call("is null", each))
        relation.plan = joined(builder.fresh, "anti", relation.plan, plan, [*correlated, is_met])
        return
    left, (wanted,) = with_columns(builder.fresh, relation.plan, [builder.scalar(node.this, relation)])
    right, (found,) = with_columns(builder.fresh, plan, [value])

    def null(column: PlanColumn) -> Expression:
        return Call("is null", (column,), pa.bool_())

    there = Filter(left, Call("not", (null(wanted),), pa.bool_()))
    unmatched = joined(builder.fresh, "anti", there, right, [_equal(node, wanted, found)])
    certain = Join("anti", unmatched, Filter(right, null(found)), ())
    unknown = Join("anti", Filter(left, null(wanted)), right, ())
    same = tuple((each, each) for each in left.columns)
    relation.plan = Union((Project(certain, same), Project(unknown, same)))


def _equal(node: Any, one: Expression, two: Expression) -> Expression:
    try:
        return call("=", one, two)
    except NotListed as error:
        raise refuse(node, str(error), "cast both sides to one type") from None


def scalar_subquery(builder: Builder, node: Any, relation: Relation, ctes: Ctes) -> Expression:
    """Join the value of a scalar subquery to a relation; return its column."""
    select = _query_of(node)
    if not isinstance(select, exp.Select) or not _has_only(select, _SIMPLE):
        _look_inside(builder, node, relation, ctes)
        raise refuse(node, "a scalar subquery is one aggregate without GROUP BY", "write it so")
    inner, correlated = _body(builder, select, relation, ctes)
    groups = SelectGroups(builder, inner, select, ctes)
    if not groups.is_grouped:
        raise refuse(node, "a scalar subquery may have many rows", "aggregate it: max(...)")
    item = select.expressions[0]
    whole = inner.plan
    if not isinstance(whole, Aggregate):
        raise FollowsRefusal  # its groups are refused
    value = groups.scalar(item.this if isinstance(item, exp.Alias) else item)
    shown = builder.fresh.column("value", value.type)
    if not correlated:
        relation.plan = Join("inner", relation.plan, Project(inner.plan, ((shown, value),)), ())
        return shown
    outer, own = _correlation(node, correlated, set(names_of(whole.child)))
    child, columns = with_columns(builder.fresh, whole.child, own)
    grouped = Aggregate(child, tuple(dict.fromkeys(columns)), whole.calls)
    found = builder.fresh.column("found", pa.int32())
    keys = tuple((each, each) for each in grouped.keys)
    right = Project(grouped, (*keys, (shown, value), (found, Literal(1, pa.int32()))))
    conditions = [_equal(node, one, two) for one, two in zip(outer, columns, strict=True)]
    if _rejects_null(node, value, whole):
        relation.plan = joined(builder.fresh, "inner", relation.plan, right, conditions)
        return shown
    relation.plan = outer_join(builder.fresh, "LEFT", relation.plan, right, conditions)
    counts = {column.name: call_.function for column, call_ in whole.calls}

    def of_nothing(column: PlanColumn) -> Expression:
        return Literal(0 if counts[column.name].startswith("count") else None, column.type)

    return call("case", call("is null", found), replace_columns(value, of_nothing), shown)


def _correlation(node: Any, conditions: list[Expression], there: set[str]) -> tuple[list[Expression], list[Expression]]:
    """Split equalities into the side of the query around and that of the subquery; refuse other conditions."""
    outer, own = [], []
    for each in conditions:
        sides = each.args if isinstance(each, Call) and each.function == "=" else ()
        inside = [side for side in sides if columns_of(side) <= there]
        outside = [side for side in sides if not columns_of(side) & there]
        if len(inside) != 1 or len(outside) != 1:
            raise refuse(
                node, "a scalar subquery is correlated by other than equalities", "join with the groups yourself"
            )
        outer.append(outside[0])
        own.append(inside[0])
    return outer, own


def _rejects_null(node: Any, value: Expression, whole: Aggregate) -> bool:
    """Return whether rows without a group are filtered out by the condition that the value stands in."""
    if any(made.function.startswith("count") for _, made in whole.calls) or not _is_arithmetic(value):
        return False
    place = node.parent
    while isinstance(place, _PLAIN):
        place = place.parent
    if not isinstance(place, _COMPARISONS):
        return False
    above = place.parent
    while isinstance(above, exp.Paren | exp.And):
        above = above.parent
    return isinstance(above, exp.Where)


def _is_arithmetic(value: Expression) -> bool:
    if not isinstance(value, Call):
        return True
    return value.function in _ARITHMETIC and all(map(_is_arithmetic, value.args))
