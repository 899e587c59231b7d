"""Append rows: at the times they name, at a given time, or at the next free one."""

from __future__ import annotations

from typing import Any

from timespine.client.context import Access
from timespine.client.results import CommitResult
from timespine.client.time_args import Moment, Progress
from timespine.client.write.prepare import has_no_times, materialize_once
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import AppendAtStep, AppendStep, Step


def append(
    access: Access,
    rows: Any,
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
) -> CommitResult:
    """Append rows by themselves, as a transaction of one step."""
    (committed,) = commit_steps(append_step(access, rows, at, upper, expected_upper))
    assert isinstance(committed, CommitResult)
    return committed


def append_step(
    access: Access,
    rows: Any,
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
    operation: str = "append",
) -> Step:
    """Make the step that appends rows, in a transaction in which no other step needs the time of these rows."""
    rows = materialize_once(rows)
    expected = access.frontier_of(expected_upper) if expected_upper is not None else None
    if not has_no_times(access, rows, at):
        time = access.time_of(at) if at is not None else None
        return AppendAtStep(access, rows, time, upper, expected, operation)
    if expected is not None:
        first = max([access.next_time(), *(each for (each,) in expected.elements)])
        return AppendAtStep(access, rows, (first,), upper, expected, operation)
    if upper is not None:
        return AppendStep(access, [rows], operation, access.frontier_of(upper))
    return AppendStep(access, [rows], operation, floats=True)
