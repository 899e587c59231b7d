"""Require the key columns of rows: a missing one becomes no null and no default."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.schema.schema import Schema
from timespine.errors import InvalidRows, short_repr


def require_key_columns(rows: object, schema: Schema) -> pa.Table:
    """Convert rows to a table; raise InvalidRows if they lack a column of the key.

    A missing column becomes null, or its default. For a key the caller never means that: it would be the key of
    another row.
    """
    table = to_arrow(rows, schema)
    check_key_columns(rows, table, schema)
    return table


def check_key_columns(rows: object, table: pa.Table, schema: Schema) -> None:
    """Raise InvalidRows if rows, which are this table, lack a column of the key."""
    if schema.key and table.num_rows:
        lists = rows if isinstance(rows, list | tuple) else ()
        refuse_missing(schema.key_names, set(schema.key_names).intersection(table.column_names, *lists))


def refuse_missing(names: Sequence[str], there: set[str], *, has_key: bool = True) -> None:
    """Raise InvalidRows if rows lack one of the columns that identify them; without a key, all columns do."""
    missing = [name for name in names if name not in there]
    if missing:
        what = f"{'key ' if has_key else ''}column{'s' if len(missing) > 1 else ''}"
        why = "" if has_key else ": without a key, all columns identify a row"
        raise InvalidRows(f"the rows lack the {what} {', '.join(map(short_repr, missing))}{why}")
