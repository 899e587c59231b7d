"""The work of one view between two times: what changes in it and in its stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.client.engine_interface import (
    CollectionHandle,
    ReadOptions,
    Store,
    catalog_entries,
    handle_of,
    open_snapshot,
    restrict_to_keys,
)
from timespine.columnar.schema.schema import DIFF, Schema, define
from timespine.columnar.schema.types import stored_type
from timespine.errors import UsageError
from timespine.views.definition import INCREMENTAL, SPARK, ViewDefinition, arrow_schema, current_names, digest_of
from timespine.views.engine.accumulators import COUNT, Grouping
from timespine.views.engine.evaluate import Evaluator, consolidate
from timespine.views.engine.lowering import WEIGHT, Declined, to_memory
from timespine.views.engine.store_source import InputReader, StoreSource, stage_names
from timespine.views.plan.algebra import Aggregate, InputScan, Plan, nodes_of
from timespine.views.plan.delta import NEW
from timespine.views.plan.expressions import PlanColumn
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import Query, parse_query


@dataclass(frozen=True, slots=True)
class Compiled:
    """The plan of a definition."""

    query: Query
    plan: Plan | None
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

    view: pl.DataFrame
    """Rows of the view that come and go, under their names, with counts."""
    stages: list[pl.DataFrame] = field(default_factory=list)
    """Rows of each stage that come and go."""
    fetched: int = 0
    """The number of rows that were read."""
    touched: int = 0
    """The number of groups that changed."""


def compile_definition(definition: ViewDefinition) -> Compiled:
    """Parse a stored definition again; raise a UsageError if its stages belong to another plan."""
    query = parse_query(definition.sql)
    if definition.mode == SPARK:
        return Compiled(query, None, [])
    inputs = {
        each.name: arrow_schema(each, {column.name: stored_type(column.type) for column in each.columns})
        for each in definition.inputs
    }
    plan, named = plan_of(query, inputs)
    if definition.mode == INCREMENTAL and digest_of(plan) != definition.digest:
        raise UsageError(
            "the stages of this view were made by another version, for another plan: drop the view and create it again"
        )
    return Compiled(query, plan, named)


def used_columns(plan: Plan) -> dict[str, set[str]]:
    """Return the columns of each input that a plan reads."""
    used: dict[str, set[str]] = {}
    for each in nodes_of(plan):
        if isinstance(each, InputScan):
            used.setdefault(each.input, set()).update(source for _, source in each.outputs)
    return used


def input_handles(store: Store, definition: ViewDefinition) -> dict[str, CollectionHandle]:
    """Return the handles of the inputs by their names in the text; raise a UsageError if one was dropped."""
    names = {entry.id: name for name, entry in catalog_entries(store).items()}
    handles = {}
    for each in definition.inputs:
        if each.id not in names:
            raise UsageError(f"{each.name}, which the view reads, was dropped: drop the view too")
        handles[each.name] = handle_of(store.collection(names[each.id]))
    return handles


def source_of(
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    before: int | None,
    after: int,
    stages: list[CollectionHandle],
) -> StoreSource:
    """Return the source of rows for a refresh from one time to another."""
    assert compiled.plan is not None
    used = used_columns(compiled.plan)
    readers = {}
    for each in definition.inputs:
        handle = handles[each.name]
        _, schema = handle.schema(handle.state())
        readers[each.name] = InputReader(handle, current_names(each, schema, used.get(each.name, set())), before, after)
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
    except pl.exceptions.PolarsError as error:
        raise Declined(str(error).splitlines()[0]) from error
    stages, touched = [], 0
    for node in compiled.aggregates:
        grouping = Grouping(node)
        old, new = evaluator.groups.get(node, (None, None))
        stages.append(_stage_changes(grouping, old, new))
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
    except pl.exceptions.PolarsError as error:
        raise Declined(str(error).splitlines()[0]) from error
    stages = [_stage_changes(Grouping(node), None, evaluator.groups[node][1]) for node in compiled.aggregates]
    return ViewDelta(_named(compiled, rows), stages, source.fetched)


def _named(compiled: Compiled, rows: pl.DataFrame) -> pl.DataFrame:
    """Give rows of the plan the names of the view."""
    made = [pl.col(column.name).alias(name) for name, column in compiled.named]
    return consolidate(rows.select([*made, pl.col(WEIGHT)]))


def _stage_changes(grouping: Grouping, old: pl.DataFrame | None, new: pl.DataFrame | None) -> pl.DataFrame:
    """Return the rows of a stage that come and go."""
    names = dict(zip(grouping.names, stage_names(grouping), strict=True))
    parts = [
        part.select(grouping.names).rename(names).with_columns(pl.lit(weight, pl.Int64).alias(WEIGHT))
        for part, weight in ((old, -1), (new, 1))
        if part is not None
    ]
    return consolidate(pl.concat(parts)) if parts else pl.DataFrame(schema={WEIGHT: pl.Int64})


def net_difference(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Return the net difference of two relations with the same columns."""
    return consolidate(pl.concat([new, old.select(new.columns).with_columns(-pl.col(WEIGHT))]))


def stored_rows(handle: CollectionHandle, time: int, keys: pl.DataFrame | None = None) -> pl.DataFrame:
    """Read the rows of a view as of a time, with their counts: all of them, or those of some keys."""
    with open_snapshot(handle, time, ReadOptions(), "column") as rows:
        if keys is not None:
            wanted = pa.schema([rows.schema.field(name) for name in keys.columns])
            restrict_to_keys(rows, keys.to_arrow().cast(wanted))
        return to_memory(pl.DataFrame(pl.from_arrow(rows.to_arrow())).rename({DIFF: WEIGHT}))


def update_rows(rows: pl.DataFrame, schema: Schema) -> pa.Table:
    """Return rows with counts as updates of a collection."""
    table = rows.rename({WEIGHT: DIFF}).to_arrow()
    wanted = pa.schema([*(schema.arrow.field(name) for name in schema.names), pa.field(DIFF, pa.int64())])
    return table.select(wanted.names).cast(wanted)


def stage_schema(node: Aggregate) -> Schema:
    """Return the schema of the stage of an aggregate: its groups are the key."""
    grouping = Grouping(node)
    key = {f"key{place}": column.type for place, column in enumerate(node.keys)}
    value: dict[str, Any] = {each.name: each.type for each in grouping.accumulators}
    return define(key, {**value, COUNT: "int64"})


def check_unique(name: str, key: tuple[str, ...], before: pl.DataFrame, changed: pl.DataFrame) -> None:
    """Raise a UsageError if a key has several rows after a change; `before` has the rows of the changed keys."""
    after = consolidate(pl.concat([before, changed.select(before.columns)]))
    several = after.group_by(key).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) > 1)
    if len(several):
        raise UsageError(
            f"the key {', '.join(key)} of view {name} does not identify its rows: {len(several)} keys have several; "
            "give another key, or none"
        )
