"""GROUP BY, aggregates, HAVING and windows of one SELECT.

ROLLUP, CUBE and GROUPING SETS are several GROUP BYs. As in Spark, each row comes once for each of the sets, with nulls
for the keys that are not in it and the number of the set; then there is one aggregate, by all keys and that number.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from timespine.views.plan.algebra import Aggregate, AggregateCall, PlanNode, Project, SortKey, Union, WindowNode
from timespine.views.plan.expressions import Expression, Literal, PlanColumn
from timespine.views.sql.aggregates import Aggregates, arguments_of, is_aggregate
from timespine.views.sql.refusal_reasons import (
    WITHOUT_TABLE,
    FollowsRefusal,
    NoRule,
    Reason,
    check_args,
    reason_at,
    refuse,
)
from timespine.views.sql.relations import Relation, filtered, with_columns
from timespine.views.sql.scalars import Scalars
from timespine.views.sql.windows import window_call

if TYPE_CHECKING:
    from timespine.views.sql.from_sql import Builder, Named

SETS_MAX = 64
"""Most grouping sets of a GROUP BY: each reads the rows once."""

_SETS = (exp.GroupingSets, exp.Rollup, exp.Cube)


class SelectGroups:
    """The part of a SELECT after WHERE: it replaces the plan of its relation step by step."""

    def __init__(
        self, builder: Builder, relation: Relation, node: Any, ctes: Mapping[str, tuple[PlanNode, Named]]
    ) -> None:
        self._builder = builder
        self._relation = relation
        self._node = node
        self._ctes = ctes
        self._known: dict[str, PlanColumn] = {}
        """The columns of group expressions, aggregates and windows, by their text."""
        self._refused: set[str] = set()
        """The texts of group expressions, aggregates and windows that have no rule: their reasons are noted."""
        self._has_unknown_keys = False
        """Whether GROUP BY itself is refused, so that any column may be a key."""
        self.is_grouped = node.args.get("group") is not None or any(self._aggregates())
        if self.is_grouped:
            self._group()

    def scalar(self, node: Any) -> Expression:
        """Translate an expression of SELECT or HAVING."""
        return Scalars(self._resolve, self._builder.types).translate(node)

    def collected(self, node: Any) -> Expression | None:
        """Translate an expression of SELECT or HAVING; if it is refused, note the reasons and return None."""
        return self._builder.collected_by(Scalars(self._resolve, self._builder.types), node)

    def _resolve(self, node: Any) -> Expression | None:
        known = self._known.get(_text(node))
        if known is not None:
            return known
        if _text(node) in self._refused:
            raise FollowsRefusal
        if isinstance(node, exp.WithinGroup) and _text(node.this) in self._refused:
            raise FollowsRefusal
        if isinstance(node, exp.Subquery):
            return self._builder.subquery_value(node, self._relation, self._ctes)
        if self._has_unknown_keys and isinstance(node, exp.Column | exp.Grouping | exp.GroupingId):
            raise FollowsRefusal
        if self.is_grouped and isinstance(node, exp.Column):
            # Spark takes `b + a` for the key `a + b`, so only a column that is in no key is certainly wrong.
            what = f"{node.name} is neither grouped nor aggregated"
            raise refuse(node, what, "add it to GROUP BY", forbidden=self._is_in_no_key(node))
        return self._builder.resolve(node, self._relation)

    def _is_in_no_key(self, column: Any) -> bool:
        """Return whether GROUP BY names a column of this SELECT nowhere, also not in an expression."""
        group = self._node.args.get("group")
        own = (column.table.lower(), column.name.lower()) in self._relation.scope
        return own and (group is None or not (group.args.get("all") or column in set(group.find_all(exp.Column))))

    def _parts(self) -> list[Any]:
        """List the expressions of SELECT, HAVING, and ORDER BY with LIMIT."""
        order = [each.this for each in sort_items(self._node)]
        return [*self._node.expressions, self._node.args.get("having"), *order]

    def _aggregates(self) -> list[Any]:
        """List the aggregates of SELECT, HAVING and ORDER BY, each text once."""
        found: dict[str, Any] = {}
        for part in self._parts():
            for each in _walk(part):
                if isinstance(each, exp.Grouping | exp.GroupingId):
                    continue
                is_whole = not isinstance(each.parent, exp.Filter | exp.Window) and not is_aggregate(each.parent)
                if (is_aggregate(each) or isinstance(each, exp.Filter)) and is_whole:
                    found.setdefault(_text(each), each)
        return list(found.values())

    def _group(self) -> None:
        builder, relation = self._builder, self._relation
        found = builder.collect(self._group_expressions)
        self._has_unknown_keys = found is None
        nodes, sets = found or ([], None)
        made = {_text(each): builder.collected(each, relation) for each in nodes}
        self._refused.update(text for text, each in made.items() if each is None)
        keys = {text: each for text, each in made.items() if each is not None}
        texts = [_text(each) for each in nodes if _text(each) in keys]
        plan, columns = with_columns(builder.fresh, relation.plan, [keys[text] for text in texts])
        builder.check_keys(self._node.args.get("group") or self._node, columns, "GROUP BY")
        calls = self._calls()
        if sets is not None and not self._refused:
            expanded = builder.collect(self._expand, plan, texts, columns, sets)
            self._has_unknown_keys = expanded is None
            plan, columns = expanded or (plan, columns)
        self._known.update(zip(texts, columns, strict=False))
        if self._refused or self._has_unknown_keys:
            relation.is_partial = True
        else:
            relation.plan = Aggregate(plan, tuple(dict.fromkeys(columns)), tuple(calls))

    def _calls(self) -> list[tuple[PlanColumn, AggregateCall]]:
        """Translate the aggregates; note the reasons of those that are refused, and of their arguments."""
        builder, relation = self._builder, self._relation
        scalars = Scalars(lambda each: builder.resolve(each, relation), builder.types)
        aggregates = Aggregates(scalars.translate, builder.types)
        calls = []
        for each in self._aggregates():
            try:
                if builder.leaves_open(each):
                    raise FollowsRefusal
                made = aggregates.translate(each)
            except NoRule as refused:
                builder.note(refused)
                inner = each.this if isinstance(each, exp.Filter) else each
                for part in [*arguments_of(inner), *([each.expression.this] if inner is not each else [])]:
                    builder.reasons.extend(scalars.reasons(part))
                self._refused.add(_text(each))
                continue
            column = builder.fresh.column(_text(each).lower(), made.type)
            self._known[_text(each)] = column
            calls.append((column, made))
        return calls

    def _expand(
        self, plan: PlanNode, texts: list[str], columns: list[PlanColumn], sets: list[list[str]]
    ) -> tuple[PlanNode, list[PlanColumn]]:
        """Give each row once for each grouping set; return the plan and the keys of its groups."""
        fresh = self._builder.fresh
        keys = [fresh.column(each.name.partition("#")[0], each.type) for each in columns]
        place = fresh.column("set", pa.int32())
        asked = self._groupings(texts, [each.name for each in columns])
        marks = [(fresh.column("grouping", kind), wanted) for kind, wanted in asked.values()]
        parts: list[PlanNode] = []
        for number, members in enumerate(sets):
            given = [
                (key, column if text in members else Literal(None, key.type))
                for key, column, text in zip(keys, columns, texts, strict=True)
            ]
            bits = [
                (mark, Literal(int("".join("01"[text not in members] for text in wanted) or "0", 2), mark.type))
                for mark, wanted in marks
            ]
            kept = [(each, each) for each in plan.columns]
            parts.append(Project(plan, (*kept, *given, *bits, (place, Literal(number, pa.int32())))))
        self._known.update(zip(asked, (mark for mark, _ in marks), strict=True))
        return Union(tuple(parts)), [*keys, *(mark for mark, _ in marks), place]

    def _groupings(self, texts: list[str], names: Sequence[str]) -> dict[str, tuple[pa.DataType, list[str]]]:
        """List the uses of grouping() and grouping_id(): their types, and the keys whose absence they tell."""
        found: dict[str, tuple[pa.DataType, list[str]]] = {}
        for part in self._parts():
            for each in _walk(part):
                if isinstance(each, exp.Grouping):
                    wanted = [_text(argument) for argument in each.expressions]
                    found[_text(each)] = (pa.int8(), wanted)
                    is_wrong = len(wanted) != 1 or wanted[0] not in texts
                elif isinstance(each, exp.GroupingId):
                    wanted = [_text(argument) for argument in each.expressions]
                    found[_text(each)] = (pa.int64(), texts)
                    is_wrong = wanted not in ([], texts)
                else:
                    continue
                if is_wrong:
                    keys = ", ".join(each.partition("#")[0] for each in names)
                    raise refuse(each, f"{each.key} takes a key of GROUP BY", f"these are {keys}")
        return found

    def _group_expressions(self) -> tuple[list[Any], list[list[str]] | None]:
        """Return the keys of GROUP BY, and the grouping sets by the texts of their keys; None if there is one."""
        group = self._node.args.get("group")
        if group is None:
            return [], None
        check_args(group, {"expressions", "all", "grouping_sets", "cube", "rollup"})
        if group.args.get("all"):
            items = [each.this if isinstance(each, exp.Alias) else each for each in self._node.expressions]
            return [each for each in items if not each.find(exp.AggFunc)], None
        plain = [each for each in group.expressions if not isinstance(each, _SETS)]
        after = [each for name in ("rollup", "cube", "grouping_sets") for each in group.args.get(name) or ()]
        if len(plain) == len(group.expressions) and not after:
            return plain, None
        if after:  # GROUP BY a, b WITH ROLLUP; GROUP BY a, b GROUPING SETS (...)
            parts = [_sets_of(each, plain) for each in after]
        else:
            parts = [_sets_of(each, ()) for each in group.expressions]
        sets = [list(itertools.chain(*each)) for each in itertools.islice(itertools.product(*parts), SETS_MAX + 1)]
        if len(sets) > SETS_MAX:
            raise refuse(group, f"more than {SETS_MAX} grouping sets have no rule", "write several views")
        keys = {_text(each): each for each in itertools.chain(plain, *itertools.chain(*parts))}
        if any(isinstance(each, exp.Literal) for each in keys.values()):
            raise refuse(group, "positions inside of grouping sets have no rule", "write the names of the columns")
        if sets == [[]]:  # one row also of no rows, as in Spark; beside other sets, the empty one has none then
            return [], None
        return list(keys.values()), [list(map(_text, each)) for each in sets]

    # HAVING and windows.

    def having(self) -> None:
        """Filter the groups."""
        having = self._node.args.get("having")
        if having is None:
            return
        condition = self.collected(having.this)
        if condition is not None:
            self._relation.plan = filtered(self._relation.plan, [condition])

    def windows(self) -> None:
        """Add the values of window functions, as columns."""
        found: dict[str, Any] = {}
        for each in [*self._node.expressions, *(each.this for each in sort_items(self._node))]:
            for node in _walk(each):
                if isinstance(node, exp.Window):
                    found.setdefault(_text(node), node)
        for text, node in found.items():
            column = self._builder.collect(self._window, node)
            if column is None:
                self._refused.add(text)
            else:
                self._known[text] = column

    def _window(self, node: Any) -> PlanColumn:
        builder = self._builder
        before = len(builder.reasons)
        if node.alias and self._node.args.get("windows"):
            raise FollowsRefusal  # of the windows that have names
        if node.alias:
            raise refuse(node, f"there is no window {node.alias}", "define it: WINDOW name AS (...)", forbidden=True)
        if not node.args.get("partition_by"):
            what = "a window without PARTITION BY is recomputed whole at every change"
            builder.note(refuse(node, what, "add one, or policy 'full'"))
        builder.collect(check_args, node, {"this", "partition_by", "order", "spec", "over"})
        order = node.args["order"].expressions if node.args.get("order") else []
        for each in order:
            builder.collect(check_args, each, {"this", "desc", "nulls_first"})
        written = [*(node.args.get("partition_by") or ()), *(each.this for each in order)]
        wanted = [self.collected(each) for each in written]
        found = [each for each in wanted if each is not None]
        if len(found) < len(wanted):
            raise FollowsRefusal
        parts = found[: len(found) - len(order)]
        plan, columns = with_columns(builder.fresh, self._relation.plan, found)
        builder.check_keys(node, columns, "a window")
        keys = tuple(sort_key(each, column) for each, column in zip(order, columns[len(parts) :], strict=True))
        if builder.leaves_open(node.this):
            raise FollowsRefusal
        made = window_call(node, keys, self.scalar, builder.types)
        if len(builder.reasons) > before:
            raise FollowsRefusal
        column = self._builder.fresh.column(_text(node).lower(), made.type)
        self._relation.plan = WindowNode(plan, tuple(dict.fromkeys(columns[: len(parts)])), ((column, made),))
        return column


def _sets_of(item: Any, plain: Sequence[Any]) -> list[list[Any]]:
    """Return the grouping sets of one item of GROUP BY; `plain` has the keys of GROUP BY ... WITH ROLLUP."""
    units = [_members(each) for each in item.expressions or plain] if isinstance(item, _SETS) else []
    if isinstance(item, exp.Rollup):
        return [list(itertools.chain(*units[:size])) for size in range(len(units), -1, -1)]
    if isinstance(item, exp.Cube):
        chosen = itertools.product((True, False), repeat=len(units))
        picked = itertools.islice(chosen, SETS_MAX + 1)
        return [list(itertools.chain(*itertools.compress(units, each))) for each in picked]
    if isinstance(item, exp.GroupingSets):
        return [one for each in item.expressions for one in _sets_of(each, ())]
    return [_members(item)]


def _members(node: Any) -> list[Any]:
    """Return the keys of a grouping set: one, or several in parentheses, or none."""
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.this] if isinstance(node, exp.Paren) else [node]


def sort_items(node: Any) -> list[Any]:
    """List the items of ORDER BY, if a LIMIT makes them matter."""
    order = node.args.get("order")
    return list(order.expressions) if order is not None and node.args.get("limit") is not None else []


def name_outputs_in_order(node: Any) -> list[Reason]:
    """Put the expressions of SELECT in the places of their names inside of ORDER BY; return what has no rule.

    A name alone stays: it is the column of the result.
    """
    values = {each.alias_or_name.lower(): each.unalias() for each in node.expressions}
    reasons = []
    for item in sort_items(node):
        for each in _walk(item.this) if not isinstance(item.this, exp.Column) else ():
            value = values.get(each.name.lower()) if isinstance(each, exp.Column) else None
            if value is None:
                continue
            if each.meta.get(WITHOUT_TABLE) and value != each:
                what = f"{each.name} inside of an aggregate is a column of the result, and of what it reads"
                reasons.append(reason_at(item, what, "write the table before it, or another name after AS"))
            elif not each.table:
                each.replace(exp.paren(value.copy()))
    return reasons


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
