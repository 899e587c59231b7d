"""The first build of a view: all of its rows and stages, as of one time, on the engine that suits their size.

What is small is created and filled by one commit. What tasks of Spark write needs collections to write to: these are
created first, without a complete time, and filled by a second commit. If the process dies in between, the next refresh
builds the view.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import (
    Collection,
    CollectionHandle,
    Definition,
    RefreshTransaction,
    Store,
    begin_refresh,
    collection_of_handle,
    handle_of,
    take_over_name,
    view_hold_name,
)
from timespine.columnar.schema.schema import Schema
from timespine.core.transitions import RegisterHold, Retain
from timespine.errors import UsageError
from timespine.hints import Hint
from timespine.model.frontier import Frontier
from timespine.views.compare_with_spark import compare_answers, decides_all, plan_difference
from timespine.views.compute_changes import (
    Compiled,
    ViewDelta,
    check_unique,
    compile_present,
    compute_whole,
    input_handles,
    net_difference,
    repeated_key,
    source_of,
    stage_schema,
    stored_rows,
)
from timespine.views.definition import INCREMENTAL, ViewDefinition
from timespine.views.engine.lowering import WEIGHT, Declined
from timespine.views.engine.portable_plans import only_spark
from timespine.views.frame_views import function_of
from timespine.views.refresh.choose_engine import PROCESS, WHOLE, Choice, choose_engine, sizes_of
from timespine.views.refresh.choose_engine import SPARK as ON_SPARK
from timespine.views.refresh.refresh_one_view import named_inputs
from timespine.views.refresh.refresh_views import append_counted
from timespine.views.registry import STAGES, add_definition, drop_view
from timespine.views.spark_engine.session import borrowed, find_session


@dataclass(slots=True)
class FirstBuild:
    """All rows of a view, and of its stages, as of a time."""

    definition: ViewDefinition
    compiled: Compiled
    handles: dict[str, CollectionHandle]
    time: int
    spark: Any
    stack: contextlib.ExitStack
    """What is cached and borrowed until the commit."""
    function: Any = None
    _session: Any = field(default=None)
    _frame: Any = field(default=None)
    choice: Choice | None = None

    def session(self) -> Any:
        """Borrow a session of Spark until the commit."""
        if self._session is None:
            self._session = self.stack.enter_context(borrowed(self.spark))
        return self._session

    def query(self) -> Any:
        """Return the DataFrame of what the user wrote."""
        from timespine.views.refresh import compute_on_spark

        if self._frame is None:
            inputs = named_inputs(self.definition, self.handles)
            self._frame = compute_on_spark.query_frame(
                self.compiled.query, inputs, self.time, self.session(), self.function
            )
        return self._frame

    def schema(self) -> pa.Schema:
        """Return the columns of the view."""
        if self.compiled.plan is not None:
            return pa.schema([(name, column.type) for name, column in self.compiled.named])
        from timespine.views.refresh import compute_on_spark

        with compute_on_spark.spark_errors("the view was not created"):
            return compute_on_spark.query_schema(self.query())

    def compute(self, schema: pa.Schema) -> ViewDelta:
        """Compute all rows, and those of its stages if the view keeps any: one that is recomputed whole has none."""
        whole = self._compute(schema)
        return whole if self.definition.mode == INCREMENTAL else dataclasses.replace(whole, stages=[])

    def _compute(self, schema: pa.Schema) -> ViewDelta:
        if self.compiled.plan is None:
            from timespine.views.refresh import compute_on_spark

            with compute_on_spark.spark_errors("the view was not created"):
                return compute_on_spark.query_delta(self.query(), schema, None, self.stack)
        source = source_of(self.definition, self.compiled, self.handles, None, self.time, [])
        has_spark = find_session(self.spark) is not None
        sizes = None
        if has_spark:
            found = sizes_of(self.compiled.plan, source.inputs)
            sizes = type(found)(0, found.total, found.total)
        self.choice = choose_engine(self.compiled.plan, sizes, None, "incremental", {}, has_spark=has_spark)
        if self.choice.engine == PROCESS:
            try:
                return compute_whole(self.compiled, source)
            except Declined as declined:
                if not has_spark:
                    raise UsageError(
                        f"this process cannot compute the query as Spark does ({declined})", hint=Hint("give-session")
                    ) from declined
                self.choice = Choice(ON_SPARK, WHOLE, f"the process declined: {declined}")
        from timespine.views.refresh import compute_on_spark

        source = source_of(self.definition, self.compiled, self.handles, None, self.time, [])
        with compute_on_spark.spark_errors("the view was not created"):
            return compute_on_spark.SparkRefresh.begin(self.session(), self.compiled, source, {}, self.stack).whole()

    def check_key(self, name: str, schema: Schema, changes: ViewDelta) -> None:
        """Refuse a key that does not identify the rows."""
        if isinstance(changes.view, pl.DataFrame):
            check_unique(name, schema.key_names, changes.view.clear(), changes.view)
            return
        from timespine.views.refresh import compute_on_spark

        several = compute_on_spark.repeated_keys(changes.view, None, schema.key_names)
        if several:
            raise repeated_key(name, schema.key_names, several)

    def difference(self, schema: pa.Schema, changes: ViewDelta) -> str:
        """Say how the build differs from Spark's answer to the text; no text if it does not, or without a session."""
        if find_session(self.spark) is None:
            return ""
        from timespine.views.refresh import compute_on_spark

        with compute_on_spark.spark_errors("the view was not created: it could not be compared with Spark's answer"):
            return plan_difference(self.compiled.plan, self.query(), changes.view, schema)


def create_filled(
    store: Store,
    name: str,
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    changes: ViewDelta,
    time: int,
    made: Definition,
    *,
    replace: bool = False,
) -> str:
    """Create the view, its stages, its definition and its holds, and fill them; return the id of the view.

    With `replace`, it takes the name of another view, which is dropped, once it is filled.
    """
    rows = [changes.view, *changes.stages]
    is_large = any(not isinstance(each, pl.DataFrame) for each in rows)
    if replace and is_large:
        beside = f"{name}.rebuilt"
        if beside in store:
            drop_view(store, beside, force=True)  # a process died while it built one
        id = create_filled(store, beside, definition, compiled, handles, changes, time, made)
        take_over_name(store, id, name)
        return id
    with contextlib.ExitStack() as stack:
        with begin_refresh(store) as transaction:
            created = _created(transaction, name, definition, compiled, made, replace=replace)
            view = created[0][0]
            ids = tuple(collection.id for collection, _ in created[1:])
            for handle in {each.id: each for each in handles.values()}.values():
                hold = RegisterHold(view_hold_name(view.id), Frontier.at(time), definition.token)
                read = collection_of_handle(store, handle)
                transaction.need(read)
                transaction.also(read, hold)
            add_definition(transaction, store, view.id, msgspec.structs.replace(definition, stages=ids))
            if not is_large:
                _fill(transaction, created, rows, time, stack)
        if is_large:
            names = [(store.collection(each.name), schema) for each, schema in created]
            try:
                with begin_refresh(store) as transaction:
                    for collection, _ in names:
                        transaction.expect(collection, 0)
                    _fill(transaction, names, rows, time, stack)
            except BaseException:
                with contextlib.suppress(Exception):
                    drop_view(store, name, force=True)
                raise
    return str(view.id)


def _created(
    transaction: RefreshTransaction,
    name: str,
    definition: ViewDefinition,
    compiled: Compiled,
    made: Definition,
    *,
    replace: bool,
) -> list[tuple[Collection, Schema]]:
    """Create the view and its stages in a transaction."""
    view = transaction.create_as(name, made, replace=replace)
    return [(view, made.schema), *create_stages(transaction, view.id, definition, compiled, made.timeline)]


def create_stages(
    transaction: RefreshTransaction,
    view: str,
    definition: ViewDefinition,
    compiled: Compiled,
    timeline: Any,
    suffix: str = "",
) -> list[tuple[Collection, Schema]]:
    """Create the stages of a view in a transaction."""
    created: list[tuple[Collection, Schema]] = []
    if definition.mode == INCREMENTAL:
        for number, node in enumerate(compiled.aggregates):
            schema = stage_schema(node)
            owned = Definition(schema, timeline, None, None, role="stage", owner=view)
            created.append((transaction.create_as(f"{STAGES}{view}.{number}{suffix}", owned), schema))
    return created


def _fill(
    transaction: RefreshTransaction,
    created: list[tuple[Collection, Schema]],
    rows: list[Any],
    time: int,
    stack: contextlib.ExitStack,
) -> None:
    for (collection, schema), each in zip(created, rows, strict=True):
        append_counted(transaction, collection, schema, each, time, stack)
        transaction.also(collection, Retain(Frontier.at(time)))


def verify_view(
    store: Store, handle: CollectionHandle, definition: ViewDefinition, time: int, spark: Any
) -> tuple[int, int, int]:
    """Compute a view whole as of a time, and compare; return its rows, and how many are missing and too many."""
    handles = input_handles(store, handle.name, definition)
    definition, compiled = compile_present(definition, handles)
    function = function_of(store, handle.name, handle.id, definition)
    stored = stored_rows(handle, time)
    _, schema = handle.schema(handle.state())
    with contextlib.ExitStack() as stack:
        build = FirstBuild(definition, compiled, handles, time, spark, stack, function)
        if definition.sql and find_session(spark) is not None:
            missing, extra = _differs_from_spark(handle.name, build, schema.arrow, stored)
            # What the text leaves open, ties and the last digits of sums of doubles, the plan decides.
            if missing or extra or decides_all(compiled.plan):
                return len(stored), missing, extra
        view = build.compute(schema.arrow).view
        whole = view if isinstance(view, pl.DataFrame) else view.collect()
    off = net_difference(whole, stored)
    return len(stored), len(off.filter(pl.col(WEIGHT) > 0)), len(off.filter(pl.col(WEIGHT) < 0))


def _differs_from_spark(name: str, build: FirstBuild, schema: pa.Schema, stored: pl.DataFrame) -> tuple[int, int]:
    """Compare stored rows with Spark's answer to the text of the user: return how many are missing, and too many."""
    from timespine.views.refresh import compute_on_spark

    with compute_on_spark.spark_errors(f"view {name} was not verified"):
        _, _, extra, missing = compare_answers(build.compiled.plan, build.query(), stored, schema)
    return missing, extra


__all__ = ["FirstBuild", "create_filled", "handle_of", "only_spark", "verify_view"]
