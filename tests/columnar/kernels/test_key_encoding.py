"""Bytes that compare as rows do: the encoding of bounds, and what cutting and widening do to them."""

import datetime
import decimal
import math

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from timespine.columnar.kernels.key_encoding import (
    NULL,
    encode_row,
    encode_scalar,
    leading,
    recode,
    truncate_lower,
    truncate_upper,
)
from timespine.errors import UsageError

INTEGERS = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}


def integers(low, high):
    """Few enough to collide, with the ends in it."""
    return st.integers(max(low, -3), min(high, 3)) | st.integers(low, high) | st.sampled_from([low, high])


def floats(width):
    return st.floats(width=width).map(lambda x: math.nan if math.isnan(x) else x + 0.0)


text = st.text(st.sampled_from("\x00\x01a\x7fé\uffff\U0001f600b"), max_size=4) | st.text(max_size=6)
binary = st.lists(st.sampled_from([0, 1, 2, 0xFE, 0xFF]), max_size=5).map(bytes) | st.binary(max_size=8)
moments = integers(-(2**62), 2**62)

FLAT = {
    **{type: integers(low, high) for type, (low, high) in INTEGERS.items()},
    pa.bool_(): st.booleans(),
    pa.float32(): floats(32),
    pa.float64(): floats(64),
    pa.decimal128(38, 10): integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: decimal.Context(prec=40).scaleb(decimal.Decimal(n), -10)
    ),
    pa.decimal128(5, 2): integers(-99999, 99999).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    pa.string(): text,
    pa.binary(): binary,
    pa.date32(): st.dates(),
    pa.timestamp("us"): moments,
    pa.timestamp("us", tz="Europe/Berlin"): moments,
}
NESTED = {
    pa.list_(pa.int32()): st.lists(st.none() | integers(-3, 3), max_size=3),
    pa.list_(pa.string()): st.lists(st.none() | text, max_size=3),
    pa.list_(pa.list_(pa.int8())): st.lists(st.none() | st.lists(st.none() | integers(-1, 1), max_size=2), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | integers(-1, 1), "b": st.none() | text}
    ),
    pa.struct([("a", pa.list_(pa.float64())), ("b", pa.struct([("c", pa.bool_())]))]): st.fixed_dictionaries(
        {
            "a": st.none() | st.lists(st.none() | floats(64), max_size=2),
            "b": st.none() | st.fixed_dictionaries({"c": st.none() | st.booleans()}),
        }
    ),
}
VALUES = {**FLAT, **NESTED}


SIZES = st.integers(1, 12)


def columns(type, size=SIZES):
    return size.flatmap(lambda n: st.lists(st.none() | VALUES[type], min_size=n, max_size=n)).map(
        lambda values: pa.array(values, type)
    )


def sorted_places(table, names):
    """The row order, from the engine that defines it."""
    frame = pl.from_arrow(table)
    return frame.select(pl.arg_sort_by(*names, nulls_last=False, maintain_order=True)).to_series().to_list()


@pytest.mark.parametrize("type", VALUES, ids=str)
@settings(max_examples=60)
@given(data=st.data())
def test_bytes_of_one_value_sort_as_the_rows_do(type, data):
    array = data.draw(columns(type))
    table = pa.table({"x": array})
    encoded = [encode_row(table, place, ["x"]) for place in range(len(array))]
    assert sorted(range(len(array)), key=encoded.__getitem__) == sorted_places(table, ["x"])
    for one, its in zip(array, encoded, strict=True):
        for other, others in zip(array, encoded, strict=True):
            same = one == other or (not one.is_valid and not other.is_valid)
            if not pa.types.is_nested(type) and not pa.types.is_floating(type):
                assert (its == others) == same
            assert its == others or not others.startswith(its), "no encoding may be a prefix of another"


@settings(max_examples=150)
@given(data=st.data())
def test_bytes_of_rows_sort_as_the_rows_do(data):
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=4))
    size = data.draw(st.integers(1, 10))
    names = [f"c{place}" for place in range(len(types))]
    table = pa.table(
        {name: data.draw(columns(type, st.just(size))) for name, type in zip(names, types, strict=True)},
    )
    # Chunks in the middle, as a table that was concatenated has them.
    table = pa.concat_tables([table.slice(0, size // 2), table.slice(size // 2)])
    encoded = [encode_row(table, place, names) for place in range(size)]
    assert sorted(range(size), key=encoded.__getitem__) == sorted_places(table, names)


@pytest.mark.parametrize("type", FLAT, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_a_scalar_and_a_row_of_one_column_have_the_same_bytes(type, data):
    array = data.draw(columns(type, st.just(1)))
    encoded = encode_row(pa.table({"x": array}), 0, ["x"])
    assert encode_scalar(array[0], type) == encoded
    moment = pa.types.is_timestamp(type)
    assert encode_scalar(array[0].value if moment else array[0].as_py(), type) == encoded


encodings = st.binary(max_size=12) | st.lists(st.sampled_from([0, 1, 0xFE, 0xFF]), max_size=8).map(bytes)


@given(encodings, st.integers(1, 6))
@example(b"\xff\xff\xff", 2)
@example(b"\x01\xff\xff\xff", 3)
def test_cut_bounds_stay_bounds(encoded, bytes_max):
    lower = truncate_lower(encoded, bytes_max)
    upper = truncate_upper(encoded, bytes_max)
    assert len(lower) <= bytes_max
    assert lower <= encoded
    if upper is None:
        assert encoded[:bytes_max] == b"\xff" * bytes_max
    else:
        assert len(upper) <= bytes_max
        assert upper >= encoded
    if len(encoded) <= bytes_max:
        assert lower == upper == encoded


def test_a_bound_of_no_bytes_is_refused():
    for cut in (truncate_lower, truncate_upper):
        with pytest.raises(UsageError, match="at least one byte"):
            cut(b"ab", 0)


@given(st.integers(-(2**7), 2**7 - 1))
def test_widening_between_integers_leaves_the_bytes_alone(value):
    encoded = encode_scalar(value, pa.int8())
    for type in INTEGERS:
        if INTEGERS[type][0] <= value <= INTEGERS[type][1]:
            assert encode_scalar(value, type) == encoded
            assert recode(encoded, pa.int8(), type) == encoded


@given(floats(32))
def test_widening_a_float_leaves_the_bytes_alone(value):
    encoded = encode_scalar(value, pa.float32())
    assert recode(encoded, pa.float32(), pa.float64()) == encoded == encode_scalar(value, pa.float64())


@given(integers(-(2**31), 2**31 - 1))
def test_an_integer_bound_is_converted_when_the_column_became_a_double(value):
    assert recode(encode_scalar(value, pa.int32()), pa.int32(), pa.float64()) == encode_scalar(value, pa.float64())


def test_a_wider_decimal_of_the_same_scale_keeps_its_bytes():
    narrow, wide = pa.decimal128(5, 2), pa.decimal128(38, 2)
    encoded = encode_scalar(decimal.Decimal("-1.25"), narrow)
    assert recode(encoded, narrow, wide) == encoded == encode_scalar(decimal.Decimal("-1.25"), wide)
    assert recode(encoded, narrow, pa.decimal128(38, 3)) is None


def test_a_bound_that_cannot_be_converted_is_unknown():
    encoded = encode_scalar(7, pa.int32())
    assert recode(encoded[:5], pa.int32(), pa.float64()) is None
    assert recode(encode_scalar(7, pa.int64()), pa.int64(), pa.float64()) is None
    assert recode(encoded, pa.int32(), pa.string()) is None
    assert recode(encode_scalar("7", pa.string()), pa.string(), pa.int32()) is None
    assert recode(encoded[:5], pa.int32(), pa.int64()) == encoded[:5]
    assert recode(NULL, pa.int32(), pa.string()) == NULL


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (5.0, pa.int64()),
        (True, pa.int64()),
        (300, pa.int8()),
        (-1, pa.uint64()),
        (2**64, pa.uint64()),
        (1, pa.bool_()),
        (True, pa.float64()),
        (10**400, pa.float64()),
        ("1", pa.float64()),
        (b"x", pa.string()),
        ("\ud800", pa.string()),
        ("x", pa.binary()),
        (decimal.Decimal("1.234"), pa.decimal128(5, 2)),
        (decimal.Decimal("NaN"), pa.decimal128(5, 2)),
        (datetime.datetime(2020, 1, 1), pa.date32()),
        (datetime.date(2020, 1, 1), pa.timestamp("us")),
        (datetime.datetime(2020, 1, 1), pa.timestamp("us", tz="UTC")),
        (datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), pa.timestamp("us")),
        (object(), pa.int64()),
        (pa.scalar(1, pa.int8()), pa.int64()),
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_a_value_of_another_type_is_refused_without_repeating_it(value, type):
    with pytest.raises(UsageError) as caught:
        encode_scalar(value, type)
    assert "1.234" not in str(caught.value)
    assert "2020" not in str(caught.value)


def test_a_type_without_an_order_is_refused():
    with pytest.raises(UsageError, match="cannot be sorted"):
        encode_row(pa.table({"x": pa.array([1], pa.duration("us"))}), 0, ["x"])


def test_zero_has_one_encoding_and_nan_is_one_and_the_largest():
    for type in (pa.float32(), pa.float64()):
        assert encode_scalar(-0.0, type) == encode_scalar(0.0, type)
        assert encode_scalar(-math.nan, type) == encode_scalar(math.nan, type) > encode_scalar(math.inf, type)


def test_the_documented_bytes_of_a_few_values_never_change():
    """These bytes are stored: a change of them is a change of the format."""
    assert encode_scalar(None, pa.int64()) == bytes.fromhex("00")
    assert encode_scalar(True, pa.bool_()) == bytes.fromhex("0101")
    assert encode_scalar(-1, pa.int8()) == bytes.fromhex("01 00 7fffffffffffffff")
    assert encode_scalar(2**64 - 1, pa.uint64()) == bytes.fromhex("01 01 7fffffffffffffff")
    assert encode_scalar(datetime.date(1970, 1, 2), pa.date32()) == encode_scalar(1, pa.int8())
    assert encode_scalar(1.0, pa.float32()) == bytes.fromhex("01 bff0000000000000")
    assert encode_scalar(-1.0, pa.float64()) == bytes.fromhex("01 400fffffffffffff")
    assert encode_scalar(decimal.Decimal("0.01"), pa.decimal128(5, 2)) == b"\x01\x00\x80" + b"\x00" * 14 + b"\x01"
    assert encode_scalar("a\x00", pa.string()) == bytes.fromhex("01 61 00ff 0000")
    assert encode_scalar([None, 1], pa.list_(pa.int8())) == (
        b"\x01" + b"\x01\x00" + b"\x01" + encode_scalar(1, pa.int8()) + b"\x00"
    )
    assert encode_scalar({"a": None}, pa.struct([("a", pa.int8())])) == bytes.fromhex("01 00")


@settings(max_examples=200)
@given(st.data())
def test_the_leading_columns_of_an_encoded_row_are_found_in_it_and_in_what_is_left_of_it(data):
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    table = pa.table({f"c{place}": data.draw(columns(kind, st.just(1))) for place, kind in enumerate(kinds)})
    names = table.column_names
    types = [table.schema.field(name).type for name in names]
    whole = encode_row(table, 0, names)
    for count in range(len(names) + 1):
        expected = encode_row(table, 0, names[:count])
        assert leading(whole, types[:count]) == expected
        size = data.draw(st.integers(0, len(whole)))
        assert leading(whole[:size], types[:count]) == expected[:size]
        limit = data.draw(st.integers(1, len(whole) + 2))
        begun = encode_row(table, 0, names, limit)
        assert whole.startswith(begun)
        assert len(begun) >= min(limit, len(whole))
