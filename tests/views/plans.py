"""Random plans over small tables of numbers with nulls, and random changes of the tables."""

from collections import Counter

import pyarrow as pa
from hypothesis import strategies as st

from timespine.views.plan.algebra import (
    Aggregate,
    AggregateCall,
    Explode,
    Filter,
    InputScan,
    Join,
    Project,
    SetOperation,
    SortKey,
    Top,
    Union,
    WindowCall,
    WindowNode,
)
from timespine.views.plan.expressions import Call, Literal, PlanColumn

INT = pa.int64()
TABLES = {"a": ("k", "g", "v"), "b": ("k", "g", "v")}


class Names:
    def __init__(self):
        self.number = 0

    def column(self, name, type=INT):
        self.number += 1
        return PlanColumn(f"{name}#{self.number}", type)


def scan(names, table):
    return InputScan(table, tuple((names.column(name), name) for name in TABLES[table]))


@st.composite
def conditions(draw, columns):
    one = draw(st.sampled_from(columns))
    two = draw(st.one_of(st.sampled_from(columns), st.integers(0, 4).map(lambda value: Literal(value, INT))))
    made = Call(draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="])), (one, two), pa.bool_())
    if draw(st.integers(0, 4)) == 0:
        made = Call("or", (made, Call("is null", (draw(st.sampled_from(columns)),), pa.bool_())), pa.bool_())
    return made


AGGREGATES = ["count", "sum", "min", "max", "count distinct", "sum distinct", "min_by", "max_by"]


@st.composite
def plans(draw, names, depth):
    kinds = (
        ["scan"]
        if depth == 0
        else [
            *("scan", "filter", "project", "explode", "union", "join", "semi", "anti", "left"),
            *("aggregate", "total", "distinct", "set", "window", "top"),
        ]
    )
    kind = draw(st.sampled_from(kinds))

    def below():
        return draw(plans(names, depth - 1))

    if kind == "scan":
        return scan(names, draw(st.sampled_from(sorted(TABLES))))
    child = below()
    columns = list(child.columns)
    if kind == "filter":
        return Filter(child, draw(conditions(columns)))
    if kind == "project":
        return narrow(draw, names, child, draw(st.integers(1, 3)))
    if kind == "explode":
        return explode(draw, names, child)
    if kind in ("join", "semi", "anti", "left"):
        return join(draw, names, child, below(), kind)
    if kind == "aggregate":
        keys = tuple(draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique=True)))
        return Aggregate(child, keys, calls(draw, names, columns))
    if kind == "total":
        return Aggregate(child, (), calls(draw, names, columns))
    if kind == "distinct":
        return Aggregate(child, tuple(columns), ())
    if kind in ("union", "set"):
        other = below()
        width = min(len(columns), len(other.columns), 2)
        left, right = narrow(draw, names, child, width), narrow(draw, names, other, width)
        if kind == "union":
            renamed = Project(right, tuple(zip(left.columns, right.columns, strict=True)))
            return Union((left, renamed))
        return SetOperation(draw(st.sampled_from(["intersect", "intersect all", "except", "except all"])), left, right)
    order = tuple(
        SortKey(column, draw(st.booleans()), draw(st.booleans()))
        for column in draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique=True))
    )
    if kind == "top":
        return Top(child, order, draw(st.integers(0, 4)))
    partition = tuple(draw(st.lists(st.sampled_from(columns), min_size=1, max_size=1)))
    ranks = draw(st.sampled_from(["row_number", "rank", "dense_rank"]))
    total = draw(st.sampled_from(["count", "sum", "min", "max"]))
    return WindowNode(
        child,
        partition,
        (
            (names.column("r", pa.int32()), WindowCall(ranks, None, order, pa.int32())),
            (names.column("t"), WindowCall(total, as_int(draw(st.sampled_from(columns))), (), INT)),
            (names.column("o"), in_order(draw, columns, order)),
        ),
    )


def in_order(draw, columns, order):
    """A neighbour, or an aggregate of the rows up to each row."""
    argument = as_int(draw(st.sampled_from(columns)))
    if draw(st.booleans()):
        shift = draw(st.sampled_from(["lag", "lead"]))
        return WindowCall(shift, argument, order, INT, "", draw(st.sampled_from(["", "1", "2"])))
    frame = draw(st.sampled_from(["", "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"]))
    return WindowCall(draw(st.sampled_from(["count", "sum", "min", "max"])), argument, order, INT, frame)


def calls(draw, names, columns):
    made = [(names.column("n"), AggregateCall("count", None, INT))]
    for function in draw(st.lists(st.sampled_from(AGGREGATES), max_size=3)):
        argument = draw(st.sampled_from(columns))
        if function.endswith("_by"):
            pair = (as_int(argument), as_int(draw(st.sampled_from(columns))))
            argument = Call("struct", pair, pa.struct([("a0", INT), ("a1", INT)]))
        made.append((names.column("x"), AggregateCall(function, argument, INT)))
    return tuple(made)


def narrow(draw, names, child, width):
    outputs = []
    for _ in range(width):
        one = draw(st.sampled_from(list(child.columns)))
        if draw(st.integers(0, 3)) == 0:
            one = Call("+", (as_int(one), Literal(1, INT)), INT)
        outputs.append((names.column("p"), as_int(one)))
    return Project(child, tuple(outputs))


def explode(draw, names, child):
    """Elements of arrays with nulls and repeated values, of null and empty arrays too."""
    columns = list(child.columns)
    values = [as_int(each) for each in draw(st.lists(st.sampled_from(columns), min_size=1, max_size=3))]
    array = Call("array", tuple(values), pa.list_(INT))
    if draw(st.booleans()):
        array = Call("case", (draw(conditions(columns)), array, Literal(None, array.type)), array.type)
    kept = tuple(draw(st.lists(st.sampled_from(columns), max_size=2, unique=True)))
    position = names.column("i", pa.int32()) if draw(st.booleans()) else None
    return Explode(child, kept, array, names.column("e"), position, draw(st.booleans()))


def as_int(expression):
    return expression if expression.type == INT else Call("cast", (expression,), INT)


def join(draw, names, left, right, kind):
    # A plan must not be joined with itself: every column has one name.
    pairs = []
    count = draw(st.sampled_from([0, 1, 1, 1, 2, 3]))
    if count:
        left = Project(left, tuple((names.column("l"), as_int(each)) for each in left.columns))
        right = Project(right, tuple((names.column("r"), as_int(each)) for each in right.columns))
        # A column may be compared with two others.
        for _ in range(count):
            pairs.append((draw(st.sampled_from(list(left.columns))), draw(st.sampled_from(list(right.columns)))))
    keys = tuple(dict.fromkeys(pairs))
    condition = draw(st.one_of(st.none(), conditions([*left.columns, *right.columns])))
    if kind == "left":
        inner = Join("inner", left, right, keys, condition)
        alone = Join("anti", left, right, keys, condition)
        nulls = tuple((column, Literal(None, column.type)) for column in right.columns)
        return Union((inner, Project(alone, (*((each, each) for each in left.columns), *nulls))))
    return Join({"join": "inner"}.get(kind, kind), left, right, keys, condition)


values = st.one_of(st.none(), st.integers(0, 3))
rows = st.tuples(values, values, values)
tables = st.dictionaries(rows, st.integers(1, 3), max_size=5).map(Counter)


@st.composite
def versions(draw):
    """Tables before and after a change."""
    old = {name: draw(tables) for name in TABLES}
    new = {}
    for name, table in old.items():
        after = Counter(table)
        if draw(st.integers(0, 3)):
            after.update(draw(tables))
            for row in draw(st.lists(st.sampled_from(sorted(after, key=repr)), max_size=3)) if after else ():
                after[row] -= draw(st.integers(1, after[row])) if after[row] else 0
        new[name] = Counter({row: count for row, count in after.items() if count})
    return old, new


@st.composite
def changed_plans(draw, depth=3):
    return draw(plans(Names(), depth)), *draw(versions())
