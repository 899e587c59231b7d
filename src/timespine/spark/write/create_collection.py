"""Open the collection that `df.write` writes to, or create it with the columns of the DataFrame.

Tasks need a collection before they begin, so it is created first. A write that fails removes it, unless another write
has put rows there. If Spark ends the driver or its Python processes, the empty collection stays.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client.api_for_engines import open_or_create, undo_create
from timespine.client.collection import Collection
from timespine.columnar.schema.schema import Schema, infer, is_reserved
from timespine.errors import TimespineError, UnknownCollection, UsageError
from timespine.spark.options import DELETE, UPSERT, Options
from timespine.spark.store_cache import store_of
from timespine.spark.type_mapping import arrow_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def collection_for(options: Options, schema: StructType) -> tuple[Collection, bool]:
    """Open the collection for a DataFrame with this schema; create it, and the store, if it does not exist.

    The option `key` names the key columns; without it, all columns together are the key, as in `store.create`.
    Return the collection, and whether it is new.
    """
    target, mode = options.target, options.text("mode")
    key = options.names("key")
    store = store_of(target, create=mode != DELETE)
    try:
        found = store.collection(target.collection)
    except UnknownCollection:
        if mode == DELETE:
            raise
        if mode == UPSERT and not key:
            raise UsageError(
                f"there is no collection {target.collection} yet, and rows are upserted by key: name its key columns "
                "with option key, such as option('key', 'id')"
            ) from None
        made = infer(_columns(options, schema), key or ())
        return open_or_create(store, target.collection, made)
    _check_key(found.name, found.schema, key)
    return found, False


def remove_created(options: Options, id: str) -> None:
    """Remove the collection that a failed write has created, if it has no rows."""
    with contextlib.suppress(TimespineError):  # storage is unavailable: an empty collection stays
        undo_create(store_of(options.target), id, options.target.collection)


def _columns(options: Options, schema: StructType) -> pa.Schema:
    """Return the user's columns of a DataFrame: without those of updates, change feeds and times."""
    times = options.text("timeColumn")
    return pa.schema([field for field in arrow_columns(schema) if not is_reserved(field.name) and field.name != times])


def _check_key(name: str, schema: Schema, key: list[str] | None) -> None:
    """Refuse a key that differs from that of the collection."""
    known = schema.key_names if schema.key else ()
    if key is not None and set(key) != set(known):
        has = f"has the key {', '.join(known)}" if known else "has no key columns"
        raise UsageError(f"collection {name} exists and {has}, not {', '.join(key)}: leave option key out")
