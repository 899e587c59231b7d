"""The work of one view between two times, at each time in between: for views with times='every'."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from timespine.client.api_for_engines import ReadOptions, open_updates
from timespine.columnar.schema.schema import DIFF, TIME
from timespine.errors import UsageError
from timespine.views.compute_changes import Compiled, ViewDelta, stage_changes
from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.lowering import POLARS_FAILURES, WEIGHT, declined_by, to_memory
from timespine.views.engine.store_source import InputReader, StoreSource
from timespine.views.every.timed_evaluate import TimedEvaluator
from timespine.views.every.timed_rows import sum_timed
from timespine.views.plan.algebra import InputScan


@dataclass(slots=True)
class TimedStoreSource(StoreSource):
    """The inputs and the stages of one view, for one refresh at every time."""

    def timed_changes(self, scan: InputScan) -> pl.DataFrame:
        """Read the changes of an input with their times."""
        reader = self.inputs[scan.input]
        columns = [source for _, source in scan.outputs]
        frame = _timed_updates(reader, columns)
        self.fetched += len(frame)
        # Two columns of the plan may be one of the input.
        made = [pl.col(source).alias(column.name) for column, source in scan.outputs]
        return frame.select([*made, TIME, WEIGHT])


def _timed_updates(reader: InputReader, columns: list[str]) -> pl.DataFrame:
    """Read the updates of an input after the last refresh, under the names of the text."""
    until = reader.after if reader.pending is None else reader.stored
    names = list(dict.fromkeys(columns))
    present = {reader.names[name]: name for name in names}
    with open_updates(reader.handle, until, ReadOptions(list(present)), after=reader.before) as rows:
        stored = pl.DataFrame(pl.from_arrow(rows.to_arrow())).rename({**present, DIFF: WEIGHT})
    frame = to_memory(stored.select([*names, TIME, WEIGHT]))
    if reader.pending is not None:
        # A view that is exact at refresh points alone changes at the time of this refresh.
        pending = reader.pending
        if TIME not in pending.columns:
            pending = pending.with_columns(pl.lit(reader.after, pl.Int64).alias(TIME))
        frame = pl.concat([frame, pending.select(frame.columns).cast(frame.schema)])
    return sum_timed(frame)


def compute_timed(compiled: Compiled, source: StoreSource, before: int) -> ViewDelta:
    """Compute what changed at each time since the last refresh, from what changed below."""
    assert compiled.plan is not None
    timed = TimedStoreSource(source.inputs, source.stages)
    evaluator = TimedEvaluator(timed, before)
    try:
        changed = evaluator.changes(compiled.plan)
    except POLARS_FAILURES as error:
        raise declined_by(error) from error
    stages, touched = [], 0
    for node in compiled.aggregates:
        old, new = evaluator.groups.get(node, (None, None))
        stages.append(stage_changes(Grouping(node), old, new))
        touched += 0 if new is None else len(new)
    made = [pl.col(column.name).alias(name) for name, column in compiled.named]
    view = sum_timed(changed.select([*made, pl.col(TIME), pl.col(WEIGHT)]))
    return ViewDelta(view, stages, timed.fetched, touched)


def check_unique_along(name: str, key: tuple[str, ...], before: pl.DataFrame, changed: pl.DataFrame) -> None:
    """Raise a UsageError if a key has several rows at some time; `before` has the rows of the changed keys."""
    old = before.group_by(key).agg(pl.col(WEIGHT).sum()).with_columns(pl.lit(-1, pl.Int64).alias(TIME))
    new = changed.group_by([*key, TIME]).agg(pl.col(WEIGHT).sum())
    along = pl.concat([old.select(new.columns), new]).sort(TIME)
    counts = along.with_columns(pl.col(WEIGHT).cum_sum().over(key).alias("_count"))
    several = counts.filter(pl.col("_count") > 1)
    if len(several):
        first = several[TIME].sort()[0]
        raise UsageError(
            f"the key {', '.join(key)} of view {name} does not identify its rows as of {first}: "
            f"{several.select(key).n_unique()} keys have several; give another key, or none"
        )
