"""How the columns of a collection look in Spark, and back.

Spark has no unsigned integers, so these come as the next wider type that holds them
all; instants come in UTC. Everything else is what it is: strings, decimals, dates,
timestamps with and without a zone, lists and structs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.engines import keys_of, refuse_missing
from timespine.columnar.ingest.cast import mismatch
from timespine.columnar.ingest.to_arrow import check_names
from timespine.columnar.schema.schema import Schema, is_reserved
from timespine.errors import UsageError, shown
from timespine.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


@lru_cache(maxsize=1024)
def to_spark_type(kind: pa.DataType) -> pa.DataType:
    """Give the Arrow type in which Spark takes the values of a type."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", to_spark_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, to_spark_type(field.type)) for field in kind])
    return _WIDER.get(kind, kind)


def to_spark_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema in which Spark takes rows of a schema."""
    return pa.schema([pa.field(field.name, to_spark_type(field.type), field.nullable) for field in schema])


def to_spark_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows as Spark takes them, with the columns of a schema that `to_spark_schema` made."""
    columns = [_to_spark_column(table.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _to_spark_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type.equals(kind, check_metadata=True) else column.cast(kind)


def struct_type(schema: pa.Schema) -> StructType:
    """The same columns as Spark names their types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(to_spark_schema(schema))


def columns_of(schema: StructType) -> pa.Schema:
    """The columns of a DataFrame as Arrow names their types; a UsageError if one of them cannot be stored."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except Exception as error:  # Spark has several: for a type that Arrow has not, for names that come twice
        raise UsageError(f"the DataFrame has a column that cannot be stored: {error}") from error


def ddl_of(kind: DataType) -> str:
    """A type of Spark as SQL says it, with the names of fields quoted. (`toDDL` asks the session of this thread.)"""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(each.name)}: {ddl_of(each.dataType)}' for each in kind.fields)}>"
    return kind.simpleString()


def check_frame(given: Any, schema: Schema, extra: tuple[str, ...] = ()) -> None:
    """A UsageError if no row of a DataFrame with this Spark schema can be one of the collection.

    Columns besides the user's that may be there are named by `extra`.
    """
    arrow = columns_of(given)
    check_names(arrow.names, schema, extra)
    missing = [name for name in schema.key_names if schema.key and name not in arrow.names]
    if missing:
        raise UsageError(f"keys need the columns {', '.join(schema.key_names)}: {', '.join(missing)} is not there")
    for field in arrow:
        if field.name in extra and field.name not in (*schema.names, *schema.system_names):
            continue
        wanted = pa.int64() if field.name in schema.system_names else schema.types[field.name]
        reason = mismatch(unsigned_type(field.type, wanted), wanted)
        if reason is not None:
            raise UsageError(f"column {shown(field.name)} {reason}")


def check_keys(given: StructType, schema: Schema) -> list[str]:
    """The columns of a DataFrame of keys that say which rows are meant; a UsageError if they cannot.

    Other columns of the collection, and those of change feeds, may come along, and are passed over.
    """
    from pyspark.sql.types import StructType

    check_names([name for name in given.names if not is_reserved(name)], schema, ())
    keys = StructType([field for field in given.fields if field.name in schema.key_names])
    check_frame(keys, schema)
    refuse_missing(schema.key_names, set(keys.names))
    # What cannot be found by its columns is refused by this, whatever the rows.
    keys_of(schema.arrow.empty_table(), schema)
    return list(keys.names)


def unsigned_type(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Give the type of a column of Spark, with the unsigned types that its numbers stand for."""
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
    """Convert a batch of Spark: decimals that stand for unsigned numbers become numbers."""
    table = pa.Table.from_batches([batch])
    for place, field in enumerate(table.schema):
        wanted = schema.types.get(field.name)
        known = field.type if wanted is None else unsigned_type(field.type, wanted)
        if known != field.type:
            try:
                table = table.set_column(place, field.name, table.column(place).cast(known))
            except pa.ArrowInvalid as error:
                raise UsageError(f"column {shown(field.name)} has values that do not fit uint64") from error
    return table
