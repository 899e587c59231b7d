"""Collections created inside a transaction: created atomically with its rows, or not at all.

Until the commit only this process knows them: it can prepare rows for them, and put blobs
under their fresh ids. Before the first blob it reserves the id in the catalog: if the
transaction fails, maintenance knows where to look for orphaned blobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from timespine.client.arguments.argument_types import CreateOptions, KeyLike, SchemaLike, Timeline
from timespine.client.arguments.time_args import DurationLike, parse_duration_ms
from timespine.client.catalog.catalog import (
    FOR_EVER,
    TIMELINES,
    Catalog,
    CatalogEntry,
    check_collection_name,
    fresh_collection_id,
)
from timespine.client.catalog.catalog_log import first_state
from timespine.client.catalog.reservations import cancel_reservations, check_reserved
from timespine.client.catalog.retention import RetentionLike, no_retention_error, policy_of
from timespine.client.collection import Collection
from timespine.client.commit.cross_process_turn import Patience
from timespine.client.inner_handles import CollectionHandle, StoreContext
from timespine.client.lazy_spark import is_spark_schema, load_spark_module
from timespine.columnar.schema.schema import Schema, define, infer
from timespine.columnar.schema.types import TypeLike, parse_schema
from timespine.core.group import Answers, CommandTransaction
from timespine.errors import (
    CollectionExists,
    Determinate,
    Indeterminate,
    OwnedCollection,
    TimespineError,
    UsageError,
    short_repr,
)

if TYPE_CHECKING:
    from timespine.client.store import Store


REGISTRY, STAGES = "timespine.views", "timespine.stage."
"""The name of the registry of views, and how the names of their stages begin: hidden collections."""


def check_new_name(name: object, role: str = "") -> str:
    """Return the name that a collection is to get; raise an error if it is not valid, or kept for hidden ones."""
    valid = check_collection_name(name)
    if role in ("", "view") and (valid == REGISTRY or valid.startswith(STAGES)):
        error = OwnedCollection(valid, "registry" if valid == REGISTRY else "stage")
        error.args = (f"{valid} is a name of the hidden collections of views: use another one",)
        raise error
    return valid


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a new collection."""

    schema: Schema
    """The columns, with key, clustering and the number of coordinates of times."""
    timeline: Timeline
    """The meaning of times."""
    retain: RetentionLike
    """How long history is kept; None: the policy of the store."""
    forget_within: DurationLike | None
    """The deadline for forgetting expired history; None: the deadline of the store."""
    role: str = ""
    """What the collection is for: see `CatalogEntry`."""
    owner: str = ""
    """The id of the view that a stage belongs to."""

    @staticmethod
    def of(options: CreateOptions) -> Definition:
        """Make the definition from options of `create`."""
        unknown = next((option for option in options if option not in CreateOptions.__annotations__), None)
        if unknown is not None:
            raise UsageError(f"there is no option {unknown}; there are: {', '.join(CreateOptions.__annotations__)}")
        return Definition(
            schema_of(
                options.get("key"),
                options.get("value"),
                options.get("schema"),
                options.get("cluster", ()),
                options.get("time_coordinates", 1),
            ),
            options.get("timeline", "clock"),
            options.get("retain"),
            options.get("forget_within"),
        )

    def entry(self, name: str, now: float) -> CatalogEntry:
        """Make the catalog entry of a new collection, under a fresh id."""
        if self.timeline not in TIMELINES:
            raise UsageError(f"timeline is 'clock' or 'counter', not {short_repr(self.timeline)}")
        retain_ms = policy_of(self.retain) if self.retain is not None else None
        if retain_ms not in (None, FOR_EVER) and (self.timeline != "clock" or self.schema.arity != 1):
            raise no_retention_error()
        within_ms = parse_duration_ms(self.forget_within) if self.forget_within is not None else None
        id = fresh_collection_id(check_new_name(name, self.role))
        return CatalogEntry(id, self.timeline, retain_ms, int(now * 1000), within_ms, self.role, self.owner)


def schema_of(
    key: KeyLike | None,
    value: Mapping[str, TypeLike] | None,
    schema: SchemaLike | None,
    cluster: Sequence[str],
    arity: int,
) -> Schema:
    """Make the schema that a caller wants: from a schema, from columns, or from an Arrow or Spark schema.

    Beside a whole schema, `key` names the key columns: "id" or ["id", "day"].
    """
    if isinstance(schema, Schema):
        if key is not None or value is not None or tuple(cluster) or arity != 1:
            raise UsageError("a schema says what key, value, cluster and time_coordinates are: give either")
        return schema
    if schema is not None:
        if value is not None or isinstance(key, Mapping):
            raise UsageError(
                "the schema has all columns with their types: let key name those of the key, such as ['id']"
            )
        names = (key,) if isinstance(key, str) else key
        return infer(_columns_of(schema), names or (), cluster=cluster, arity=arity)
    if key is not None and not isinstance(key, Mapping):
        raise UsageError(f"key must map names to types, such as {{'id': 'int64'}}, not {short_repr(key)}")
    return define(key, value, cluster, arity)


def _columns_of(schema: object) -> pa.Schema:
    """Convert a schema from its text, from Arrow, or from Spark."""
    if isinstance(schema, str):
        return parse_schema(schema)
    if isinstance(schema, pa.Schema):
        return schema
    if is_spark_schema(schema):
        columns: pa.Schema = load_spark_module("type_mapping").arrow_columns(schema)
        return columns
    raise UsageError(
        f"{short_repr(schema)} is not a schema: give a text such as 'id bigint, name string', an Arrow schema, "
        "a StructType of Spark, or a Schema"
    )


class PendingCreate(NamedTuple):
    """A collection that a transaction will create."""

    collection: Collection
    replace: bool
    """Whether it may take the name of another one."""


class PendingCreates:
    """The collections that one transaction creates."""

    def __init__(self, store: Store, context: StoreContext, catalog: Catalog) -> None:
        self._store = store
        self._context = context
        self._catalog = catalog
        self._pending: dict[str, PendingCreate] = {}
        self._reserved: set[str] = set()
        self._needed: set[str] = set()
        """Ids of collections without which nothing is created."""

    def create(
        self,
        name: str,
        definition: Definition,
        *,
        replace: bool,
    ) -> Collection:
        """Make a collection that the transaction will create."""
        entry, made = definition.entry(name, self._context.clock()), definition.schema
        if name in self._pending:
            raise CollectionExists(name, f"this transaction creates {name} already")
        if replace:
            self._store._check_replaceable(name, definition.role)
        self._catalog.entry_with_created([(name, entry, replace)])  # raises at once if the name is taken
        collection = Collection(CollectionHandle(self._context, name, entry), self._store)
        first = first_state(entry.id, made.arity, made.encode())
        self._context.committer.add_pending(first, partial(self._reserve, entry.id))
        self._pending[name] = PendingCreate(collection, replace)
        return collection

    def get(self, name: str) -> Collection | None:
        """Return the collection of that name that the transaction creates, or None."""
        return self._pending[name].collection if name in self._pending else None

    def commit(self, place: Callable[[], CommandTransaction], patience: Patience) -> Answers:
        """Commit what `place` makes together with the names of new collections, if there are any."""
        creates = [(name, each.collection._handle.entry, each.replace) for name, each in self._pending.items()]
        if not creates:
            return self._context.committer.commit_placed(place, patience)
        entry_with_created = partial(self._catalog.entry_with_created, creates, self._reserved, self._needed)
        answers = self._context.committer.commit_placed(place, patience, entry_with_created)
        for each in self._pending.values():
            self._store._adopt(each.collection._handle, replace=each.replace)
        return answers

    def need(self, id: str) -> None:
        """Let the commit be refused if a collection is dropped meanwhile, and if it creates another one."""
        self._needed.add(id)

    @property
    def is_empty(self) -> bool:
        """Whether the transaction creates nothing."""
        return not self._pending

    def close(self) -> None:
        """Forget the collections that were not created, and cancel their reservations."""
        pending = {each.collection.id for each in self._pending.values()}
        pending = {id for id in pending if self._context.committer.forget_pending(id)}
        if pending & self._reserved:
            with contextlib.suppress(TimespineError):  # maintenance cancels it later
                self._catalog.change(
                    partial(cancel_reservations, pending & self._reserved, self._now_ms()), frees_space=True
                )

    def _reserve(self, id: str) -> None:
        """Reserve an id before the first blob is put under it; check the reservation before later ones."""
        try:
            if id in self._reserved:
                check_reserved(self._catalog, id)
                return
            self._reserved.add(id)
            self._catalog.reserve_id(id, self._now_ms())
        except Indeterminate as error:
            raise Determinate(f"nothing was committed: {error}") from error

    def _now_ms(self) -> int:
        return int(self._context.clock() * 1000)
