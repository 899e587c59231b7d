"""Convert rows of a caller to an Arrow table: Arrow, Polars, pandas, dicts, or anything that exports Arrow.

The conversion drops nothing. Arrow's own readers of Python rows read the keys of
the first row only, and lose the number of rows without columns; pandas has an
index that may be a column. Columns keep their Arrow type; `conform_columns`
converts them to those of a schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from timespine.columnar.ingest.python_values import column_of, values_of
from timespine.columnar.schema.schema import Schema, shown_names
from timespine.errors import InvalidRows, short_repr, with_article
from timespine.first_use import is_instance_of
from timespine.libraries import is_frame, is_lazy_frame, is_series, pl

_ROWS = "give an Arrow table, a Polars or pandas frame, a list of dicts or a dict of columns"


def to_arrow(rows: object, schema: Schema | None = None) -> pa.Table:
    """Convert rows of any kind to an Arrow table.

    With a schema, convert Python values to its types, and give the default to a dict without the key.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    if isinstance(rows, list | tuple):
        return _from_dicts(rows, schema)
    if is_lazy_frame(rows):
        rows = rows.collect()
    if is_frame(rows):
        return _from_columns({name: rows.get_column(name) for name in rows.columns}, rows.height, schema)
    if is_instance_of(rows, "pandas", "DataFrame"):
        return _from_pandas(rows, schema)
    if isinstance(rows, Mapping):
        return _from_columns(rows, None, schema)
    return _from_capsule(rows)


def check_names(names: Sequence[str], schema: Schema, system: Sequence[str]) -> None:
    """Refuse repeated columns, and columns that the collection does not have."""
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidRows(f"the rows have two columns named {short_repr(twice)}: rename or drop one")
    for name in names:
        if name in schema.types or name in system:
            continue
        alike = next((each for each in (*schema.names, *system) if each.lower() == name.lower()), None)
        hint = f"did you mean {short_repr(alike)}?" if alike else f"there are {shown_names((*schema.names, *system))}"
        raise InvalidRows(f"the rows have a column {short_repr(name)} that the collection does not have; {hint}")


def _from_capsule(rows: object) -> pa.Table:
    """Convert an object with the Arrow C interface."""
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(rows)
        elif hasattr(rows, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(rows)])
        else:
            raise InvalidRows(f"{type(rows).__name__} cannot be read as rows: {_ROWS}")
    except (pa.ArrowInvalid, TypeError):
        raise InvalidRows(f"{type(rows).__name__} does not export a table: {_ROWS}") from None
    return reader.read_all()


def _from_dicts(rows: list[Any] | tuple[Any, ...], schema: Schema | None) -> pa.Table:
    for kind in set(map(type, rows)):
        if not issubclass(kind, dict):
            raise InvalidRows(f"a row is {with_article(kind.__name__)}, not a dict: {_ROWS}")
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    _check_texts(names, schema)
    columns: dict[str, pa.ChunkedArray] = {}
    for name in names:
        wanted, default = _type_and_default(name, schema)
        columns[name] = column_of(name, values_of(rows, name, default), wanted)
    return _table(columns, len(rows))


def _from_columns(given: Mapping[Any, object], rows: int | None, schema: Schema | None) -> pa.Table:
    """Make a table of columns by their names, which must all have the same length."""
    _check_texts(list(given), schema)
    columns: dict[str, pa.ChunkedArray] = {}
    for name, values in given.items():
        column = _column(name, values, schema)
        rows = len(column) if rows is None else rows
        if len(column) != rows:
            raise InvalidRows(f"column {short_repr(name)} has {len(column)} values where the others have {rows}")
        columns[name] = column
    return _table(columns, rows or 0)


def _check_texts(names: Sequence[object], schema: Schema | None) -> None:
    """Refuse names that no column can have, before any check of its values."""
    texts = [name for name in names if isinstance(name, str)]
    if len(texts) < len(names):
        wrong = next(name for name in names if not isinstance(name, str))
        raise InvalidRows(f"{short_repr(wrong)} is not the name of a column: a text is needed")
    if schema is not None:
        check_names(texts, schema, schema.system_names)


def _column(name: str, values: object, schema: Schema | None) -> pa.ChunkedArray:
    """Convert one column of any kind."""
    wanted, _ = _type_and_default(name, schema)
    if isinstance(values, list | tuple | range):
        return column_of(name, list(values), wanted)
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if is_series(values):
        return _from_polars(name, values, wanted)
    try:
        if is_instance_of(values, "pandas", "Series"):
            return _from_series(name, values, wanted)
        if isinstance(values, np.ndarray):
            if values.dtype == object:
                return column_of(name, values.tolist(), wanted)
            return _to_chunked(pa.array(values, from_pandas=False))
        if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else _to_chunked(pa.array(values))
    except (pa.ArrowException, TypeError, OverflowError):
        raise InvalidRows(f"column {short_repr(name)}: {type(values).__name__} cannot be read as a column") from None
    raise InvalidRows(
        f"column {short_repr(name)} is {with_article(type(values).__name__)}, not many values: a single row is [row]"
    )


def _from_polars(name: str, values: pl.Series, wanted: pa.DataType | None) -> pa.ChunkedArray:
    if values.dtype == pl.Object:  # Polars would export the addresses of the objects
        return column_of(name, values.to_list(), wanted)
    try:
        return _to_chunked(values.to_arrow(compat_level=pl.CompatLevel.oldest()))
    except pa.ArrowException:
        raise InvalidRows(f"column {short_repr(name)}: {values.dtype} has no Arrow type: cast it first") from None


def _from_pandas(frame: Any, schema: Schema | None) -> pa.Table:
    """Convert a frame, with the named levels of its index. Missing values of pandas become null."""
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    if named:
        frame = frame.reset_index(level=named)
    names = list(frame.columns)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidRows(f"the rows have two columns named {short_repr(twice)}: rename or drop one")
    return _from_columns(dict(frame.items()), len(frame), schema)


def _from_series(name: str, values: Any, wanted: pa.DataType | None) -> pa.ChunkedArray:
    if values.dtype != object:
        return _to_chunked(pa.array(values, from_pandas=True))
    objects, missing = values.to_numpy(), values.isna().to_numpy()
    if missing.any():
        objects = objects.copy()
        objects[missing] = None
    return column_of(name, objects.tolist(), wanted)


def _type_and_default(name: str, schema: Schema | None) -> tuple[pa.DataType | None, object]:
    """Return the type for Python values of a column, and the default for rows without it."""
    if schema is None:
        return None, None
    wanted = schema.types.get(name)
    if wanted is not None:
        field = schema.field(name)
        return wanted, None if field.default is None else field.default_scalar().as_py()
    return (pa.int64() if name in schema.system_names else None), None


def _table(columns: dict[str, pa.ChunkedArray], rows: int) -> pa.Table:
    if columns:
        return pa.Table.from_arrays(list(columns.values()), names=list(columns))
    return pa.Table.from_arrays([pa.nulls(rows)], names=["none"]).select([])  # no columns, but as many rows


def _to_chunked(array: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
