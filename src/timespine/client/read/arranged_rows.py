"""The rows of some keys, from an open arrangement: for changes, and for views that fetch the rows that they touch."""

from __future__ import annotations

import pyarrow as pa

from timespine.client.inner_handles import CollectionHandle


def arranged_rows(handle: CollectionHandle, keys: pa.Table, time: int, schema_id: int | None = None) -> pa.Table | None:
    """Return the rows of keys as of a complete time, with their counts in `_diff`; None if no arrangement can tell.

    `keys` has the columns that an arrangement is by, or the first of them: then a key stands for all that begin with
    it. The rows have all columns of a schema of the collection, by default the newest that this process knows. An
    arrangement of some rows or columns is not used, nor one that no longer has the time: `OpenArrangement.hold` keeps
    it. An arrangement looks at the log once, and takes what is new, before it answers.
    """
    id = len(handle.known().schemas) - 1 if schema_id is None else schema_id
    for arrangement in list(handle.context.arrangements):
        if arrangement.collection_id == handle.id:
            found = arrangement.rows_as_of(time, keys, id)
            if found is not None:
                return found
    return None
