"""The interface of the client for engines such as Spark, beside `Collection`, `Store` and `open`.

An engine plans reads and lets its workers read the parts. It lets workers write parts, and commits them as steps of a
transaction: rows become part of a collection in no other way. tests/test_layers.py enforces that Spark imports nothing
else of the client.

    handles      CollectionHandle, StoreContext, handle_of; fresh_id makes ids, is_spark_frame tells a DataFrame
    catalog      open_or_create, undo_create: a write that fails leaves no collection that it has created
    times        TimeLike, FrontierLike, parse_duration_ms, unwrap_time: as callers give them;
                 milliseconds, with_times: in a column
    reads        ReadOptions, open_snapshot, open_changes, open_updates give Rows, Snapshot, Changes, Updates over a
                 LeasedState; read_handle_of, scan_plan_of, scan_request_of and read_lease_of look inside of them;
                 HoldState says how a read is leased; CriticalHold, take_critical keep history for a stream;
                 repeat_by_diff, with_images, BATCH_ROWS, REPEATED_MAX and the kinds of changes shape what workers read;
                 arranged_rows gives the rows of keys from an open arrangement
    preparing    PreparedRows; upper_after, LATE, REFUSE, apply_late_policy, late_rows_error
    staging      Runs, flush_inline, count_appended, count_late; did_not_commit: may blobs be deleted after this error?
    deltas       read_current gives CurrentRows; Compute makes a Look, that a RowDelta, by Grain; PendingDelta follows
                 other commits; delta_of, at_time, negate_diffs, parse_keys, restrict_columns; upsert_delta,
                 delete_keys_delta, replace_delta
    appends      AppendTime, append_time, append_runs_step, time_range: runs of workers; append_step: rows
    steps        Step, FlushesRuns, AppendStep, DeltaStep, DependsOnRead, UnsealedWriteStep, CommandStep;
                 unsealed_seen_by
    commit       commit_steps; results are CommitResult, WriteResult, NOTHING
    views        begin_refresh gives a RefreshTransaction that may write to owned collections; Definition, CatalogEntry,
                 catalog_entries and open_entry are about these, drop_owned drops one; restrict_to_keys reads the rows
                 of some keys
    following    context_of gives what a store shares, and its `signal` waits for commits; heads_of says which logs
                 have grown; end_with_store closes an object with its store
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from timespine.first_use import import_names

if TYPE_CHECKING:
    import pyarrow as pa

    from timespine.client.arguments.row_args import parse_keys, restrict_columns
    from timespine.client.arguments.time_args import (
        DurationLike,
        FrontierLike,
        TimeLike,
        parse_duration_ms,
        unwrap_time,
    )
    from timespine.client.catalog.catalog import CatalogEntry, view_hold_name
    from timespine.client.catalog.catalog_log import LOG as CATALOG_KEY
    from timespine.client.catalog.create_in_transaction import Definition
    from timespine.client.collection import Collection, handle_of
    from timespine.client.commit.effect_driver import fresh_id
    from timespine.client.inner_handles import Closable, CollectionHandle, StoreContext
    from timespine.client.lazy_spark import is_spark_frame
    from timespine.client.read.acquire import HoldState
    from timespine.client.read.arranged_rows import arranged_rows
    from timespine.client.read.change_set import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE, Changes, with_images
    from timespine.client.read.follow.change_feed import ChangeFeed
    from timespine.client.read.leases import LeasedState
    from timespine.client.read.open_read import ReadOptions, open_changes, open_snapshot, open_updates
    from timespine.client.read.rows import BATCH_ROWS, REPEATED_MAX, Rows, Snapshot, Updates, repeat_by_diff
    from timespine.client.read.user_holds import CriticalHold, take_critical
    from timespine.client.store import Store
    from timespine.client.write.append import append_step
    from timespine.client.write.prebuilt.prebuilt_append import AppendTime, append_runs_step, append_time, time_range
    from timespine.client.write.prebuilt.prebuilt_steps import FlushesRuns
    from timespine.client.write.prepare import PreparedRows, upper_after
    from timespine.client.write.prepare_unsealed import LATE, REFUSE, apply_late_policy, count_late, late_rows_error
    from timespine.client.write.read_current import (
        Compute,
        CurrentRows,
        Grain,
        Look,
        PendingDelta,
        RowDelta,
        at_time,
        delta_of,
        negate_diffs,
        read_current,
    )
    from timespine.client.write.stage_rows import Runs, count_appended, did_not_commit, flush_inline
    from timespine.client.write.step_commit import commit_steps
    from timespine.client.write.time_column import milliseconds, with_times
    from timespine.client.write.transaction import RefreshTransaction
    from timespine.client.write.transaction_steps import (
        AppendStep,
        CommandStep,
        DeltaStep,
        DependsOnRead,
        Step,
        UnsealedWriteStep,
        unsealed_seen_by,
    )
    from timespine.client.write.upsert_update_delete import delete_keys_delta, replace_delta, upsert_delta
    from timespine.client.write_results import NOTHING, CommitResult, WriteResult
    from timespine.columnar.merge.merge_engine import Engine
    from timespine.columnar.scan.part_access import Parts
    from timespine.columnar.scan.scan_request import ScanRequest
    from timespine.columnar.scan.worker_slice import Slice
    from timespine.columnar.schema.schema import Schema
    from timespine.core.batch import Part
    from timespine.core.read_plan import Plan


def slices_of(rows: Rows, n: int) -> list[Slice]:
    """Cut rows into at most n pieces for other processes, which need the blobs. The pieces live while rows are open."""
    return rows._slices(n)


def extent_of(rows: Rows) -> tuple[int, int]:
    """Return upper bounds for the updates and bytes to read."""
    return rows._extent()


def untouched_parts_of(rows: Rows) -> list[Part] | None:
    """Return the parts whose files hold exactly these rows; None if there are no such parts."""
    return rows._untouched()


def part_access_of(rows: Rows) -> Parts:
    """Return the parts of the state of the plan."""
    return rows._parts()


def read_schema_of(rows: Rows) -> Schema:
    """Return the schema of the collection under which rows are read."""
    return rows._collection_schema


def open_or_create(store: Store, name: str, schema: Schema) -> tuple[Collection, bool]:
    """Open a collection, or create it with a schema; return whether it is new, so that a failed write can undo it."""
    from timespine.client.catalog.create_in_transaction import Definition

    return store._create(name, Definition(schema, "clock", None, None), replace=False, if_exists="open")


def undo_create(store: Store, id: str, name: str) -> bool:
    """Remove a collection that a failed write has created, unless it has updates; return whether it is gone."""
    return store._drop_service.undo_create(id, name)


def restrict_to_keys(rows: Rows, keys: pa.Table) -> None:
    """Restrict rows to those that have one of some combinations of values; nulls are equal.

    If the columns are the first ones of the key, parts and row groups without such rows are not read.
    """
    from timespine.columnar.predicate.key_set import KeySet

    rows._only(KeySet(keys))


def read_handle_of(rows: Rows) -> CollectionHandle:
    """Return the collection that a read is of."""
    return rows._handle


def scan_plan_of(rows: Rows) -> Plan | None:
    """Return the plan of a read; None if no time of its collection is complete."""
    return rows._plan


def scan_request_of(read: Rows | ChangeFeed) -> ScanRequest:
    """Return the rows and columns that a read, or a feed, asks for."""
    return read._request


def read_lease_of(rows: Rows) -> LeasedState:
    """Return the lease that keeps the blobs of a read."""
    return rows._leased


def begin_refresh(store: Store) -> RefreshTransaction:
    """Begin a transaction that may write to owned collections."""
    from timespine.client.catalog.create_in_transaction import PendingCreates
    from timespine.client.write.transaction import RefreshTransaction

    store._committer.check_writable()
    pending = PendingCreates(store, store._context, store._catalog)
    return RefreshTransaction(store._found, store._committer, pending)


def catalog_entries(store: Store) -> dict[str, CatalogEntry]:
    """Return the entries of the newest catalog by name, hidden ones included."""
    return store._catalog.read().entries


def context_of(store: Store) -> StoreContext:
    """Return what all collections of a store share."""
    return store._context


def retention_of_store(store: Store) -> int | None:
    """Return the milliseconds for which a store keeps history, by the newest catalog; None: for ever."""
    return store._catalog.read().retain_ms


def heads_of(store: Store, ids: Sequence[str]) -> Mapping[str, int | None]:
    """Return the newest sequence numbers of collections, and of the catalog under CATALOG_KEY, by one call."""
    from timespine.location.consensus import read_heads

    store._committer.check_open()
    return read_heads(store._driver.consensus, ids)


def end_with_store(store: Store, each: Closable) -> None:
    """Let the end of a store close an object."""
    with store._context.listening:
        store._context.listeners[each] = None


def take_over_name(store: Store, id: str, name: str) -> None:
    """Give an owned collection the name of one with the same role, which is dropped, by one change of the catalog."""
    from timespine.client.catalog.catalog import with_taken_over

    store._check_replaceable(name, next(each.role for each in catalog_entries(store).values() if each.id == id))
    store._catalog.change(partial(with_taken_over, id, name))
    store._drop_service.close()
    store._handles.rename(id, name)


def open_entry(store: Store, name: str, entry: CatalogEntry) -> CollectionHandle:
    """Open a collection of a catalog that was read before, without another read of it."""
    from timespine.client.collection import handle_of

    return handle_of(store._collection(name, entry))


def collection_of_handle(store: Store, handle: CollectionHandle) -> Collection:
    """Return the collection of a handle: the same one, whichever has its name now."""
    return store._collection(handle.name, handle.entry)


def drop_owned(store: Store, name: str, *, force: bool) -> bool:
    """Drop a collection that is a view, or a stage of one."""
    return store._drop_service.drop(name, force=force, owned=True)


def merge_engine_of(store: Store) -> Engine:
    """Return the engine that merges batches of a store."""
    return store._engine


__all__ = [
    "BATCH_ROWS",
    "CATALOG_KEY",
    "CHANGE_TYPE",
    "DELETE",
    "INSERT",
    "LATE",
    "NOTHING",
    "POSTIMAGE",
    "PREIMAGE",
    "REFUSE",
    "REPEATED_MAX",
    "AppendStep",
    "AppendTime",
    "CatalogEntry",
    "Changes",
    "Collection",
    "CollectionHandle",
    "CommandStep",
    "CommitResult",
    "Compute",
    "CriticalHold",
    "CurrentRows",
    "Definition",
    "DeltaStep",
    "DependsOnRead",
    "DurationLike",
    "FlushesRuns",
    "FrontierLike",
    "Grain",
    "HoldState",
    "LeasedState",
    "Look",
    "PendingDelta",
    "PreparedRows",
    "ReadOptions",
    "RefreshTransaction",
    "RowDelta",
    "Rows",
    "Runs",
    "Snapshot",
    "Step",
    "Store",
    "StoreContext",
    "TimeLike",
    "UnsealedWriteStep",
    "Updates",
    "WriteResult",
    "append_runs_step",
    "append_step",
    "append_time",
    "apply_late_policy",
    "arranged_rows",
    "at_time",
    "begin_refresh",
    "catalog_entries",
    "collection_of_handle",
    "commit_steps",
    "context_of",
    "count_appended",
    "count_late",
    "delete_keys_delta",
    "delta_of",
    "did_not_commit",
    "drop_owned",
    "end_with_store",
    "extent_of",
    "flush_inline",
    "fresh_id",
    "handle_of",
    "heads_of",
    "is_spark_frame",
    "late_rows_error",
    "merge_engine_of",
    "milliseconds",
    "negate_diffs",
    "open_changes",
    "open_entry",
    "open_or_create",
    "open_snapshot",
    "open_updates",
    "parse_duration_ms",
    "parse_keys",
    "part_access_of",
    "read_current",
    "read_handle_of",
    "read_lease_of",
    "read_schema_of",
    "repeat_by_diff",
    "replace_delta",
    "restrict_columns",
    "restrict_to_keys",
    "retention_of_store",
    "scan_plan_of",
    "scan_request_of",
    "slices_of",
    "take_critical",
    "take_over_name",
    "time_range",
    "undo_create",
    "unsealed_seen_by",
    "untouched_parts_of",
    "unwrap_time",
    "upper_after",
    "upsert_delta",
    "view_hold_name",
    "with_images",
    "with_times",
]

_FROM = {
    "append_runs_step": "client.write.prebuilt.prebuilt_append",
    "append_step": "client.write.append",
    "append_time": "client.write.prebuilt.prebuilt_append",
    "AppendStep": "client.write.transaction_steps",
    "AppendTime": "client.write.prebuilt.prebuilt_append",
    "apply_late_policy": "client.write.prepare_unsealed",
    "arranged_rows": "client.read.arranged_rows",
    "at_time": "client.write.read_current",
    "BATCH_ROWS": "client.read.rows",
    "REPEATED_MAX": "client.read.rows",
    "CATALOG_KEY": "client.catalog.catalog_log:LOG",
    "CatalogEntry": "client.catalog.catalog",
    "CHANGE_TYPE": "client.read.change_set",
    "Changes": "client.read.change_set",
    "Collection": "client.collection",
    "CollectionHandle": "client.inner_handles",
    "CommandStep": "client.write.transaction_steps",
    "commit_steps": "client.write.step_commit",
    "CommitResult": "client.write_results",
    "Compute": "client.write.read_current",
    "count_appended": "client.write.stage_rows",
    "count_late": "client.write.prepare_unsealed",
    "CriticalHold": "client.read.user_holds",
    "CurrentRows": "client.write.read_current",
    "Definition": "client.catalog.create_in_transaction",
    "DELETE": "client.read.change_set",
    "delete_keys_delta": "client.write.upsert_update_delete",
    "delta_of": "client.write.read_current",
    "DeltaStep": "client.write.transaction_steps",
    "DependsOnRead": "client.write.transaction_steps",
    "did_not_commit": "client.write.stage_rows",
    "DurationLike": "client.arguments.time_args",
    "flush_inline": "client.write.stage_rows",
    "FlushesRuns": "client.write.prebuilt.prebuilt_steps",
    "fresh_id": "client.commit.effect_driver",
    "FrontierLike": "client.arguments.time_args",
    "Grain": "client.write.read_current",
    "handle_of": "client.collection",
    "HoldState": "client.read.acquire",
    "INSERT": "client.read.change_set",
    "is_spark_frame": "client.lazy_spark",
    "LATE": "client.write.prepare_unsealed",
    "late_rows_error": "client.write.prepare_unsealed",
    "LeasedState": "client.read.leases",
    "Look": "client.write.read_current",
    "milliseconds": "client.write.time_column",
    "negate_diffs": "client.write.read_current",
    "NOTHING": "client.write_results",
    "open_changes": "client.read.open_read",
    "open_snapshot": "client.read.open_read",
    "open_updates": "client.read.open_read",
    "parse_duration_ms": "client.arguments.time_args",
    "parse_keys": "client.arguments.row_args",
    "PendingDelta": "client.write.read_current",
    "POSTIMAGE": "client.read.change_set",
    "PREIMAGE": "client.read.change_set",
    "PreparedRows": "client.write.prepare",
    "read_current": "client.write.read_current",
    "ReadOptions": "client.read.open_read",
    "REFUSE": "client.write.prepare_unsealed",
    "repeat_by_diff": "client.read.rows",
    "replace_delta": "client.write.upsert_update_delete",
    "restrict_columns": "client.arguments.row_args",
    "RowDelta": "client.write.read_current",
    "Rows": "client.read.rows",
    "Runs": "client.write.stage_rows",
    "Snapshot": "client.read.rows",
    "Step": "client.write.transaction_steps",
    "Store": "client.store",
    "StoreContext": "client.inner_handles",
    "take_critical": "client.read.user_holds",
    "time_range": "client.write.prebuilt.prebuilt_append",
    "TimeLike": "client.arguments.time_args",
    "RefreshTransaction": "client.write.transaction",
    "unsealed_seen_by": "client.write.transaction_steps",
    "UnsealedWriteStep": "client.write.transaction_steps",
    "unwrap_time": "client.arguments.time_args",
    "Updates": "client.read.rows",
    "upper_after": "client.write.prepare",
    "upsert_delta": "client.write.upsert_update_delete",
    "view_hold_name": "client.catalog.catalog",
    "with_images": "client.read.change_set",
    "with_times": "client.write.time_column",
    "WriteResult": "client.write_results",
}
"""The module of each name that is defined elsewhere. A task on an executor imports only those that it uses."""

__getattr__ = import_names(__name__, _FROM, within="timespine")
