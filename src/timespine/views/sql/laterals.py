"""LATERAL VIEW, and explode in SELECT: a row for each element of an array.

A generator in the list of a SELECT gives the rows that a LATERAL VIEW after FROM gives: WHERE cannot name its columns.
So it becomes one, before names are resolved. In Spark's grammar LATERAL VIEW comes after all joins. An array of one
side of an inner join may be exploded before it, so that elements are found by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from timespine.views.plan.algebra import Explode, PlanNode, names_of
from timespine.views.plan.expressions import Expression, columns_of
from timespine.views.sql.refusal_reasons import check_args, place_in_text, refuse, written_name
from timespine.views.sql.relations import Relation, combine

if TYPE_CHECKING:
    from timespine.views.sql.from_sql import Builder

MOVED = "_generated"
"""How the aliases of LATERAL VIEWs begin that were generators in the list of a SELECT."""

_POSITIONS = (exp.Posexplode, exp.PosexplodeOuter)
_OUTER = (exp.ExplodeOuter, exp.PosexplodeOuter)


def with_laterals(tree: Any) -> None:
    """Turn generators in the lists of SELECTs into LATERAL VIEWs, and name the columns that a text leaves unnamed."""
    for select in tree.find_all(exp.Select):
        found = [each for each in select.expressions if isinstance(each.unalias(), exp.Explode) or _names_several(each)]
        if len(found) == 1 and not _has_groups(select):
            _move(select, found[0])
        for lateral in select.args.get("laterals") or ():
            alias = lateral.args.get("alias")
            if isinstance(lateral.this, exp.Explode) and alias is not None and not alias.args.get("columns"):
                names = ["pos", "col"] if isinstance(lateral.this, _POSITIONS) else ["col"]
                alias.set("columns", [exp.to_identifier(name) for name in names])


def _names_several(node: Any) -> bool:
    """Return whether a node of a SELECT is a generator with names for several columns."""
    return isinstance(node, exp.Aliases) and isinstance(node.this, exp.Explode)


def _has_groups(select: Any) -> bool:
    """Return whether a SELECT groups its rows, or has windows: then its generators have no rule."""
    inner = [*select.expressions, *(select.args[each] for each in ("group", "having") if select.args.get(each))]
    return any(each.find(exp.AggFunc, exp.Window, exp.Group, exp.Having) is not None for each in inner)


def _move(select: Any, node: Any) -> None:
    """Move one generator from the list of a SELECT into a LATERAL VIEW."""
    generator = node.unalias() if not _names_several(node) else node.this
    names = [each.name for each in node.args["expressions"]] if _names_several(node) else [node.alias]
    if not all(names) or len(names) != (2 if isinstance(generator, _POSITIONS) else 1):
        return
    table = f"{MOVED}{len(select.args.get('laterals') or ())}"
    columns = [f"_{table}_{place}" for place in range(len(names))]
    selected: list[Any] = []
    for each in select.expressions:
        if each is node:
            for name, column in zip(names, columns, strict=True):
                made = exp.alias_(exp.column(column, table=table), name, quoted=True)
                made.meta.update(generator.meta)
                selected.append(made)
        else:
            selected.append(each)
    alias = exp.TableAlias(this=exp.to_identifier(table), columns=[exp.to_identifier(each) for each in columns])
    lateral = exp.Lateral(this=generator.copy(), view=True, outer=False, alias=alias)
    select.set("expressions", selected)
    select.append("laterals", lateral)


def explode_arrays(
    builder: Builder, node: Any, plans: list[PlanNode], relation: Relation, conditions: list[Expression]
) -> None:
    """Explode the arrays of the LATERAL VIEWs of a SELECT in place, in one of the plans that its WHERE joins."""
    joins = node.args.get("joins") or ()
    for lateral in node.args.get("laterals") or ():
        if builder.collect(_explode_array, builder, lateral, joins, plans, relation, conditions) is None:
            relation.is_partial = True


def _explode_array(
    builder: Builder,
    lateral: Any,
    joins: Sequence[Any],
    plans: list[PlanNode],
    relation: Relation,
    conditions: list[Expression],
) -> PlanNode:
    check_args(lateral, {"this", "view", "outer", "alias"})
    generator = lateral.this
    if not isinstance(generator, exp.Explode):
        what = f"LATERAL VIEW {written_name(generator)} has no rule"
        raise refuse(generator, what, "use explode or posexplode of an array")
    if not lateral.alias.startswith(MOVED) and any(
        place_in_text(generator) < place_in_text(each.this) for each in joins
    ):
        raise refuse(generator, "a JOIN after LATERAL VIEW", "write the joins first; elements are compared in WHERE")
    check_args(generator, {"this"})
    array = builder.scalar(generator.this, relation)
    if not pa.types.is_list(array.type):
        raise refuse(generator, f"explode of {array.type} has no rule", "explode an array")
    names = [each.name for each in lateral.args["alias"].args["columns"]]
    has_places = isinstance(generator, _POSITIONS)
    if len(names) != 1 + has_places:
        raise refuse(generator, f"{len(names)} names for its columns", "explode has one, posexplode two")
    position = builder.fresh.column(names[0], pa.int32()) if has_places else None
    element = builder.fresh.column(names[-1], array.type.value_type)
    made = [element] if position is None else [position, element]
    relation.scope.update({(lateral.alias.lower(), name.lower()): each for name, each in zip(names, made, strict=True)})
    place = next((n for n, plan in enumerate(plans) if columns_of(array) <= set(names_of(plan))), None)
    if place is None:  # the array needs several plans: join them first
        plans[:] = [combine(builder.fresh, plans, conditions)]
        conditions.clear()
        place = 0
    below = plans[place]
    is_outer = bool(lateral.args.get("outer")) or isinstance(generator, _OUTER)
    plans[place] = Explode(below, tuple(below.columns), array, element, position, is_outer)
    return plans[place]
