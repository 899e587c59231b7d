"""Collections that a transaction creates: they are there, with their names and all else of it, or never.

Until then only this process knows them: rows can be made for them, and blobs be put
under their ids, which nobody had before. Before the first blob the catalog says so:
if the transaction comes to nothing, maintenance knows where to look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from timespine.client.catalog.catalog import (
    FOR_EVER,
    TIMELINES,
    Catalog,
    Entry,
    check_name,
    first_state,
    fresh_collection_id,
    no_retention,
)
from timespine.client.catalog.reservations import check_expected, give_up
from timespine.client.catalog.retention import policy_of
from timespine.client.collection import Collection
from timespine.client.context import Access, Shared
from timespine.client.spark_bridge import handed, is_spark_schema
from timespine.client.time_args import to_ms
from timespine.columnar.schema.schema import Schema, define, infer
from timespine.columnar.schema.types import parse_schema
from timespine.core.group import Answers, Transaction
from timespine.errors import CollectionExists, Determinate, Indeterminate, TimespineError, UsageError, shown

if TYPE_CHECKING:
    from timespine.client.store import Store


def shape_of(
    key: Mapping[str, Any] | Sequence[str] | None,
    value: Mapping[str, Any] | None,
    schema: Any,
    cluster: Sequence[str],
    arity: int,
) -> Schema:
    """The schema that a caller wants: as it is, by its columns, or by those of an Arrow or Spark schema.

    With columns that are given as a whole, `key` names those of the key: "id" or ["id", "day"].
    """
    if isinstance(schema, Schema):
        if key is not None or value is not None or tuple(cluster) or arity != 1:
            raise UsageError("a schema says what key, value, cluster and arity are: give either")
        return schema
    if schema is not None:
        if value is not None or isinstance(key, Mapping):
            raise UsageError("the schema has all columns with their types: let key name those of the key, key=['id']")
        names = (key,) if isinstance(key, str) else key
        return infer(_columns_of(schema), names or (), cluster=cluster, arity=arity)
    if key is not None and not isinstance(key, Mapping):
        raise UsageError(f"key must map names to types, such as {{'id': 'int64'}}, not {shown(key)}")
    return define(key, value, cluster, arity)


def _columns_of(schema: Any) -> pa.Schema:
    """The columns of a schema that is given by its text, as Arrow has it, or as Spark has it."""
    if isinstance(schema, str):
        return parse_schema(schema)
    if isinstance(schema, pa.Schema):
        return schema
    if is_spark_schema(schema):
        columns: pa.Schema = handed("type_mapping").columns_of(schema)
        return columns
    raise UsageError(
        f"{shown(schema)} is not a schema: give a text such as 'id bigint, name string', an Arrow schema, "
        "a StructType of Spark, or a Schema"
    )


def entry_of(name: str, made: Schema, timeline: str, retain: Any, now: float, forget_within: Any = None) -> Entry:
    """An entry for a collection that does not exist yet, under an id that nobody had before."""
    if timeline not in TIMELINES:
        raise UsageError(f"timeline is 'clock' or 'counter', not {shown(timeline)}")
    retain_ms = policy_of(retain) if retain is not None else None
    if retain_ms not in (None, FOR_EVER) and (timeline != "clock" or made.arity != 1):
        raise no_retention()
    within_ms = to_ms(forget_within) if forget_within is not None else None
    return Entry(fresh_collection_id(check_name(name)), timeline, retain_ms, int(now * 1000), within_ms)


class Expected(NamedTuple):
    """A collection that is to be born."""

    collection: Collection
    replace: bool
    """Whether it may take the name of another one."""


class Nursery:
    """What one transaction creates."""

    def __init__(self, store: Store, shared: Shared, catalog: Catalog) -> None:
        self._store = store
        self._shared = shared
        self._catalog = catalog
        self._expected: dict[str, Expected] = {}
        self._announced: set[str] = set()

    def conceive(
        self,
        name: str,
        *,
        key: Mapping[str, Any] | Sequence[str] | None = None,
        value: Mapping[str, Any] | None = None,
        schema: Any = None,
        cluster: Sequence[str] = (),
        arity: int = 1,
        timeline: str = "clock",
        retain: Any = None,
        forget_within: Any = None,
        replace: bool = False,
        if_exists: str = "error",
    ) -> Collection:
        """A collection that will be created with the transaction."""
        if if_exists != "error":
            raise UsageError("a transaction creates what does not exist: leave out if_exists, or open the collection")
        made = shape_of(key, value, schema, cluster, arity)
        entry = entry_of(name, made, timeline, retain, self._shared.clock(), forget_within)
        if name in self._expected:
            raise CollectionExists(name, f"this transaction creates {name} already")
        if replace:
            self._store.check_replaceable(name)
        self._catalog.beside([(name, entry, replace)])  # a name that is taken is refused at once
        collection = Collection(Access(self._shared, name, entry), self._store)
        first = first_state(entry.id, made.arity, made.encode())
        self._shared.committer.expect(first, partial(self._reserve, entry.id))
        self._expected[name] = Expected(collection, replace)
        return collection

    def get(self, name: str) -> Collection | None:
        """The collection of that name that the transaction creates, if it does."""
        return self._expected[name].collection if name in self._expected else None

    def commit(self, place: Callable[[], Transaction]) -> Answers:
        """Commit what `place` makes together with the names of what it creates, if it creates anything."""
        births = [(name, each.collection._access.entry, each.replace) for name, each in self._expected.items()]
        if not births:
            return self._shared.committer.commit_placed(place)
        answers = self._shared.committer.commit_placed(place, lambda: self._catalog.beside(births, self._announced))
        for each in self._expected.values():
            self._store.adopt(each.collection._access, replace=each.replace)
        return answers

    @property
    def is_empty(self) -> bool:
        """Whether the transaction creates nothing."""
        return not self._expected

    def close(self) -> None:
        """Whatever was not born never will be."""
        unborn = {each.collection.id for each in self._expected.values()}
        unborn = {id for id in unborn if self._shared.committer.forget_unborn(id)}
        if unborn & self._announced:
            with contextlib.suppress(TimespineError):  # maintenance does it, some time later
                self._catalog.change(partial(give_up, unborn & self._announced, self._now_ms()), frees_space=True)

    def _reserve(self, id: str) -> None:
        """Announce an id before the first blob is put under it, and check before later ones that it still holds."""
        try:
            if id in self._announced:
                check_expected(self._catalog, id)
                return
            self._announced.add(id)
            self._catalog.announce(id, self._now_ms())
        except Indeterminate as error:
            raise Determinate(f"nothing was committed: {error}") from error

    def _now_ms(self) -> int:
        return int(self._shared.clock() * 1000)
