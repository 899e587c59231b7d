"""A transaction: rows and seals for any number of collections, committed together or not at all.

    with store.transaction() as tx:
        tx.append("orders", orders)
        tx.append("items", items)
        tx.write("payments", late, times="paid_at")
        tx.seal("payments", 10)

No write happens before the block ends; if it raises, none ever does. All rows that are
appended without a time get one time, the same in all collections of a time line. So a
snapshot of several collections as of that time has all of them.

One compare-and-set over the logs of all collections commits the transaction. If other
processes were first, the transaction is placed again, at a later time; changes follow
the commits to the rows that they have read. The transaction is not tried again if a
commit violates what the caller relies on: `expect`, or the rows of `snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from timespine.client.arguments.argument_types import (
    CreateOptions,
    IfBehind,
    LatePolicy,
    Multiplicity,
    RowsLike,
    SetLike,
)
from timespine.client.arguments.time_args import FrontierLike, TimeLike
from timespine.client.catalog.create_in_transaction import Definition, PendingCreates
from timespine.client.collection import Collection, expire_command
from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import WAIT_S
from timespine.client.read.rows import Snapshot
from timespine.client.refuse_pickle import OneProcess
from timespine.client.write import upsert_update_delete
from timespine.client.write.merge_builder import Merge
from timespine.client.write.prepare import has_no_times, materialize_once
from timespine.client.write.prepare_unsealed import REFUSE
from timespine.client.write.read_current import Compute
from timespine.client.write.step_commit import StepCommit, check_reads
from timespine.client.write.transaction_steps import (
    AppendAtStep,
    AppendStep,
    CommandStep,
    DeltaStep,
    Step,
    StepResult,
    UnsealedWriteStep,
)
from timespine.columnar.predicate.where import Where
from timespine.core.transitions import AdvanceUpper, Command
from timespine.errors import UpperMismatch, UsageError, short_repr
from timespine.model.frontier import Frontier


class Transaction(OneProcess):
    """Writes that are committed together or not at all. Leave its `with` to commit it; raise to give it up."""

    _refreshes = False
    """Whether this is a refresh of views, which may write to owned collections."""

    def __init__(
        self, find: Callable[[Sequence[str]], list[Collection]], committer: GroupCommitter, pending: PendingCreates
    ) -> None:
        self._find = find
        self._committer = committer
        self._pending = pending
        self._steps: list[Step] = []
        self._reads: dict[str, tuple[CollectionHandle, Frontier]] = {}
        self._times: dict[str, int] = {}
        self._is_over = False
        self.replies: list[StepResult] = []
        """The result of each step, in order, once the transaction is committed."""

    @property
    def time(self) -> int | None:
        """The time of rows without one, once the transaction is committed; None if there are none.

        If collections of both time lines have such rows, it is that of the wall clock.
        """
        return self._times.get("clock", self._times.get("counter")) if self.replies else None

    # Adding steps.

    def create(self, name: str, *, replace: bool = False, **options: Unpack[CreateOptions]) -> Collection:
        """Create a collection, as `store.create` does, and fill it: it exists once the transaction is committed."""
        return self._create(name, Definition.of(options), replace=replace)

    def _create(self, name: str, definition: Definition, *, replace: bool) -> Collection:
        self._check_open()
        collection = self._pending.create(name, definition, replace=replace)
        handle = collection._handle
        # A transaction creates the collections that its commands name, so every new one needs at least one command.
        self._add(CommandStep(handle, lambda: [AdvanceUpper(Frontier.minimum(handle.known().arity))]))
        return collection

    def append(
        self,
        collection: str | Collection,
        rows: RowsLike,
        *,
        at: TimeLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Append updates, as `collection.append` does; without times of their own, at that of the transaction."""
        handle = self._handle(collection)
        rows = copy_rows(rows)
        if not has_no_times(handle, rows, at):
            time = handle.time_of(at) if at is not None else None
            self._add(AppendAtStep(handle, rows, time, upper))
            return
        if upper is not None:
            raise UsageError("rows that take the time of the transaction complete no other time: use tx.seal for that")
        same = (step for step in self._steps if step.handle.id == handle.id and type(step) is AppendStep)
        known = next(same, None)
        if isinstance(known, AppendStep):
            known.given.append(rows)
        else:
            self._add(AppendStep(handle, [rows]))

    def upsert(self, collection: str | Collection, rows: RowsLike) -> None:
        """Replace the rows with the same keys, and add the others."""
        self._change(collection, upsert_update_delete.upsert_delta(copy_rows(rows)), "upsert")

    def delete(self, collection: str | Collection, keys: RowsLike | None = None, *, where: Where | None = None) -> None:
        """Delete rows by their keys, or by a condition."""
        self._change(collection, upsert_update_delete.delete_delta(copy_rows(keys), where), "delete")

    def update(self, collection: str | Collection, *, where: Where | None = None, set: SetLike) -> None:
        """Set values in the rows that satisfy a condition; in all rows without one."""
        self._change(collection, upsert_update_delete.update_delta(where, set), "update")

    def replace(self, collection: str | Collection, rows: RowsLike, *, where: Where | None = None) -> None:
        """Replace the rows that satisfy a condition (all, without one) by other rows."""
        self._change(collection, upsert_update_delete.replace_delta(where, copy_rows(rows)), "replace")

    def merge(self, collection: str | Collection, source: RowsLike) -> Merge[None]:
        """Begin a merge with matched and not matched clauses; `.execute()` makes it part of the transaction."""
        return Merge(partial(self._change, collection), copy_rows(source))

    def write(
        self,
        collection: str | Collection,
        rows: RowsLike,
        *,
        at: TimeLike | None = None,
        times: str | None = None,
        late: LatePolicy = REFUSE,
    ) -> None:
        """Make updates durable ahead of the seal, as `collection.write` does."""
        self._add(UnsealedWriteStep(self._handle(collection), copy_rows(rows), at, times, late))

    def seal(
        self,
        collections: str | Collection | Sequence[str | Collection],
        upper: FrontierLike,
        *,
        if_behind: IfBehind = "error",
    ) -> None:
        """Seal all times before `upper` in some collections, as `collection.seal` does."""
        for handle in self._handles(as_list(collections)):
            self._add(CommandStep.seal(handle, handle.frontier_of(upper), if_behind))

    def expire(self, collection: str | Collection, before: FrontierLike, *, ahead: bool = False) -> None:
        """Expire history before a time, as `collection.expire` does."""
        handle = self._handle(collection)
        asked = handle.frontier_of(before)
        self._add(CommandStep(handle, lambda: expire_command(handle, before, ahead=ahead), expired=asked))

    def expect(self, collection: str | Collection, upper: FrontierLike) -> None:
        """Commit only if the upper of a collection is this one; otherwise raise UpperMismatch and write nothing."""
        handle = self._handle(collection)
        expected = handle.frontier_of(upper)
        known = self._reads.setdefault(handle.id, (handle, expected))
        if known[1] != expected:
            raise UpperMismatch(known[1], expected)

    def snapshot(
        self,
        collection: str | Collection,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> Snapshot:
        """Read the newest rows of a collection, and rely on them: the commit fails if they change before it."""
        handle = self._handle(collection)
        found = collection if isinstance(collection, Collection) else self._pending.get(collection)
        if found is None:
            (found,) = self._find([handle.name])
        rows = found.snapshot(columns=columns, where=where, multiplicity=multiplicity, timeout=timeout)
        self.expect(collection, rows.upper if rows.upper is not None else Frontier.minimum(handle.known().arity))
        return rows

    def _add(self, step: Step) -> None:
        self._check_open()
        self._committer.check_writable()
        if step.is_free and any(each.is_free and each.handle.id == step.handle.id for each in self._steps):
            name = step.handle.name
            raise UsageError(f"this transaction changes {name} at its own time already: give it all rows at once")
        self._steps.append(step)

    def _change(self, collection: str | Collection, compute: Compute, operation: str) -> None:
        """Add a delta that is computed from the present rows."""
        handle = self._handle(collection)
        if self._pending.get(handle.name) is not None:
            raise UsageError(f"this transaction creates {handle.name}, which is empty: append its rows")
        if any(step.handle.id == handle.id for step in self._steps):
            raise UsageError(
                f"a change reads {handle.name} as it was before the transaction, which has another step for it: "
                "make one change of it, as its first step"
            )
        self._add(DeltaStep(handle, compute, operation, must_hold=True))

    # Ending it.

    def commit(self) -> None:
        """Commit all steps, or raise and change nothing."""
        self._check_open()
        self._is_over = True
        try:
            self._commit()
        finally:
            self._pending.close()

    def _commit(self) -> None:
        reads = tuple(self._reads.values())
        if not self._steps:
            check_reads(reads)
            return
        self._float_lone_append()
        create = None if self._pending.is_empty else self._pending.commit
        whole = StepCommit(self._steps, reads, create, refreshes=self._refreshes)
        self.replies = whole.run()
        self._times = whole.times
        for step, reply in zip(self._steps, self.replies, strict=True):
            if isinstance(step, AppendStep) and step.floats:
                self._times[step.handle.entry.timeline] = reply.time

    def _float_lone_append(self) -> None:
        """Let the commit choose the time of an append, if no other step moves an upper or relies on one."""
        appends = [step for step in self._steps if isinstance(step, AppendStep)]
        others = [step for step in self._steps if not isinstance(step, AppendStep)]
        if len(appends) == 1 and not self._reads and all(isinstance(step, CommandStep) for step in others):
            appends[0].floats = all(isinstance(step, CommandStep) and step.sealed is None for step in others)

    def give_up(self) -> None:
        """Discard all steps."""
        if not self._is_over:
            self._is_over = True
            self._pending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None and not self._is_over:
            self.commit()
        self.give_up()

    # Inside.

    def _handle(self, collection: str | Collection) -> CollectionHandle:
        return self._handles([collection])[0]

    def _handles(self, collections: Sequence[str | Collection]) -> list[CollectionHandle]:
        """Return the handles of collections; look all names up together."""
        self._check_open()
        for each in collections:
            if not isinstance(each, str | Collection):
                raise UsageError(f"a transaction takes collections or their names, not {short_repr(each)}")
            if isinstance(each, Collection) and each._handle.committer is not self._committer:
                raise UsageError(f"{each.name} was opened by another store: open it by the one of the transaction")
        given = [self._pending.get(each) or each if isinstance(each, str) else each for each in collections]
        names = [each for each in given if isinstance(each, str)]
        found = iter(self._find(names) if names else ())
        return [each._handle if isinstance(each, Collection) else next(found)._handle for each in given]

    def _check_open(self) -> None:
        if self._is_over:
            raise UsageError("this transaction is over: begin another one")


class RefreshTransaction(Transaction):
    """A transaction that may write to owned collections, with steps and commands that engines make."""

    _refreshes = True

    def create_as(self, name: str, definition: Definition, *, replace: bool = False) -> Collection:
        """Create a collection by its definition, which may be that of an owned one."""
        return self._create(name, definition, replace=replace)

    def need(self, collection: Collection) -> None:
        """Create nothing if a collection is dropped meanwhile."""
        self._pending.need(collection.id)

    def add(self, step: Step) -> None:
        """Add a step."""
        self._add(step)

    def also(self, collection: str | Collection, command: Command) -> None:
        """Add a command of the core."""
        self._add(CommandStep.of(self._handle(collection), command))


def copy_rows(rows: RowsLike) -> RowsLike:
    """Copy rows: the caller may change its list before the transaction ends."""
    return list(rows) if isinstance(rows, list) else materialize_once(rows)


def as_list(collections: object) -> list[str | Collection]:
    """Return one collection, or several, as a list."""
    if isinstance(collections, str | Collection):
        return [collections]
    if not isinstance(collections, Sequence):
        raise UsageError(f"name one collection, or a list of them, not {short_repr(collections)}")
    return list(collections)
