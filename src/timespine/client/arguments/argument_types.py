"""The types of arguments that public methods take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

import pyarrow as pa

from timespine.client.arguments.time_args import DurationLike
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import TypeLike
from timespine.libraries import pl

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class ArrowStream(Protocol):
    """Data that exports itself by the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule of the stream."""


Value: TypeAlias = Any
"""A value of a column as Python has it. Its type is that of the column, so no type says more."""

Row: TypeAlias = dict[str, Value]
"""A row as Python has it: its values by column."""

RowsLike: TypeAlias = (
    "Sequence[Mapping[str, Value]] | Mapping[str, Value] | pa.Table | pa.RecordBatch | pa.RecordBatchReader"
    " | pl.DataFrame | pl.LazyFrame | pd.DataFrame | DataFrame | ArrowStream"
)
"""Rows: dictionaries, a dictionary of columns, Arrow data, a frame of Polars, pandas or Spark."""

KeyLike: TypeAlias = Mapping[str, TypeLike] | Sequence[str] | str
"""The key columns: their types by name; or, beside a whole `schema`, their names."""

SchemaLike: TypeAlias = "Schema | pa.Schema | str | StructType"
"""All columns: a text such as "id bigint, name string", an Arrow schema, a StructType of Spark, or a `Schema`."""

SetLike: TypeAlias = Mapping[str, Value]
"""New values by column: a value of Python, another column as `col(name)`, or a Polars expression."""

Timeline = Literal["clock", "counter"]
"""The meaning of the times of a collection: milliseconds of the wall clock, or numbers that count commits."""

IfExists = Literal["error", "open"]
"""The action of `create` if a collection of that name exists."""

IfBehind = Literal["error", "ignore"]
"""The action of `seal` if the collection is sealed further already."""

LatePolicy = Literal["refuse", "drop", "move"]
"""The action of a write on late rows."""

ViewPolicy = Literal["auto", "incremental", "incremental_strict", "full"]
"""How a view is refreshed: from changes where there is a rule, from changes or not at all, or computed again."""

ViewTimes = Literal["refresh", "every"]
"""The times at which a view is exact: its refresh points, or each time of its inputs."""

ViewEngine = Literal["process", "spark"]
"""What computes a refresh: this process, or Spark."""

Multiplicity = Literal["rows", "column"]
"""The form of rows that count more than once: repeated by their count, or once with a column of counts."""

Progress = Callable[[int, int], None]
"""A function to call with the bytes done so far, and the bytes in all."""

Verification = Literal["sizes", "full"]
"""How a copy is checked: every blob is there with its size, or every blob is read back and compared with its hashes."""

FrameFunction = Callable[[Mapping[str, "DataFrame"]], "DataFrame"]
"""A function from the DataFrames of inputs, by name, to that of a view."""


class CreateOptions(TypedDict, total=False):
    """The options of `store.create` that define a collection."""

    key: KeyLike | None
    """The key columns."""
    value: Mapping[str, TypeLike] | None
    """The other columns: their types by name."""
    schema: SchemaLike | None
    """All columns as a whole, instead of `key` with types and `value`."""
    cluster: Sequence[str]
    """The columns that rows are ordered by before the key."""
    time_coordinates: int
    """The number of integers in a time."""
    timeline: Timeline
    """The meaning of times."""
    retain: DurationLike | None
    """How long history is kept; "for ever"; None: the policy of the store."""
    forget_within: DurationLike | None
    """The deadline for forgetting expired history; None: the deadline of the store."""
