"""Leave out the columns of a plan that nothing above needs, so that inputs are read by the columns that matter."""

from __future__ import annotations

from dataclasses import replace

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
    children_of,
    names_of,
    nodes_of,
)
from timespine.views.plan.delta import rebuild
from timespine.views.plan.expressions import Expression, PlanColumn, columns_of


def prune_columns(plan: PlanNode) -> PlanNode:
    """Return a plan with the same result whose nodes have only columns that are needed."""
    order = list(nodes_of(plan))
    needed: dict[PlanNode, set[str]] = {node: set() for node in order}
    needed[plan] = set(names_of(plan))
    for node in reversed(order):
        for child, names in zip(children_of(node), _needs(node, needed[node]), strict=True):
            needed[child] |= names & set(names_of(child))
    made: dict[PlanNode, PlanNode] = {}
    for node in order:
        made[node] = _narrowed(node, needed[node], tuple(made[child] for child in children_of(node)))
    return made[plan]


def _needs(node: PlanNode, above: set[str]) -> list[set[str]]:
    """Return the columns that a node needs of each child, for those that are needed of it."""
    if isinstance(node, Filter):
        return [above | columns_of(node.condition)]
    if isinstance(node, Project):
        return [set().union(*(columns_of(each) for column, each in _kept(node, above)))]
    if isinstance(node, Explode):
        return [{column.name for column in node.kept if column.name in above} | columns_of(node.array)]
    if isinstance(node, Join):
        keys = {column.name for pair in node.keys for column in pair}
        more = columns_of(node.condition) if node.condition is not None else frozenset()
        return [above | keys | more, above | keys | more]
    if isinstance(node, Aggregate):
        arguments = [columns_of(call.argument) for _, call in node.calls if call.argument is not None]
        return [set().union({column.name for column in node.keys}, *arguments)]
    if isinstance(node, Union):
        return [above or set(names_of(node)[:1]) for _ in node.children]
    if isinstance(node, WindowNode):
        # SUBTLE: all columns, since ties in an order are broken by the whole row (test_from_sql.py).
        return [set(names_of(node.child))]
    return [set(names_of(child)) for child in children_of(node)]


def _kept(node: Project, above: set[str]) -> list[tuple[PlanColumn, Expression]]:
    kept = [(column, each) for column, each in node.outputs if column.name in above]
    return kept or list(node.outputs[:1])


def _narrowed(node: PlanNode, above: set[str], children: tuple[PlanNode, ...]) -> PlanNode:
    if isinstance(node, InputScan):
        outputs = tuple(each for each in node.outputs if each[0].name in above)
        return InputScan(node.input, outputs or node.outputs[:1])
    if isinstance(node, Project):
        return Project(children[0], tuple(_kept(node, above)))
    if isinstance(node, Explode):
        kept = tuple(column for column in node.kept if column.name in above)
        position = node.position if node.position is not None and node.position.name in above else None
        return replace(node, child=children[0], kept=kept, position=position)
    if isinstance(node, Union):
        # The children may keep different columns: bring them to the same ones.
        columns = [column for column in node.columns if column.name in above] or list(node.columns[:1])
        same = tuple((column, column) for column in columns)
        return Union(tuple(child if child.columns == tuple(columns) else Project(child, same) for child in children))
    if isinstance(node, Aggregate):
        calls = tuple(each for each in node.calls if each[0].name in above)
        return Aggregate(children[0], node.keys, calls if node.keys or calls else node.calls[:1])
    assert isinstance(node, Filter | Join | SetOperation | Top | WindowNode)
    return rebuild(node, children)
