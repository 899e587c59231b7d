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

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from timespine.client import changing
from timespine.client.access import Access
from timespine.client.basis import Compute
from timespine.client.changing import PLACES_MAX, READS_MAX, contention
from timespine.client.collection import Collection, expiring
from timespine.client.committer import Committer
from timespine.client.merge_into import Merge
from timespine.client.moments import Moment, Progress
from timespine.client.nursery import Nursery
from timespine.client.one_process import OneProcess
from timespine.client.rows import Snapshot
from timespine.client.steps import Appending, AppendingFree, Changing, Step, Telling, Writing, is_free
from timespine.client.storing import Runs, stored_together, surely_not
from timespine.client.turn import LOSSES_MAX, Turn
from timespine.client.unsealed import REFUSE
from timespine.client.writing import once
from timespine.core import group
from timespine.core.transitions import AdvanceUpper, Command, Seal
from timespine.errors import SchemaChanged, TimespineError, UpperMismatch, UsageError, shown
from timespine.model.frontier import Frontier


class Transaction(OneProcess):
    """What is to happen together. Leave its `with` to commit it; raise to give it up."""

    def __init__(
        self, find: Callable[[Sequence[str]], list[Collection]], committer: Committer, nursery: Nursery
    ) -> None:
        self._find = find
        self._committer = committer
        self._nursery = nursery
        self._steps: list[Step] = []
        self._begun: list[Step] = []
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
        self.add(Telling(access, lambda: [AdvanceUpper(Frontier.minimum(access.known().arity))]))
        return collection

    def append(
        self, collection: str | Collection, rows: Any, *, at: Moment | None = None, upper: Progress | None = None
    ) -> None:
        """Add updates, as `collection.append` does; without times of their own, at that of the transaction."""
        access = self._access(collection)
        rows = kept(rows)
        if not is_free(access, rows, at):
            self.add(Appending(access, rows, at, upper))
            return
        if upper is not None:
            raise UsageError("rows that take the time of the transaction complete no other: use tx.seal for that")
        same = (step for step in self._steps if step.access.id == access.id and type(step) is AppendingFree)
        known = next(same, None)
        if isinstance(known, AppendingFree):
            known.given.append(rows)
        else:
            self.add(AppendingFree(access, [rows]))

    def upsert(self, collection: str | Collection, rows: Any) -> None:
        """Rows take the place of those with the same key, or are added."""
        self.change(collection, changing.upserting(kept(rows)), "upsert")

    def delete(self, collection: str | Collection, keys: Any = None, *, where: Any = None) -> None:
        """Rows with these keys, or for which a condition holds, go."""
        self.change(collection, changing.deleting(kept(keys), where), "delete")

    def update(self, collection: str | Collection, *, where: Any = None, set: Mapping[str, Any]) -> None:
        """Rows for which a condition holds get other values; all rows without one."""
        self.change(collection, changing.updating(where, set), "update")

    def replace(self, collection: str | Collection, rows: Any, *, where: Any = None) -> None:
        """Rows for which a condition holds (all, without one) go, and these come instead."""
        self.change(collection, changing.replacing(where, kept(rows)), "replace")

    def merge(self, collection: str | Collection, source: Any) -> Merge[None]:
        """Begin a merge with matched and not matched clauses; `.execute()` makes it part of the transaction."""
        return Merge(partial(self.change, collection), kept(source))

    def write(
        self,
        collection: str | Collection,
        rows: Any,
        *,
        at: Moment | None = None,
        times: str | None = None,
        late: str = REFUSE,
    ) -> None:
        """Make updates durable ahead of the seal, as `collection.write` does."""
        self.add(Writing(self._access(collection), kept(rows), at, times, late))

    def seal(self, collections: str | Collection | Sequence[str | Collection], upper: Progress) -> None:
        """Say of some collections that nothing more comes before a time."""
        for access in self._accesses(listed(collections)):
            self._tell_seal(access, access.frontier_of(upper))

    def expire(self, collection: str | Collection, before: Progress, *, ahead: bool = False) -> None:
        """Let history before a time go, as `collection.expire` does."""
        access = self._access(collection)
        asked = access.frontier_of(before)
        self.add(Telling(access, lambda: expiring(access, before, ahead=ahead), expired=asked))

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
        self.add(Changing(access, compute, operation))

    def also(self, collection: str | Collection, command: Command) -> None:
        """A command of the core that is committed with the rest."""
        self.add(Telling(self._access(collection), lambda: [command]))

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
        if not self._steps:
            self._check_reads()
            return
        self._times = _start(self._steps)
        changed = [step.access for step in self._steps if step.is_read]
        with contextlib.ExitStack() as stack:
            for access in sorted(changed, key=lambda access: access.id):  # in one order: nobody waits in a circle
                stack.enter_context(access.changing.held_by(sys._getframe()))
            attempts = READS_MAX if changed else self._committer.config.commit_attempts
            for _ in range(attempts):
                try:
                    self.replies = self._once()
                    return
                except UpperMismatch:
                    self._check_reads()
                except SchemaChanged as changed:
                    # Rows that were worked out from those that are there are worked out again.
                    if not any(step.is_read and step.access.id == changed.collection for step in self._begun):
                        raise
                except UsageError:
                    if not any(step.is_stale for step in self._begun):
                        raise
                self._committer.session.count("transactions started again")
        raise contention(self._names, attempts)

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
        self.add(Telling(access, lambda: [Seal(upper)], sealed=upper))

    def _check_reads(self) -> None:
        """UpperMismatch if something that the caller relies on has moved."""
        for access, expected in self._reads.values():
            reached = access.state().upper
            if reached != expected:
                raise UpperMismatch(expected, reached)

    def _once(self) -> list[Any]:
        """Work out all rows, make them durable, and commit; the replies."""
        self._check_reads()
        steps = self._steps
        with contextlib.ExitStack() as stack:
            self._times = _placed(steps, self._times)
            begun = []
            self._begun = []
            uppers = _uppers(steps)
            for step in steps:
                at, upper = _time_of(step, self._times), uppers[step.access.id]
                begun.append(step.begin(upper, at, stack))
                self._begun.append(step)
                uppers[step.access.id] = step.reached(upper, at)
            loose = [each for each in begun if each is not None]

            def commit(stored: list[Runs]) -> list[Any]:
                left = iter(stored)
                return self._placed_and_committed([next(left) if each is not None else () for each in begun])

            return stored_together(loose, commit)

    def _placed_and_committed(self, runs: list[Runs]) -> list[Any]:
        """Commit what is durable. Losing to others only means another place, and a look at what they committed."""
        turn = Turn(self._committer, [step.access.id for step in self._steps])
        try:
            for losses in range(PLACES_MAX):
                for step in self._steps:  # beside the others, what may be much; in its turn, what came since
                    step.follow(_time_of(step, self._times))
                try:
                    return self._committed(runs, losses, turn)
                except UpperMismatch:
                    self._check_reads()
                    self._committer.session.count("transactions placed again")
            raise contention(self._names, PLACES_MAX)
        except TimespineError as error:
            if surely_not(error):
                for step in self._steps:
                    step.unstage()
            raise

    @property
    def _names(self) -> str:
        return ", ".join(sorted({step.access.name for step in self._steps}))

    def _follow(self, *, quickly: bool) -> None:
        """Choose times that are free, and make what was worked out right for them and for what is known."""
        self._times = _placed(self._steps, self._times)
        for step in self._steps:
            step.follow(_time_of(step, self._times), exactly=True, quickly=quickly)

    def _committed(self, runs: list[Runs], losses: int, turn: Turn) -> list[Any]:
        """Commit it as it is placed; after the first loss, without any other thread of the process in between."""
        told: list[list[Command]] = []

        def placed() -> group.Transaction:
            self._follow(quickly=losses < LOSSES_MAX)
            told[:] = self._commands(runs)
            return self._transaction(told)

        # SUBTLE: before the commit. What is committed must not fail because the store is closed right after it
        # (test_close.py).
        known = {step.access.id: step.access.known().seqno for step in self._steps}
        if losses == 0 and self._nursery.is_empty:
            self._follow(quickly=True)
            told = self._commands(runs)
            whole = self._transaction(told)
            answers = self._committer.commit(*whole.commands, reads=whole.reads)
        else:
            answers = turn.commit(losses, self._nursery.commit, placed)
        left, seqnos = iter(answers), known | dict(answers.seqnos)
        replies = [[next(left) for _ in each] for each in told]
        return [
            step.reply(reply, _time_of(step, self._times), seqnos[step.access.id])
            for step, reply in zip(self._steps, replies, strict=True)
        ]

    def _commands(self, runs: list[Runs]) -> list[list[Command]]:
        """What each step does, where the steps before it leave the upper."""
        uppers = _uppers(self._steps)
        commands: list[list[Command]] = []
        for step, made in zip(self._steps, runs, strict=True):
            at = _time_of(step, self._times)
            upper = uppers[step.access.id]
            if at is not None and not upper.less_equal((at,)):
                # SUBTLE: another thread of this process has committed since the times were chosen: they are chosen
                # again, and nothing is wrong with the rows (test_transaction.py).
                raise UpperMismatch(Frontier.at(at), upper)
            commands.append(step.commands(made, upper, at))
            uppers[step.access.id] = step.reached(upper, at)
        return commands

    def _transaction(self, commands: list[list[Command]]) -> group.Transaction:
        reads = tuple((access.id, expected) for access, expected in self._reads.values())
        pairs = [(step.access.id, each) for step, told in zip(self._steps, commands, strict=True) for each in told]
        return group.Transaction(tuple(pairs), reads)


def kept(rows: Any) -> Any:
    """Rows as they are now: whoever gave a list may use it for others before the transaction ends."""
    return list(rows) if isinstance(rows, list) else once(rows)


def listed(collections: Any) -> list[str | Collection]:
    """One collection, or a list of them, as a list."""
    if isinstance(collections, str | Collection):
        return [collections]
    if not isinstance(collections, Sequence):
        raise UsageError(f"name one collection, or a list of them, not {shown(collections)}")
    return list(collections)


def _uppers(steps: list[Step]) -> dict[str, Frontier]:
    """The uppers of all collections, as far as they are known."""
    uppers = {step.access.id: step.access.known().upper for step in steps}
    for step in steps:
        if step.is_free and uppers[step.access.id].is_closed:
            raise step.access.closed()
    return uppers


def _start(steps: list[Step]) -> dict[str, int]:
    """The earliest time of each time line that a transaction may stand at."""
    times: dict[str, int] = {}
    for step in steps:
        if step.is_free:
            line = step.access.entry.timeline
            times[line] = max(times.get(line, 0), step.earliest)
    return times


def _placed(steps: list[Step], times: dict[str, int]) -> dict[str, int]:
    """The times of the transaction, moved until they are free in every collection where something stands at them."""
    times = dict(times)
    while True:
        before = dict(times)
        uppers = _uppers(steps)
        for step in steps:
            line, id = step.access.entry.timeline, step.access.id
            if step.is_free:
                upper = uppers[id]
                if upper.is_closed:
                    raise step.access.closed()
                times[line] = max(times[line], upper.time)
            uppers[id] = step.reached(uppers[id], _time_of(step, times))
        if times == before:
            return times


def _time_of(step: Step, times: dict[str, int]) -> int | None:
    return times[step.access.entry.timeline] if step.is_free else None
