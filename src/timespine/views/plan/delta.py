"""How a change of the inputs changes a plan: one rule per node, pure.

With o and n for a relation before and after, and d = n - o:

    linear      d(f(R)) = f(d(R))                                  filter, project, explode, union
    join        d(L x Q) = dL x oQ + nL x dQ                        n ways: n terms, since both times can be read
    semi, anti  d = (dL . nQ) + (T . nQ) - (T . oQ)                 T: rows of oL whose keys occur in dQ
    the others  d = f(n restricted to K) - f(o restricted to K)     K: the keys that occur in the changes below

Proof of the third: nL.nQ - oL.oQ = dL.nQ + oL.nQ - oL.oQ, and a row of oL whose keys do not occur in dQ matches
the same rows of nQ and oQ, so that it cancels out. Proof of the fourth: f treats the rows of each key apart, and
where no change has a key, its rows are the same before and after.

A rule speaks of the changes of the nodes below by `Delta`, and of their rows by `At`. The evaluator decides how to
get these, from inputs or from stages. tests/views/test_delta.py compares all rules with recomputation.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from timespine.views.plan.algebra import (
    Aggregate,
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
    Top,
    Union,
    WindowNode,
    names_of,
)
from timespine.views.plan.expressions import Literal, PlanColumn

OLD, NEW = "old", "new"


def delta_rule(node: PlanNode) -> PlanNode:
    """Return the change of a node, in terms of the changes and the rows of the nodes below it."""
    if isinstance(node, Filter):
        return Filter(Delta(node.child), node.condition)
    if isinstance(node, Project):
        return Project(Delta(node.child), node.outputs)
    if isinstance(node, Explode):
        return replace(node, child=Delta(node.child))
    if isinstance(node, Union):
        return Union(tuple(Delta(child) for child in node.children))
    if isinstance(node, Join):
        return _join_rule(node)
    if isinstance(node, Aggregate):
        keys = tuple(column.name for column in node.keys)
        return _recompute_touched(node, keys)
    if isinstance(node, WindowNode):
        return _recompute_touched(node, tuple(column.name for column in node.partition))
    if isinstance(node, SetOperation):
        return _recompute_touched(node, tuple(names_of(node.left)))
    if isinstance(node, Top):
        return _recompute_touched(node, ())
    raise AssertionError(f"{type(node).__name__} has no rule: it is an input, or part of one")


def _join_rule(node: Join) -> PlanNode:
    left, right = node.left, node.right
    if node.kind == "inner":
        first = Join("inner", Delta(left), At(right, OLD), node.keys, node.condition)
        second = Join("inner", At(left, NEW), Delta(right), node.keys, node.condition)
        return Union((first, second))
    here, there = _pairs_apart(node)
    touched = Restrict(At(left, OLD), here, Delta(right), there)
    now = Join(node.kind, touched, At(right, NEW), node.keys, node.condition)
    before = Join(node.kind, touched, At(right, OLD), node.keys, node.condition)
    return Union((Join(node.kind, Delta(left), At(right, NEW), node.keys, node.condition), now, Negate(before)))


def _pairs_apart(node: Join) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return pairs of key columns of both sides of a join in which no column comes twice.

    SUBTLE: `l.a = r.k AND l.b = r.k` compares a column with two others, and a relation of keys has each column once.
    With fewer pairs more rows are touched, and those that do not match a change cancel out (test_delta.py).
    """
    here: dict[str, str] = {}
    for one, two in node.keys:
        if one.name not in here and two.name not in here.values():
            here[one.name] = two.name
    return tuple(here), tuple(here.values())


def _recompute_touched(node: PlanNode, names: tuple[str, ...]) -> PlanNode:
    """Return the node over what has the keys of changes: after, minus before."""
    changed = _changes_below(node, names)

    def over(version: str) -> PlanNode:
        return rebuild(
            node, tuple(Restrict(At(child, version), own, changed, names) for child, own in _below(node, names))
        )

    return Union((over(NEW), Negate(over(OLD))))


def _below(node: PlanNode, names: tuple[str, ...]) -> list[tuple[PlanNode, tuple[str, ...]]]:
    """Return the children of a node, and the names of its keys in each."""
    if isinstance(node, SetOperation):
        return [(node.left, names), (node.right, tuple(names_of(node.right)))]
    assert isinstance(node, Aggregate | WindowNode | Top)
    return [(node.child, names)]


def _changes_below(node: PlanNode, names: tuple[str, ...]) -> PlanNode:
    """Return all changes of the children, under the names of the first."""
    if not isinstance(node, SetOperation):
        assert isinstance(node, Aggregate | WindowNode | Top)
        return Delta(node.child)
    # SUBTLE: a row that leaves one side and comes to the other must not cancel out, so a column tells the sides apart
    # (test_delta.py).
    side = PlanColumn("side", pa.int32())
    left = Project(Delta(node.left), (*((each, each) for each in node.left.columns), (side, Literal(0, pa.int32()))))
    renamed = zip(node.left.columns, node.right.columns, strict=True)
    right = Project(Delta(node.right), (*renamed, (side, Literal(1, pa.int32()))))
    return Union((left, right))


def rebuild(node: PlanNode, children: tuple[PlanNode, ...]) -> PlanNode:
    """Return a node like another one, over other children with the same columns."""
    if isinstance(node, InputScan):
        return node
    if isinstance(node, Filter):
        return Filter(children[0], node.condition)
    if isinstance(node, Project):
        return Project(children[0], node.outputs)
    if isinstance(node, Explode):
        return replace(node, child=children[0])
    if isinstance(node, Union):
        return Union(children)
    if isinstance(node, Join):
        return Join(node.kind, children[0], children[1], node.keys, node.condition)
    if isinstance(node, Aggregate):
        return Aggregate(children[0], node.keys, node.calls)
    if isinstance(node, SetOperation):
        return SetOperation(node.kind, children[0], children[1])
    if isinstance(node, WindowNode):
        return WindowNode(children[0], node.partition, node.calls)
    assert isinstance(node, Top)
    return Top(children[0], node.order, node.limit)
