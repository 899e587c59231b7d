"""A collection, as a user holds it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from timespine.client.catalog.evolve_schema import evolve
from timespine.client.catalog.retention import Policy, Retention, policy_of
from timespine.client.context import Access
from timespine.client.diagnostics.inspect import Inspection, inspect
from timespine.client.process_guard import OneProcess
from timespine.client.read import holds, lookup, unsealed
from timespine.client.read.acquire import WAIT_S, seconds_of, wanted_of
from timespine.client.read.change_feed import ChangeFeed
from timespine.client.read.change_set import Changes
from timespine.client.read.commit_stream import CommitEvent, CommitStream
from timespine.client.read.contents import Contents, contents
from timespine.client.read.reads import Asked, read_changes, read_snapshot, read_updates
from timespine.client.read.rows import Rows, Snapshot, Updates
from timespine.client.read.to_dicts import to_dicts
from timespine.client.results import CommitResult, SealResult, WriteResult
from timespine.client.signatures import LatePolicy, Multiplicity, RowsLike
from timespine.client.spark_bridge import handed, is_spark_frame
from timespine.client.time_args import Moment, Progress, to_ms
from timespine.client.write import append_batcher, delta
from timespine.client.write.batch_writer import Writer
from timespine.client.write.merge_builder import Merge
from timespine.client.write.prepare import materialize_once
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep, UnsealedWriteStep
from timespine.client.write.unsealed_write import REFUSE
from timespine.columnar.predicate.column import Where
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.core.state import HistoryEntry
from timespine.core.transitions import AdvanceUpper, Command, ExpireResult, Retain, RollUpAll, Seal
from timespine.errors import UsageError, shown
from timespine.hints import Hint
from timespine.model.frontier import Frontier


class Collection(OneProcess):
    """A named, schema-checked, durable history. Handles are cheap and may be used by many threads."""

    def __init__(self, access: Access, maintain: Any) -> None:
        self._access = access
        self._maintain = maintain

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._access.name

    @property
    def id(self) -> str:
        """Its id: the folder of its blobs."""
        return self._access.id

    @property
    def schema(self) -> Schema:
        """Its newest schema."""
        return self._access.schema(self._access.state())[1]

    @property
    def since(self) -> Frontier:
        """History is exact from here on."""
        return self._access.state().since

    @property
    def upper(self) -> Frontier:
        """It is complete below this."""
        return self._access.state().upper

    def __repr__(self) -> str:
        return f"<collection {self.name}>"

    # Writing.

    def append(
        self,
        rows: RowsLike,
        *,
        at: Moment | None = None,
        upper: Progress | None = None,
        expected_upper: Progress | None = None,
    ) -> CommitResult:
        """Add updates. Rows may carry `_time` and `_diff`; without, they get `at` (or the next free time) and +1.

        `upper` says how far that completes the collection: a time, or with several coordinates a list of times.
        Columns of the key must be there; values that are not are null, or the default of their column.
        """
        if is_spark_frame(rows):
            committed: CommitResult = handed("write.frames").append(self._access, rows, at, upper, expected_upper)
            return committed
        return append_batcher.append_or_wait(self._access, rows, at, upper, expected_upper)

    def write(
        self, rows: RowsLike, *, at: Moment | None = None, times: str | None = None, late: LatePolicy = REFUSE
    ) -> WriteResult:
        """Make updates durable ahead of the seal: at any times that are not complete yet, in any order, by anybody.

        Their times are in `_time`, or in a column that `times` names, or `at`. They become part of the collection
        when somebody seals those times. What is `late` is refused, or dropped, or moved to the earliest time that
        is still open: "refuse", "drop", "move".
        """
        if is_spark_frame(rows):
            written: WriteResult = handed("write.frames").write(self._access, rows, at, times, late)
            return written
        (done,) = commit_steps(UnsealedWriteStep(self._access, materialize_once(rows), at, times, late))
        assert isinstance(done, WriteResult)
        return done

    def seal(self, upper: Progress) -> SealResult:
        """Say that nothing more comes before a time: what was written before it is part of the collection now.

        The same time again is fine; an earlier one is an error. With several coordinates it may be a list of times.
        Many collections at once: `store.seal`.
        """
        reached = self._access.frontier_of(upper)
        (done,) = commit_steps(CommandStep(self._access, lambda: [Seal(reached)], sealed=reached))
        assert isinstance(done, SealResult)
        return done

    def upsert(self, rows: RowsLike) -> CommitResult:
        """Rows take the place of those with the same key, or are added.

        Without key columns a row is known by all of its columns: those that are not there yet are added, once.
        """
        if is_spark_frame(rows):
            committed: CommitResult = handed("write.frames").upsert(self._access, rows)
            return committed
        return delta.change(self._access, delta.upsert_delta(rows), "upsert")

    def delete(self, keys: RowsLike | None = None, *, where: Where | None = None) -> CommitResult:
        """Rows with these keys, or for which a condition holds, go.

        Keys may be given as whole rows: values are passed over, and rows go whatever theirs are. Only without key
        columns a row is known by all of its columns, and all of them are needed.
        """
        if is_spark_frame(keys) and where is None:
            committed: CommitResult = handed("write.frames").delete(self._access, keys)
            return committed
        return delta.change(self._access, delta.delete_delta(keys, where), "delete")

    def update(self, *, where: Where | None = None, set: Mapping[str, Any]) -> CommitResult:
        """Rows for which a condition holds get other values; all rows without one."""
        return delta.change(self._access, delta.update_delta(where, set), "update")

    def replace(self, rows: RowsLike, *, where: Where | None = None) -> CommitResult:
        """Rows for which a condition holds (all, without one) go, and these come instead."""
        return delta.change(self._access, delta.replace_delta(where, rows), "replace")

    def merge(self, source: RowsLike) -> Merge[CommitResult]:
        """Begin a merge with matched and not matched clauses; `.execute()` carries it out."""
        return Merge(partial(delta.change, self._access), source)

    def advance(self, upper: Progress) -> SealResult:
        """Say that nothing more comes before a time."""
        answers = self._access.committer.commit((self.id, AdvanceUpper(self._access.frontier_of(upper))))
        return SealResult(Frontier(answers[0].elements), answers.seqno(self.id))

    def close_for_good(self) -> None:
        """Say that nothing more will ever come."""
        self._access.committer.commit((self.id, AdvanceUpper(Frontier())))

    def writer(self) -> Writer:
        """A handle for those who build batches themselves."""
        return Writer(self._access)

    # Reading.

    def snapshot(
        self,
        as_of: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> Snapshot:
        """The collection as of a time; the newest complete one if none is named. Waits while it is not complete.

        Not longer than `timeout` seconds; None: for ever.
        """
        return read_snapshot(self._access, as_of, Asked(columns, where, timeout), multiplicity)

    def changes(
        self,
        after: Moment | None = None,
        until: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        images: bool = False,
        timeout: float | None = WAIT_S,
    ) -> Changes:
        """The net changes in (after, until]. `images=True` pairs them by key, with `_change_type`.

        `where` is about rows, before they are paired: an update by which a row begins to satisfy it is an insert,
        one by which it ceases to is a delete.
        """
        return read_changes(self._access, after, until, Asked(columns, where, timeout), images=images)

    def unsealed(
        self,
        lower: Moment | None = None,
        upper: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> Updates:
        """Every update that was written at a time from `lower` to before `upper`, and that is not sealed yet."""
        return unsealed.unsealed(self._access, lower, upper, columns, where)

    def contents(
        self,
        as_of: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> Contents:
        """Read what is sealed and what is not sealed yet together: a snapshot and the unsealed updates of one state.

        Between `snapshot()` and `unsealed()` another writer may seal, and updates would be in both or in neither.
        """
        return contents(self._access, as_of, columns, where, multiplicity, timeout)

    def updates(
        self,
        *,
        until: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        timeout: float | None = WAIT_S,
    ) -> Updates:
        """Every (row, time, diff), times advanced to since, not accumulated. Only what is complete."""
        return read_updates(self._access, until, Asked(columns, where, timeout))

    def subscribe(
        self,
        as_of: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        snapshot: bool = True,
        timeout: float | None = None,
    ) -> ChangeFeed:
        """A feed: the rows as of a time, then changes and progress as they come."""
        self._access.committer.check_writable(", and a feed holds history while it is read", Hint("listen"))
        state = self._access.state()
        if state.arity != 1:
            raise UsageError("a feed needs totally ordered times: this collection has several coordinates")
        time = self._access.time_of(as_of) if as_of is not None else None
        wanted = wanted_of(self._access, state, columns, where, Window())
        seconds = seconds_of(timeout) if timeout is not None else None
        return ChangeFeed(self._access, state, time, wanted, snapshot=snapshot, timeout_s=seconds)

    def listen(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        snapshot: bool = True,
        timeout: float | None = None,
        callback: Callable[[CommitEvent], object] | None = None,
    ) -> CommitStream:
        """Every commit as it is committed: all updates that there are, then those that come, and each new upper.

        Unlike a feed it does not wait until times are complete. With `callback`, that is called with each event, by
        a thread of its own.
        """
        state = self._access.state()
        wanted = wanted_of(self._access, state, columns, where, Window(), timed=True)
        seconds = seconds_of(timeout) if timeout is not None else None
        if callback is not None and not callable(callback):
            raise UsageError(f"callback is a function of one event, not {shown(callback)}")
        return CommitStream(self._access, state, wanted, snapshot=snapshot, timeout_s=seconds, callback=callback)

    def lookup(
        self,
        keys: RowsLike | None = None,
        as_of: Moment | None = None,
        *,
        between: tuple[Any, Any] | None = None,
        columns: Sequence[str] | None = None,
        timeout: float | None = WAIT_S,
    ) -> list[dict[str, Any]] | pa.Table:
        """Find rows by their key. One key as a dictionary gives a list of rows; many keys, or a range, give a table.

        A dictionary, or each of many, may name only the first key columns: then it stands for all keys that begin
        with them. `between=(low, high)` is a range, both ends included, of the key columns after those: an end is a
        value of the next one, or a dictionary of several; None leaves it open. As with `delete`, keys may be given
        as whole rows, and without key columns they must be.
        """
        with self.snapshot(as_of, columns=columns, timeout=timeout) as rows:
            lookup.restrict(rows, keys, between)
            table = rows.to_arrow()
        return to_dicts(table) if isinstance(keys, Mapping) and between is None else table

    def count(self, as_of: Moment | None = None, *, where: Where | None = None, timeout: float | None = WAIT_S) -> int:
        """How many rows there are as of a time."""
        with self.snapshot(as_of, where=where, timeout=timeout) as rows:
            return rows.count()

    # Holding and forgetting.

    def hold(
        self,
        as_of: Moment | None = None,
        *,
        ttl: str | float | datetime.timedelta | None = None,
        critical: str | None = None,
        token: str | None = None,
    ) -> holds.Hold | holds.CriticalHold:
        """Keep history readable from a time on: while this process lives, or under a name until it is released."""
        time = self._access.time_of(as_of) if as_of is not None else None
        if critical is not None and ttl is not None:
            raise UsageError("a critical hold has no ttl: it stays until it is released")
        if critical is None and token is not None:
            raise UsageError("a token belongs to a critical hold: name it with critical=")
        if critical is not None:
            return holds.take_critical(self._access, critical, time, token)
        return holds.take_hold(self._access, time, to_ms(ttl) if ttl is not None else None)

    def expire(self, before: Progress, *, ahead: bool = False) -> ExpireResult:
        """Let history before a time go: reads before it fail from now on, unless somebody holds it.

        The newest complete time stays readable, whatever is asked, unless `ahead` says that times which are not
        complete yet need no history either: then nothing can be read until they are. Of several coordinates there is
        no newest time: there it is refused to let go of all that is complete, unless `ahead`.
        """
        *commands, retain = expiring(self._access, before, ahead=ahead)
        *_, reply = self._access.committer.commit(*((self.id, each) for each in (*commands, retain)))
        return ExpireResult(self._access.frontier_of(before), reply.since, reply.held_by)

    def retain(self, duration: Policy) -> None:
        """Keep history for so long, as a standing policy that maintenance carries out; None: for ever.

        `"store"` gives up the policy of the collection: the one of the store holds again, as it does for a new
        collection. A duration needs times of the wall clock: a counter says nothing about age.
        """
        self._maintain.set_retention(self.name, policy_of(duration))

    @property
    def retention(self) -> Retention:
        """How long history is kept, and by which policy: its own, or that of the store."""
        found: Retention = self._maintain.retention(self._access)
        return found

    def forget_within(self, duration: str | float | datetime.timedelta | None) -> None:
        """After how long history that expired is physically gone, at the latest; None: as the store says."""
        self._maintain.forget_within(duration, self.id)

    def compact(self, *, wait: bool = False) -> None:
        """Ask for everything to become one run; wait until it is."""
        self._access.committer.commit((self.id, RollUpAll()))
        if wait:
            self._maintain.compact(self.id)

    # Looking.

    def history(self) -> list[HistoryEntry]:
        """What was committed when, oldest first; bounded."""
        return list(self._access.state().history)

    def inspect(self, *, parts: bool = False) -> Inspection:
        """How it is stored: since, upper, batches, levels, holds, sizes."""
        return inspect(self._access, self._access.state(), parts=parts)

    # Schema.

    def evolve(
        self,
        *,
        add: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> int:
        """Change the schema; the id of the new one. `add` takes a type, or (type, default).

        Nothing is rewritten. With `expected`, the id of the schema you have seen, it is
        refused if somebody else was first; without, it is tried again on theirs.
        """
        return evolve(self._access, add or {}, drop, rename or {}, widen or {}, expected)


def access_of(collection: Collection) -> Access:
    """Give what a collection reads and writes with: for engines that plan reads and commits for it."""
    return collection._access


def expiring(access: Access, before: Progress, *, ahead: bool) -> list[Command]:
    """The commands that let history before a time go: leases that nobody uses are given back on the way."""
    state = access.state()
    moved = access.frontier_of(before)
    if not ahead and state.arity == 1 and moved.elements and state.upper.elements:
        moved = Frontier.at(max(min(moved.time, state.upper.time - 1), 0))
    reached = state.retention.join(moved)
    if not ahead and state.arity != 1 and state.upper <= reached != state.retention:
        raise UsageError(f"nothing could be read any more: the collection is complete up to {state.upper}")
    return [*access.shared.leases.idle(access.id), Retain(moved)]


__all__ = ["Collection", "Rows"]
