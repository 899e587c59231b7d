"""Views and functions for all collections of a store, for those who speak SQL.

SELECT * FROM orders                             the newest rows, whenever it is asked
SELECT * FROM orders_asof(7)                     the rows as of a time
SELECT * FROM orders_updates                     every update, with `_time` and `_diff`
SELECT * FROM timespine_changes('orders', 5, 9)  net changes of versions 5 to 9, both included, rows as JSON
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pyarrow as pa

from timespine.client.collection import Collection
from timespine.client.store import Store
from timespine.columnar.schema import DIFF
from timespine.columnar.slice import Slice, read
from timespine.errors import UnknownCollection, UsageError
from timespine.spark.asked import lease
from timespine.spark.place import Place, place_of
from timespine.spark.session import session
from timespine.spark.tasks import SINCE, UPPER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = "timespine_changes"
CHANGES_DDL = "row string, _diff bigint, _commit_version bigint"
LEASE_MS = 60 * 60_000
"""How long `timespine_changes` can be asked after it was registered: it reads what there was then."""


@dataclass(frozen=True, slots=True)
class Known:
    """A collection as it was when its functions were registered."""

    place: Place
    whole: bytes
    """All of it, as a slice."""
    since: int
    upper: int


def register(store: Store, spark: SparkSession | None = None) -> list[str]:
    """Make views and functions for every collection of a store; the names of the views.

    In the session that is given, or in the one that runs.

    They show what there was when they were registered (a view: when it was first asked), for an hour; register again
    for more.
    """
    from pyspark.sql.functions import arrow_udtf

    spark = spark if spark is not None else session()
    made: list[str] = []
    known: dict[str, Known] = {}
    for name in store.names():
        collection = store.collection(name)
        if collection._access.state().arity != 1:
            continue  # times of several coordinates have no place in these functions
        made.append(_views(collection, spark))
        found = _known(collection)
        if found is not None:
            known[name] = found
    function: Any = arrow_udtf(_changes(known), returnType=CHANGES_DDL)
    spark.udtf.register(CHANGES, function)
    return made


def _views(collection: Collection, spark: SparkSession) -> str:
    """The views and the function of one collection."""
    view = re.sub(r"\W", "_", collection.name)
    path = f"{place_of(collection._access).location}/{collection.name}"
    spark.read.format("timespine").load(path).createOrReplaceTempView(view)
    updates = spark.read.format("timespine").option("readUpdates", "true").load(path)
    updates.createOrReplaceTempView(f"{view}_updates")
    names = collection.schema.names
    columns = ", ".join(f"`{each}`" for each in names)
    types = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in updates.schema if each.name in names)
    spark.sql(
        f"""CREATE OR REPLACE TEMPORARY FUNCTION {view}_asof(t BIGINT) RETURNS TABLE ({types}) RETURN
        SELECT {columns} FROM (
            SELECT {columns}, SUM({DIFF}) AS _count FROM {view}_updates
            WHERE CASE
                WHEN t < {SINCE} THEN raise_error(concat(t, ' cannot be read any more: history begins at ', {SINCE}))
                WHEN t >= {UPPER} THEN raise_error(concat(t, ' is not complete yet: it is sealed up to ', {UPPER}))
                ELSE _time <= t END
            GROUP BY {columns}) LATERAL VIEW explode(array_repeat(0, CAST(_count AS INT))) repeated AS _i"""
    )
    return view


def _known(collection: Collection) -> Known | None:
    """The collection as it is now, under a lease of a fixed term; None if nothing of it is complete."""
    access = collection._access
    state = access.state()
    lease(access, state.since, LEASE_MS)
    with collection.snapshot() as rows:
        slices = rows.slices(1)
        if not slices or rows.since is None or rows.upper is None:
            return None
        upper = rows.upper.elements[0][0] if rows.upper.elements else (1 << 63) - 1
        return Known(place_of(access), slices[0].encode(), rows.since.elements[0][0], upper)


def _changes(known: dict[str, Known]) -> type:
    """The table function, with all that it knows."""

    class Changes:
        def eval(self, collection: pa.Array, first: pa.Array, last: pa.Array) -> Iterator[pa.Table]:
            for row in range(len(collection)):
                yield from changes_between(known, collection[row].as_py(), first[row].as_py(), last[row].as_py())

    return Changes


def changes_between(known: dict[str, Known], name: str, first: Any, last: Any) -> Iterator[pa.Table]:
    """The net changes of versions `first` to `last`, both included, in a task."""
    found = known.get(name)
    if found is None:
        there = ", ".join(sorted(known))
        raise UnknownCollection(f"there is no collection {name}, or it was empty; there are: {there}", str(name))
    if type(first) is not int or type(last) is not int or first > last:
        raise UsageError(f"{CHANGES}('{name}', first, last) takes two versions, the earlier one first")
    if first > 0 and first - 1 < found.since:
        raise UsageError(f"changes from {first} on cannot be read any more: history is exact from {found.since} on")
    if last >= found.upper:
        raise UsageError(f"{last} was not complete when {CHANGES} was registered: register again")
    whole = Slice.decode(found.whole)
    asked = msgspec.structs.replace(whole, after=(first - 1,) if first > 0 else None, until=(last,), repeats=False)
    place = found.place
    for table in read(asked, place.blob(), place.config, place.cache(), place.config.merge_bytes):
        frame = pl.DataFrame(pl.from_arrow(table))
        rows = frame.select(pl.struct(asked.columns).struct.json_encode()).to_series()
        yield pa.table(
            {
                "row": rows.to_arrow().cast(pa.string()),
                "_diff": table.column(DIFF),
                "_commit_version": [last] * len(frame),
            }
        )
