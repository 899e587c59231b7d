"""The algebra of views: frozen nodes, each with its meaning as an equation over counts.

A relation is a multiset: a count for each row, written R(row). With [condition] being 1 or 0:

    InputScan       R(row) = the count of the row in a collection
    Filter          R(row) = C(row) * [condition(row) is true]
    Project         R(out) = sum of C(row) over the rows with outputs(row) = out
    Explode         R(row, x) = C(row) * how often x stands in array(row); outer: nulls for a row without elements
    Union           R(row) = sum of C(row) over the children
    Join inner      R(l, r) = L(l) * Q(r) * [keys are equal and not null, and condition(l, r) is true]
    Join semi       R(l) = L(l) * [some r with Q(r) > 0 is matched by l]
    Join anti       R(l) = L(l) * [no r with Q(r) > 0 is matched by l]
    Aggregate       R(keys, values) = [some row has the keys], values taken over C; without keys always 1
    SetOperation    R(row) = f(L(row), Q(row)): min(l, q), max(l - q, 0), [l > 0 and q > 0], [l > 0 and q = 0]
    WindowNode      R(row, values) = C(row), values taken over the rows of its partition
    Top             R(row) = how many of the row are among the first `limit` rows of C in an order

Nulls are equal to each other as keys of groups, partitions and set operations, and in no join.
Outer joins are inner joins beside anti joins (`sql.from_sql`). `plan.delta` has the rules for changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from timespine.views.plan.expressions import Expression, PlanColumn

# Nodes compare by identity: a subquery that is used twice is one node, and is computed once.


@dataclass(frozen=True, slots=True, eq=False)
class InputScan:
    """The rows of an input."""

    input: str
    """The name of the input in the definition."""
    outputs: tuple[tuple[PlanColumn, str], ...]
    """The columns of the plan, and the columns of the input that they are."""

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return tuple(column for column, _ in self.outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """The rows that satisfy a condition."""

    child: PlanNode
    condition: Expression

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.child.columns


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    """Expressions over rows."""

    child: PlanNode
    outputs: tuple[tuple[PlanColumn, Expression], ...]
    """The columns of the result, each with its expression."""

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return tuple(column for column, _ in self.outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Explode:
    """A row for each element of an array, beside columns of the row that has it."""

    child: PlanNode
    kept: tuple[PlanColumn, ...]
    """The columns of the child that stay."""
    array: Expression
    element: PlanColumn
    """The column of the elements."""
    position: PlanColumn | None
    """The column of their places, from 0 on; None: nothing asks for them."""
    is_outer: bool
    """Whether a row without elements stays, with nulls."""

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return (*self.kept, *((self.position,) if self.position is not None else ()), self.element)


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """All rows of several plans, which have the same columns."""

    children: tuple[PlanNode, ...]

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.children[0].columns


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """Rows of two plans that match."""

    kind: str
    """inner, semi or anti."""
    left: PlanNode
    right: PlanNode
    keys: tuple[tuple[PlanColumn, PlanColumn], ...]
    """Columns of the left and right that are equal, of one type each; each pair once."""
    condition: Expression | None = None
    """What must be true as well."""

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return (*self.left.columns, *self.right.columns) if self.kind == "inner" else self.left.columns


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate function of one argument."""

    function: str
    """count, sum, avg, min, max, count distinct, ...; count without an argument counts rows.

    A text with zero characters is for Spark alone: each of these stands for the argument."""
    argument: Expression | None
    """The argument; those of a function of two are a struct of a0 and a1."""
    type: pa.DataType
    """The type of the result."""

    def __str__(self) -> str:
        if "\0" in self.function:
            return self.function.replace("\0", str(self.argument))
        return f"{self.function}({'*' if self.argument is None else self.argument})"


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Groups of rows. Without aggregate functions it gives the distinct rows."""

    child: PlanNode
    keys: tuple[PlanColumn, ...]
    """Columns of the child that identify a group; none: one group of all rows, which is there without rows too."""
    calls: tuple[tuple[PlanColumn, AggregateCall], ...]

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return (*self.keys, *(column for column, _ in self.calls))


@dataclass(frozen=True, slots=True, eq=False)
class SetOperation:
    """INTERSECT and EXCEPT, with and without ALL, of plans with the same columns."""

    kind: str
    """intersect, intersect all, except, except all."""
    left: PlanNode
    right: PlanNode

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.left.columns


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: PlanColumn
    descending: bool
    nulls_last: bool


PLACED = ("row_number", "lag", "lead", "ntile", "first_value", "last_value", "nth_value")
"""Window functions that need a place for each row."""


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A function over the partition of a row."""

    function: str
    """row_number, rank, dense_rank, lag, lead, ..., or an aggregate of the rows of the frame."""
    argument: Expression | None
    order: tuple[SortKey, ...]
    """The order; columns that it does not name break ties, where places matter."""
    type: pa.DataType
    frame: str = ""
    """The frame in Spark SQL; empty: the whole partition, with an order up to the peers of the row."""
    extra: str = ""
    """Constants after the argument, in Spark SQL."""

    @property
    def is_placed(self) -> bool:
        """Whether the value depends on the place of a row among its peers, so that ties have to be broken."""
        return self.function in PLACED or self.frame.startswith("ROWS")


@dataclass(frozen=True, slots=True, eq=False)
class WindowNode:
    """Rows with values over their partitions."""

    child: PlanNode
    partition: tuple[PlanColumn, ...]
    calls: tuple[tuple[PlanColumn, WindowCall], ...]

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return (*self.child.columns, *(column for column, _ in self.calls))


@dataclass(frozen=True, slots=True, eq=False)
class Top:
    """The first rows in an order; the columns that the order does not name break ties, in their order."""

    child: PlanNode
    order: tuple[SortKey, ...]
    limit: int

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.child.columns


# What rules for changes are made of.


@dataclass(frozen=True, slots=True, eq=False)
class At:
    """A plan over the inputs as they were before the refresh ("old"), or are after it ("new")."""

    node: PlanNode
    version: str

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.node.columns


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """The change of a plan: R_new(row) - R_old(row)."""

    node: PlanNode

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.node.columns


@dataclass(frozen=True, slots=True, eq=False)
class Negate:
    """The opposite counts."""

    child: PlanNode

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.child.columns


@dataclass(frozen=True, slots=True, eq=False)
class Restrict:
    """The rows whose values in some columns occur in another plan, with any count but 0; nulls are equal.

    Without columns: all rows if the other plan has any, else none.
    """

    child: PlanNode
    names: tuple[str, ...]
    """Columns of the child."""
    by: PlanNode
    by_names: tuple[str, ...]
    """Columns of the other plan."""

    @property
    def columns(self) -> tuple[PlanColumn, ...]:
        """The columns of the result."""
        return self.child.columns


PlanNode = (
    InputScan
    | Filter
    | Project
    | Explode
    | Union
    | Join
    | Aggregate
    | SetOperation
    | WindowNode
    | Top
    | At
    | Delta
    | Negate
    | Restrict
)


def children_of(plan: PlanNode) -> tuple[PlanNode, ...]:
    """Return the plans right below a plan."""
    if isinstance(plan, InputScan):
        return ()
    if isinstance(plan, Union):
        return plan.children
    if isinstance(plan, Join | SetOperation):
        return plan.left, plan.right
    if isinstance(plan, At | Delta):
        return (plan.node,)
    if isinstance(plan, Restrict):
        return plan.child, plan.by
    return (plan.child,)


def nodes_of(plan: PlanNode) -> Iterator[PlanNode]:
    """Give every node of a plan once, children first."""
    seen: set[int] = set()
    waiting: list[tuple[PlanNode, bool]] = [(plan, False)]
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            waiting.append((node, True))
            waiting.extend((child, False) for child in reversed(children_of(node)))


def levels_of(plan: PlanNode) -> int:
    """Return how many nodes stand above each other in a plan, at most."""
    levels: dict[PlanNode, int] = {}
    for node in nodes_of(plan):
        levels[node] = 1 + max((levels[child] for child in children_of(node)), default=0)
    return levels[plan]


def names_of(plan: PlanNode) -> list[str]:
    """Return the names of the columns of a plan."""
    return [column.name for column in plan.columns]
