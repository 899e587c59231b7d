"""What a transaction is made of: each step knows its rows, its commands, and where it leaves the upper.

A step is begun with the time of the transaction and the upper that the steps before it
leave, which makes its rows; it is placed with them, which makes its commands. It may be
placed again at a later time without being begun again: rows are rewritten then, which
is metadata only. What depends on rows that were read follows what others committed
since (`client.basis`); only if that cannot be told, all is begun again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from timespine.client.access import Access
from timespine.client.basis import Compute, Pending, Worked, moved, present
from timespine.client.given import names_of
from timespine.client.inspecting import plain
from timespine.client.moments import Moment, Progress
from timespine.client.storing import Loose, Runs, count_appended
from timespine.client.unsealed import (
    NOTHING,
    REFUSE,
    Sealed,
    Written,
    ahead_of,
    count_late,
    fit,
    said,
    too_late,
    write_of,
)
from timespine.client.writing import Committed, Made, after, made_of, upper_of
from timespine.columnar.consolidate import consolidate
from timespine.core.hollow import HollowBatch
from timespine.core.transitions import Command, CompareAndAppend, Expired
from timespine.errors import UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier


@dataclass(slots=True)
class Step:
    """Something that a transaction does to one collection."""

    access: Access

    @property
    def is_free(self) -> bool:
        """Whether it stands at the time of the transaction."""
        return False

    @property
    def is_read(self) -> bool:
        """Whether it was worked out from rows that are there."""
        return False

    @property
    def earliest(self) -> int:
        """The earliest time of the transaction at which it can stand."""
        return self.access.next_time()

    @property
    def is_stale(self) -> bool:
        """Whether it was refused only because of what happened since it was begun: begun again, it may go through."""
        return False

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        """Work out its rows, to be made durable; None if there are none. Steps before it leave the upper here."""
        return None

    def reached(self, upper: Frontier, at: int | None) -> Frontier:
        """Where it leaves the upper."""
        return upper

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        """What to commit, once its rows are durable and the upper is where the steps before it leave it."""
        raise NotImplementedError

    def follow(self, at: int | None, *, exactly: bool = False, quickly: bool = False) -> None:
        """Make its rows right for the newest state that is known, if they were worked out: see `basis.Pending`."""

    def unstage(self) -> None:
        """What it was offered with was refused: it may be offered once more, or never."""

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Any:
        """What to tell the caller: the collection has it since the state of this number."""
        return replies[-1] if replies else None


@dataclass(slots=True)
class Free(Step):
    """What stands at the time of the transaction."""

    @property
    def is_free(self) -> bool:
        return True

    def reached(self, upper: Frontier, at: int | None) -> Frontier:
        return after(at) if at is not None else upper


@dataclass(slots=True)
class Relying(Free):
    """What was worked out from rows that are there, and follows what others commit to them."""

    @property
    def is_read(self) -> bool:
        return True

    @property
    def pending(self) -> Pending:
        """The difference, once it was begun."""
        raise NotImplementedError

    def follow(self, at: int | None, *, exactly: bool = False, quickly: bool = False) -> None:
        self.pending.follow(at, exactly=exactly, quickly=quickly)

    def unstage(self) -> None:
        self.pending.unstage()


@dataclass(slots=True)
class Appending(Step):
    """Rows at times of their own."""

    rows: Any
    at: Moment | None
    upper: Progress | None
    made: Made | None = None

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        access = self.access
        self.made = made = made_of(access, self.rows, access.time_of(self.at) if self.at is not None else None)
        return Loose(access, made.id, made.schema, made.table) if made.table.num_rows else None

    def reached(self, upper: Frontier, at: int | None) -> Frontier:
        made = self.made
        return upper if made is None else upper.join(upper_of(self.access, self.upper, made.latest, made.schema))

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        made = self.made
        assert made is not None  # it was begun
        if upper.is_closed:
            raise self.access.closed()
        if not upper <= made.lower:
            raise UsageError(f"rows at {plain(made.lower)} come too late: {self.access.name} is complete up to {upper}")
        return [_append(self.access, runs, made.table.num_rows, upper, self.reached(upper, at))]

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Committed:
        assert self.made is not None
        return Committed(self.made.time, replies[-1], self.made.table.num_rows, seqno)


@dataclass(slots=True)
class AppendingFree(Free):
    """Rows without times: all of them at the time of the transaction."""

    given: list[Any] = field(default_factory=list)
    written: int = 0
    """The time that they were written with."""
    rows: int = 0

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        assert at is not None
        all_made = [made_of(self.access, rows, (at,)) for rows in self.given]
        id, schema, *_ = all_made[-1]
        table = all_made[0].table
        if len(all_made) > 1:
            if any(made.id != id for made in all_made):
                return self.begin(upper, at, stack)  # the schema was changed in between
            whole = pa.concat_tables(made.table for made in all_made)
            table = consolidate(whole, (*schema.order_names, *schema.time_names))
        self.written, self.rows = at, table.num_rows
        return Loose(self.access, id, schema, table) if table.num_rows else None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert at is not None
        return [_append(self.access, moved(runs, self.written, at), self.rows, upper, after(at))]

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Committed:
        return Committed(at, replies[-1], self.rows, seqno)


@dataclass(slots=True)
class Built(AppendingFree):
    """Runs that are durable already, all at one time, to stand at that of the transaction."""

    runs: Runs = ()

    @property
    def earliest(self) -> int:
        # SUBTLE: rows can be moved to a later time, and never to one before, wherever the clock is by now
        # (test_late_data.py).
        return max(self.access.next_time(), self.written)

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return AppendingFree.commands(self, self.runs, upper, at)

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Committed:
        count_appended(self.access, self.runs, self.rows)
        return AppendingFree.reply(self, replies, at, seqno)


@dataclass(slots=True)
class Changing(Relying):
    """A difference to the rows that are there, at the time of the transaction."""

    compute: Compute
    operation: str
    worked: Worked | None = None

    @property
    def pending(self) -> Worked:
        assert self.worked is not None  # it was begun
        return self.worked

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        now = stack.enter_context(present(self.access, at))
        self.worked = worked = Worked.of(now, self.compute, self.operation)
        return Loose(self.access, now.id, now.schema, worked.table) if worked.rows else None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        # SUBTLE: also if there is no difference. That there is none was read, and must still be so when the rest is
        # committed (test_transaction.py).
        return [self.pending.command(runs)]

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Committed:
        self.pending.done()
        rows = self.pending.net
        return Committed(at if rows else None, replies[-1], rows, seqno)


def sealed_for(access: Access, placed: Frontier | None) -> Frontier:
    """How far a collection is complete for a step: as it is stored, and as the steps before it leave it."""
    stored = access.state().upper
    return stored if placed is None else stored.join(placed)


@dataclass(slots=True)
class Writing(Step):
    """Rows ahead of the seal."""

    rows: Any
    at: Moment | None
    times: str | None
    late: str
    made: Made | None = None
    too_late: int = 0
    placed: Frontier | None = None
    """Where the steps before it leave the upper, at the times where they are placed."""

    @property
    def is_stale(self) -> bool:
        # Some more may be too late by now.
        if self.late == REFUSE or self.made is None:
            return False
        return not sealed_for(self.access, self.placed) <= self.made.lower

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        given, came = ahead_of(self.access, self.rows, self.at, self.times, self.late)
        self.made, self.too_late = fit(self.access, given, came, self.late, upper)
        self.placed = None
        made = self.made
        return Loose(self.access, made.id, made.schema, made.table) if made.table.num_rows else None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.made is not None
        if not runs:
            return []
        self.placed = upper
        if not upper <= self.made.lower:
            raise too_late(self.access, self.made.lower, upper)
        return [write_of(self.access, self.made, runs)]

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Written:
        assert self.made is not None
        count_late(self.access, self.late, self.too_late)
        if not replies:
            return msgspec.structs.replace(NOTHING, late=self.too_late)
        return said(self.made, replies[-1], self.too_late, seqno)


@dataclass(slots=True)
class Telling(Step):
    """Commands that need no rows, and how far they seal the collection."""

    told: Callable[[], list[Command]]
    sealed: Frontier | None = None
    expired: Frontier | None = None
    """What was asked to expire, if it was."""

    def reached(self, upper: Frontier, at: int | None) -> Frontier:
        return upper if self.sealed is None else upper.join(self.sealed)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return self.told()

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Any:
        reply = replies[-1]
        if self.sealed is not None:
            return Sealed(Frontier(reply.elements), seqno)
        return Expired(self.expired, reply.since, reply.held_by) if self.expired is not None else reply


def is_free(access: Access, rows: Any, at: Moment | None) -> bool:
    """Whether rows say nothing about their times, and nobody else does."""
    _, schema = access.schema(access.known())
    return at is None and schema.arity == 1 and names_of(rows).isdisjoint(schema.time_names)


def _append(access: Access, runs: Runs, rows: int, upper: Frontier, new_upper: Frontier) -> CompareAndAppend:
    desc = Description(upper, new_upper, Frontier.minimum(access.known().arity))
    batches = (HollowBatch(desc, rows, runs),) if runs else ()
    return CompareAndAppend(batches, upper, new_upper, "append", access.config.inline_total_bytes)
