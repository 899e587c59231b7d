"""The rows of a tiny inline part as MessagePack, one list of values per column: thousands of them decode together.

    [[value, ...], ..., time, ..., diff]

Values are those that Arrow stores: a date is a number of days, a timestamp a number of microseconds. A time or a diff
that all rows share is one number, otherwise a list. Columns with values inside of values, and decimals, have no such
form; rows of them are record batches (`columnar.parts.inline_part`).

An Arrow message costs a fixed price to decode, however small it is. Here the price is per value: the lists of all
parts are chained and become one Arrow array per column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from timespine.columnar.schema.schema import DIFF, Schema, time_names
from timespine.errors import CorruptionError
from timespine.model.time import ARITY_MAX

VALUES_MAX = 512
"""Values of one part, at most: a record batch of more is smaller, and its fixed price is shared by more rows."""

BYTES_MAX = 1024
"""Bytes of one part, at most: what is longer may be much smaller when it is compressed."""

_STORED: dict[int, tuple[pa.DataType | None, Any]] = {
    pa.bool_().id: (None, bool | None),
    **{
        kind.id: (None, int | None)
        for kind in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        )
    },
    pa.float32().id: (None, float | None),
    pa.float64().id: (None, float | None),
    pa.string().id: (None, str | None),
    pa.binary().id: (None, bytes | None),
    pa.date32().id: (pa.int32(), int | None),
    pa.timestamp("us").id: (pa.int64(), int | None),
}
"""By the id of an Arrow type: the type whose numbers stand for its values, if it is another, and their Python type."""

_SHARED = frozenset((DIFF, *(name for arity in range(1, ARITY_MAX + 1) for name in time_names(arity))))
"""Columns of numbers whose value all rows may share: by name, as a table does not say how many coordinates it has."""

_encoder = msgspec.msgpack.Encoder()


class _Column(NamedTuple):
    """How one column is decoded."""

    type: pa.DataType
    """The type of the column."""
    stored: pa.DataType
    """The type of the numbers that stand for its values."""
    may_share: bool
    """Whether one number may stand for all rows."""


def encode_columns(table: pa.Table) -> bytes | None:
    """Return the rows of an update table; None if they are too many or too long, or a column has no such form."""
    if table.num_rows * table.num_columns > VALUES_MAX:
        return None
    columns: list[Any] = []
    for name, column in zip(table.column_names, table.itercolumns(), strict=True):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        form = _STORED.get(array.type.id)
        if form is None:
            return None
        try:
            values = (array if form[0] is None else array.view(form[0])).to_pylist()
        except UnicodeDecodeError:  # not a text: who reads the record batch finds that out
            return None
        if name in _SHARED and values and type(values[0]) is int and values.count(values[0]) == len(values):
            columns.append(values[0])
        else:
            columns.append(values)
    encoded = _encoder.encode(columns)
    return encoded if len(encoded) <= BYTES_MAX else None


def decode_columns(encoded: Sequence[bytes | memoryview], counts: Sequence[int], schema: Schema) -> pa.RecordBatch:
    """Return the rows of some parts that were encoded under this schema, one after the other, or a CorruptionError.

    `counts` says how many rows each has.
    """
    layout = _layout(schema)
    if layout is None:
        raise CorruptionError("inline columns are of a schema that has no such form")
    decoder, columns = layout
    arrays = []
    try:
        decoded = [decoder.decode(data) for data in encoded]
        for place, column in enumerate(columns):
            lists = [each[place] for each in decoded]
            if column.may_share:
                lists = [[each] * rows if type(each) is int else each for each, rows in zip(lists, counts, strict=True)]
            if list(map(len, lists)) != counts:
                raise CorruptionError("inline columns do not have the number of rows that their parts say")
            array = pa.array(chain.from_iterable(lists), column.stored, size=sum(counts), from_pandas=False)
            arrays.append(array if column.stored is column.type else array.view(column.type))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        # Not in words: what it says may repeat a value.
        raise CorruptionError("inline columns are not MessagePack of their schema") from error
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise CorruptionError("inline columns have a value that does not fit its column") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema.update_arrow)


@lru_cache(maxsize=64)
def _layout(schema: Schema) -> tuple[msgspec.msgpack.Decoder[Any], tuple[_Column, ...]] | None:
    """Return how rows of a schema are decoded; None if a column has no such form."""
    columns = []
    types: list[Any] = []
    for field in schema.update_arrow:
        form = _STORED.get(field.type.id)
        if form is None:
            return None
        may_share = field.name in _SHARED and form[1] == int | None
        columns.append(_Column(field.type, field.type if form[0] is None else form[0], may_share))
        types.append(list[form[1]] | int if may_share else list[form[1]])  # type: ignore[valid-type]
    return msgspec.msgpack.Decoder(tuple[tuple(types)]), tuple(columns)  # type: ignore[misc]
