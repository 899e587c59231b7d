"""SQL views and functions for all collections of a store.

SELECT * FROM orders                             the newest rows at the first query
SELECT * FROM orders_asof(7)                     the rows as of a time
SELECT * FROM orders_updates                     every update, with `_time` and `_diff`
SELECT * FROM timespine_changes('orders', 5, 9)  net changes of versions 5 to 9, both included, rows as JSON

The first three show the collection as of their first query, the last one as of the call of
`register`; call `register` again for newer rows. `row_json` describes rows as JSON:
values without a JSON literal are strings, `"NaN"` for example, and bytes are in base64.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from timespine.client.api_for_engines import ReadOptions, extent_of, handle_of, open_snapshot, slices_of
from timespine.client.collection import Collection
from timespine.client.store import Store
from timespine.columnar.scan.worker_slice import Slice, read_slice_rows
from timespine.columnar.schema.schema import DIFF
from timespine.errors import UnknownCollection, UsageError
from timespine.model.time import INT64_MAX
from timespine.spark.blob_location import BlobLocation, blob_location_of
from timespine.spark.quoted_names import free_name, quoted
from timespine.spark.read.fixed_term_leases import lease_for_term
from timespine.spark.read.row_json import json_of
from timespine.spark.setup.session import prepare, session
from timespine.spark.store_cache import address_of
from timespine.spark.type_mapping import ddl_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

CHANGES = "timespine_changes"
CHANGES_DDL = "row string, _diff bigint, _commit_version bigint"
UPPER_WHEN_CLOSED = INT64_MAX
"""The upper of a closed collection, as a number."""


@dataclass(frozen=True, slots=True)
class KnownCollection:
    """A collection as of the registration of its functions."""

    place: BlobLocation
    whole: bytes
    """The slice of all its updates."""
    since: int
    upper: int


def register(store: Store, spark: SparkSession | None = None) -> list[str]:
    """Create views and functions for every collection of a store; return the names of the views.

    Without a session, create them in the running one. The session is prepared (see `prepare`), so it raises a
    UsageError if the workers of Spark cannot import Timespine.

    They show the collection as of the registration (a view: as of its first query), for an hour; register again
    afterwards. If the views of two collections have the same name, raise a UsageError and register nothing. Leave out
    a collection whose column names differ only in case, with a warning.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import arrow_udtf

    spark = prepare(spark) if spark is not None else session()
    made: list[str] = []
    known: dict[str, KnownCollection] = {}
    for name, view in view_names(store.names()).items():
        collection = store.collection(name)
        if handle_of(collection).state().arity != 1:
            continue  # these functions take times of one coordinate
        try:
            _views(collection, view, spark)
        except PySparkException as error:
            warnings.warn(f"{name} has no views: {' '.join(str(error).split())[:300]}", stacklevel=2)
        else:
            made.append(view)
        found = _lease_newest(collection)
        if found is not None:
            known[name] = found
    function: Any = arrow_udtf(_changes(known), returnType=CHANGES_DDL)
    spark.udtf.register(CHANGES, function)
    return made


def view_names(names: Sequence[str]) -> dict[str, str]:
    """Give the names of the views of collections; raise a UsageError if two have the same name."""
    views = {name: re.sub(r"\W", "_", name) for name in names}
    taken: dict[str, str] = {}
    for name, view in views.items():
        for each in (view, f"{view}_updates"):
            other = taken.setdefault(each.lower(), name)
            if other != name:
                raise UsageError(
                    f"collections {other} and {name} would both have the view {each}: rename one of them, "
                    "store.rename(old, new)"
                )
    return views


def _views(collection: Collection, view: str, spark: SparkSession) -> None:
    """Create the views and the function of one collection."""
    address = address_of(handle_of(collection).context, collection.name)
    spark.read.format("timespine").options(**address.options()).load().createOrReplaceTempView(quoted(view))
    updates = spark.read.format("timespine").options(**address.options()).option("readUpdates", "true").load()
    updates.createOrReplaceTempView(quoted(f"{view}_updates"))
    with collection.updates() as rows:
        # Without updates there are no columns since and upper, so the function gets their values here.
        ends = _ends(collection) if extent_of(rows)[0] == 0 else None
    spark.sql(as_of_function(view, updates.schema, len(collection.schema.names), ends))


def _ends(collection: Collection) -> tuple[int, int]:
    state = handle_of(collection).state()
    return state.since.time, state.upper.time if state.upper.elements else UPPER_WHEN_CLOSED


def as_of_function(view: str, updates: StructType, width: int, ends: tuple[int, int] | None) -> str:
    """Write the statement that creates the function for rows as of a time: the sum of the updates up to it.

    The first `width` columns of the updates are the user's, and the last two are since and upper.
    """
    names = updates.names
    columns = ", ".join(map(quoted, names[:width]))
    types = ", ".join(f"{quoted(field.name)} {ddl_of(field.dataType)}" for field in updates.fields[:width])
    since, upper = map(quoted, names[-2:])
    # SUBTLE: a name of both a column and the parameter means the column (test_sql_views.py).
    t, count, i = (free_name(each, names) for each in ("t", "_count", "_i"))
    asked = f"{_refuse_times(t, since, upper)} ELSE _time <= {t} END"
    # The second branch checks the time where there are no updates to check it with.
    at_all = _refuse_times(t, *map(str, ends)) if ends is not None else _refuse_times(t, "0", str(UPPER_WHEN_CLOSED))
    return f"""CREATE OR REPLACE TEMPORARY FUNCTION {quoted(f"{view}_asof")}({t} BIGINT) RETURNS TABLE ({types}) RETURN
        SELECT {columns} FROM (
            SELECT {columns}, SUM({DIFF}) AS {count} FROM {quoted(f"{view}_updates")} WHERE {asked} GROUP BY {columns})
        LATERAL VIEW explode(array_repeat(0, CAST(CASE WHEN {count} < 0 THEN raise_error(
            'some rows have a negative count at this time, so they cannot be repeated as rows'
        ) ELSE {count} END AS INT))) repeated AS {i}
        UNION ALL SELECT {", ".join(["NULL"] * width)} FROM (SELECT {at_all} ELSE false END AS wrong) WHERE wrong"""


def _refuse_times(t: str, since: str, upper: str) -> str:
    """Write the beginning of a CASE that refuses times before since or not complete."""
    return f"""CASE
        WHEN {t} IS NULL THEN raise_error('say as of which time: it is null')
        WHEN {t} < {since} THEN raise_error(concat({t}, ' cannot be read: history begins at ', {since}))
        WHEN {t} >= {upper} THEN raise_error(concat({t}, ' is not complete yet: it is sealed up to ', {upper}))"""


def _lease_newest(collection: Collection) -> KnownCollection | None:
    """Lease the newest state of the collection for a fixed term; None if no time is complete."""
    handle = handle_of(collection)
    rows = open_snapshot(handle, None, ReadOptions(hold=lease_for_term(handle, all_history=True)))
    slices = slices_of(rows, 1)
    if not slices or rows.since is None or rows.upper is None:
        return None
    upper = rows.upper.time if rows.upper.elements else UPPER_WHEN_CLOSED
    return KnownCollection(blob_location_of(handle), slices[0].encode(), rows.since.time, upper)


def _changes(known: dict[str, KnownCollection]) -> type:
    """Make the table function over the known collections."""

    class Changes:
        def eval(self, collection: pa.Array, first: pa.Array, last: pa.Array) -> Iterator[pa.Table]:
            for row in range(len(collection)):
                yield from changes_between(known, collection[row].as_py(), first[row].as_py(), last[row].as_py())

    return Changes


def changes_between(known: dict[str, KnownCollection], name: str, first: Any, last: Any) -> Iterator[pa.Table]:
    """Compute the net changes of versions `first` to `last`, both included, in a task."""
    found = known.get(name)
    if found is None:
        there = ", ".join(sorted(known))
        raise UnknownCollection(f"there is no collection {name}, or it was empty; there are: {there}", str(name))
    if type(first) is not int or type(last) is not int or not 0 <= first <= last:
        raise UsageError(f"{CHANGES}('{name}', first, last) takes two versions from 0 on, the earlier one first")
    if first > 0 and first - 1 < found.since:
        raise UsageError(f"changes from {first} on cannot be read: history is exact from {found.since} on")
    if last >= found.upper:
        raise UsageError(f"{last} was not complete when {CHANGES} was registered: register again")
    whole = Slice.decode(found.whole)
    asked = msgspec.structs.replace(
        whole, after=(first - 1,) if first > 0 else None, until=(last,), allow_duplicates=False
    )
    place = found.place
    for table in read_slice_rows(asked, place.blob(), place.config, place.cache(), place.config.merge_bytes):
        version = pa.repeat(pa.scalar(last, pa.int64()), table.num_rows)
        yield pa.table({"row": json_of(table, asked.columns), "_diff": table.column(DIFF), "_commit_version": version})
