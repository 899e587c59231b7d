"""Rebuild a view: compute it again from its text, with the columns that its inputs have now.

If the columns of the result are the same, perhaps wider, the view stays the same collection: what differs is committed
at the newest complete time of the inputs, with new stages and the new definition. So its history, feeds and holds, and
the views that read it stay. Otherwise a view is built beside it, and takes its name by one change of the catalog.

A view that is exact at every time is rebuilt at the time that it is at, where nothing may differ; then a refresh
follows each change since. A difference at the newest time would leave it wrong at the times in between.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import (
    CollectionHandle,
    Store,
    begin_refresh,
    catalog_entries,
    collection_of_handle,
    fresh_id,
    handle_of,
)
from timespine.columnar.schema.schema import Schema, infer
from timespine.columnar.schema.types import can_widen
from timespine.core.transitions import AddSchema, Retain
from timespine.errors import Contention, LateRows, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.views.build import FirstBuild, create_stages
from timespine.views.compute_changes import Compiled, ViewDelta, input_handles, net_difference, stored_rows
from timespine.views.definition import SPARK, ViewDefinition, rebound_input
from timespine.views.frame_views import function_of
from timespine.views.refresh.refresh_views import ATTEMPTS, append_counted, refresh_together
from timespine.views.registry import find_definition, remove_leftovers, replace_definition
from timespine.views.sql.parse import parse_query
from timespine.views.view import Rebuilt, build_view, define_view, first_time, on_spark_as_text


def rebuild_view(store: Store, name: str, spark: Any) -> Rebuilt:
    """Compute a view again, in its place or beside it."""
    for _ in range(ATTEMPTS):
        id, definition = find_definition(store, name)
        handles = input_handles(store, name, definition)
        made, compiled = _rebound(definition, handles, spark)
        try:
            done = _in_place(store, name, id, definition, made, compiled, handles, spark)
        except (UpperMismatch, LateRows):
            continue  # another process refreshed it: compute it again from what that left
        if done is None:
            done = _beside(store, name, made, compiled, handles, spark)
        elif made.times == "every":
            refreshed = refresh_together(store, [name], None, spark)[name]
            done = Rebuilt(refreshed.time, refreshed.changes, is_new=False)
        remove_leftovers(store)
        return done
    raise Contention(f"other processes keep refreshing {name}: nothing was written")


def _rebound(
    definition: ViewDefinition, handles: dict[str, CollectionHandle], spark: Any
) -> tuple[ViewDefinition, Compiled]:
    """Define the view again, over the columns that its inputs have now."""
    inputs = []
    for each in definition.inputs:
        handle = handles[each.name]
        inputs.append(rebound_input(each, handle.schema(handle.state())[1]))
    if not definition.sql:
        return msgspec.structs.replace(definition, inputs=tuple(inputs)), Compiled(None, None, [])
    query = parse_query(definition.sql)
    made, compiled = define_view(query, tuple(inputs), definition.policy, spark, definition.times)
    if definition.policy == "full" and definition.mode == SPARK and made.mode != SPARK:
        # Its plan differed from Spark's answer when the view was made.
        made, compiled = on_spark_as_text(made, compiled, definition.reasons)
    return msgspec.structs.replace(made, token=definition.token), compiled


def _in_place(
    store: Store,
    name: str,
    id: str,
    old: ViewDefinition,
    made: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    spark: Any,
) -> Rebuilt | None:
    """Rebuild a view as the collection that it is; return None if that cannot be."""
    handle = handle_of(store.collection(name))
    _, schema = handle.schema(handle.state())
    before = handle.state().upper.time - 1
    with contextlib.ExitStack() as stack:
        time = _rebuild_time(made, handles, before)
        for each in handles.values():
            stack.enter_context(collection_of_handle(store, each).hold(as_of=time))
        built = FirstBuild(made, compiled, handles, time, spark, stack, function_of(store, name, id, old))
        widened = _widened(schema, infer(built.schema(), schema.key_names if schema.key else ()).arrow)
        if widened is None:
            return None
        whole = built.compute(widened.arrow)
        if not all(isinstance(each, pl.DataFrame) for each in (whole.view, *whole.stages)):
            return None  # tasks of Spark write to collections that exist: those of a view beside it
        if schema.key:
            built.check_key(name, schema, whole)
        if widened != schema:
            # Harmless by itself: the rows that are there read as before, and a refresh asks for the rebuild again.
            number, _ = handle.schema(handle.state())
            handle.committer.commit((handle.id, AddSchema(number, widened.encode())))
        changed = _changed(whole, handle, before)
        has_new_stages = bool(whole.stages) and not old.stages
        if time < before or (time == before and (len(changed) or has_new_stages)):
            return None  # there is no later time for what differs, or nothing that a refresh would notice
        _commit(store, handle, id, old, made, compiled, whole, changed, before, time, stack)
    return Rebuilt(time, len(changed), is_new=False)


def _rebuild_time(made: ViewDefinition, handles: dict[str, CollectionHandle], before: int) -> int:
    """Return the time at which a view is computed again.

    SUBTLE: not the newest one, if the view is exact at every time (`a_rebuild_skips_times` in planted_views.py).
    """
    return before if made.times == "every" else first_time(handles)


def _widened(schema: Schema, wanted: pa.Schema) -> Schema | None:
    """Return the schema of a view with the types that it is to have; None if these are no wider ones."""
    if wanted.names != schema.arrow.names:
        return None
    for field in wanted:
        stored = schema.arrow.field(field.name).type
        if not can_widen(stored, field.type):
            return None
        if field.type != stored:
            schema = schema.widen(field.name, field.type)
    return schema if schema.arrow == wanted else None


def _changed(whole: ViewDelta, handle: CollectionHandle, before: int) -> pl.DataFrame:
    rows: pl.DataFrame = whole.view
    return net_difference(rows, stored_rows(handle, before)) if before >= 0 else rows


def _commit(
    store: Store,
    handle: CollectionHandle,
    id: str,
    old: ViewDefinition,
    made: ViewDefinition,
    compiled: Compiled,
    whole: ViewDelta,
    changed: pl.DataFrame,
    before: int,
    time: int,
    stack: contextlib.ExitStack,
) -> None:
    names = {entry.id: name for name, entry in catalog_entries(store).items()}
    with begin_refresh(store) as transaction:
        view = collection_of_handle(store, handle)
        transaction.expect(view, before + 1)
        stages = create_stages(transaction, id, made, compiled, handle.entry.timeline, f".{fresh_id('')[:8]}")
        new = msgspec.structs.replace(made, stages=tuple(each.id for each, _ in stages))
        if not replace_definition(transaction, id, old, new):
            raise UsageError(f"view {handle.name} was dropped or rebuilt just now: nothing was written")
        if time > before:
            append_counted(transaction, view, handle.schema(handle.known())[1], changed, time, stack)
        for (stage, schema), rows in zip(stages, whole.stages, strict=True):
            append_counted(transaction, stage, schema, rows, time, stack)
            transaction.also(stage, Retain(Frontier.at(time)))
        for each in old.stages:
            # SUBTLE: if the upper of the view stays, that of its old stages tells a refresh which was planned with them
            # that it has to plan again (`a_rebuild_leaves_its_old_stages_open` in planted_views.py).
            if each in names:
                transaction.seal(store.collection(names[each]), before + 2)


def _beside(
    store: Store, name: str, made: ViewDefinition, compiled: Compiled, handles: dict[str, CollectionHandle], spark: Any
) -> Rebuilt:
    """Build a view beside the old one, and let it take the name."""
    schema, entry = store.collection(name).schema, handle_of(store.collection(name)).entry
    id = build_view(
        store,
        name,
        msgspec.structs.replace(made, token=fresh_id("t"), stages=()),
        compiled,
        handles,
        key=schema.key_names if schema.key else (),
        retain=entry.retain_ms / 1000 if entry.retain_ms is not None else None,
        spark=spark,
        function=function_of(store, name, entry.id, made),
        replace=True,
    )
    view = store.collection(name)
    assert view.id == id
    return Rebuilt(view.upper.time - 1, view.count(), is_new=True)
