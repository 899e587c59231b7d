"""The naive oracle of views: plans evaluated over Python multisets, straight from the equations of the algebra.

A relation is a Counter from rows (tuples, in the order of the columns) to counts. Nothing is fast here, and nothing is
shared with the engines: only the plans and the rules for changes are.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from timespine.views.plan.algebra import (
    Aggregate,
    AggregateCall,
    At,
    Delta,
    Explode,
    Filter,
    InputScan,
    Join,
    Negate,
    PlanNode,
    Project,
    Restrict,
    SetOperation,
    SortKey,
    Top,
    Union,
    WindowCall,
    WindowNode,
    children_of,
    names_of,
)
from timespine.views.plan.delta import NEW, OLD, delta_rule, rebuild
from timespine.views.plan.expressions import Expression, Literal, PlanColumn

ViewRow = tuple[Any, ...]
Multiset = Counter[ViewRow]


class Versions:
    """The inputs before and after a change."""

    def __init__(
        self,
        old: Mapping[str, Multiset],
        new: Mapping[str, Multiset],
        columns: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.tables = {OLD: old, NEW: new}
        self.columns = columns
        """The columns of the tables; None if every plan reads all of them, in order."""

    def at(self, plan: PlanNode, version: str) -> Multiset:
        """Evaluate a plan over one version of the inputs."""
        if isinstance(plan, InputScan):
            rows = self.tables[version][plan.input]
            if self.columns is None:
                return Counter(rows)
            places = [self.columns[plan.input].index(source) for _, source in plan.outputs]
            got: Multiset = Counter()
            for row, count in rows.items():
                got[tuple(row[place] for place in places)] += count
            return got
        return self.evaluate(rebuild(plan, tuple(At(child, version) for child in children_of(plan))))

    def evaluate(self, plan: PlanNode) -> Multiset:
        """Evaluate a plan of rules: its leaves are versions and changes of other plans."""
        if isinstance(plan, At):
            return self.at(plan.node, plan.version)
        if isinstance(plan, Delta):
            if isinstance(plan.node, InputScan):
                return minus(self.at(plan.node, NEW), self.at(plan.node, OLD))
            return self.evaluate(delta_rule(plan.node))
        return apply_node(plan, [self.evaluate(child) for child in children_of(plan)])


def minus(one: Multiset, other: Multiset) -> Multiset:
    """Return the difference of two multisets, with negative counts and without zeros."""
    return Counter({row: one[row] - other[row] for row in {*one, *other} if one[row] != other[row]})


def apply_node(plan: PlanNode, parts: list[Multiset]) -> Multiset:
    """Apply one node to the relations of its children."""
    got: Multiset = Counter()
    if isinstance(plan, Filter):
        for row, count in parts[0].items():
            if value_of(plan.condition, _named(plan.child, row)) is True:
                got[row] += count
    elif isinstance(plan, Project):
        for row, count in parts[0].items():
            named = _named(plan.child, row)
            got[tuple(value_of(each, named) for _, each in plan.outputs)] += count
    elif isinstance(plan, Explode):
        got = _exploded(plan, parts[0])
    elif isinstance(plan, Union):
        for part in parts:
            for row, count in part.items():
                got[row] += count
    elif isinstance(plan, Negate):
        got = Counter({row: -count for row, count in parts[0].items()})
    elif isinstance(plan, Restrict):
        wanted = {_chosen(plan.by, row, plan.by_names) for row, count in parts[1].items() if count}
        got = Counter({row: n for row, n in parts[0].items() if _chosen(plan.child, row, plan.names) in wanted})
    elif isinstance(plan, Join):
        got = _join(plan, *parts)
    elif isinstance(plan, Aggregate):
        got = _aggregate(plan, parts[0])
    elif isinstance(plan, SetOperation):
        for row in {*parts[0], *parts[1]}:
            got[row] = SET_OPERATIONS[plan.kind](parts[0][row], parts[1][row])
    elif isinstance(plan, WindowNode):
        got = _window(plan, parts[0])
    elif isinstance(plan, Top):
        key = sorting(plan.child, plan.order)
        for row in itertools.islice(sorted(_repeated(parts[0]), key=key), plan.limit):
            got[row] += 1
    else:
        raise AssertionError(plan)
    return Counter({row: count for row, count in got.items() if count})


SET_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "intersect": lambda left, right: int(left > 0 and right > 0),
    "intersect all": lambda left, right: max(min(left, right), 0),
    "except": lambda left, right: int(left > 0 and right <= 0),
    "except all": lambda left, right: max(left - right, 0),
}


def _named(plan: PlanNode, row: ViewRow) -> dict[str, Any]:
    return dict(zip(names_of(plan), row, strict=True))


def _chosen(plan: PlanNode, row: ViewRow, names: tuple[str, ...]) -> ViewRow:
    named = _named(plan, row)
    return tuple(named[name] for name in names)


def _repeated(rows: Multiset) -> list[ViewRow]:
    assert all(count > 0 for count in rows.values()), "a relation has positive counts"
    return list(rows.elements())


def _exploded(plan: Explode, rows: Multiset) -> Multiset:
    got: Multiset = Counter()
    for row, count in rows.items():
        named = _named(plan.child, row)
        elements: list[tuple[int | None, Any]] = [*enumerate(value_of(plan.array, named) or ())]
        elements = elements or [(None, None)] * plan.is_outer
        for place, element in elements:
            places = () if plan.position is None else (place,)
            got[(*(named[column.name] for column in plan.kept), *places, element)] += count
    return got


def _join(plan: Join, left: Multiset, right: Multiset) -> Multiset:
    got: Multiset = Counter()
    for row, count in left.items():
        here = _named(plan.left, row)
        matched = False
        for other, times in right.items():
            both = here | _named(plan.right, other)
            keys = [(both[one.name], both[two.name]) for one, two in plan.keys]
            if any(one is None or two is None or one != two for one, two in keys):
                continue
            if plan.condition is not None and value_of(plan.condition, both) is not True:
                continue
            matched = matched or times > 0
            if plan.kind == "inner":
                got[(*row, *other)] += count * times
        if plan.kind != "inner" and matched == (plan.kind == "semi"):
            got[row] += count
    return got


def _aggregate(plan: Aggregate, rows: Multiset) -> Multiset:
    groups: dict[ViewRow, list[tuple[dict[str, Any], int]]] = defaultdict(list)
    if not plan.keys:
        groups[()] = []
    for row, count in rows.items():
        named = _named(plan.child, row)
        groups[tuple(named[column.name] for column in plan.keys)].append((named, count))
    shown = ((*key, *(aggregate_of(call, members) for _, call in plan.calls)) for key, members in groups.items())
    return Counter(shown)


def aggregate_of(call: AggregateCall | WindowCall, members: list[tuple[dict[str, Any], int]]) -> Any:
    """Apply an aggregate function to the rows of a group."""
    if call.argument is None:
        return sum(count for _, count in members)
    values = [(value, count) for row, count in members if (value := value_of(call.argument, row)) is not None]
    if call.function in ("min_by", "max_by"):
        return _picked(call.function, [value for value, _ in values if value[1] is not None])
    if call.function == "sum distinct":
        return sum({value for value, _ in values}) if values else None
    if call.function == "count":
        return sum(count for _, count in values)
    if call.function == "count distinct":
        return len({value for value, _ in values})
    if not values:
        return None
    if call.function == "sum":
        return sum(value * count for value, count in values)
    if call.function == "avg":
        return sum(value * count for value, count in values) / sum(count for _, count in values)
    return {"min": min, "max": max}[call.function](value for value, _ in values)


def _picked(function: str, pairs: list[tuple[Any, Any]]) -> Any:
    """Return the value whose order is the least, or the greatest; the value itself breaks ties, nulls before others."""
    ordered = sorted(pairs, key=lambda pair: (pair[1], pair[0] is not None, Plain(pair[0])))
    return None if not ordered else ordered[0 if function == "min_by" else -1][0]


def _window(plan: WindowNode, rows: Multiset) -> Multiset:
    got: Multiset = Counter()
    parts: dict[ViewRow, list[ViewRow]] = defaultdict(list)
    for row in _repeated(rows):
        parts[_chosen(plan.child, row, tuple(column.name for column in plan.partition))].append(row)
    for members in parts.values():
        values = [_window_values(plan, call, members) for _, call in plan.calls]
        for place, row in enumerate(members):
            got[(*row, *(each[place] for each in values))] += 1
    return got


def _window_values(plan: WindowNode, call: WindowCall, members: list[ViewRow]) -> list[Any]:
    """Return the value of a window function for each row of a partition."""
    if not call.order:
        named = [(_named(plan.child, row), 1) for row in members]
        return [aggregate_of(call, named)] * len(members)
    by_order = sorting(plan.child, call.order, ties=False)
    whole = sorting(plan.child, call.order)
    places = sorted(range(len(members)), key=lambda place: whole(members[place]))
    if call.function not in ("row_number", "rank", "dense_rank"):
        return _in_order(plan, call, members, places, by_order)
    values: list[Any] = [None] * len(members)
    for number, place in enumerate(places, 1):
        mine = by_order(members[place])
        before = [by_order(each) for each in members if by_order(each) < mine]
        kinds = {"row_number": number, "rank": len(before) + 1, "dense_rank": len(set(before)) + 1}
        values[place] = kinds[call.function]
    return values


def _in_order(
    plan: WindowNode, call: WindowCall, members: list[ViewRow], places: list[int], by_order: Callable[[ViewRow], Any]
) -> list[Any]:
    """Return neighbours, and aggregates of the rows up to each row, or up to its peers."""
    values: list[Any] = [None] * len(members)
    for number, place in enumerate(places):
        if call.function in ("lag", "lead"):
            assert call.argument is not None
            other = number + int(call.extra or 1) * (-1 if call.function == "lag" else 1)
            if 0 <= other < len(places):
                values[place] = value_of(call.argument, _named(plan.child, members[places[other]]))
            continue
        mine = by_order(members[place])
        upto = places[: number + 1]
        if not call.frame:
            upto = [each for each in places if not mine < by_order(members[each])]
        values[place] = aggregate_of(call, [(_named(plan.child, members[each]), 1) for each in upto])
    return values


def sorting(plan: PlanNode, order: tuple[SortKey, ...], *, ties: bool = True) -> Callable[[ViewRow], tuple[Any, ...]]:
    """Return the key to sort rows by; columns that the order does not name break ties."""

    def key(row: ViewRow) -> tuple[Any, ...]:
        named = _named(plan, row)
        parts: list[Any] = []
        for each in order:
            value = named[each.column.name]
            null = (value is None) == each.nulls_last
            parts.append((null, Reverse(value) if each.descending else Plain(value)))
        if ties:
            parts.extend((value is not None, Plain(value)) for value in row)
        return tuple(parts)

    return key


class Plain:
    """A value in its order; nulls compare equal, since their place is decided before."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Plain) -> bool:
        return self.value is not None and other.value is not None and bool(self.value < other.value)


class Reverse(Plain):
    """A value in the opposite order."""

    def __lt__(self, other: Plain) -> bool:
        return self.value is not None and other.value is not None and bool(other.value < self.value)

    __hash__ = Plain.__hash__


# Expressions: those that random plans have.

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def value_of(expression: Expression, row: Mapping[str, Any]) -> Any:
    """Evaluate an expression on one row, with three-valued logic."""
    if isinstance(expression, PlanColumn):
        return row[expression.name]
    if isinstance(expression, Literal):
        return expression.value
    args = [value_of(each, row) for each in expression.args]
    name = expression.function
    if name == "and":
        return False if False in args else None if None in args else True
    if name == "or":
        return True if True in args else None if None in args else False
    if name == "is null":
        return args[0] is None
    if name in ("struct", "array"):
        return tuple(args)
    if name == "coalesce":
        return next((each for each in args if each is not None), None)
    if name == "<=>":
        return args[0] == args[1]
    if name == "case":
        *pairs, otherwise = args
        return next((pairs[i + 1] for i in range(0, len(pairs), 2) if pairs[i] is True), otherwise)
    if any(each is None for each in args):
        return None
    if name in COMPARISONS:
        return COMPARISONS[name](args[0], args[1])
    if name == "not":
        return not args[0]
    if name == "cast":
        return args[0]
    return ARITHMETIC[name](args[0], args[1])
