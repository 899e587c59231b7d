"""Tables of every type with ties, nulls and odd chunks, and the row order in plain Python to check kernels against."""

from __future__ import annotations

import contextlib
import decimal
import math
import random
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from timespine.columnar.kernels import (
    consolidate_shared_keys,
    kway_merge,
    row_words,
    sort_equal_words,
    take_rows,
    text_words,
)

MAX = (1 << 63) - 1
LONG = "https://example.com/a/rather/long/prefix/"


def ints(bits, signed=True):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(
        st.integers(low, high), st.integers(max(low, -3), 3), st.sampled_from([low, low + 1, high - 1, high])
    )


def floats(width):
    return st.one_of(
        st.floats(width=width), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1.5, 5e-324])
    ).map(lambda value: float(np.float32(value)) if width == 32 else value)


# Inside of lists and structs floats are canonical already: -0.0 does not occur.
canonical = floats(64).map(lambda value: value + 0.0)

TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "a", "a\0", "a\0\0", "\0", "b", "\U0001f600", "\uffff", "\U0001f601z", "é"]),
    st.text("0123456789", min_size=1, max_size=20),
    st.text("01", min_size=9, max_size=9),
    st.text("ab\0", max_size=30).map(lambda tail: LONG + tail),
    st.text("ab", max_size=2).map(lambda tail: "x" * 90 + tail),
)
BYTES = st.one_of(
    st.binary(max_size=10),
    st.sampled_from([b"", b"\0", b"\0\0", b"\xff", b"\xff" * 9, b"\x80"]),
    TEXT.map(lambda value: value.encode()),
)


def decimals(precision, scale):
    top = 10**precision - 1
    unscaled = st.one_of(
        st.integers(-top, top), st.integers(-3, 3), st.sampled_from([-top, top, MAX, MAX + 1, -MAX - 2])
    )
    context = decimal.Context(prec=80)
    return unscaled.map(lambda value: context.scaleb(decimal.Decimal(max(-top, min(top, value))), -scale))


PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
TYPES = {
    pa.bool_(): st.booleans(),
    **{getattr(pa, f"int{bits}")(): ints(bits) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): ints(bits, signed=False) for bits in (8, 16, 32, 64)},
    pa.float32(): floats(32),
    pa.float64(): floats(64),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.decimal128(38, 3): decimals(38, 3),
    pa.string(): TEXT,
    pa.binary(): BYTES,
    pa.date32(): st.dates(),
    pa.timestamp("us"): ints(64),
    pa.timestamp("us", "Europe/Berlin"): ints(64),
    pa.list_(pa.int64()): st.lists(st.none() | ints(64), max_size=3),
    pa.list_(pa.string()): st.lists(st.none() | TEXT, max_size=3),
    pa.list_(pa.float64()): st.lists(st.none() | canonical, max_size=3),
    PAIR: st.fixed_dictionaries({"a": st.none() | ints(64), "b": st.none() | TEXT}),
    pa.list_(PAIR): st.lists(st.none() | st.fixed_dictionaries({"a": st.none() | ints(8), "b": st.none()}), max_size=2),
}


def array(values, kind):
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


@st.composite
def columns(draw, rows, kind):
    """A column of few distinct values, nulls included, so that rows tie."""
    pool = draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=6))
    places = draw(st.lists(st.integers(0, len(pool) - 1), min_size=rows, max_size=rows))
    return array([pool[place] for place in places], kind)


@st.composite
def tables(draw, max_rows=30, kinds=None, arity=None, diffs=None, max_columns=3):
    """An update table, or one without times, cut into odd chunks."""
    rows = draw(st.integers(0, max_rows))
    kinds = draw(st.lists(st.sampled_from(kinds or list(TYPES)), min_size=1, max_size=max_columns))
    arity = draw(st.integers(0, 2)) if arity is None else arity
    data = {f"c{number}": draw(columns(rows, kind)) for number, kind in enumerate(kinds)}
    for name in ["_time"] if arity == 1 else [f"_time_{number}" for number in range(arity)]:
        data[name] = pa.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), pa.int64())
    diffs = st.integers(-2, 2) if diffs is None else diffs
    data["_diff"] = pa.array(draw(st.lists(diffs, min_size=rows, max_size=rows)), pa.int64())
    return rechunked(draw, pa.table(data))


def rechunked(draw, table):
    """The same rows in chunks that begin anywhere in their buffers."""
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=2)))
    edges = [0, *cuts, table.num_rows]
    return pa.concat_tables([table.slice(a, b - a) for a, b in pairwise(edges)])


def key(value):
    """What Python orders and compares as the row order does."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, True, 0.0) if math.isnan(value) else (1, False, value + 0.0)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dict):
        return (1, tuple(key(each) for each in value.values()))
    if isinstance(value, list):
        return (1, tuple(key(each) for each in value))
    return (1, value)


def keys(table, names):
    """The key of every row."""
    plain = []
    for name in names:
        column = table.column(name)
        # Python has no year 300000, Arrow has.
        plain.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    return [tuple(key(value) for value in row) for row in zip(*plain, strict=True)] or [()] * (
        0 if names else table.num_rows
    )


def counted(table, order):
    """Rows and their diffs, as a list of pairs."""
    return list(zip(keys(table, order), table.column("_diff").to_pylist(), strict=True))


def order_of(table):
    return [name for name in table.column_names if name != "_diff"]


def ascending_runs(table, order, count, seed=0):
    """The rows dealt out to runs, unevenly, each in order, equal neighbours and zeros included."""
    by_row = sorted(range(table.num_rows), key=keys(table, order).__getitem__)
    draw = random.Random(seed)
    shares = [draw.random() ** 2 for _ in range(count)]
    dealt = draw.choices(range(count), shares, k=len(by_row))
    return [
        table.take(pa.array([row for row, to in zip(by_row, dealt, strict=True) if to == number], pa.int64()))
        for number in range(count)
    ]


SMALL = st.sampled_from([None, "ranks", "words"])
"""Whether thresholds are lowered, and how few different texts are treated."""


@contextlib.contextmanager
def small(how="words"):
    """Every threshold so low that small tables take the paths of large ones."""
    with contextlib.ExitStack() as stack:
        if how is not None:
            for module, name, value in (
                (text_words, "BLOCK", 3),
                (text_words, "LARGE_ROWS", 4),
                (text_words, "_PADDED_BYTES", 4),
                (text_words, "_SAMPLES", 2),
                (text_words, "_RANKED_SAMPLES", 4),
                (text_words, "_FEW", 2 if how == "ranks" else 1 << 30),
                (text_words.Text, "WORDS_MAX", 1),
                (row_words, "_SAMPLED_ROWS", 4),
                (row_words, "_SAMPLED_TOGETHER", 2),
                (sort_equal_words, "_SAMPLED", 4),
                (sort_equal_words, "_BEGUN_MAX", 1),
                (sort_equal_words, "_DENSE", 0),
                (take_rows, "THREADED_ROWS", 4),
                (kway_merge, "_ALONE_ROWS", 2),
                (consolidate_shared_keys, "FEW", 0),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
        yield


__all__ = [
    "LONG",
    "MAX",
    "SMALL",
    "TYPES",
    "array",
    "ascending_runs",
    "counted",
    "key",
    "keys",
    "order_of",
    "small",
    "tables",
]
