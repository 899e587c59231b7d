"""Append runs that workers of an engine have written: at which times, and by which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timespine.client.context import Access
from timespine.client.time_args import Moment, Progress, to_user
from timespine.client.write.prebuilt_steps import PrebuiltAppendAtStep, PrebuiltAppendStep
from timespine.client.write.prepare import check_not_before, next_free_time, rows_beyond_error, upper_of_append
from timespine.client.write.stage import Runs
from timespine.client.write.transaction_steps import Step
from timespine.columnar.scan.part_set import meta_of
from timespine.columnar.schema.schema import Schema
from timespine.errors import CorruptionError, UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time


@dataclass(frozen=True, slots=True)
class AppendTime:
    """At which times rows are appended."""

    at: Time | None
    """The time of rows that bring none; None if they all do."""
    is_free: bool
    """Whether that is the next free time, and a later one is as good."""
    upper: Progress | None = None
    """How far the append completes the collection; None: just past its rows."""
    expected: Frontier | None = None
    """The upper that the caller expects."""


def append_time(
    access: Access,
    columns: Sequence[str],
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
) -> AppendTime:
    """Decide at which times rows with these columns are appended, by what the caller says."""
    state = access.state()
    _, schema = access.schema(state)
    given = access.time_of(at) if at is not None else None
    expected = access.frontier_of(expected_upper) if expected_upper is not None else None
    has_times = not set(schema.time_names).isdisjoint(columns)
    if has_times and given is not None:
        raise UsageError("the rows have times of their own: leave out the time, or drop them")
    if has_times or given is not None:
        return AppendTime(given, False, upper, expected)
    if schema.arity != 1:
        raise UsageError("with several coordinates say at which time the rows are: at=(...)")
    free = max(next_free_time(access, state.upper), expected.time if expected is not None else 0)
    return AppendTime((free,), expected is None, upper, expected)


def append_runs_step(
    access: Access, schema: Schema, runs: Runs, rows: int, when: AppendTime, *, floats: bool = True
) -> Step:
    """Make the step that appends runs that workers of an engine have written."""
    if when.is_free and when.at is not None:
        upper = access.frontier_of(when.upper) if when.upper is not None else None
        floats = floats and upper is None
        return PrebuiltAppendStep(access, [], upper=upper, floats=floats, written=when.at[0], rows=rows, runs=runs)
    lower, latest = (Frontier((when.at,)), when.at) if when.at is not None else time_range(runs)
    check_not_before(when.expected, lower)
    new_upper = upper_of_append(access, when.upper, latest, schema)
    if new_upper.less_equal(latest):
        raise rows_beyond_error(new_upper)
    time = to_user(latest) if lower.elements == (latest,) else None
    return PrebuiltAppendAtStep(access, runs, rows, lower, new_upper, when.expected, "append", time)


def time_range(runs: Runs) -> tuple[Frontier, Time]:
    """Find the earliest and the latest times of runs, from the statistics of their parts."""
    metas = [meta_of(part) for run in runs for part in run.parts]
    known = [meta for meta in metas if meta is not None]
    if not known:
        raise UsageError("nothing to append, and no `upper` to advance to")
    if len(known) < len(metas):
        raise CorruptionError("a part that was just written says nothing of its times")
    lower = tuple(map(min, zip(*(meta.min_time for meta in known), strict=True)))
    return Frontier((lower,)), tuple(map(max, zip(*(meta.max_time for meta in known), strict=True)))
