"""Statistics of parts: sound whatever the rows are, within their budget, and checked when they come back."""

import contextlib
import math

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_key_encoding import FLAT, VALUES, columns, sorted_places

from timespine.columnar.kernels.key_encoding import encode_row, encode_scalar
from timespine.columnar.parts.part_stats import (
    BOUND_BYTES_MAX,
    PartMeta,
    Range,
    StatsToKeep,
    describe_updates,
    stats_to_keep,
)
from timespine.columnar.schema.schema import define
from timespine.errors import CorruptionError

ROOM = 1 << 20


def update_table(schema, values, times=None, diffs=None):
    """An update table of these columns; times and diffs are given or 0 and 1."""
    rows = len(next(iter(values.values())))
    arrays = [values[name] if isinstance(values[name], pa.Array) else pa.array(values[name]) for name in schema.names]
    times = times or [[0] * rows for _ in schema.time_names]
    arrays += [pa.array(each, pa.int64()) for each in times]
    arrays.append(pa.array(diffs or [1] * rows, pa.int64()))
    names = [*schema.names, *schema.time_names, "_diff"]
    return pa.table(dict(zip(names, arrays, strict=True))).cast(schema.update_arrow)


def encoded_rows(table, schema):
    return [encode_row(table, place, schema.order_names) for place in range(table.num_rows)]


@st.composite
def updates(draw, types=tuple(VALUES)):
    """A schema and an update table of it, in no order."""
    flat = st.sampled_from([type for type in types if type in FLAT])
    key = draw(st.lists(flat, max_size=2))
    value = draw(st.lists(st.sampled_from(types), min_size=0 if key else 1, max_size=3))
    schema = define(
        {f"k{place}": type for place, type in enumerate(key)} or None,
        {f"v{place}": type for place, type in enumerate(value)} or None,
        arity=draw(st.integers(1, 2)),
    )
    rows = draw(st.integers(1, 8))
    values = {name: draw(columns(type, st.just(rows))) for name, type in zip(schema.names, key + value, strict=True)}
    coordinates = st.lists(st.integers(0, 2**63 - 1), min_size=rows, max_size=rows)
    times = [draw(coordinates) for _ in schema.time_names]
    diffs = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows))
    return schema, update_table(schema, values, times, diffs)


@settings(max_examples=250)
@given(updates(), st.integers(1, 40))
def test_every_row_and_value_lies_within_what_is_said_of_the_part(drawn, bound_bytes):
    schema, table = drawn
    meta = describe_updates(table, schema, sorted=False, budget=ROOM, bound_bytes=bound_bytes)
    rows = encoded_rows(table, schema)
    assert meta.lower == min(rows)[:bound_bytes]
    assert meta.upper is None or (meta.upper >= max(rows) and len(meta.upper) <= bound_bytes)
    for place, name in enumerate(schema.time_names):
        values = table.column(name).to_pylist()
        assert (meta.min_time[place], meta.max_time[place]) == (min(values), max(values))
    diffs = table.column("_diff").to_pylist()
    assert (meta.min_diff, meta.max_diff) == (min(diffs), max(diffs))
    assert set(meta.columns) == {field.id for field in schema.fields}
    for field in schema.fields:
        its = meta.columns[field.id]
        column = table.column(field.name)
        assert its.nulls == column.null_count
        encoded = [encode_row(table, at, [field.name]) for at in range(len(column)) if column[at].is_valid]
        if pa.types.is_nested(column.type) or not encoded:
            assert its == Range(None, None, its.nulls)
            continue
        assert its.lower == min(encoded)[:bound_bytes]
        assert its.upper is None or (its.upper >= max(encoded) and len(its.upper) <= bound_bytes)
        if len(max(encoded)) <= bound_bytes:
            assert its.upper == max(encoded), "a bound that fits is exact"


@settings(max_examples=120)
@given(updates())
def test_the_bounds_of_rows_are_the_same_whether_the_rows_were_sorted_before(drawn):
    schema, table = drawn
    ordered = table.take(sorted_places(table, list(schema.order_names)))
    expected = describe_updates(ordered, schema, sorted=True, budget=ROOM, bound_bytes=4096)
    expected = msgspec.structs.replace(expected, repeats=None)  # rows in no order do not tell
    found = describe_updates(table, schema, sorted=False, budget=ROOM, bound_bytes=4096)
    # Arrow's offsets and bitmaps may take other bytes after a take.
    assert msgspec.structs.replace(found, row_bytes=expected.row_bytes) == expected
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1, 2), table.slice(3)])
    found = describe_updates(chunked, schema, sorted=False, budget=ROOM, bound_bytes=4096)
    assert msgspec.structs.replace(found, row_bytes=expected.row_bytes) == expected
    rows = encoded_rows(ordered, schema)
    assert (expected.lower, expected.upper) == (rows[0], rows[-1])


@pytest.mark.parametrize("type", ["float", "double"])
@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1.0, math.nan], 1.0, math.nan),
        ([math.nan, math.nan], math.nan, math.nan),
        ([None, math.nan, math.inf], math.inf, math.nan),
        ([-math.inf, 0.0, None], -math.inf, 0.0),
    ],
)
def test_nan_is_the_largest_value_and_no_bound_forgets_it(type, values, low, high):
    schema = define(None, {"x": type})
    table = update_table(schema, {"x": pa.array(values, schema.arrow.field("x").type)})
    (its,) = describe_updates(table, schema, sorted=False).columns.values()
    arrow = schema.arrow.field("x").type
    assert its == Range(encode_scalar(low, arrow), encode_scalar(high, arrow), values.count(None))


def test_rows_that_tie_in_nan_are_told_apart_by_the_next_column():
    schema = define(None, {"x": "double", "y": "int64"})
    table = update_table(schema, {"x": [math.nan, 1.0, math.nan, math.nan], "y": [2, 9, 3, 1]})
    meta = describe_updates(table, schema, sorted=False)
    rows = encoded_rows(table, schema)
    assert (meta.lower, meta.upper) == (rows[1], rows[2])
    only_nan = table.filter(pa.array([True, False, True, True]))
    meta = describe_updates(only_nan, schema, sorted=False)
    assert (meta.lower, meta.upper) == (rows[3], rows[2])


def test_a_table_without_rows_has_statistics_too():
    schema = define({"a": "int64"}, {"b": "list<string>"}, arity=2)
    meta = describe_updates(schema.update_arrow.empty_table(), schema, sorted=True)
    assert meta.lower is meta.upper is None
    assert meta.min_time == meta.max_time == (0, 0)
    assert set(meta.columns.values()) == {Range(None, None, 0)}
    assert PartMeta.decode(meta.encode()) == meta


WIDE = define(
    {"id": "int64", "region": "string"}, {"note": "string", "total": "double", "User_Note": "string"}, cluster=["total"]
)
WIDE_TABLE = update_table(
    WIDE,
    {"id": [1, 2], "region": ["a" * 50] * 2, "note": ["n" * 50] * 2, "total": [1.0, 2.0], "User_Note": ["u" * 50] * 2},
)


def kept(budget, **stats_always_keep):
    meta = describe_updates(
        WIDE_TABLE, WIDE, sorted=True, budget=budget, stats_always_keep=StatsToKeep(**stats_always_keep)
    )
    assert meta.trimmed(WIDE) == len(WIDE.fields) - len(meta.columns)
    return [name for name in WIDE.order_names if WIDE.field(name).id in meta.columns]


def test_columns_that_do_not_fit_the_budget_are_left_out_keys_last():
    assert kept(ROOM) == ["total", "id", "region", "note", "User_Note"]
    assert kept(0) == []
    assert kept(60) == ["total", "id"]
    assert kept(170) == ["total", "id", "region"]
    # What does not fit does not keep smaller ones behind it out.
    assert kept(30) == ["total"]


def test_untrimmable_columns_are_kept_beyond_the_budget_and_count_first():
    assert kept(0, suffixes=("_NOTE",)) == ["User_Note"]
    assert kept(0, equals=("NOTE",)) == ["note"]
    assert kept(0, prefixes=("us", "re")) == ["region", "User_Note"]
    # Its bytes are gone for the others.
    assert kept(145, equals=("note",)) == ["total", "note"]
    assert kept(145) == ["total", "id"]


def test_names_of_untrimmable_columns_match_in_any_case():
    stats_always_keep = StatsToKeep(equals=("abc", "DEF"), prefixes=("12", "23"), suffixes=("Xyz",))
    for name in ("abc", "ABC", "aBc", "def", "12", "123-4", "234", "i_xyZ", "WW-XYZ", "xyz"):
        assert stats_always_keep.keeps(name), name
    for name in ("abcd", "xabc", "1", "312", "xyza", ""):
        assert not stats_always_keep.keeps(name), name
    assert not StatsToKeep().keeps("anything")


def test_the_stored_bytes_of_the_trimmed_columns_stay_within_the_budget():
    for budget in range(0, 400, 7):
        meta = describe_updates(WIDE_TABLE, WIDE, sorted=True, budget=budget)
        assert len(msgspec.msgpack.encode(meta.columns)) <= budget + 1  # one byte says how many there are


def test_no_configuration_makes_bounds_that_cannot_be_read_back():
    schema = define(None, {"x": "string"})
    table = update_table(schema, {"x": ["x" * 100_000]})
    meta = describe_updates(table, schema, sorted=True, budget=ROOM, bound_bytes=1 << 40)
    assert len(meta.lower) == len(meta.upper) == BOUND_BYTES_MAX
    assert PartMeta.decode(meta.encode()) == meta


@settings(max_examples=60)
@given(updates(), st.integers(0, 2**40), st.binary(max_size=32))
def test_what_is_encoded_comes_back(drawn, tail, tail_hash):
    schema, table = drawn
    meta = msgspec.structs.replace(describe_updates(table, schema, sorted=False), tail=tail, tail_hash=tail_hash)
    assert PartMeta.decode(meta.encode()) == meta


META = PartMeta(9, b"h", b"\x01a", b"\x01b", (1,), (2,), -1, 1, {1: Range(b"a", b"b", 0), 3: Range(None, None, 7)})


@pytest.mark.parametrize(
    "change",
    [
        {"tail": -1},
        {"tail_hash": b"x" * 65},
        {"lower": b"x" * (BOUND_BYTES_MAX + 1)},
        {"lower": "text"},
        {"lower": b"\x01c"},
        {"min_time": ()},
        {"min_time": (1, 1)},
        {"min_time": (3,)},
        {"min_time": (-1,)},
        {"max_time": (2**63,)},
        {"min_time": (0,) * 9, "max_time": (0,) * 9},
        {"min_diff": 2},
        {"max_diff": 2**63},
        {"columns": {0: Range(None, None, 0)}},
        {"columns": {2**31: Range(None, None, 0)}},
        {"columns": {1: Range(b"b", b"a", 0)}},
        {"columns": {1: Range(None, None, -1)}},
        {"columns": {1: Range(None, None, None)}},
        {"columns": {at + 1: Range(None, None, 0) for at in range(4097)}},
        {"columns": 1},
    ],
    ids=lambda change: str(change)[:40],
)
def test_invalid_statistics_are_corruption(change):
    assert PartMeta.decode(META.encode()) == META
    with pytest.raises(CorruptionError):
        PartMeta.decode(msgspec.structs.replace(META, **change).encode())


@given(st.binary(max_size=200) | st.integers(0, len(META.encode())).map(lambda cut: META.encode()[:cut]))
def test_foreign_bytes_are_corruption_or_statistics_that_hold_together(data):
    try:
        meta = PartMeta.decode(data)
    except CorruptionError:
        return
    assert all(low <= high for low, high in zip(meta.min_time, meta.max_time, strict=True))


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_byte_never_gives_anything_but_statistics_or_corruption(data):
    encoded = bytearray(META.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CorruptionError):
        assert isinstance(PartMeta.decode(bytes(encoded)), PartMeta)


def test_deeply_nested_bytes_are_corruption():
    with pytest.raises(CorruptionError):
        PartMeta.decode(b"\x91" * 100_000)


def test_untrimmable_columns_of_the_configuration_are_kept() -> None:
    kept = stats_to_keep(("day", "last_*", "*_at"))
    names = ("day", "DAY", "days", "last_seen", "at_last_", "created_at", "at")
    assert [kept.keeps(name) for name in names] == [True, True, False, True, False, True, False]


def test_repeated_rows_and_retractions_are_counted():
    schema = define({"id": "int64"}, {"x": "double", "s": "string"})
    nan = math.nan
    rows = {
        "id": [1, 1, 1, 2, 2, 3, 3],
        "x": [None, None, nan, nan, nan, 1.0, 1.0],
        "s": ["a", "a", "a", "b", "b", None, "c"],
        "_time": [0, 1, 0, 0, 2, 0, 0],
        "_diff": [1, -1, 1, 1, -1, 1, 1],
    }
    table = pa.table(rows, schema=schema.update_arrow)
    meta = describe_updates(table, schema, sorted=True)
    assert (meta.repeats, meta.negatives) == (2, 2)
    unsorted = describe_updates(table, schema, sorted=False)
    assert (unsorted.repeats, unsorted.negatives) == (None, 2)
    at_once = describe_updates(table.set_column(3, "_time", pa.array([0] * 7)), schema, sorted=True)
    assert at_once.repeats == 0  # consolidated: each row once
    assert PartMeta.decode(meta.encode()) == meta


def test_repeats_of_nested_values_are_unknown():
    schema = define({"id": "int64"}, {"l": "list<int64>"})
    rows = {"id": [1, 1], "l": [[1], [1]], "_time": [0, 1], "_diff": [1, 1]}
    assert describe_updates(pa.table(rows, schema=schema.update_arrow), schema, sorted=True).repeats is None
    apart = {**rows, "id": [1, 2]}
    assert describe_updates(pa.table(apart, schema=schema.update_arrow), schema, sorted=True).repeats == 0
