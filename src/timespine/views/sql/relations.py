"""Relations of a FROM clause: their columns by name, and how they are joined."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from timespine.views.plan.algebra import Explode, Filter, Join, PlanNode, Project, Union, names_of
from timespine.views.plan.expressions import (
    Call,
    Expression,
    Literal,
    PlanColumn,
    columns_of,
    conjunction,
    conjuncts,
    shown,
)
from timespine.views.sql.functions import NotListed, cast, common_type


class Fresh:
    """The source of names that are unique in one plan."""

    def __init__(self) -> None:
        self._number = 0

    def column(self, name: str, type: pa.DataType) -> PlanColumn:
        """Make a column with a new name."""
        self._number += 1
        return PlanColumn(f"{name}#{self._number}", type)


@dataclass(slots=True)
class Relation:
    """A plan, and the names that a query knows its columns by."""

    plan: PlanNode
    scope: dict[tuple[str, str], PlanColumn] = field(default_factory=dict)
    """Columns by the alias of their table and their name, in lower case."""
    is_partial: bool = False
    """Whether a part of it is refused, so that not all of its columns are known."""


def filtered(plan: PlanNode, conditions: Sequence[Expression]) -> PlanNode:
    """Return the rows of a plan that satisfy all conditions; those that name no element of an array come before it."""
    if isinstance(plan, Explode):
        kept = {column.name for column in plan.kept}
        below = [each for each in conditions if columns_of(each) <= kept]
        if below:
            conditions = [each for each in conditions if each not in below]
            plan = replace(plan, child=filtered(plan.child, below))
    whole = conjunction(list(conditions))
    return plan if whole is None else Filter(plan, whole)


def joined(fresh: Fresh, kind: str, left: PlanNode, right: PlanNode, conditions: Sequence[Expression]) -> PlanNode:
    """Join two plans by conditions: equalities of one side with the other become keys."""
    left, right, keys, rest = join_keys(fresh, left, right, conditions)
    return Join(kind, left, right, keys, conjunction(rest))


def join_keys(
    fresh: Fresh, left: PlanNode, right: PlanNode, conditions: Sequence[Expression]
) -> tuple[PlanNode, PlanNode, tuple[tuple[PlanColumn, PlanColumn], ...], list[Expression]]:
    """Turn equalities between two plans into keys; return the plans with columns for them, and what is left."""
    here, there = set(names_of(left)), set(names_of(right))
    keys: list[tuple[Expression, Expression]] = []
    rest: list[Expression] = []
    for each in conditions:
        pair = _equality(each, here, there)
        if pair is None:
            rest.append(each)
        else:
            keys.append(pair)
    left, ones = with_columns(fresh, left, [one for one, _ in keys])
    right, twos = with_columns(fresh, right, [two for _, two in keys])
    pairs = tuple(dict.fromkeys(zip(ones, twos, strict=True)))
    return left, right, pairs, rest


def _equality(condition: Expression, here: set[str], there: set[str]) -> tuple[Expression, Expression] | None:
    """Return both sides of an equality of one plan with another; None for other conditions."""
    if not isinstance(condition, Call) or condition.function != "=":
        return None
    one, two = condition.args
    if pa.types.is_floating(one.type):
        return None  # doubles have two zeros: they are compared, and not hashed
    for first, second in ((one, two), (two, one)):
        if columns_of(first) and columns_of(second) and columns_of(first) <= here and columns_of(second) <= there:
            return first, second
    return None


def with_columns(fresh: Fresh, plan: PlanNode, expressions: Sequence[Expression]) -> tuple[PlanNode, list[PlanColumn]]:
    """Add expressions to a plan as columns, unless they are columns of it."""
    added: list[tuple[PlanColumn, Expression]] = []
    columns: list[PlanColumn] = []
    for each in expressions:
        if isinstance(each, PlanColumn):
            columns.append(each)
        else:
            columns.append(fresh.column("key", each.type))
            added.append((columns[-1], each))
    if not added:
        return plan, columns
    return Project(plan, (*((each, each) for each in plan.columns), *added)), columns


def outer_join(fresh: Fresh, side: str, left: PlanNode, right: PlanNode, conditions: Sequence[Expression]) -> PlanNode:
    """Return an outer join: the inner one, beside the rows without a match with nulls for the other side."""
    one, two, keys, rest = join_keys(fresh, left, right, conditions)
    condition = conjunction(rest)
    columns = (*left.columns, *right.columns)
    parts: list[PlanNode] = [Project(Join("inner", one, two, keys, condition), tuple((each, each) for each in columns))]
    if side in ("LEFT", "FULL"):
        parts.append(_padded(Join("anti", one, two, keys, condition), columns))
    if side in ("RIGHT", "FULL"):
        back = tuple((second, first) for first, second in keys)
        parts.append(_padded(Join("anti", two, one, back, condition), columns))
    return Union(tuple(parts))


def _padded(plan: PlanNode, columns: Sequence[PlanColumn]) -> PlanNode:
    there = set(names_of(plan))
    return Project(plan, tuple((each, each if each.name in there else Literal(None, each.type)) for each in columns))


def combine(fresh: Fresh, relations: list[PlanNode], conditions: Sequence[Expression]) -> PlanNode:
    """Join relations by conditions: each as early as its columns are there, along equalities where there are some."""
    left = [part for each in conditions for part in conjuncts(each)]
    waiting = []
    for plan in relations:
        own, left = _ready(left, set(names_of(plan)))
        waiting.append(filtered(plan, own))
    whole = waiting.pop(0)
    while waiting:
        here = set(names_of(whole))
        linked = (each for each in waiting if any(_equality(c, here, set(names_of(each))) for c in left))
        following = next(linked, waiting[0])
        waiting.remove(following)
        there = here | set(names_of(following))
        now, left = _ready(left, there)
        whole = joined(fresh, "inner", whole, following, now)
    return filtered(whole, left)


def _ready(conditions: list[Expression], names: set[str]) -> tuple[list[Expression], list[Expression]]:
    """Split conditions into those that can be tested once some columns are there, and the others."""
    ready: list[Expression] = []
    others: list[Expression] = []
    for each in conditions:
        needed = columns_of(each)
        (ready if needed and needed <= names else others).append(each)
    return ready, others


def aligned(fresh: Fresh, left: PlanNode, right: PlanNode) -> tuple[PlanNode, PlanNode]:
    """Bring the columns of two plans to common types, each under names of its own; raise NotListed if it cannot be."""
    if len(left.columns) != len(right.columns):
        raise NotListed(f"one side has {len(left.columns)} columns, the other {len(right.columns)}")
    types = [common_type(pair) for pair in zip(left.columns, right.columns, strict=True)]

    def side(plan: PlanNode) -> PlanNode:
        made = zip(plan.columns, types, strict=True)
        return Project(
            plan, tuple((fresh.column(each.name.partition("#")[0], to), cast(each, to)) for each, to in made)
        )

    return side(left), side(right)


def union_of(fresh: Fresh, columns: Sequence[Sequence[PlanColumn]], plans: Sequence[PlanNode]) -> PlanNode:
    """Put the rows of many plans together, as one node; raise NotListed if their columns have no types in common."""
    for each in columns:
        if len(each) != len(columns[0]):
            raise NotListed(f"one side has {len(columns[0])} columns, the other {len(each)}")
    types = [functools.reduce(_common, (each.type for each in place)) for place in zip(*columns, strict=True)]
    made = [fresh.column(shown(each.name), to) for each, to in zip(columns[0], types, strict=True)]
    return Union(
        tuple(
            Project(plan, tuple((to, cast(each, to.type)) for to, each in zip(made, own, strict=True)))
            for plan, own in zip(plans, columns, strict=True)
        )
    )


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType:
    return common_type((PlanColumn("", one), PlanColumn("", two)))


def union_parts(node: Any) -> list[Any]:
    """List the SELECTs that UNION ALL puts together, from left to right."""
    found, left = [], node
    while isinstance(left, exp.Union) and left.args.get("distinct") is False and not left.args.get("by_name"):
        if left is not node and any(left.args.get(name) for name in ("with_", "order", "limit", "offset")):
            break
        found.append(left.right)
        left = left.left
    return [left, *reversed(found)]
