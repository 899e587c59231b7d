"""Orders of a text that leave open which of several rows come first, for texts that Spark computes whole.

A plan breaks ties by the other columns. Spark breaks them by the order in which it reads the rows, so that the same
inputs may give another answer at each refresh. An order is total for a query if rows that agree in it agree in all that
the query uses of them: whichever comes first then, the rows of the answer are the same. A key of a collection does not
count, as several rows may have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from timespine.errors import UnsupportedView
from timespine.views.sql.parse import Query, qualified
from timespine.views.sql.refusal_reasons import Reason, reason_at, written_name

_PLACED = (
    exp.RowNumber,
    exp.Lag,
    exp.Lead,
    exp.FirstValue,
    exp.LastValue,
    exp.NthValue,
    exp.Ntile,
    exp.First,
    exp.Last,
)
"""Functions of windows that tell rows apart which are equal in the order."""

_EDGES = (exp.FirstValue, exp.LastValue, exp.First, exp.Last)

_STAR = "all columns"


def open_ties(query: Query, inputs: Mapping[str, pa.Schema]) -> list[Reason]:
    """List the orders of a query that leave ties open, with the columns to add to them."""
    try:
        tree = qualified(query, inputs)
    except UnsupportedView:
        tree = query.tree  # Spark knows names that the parser does not
    found = []
    for node in tree.walk():
        if isinstance(node, exp.Query) and node.args.get("order") is not None and _is_cut(node):
            found += _of_limit(node)
        elif isinstance(node, exp.Window) and not isinstance(node.parent, exp.Select):
            found += _of_window(node)
        elif isinstance(node, exp.ArgMin | exp.ArgMax):
            found += _of_pick(node)
    return found


def _is_cut(query: Any) -> bool:
    return any(query.args.get(each) is not None for each in ("limit", "offset"))


def _of_limit(query: Any) -> list[Reason]:
    """Refuse ORDER BY with LIMIT whose rows may be equal in the order and differ in the result."""
    order = query.args["order"]
    keys = [each.this for each in order.expressions]
    if any(isinstance(each, exp.Var) and each.name.upper() == "ALL" for each in keys):
        return []
    select = query
    while not isinstance(select, exp.Select):
        select = select.this
    items = select.expressions
    numbers = [int(each.this) for each in keys if isinstance(each, exp.Literal) and not each.is_string]
    placed = [items[number - 1] for number in numbers if 0 < number <= len(items)]
    there = {_text(_value(each)) for each in [*keys, *placed]}
    there |= {each.name.lower() for each in keys if isinstance(each, exp.Column) and not each.table}
    there |= {each.alias_or_name.lower() for each in placed}
    covered = {_text(_value(each)) for each in items if each.alias_or_name.lower() in there} | there
    if query is select and _is_of_groups(select, covered):
        return []
    missing = [_shown(each) for each in items if not _is_decided(each, covered)]
    if query is select and _groups(select):
        missing = [_plain(each) for each in _groups(select) if _text(each) not in covered]
    return [_reason(order, "ORDER BY with LIMIT", missing, "to ORDER BY")] if missing else []


def _is_decided(item: Any, covered: set[str]) -> bool:
    if item.is_star:
        return False
    if item.alias_or_name.lower() in covered or _text(_value(item)) in covered:
        return True
    return item.find(exp.Column, exp.Subquery) is None


def _of_window(window: Any) -> list[Reason]:
    """Refuse a window that tells rows apart which are equal in its order, and differ in what the SELECT uses."""
    function = window.this
    while isinstance(function, exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    select = window.find_ancestor(exp.Select)
    if select is None:
        return []
    spec = _spec_of(window, select)
    order, frame = spec.args.get("order"), spec.args.get("spec")
    is_by_rows = frame is not None and str(frame.args.get("kind")).upper() == "ROWS" and not _is_whole(frame)
    if order is None or not (isinstance(function, _PLACED) or is_by_rows):
        return []
    keys = [*(spec.args.get("partition_by") or ()), *(each.this for each in order.expressions)]
    covered = {_text(each) for each in keys}
    if _is_of_groups(select, covered) or _reads_groups(select, covered):
        return []
    if (
        isinstance(function, _EDGES)
        and frame is None
        and all(each in covered for each in _atoms([function.this], set()))
    ):
        return []
    groups = _groups(select)
    used = [*select.expressions, *(select.args[each] for each in ("qualify", "order") if select.args.get(each))]
    atoms = _atoms(used, {_text(each) for each in groups})
    missing = list(dict.fromkeys(shown for text, shown in atoms.items() if text not in covered))
    name = written_name(function) if isinstance(function, exp.Func) else function.key
    return [_reason(window, f"{name} over this order", missing, "to ORDER BY of the window")] if missing else []


def _spec_of(window: Any, select: Any) -> Any:
    """Return the definition of a window: its own, or the one that it names."""
    named = select.args.get("windows") or ()
    name = window.alias.lower()
    return next((each for each in named if name and each.name.lower() == name), window)


def _is_whole(frame: Any) -> bool:
    sides = [str(frame.args.get(each)).upper() for each in ("start", "end")]
    return sides == ["UNBOUNDED", "UNBOUNDED"]


def _of_pick(pick: Any) -> list[Reason]:
    """Refuse min_by and max_by of values that differ where the order is equal."""
    order = pick.expression
    parts = [
        each.expression if isinstance(each, exp.PropertyEQ) else each for each in getattr(order, "expressions", ())
    ]
    there = {_text(order)} | ({_text(each) for each in parts} if isinstance(order, exp.Struct) else set())
    select = pick.find_ancestor(exp.Select)
    there |= {_text(each) for each in _groups(select)} if select is not None else set()
    value = pick.this
    if _text(value) in there or all(each in there for each in _atoms([value], set())):
        return []
    name = written_name(pick)
    what = f"{name} leaves open which of the values with the same order it takes"
    instead = f"add the value to the order: {name}({_plain(value)}, struct({_plain(order)}, {_plain(value)}))"
    return [reason_at(pick, what, instead, forbidden=True)]


def _groups(select: Any) -> list[Any]:
    """Return the keys of GROUP BY; none if there are several grouping sets, whose rows may agree in all keys."""
    group = select.args.get("group")
    if group is None or any(group.args.get(each) for each in ("rollup", "cube", "grouping_sets", "all", "totals")):
        return []
    sets = (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Literal)
    return [] if any(isinstance(each, sets) for each in group.expressions) else list(group.expressions)


def _is_of_groups(select: Any, covered: set[str]) -> bool:
    """Return whether the rows of a SELECT are groups, whose keys are all in an order."""
    groups = _groups(select)
    if groups:
        return all(_text(each) in covered for each in groups)
    if select.args.get("group") is not None:
        return False
    plain = (each for item in select.expressions for each in item.find_all(exp.AggFunc))
    return any(not _is_in_window(each) for each in plain)


def _reads_groups(select: Any, covered: set[str]) -> bool:
    """Return whether a SELECT reads nothing but the groups of another one, whose keys are all in an order."""
    source = select.args["from_"].this if select.args.get("from_") else None
    inner = source.this if isinstance(source, exp.Subquery) else None
    if source is None or select.args.get("joins") or select.args.get("laterals") or not isinstance(inner, exp.Select):
        return False
    groups = {_text(each) for each in _groups(inner)}
    names = {_text(_value(each)): each.alias_or_name for each in inner.expressions}
    alias = exp.to_identifier(source.alias, quoted=True)
    keys = [exp.column(exp.to_identifier(names[each], quoted=True), alias) for each in groups if each in names]
    return bool(groups) and len(keys) == len(groups) and all(_text(each) in covered for each in keys)


def _is_in_window(node: Any) -> bool:
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        above = above.parent
    return isinstance(above, exp.Window)


def _atoms(nodes: Iterable[Any], groups: set[str]) -> dict[str, str]:
    """Return what nodes use of a row, as compared and as shown: columns, and of groups their keys and aggregates."""
    found: dict[str, str] = {}
    for node in nodes:
        for text, each in _used(node, groups):
            found[text] = _plain(each)
    return found


def _used(node: Any, groups: set[str]) -> Iterator[tuple[str, Any]]:
    is_of_group = _text(node) in groups or (groups and isinstance(node, exp.AggFunc) and not _is_in_window(node))
    if is_of_group or isinstance(node, exp.Column | exp.Star):
        yield _text(node), node
    else:
        for each in node.iter_expressions():
            yield from _used(each, groups)


def _reason(node: Any, subject: str, missing: Sequence[str], where: str) -> Reason:
    what = f"{subject} leaves ties open, which Spark breaks in no fixed order"
    return reason_at(node, what, f"add {', '.join(missing)} {where}", forbidden=True)


def _value(item: Any) -> Any:
    return item.this if isinstance(item, exp.Alias) else item


def _shown(item: Any) -> str:
    return _STAR if item.is_star else str(item.alias_or_name or _plain(item))


def _plain(node: Any) -> str:
    """Return the text of a node without the quotes that the parser adds, for a message."""
    if isinstance(node, exp.Star):
        return _STAR
    return re.sub(r"\b_\d+\.", "", node.sql("spark", comments=False).replace("`", ""))


def _text(node: Any) -> str:
    return str(node.sql("spark", comments=False)).lower()
