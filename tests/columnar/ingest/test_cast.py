"""Exact casts: however Arrow holds a value, it comes out the same, canonical, or is refused by name."""

from __future__ import annotations

import datetime
import decimal
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.ingest.cast import canonical_floats, cast_column, mismatch
from timespine.columnar.schema.types import parse_type
from timespine.errors import UsageError

D = decimal.Decimal
UTC = datetime.UTC
SIGNALLING = struct.unpack("<d", struct.pack("<Q", 0xFFF0000000000001))[0]
ODD_NANS_64 = [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF]
ODD_NANS_32 = [0x7FC00001, 0xFFC00000, 0x7F800001, 0xFFFFFFFF]


def cast(array, wanted):
    column = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    result = cast_column("x", column, parse_type(wanted))
    assert result.type.equals(parse_type(wanted), check_metadata=True)
    result.validate(full=True)
    return result


def refused(array, wanted, why):
    with pytest.raises(UsageError, match=why) as caught:
        cast(array, wanted)
    assert "'x'" in str(caught.value)
    return str(caught.value)


def floats_of_bits(bits, width):
    return np.array(bits, f"<u{width}").view(f"<f{width}")


# --- floats ---


@pytest.mark.parametrize(("width", "nans"), [(4, ODD_NANS_32), (8, ODD_NANS_64)])
def test_floats_have_one_zero_and_one_nan(width, nans):
    sign, nan = (1 << 31, 0x7FC00000) if width == 4 else (1 << 63, 0x7FF8000000000000)
    smallest = sign + 1
    array = pa.array(floats_of_bits([0, sign, nan, *nans, smallest, 1], width))
    fixed = canonical_floats(array)
    bits = np.frombuffer(fixed.buffers()[1], f"<u{width}", len(fixed)).tolist()
    assert bits == [0, 0, nan, *[nan] * len(nans), smallest, 1]
    assert fixed.type == array.type


def test_floats_that_are_canonical_are_not_copied():
    array = pa.array([0.0, 1.5, math.nan, math.inf, None])
    assert canonical_floats(array) is array
    empty = pa.array([], pa.float32())
    assert canonical_floats(empty) is empty


def test_nulls_and_slices_stay_where_they_are_when_floats_are_made_canonical():
    array = pa.array([7.0, -0.0, None, SIGNALLING, 1.5, None, -0.0, 7.0]).slice(1, 6)
    fixed = canonical_floats(array).to_pylist()
    assert fixed[1] is None
    assert fixed[4] is None
    assert [math.copysign(1, fixed[i]) for i in (0, 5)] == [1, 1]
    assert struct.pack("<d", fixed[2]) == struct.pack("<Q", 0x7FF8000000000000)


def test_floats_inside_of_nested_values_are_canonical_too():
    wanted = "struct<a:list<struct<b:float32>>,c:float64>"
    given_type = parse_type(wanted)
    rows = [{"a": [{"b": -0.0}, None, {"b": None}], "c": -0.0}, None, {"a": None, "c": SIGNALLING}, {"a": [], "c": 1.0}]
    result = cast(pa.array([None, *rows], given_type).slice(1), wanted).to_pylist()
    assert math.copysign(1, result[0]["a"][0]["b"]) == 1
    assert math.copysign(1, result[0]["c"]) == 1
    assert result[0]["a"][1:] == [None, {"b": None}]
    assert result[1] is None
    assert struct.pack("<d", result[2]["c"]) == struct.pack("<Q", 0x7FF8000000000000)
    assert result[3] == {"a": [], "c": 1.0}


def test_float64_is_rounded_to_float32_but_never_to_infinity():
    assert cast(pa.array([0.1, None, math.inf, -0.0]), "float32").to_pylist() == [np.float32(0.1), None, math.inf, 0.0]
    assert math.copysign(1, cast(pa.array([-1e-60]), "float32").to_pylist()[0]) == 1
    refused(pa.array([1.0, None, 1e39]), "float32", "row 2 does not fit float32")


def test_half_floats_become_floats():
    assert cast(pa.array(np.array([1.5, -0.0], "f2")), "float64").to_pylist() == [1.5, 0.0]
    refused(pa.array(np.array([1.0], "f2")), "int64", "holds 'halffloat' where int64 is needed")


# --- numbers ---


@pytest.mark.parametrize("wanted", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_fit_up_to_the_last_value(wanted):
    bits = int(wanted.lstrip("uint"))
    low, high = (0, 2**bits - 1) if wanted[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for given_type in (pa.int64(), pa.uint64()):
        least, most = (0, 2**64 - 1) if given_type == pa.uint64() else (-(2**63), 2**63 - 1)
        fitting = [value for value in (low, high, None) if value is None or least <= value <= most]
        assert cast(pa.array(fitting, given_type), wanted).to_pylist() == fitting
        for value in (low - 1, high + 1):
            if least <= value <= most:
                refused(pa.array([0, value], given_type), wanted, f"row 1 does not fit {wanted}")


def test_floats_become_integers_only_if_they_are_whole():
    assert cast(pa.array([1.0, -0.0, None, -(2.0**63)]), "int64").to_pylist() == [1, 0, None, -(2**63)]
    for wrong in (1.5, math.nan, math.inf, 2.0**63):
        refused(pa.array([0.0, wrong]), "int64", "row 1 does not fit int64: it is out of range or not whole")
    refused(pa.array([-1.0]), "uint8", "row 0")


def test_integers_become_floats_only_if_they_are_floats():
    assert cast(pa.array([2**53, -(2**53), None]), "float64").to_pylist() == [2.0**53, -(2.0**53), None]
    refused(pa.array([2**53 + 1]), "float64", "row 0 does not fit float64")
    refused(pa.array([2**24 + 1]), "float32", "row 0 does not fit float32")


def test_decimals_keep_their_digits():
    given_values = [D("1.50"), None, D("-99.99")]
    for given_type in (pa.decimal128(38, 2), pa.decimal256(76, 2), pa.decimal64(10, 2), pa.decimal32(9, 3)):
        assert cast(pa.array(given_values, given_type), "decimal(4,2)").to_pylist() == given_values
    assert cast(pa.array([D("1.5")]), "decimal(38,37)").to_pylist() == [D("1.5")]
    refused(pa.array([D("1.555")]), "decimal(4,2)", "row 0 does not fit decimal.*round")
    refused(pa.array([D("100.00")]), "decimal(4,2)", "row 0 does not fit decimal")
    refused(pa.array([1.5]), "decimal(4,2)", "holds 'double'")
    refused(pa.array([D("1.5")]), "float64", "holds 'decimal128")


def test_integers_become_decimals_if_they_have_room():
    assert cast(pa.array([99, -99, None]), "decimal(4,2)").to_pylist() == [D("99.00"), D("-99.00"), None]
    assert cast(pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)").to_pylist() == [D(2**64 - 1)]
    assert cast(pa.array([7]), "decimal(38,37)").to_pylist() == [D(7)]
    refused(pa.array([1, 100]), "decimal(4,2)", "row 1")
    refused(pa.array([10]), "decimal(38,37)", "row 0")


# --- texts and bytes ---


@pytest.mark.parametrize("given_type", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_are_one_type_however_they_are_held(given_type):
    texts = ["x", "cut away", None, "", "größe \U0001f600 longer than a view", "\x00"]
    assert cast(pa.array(texts, given_type).slice(2), "string").to_pylist() == texts[2:]
    encoded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), pa.array(["a", "b"], given_type))
    assert cast(encoded.slice(1), "string").to_pylist() == [None, "a", "b"]


@pytest.mark.parametrize("given_type", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_bytes_are_one_type_however_they_are_held(given_type):
    values = [b"ab", None, b"\xff\x00"]
    assert cast(pa.array(values, given_type).slice(1), "binary").to_pylist() == values[1:]


def raw_text(data, given_type=None):
    """A text array straight from bytes, as a caller may hand it over."""
    given_type = given_type or pa.string()
    width = "i4" if given_type == pa.string() else "i8"
    offsets = pa.py_buffer(np.array([0, len(data)], width))
    return pa.Array.from_buffers(given_type, 1, [None, offsets, pa.py_buffer(data)])


@pytest.mark.parametrize("given_type", [pa.string(), pa.large_string()])
def test_texts_that_are_no_utf8_are_refused_wherever_they_hide(given_type):
    bad = raw_text(b"a\xff", given_type)
    index = pa.array([0], pa.int8())
    offsets = pa.array([0, 1], pa.int32())
    for array, wanted in (
        (bad, "string"),
        (pa.chunked_array([pa.array(["fine"], given_type), bad]), "string"),
        (pa.DictionaryArray.from_arrays(index, bad), "string"),
        (pa.ListArray.from_arrays(offsets, bad), "list<string>"),
        (pa.StructArray.from_arrays([bad], names=["a"]), "struct<a:string>"),
    ):
        message = refused(array, wanted, "not valid UTF-8")
        assert "\\xff" not in message


def test_buffers_that_point_outside_are_refused():
    offsets = pa.py_buffer(np.array([0, 99, 1], "i4"))
    outside = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a")])
    refused(outside, "string", "no string can have")
    lists = pa.Array.from_buffers(pa.list_(pa.int8()), 2, [None, offsets], children=[pa.array([1], pa.int8())])
    refused(lists, "list<int8>", "correct the data")
    refused(pa.StructArray.from_arrays([lists], names=["a"]), "struct<a:list<int8>>", "correct the data")
    index = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array(["a"]), safe=False)
    refused(index, "string", "correct the data")
    for kind in LIST_KINDS:
        nested = pa.array([[0, 0]], kind(pa.int8()))
        broken = pa.array([[None, None]], kind(index.type))
        assert cast(nested, "list<int8>").to_pylist() == [[0, 0]]
        assert cast(broken, "list<string>").to_pylist() == [[None, None]]
    refused(pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), index), "list<string>", "correct the data")
    refused(pa.FixedSizeListArray.from_arrays(index, 1), "list<string>", "correct the data")
    part_of_a_day = pa.array([86_400_001], pa.int64()).view(pa.date64())
    assert "86400001" not in refused(part_of_a_day, "date", "correct the data")


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_views_that_point_outside_are_refused(view):
    width = "i4" if view is pa.list_view else "i8"
    for starts, sizes in (([0, 5], [1, 1]), ([0, 0], [1, 9]), ([0, -1], [1, 1])):
        buffers = [None, pa.py_buffer(np.array(starts, width)), pa.py_buffer(np.array(sizes, width))]
        array = pa.Array.from_buffers(view(pa.int8()), 2, buffers, children=[pa.array([1], pa.int8())])
        refused(array, "list<int8>", "correct the data")


@pytest.mark.parametrize("around", range(5))
def test_what_lies_below_a_null_struct_need_not_be_valid(around):
    inside = pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])
    empty = pa.array([None, None], inside)  # Arrow gives it indices into a dictionary that is empty
    assert cast(empty, "struct<a:string>").to_pylist() == [None, None]
    kind = LIST_KINDS[around]
    rows = [[None, None], None]
    assert cast(pa.array(rows, kind(inside)), "list<struct<a:string>>").to_pylist() == rows


# --- dates and timestamps ---


def test_timestamps_become_microseconds_if_nothing_is_lost():
    moment = datetime.datetime(2020, 1, 1, 12)
    for unit in ("s", "ms", "us", "ns"):
        assert cast(pa.array([moment, None], pa.timestamp(unit)), "timestamp").to_pylist() == [moment, None]
    refused(pa.array([1000, 1001], pa.timestamp("ns")), "timestamp", "row 1 does not fit timestamp.*round")
    refused(pa.array([2**60], pa.timestamp("s")), "timestamp", "row 0")


def test_another_zone_is_the_same_instant():
    instant = datetime.datetime(2020, 7, 1, 12, tzinfo=UTC)
    for zone in ("UTC", "Europe/Berlin", "+05:30", "Mars/Olympus"):
        micros = pa.array([int(instant.timestamp())], pa.int64()).cast(pa.timestamp("s", zone))
        result = cast(micros, "timestamp[Asia/Tokyo]")
        assert result.cast(pa.int64()).to_pylist() == [int(instant.timestamp()) * 10**6]


def test_wall_clock_times_and_instants_are_not_mixed_up():
    refused(pa.array([0], pa.timestamp("us")), "timestamp[UTC]", "without a zone")
    refused(pa.array([0], pa.timestamp("ns", "UTC")), "timestamp", "with a zone")
    refused(pa.array([], pa.timestamp("us")), "timestamp[UTC]", "without a zone")
    refused(pa.array([[0]], pa.list_(pa.timestamp("us"))), "list<timestamp[UTC]>", "without a zone")


def test_dates_are_days():
    day = datetime.date(1969, 12, 31)
    assert cast(pa.array([day, None], pa.date64()), "date").to_pylist() == [day, None]
    refused(pa.array([datetime.datetime(2020, 1, 1)]), "date", "cast it first")
    refused(pa.array([day]), "timestamp", "cast it first")


# --- what is not cast at all ---


@pytest.mark.parametrize(
    ("array", "wanted", "why"),
    [
        (pa.array(["1"]), "int64", "holds 'string' where int64 is needed"),
        (pa.array(["1"]), "float64", "holds 'string'"),
        (pa.array([True]), "int64", "a bool is not a number"),
        (pa.array([True]), "float64", "a bool is not a number"),
        (pa.array([1]), "bool", "holds 'int64'"),
        (pa.array([1]), "string", "holds 'int64'"),
        (pa.array([b"a"]), "string", "decode the bytes first"),
        (pa.array(["a"]), "binary", "encode the texts first"),
        (pa.array([1]), "timestamp", "holds 'int64'"),
        (pa.array([1]), "date", "holds 'int64'"),
        (pa.array([1], pa.duration("us")), "int64", "holds 'duration"),
        (pa.array([1], pa.time64("us")), "int64", "holds 'time64"),
        (pa.array([[1]]), "int64", "holds 'list"),
        (pa.array([1]), "list<int64>", "holds 'int64'"),
        (pa.array([{"a": 1}]), "list<int64>", "holds 'struct"),
        (
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "list<struct<key:string,value:int64>>",
            "holds 'map",
        ),
        (pa.array([b"x" * 16], pa.uuid()), "binary", "holds 'extension"),
        (pa.array([["1"]]), "list<int64>", "holds 'string'"),
        (pa.array([{"a": "1"}]), "struct<a:int64>", "in field 'a' holds 'string'"),
        (pa.array([{"b": 1}]), "struct<a:int64>", "field 'b'"),
        (pa.array([True]).dictionary_encode(), "int64", "a bool is not a number"),
    ],
)
def test_types_that_mean_something_else_are_refused_even_without_rows(array, wanted, why):
    refused(array, wanted, why)
    refused(array.slice(0, 0), wanted, why)


def test_two_fields_of_one_name_are_refused():
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    refused(twice, "struct<a:int64>", "two fields")


def test_a_column_of_nothing_but_nulls_is_of_any_type():
    for wanted in ("int8", "string", "decimal(3,1)", "timestamp[UTC]", "list<struct<a:float64>>", "struct<a:int8>"):
        assert cast(pa.nulls(3), wanted).to_pylist() == [None] * 3
    assert cast(pa.array([[None], None]), "list<int8>").to_pylist() == [[None], None]


# --- nested ---

LIST_KINDS = [pa.list_, pa.large_list, lambda t: pa.list_(t, 2), pa.list_view, pa.large_list_view]


@pytest.mark.parametrize("kind", LIST_KINDS)
def test_lists_are_one_type_however_they_are_held(kind):
    rows = [[9, 9], None, [1, 2], [3, None], [4, 5]]
    array = pa.array(rows, kind(pa.int64()))
    for cut in (array, array.slice(1), array.slice(2, 2), array.slice(5)):
        assert cast(cut, "list<int8>").to_pylist() == cut.to_pylist()
    refused(pa.array([[1, 2], [1, 300]], kind(pa.int64())), "list<int8>", "row 1 does not fit list")


def test_views_may_overlap_and_be_out_of_order():
    views = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1], pa.int32()), pa.array([2, 3, 1], pa.int32()), pa.array([1, 2, 3, 4])
    )
    assert cast(views, "list<int32>").to_pylist() == [[3, 4], [1, 2, 3], [2]]
    assert cast(views.slice(1, 1), "list<int64>").to_pylist() == [[1, 2, 3]]


def test_values_that_no_row_has_do_not_matter():
    values = pa.array([1, 999, 2, 999])
    validity = pa.py_buffer(bytes([0b101]))
    offsets = pa.py_buffer(np.array([0, 1, 2, 3], "i4"))
    hidden = pa.Array.from_buffers(pa.list_(pa.int64()), 3, [validity, offsets], children=[values])
    assert cast(hidden, "list<int8>").to_pylist() == [[1], None, [2]]
    below = pa.StructArray.from_arrays([pa.array([1, 999])], names=["a"], mask=pa.array([False, True]))
    assert cast(below, "struct<a:int8>").to_pylist() == [{"a": 1}, None]


def test_structs_are_read_by_the_names_of_their_fields():
    array = pa.array([{"b": 1, "a": "x"}, None])
    wanted = "struct<a:string,b:int8,c:list<float64>>"
    assert cast(array, wanted).to_pylist() == [{"a": "x", "b": 1, "c": None}, None]
    refused(pa.array([{"b": 1}, {"b": 300}]), wanted, "row 1")


def test_names_of_list_elements_and_nullability_are_made_equal():
    odd = pa.list_(pa.field("element", pa.struct([pa.field("a", pa.int8(), nullable=False)]), nullable=False))
    assert cast(pa.array([[{"a": 1}], None], odd), "list<struct<a:int8>>").to_pylist() == [[{"a": 1}], None]
    element = pa.list_(pa.field("element", pa.int8()))
    assert cast(pa.array([[1]], element), "list<int8>").to_pylist() == [[1]]


# --- many chunks, huge chunks ---


def test_a_column_of_many_chunks_is_put_together():
    chunks = [pa.array([i, None]) for i in range(500)]
    result = cast(pa.chunked_array(chunks), "int16")
    assert result.num_chunks == 1
    assert result.to_pylist() == [value for i in range(500) for value in (i, None)]
    views = pa.chunked_array([pa.array([[i], None], pa.list_view(pa.int64())).slice(0, 1) for i in range(50)])
    assert cast(views, "list<int16>").to_pylist() == [[i] for i in range(50)]
    assert cast(pa.chunked_array([], pa.large_string()), "string").to_pylist() == []
    encoded = pa.chunked_array([pa.array([f"v{i}"]).dictionary_encode() for i in range(300)])
    assert cast(encoded, "string").to_pylist() == [f"v{i}" for i in range(300)]


def test_dictionaries_that_cannot_be_put_together_are_read_one_by_one():
    index = pa.array(range(20), pa.int8())
    words = [[f"{i}-{j}" for j in range(20)] for i in range(20)]
    chunks = [pa.DictionaryArray.from_arrays(index, pa.array(each)) for each in words]
    assert cast(pa.chunked_array(chunks), "string").to_pylist() == [word for each in words for word in each]


def test_what_arrow_cannot_take_apart_is_refused_by_name():
    values = pa.array([["x"]], pa.list_(pa.string_view()))
    refused(pa.DictionaryArray.from_arrays(pa.array([0]), values), "list<string>", "cannot be read as list<string>")


def test_the_first_row_that_does_not_fit_is_named_across_chunks():
    chunks = [pa.array([1] * 1500), pa.array([1] * 700 + [300] + [1] * 9 + [400])]
    refused(pa.chunked_array(chunks), "int8", "row 2200 does not fit int8")


def test_what_is_too_large_for_one_chunk_becomes_several(monkeypatch):
    monkeypatch.setattr("timespine.columnar.ingest.cast._INT32_MAX", 20)
    rows = [[i] * 3 for i in range(20)]
    result = cast(pa.array(rows, pa.large_list(pa.int64())), "list<int64>")
    assert result.num_chunks > 1
    assert result.to_pylist() == rows


@pytest.mark.slow
def test_texts_of_more_than_two_gigabytes_become_several_chunks():
    one = "x" * (1 << 20)
    index = pa.array(np.zeros(2049, np.int8))
    result = cast(pa.DictionaryArray.from_arrays(index, pa.array([one], pa.large_string())), "string")
    assert len(result) == 2049
    assert result.num_chunks > 1


# --- against Python's own values ---


def canonical(value):
    """The same value as bytes that tell everything apart that should be."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value + 0.0, math.copysign(1, value + 0.0))
    if isinstance(value, list):
        return [canonical(each) for each in value]
    if isinstance(value, dict):
        return {name: canonical(each) for name, each in value.items()}
    return type(value).__name__, value


LEAVES = [
    ("int16", [pa.int64(), pa.int32(), pa.float64(), pa.dictionary(pa.int8(), pa.int64())], st.integers(-99, 99)),
    ("float64", [pa.float64()], st.floats(width=32) | st.just(-0.0) | st.just(SIGNALLING)),
    ("float32", [pa.float64(), pa.float32()], st.floats(width=32) | st.just(-0.0)),
    (
        "string",
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
        st.text(max_size=3),
    ),
    ("binary", [pa.binary(), pa.large_binary(), pa.binary_view()], st.binary(max_size=3)),
    ("bool", [pa.bool_()], st.booleans()),
    ("date", [pa.date32(), pa.date64()], st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))),
    ("decimal(5,2)", [pa.decimal128(20, 2), pa.decimal256(40, 3)], st.decimals(-99, 99, places=2)),
]


@st.composite
def held(draw, depth=2):
    """A wanted type, an Arrow type that holds the same values, and a strategy of values."""
    kind = draw(st.sampled_from(["leaf", "list", "struct"])) if depth else "leaf"
    if kind == "leaf":
        wanted, ways, values = draw(st.sampled_from(LEAVES))
        return parse_type(wanted), draw(st.sampled_from(ways)), st.none() | values
    if kind == "list":
        inside, way, values = draw(held(depth - 1))
        fixed = draw(st.sampled_from(LIST_KINDS))
        size = {"min_size": 2, "max_size": 2} if fixed is LIST_KINDS[2] else {"max_size": 3}
        return pa.list_(inside), fixed(way), st.none() | st.lists(values, **size)
    fields = {name: draw(held(depth - 1)) for name in ("a", "b")}
    wanted = pa.struct([(name, field[0]) for name, field in fields.items()])
    way = pa.struct([(name, fields[name][1]) for name in draw(st.permutations(["a", "b"]))])
    return wanted, way, st.none() | st.fixed_dictionaries({name: field[2] for name, field in fields.items()})


@settings(max_examples=200)
@given(st.data())
def test_whatever_holds_the_values_they_come_out_the_same(data):
    wanted, way, values = data.draw(held())
    rows = data.draw(st.lists(values, max_size=8))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    array = pa.array(rows, way)
    column = pa.chunked_array([array.slice(start, stop - start), array.slice(stop), array.slice(0, start)], way)
    result = cast_column("x", column, wanted)
    result.validate(full=True)
    assert result.type.equals(wanted, check_metadata=True)
    expected = rows[start:stop] + rows[stop:] + rows[:start]
    assert [canonical(row) for row in result.to_pylist()] == [canonical(row) for row in expected]
    again = cast_column("x", result, wanted)
    assert again.equals(result) or "nan" in str([canonical(row) for row in expected])


def test_mismatch_says_nothing_when_types_agree():
    assert mismatch(pa.dictionary(pa.int8(), pa.int64()), pa.int8()) is None
    assert mismatch(pa.null(), pa.int8()) is None
