"""The types of arguments that public methods take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


class ArrowStream(Protocol):
    """Data that exports itself by the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give a capsule of the stream."""


RowsLike: TypeAlias = (
    "Sequence[Mapping[str, Any]] | Mapping[str, Any] | pa.Table | pa.RecordBatch | pa.RecordBatchReader"
    " | pl.DataFrame | pl.LazyFrame | pd.DataFrame | DataFrame | ArrowStream"
)
"""Rows: dictionaries, a dictionary of columns, Arrow data, a frame of Polars, pandas or Spark."""

Timeline = Literal["clock", "counter"]
"""What the times of a collection are: milliseconds of the wall clock, or numbers that count commits."""

IfExists = Literal["error", "open"]
"""What `create` does if there is a collection of that name."""

LatePolicy = Literal["refuse", "drop", "move"]
"""What becomes of rows at times that are sealed."""

Multiplicity = Literal["rows", "column"]
"""How rows that count more than once are given: as often as they count, or once with a column of counts."""
