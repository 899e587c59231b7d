"""The types that a column may have: a closed list, each with one text and one Arrow type.

    bool  int8 int16 int32 int64  uint8 uint16 uint32 uint64
    float32 (float)  float64 (double)  decimal(p,s)
    string  binary  date  timestamp  timestamp[Europe/Berlin]
    list<T>  struct<a:T,"any name":T>

The list is closed because every row must have one order, one equality and one
Parquet form in every engine. Arrow has several types for the same values
(string, large_string, string_view, dictionary); here they are one. The text is
what the state stores, so it must mean the same on every machine: the decoder
needs no time zone database and no Unicode table.

Timestamps are microseconds; without a zone they are wall-clock times, with one
they are instants. Every value, also inside of nested ones, may be null.
Callers may write types by other names too: `type_parser` has them all.
"""

from __future__ import annotations

import functools
from types import GenericAlias
from typing import TypeAlias, get_args, get_origin

import pyarrow as pa

from timespine.columnar.schema.type_parser import (
    PLAIN,
    PYTHON_TYPES,
    WORD,
    WORKS,
    check_depth,
    decimal_of,
    parse_columns,
    parse_text,
    struct_of,
    unknown_type,
    zone_of,
)
from timespine.errors import UnsupportedType, short_repr
from timespine.libraries import pl

_PLAIN_NAMES = {given: name for name, given in PLAIN.items()}

TypeLike: TypeAlias = str | type | GenericAlias | pa.DataType
"""The type of a column as a caller gives it: its name, a Python type such as `int` or `list[int]`, or an Arrow type."""


def parse_type(given: TypeLike) -> pa.DataType:
    """Return the canonical Arrow type of a caller's type; raise an UnsupportedType that says what to use instead."""
    if isinstance(given, str):
        parsed = stored_type(given)
    elif isinstance(given, pa.DataType):
        parsed = _normal(given, 1)
    else:
        parsed = _of_python(given, 1)
    _check_zones(parsed)
    return parsed


def _of_python(given: object, depth: int) -> pa.DataType:
    """Return the type for a Python type; raise an UnsupportedType if there is none."""
    check_depth(depth)
    inside = get_args(given)
    if get_origin(given) is list and len(inside) == 1:
        return pa.list_(_of_python(inside[0], depth + 1))
    if isinstance(given, type) and given in PYTHON_TYPES:
        return PYTHON_TYPES[given]
    python = ", ".join(each.__name__ for each in PYTHON_TYPES if isinstance(each, type))
    raise UnsupportedType(
        f"{short_repr(given)} is not a type: give a name, one of {WORKS}; or a Python type, one of {python}, list[T]; "
        "or an Arrow type"
    )


def parse_schema(text: str) -> pa.Schema:
    """Parse the columns of a schema of Spark SQL: "id bigint, name string"."""
    columns = parse_columns(text)
    for name, parsed in columns:
        try:
            _check_zones(parsed)
        except UnsupportedType as error:
            raise error.in_context(f"column {short_repr(name)}") from None
    return pa.schema(columns)


@functools.lru_cache(maxsize=4096)
def stored_type(text: str) -> pa.DataType:
    """Parse the stored text of a type, without a check of its time zones.

    SUBTLE: a type that one machine stored must decode on every other one, so
    only `parse_type`, which takes the caller's types, looks zones up. Caught by
    test_a_stored_zone_is_not_looked_up.
    """
    return parse_text(text)


def type_name(given: pa.DataType) -> str:
    """Write the text of a type: `parse_type(type_name(t)) == t` for every type that `parse_type` gives."""
    return _text(_normal(given, 1))


def is_nested(given: pa.DataType) -> bool:
    """Return whether values of the type contain other values."""
    return bool(pa.types.is_list(given) or pa.types.is_struct(given))


@functools.lru_cache(maxsize=4096)
def holds_floats(given: pa.DataType) -> bool:
    """Return whether a type of the closed list is or contains a float."""
    if pa.types.is_floating(given):
        return True
    return is_nested(given) and any(holds_floats(given.field(i).type) for i in range(given.num_fields))


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of `old` is one of `new`, and their order stays the same.

    The second half matters as much: reads do not sort runs of `old` again as `new`.
    """
    if old == new:
        return True
    types = pa.types
    if types.is_integer(old):
        if types.is_float64(new):
            return bool(old.bit_width <= 32)
        if not types.is_integer(new) or (types.is_signed_integer(old) and types.is_unsigned_integer(new)):
            return False
        return bool(old.bit_width < new.bit_width)
    if types.is_decimal128(old) and types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return bool(types.is_float32(old) and types.is_float64(new))


def is_list_like(given: pa.DataType) -> bool:
    """Return whether it is one of the Arrow types whose values are lists."""
    return bool(
        pa.types.is_list(given)
        or pa.types.is_large_list(given)
        or pa.types.is_fixed_size_list(given)
        or pa.types.is_list_view(given)
        or pa.types.is_large_list_view(given)
    )


def is_string_like(given: pa.DataType) -> bool:
    """Return whether it is one of the Arrow types whose values are texts."""
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def is_binary_like(given: pa.DataType) -> bool:
    """Return whether it is one of the Arrow types whose values are bytes."""
    return bool(
        pa.types.is_binary(given)
        or pa.types.is_large_binary(given)
        or pa.types.is_binary_view(given)
        or pa.types.is_fixed_size_binary(given)
    )


def _normal(given: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of the closed list with the same values."""
    check_depth(depth)
    types = pa.types
    if given in _PLAIN_NAMES:
        return given
    if types.is_dictionary(given):
        return _normal(given.value_type, depth)
    if is_string_like(given):
        return pa.string()
    if is_binary_like(given):
        return pa.binary()
    if types.is_date(given):
        return pa.date32()
    if types.is_timestamp(given):
        return pa.timestamp("us", given.tz and zone_of(given.tz))
    if types.is_decimal(given):
        return decimal_of(given.precision, given.scale)
    if is_list_like(given):
        return pa.list_(_normal(given.value_type, depth + 1))
    if types.is_struct(given):
        return struct_of([(field.name, _normal(field.type, depth + 1)) for field in given])
    if types.is_null(given):
        raise UnsupportedType("a column of type null says nothing about its values: give it a type")
    if isinstance(given, pa.BaseExtensionType):
        raise UnsupportedType(f"{short_repr(str(given))} is an extension type: cast it to its storage type first")
    raise unknown_type(str(given))


def _text(given: pa.DataType) -> str:
    plain = _PLAIN_NAMES.get(given)
    if plain is not None:
        return plain
    if pa.types.is_timestamp(given):
        return f"timestamp[{given.tz}]"
    if pa.types.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    if pa.types.is_list(given):
        return f"list<{_text(given.value_type)}>"
    return f"struct<{','.join(f'{_quote(field.name)}:{_text(field.type)}' for field in given)}>"


def _quote(name: str) -> str:
    # ASCII on purpose: the set of other letters depends on the Unicode table of the interpreter.
    return name if WORD.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _check_zones(given: pa.DataType) -> None:
    """Refuse an unknown zone, which no reader could use, while the caller can still correct it."""
    if pa.types.is_timestamp(given):
        if given.tz is not None and not _is_known_zone(given.tz):
            raise UnsupportedType(
                f"{short_repr(given.tz)} is not a known time zone: use one such as UTC or Europe/Berlin"
            )
    elif is_nested(given):
        for i in range(given.num_fields):
            _check_zones(given.field(i).type)


@functools.lru_cache(maxsize=1024)
def _is_known_zone(zone: str) -> bool:
    # Polars has its own table of zones, and sorts our rows: a zone that it does not know is useless.
    if zone == "UTC":
        return True
    try:
        pl.Series([], dtype=pl.Int64).cast(pl.Datetime("us", zone))
    except pl.exceptions.ComputeError:
        return False
    return True
