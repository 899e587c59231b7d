"""Append rows: at the times they name, at a given time, or at the next free one."""

from __future__ import annotations

from timespine.client.arguments.time_args import FrontierLike, TimeLike
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import has_no_times, materialize_once
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import AppendAtStep, AppendStep, Step
from timespine.client.write_results import CommitResult


def append_rows(
    handle: CollectionHandle,
    rows: object,
    at: TimeLike | None = None,
    upper: FrontierLike | None = None,
    expected_upper: FrontierLike | None = None,
) -> CommitResult:
    """Append rows by themselves, as a transaction of one step."""
    (committed,) = commit_steps(append_step(handle, rows, at, upper, expected_upper))
    assert isinstance(committed, CommitResult)
    return committed


def append_step(
    handle: CollectionHandle,
    rows: object,
    at: TimeLike | None = None,
    upper: FrontierLike | None = None,
    expected_upper: FrontierLike | None = None,
    operation: str = "append",
) -> Step:
    """Make the step that appends rows, in a transaction in which no other step needs the time of these rows."""
    rows = materialize_once(rows)
    expected = handle.frontier_of(expected_upper) if expected_upper is not None else None
    if not has_no_times(handle, rows, at):
        time = handle.time_of(at) if at is not None else None
        return AppendAtStep(handle, rows, time, upper, expected, operation)
    if expected is not None:
        first = max([handle.next_time(), *(each for (each,) in expected.elements)])
        return AppendAtStep(handle, rows, (first,), upper, expected, operation)
    if upper is not None:
        return AppendStep(handle, [rows], operation, handle.frontier_of(upper))
    return AppendStep(handle, [rows], operation, floats=True)
