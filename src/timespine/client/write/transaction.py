"""A transaction: rows and seals for any number of collections, all of them or none.

    with store.transaction() as tx:
        tx.append("orders", orders)
        tx.append("items", items)
        tx.write("payments", late, times="paid_at")
        tx.seal("payments", 10)

Nothing happens before the block ends; if it raises, nothing ever does. What is
appended without a time of its own stands at one time, the same in all collections
of a time line, so that a snapshot of several as of that time has all of it.

Everything is validated together and stored by one compare-and-set over the logs
of all collections. If others were first, the transaction is placed again, at a
later time; changes follow what was committed to the rows that they have read. Only
what the caller relies on is not tried again: `expect`, and what `snapshot` has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from timespine.client.catalog.create import Nursery
from timespine.client.collection import Collection, expiring
from timespine.client.commit.group_commit import Committer
from timespine.client.context import Access
from timespine.client.process_guard import OneProcess
from timespine.client.read.rows import Snapshot
from timespine.client.signatures import LatePolicy, RowsLike
from timespine.client.time_args import Moment, Progress
from timespine.client.write import delta
from timespine.client.write.merge_builder import Merge
from timespine.client.write.prepare import has_no_times, materialize_once
from timespine.client.write.read_current import Compute
from timespine.client.write.step_commit import StepCommit, check_reads
from timespine.client.write.transaction_steps import (
    AppendAtStep,
    AppendStep,
    CommandStep,
    DeltaStep,
    Step,
    UnsealedWriteStep,
)
from timespine.client.write.unsealed_write import REFUSE
from timespine.columnar.predicate.column import Where
from timespine.core.transitions import AdvanceUpper, Command, Seal
from timespine.errors import UpperMismatch, UsageError, shown
from timespine.model.frontier import Frontier


class Transaction(OneProcess):
    """Writes that are committed together or not at all. Leave its `with` to commit it; raise to give it up."""

    def __init__(
        self, find: Callable[[Sequence[str]], list[Collection]], committer: Committer, nursery: Nursery
    ) -> None:
        self._find = find
        self._committer = committer
        self._nursery = nursery
        self._steps: list[Step] = []
        self._reads: dict[str, tuple[Access, Frontier]] = {}
        self._times: dict[str, int] = {}
        self._is_over = False
        self.replies: list[Any] = []
        """What each step came to, in order, once it is committed."""

    @property
    def time(self) -> int | None:
        """The time at which rows without one stand, once it is committed; None if there are none.

        If collections of both time lines have such rows, it is that of the wall clock.
        """
        return self._times.get("clock", self._times.get("counter")) if self.replies else None

    # What is to happen.

    def create(self, name: str, *, replace: bool = False, **options: Any) -> Collection:
        """Create a collection, as `store.create` does, and fill it: it is there when the transaction is, or never."""
        self._check_open()
        collection = self._nursery.conceive(name, replace=replace, **options)
        access = collection._access
        # It is born with the transaction because that names it, whether it has rows for it or not.
        self.add(CommandStep(access, lambda: [AdvanceUpper(Frontier.minimum(access.known().arity))]))
        return collection

    def append(
        self, collection: str | Collection, rows: RowsLike, *, at: Moment | None = None, upper: Progress | None = None
    ) -> None:
        """Add updates, as `collection.append` does; without times of their own, at that of the transaction."""
        access = self._access(collection)
        rows = copy_rows(rows)
        if not has_no_times(access, rows, at):
            time = access.time_of(at) if at is not None else None
            self.add(AppendAtStep(access, rows, time, upper))
            return
        if upper is not None:
            raise UsageError("rows that take the time of the transaction complete no other: use tx.seal for that")
        same = (step for step in self._steps if step.access.id == access.id and type(step) is AppendStep)
        known = next(same, None)
        if isinstance(known, AppendStep):
            known.given.append(rows)
        else:
            self.add(AppendStep(access, [rows]))

    def upsert(self, collection: str | Collection, rows: RowsLike) -> None:
        """Rows take the place of those with the same key, or are added."""
        self.change(collection, delta.upsert_delta(copy_rows(rows)), "upsert")

    def delete(self, collection: str | Collection, keys: RowsLike | None = None, *, where: Where | None = None) -> None:
        """Rows with these keys, or for which a condition holds, go."""
        self.change(collection, delta.delete_delta(copy_rows(keys), where), "delete")

    def update(self, collection: str | Collection, *, where: Where | None = None, set: Mapping[str, Any]) -> None:
        """Rows for which a condition holds get other values; all rows without one."""
        self.change(collection, delta.update_delta(where, set), "update")

    def replace(self, collection: str | Collection, rows: RowsLike, *, where: Where | None = None) -> None:
        """Rows for which a condition holds (all, without one) go, and these come instead."""
        self.change(collection, delta.replace_delta(where, copy_rows(rows)), "replace")

    def merge(self, collection: str | Collection, source: RowsLike) -> Merge[None]:
        """Begin a merge with matched and not matched clauses; `.execute()` makes it part of the transaction."""
        return Merge(partial(self.change, collection), copy_rows(source))

    def write(
        self,
        collection: str | Collection,
        rows: RowsLike,
        *,
        at: Moment | None = None,
        times: str | None = None,
        late: LatePolicy = REFUSE,
    ) -> None:
        """Make updates durable ahead of the seal, as `collection.write` does."""
        self.add(UnsealedWriteStep(self._access(collection), copy_rows(rows), at, times, late))

    def seal(self, collections: str | Collection | Sequence[str | Collection], upper: Progress) -> None:
        """Say of some collections that nothing more comes before a time."""
        for access in self._accesses(as_list(collections)):
            self._tell_seal(access, access.frontier_of(upper))

    def expire(self, collection: str | Collection, before: Progress, *, ahead: bool = False) -> None:
        """Let history before a time go, as `collection.expire` does."""
        access = self._access(collection)
        asked = access.frontier_of(before)
        self.add(CommandStep(access, lambda: expiring(access, before, ahead=ahead), expired=asked))

    def expect(self, collection: str | Collection, upper: Progress) -> None:
        """Commit only if the upper of a collection is this one: UpperMismatch otherwise, and nothing is written."""
        access = self._access(collection)
        expected = access.frontier_of(upper)
        known = self._reads.setdefault(access.id, (access, expected))
        if known[1] != expected:
            raise UpperMismatch(known[1], expected)

    def snapshot(self, collection: str | Collection, **options: Any) -> Snapshot:
        """The newest rows of a collection, and a promise: if they change before the commit, there is none."""
        if options.get("as_of") is not None:
            raise UsageError("a transaction relies on the newest rows: read others before it")
        access = self._access(collection)
        found = collection if isinstance(collection, Collection) else self._nursery.get(collection)
        if found is None:
            (found,) = self._find([access.name])
        rows = found.snapshot(**options)
        self.expect(collection, rows.upper if rows.upper is not None else Frontier.minimum(access.known().arity))
        return rows

    # For those who build upon it.

    def add(self, step: Step) -> None:
        """One step more."""
        self._check_open()
        self._committer.check_writable()
        if step.is_free and any(each.is_free and each.access.id == step.access.id for each in self._steps):
            name = step.access.name
            raise UsageError(f"{name} changes at the time of this transaction already: give it all rows at once")
        self._steps.append(step)

    def change(self, collection: str | Collection, compute: Compute, operation: str) -> None:
        """A difference that is worked out from the rows that are there."""
        access = self._access(collection)
        if self._nursery.get(access.name) is not None:
            raise UsageError(f"{access.name} is created by this transaction, and empty: append its rows")
        if any(step.access.id == access.id for step in self._steps):
            raise UsageError(
                f"what is in {access.name} is looked at as it was before the transaction, which has something for it "
                "already: make one change of it, and let that come first"
            )
        self.add(DeltaStep(access, compute, operation, must_hold=True))

    def also(self, collection: str | Collection, command: Command) -> None:
        """A command of the core that is committed with the rest."""
        self.add(CommandStep.of(self._access(collection), command))

    # How it ends.

    def commit(self) -> None:
        """Commit all of it, or raise and leave everything as it is."""
        self._check_open()
        self._is_over = True
        try:
            self._commit()
        finally:
            self._nursery.close()

    def _commit(self) -> None:
        reads = tuple(self._reads.values())
        if not self._steps:
            check_reads(reads)
            return
        self._float_lone_append()
        create = None if self._nursery.is_empty else self._nursery.commit
        whole = StepCommit(self._steps, reads, create)
        self.replies = whole.run()
        self._times = whole.times
        for step, reply in zip(self._steps, self.replies, strict=True):
            if isinstance(step, AppendStep) and step.floats:
                self._times[step.access.entry.timeline] = reply.time

    def _float_lone_append(self) -> None:
        """Let the commit choose the time of an append, if no other step moves an upper or relies on one."""
        appends = [step for step in self._steps if isinstance(step, AppendStep)]
        others = [step for step in self._steps if not isinstance(step, AppendStep)]
        if len(appends) == 1 and not self._reads and all(isinstance(step, CommandStep) for step in others):
            appends[0].floats = all(isinstance(step, CommandStep) and step.sealed is None for step in others)

    def give_up(self) -> None:
        """Nothing of it happens."""
        if not self._is_over:
            self._is_over = True
            self._nursery.close()

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None and not self._is_over:
            self.commit()
        self.give_up()

    # Inside.

    def _access(self, collection: str | Collection) -> Access:
        return self._accesses([collection])[0]

    def _accesses(self, collections: Sequence[str | Collection]) -> list[Access]:
        """Collections, by name or as they are; names are looked up together."""
        self._check_open()
        for each in collections:
            if not isinstance(each, str | Collection):
                raise UsageError(f"a transaction is about collections, by name or as they are, not {shown(each)}")
            if isinstance(each, Collection) and each._access.committer is not self._committer:
                raise UsageError(f"{each.name} was opened by another store: open it by the one of the transaction")
        given = [self._nursery.get(each) or each if isinstance(each, str) else each for each in collections]
        names = [each for each in given if isinstance(each, str)]
        found = iter(self._find(names) if names else ())
        return [each._access if isinstance(each, Collection) else next(found)._access for each in given]

    def _check_open(self) -> None:
        if self._is_over:
            raise UsageError("this transaction is over: begin another one")

    def _tell_seal(self, access: Access, upper: Frontier) -> None:
        self.add(CommandStep(access, lambda: [Seal(upper)], sealed=upper))


def copy_rows(rows: Any) -> Any:
    """Rows as they are now: whoever gave a list may use it for others before the transaction ends."""
    return list(rows) if isinstance(rows, list) else materialize_once(rows)


def as_list(collections: Any) -> list[str | Collection]:
    """One collection, or a list of them, as a list."""
    if isinstance(collections, str | Collection):
        return [collections]
    if not isinstance(collections, Sequence):
        raise UsageError(f"name one collection, or a list of them, not {shown(collections)}")
    return list(collections)
