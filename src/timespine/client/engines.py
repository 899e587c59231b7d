"""The interface of the client for engines such as Spark, beside what users have: `Collection`, `Store` and `open`.

An engine plans reads and lets its workers read the parts. It lets workers write parts, and commits them as steps of a
transaction: rows become part of a collection in no other way. tests/test_layers.py enforces that Spark imports nothing
else of the client.

    handles      Access, access_of; fresh_id makes ids, is_spark_frame tells a DataFrame
    times        Moment, Progress, to_ms, to_user: as callers give them; milliseconds, with_times: in a column
    reads        Asked, read_snapshot, read_changes, read_updates give Rows, Snapshot, Changes, Updates over a
                 LeasedState; Hold says how it is leased; CriticalHold, take_critical keep history for a stream;
                 repeated, with_images, BATCH_ROWS and the kinds of changes shape what workers read
    preparing    PreparedRows; refuse_missing, upper_after, LATE, REFUSE, apply_late_policy, late_rows_error
    staging      Runs, flush_inline, count_appended, count_late; did_not_commit: may blobs be deleted after this error?
    deltas       read_current gives CurrentRows; Compute makes a Look, that a RowDelta, by Grain; PendingDelta follows
                 other commits; delta_of, at_time, negated, keys_of, restricted; upsert, delete and replace as deltas
    appends      AppendTime, append_time, append_runs_step, time_range: runs of workers; append_step: rows
    steps        Step, AppendStep, DeltaStep, DependsOnRead, UnsealedWriteStep, CommandStep, sealed_for
    commit       commit_steps; results are CommitResult, WriteResult, NOTHING
"""

from __future__ import annotations

from timespine.client.collection import access_of
from timespine.client.commit.driver import fresh_id
from timespine.client.context import Access
from timespine.client.read.acquire import Hold
from timespine.client.read.change_set import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE, Changes, with_images
from timespine.client.read.holds import CriticalHold, take_critical
from timespine.client.read.leases import LeasedState
from timespine.client.read.reads import Asked, read_changes, read_snapshot, read_updates
from timespine.client.read.rows import BATCH_ROWS, Rows, Snapshot, Updates, repeated
from timespine.client.results import NOTHING, CommitResult, WriteResult
from timespine.client.row_args import keys_of, refuse_missing, restricted
from timespine.client.spark_bridge import is_spark_frame
from timespine.client.time_args import Moment, Progress, to_ms, to_user
from timespine.client.write.append import append_step
from timespine.client.write.delta import delete_keys_delta, replace_delta, upsert_delta
from timespine.client.write.prebuilt_append import AppendTime, append_runs_step, append_time, time_range
from timespine.client.write.prebuilt_steps import discard_flushed, flush_runs
from timespine.client.write.prepare import PreparedRows, upper_after
from timespine.client.write.read_current import (
    Compute,
    CurrentRows,
    Grain,
    Look,
    PendingDelta,
    RowDelta,
    at_time,
    delta_of,
    negated,
    read_current,
)
from timespine.client.write.stage import Runs, count_appended, did_not_commit, flush_inline
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.time_column import milliseconds, with_times
from timespine.client.write.transaction_steps import (
    AppendStep,
    CommandStep,
    DeltaStep,
    DependsOnRead,
    Step,
    UnsealedWriteStep,
    sealed_for,
)
from timespine.client.write.unsealed_write import LATE, REFUSE, apply_late_policy, count_late, late_rows_error

__all__ = [
    "BATCH_ROWS",
    "CHANGE_TYPE",
    "DELETE",
    "INSERT",
    "LATE",
    "NOTHING",
    "POSTIMAGE",
    "PREIMAGE",
    "REFUSE",
    "Access",
    "AppendStep",
    "AppendTime",
    "Asked",
    "Changes",
    "CommandStep",
    "CommitResult",
    "Compute",
    "CriticalHold",
    "CurrentRows",
    "DeltaStep",
    "DependsOnRead",
    "Grain",
    "Hold",
    "LeasedState",
    "Look",
    "Moment",
    "PendingDelta",
    "PreparedRows",
    "Progress",
    "RowDelta",
    "Rows",
    "Runs",
    "Snapshot",
    "Step",
    "UnsealedWriteStep",
    "Updates",
    "WriteResult",
    "access_of",
    "append_runs_step",
    "append_step",
    "append_time",
    "apply_late_policy",
    "at_time",
    "commit_steps",
    "count_appended",
    "count_late",
    "delete_keys_delta",
    "delta_of",
    "did_not_commit",
    "discard_flushed",
    "flush_inline",
    "flush_runs",
    "fresh_id",
    "is_spark_frame",
    "keys_of",
    "late_rows_error",
    "milliseconds",
    "negated",
    "read_changes",
    "read_current",
    "read_snapshot",
    "read_updates",
    "refuse_missing",
    "repeated",
    "replace_delta",
    "restricted",
    "sealed_for",
    "take_critical",
    "time_range",
    "to_ms",
    "to_user",
    "upper_after",
    "upsert_delta",
    "with_images",
    "with_times",
]
