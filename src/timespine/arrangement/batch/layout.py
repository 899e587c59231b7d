"""By which columns the rows of an arrangement are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from timespine.columnar.cached_property import cached_property
from timespine.columnar.schema.schema import DIFF, Schema, shown_names
from timespine.columnar.schema.types import is_nested
from timespine.errors import UsageError, short_repr


@dataclass(frozen=True)
class Layout:
    """The columns of the rows, and those that rows are arranged by: sorted by first, and found by."""

    schema: Schema
    """The columns of the rows."""
    by: tuple[str, ...]
    """The columns that rows are arranged by. Rows that are equal in them have one *key* of the arrangement."""

    def __post_init__(self) -> None:
        if not self.by:
            raise UsageError("rows are arranged by at least one column")
        for name in self.by:
            if is_nested(self.schema.field(name).arrow_type):
                raise UsageError(f"column {short_repr(name)} is nested: rows cannot be arranged by it")
        if len(set(self.by)) < len(self.by):
            raise UsageError(f"rows are arranged by a column twice: {shown_names(self.by)}")

    @staticmethod
    def of(schema: Schema, by: Sequence[str] | None = None) -> Layout:
        """Arrange rows of a schema by some columns, or by its key."""
        return Layout(schema, schema.key_names if by is None else tuple(by))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The columns of the rows in the order in which rows are sorted by them."""
        return tuple(dict.fromkeys((*self.by, *self.schema.names)))

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """The columns that rows are not arranged by."""
        return self.order[len(self.by) :]

    @cached_property
    def update_order(self) -> tuple[str, ...]:
        """The same and the times: the order of updates."""
        return (*self.order, *self.schema.time_names)

    @cached_property
    def counted_arrow(self) -> pa.Schema:
        """The columns of rows with their counts."""
        return pa.schema([*self.schema.arrow, pa.field(DIFF, pa.int64(), nullable=False)])

    @cached_property
    def by_types(self) -> tuple[pa.DataType, ...]:
        """The types of the columns that rows are arranged by."""
        return tuple(self.schema.types[name] for name in self.by)
