"""The handle of a view: a collection that only refreshes write, with what there is to ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from timespine.client.engine_interface import (
    Collection,
    CollectionHandle,
    Definition,
    Store,
    TimeLike,
    begin_refresh,
    catalog_entries,
    fresh_id,
    handle_of,
)
from timespine.columnar.schema.schema import Schema, infer
from timespine.columnar.schema.types import stored_type
from timespine.core.transitions import RegisterHold, Retain
from timespine.errors import CollectionExists, UnsupportedView, UsageError, short_repr
from timespine.hints import Hint
from timespine.model.frontier import Frontier
from timespine.views.compute import (
    Compiled,
    ViewDelta,
    check_unique,
    compile_definition,
    compute_whole,
    input_handles,
    net_difference,
    source_of,
    stage_schema,
    stored_rows,
    update_rows,
)
from timespine.views.definition import (
    INCREMENTAL,
    POLICIES,
    PROCESS,
    SPARK,
    VERSION,
    Input,
    ViewDefinition,
    arrow_schema,
    bound_input,
    current_names,
    digest_of,
)
from timespine.views.engine.lowering import WEIGHT, Declined
from timespine.views.explain import explain_text
from timespine.views.refresh import Refreshed, refresh_together
from timespine.views.registry import add_definition, find_definition, hold_name, registry_of, remove_leftovers
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import Query, parse_query


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """How far a view is, and what it keeps."""

    name: str
    mode: str
    """How it is refreshed: incremental, process or spark."""
    time: int
    """The time that it is exact at."""
    behind: int
    """How far the newest complete time of its inputs is ahead: milliseconds, or steps of a counter."""
    inputs: dict[str, int | None]
    """The newest complete time of each input; None if it is closed."""
    rows: int
    """The updates of the view that are stored."""
    stages: dict[str, int]
    """The stages, and the updates that each stores."""
    bytes: int
    """The bytes of the view and its stages."""


@dataclass(frozen=True, slots=True)
class Verified:
    """How a view compares with its query, computed whole."""

    time: int
    rows: int
    """The number of distinct rows of the view."""
    missing: int
    """Rows of the query that the view lacks, or has too few of."""
    extra: int
    """Rows that the view has, or has too many of."""

    @property
    def is_exact(self) -> bool:
        """Whether both are the same."""
        return self.missing == 0 and self.extra == 0


class View(Collection):
    """A view. Snapshots, changes, feeds and lookups are those of a collection; writes raise OwnedCollection."""

    def __init__(self, handle: CollectionHandle, store: Store, definition: ViewDefinition, spark: Any) -> None:
        super().__init__(handle, store)
        self.definition = definition
        """What is stored of the view."""
        self._spark = spark

    def refresh(self, *, through: TimeLike | None = None, spark: Any = None) -> Refreshed:
        """Bring the view to the newest time that is complete in all inputs, or to `through`, in one commit."""
        given = spark if spark is not None else self._spark
        return refresh_together(self._store, [self.name], through, given)[self.name]

    def explain(self) -> str:
        """Say how changes of each input reach the view, and why not, where they do not."""
        return explain_text(self.name, self.definition, compile_definition(self.definition))

    def status(self) -> ViewStatus:
        """Say how far the view is, and what it keeps."""
        newest: dict[str, int | None] = {}
        for name, handle in input_handles(self._store, self.definition).items():
            upper = handle.state().upper
            newest[name] = None if upper.is_closed else upper.time - 1
        time = self.upper.time - 1
        least = min((each for each in newest.values() if each is not None), default=time)
        names = {entry.id: name for name, entry in catalog_entries(self._store).items()}
        stages = {
            names[id]: self._store.collection(names[id]).inspect() for id in self.definition.stages if id in names
        }
        own = self.inspect()
        return ViewStatus(
            self.name,
            self.definition.mode,
            time,
            max(least - time, 0),
            newest,
            own.rows,
            {name: each.rows for name, each in stages.items()},
            own.size + sum(each.size for each in stages.values()),
        )

    def verify(self, as_of: TimeLike | None = None, *, spark: Any = None) -> Verified:
        """Compute the query whole, as of a refresh point (default: the last), and compare."""
        time = self._handle.time_of(as_of)[0] if as_of is not None else self.upper.time - 1
        handles = input_handles(self._store, self.definition)
        given = spark if spark is not None else self._spark
        whole = _whole(self.definition, compile_definition(self.definition), handles, time, given, self.schema.arrow)
        stored = stored_rows(self._handle, time)
        off = net_difference(whole.view, stored)
        return Verified(time, len(stored), len(off.filter(pl.col(WEIGHT) > 0)), len(off.filter(pl.col(WEIGHT) < 0)))

    def __repr__(self) -> str:
        return f"<view {self.name}>"


def open_view(store: Store, name: str, spark: Any = None) -> View:
    """Open a view by its name."""
    _, definition = find_definition(store, name)
    return View(handle_of(store.collection(name)), store, definition, spark)


def create_view(
    store: Store,
    name: str,
    sql: str,
    *,
    key: Sequence[str],
    policy: str,
    times: str,
    retain: Any,
    spark: Any,
) -> View:
    """Create a view and compute it, as of the newest time that is complete in all inputs, in one commit."""
    if policy not in POLICIES:
        raise UsageError(f"policy is one of {', '.join(map(repr, POLICIES))}, not {short_repr(policy)}")
    if times != "refresh":
        raise UsageError(f"times is 'refresh', not {short_repr(times)}")
    if isinstance(key, str) or not all(isinstance(each, str) for each in key):
        raise UsageError(f"key is a list of names of columns, not {short_repr(key)}")
    if name in store:
        raise CollectionExists(name)
    query = parse_query(sql)
    inputs, handles = _inputs(store, query)
    definition, compiled = _defined(query, inputs, policy)
    registry_of(store)
    remove_leftovers(store)
    with contextlib.ExitStack() as stack:
        time = _first_time(handles)
        for handle in handles.values():
            stack.enter_context(store.collection(handle.name).hold(as_of=time))
        schema = _schema(definition, compiled, handles, time, spark, key)
        changes = _whole(definition, compiled, handles, time, spark, schema.arrow)
        if schema.key:
            check_unique(name, schema.key_names, changes.view.clear(), changes.view)
        line: Any = next(iter(handles.values())).entry.timeline
        _create(
            store,
            name,
            definition,
            compiled,
            handles,
            changes,
            time,
            Definition(schema, line, retain, None, role="view"),
        )
    return open_view(store, name, spark)


def _inputs(store: Store, query: Query) -> tuple[tuple[Input, ...], dict[str, CollectionHandle]]:
    """Find the collections that a query reads; raise an error if they have no times in common."""
    there = {name.lower(): name for name in store.names()}
    inputs, handles = [], {}
    for written in query.tables:
        name = written if written in store else there.get(written.lower(), written)
        handle = handle_of(store.collection(name))
        _, schema = handle.schema(handle.state())
        if schema.arity != 1:
            raise UsageError(f"the times of {name} have several coordinates: a view needs totally ordered times")
        inputs.append(bound_input(written, handle.id, schema))
        handles[written] = handle
    if len({handle.entry.timeline for handle in handles.values()}) > 1:
        raise UsageError("the inputs are on different time lines, so they have no times in common")
    return tuple(inputs), handles


def _defined(query: Query, inputs: tuple[Input, ...], policy: str) -> tuple[ViewDefinition, Compiled]:
    """Choose how the view is refreshed; raise UnsupportedView if the policy does not allow it."""
    schemas = {each.name: arrow_schema(each, {c.name: stored_type(c.type) for c in each.columns}) for each in inputs}
    token = fresh_id("t")
    try:
        plan, named = plan_of(query, schemas)
    except UnsupportedView as refused:
        forbidden = [each for each in refused.reasons if getattr(each, "forbidden", False)]
        if policy == "incremental" or forbidden:
            raise
        reasons = tuple(map(str, refused.reasons)) or (refused.message,)
        return ViewDefinition(VERSION, query.text, inputs, policy, SPARK, "refresh", token, (), "", reasons), Compiled(
            query, None, []
        )
    mode = PROCESS if policy == "full" else INCREMENTAL
    digest = digest_of(plan) if mode == INCREMENTAL else ""
    made = ViewDefinition(VERSION, query.text, inputs, policy, mode, "refresh", token, (), digest)
    return made, Compiled(query, plan, named)


def _first_time(handles: dict[str, CollectionHandle]) -> int:
    """Return the newest time that is complete in all inputs."""
    newest = []
    for handle in handles.values():
        upper = handle.state().upper
        if upper.is_closed:
            continue
        if upper.time < 1:
            raise UsageError(f"{handle.name} has no complete time yet", hint=Hint("complete-first"))
        newest.append(upper.time - 1)
    if not newest:
        raise UsageError("all inputs are closed: a view of them would never change; read them with a query instead")
    return min(newest)


def _schema(
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    time: int,
    spark: Any,
    key: Sequence[str],
) -> Schema:
    if compiled.plan is not None:
        arrow = pa.schema([(name, column.type) for name, column in compiled.named])
    else:
        from timespine.views import on_spark

        arrow = on_spark.spark_schema(compiled.query, _columns(definition, handles), time, on_spark.session_of(spark))
    return infer(arrow, tuple(key))


def _columns(
    definition: ViewDefinition, handles: dict[str, CollectionHandle]
) -> dict[str, tuple[CollectionHandle, dict[str, str]]]:
    """Return the inputs with the present names of their columns."""
    found = {}
    for each in definition.inputs:
        handle = handles[each.name]
        _, schema = handle.schema(handle.state())
        found[each.name] = (handle, current_names(each, schema, {column.name for column in each.columns}))
    return found


def _whole(
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    time: int,
    spark: Any,
    schema: pa.Schema,
) -> ViewDelta:
    """Compute all rows of a view as of a time."""
    if compiled.plan is None:
        from timespine.views import on_spark

        columns = _columns(definition, handles)
        return ViewDelta(on_spark.spark_rows(compiled.query, columns, time, on_spark.session_of(spark), schema))
    try:
        return compute_whole(compiled, source_of(definition, compiled, handles, None, time, []))
    except Declined as declined:
        raise UsageError(
            f"this process cannot compute the query as Spark does ({declined}): give policy='full' and spark=..."
        ) from declined


def _create(
    store: Store,
    name: str,
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    changes: ViewDelta,
    time: int,
    made: Definition,
) -> None:
    """Create the view, its stages, its definition and its holds, and fill them, by one commit."""
    with begin_refresh(store) as transaction:
        view = transaction.create_as(name, made)
        filled = [(view, changes.view, made.schema)]
        if definition.mode == INCREMENTAL:
            for number, (node, rows) in enumerate(zip(compiled.aggregates, changes.stages, strict=True)):
                schema = stage_schema(node)
                owned = Definition(schema, made.timeline, None, None, role="stage", owner=view.id)
                stage = transaction.create_as(f"timespine.stage.{view.id}.{number}", owned)
                filled.append((stage, rows, schema))
        definition = msgspec.structs.replace(definition, stages=tuple(stage.id for stage, *_ in filled[1:]))
        for collection, rows, schema in filled:
            if len(rows):
                transaction.append(collection, update_rows(rows, schema), at=time, upper=time + 1)
            else:
                transaction.seal(collection, time + 1)
            transaction.also(collection, Retain(Frontier.at(time)))
        for handle in {each.id: each for each in handles.values()}.values():
            hold = RegisterHold(hold_name(view.id), Frontier.at(time), definition.token)
            transaction.also(store.collection(handle.name), hold)
        add_definition(transaction, store, view.id, definition)
