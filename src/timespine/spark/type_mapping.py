"""Convert columns of a collection to types of Spark, and back.

Spark has no unsigned integers, so they become the next wider type that holds all their
values; instants are in UTC. All other types stay: strings, decimals, dates,
timestamps with and without a zone, lists and structs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.api_for_engines import parse_keys
from timespine.columnar.ingest.cast import mismatch
from timespine.columnar.ingest.require_key_columns import refuse_missing
from timespine.columnar.ingest.to_arrow import check_names
from timespine.columnar.schema.schema import Schema, is_reserved
from timespine.errors import UnsupportedType, UsageError, short_repr
from timespine.spark.quoted_names import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Batches = Iterator[pa.RecordBatch]
"""The rows of a task, as Spark passes them."""

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


@lru_cache(maxsize=1024)
def to_spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark accepts the values of a type."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", to_spark_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, to_spark_type(field.type)) for field in kind])
    return _WIDER.get(kind, kind)


def to_spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow schema in which Spark accepts rows of a schema."""
    return pa.schema([pa.field(field.name, to_spark_type(field.type), field.nullable) for field in schema])


def to_spark_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to a schema that `to_spark_schema` made."""
    columns = [_to_spark_column(table.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _to_spark_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type.equals(kind, check_metadata=True) else column.cast(kind)


def struct_type(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to one of Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(to_spark_schema(schema))


def arrow_columns(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to one of Arrow; raise an UnsupportedType if a column has a type that Arrow lacks."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except Exception as error:  # Spark has several classes: for a type that Arrow lacks, for repeated names
        raise UnsupportedType(f"the DataFrame has a column that cannot be stored: {error}") from error


def ddl_of(kind: DataType) -> str:
    """Write a type of Spark in SQL, with quoted names of fields. (`toDDL` would need the session of this thread.)"""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(each.name)}: {ddl_of(each.dataType)}' for each in kind.fields)}>"
    return kind.simpleString()


def check_frame(given: Any, schema: Schema, extra: tuple[str, ...] = ()) -> None:
    """Raise a UsageError if the rows of a DataFrame with this Spark schema cannot be rows of the collection.

    `extra` names the columns that may be there besides the user's.
    """
    arrow = arrow_columns(given)
    check_names(arrow.names, schema, extra)
    if schema.key:
        refuse_missing(schema.key_names, set(arrow.names))
    for field in arrow:
        if field.name in extra and field.name not in (*schema.names, *schema.system_names):
            continue
        wanted = pa.int64() if field.name in schema.system_names else schema.types[field.name]
        reason = mismatch(unsigned_type(field.type, wanted), wanted)
        if reason is not None:
            raise UsageError(f"column {short_repr(field.name)} {reason}")


def check_key_frame(given: StructType, schema: Schema) -> list[str]:
    """Find the key columns of a DataFrame of keys; raise a UsageError if they identify no rows.

    Ignore other columns of the collection, and those of change feeds.
    """
    from pyspark.sql.types import StructType

    check_names([name for name in given.names if not is_reserved(name)], schema, ())
    keys = StructType([field for field in given.fields if field.name in schema.key_names])
    check_frame(keys, schema)
    refuse_missing(schema.key_names, set(keys.names), has_key=bool(schema.key))
    # This refuses columns that cannot identify rows, whatever their values.
    parse_keys(schema.arrow.empty_table(), schema)
    return list(keys.names)


def unsigned_type(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return the type of a column of Spark, with the unsigned types that its numbers represent."""
    if wanted == pa.uint64() and pa.types.is_decimal(given) and given.scale == 0:
        return wanted
    if pa.types.is_list(wanted) and pa.types.is_list(given):
        return pa.list_(given.value_field.with_type(unsigned_type(given.value_type, wanted.value_type)))
    if pa.types.is_struct(wanted) and pa.types.is_struct(given):
        kinds = {field.name: field.type for field in wanted}
        fields = [field.with_type(unsigned_type(field.type, kinds.get(field.name, field.type))) for field in given]
        return pa.struct(fields)
    return given


def from_spark_batch(batch: pa.RecordBatch, schema: Schema) -> pa.Table:
    """Convert a batch of Spark: decimals that represent unsigned integers become integers."""
    table = pa.Table.from_batches([batch])
    for place, field in enumerate(table.schema):
        wanted = schema.types.get(field.name)
        known = field.type if wanted is None else unsigned_type(field.type, wanted)
        if known != field.type:
            try:
                table = table.set_column(place, field.name, table.column(place).cast(known))
            except pa.ArrowInvalid as error:
                raise UsageError(f"column {short_repr(field.name)} has values that do not fit uint64") from error
    return table
