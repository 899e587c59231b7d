"""The public handle of a collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from timespine.client.arguments.argument_types import IfBehind, LatePolicy, Multiplicity, RowsLike, SetLike
from timespine.client.arguments.time_args import DurationLike, FrontierLike, TimeLike, parse_duration_ms
from timespine.client.arrangement_protocols import OpenArrangement, load_arrange
from timespine.client.catalog.evolve_schema import evolve_schema
from timespine.client.catalog.retention import Retention, RetentionLike, policy_of
from timespine.client.diagnostics.inspect import Inspection, inspect_state
from timespine.client.inner_handles import CollectionHandle
from timespine.client.lazy_spark import is_spark_frame, load_spark_module
from timespine.client.read import lookup, read_unsealed
from timespine.client.read.acquire import WAIT_S, scan_request, seconds_of
from timespine.client.read.change_set import Changes
from timespine.client.read.follow.change_feed import ChangeFeed
from timespine.client.read.follow.commit_stream import CommitEvent, CommitStream
from timespine.client.read.open_read import ReadOptions, open_changes, open_snapshot, open_updates
from timespine.client.read.rows import Rows, Snapshot, Updates
from timespine.client.read.sealed_and_unsealed import Contents, contents
from timespine.client.read.user_holds import CriticalHold, Hold, take_critical, take_hold
from timespine.client.refuse_pickle import OneProcess
from timespine.client.write import group_small_appends, upsert_update_delete
from timespine.client.write.merge_builder import Merge
from timespine.client.write.prebuilt.batch_writer import Writer
from timespine.client.write.prepare import materialize_once
from timespine.client.write.prepare_unsealed import REFUSE
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep, UnsealedWriteStep
from timespine.client.write_results import CommitResult, SealResult, WriteResult
from timespine.columnar.predicate.where import Where
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import TypeLike
from timespine.core.state import HistoryEntry
from timespine.core.transitions import AdvanceUpper, Command, ExpireResult, Retain, RollUpAll
from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.model.frontier import Frontier

if TYPE_CHECKING:
    from timespine.client.store import Store


class Collection(OneProcess):
    """A named, schema-checked, durable history. Handles are cheap, and many threads may use one."""

    def __init__(self, handle: CollectionHandle, store: Store) -> None:
        self._handle = handle
        self._store = store

    @property
    def name(self) -> str:
        """The name of the collection in the store."""
        return self._handle.name

    @property
    def id(self) -> str:
        """The id of the collection: the folder of its blobs."""
        return self._handle.id

    @property
    def schema(self) -> Schema:
        """The newest schema."""
        return self._handle.schema(self._handle.state())[1]

    @property
    def since(self) -> Frontier:
        """The frontier from which on history is exact."""
        return self._handle.state().since

    @property
    def upper(self) -> Frontier:
        """The frontier below which the collection is complete."""
        return self._handle.state().upper

    def __repr__(self) -> str:
        return f"<collection {self.name}>"

    # Writing.

    def append(
        self,
        rows: RowsLike,
        *,
        at: TimeLike | None = None,
        upper: FrontierLike | None = None,
        expected_upper: FrontierLike | None = None,
    ) -> CommitResult:
        """Append updates. Rows may carry `_time` and `_diff`; without, they get `at` (or the next free time) and +1.

        `upper` is the new upper of the collection: a time, or with several coordinates a list of times.
        Rows need the key columns; missing values are null, or the default of their column.
        """
        if is_spark_frame(rows):
            committed: CommitResult = load_spark_module("write.write_frame").append_frame(
                self._handle, rows, at, upper, expected_upper
            )
            return committed
        return group_small_appends.append_or_wait(self._handle, rows, at, upper, expected_upper)

    def write(
        self, rows: RowsLike, *, at: TimeLike | None = None, times: str | None = None, late: LatePolicy = REFUSE
    ) -> WriteResult:
        """Make updates durable ahead of the seal: at any times that are not complete, in any order, by any writer.

        Their times are in `_time`, in the column that `times` names, or `at`. They become part of the collection
        when a writer seals those times. `late` says what happens to late rows: "refuse" raises an error, "drop" leaves
        them out, "move" gives them the earliest open time.
        """
        if is_spark_frame(rows):
            written: WriteResult = load_spark_module("write.write_frame").write_frame(
                self._handle, rows, at, times, late
            )
            return written
        (done,) = commit_steps(UnsealedWriteStep(self._handle, materialize_once(rows), at, times, late))
        assert isinstance(done, WriteResult)
        return done

    def seal(self, upper: FrontierLike, *, if_behind: IfBehind = "error") -> SealResult:
        """Seal all times before `upper`: unsealed updates at those times become part of the collection.

        The present upper is fine. An earlier one raises an error; `if_behind="ignore"` changes nothing instead. With
        several coordinates it may be a list of times. For many collections in one commit: `store.seal`.
        """
        (done,) = commit_steps(CommandStep.seal(self._handle, self._handle.frontier_of(upper), if_behind))
        assert isinstance(done, SealResult)
        return done

    def upsert(self, rows: RowsLike) -> CommitResult:
        """Replace the rows with the same keys, and add the others.

        Without key columns, all columns identify a row: rows that the collection lacks are added, once.
        """
        if is_spark_frame(rows):
            committed: CommitResult = load_spark_module("write.write_frame").upsert_frame(self._handle, rows)
            return committed
        return upsert_update_delete.change(self._handle, upsert_update_delete.upsert_delta(rows), "upsert")

    def delete(self, keys: RowsLike | None = None, *, where: Where | None = None) -> CommitResult:
        """Delete rows by their keys, or by a condition.

        Keys may be whole rows: only their key columns count. Without key columns, all columns identify a row and must
        be given.
        """
        if is_spark_frame(keys) and where is None:
            committed: CommitResult = load_spark_module("write.write_frame").delete_frame(self._handle, keys)
            return committed
        return upsert_update_delete.change(self._handle, upsert_update_delete.delete_delta(keys, where), "delete")

    def update(self, *, where: Where | None = None, set: SetLike) -> CommitResult:
        """Set values in the rows that satisfy a condition; in all rows without one."""
        return upsert_update_delete.change(self._handle, upsert_update_delete.update_delta(where, set), "update")

    def replace(self, rows: RowsLike, *, where: Where | None = None) -> CommitResult:
        """Replace the rows that satisfy a condition (all, without one) by other rows."""
        return upsert_update_delete.change(self._handle, upsert_update_delete.replace_delta(where, rows), "replace")

    def merge(self, source: RowsLike) -> Merge[CommitResult]:
        """Begin a merge with matched and not matched clauses; `.execute()` commits it."""
        return Merge(partial(upsert_update_delete.change, self._handle), source)

    def finish(self) -> None:
        """Seal all times: no writer can add anything to the collection afterwards."""
        commit_steps(CommandStep.of(self._handle, AdvanceUpper(Frontier())))

    def writer(self) -> Writer:
        """Return a writer for callers that build batches themselves."""
        self._handle.check_unowned()
        return Writer(self._handle)

    # Reading.

    def snapshot(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> Snapshot:
        """Read the collection as of a time (default: the newest complete one). Waits until the time is complete.

        Waits at most `timeout` seconds; None: for ever.
        """
        return open_snapshot(self._handle, as_of, ReadOptions(columns, where, timeout), multiplicity)

    def changes(
        self,
        after: TimeLike | None = None,
        until: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        images: bool = False,
        timeout: float | None = WAIT_S,
    ) -> Changes:
        """Read the net changes in (after, until]. `images=True` pairs them by key, with `_change_type`.

        `where` filters rows before they are paired: an update by which a row begins to satisfy it is an insert,
        one by which it ceases to is a delete.
        """
        return open_changes(self._handle, after, until, ReadOptions(columns, where, timeout), images=images)

    def unsealed(
        self,
        lower: TimeLike | None = None,
        upper: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> Updates:
        """Read every unsealed update at a time from `lower` to before `upper`."""
        return read_unsealed.read_unsealed(self._handle, lower, upper, columns, where)

    def contents(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> Contents:
        """Read a snapshot and the unsealed updates of one state.

        Between `snapshot()` and `unsealed()` another writer may seal, and updates would be in both or in neither.
        """
        return contents(self._handle, as_of, columns, where, multiplicity, timeout)

    def updates(
        self,
        *,
        until: TimeLike | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        timeout: float | None = WAIT_S,
    ) -> Updates:
        """Read every complete (row, time, diff), not accumulated, with times advanced to since."""
        return open_updates(self._handle, until, ReadOptions(columns, where, timeout))

    def subscribe(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        snapshot: bool = True,
        timeout: float | None = None,
    ) -> ChangeFeed:
        """Open a change feed: the rows as of a time, then changes and progress as times become complete."""
        self._handle.committer.check_writable(", and a feed holds history while it is read", Hint("listen"))
        state = self._handle.state()
        if state.arity != 1:
            raise UsageError("a feed needs totally ordered times: this collection has several coordinates")
        time = self._handle.time_of(as_of) if as_of is not None else None
        wanted = scan_request(self._handle, state, columns, where, Window())
        seconds = seconds_of(timeout) if timeout is not None else None
        return ChangeFeed(self._handle, state, time, wanted, snapshot=snapshot, timeout_s=seconds)

    def listen(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        snapshot: bool = True,
        timeout: float | None = None,
        callback: Callable[[CommitEvent], object] | None = None,
    ) -> CommitStream:
        """Open a commit stream: all present updates, then the updates and the upper of each commit.

        Unlike a change feed it does not wait until times are complete. With `callback`, a thread of the stream calls
        it with each event.
        """
        state = self._handle.state()
        wanted = scan_request(self._handle, state, columns, where, Window(), keep_times=True)
        seconds = seconds_of(timeout) if timeout is not None else None
        if callback is not None and not callable(callback):
            raise UsageError(f"callback is a function of one event, not {short_repr(callback)}")
        return CommitStream(self._handle, state, wanted, snapshot=snapshot, timeout_s=seconds, callback=callback)

    def lookup(
        self,
        keys: RowsLike | None = None,
        as_of: TimeLike | None = None,
        *,
        between: tuple[object, object] | None = None,
        columns: Sequence[str] | None = None,
        timeout: float | None = WAIT_S,
    ) -> pa.Table:
        """Find rows by their key, as an Arrow table; `.to_pylist()` gives them as dictionaries.

        `keys` is one key as a dictionary, or many in any form that rows have. Each may name only the first key
        columns: then it stands for all keys that begin with them. `between=(low, high)` is a range, both ends included,
        of the key columns after those: an end is a value of the next one, or a dictionary of several; None leaves it
        open. As with `delete`, keys may be whole rows; without key columns they must be.
        """
        if self._handle.context.arrangements and as_of is None and between is None and columns is None:
            served = lookup.from_arrangement(self._handle, keys)
            if served is not None:
                return served
        with self.snapshot(as_of, columns=columns, timeout=timeout) as rows:
            lookup.restrict_to_lookup(rows, keys, between)
            return rows.to_arrow()

    def arrange(
        self,
        by: Sequence[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        history: Literal["latest", "all"] = "latest",
        folder: str | PathLike[str] | None = None,
    ) -> OpenArrangement:
        """Keep the rows in memory, sorted by the key or by other columns, and follow the collection.

        While it is open, `lookup`, `upsert` and `delete` by the key use it. One process has one arrangement for equal
        arguments. `history="all"` keeps all times from now on readable; otherwise only the newest is. In a `folder` it
        saves its state now and then, and goes on from there when it is made again; one process at a time has a folder.
        """
        made: OpenArrangement = load_arrange()(self, by, columns=columns, where=where, history=history, folder=folder)
        return made

    def count(
        self, as_of: TimeLike | None = None, *, where: Where | None = None, timeout: float | None = WAIT_S
    ) -> int:
        """Count the rows as of a time."""
        with self.snapshot(as_of, where=where, timeout=timeout) as rows:
            return rows.count()

    # Holding and forgetting.

    def hold(self, as_of: TimeLike | None = None, *, ttl: DurationLike | None = None) -> Hold:
        """Keep history readable from a time on while this process lives, and for `ttl` after it dies."""
        time = self._handle.time_of(as_of) if as_of is not None else None
        return take_hold(self._handle, time, parse_duration_ms(ttl) if ttl is not None else None)

    def critical_hold(self, name: str, as_of: TimeLike | None = None, *, token: str | None = None) -> CriticalHold:
        """Keep history readable from a time on, under a name, until a process with its token releases it.

        With the `token` of an existing hold, return that hold.
        """
        time = self._handle.time_of(as_of) if as_of is not None else None
        return take_critical(self._handle, name, time, token)

    def expire(self, before: FrontierLike, *, ahead: bool = False) -> ExpireResult:
        """Expire history before a time: reads before it raise SinceError, unless a hold or a reader keeps it.

        The newest complete time stays readable in any case. `ahead` lifts that: history before times that are not
        complete expires too, and reads wait until they are. With several coordinates there is no newest time: there,
        expiring all complete times raises an error, unless `ahead`.
        """
        *commands, retain = expire_command(self._handle, before, ahead=ahead)
        *_, reply = self._handle.committer.commit(*((self.id, each) for each in (*commands, retain)))
        return ExpireResult(self._handle.frontier_of(before), reply.since, reply.held_by)

    def retain(self, duration: RetentionLike) -> None:
        """Set how long maintenance keeps history; None: for ever.

        `"store"` removes the policy of the collection, so that the policy of the store applies, as to a new collection.
        A duration needs times of the wall clock: times of a counter have no age.
        """
        self._store._set_retention(self.name, policy_of(duration))

    @property
    def retention(self) -> Retention:
        """How long history is kept, and by which policy: that of the collection, or that of the store."""
        return self._store._retention(self._handle)

    def forget_within(self, duration: DurationLike | None) -> None:
        """Set the deadline for forgetting expired history; None: the deadline of the store."""
        self._store._change_deadline(self.id, duration)

    def compact(self, *, wait: bool = False) -> None:
        """Request a merge of all batches into one run; with `wait`, carry it out."""
        self._handle.committer.commit((self.id, RollUpAll()))
        if wait:
            self._store._compact(self.id)

    # Looking.

    def history(self) -> list[HistoryEntry]:
        """List the newest commits, oldest first; their number is bounded."""
        return list(self._handle.state().history)

    def inspect(self, *, parts: bool = False) -> Inspection:
        """Describe how the collection is stored: since, upper, batches, levels, holds, sizes."""
        return inspect_state(self._handle, self._handle.state(), parts=parts)

    # Schema.

    def evolve(
        self,
        *,
        add: Mapping[str, TypeLike | tuple[TypeLike, object]] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, TypeLike] | None = None,
        expected: int | None = None,
    ) -> int:
        """Change the schema; return the id of the new one. `add` takes a type, or (type, default).

        No data is rewritten. `expected` is the id of the schema that the caller has seen: if another process changed it
        first, an error is raised. Without `expected`, the change is applied to that newer schema.
        """
        return evolve_schema(self._handle, add or {}, drop, rename or {}, widen or {}, expected)


def handle_of(collection: Collection) -> CollectionHandle:
    """Return the inner handle of a collection: for engines that plan reads and commits for it."""
    return collection._handle


def expire_command(handle: CollectionHandle, before: FrontierLike, *, ahead: bool) -> list[Command]:
    """List the commands that expire history before a time: they also return the leases that no read uses."""
    state = handle.state()
    if ahead:
        handle.check_unowned()  # the next refresh reads the newest complete time
    moved = handle.frontier_of(before)
    if not ahead and state.arity == 1 and moved.elements and state.upper.elements:
        moved = Frontier.at(max(min(moved.time, state.upper.time - 1), 0))
    reached = state.retention.join(moved)
    if not ahead and state.arity != 1 and state.upper <= reached != state.retention:
        raise UsageError(
            f"no complete time would stay readable: the collection is complete up to {state.upper}",
            hint=Hint("expire-ahead"),
        )
    return [*handle.context.leases.idle(handle.id), Retain(moved)]


__all__ = ["Collection", "Rows"]
