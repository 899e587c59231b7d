"""Batches of every type, with ties, nulls, several times and tiny chunks, and the model that they are compared with."""

from __future__ import annotations

import contextlib
from unittest import mock

import pyarrow as pa
from hypothesis import strategies as st
from kernel_cases import LONG, TYPES, array

from timespine.arrangement.batch import chunk, key_filters
from timespine.arrangement.batch.batch import Batch, batch_of
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.schema.schema import infer
from timespine.model.frontier import Frontier
from timespine.testing.spine_model import SpineModel, model_rows

FLAT = [kind for kind in TYPES if not pa.types.is_nested(kind)]
TIMES = 4


@contextlib.contextmanager
def tiny(chunk_rows=4, set_rows=4):
    """Chunks of a few rows, so that few updates make many."""
    with mock.patch.object(chunk, "CHUNK_ROWS", chunk_rows), mock.patch.object(key_filters, "SET_ROWS_MAX", set_rows):
        yield


@st.composite
def layouts(draw, arity=None, value=None):
    """Arranged columns of every type, and perhaps others of every type."""
    keys = draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=2))
    values = draw(st.lists(st.sampled_from(list(TYPES)), max_size=2)) if value is None else [value]
    fields = [pa.field(f"k{n}", kind) for n, kind in enumerate(keys)]
    fields += [pa.field(f"v{n}", kind) for n, kind in enumerate(values)]
    schema = infer(pa.schema(fields), arity=draw(st.integers(1, 2)) if arity is None else arity)
    return Layout.of(schema, draw(st.permutations([f"k{n}" for n in range(len(keys))])))


@st.composite
def pools(draw, layout):
    """A few values for every column, so that rows tie."""
    found = {}
    is_long = draw(st.booleans())
    for name, kind in layout.schema.types.items():
        values = draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=4))
        if is_long and name == layout.by[0]:
            values = [
                LONG + value if isinstance(value, str) else value for value in values if value is not None
            ] or values
        found[name] = values
    return found


@st.composite
def update_tables(draw, layout, values, min_size=0, max_size=12):
    """An update table of rows from pools."""
    rows = draw(st.integers(min_size, max_size))
    data = {
        name: array(draw(st.lists(st.sampled_from(values[name]), min_size=rows, max_size=rows)), kind)
        for name, kind in layout.schema.types.items()
    }
    for name in layout.schema.time_names:
        span = st.integers(0, TIMES - 1) if draw(st.booleans()) else st.just(draw(st.integers(0, TIMES - 1)))
        data[name] = pa.array(draw(st.lists(span, min_size=rows, max_size=rows)), pa.int64())
    diffs = st.integers(-2, 2) if draw(st.booleans()) else st.just(1)
    data["_diff"] = pa.array(draw(st.lists(diffs, min_size=rows, max_size=rows)), pa.int64())
    return pa.table(data).cast(layout.schema.update_arrow)


class Spines:
    """Some batches, and what they must add up to."""

    def __init__(self, layout: Layout, values) -> None:
        self.layout = layout
        self.values = values
        self.batches: list[Batch] = []
        self.model = SpineModel(layout.order, len(layout.by), layout.schema.time_names)

    def insert(self, table) -> None:
        self.model.insert(table)
        made = batch_of(table, self.layout)
        if made is not None:
            self.batches.append(made)


@st.composite
def spines(draw, max_batches=4, arity=None, value=None):
    """A few batches."""
    layout = draw(layouts(arity, value))
    made = Spines(layout, draw(pools(layout)))
    for _ in range(draw(st.integers(0, max_batches))):
        made.insert(draw(update_tables(layout, made.values)))
    return made


@st.composite
def key_tables(draw, spine, max_size=6):
    """Keys of the first arranged columns, some of which the batches have."""
    depth = draw(st.integers(1, len(spine.layout.by)))
    names = spine.layout.by[:depth]
    rows = draw(st.integers(1, max_size))
    data = {}
    for name in names:
        kind = spine.layout.schema.types[name]
        values = st.sampled_from(spine.values[name]) | st.none() | TYPES[kind]
        data[name] = array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
    return pa.table(data)


def times(layout):
    return st.tuples(*[st.integers(0, TIMES)] * layout.schema.arity)


def frontiers(layout):
    return st.lists(times(layout), min_size=1, max_size=2).map(lambda drawn: Frontier(tuple(drawn)))


def counted(table, layout):
    """The rows of an answer with their counts."""
    return list(zip(model_rows(table, layout.order), table.column("_diff").to_pylist(), strict=True))


def updates_of(batch, layout):
    """The updates of a batch, in its order, as the model has them."""
    found = []
    for each in batch.chunks:
        table = pa.table(each.columns)
        stamps = (
            [each.time] * each.rows if each.times is None else list(zip(*(t.tolist() for t in each.times), strict=True))
        )
        diffs = [1] * each.rows if each.diffs is None else each.diffs.tolist()
        found += zip(model_rows(table, layout.order), stamps, diffs, strict=True)
    return found


def scalar_key(table, row):
    """One key of a table as Arrow scalars by column."""
    return {name: table.column(name)[row] for name in table.column_names}
