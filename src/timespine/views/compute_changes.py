"""The work of one view between two times: what changes in it and in its stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import (
    CollectionHandle,
    ReadOptions,
    Store,
    catalog_entries,
    open_snapshot,
    restrict_to_keys,
)
from timespine.columnar.schema.schema import DIFF, TIME, Schema, define
from timespine.columnar.schema.types import stored_type
from timespine.errors import UsageError
from timespine.hints import Hint
from timespine.views.definition import (
    INCREMENTAL,
    SPARK,
    Input,
    ViewDefinition,
    arrow_schema,
    current_names,
    digest_of,
    with_present_types,
)
from timespine.views.engine.accumulators import COUNT, Grouping
from timespine.views.engine.evaluate import Evaluator, consolidate_rows
from timespine.views.engine.lowering import POLARS_FAILURES, WEIGHT, declined_by, to_memory
from timespine.views.engine.store_source import InputReader, StoreSource, stage_names
from timespine.views.engine.touched_rows import TouchedInputs
from timespine.views.plan.algebra import Aggregate, InputScan, PlanNode, nodes_of
from timespine.views.plan.delta import NEW
from timespine.views.plan.expressions import PlanColumn
from timespine.views.registry import open_inputs
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import Query, on_own_stack, parse_query
from timespine.views.sql.spark_types import SparkTypes


@dataclass(frozen=True, slots=True)
class Compiled:
    """The plan of a definition."""

    query: Query | None
    """The text; None if the view is a function of DataFrames."""
    plan: PlanNode | None
    """The plan; None if Spark computes the view."""
    named: list[tuple[str, PlanColumn]]
    """The columns of the result by name."""

    @property
    def aggregates(self) -> list[Aggregate]:
        """The aggregates of the plan in order: each has a stage, if the view is incremental."""
        return [] if self.plan is None else [each for each in nodes_of(self.plan) if isinstance(each, Aggregate)]


@dataclass(slots=True)
class ViewDelta:
    """What a refresh changes."""

    view: Any
    """Rows of the view that come and go, under their names, with counts: a frame, or `compute_on_spark.LargeRows`."""
    stages: list[Any] = field(default_factory=list)
    """Rows of each stage that come and go."""
    fetched: int = 0
    """The number of rows that were read."""
    touched: int = 0
    """The number of groups that changed."""


COMPILED_MAX = 256
"""Definitions whose plans a process remembers."""


@functools.lru_cache(COMPILED_MAX)
def compile_definition(definition: ViewDefinition) -> Compiled:
    """Parse a stored definition, once; raise a UsageError if its stages belong to another plan."""
    return on_own_stack(lambda: _compiled(definition))


def _compiled(definition: ViewDefinition) -> Compiled:
    if not definition.sql:
        return Compiled(None, None, [])
    query = parse_query(definition.sql)
    if definition.mode == SPARK:
        return Compiled(query, None, [])
    plan, named = _plan(definition)
    if definition.mode == INCREMENTAL and digest_of(plan) != definition.digest:
        raise UsageError(
            "the stages of this view were made by another version, for another plan", hint=Hint("rebuild-stages")
        )
    return Compiled(query, plan, named)


def newest_schema(handle: CollectionHandle) -> Schema:
    """Read the newest schema of a collection."""
    return handle.schema(handle.state())[1]


def compile_present(
    definition: ViewDefinition,
    handles: dict[str, CollectionHandle],
    schema_of: Callable[[CollectionHandle], Schema] = newest_schema,
) -> tuple[ViewDefinition, Compiled]:
    """Compile a definition over the types that its inputs have now.

    Raise a UsageError that names the columns if other types of the result, or of stages, follow from theirs.
    """
    compiled = compile_definition(definition)
    if compiled.plan is None:
        return definition, compiled
    used = used_columns(compiled.plan)
    inputs, widened = [], []
    for each in definition.inputs:
        handle = handles[each.name]
        now = with_present_types(each, schema_of(handle))
        inputs.append(now)
        pairs = zip(each.columns, now.columns, strict=True)
        widened += [
            f"{old.name} of {each.name} (was {old.type}, is {new.type})"
            for old, new in pairs
            if old.type != new.type and old.name in used.get(each.name, ())
        ]
    if not widened:
        return definition, compiled
    new_plan, named = _plan(msgspec.structs.replace(definition, inputs=tuple(inputs)))
    present = Compiled(compiled.query, new_plan, named)
    if _types_of(present) != _types_of(compiled):
        raise UsageError(
            f"the view stays as it is, as its types follow from columns that were widened: {', '.join(widened)}",
            hint=Hint("rebuild-types"),
        )
    return msgspec.structs.replace(definition, inputs=tuple(inputs), digest=digest_of(new_plan)), present


def _types_of(compiled: Compiled) -> list[Any]:
    """Return the types of the result and of the stages."""
    stages = [stage_schema(node).arrow for node in compiled.aggregates]
    return [*((name, column.type) for name, column in compiled.named), *stages]


def _plan(definition: ViewDefinition) -> tuple[PlanNode, list[tuple[str, PlanColumn]]]:
    inputs = {
        each.name: arrow_schema(each, {column.name: stored_type(column.type) for column in each.columns})
        for each in definition.inputs
    }
    return plan_of(parse_query(definition.sql), inputs, SparkTypes(definition.types))


def used_columns(plan: PlanNode) -> dict[str, set[str]]:
    """Return the columns of each input that a plan reads."""
    used: dict[str, set[str]] = {}
    for each in nodes_of(plan):
        if isinstance(each, InputScan):
            used.setdefault(each.input, set()).update(source for _, source in each.outputs)
    return used


def input_handles(store: Store, view: str, definition: ViewDefinition) -> dict[str, CollectionHandle]:
    """Return the handles of the inputs by their names in the text; raise a UsageError if one was dropped."""
    return open_inputs(store, view, definition, catalog_entries(store))


def _named_columns(
    definition: ViewDefinition, compiled: Compiled, handles: dict[str, CollectionHandle]
) -> Iterator[tuple[Input, CollectionHandle, dict[str, str]]]:
    """Give each input, its handle, and the present names of the columns that the plan reads."""
    assert compiled.plan is not None
    used = used_columns(compiled.plan)
    for each in definition.inputs:
        handle = handles[each.name]
        _, schema = handle.schema(handle.known())
        yield each, handle, current_names(each, schema, used.get(each.name, set()))


def expect_columns(
    touched: TouchedInputs, definition: ViewDefinition, compiled: Compiled, handles: dict[str, CollectionHandle]
) -> None:
    """Note what a view will read, before the first view of a refresh reads."""
    for _, handle, names in _named_columns(definition, compiled, handles):
        touched.expect(handle, names.values())


def source_of(
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    before: int | None,
    after: int,
    stages: list[CollectionHandle],
    touched: TouchedInputs | None = None,
) -> StoreSource:
    """Return the source of rows for a refresh from one time to another; `touched` is shared by the views of one."""
    readers = {}
    for each, handle, names in _named_columns(definition, compiled, handles):
        readers[each.name] = InputReader(handle, names, before, after)
        if touched is not None and before is not None and names:
            readers[each.name].touched = touched.of(handle, before, after)
    source = StoreSource(readers)
    if before is not None:
        source.stages = {node: (handle, before) for node, handle in zip(compiled.aggregates, stages, strict=False)}
    return source


def compute_changes(compiled: Compiled, source: StoreSource) -> ViewDelta:
    """Compute what changed from what changed below."""
    assert compiled.plan is not None
    evaluator = Evaluator(source)
    try:
        changed = evaluator.changes(compiled.plan)
    except POLARS_FAILURES as error:
        raise declined_by(error) from error
    stages, touched = [], 0
    for node in compiled.aggregates:
        grouping = Grouping(node)
        old, new = evaluator.groups.get(node, (None, None))
        stages.append(stage_changes(grouping, old, new))
        touched += 0 if new is None else len(new)
    return ViewDelta(_named(compiled, changed), stages, source.fetched, touched)


def compute_whole(compiled: Compiled, source: StoreSource) -> ViewDelta:
    """Compute all rows of a view, and all groups of its stages."""
    assert compiled.plan is not None
    evaluator = Evaluator(source)
    try:
        rows = evaluator.rows(compiled.plan, NEW)
        for node in compiled.aggregates:
            if node not in evaluator.groups:
                evaluator.rows(node, NEW)
    except POLARS_FAILURES as error:
        raise declined_by(error) from error
    stages = [stage_changes(Grouping(node), None, evaluator.groups[node][1]) for node in compiled.aggregates]
    return ViewDelta(_named(compiled, rows), stages, source.fetched)


def _named(compiled: Compiled, rows: pl.DataFrame) -> pl.DataFrame:
    """Give rows of the plan the names of the view."""
    made = [pl.col(column.name).alias(name) for name, column in compiled.named]
    return consolidate_rows(rows.select([*made, pl.col(WEIGHT)]))


def stage_changes(grouping: Grouping, old: pl.DataFrame | None, new: pl.DataFrame | None) -> pl.DataFrame:
    """Return the rows of a stage that come and go."""
    names = dict(zip(grouping.names, stage_names(grouping), strict=True))
    parts = [
        part.select(grouping.names).rename(names).with_columns(pl.lit(weight, pl.Int64).alias(WEIGHT))
        for part, weight in ((old, -1), (new, 1))
        if part is not None
    ]
    return consolidate_rows(pl.concat(parts)) if parts else pl.DataFrame(schema={WEIGHT: pl.Int64})


def net_difference(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Return the net difference of two relations with the same columns."""
    return consolidate_rows(pl.concat([new, old.select(new.columns).with_columns(-pl.col(WEIGHT))]))


def stored_rows(handle: CollectionHandle, time: int, keys: pl.DataFrame | None = None) -> pl.DataFrame:
    """Read the rows of a view as of a time, with their counts: all of them, or those of some keys."""
    with open_snapshot(handle, time, ReadOptions(), "column") as rows:
        if keys is not None:
            wanted = pa.schema([rows.schema.field(name) for name in keys.columns])
            restrict_to_keys(rows, keys.to_arrow().cast(wanted))
        return to_memory(pl.DataFrame(pl.from_arrow(rows.to_arrow())).rename({DIFF: WEIGHT}))


def update_rows(rows: pl.DataFrame, schema: Schema) -> pa.Table:
    """Return rows with counts as updates of a collection; they may have times of their own."""
    table = rows.rename({WEIGHT: DIFF}).to_arrow()
    times = [pa.field(name, pa.int64()) for name in (TIME, DIFF) if name in table.column_names]
    wanted = pa.schema([*(schema.arrow.field(name) for name in schema.names), *times])
    return table.select(wanted.names).cast(wanted)


def stage_schema(node: Aggregate) -> Schema:
    """Return the schema of the stage of an aggregate: its groups are the key."""
    grouping = Grouping(node)
    key = {f"key{place}": column.type for place, column in enumerate(node.keys)}
    value: dict[str, Any] = {each.name: each.type for each in grouping.accumulators}
    return define(key, {**value, COUNT: "int64"})


def check_unique(name: str, key: tuple[str, ...], before: pl.DataFrame, changed: pl.DataFrame) -> None:
    """Raise a UsageError if a key has several rows after a change; `before` has the rows of the changed keys."""
    after = consolidate_rows(pl.concat([before, changed.select(before.columns)]))
    several = after.group_by(key).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) > 1)
    if len(several):
        raise repeated_key(name, key, len(several))


def repeated_key(name: str, key: tuple[str, ...], several: int) -> UsageError:
    """Make the error for a key that does not identify rows."""
    return UsageError(
        f"the key {', '.join(key)} of view {name} does not identify its rows: "
        f"{several} {'key has' if several == 1 else 'keys have'} several; "
        "give another key, or none"
    )
