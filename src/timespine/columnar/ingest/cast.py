"""Exact casts of a column of any Arrow type to one of the closed list, or an error.

A cast may change the representation of a value, never the value. So integers may
become narrower, or floats, or decimals, if every value fits; floats may become
integers if every value is whole; timestamps may become coarser if nothing is
lost. Texts are not parsed, a bool is not a number, and a wall-clock time is not
an instant. The one thing that is rounded is float64 to float32.

Every float comes out canonical, also inside of lists and structs: no -0.0, one
bit pattern of NaN. Equal values then have equal bytes, in every engine.

Nested values are taken apart and put together here: the casts of Arrow itself
lose rows of a sliced list_view, and drop fields of a struct.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timespine.columnar.schema.types import (
    holds_floats,
    is_binary_like,
    is_list_like,
    is_nested,
    is_string_like,
    type_name,
)
from timespine.errors import InvalidRows, short_repr
from timespine.libraries import pc

CHUNK_ROWS_MIN = 1024
"""The average rows of chunks below which they are joined first: each chunk costs as much as hundreds of rows."""

_INT32_MAX = (1 << 31) - 1
_UNREADABLE = (pa.ArrowInvalid, pa.ArrowCapacityError)
_OFFSETS = (
    (pa.types.is_list, pa.list_, 2),
    (pa.types.is_large_list, pa.large_list, 2),
    (pa.types.is_list_view, pa.list_view, 3),
    (pa.types.is_large_list_view, pa.large_list_view, 3),
)
_ACCEPTED = {
    "bool": {"bool"},
    "integer": {"integer", "float"},
    "float": {"integer", "float", "halffloat"},
    "decimal": {"decimal", "integer"},
    "string": {"string"},
    "binary": {"binary"},
    "date": {"date"},
}
_HINTS = {
    ("string", "binary"): "encode the texts first",
    ("binary", "string"): "decode the bytes first",
    ("bool", "integer"): "a bool is not a number; cast it first if it should be one",
    ("bool", "float"): "a bool is not a number; cast it first if it should be one",
}
_TOO_MUCH = {
    "integer": "it is out of range or not whole",
    "float": "it is out of range, or an integer that is no float",
    "decimal": "it has too many digits; round it first",
    "timestamp": "it is out of range or finer than microseconds; round it first",
    "date": "it is not a whole day",
}


def cast_column(name: str, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Cast a column of the caller to a type of the closed list, checked and canonical, or raise a UsageError."""
    given = column.type
    if given != wanted:
        reason = mismatch(given, wanted)
        if reason is not None:
            raise InvalidRows(f"column {short_repr(name)} {reason}")
    _check_buffers(name, column)
    column = _join_tiny_chunks(column)
    # The second comparison also sees the names of list elements, which the first one does not.
    if (
        given == wanted
        and not holds_floats(wanted)
        and (not is_nested(wanted) or given.equals(wanted, check_metadata=True))
    ):
        return column
    pieces: list[pa.Array] = []
    start = 0
    try:
        for chunk in column.chunks:
            pieces += _pieces(chunk, wanted, start)
            start += len(chunk)
    except _BadRow as bad:
        why = _TOO_MUCH.get(_kind(wanted), "a value inside of it does not fit")
        raise InvalidRows.of_row(name, bad.row, f"does not fit {type_name(wanted)}: {why}") from None
    except pa.ArrowNotImplementedError:
        raise InvalidRows(
            f"column {short_repr(name)}: {given} cannot be read as {type_name(wanted)}: cast it"
        ) from None
    return _join_tiny_chunks(pa.chunked_array(pieces, wanted))


def mismatch(given: pa.DataType, wanted: pa.DataType) -> str | None:
    """Explain why no column of the one type can become the other; return None if its values decide."""
    while pa.types.is_dictionary(given):
        given = given.value_type
    have, need = _kind(given), _kind(wanted)
    if have == "null" or have in _ACCEPTED.get(need, ()):
        return None
    if have == need == "list":
        return mismatch(given.value_type, wanted.value_type)
    if have == need == "struct":
        return _struct_mismatch(given, wanted)
    if have == need == "timestamp":
        if (given.tz is None) is (wanted.tz is None):
            return None
        if given.tz is None:
            return f"holds timestamps without a zone where {type_name(wanted)} is needed: give them their zone first"
        return "holds timestamps with a zone where wall-clock times are needed: convert them first"
    hint = _HINTS.get((have, need), "cast it first")
    return f"holds {short_repr(str(given))} where {type_name(wanted)} is needed: {hint}"


def canonical_floats(array: pa.Array) -> pa.Array:
    """Replace -0.0 by 0.0 and every NaN by one; return the array itself if it has neither."""
    if len(array) == 0:
        return array
    width = array.type.bit_width // 8
    sign, nan = (1 << 31, 0x7FC00000) if width == 4 else (1 << 63, 0x7FF8000000000000)
    values: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], f"<f{width}", len(array), array.offset * width)
    raw = values.view(f"<u{width}")
    wrong = np.isnan(values)
    if wrong.any():
        wrong &= raw != nan
    wrong |= raw == sign
    if not wrong.any():
        return array
    # SUBTLE: bits are replaced, not numbers: arithmetic keeps the payload of a NaN, and warns about a signalling one.
    fixed = raw.copy()
    fixed[wrong] = np.where(raw[wrong] == sign, 0, nan)
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(fixed.view(values.dtype), array.type, mask=mask, from_pandas=False)


class _BadRow(Exception):
    """A row whose value does not fit. Never leaves this module."""

    def __init__(self, row: int) -> None:
        self.row = row


def _kind(given: pa.DataType) -> str:
    """Return the kind of values of a type, whatever its representation."""
    types = pa.types
    kinds = (
        ("null", types.is_null),
        ("bool", types.is_boolean),
        ("integer", types.is_integer),
        ("halffloat", types.is_float16),
        ("float", types.is_floating),
        ("string", is_string_like),
        ("timestamp", types.is_timestamp),
        ("decimal", types.is_decimal),
        ("binary", is_binary_like),
        ("date", types.is_date),
        ("list", is_list_like),
        ("struct", types.is_struct),
    )
    return next((kind for kind, holds in kinds if holds(given)), "other")


def _struct_mismatch(given: pa.DataType, wanted: pa.DataType) -> str | None:
    names = [field.name for field in given]
    if len(set(names)) < len(names):
        return "holds structs with two fields of the same name: rename one"
    wanted_fields = {field.name: field for field in wanted}
    for field in given:
        if field.name not in wanted_fields:
            field_name, type_text = short_repr(field.name), short_repr(type_name(wanted))
            return f"holds structs with a field {field_name} that {type_text} does not have"
        reason = mismatch(field.type, wanted_fields[field.name].type)
        if reason is not None:
            return f"in field {short_repr(field.name)} {reason}"
    return None


def _check_buffers(name: str, column: pa.ChunkedArray) -> None:
    """Refuse buffers that are not valid for their type: texts that are no UTF-8, offsets that point outside."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if (is_list_like(column.type) or pa.types.is_struct(column.type)) and all(map(_is_sound, column.chunks)):
            return
        # The message of Arrow may contain a value, so ours contains only the kind of error.
        what = "text that is not valid UTF-8" if "UTF8" in str(error) else f"values that no {column.type} can have"
        raise InvalidRows(f"column {short_repr(name)} holds {what}: correct the data before it is written") from None


def _is_sound(array: pa.Array) -> bool:
    """Return whether all values that are not below a null are valid.

    Arrow also checks below nulls, and finds indices into the empty dictionary of a null struct,
    which it made itself. So this function passes nulls down first.
    """
    try:
        if pa.types.is_struct(array.type):
            array.validate()
        elif is_list_like(array.type):
            # SUBTLE: offsets lead to elements, so they are checked first, as if there were only nulls to find.
            _bare(array).validate(full=True)
        else:
            array.validate(full=True)
            return True
    except pa.ArrowInvalid:
        return False
    inside = array.flatten()
    return all(map(_is_sound, inside if isinstance(inside, list) else [inside]))


def _bare(array: pa.Array) -> pa.Array:
    """Return the same lists with only nulls in them; empty for lists of a fixed size, which have no offsets."""
    for is_kind, kind, buffers in _OFFSETS:
        if is_kind(array.type):
            nulls = [pa.nulls(len(array.values))]
            bare = array.buffers()[:buffers]
            return pa.Array.from_buffers(kind(pa.null()), len(array), bare, offset=array.offset, children=nulls)
    array.validate()
    return pa.nulls(len(array))


def _join_tiny_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Join tiny chunks, if that is exact for the type."""
    if column.num_chunks < 8 or len(column) >= column.num_chunks * CHUNK_ROWS_MIN:
        return column
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        return column
    try:
        return pa.chunked_array([column.combine_chunks()], column.type)
    except (*_UNREADABLE, pa.ArrowNotImplementedError):
        return column


def _pieces(array: pa.Array, wanted: pa.DataType, start: int) -> list[pa.Array]:
    """Convert an array to the wanted type, in as many pieces as needed.

    Cut an array that fails in halves until it works or is one row. That finds the first row that does
    not fit, and it splits arrays that are too large for the 32-bit offsets of the wanted type.
    """
    try:
        return [_convert(array, wanted)]
    except _UNREADABLE:
        if len(array) == 1:
            raise _BadRow(start) from None
    half = len(array) // 2
    return [*_pieces(array.slice(0, half), wanted, start), *_pieces(array.slice(half), wanted, start + half)]


def _convert(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert an array to the wanted type; raise ArrowInvalid if some value does not fit."""
    given, types = array.type, pa.types
    if types.is_null(given):
        return pa.nulls(len(array), wanted)
    if types.is_dictionary(given):
        values = array.dictionary
        if types.is_string_view(values.type) or types.is_binary_view(values.type):  # Arrow cannot take from views
            values = values.cast(pa.string() if types.is_string_view(values.type) else pa.binary())
        return _convert(values.take(array.indices), wanted)
    if types.is_list(wanted):
        return _convert_list(array, wanted)
    if types.is_struct(wanted):
        return _convert_struct(array, wanted)
    if types.is_integer(given) and types.is_decimal(wanted):
        array = array.cast(
            pa.decimal128(20, 0)
        )  # every integer fits; direct casts demand more digits than the values need
    cast = array if array.type == wanted else array.cast(wanted)
    if not types.is_floating(wanted):
        return cast
    if types.is_float64(given) and types.is_float32(wanted):
        before, after = (each.to_numpy(zero_copy_only=False) for each in (array, cast))
        if (np.isinf(after) & np.isfinite(before)).any():  # nulls are NaN here, and neither
            raise pa.ArrowInvalid("a float64 is out of the range of float32")
    return canonical_floats(cast)


def _convert_list(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a list of any kind. Check only elements of lists: those between them may be anything."""
    values = _convert(array.flatten(), wanted.value_type)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _INT32_MAX:
        raise pa.ArrowInvalid("more elements than 32-bit offsets can count")
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=wanted, mask=mask)


def _convert_struct(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a struct field by field. `flatten` makes fields of a null struct null, so that they cannot fail."""
    given = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        _convert(given[field.name], field.type) if field.name in given else pa.nulls(len(array), field.type)
        for field in wanted
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
