"""Append runs that workers of an engine have written: choose their times, and make the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timespine.client.arguments.time_args import FrontierLike, TimeLike, unwrap_time
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prebuilt.prebuilt_steps import PrebuiltAppendAtStep, PrebuiltAppendStep
from timespine.client.write.prepare import check_not_before_upper, next_free_time, rows_beyond_error, upper_of_append
from timespine.client.write.stage_rows import Runs
from timespine.client.write.transaction_steps import Step
from timespine.columnar.scan.part_access import meta_of
from timespine.columnar.schema.schema import Schema
from timespine.errors import CorruptionError, UsageError
from timespine.hints import Hint
from timespine.model.frontier import Frontier
from timespine.model.time import Time


@dataclass(frozen=True, slots=True)
class AppendTime:
    """The times of an append."""

    at: Time | None
    """The time of rows without one; None if all rows have times."""
    is_free: bool
    """Whether that is the next free time, so that a later one is as good."""
    upper: FrontierLike | None = None
    """The upper after the append; None: just past its rows."""
    expected: Frontier | None = None
    """The upper that the caller expects."""


def append_time(
    handle: CollectionHandle,
    columns: Sequence[str],
    at: TimeLike | None = None,
    upper: FrontierLike | None = None,
    expected_upper: FrontierLike | None = None,
) -> AppendTime:
    """Choose the times of rows with these columns, from the arguments of the caller."""
    state = handle.state()
    _, schema = handle.schema(state)
    given = handle.time_of(at) if at is not None else None
    expected = handle.frontier_of(expected_upper) if expected_upper is not None else None
    has_times = not set(schema.time_names).isdisjoint(columns)
    if has_times and given is not None:
        raise UsageError("the rows have times of their own: leave out the time, or drop them")
    if has_times or given is not None:
        return AppendTime(given, False, upper, expected)
    if schema.arity != 1:
        raise UsageError("with several coordinates there is no next time", hint=Hint("give-time-of-rows"))
    free = max(next_free_time(handle, state.upper), expected.time if expected is not None else 0)
    return AppendTime((free,), expected is None, upper, expected)


def append_runs_step(
    handle: CollectionHandle, schema: Schema, runs: Runs, rows: int, when: AppendTime, *, floats: bool = True
) -> Step:
    """Make the step that appends runs that workers of an engine have written."""
    if when.is_free and when.at is not None:
        upper = handle.frontier_of(when.upper) if when.upper is not None else None
        floats = floats and upper is None
        return PrebuiltAppendStep(handle, [], upper=upper, floats=floats, written=when.at[0], rows=rows, runs=runs)
    lower, latest = (Frontier((when.at,)), when.at) if when.at is not None else time_range(runs)
    check_not_before_upper(when.expected, lower)
    new_upper = upper_of_append(handle, when.upper, latest, schema)
    if latest is not None and new_upper.less_equal(latest):
        raise rows_beyond_error(new_upper)
    time = unwrap_time(latest) if latest is not None and lower.elements == (latest,) else None
    return PrebuiltAppendAtStep(handle, runs, rows, lower, new_upper, when.expected, "append", time)


def time_range(runs: Runs) -> tuple[Frontier, Time | None]:
    """Find the earliest and the latest times of runs, from the statistics of their parts; none if there are no rows."""
    metas = [meta_of(part) for run in runs for part in run.parts]
    known = [meta for meta in metas if meta is not None]
    if not known:
        return Frontier(), None
    if len(known) < len(metas):
        raise CorruptionError("a part that was just written has no statistics of its times")
    lower = tuple(map(min, zip(*(meta.min_time for meta in known), strict=True)))
    return Frontier((lower,)), tuple(map(max, zip(*(meta.max_time for meta in known), strict=True)))
