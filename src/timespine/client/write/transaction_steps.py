"""The steps of a transaction: each has rows, makes commands, and moves the upper.

`client.write.step_commit` prepares a step with the time of the transaction and the upper that the steps before it
leave, stages its rows, and asks it for commands. It may place a step again at a later time without preparing it again:
that rewrites metadata of runs only. A step that depends on rows it has read follows the commits of other processes
(`client.write.read_current`); if that is impossible, the whole transaction is prepared again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from timespine.client.arguments.argument_types import IfBehind
from timespine.client.arguments.time_args import FrontierLike, TimeLike
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import (
    PreparedRows,
    check_below,
    check_not_before_upper,
    late_append_error,
    next_free_time,
    prepare_rows,
    rows_beyond_error,
    upper_after,
    upper_of_append,
)
from timespine.client.write.prepare_unsealed import (
    REFUSE,
    apply_late_policy_to,
    count_late,
    late_rows_error,
    prepare_unsealed,
    write_command,
    write_result,
)
from timespine.client.write.read_current import (
    Compute,
    LocalDelta,
    PendingDelta,
    check_ordered_times,
    move_in_time,
    read_current,
)
from timespine.client.write.stage_rows import Runs, unplaced_description
from timespine.client.write_results import NOTHING, CommitResult, SealResult, WriteResult
from timespine.columnar.kernels.consolidate import consolidate
from timespine.core.batch import HollowBatch, rows_in
from timespine.core.transitions import AdvanceUpper, AppendNext, Command, CompareAndAppend, ExpireResult, Seal
from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import Time

CommandReplies: TypeAlias = list[Any]
"""The replies to the commands of a step, in order. Each command has its own type of reply."""

StepResult: TypeAlias = Any
"""The result of a step for its caller. Each class of step has its own."""


@dataclass(slots=True)
class Step:
    """The part of a transaction that concerns one collection."""

    handle: CollectionHandle

    @property
    def is_free(self) -> bool:
        """Whether its rows are at the time of the transaction."""
        return False

    @property
    def depends_on_read(self) -> bool:
        """Whether its rows were computed from rows that it has read."""
        return False

    @property
    def is_conditional(self) -> bool:
        """Whether the caller expects an upper: UpperMismatch is then final."""
        return False

    @property
    def only_expires(self) -> bool:
        """Whether it adds no row and moves no upper, so that users may do it to a view."""
        return False

    @property
    def earliest(self) -> int:
        """The earliest time of the transaction that the step allows."""
        return self.handle.next_time()

    def check_arity(self) -> None:
        """Raise a UsageError for times with several coordinates: the time of a transaction has one."""
        if self.handle.known().arity != 1:
            raise UsageError(
                f"the times of {self.handle.name} have several coordinates", hint=Hint("give-time-of-rows")
            )

    @property
    def is_stale(self) -> bool:
        """Whether LateRows follows only from commits since `prepare`: prepared again, the step may succeed."""
        return False

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        """Prepare its rows for staging; None if there are none. `upper` is that after the steps before it."""
        return None

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        """Return the upper after this step, from the upper before it."""
        return upper

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        """Make its commands from its staged rows. `upper` is that after the steps before it."""
        raise NotImplementedError

    def follow(self, at: int | None, *, exactly: bool = False, quickly: bool = False) -> None:
        """Make rows that depend on the state right for the newest known one: see `PendingDelta.follow`."""

    def flush(self) -> None:
        """Put inline parts that were built before the transaction as blobs: the state has no room for them."""

    def unstage(self) -> None:
        """Delete the blobs that the step itself has put, after a refusal: it may be offered again or never."""

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> StepResult:
        """Make the result for the caller; `seqno` is that of the state that has the step."""
        return replies[-1] if replies else None


@dataclass(slots=True)
class AtTransactionTime(Step):
    """A step whose rows are at the time of the transaction."""

    @property
    def is_free(self) -> bool:
        return True

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper_after(at) if at is not None else upper


@dataclass(slots=True)
class DependsOnRead(AtTransactionTime):
    """A step whose rows were computed from rows that it has read; it follows commits to them."""

    @property
    def depends_on_read(self) -> bool:
        return True

    @property
    def pending(self) -> PendingDelta:
        """The delta, once it is prepared."""
        raise NotImplementedError

    def check_arity(self) -> None:
        check_ordered_times(self.handle.known())

    def follow(self, at: int | None, *, exactly: bool = False, quickly: bool = False) -> None:
        self.pending.follow(at, exactly=exactly, quickly=quickly)

    def unstage(self) -> None:
        self.pending.unstage()


# Appends.


@dataclass(slots=True)
class AppendStep(AtTransactionTime):
    """Rows without times: all of them at the time of the transaction.

    A step that `floats` leaves its time to the commit (AppendNext), which takes the next free one when it judges the
    command: it never loses to another writer. It must be the only step that moves the upper of its collection, and no
    other step may need its time.
    """

    given: list[object] = field(default_factory=list)
    operation: str = "append"
    upper: Frontier | None = None
    """The upper after the step; None: just past its time."""
    floats: bool = False
    written: int = 0
    """The time that its rows were written with."""
    rows: int = 0

    @property
    def is_free(self) -> bool:
        return not self.floats

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        handle = self.handle
        if at is None:
            at = next_free_time(handle, upper)
        several = len(self.given) > 1
        all_prepared = [prepare_rows(handle, rows, (at,), sort_all=several) for rows in self.given]
        prepared = all_prepared[-1]
        if several:
            if any(each.id != prepared.id for each in all_prepared):
                return self.prepare(upper, at, stack)  # the schema changed in between
            schema = prepared.schema
            whole = pa.concat_tables(each.table for each in all_prepared)
            table = consolidate(whole, (*schema.order_names, *schema.time_names))
            prepared = msgspec.structs.replace(prepared, table=table)
        self.written, self.rows = at, prepared.table.num_rows
        if self.upper is not None:
            self._check_below(at, self.upper)
        return prepared

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        if at is None:
            return upper
        return upper_after(at) if self.upper is None else self.upper

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        handle = self.handle
        self.rows = rows_in(runs)
        if at is None:
            batch = HollowBatch(unplaced_description(1), self.rows, runs)
            limit = handle.context.config.inline_total_bytes
            return [AppendNext(batch, self.written, None, self.operation, limit)]
        if self.upper is not None:
            self._check_below(at, self.upper)
        placed = move_in_time(runs, self.written, at)
        return [append_command(handle, placed, self.rows, upper, self.next_upper(upper, at), self.operation)]

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> CommitResult:
        reply = replies[-1]
        if at is None:
            return CommitResult(reply.time, reply.upper, self.rows, seqno)
        return CommitResult(at, reply, self.rows, seqno)

    def _check_below(self, at: int, upper: Frontier) -> None:
        if self.rows and upper.less_equal((at,)):
            raise rows_beyond_error(upper)


@dataclass(slots=True)
class AppendAtStep(Step):
    """Rows at fixed times: their own, or one that the caller gave."""

    rows: object
    at: Time | None
    upper: FrontierLike | None
    expected: Frontier | None = None
    """The upper that the caller expects; None: any."""
    operation: str = "append"
    prepared: PreparedRows | None = None
    stored: int = 0
    """The number of staged updates: equal ones count once."""

    @property
    def is_conditional(self) -> bool:
        return self.expected is not None

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        self.prepared = prepared = prepare_rows(self.handle, self.rows, self.at, sort_all=False)
        check_below(prepared.table, prepared.schema, self._new_upper(prepared))
        check_not_before_upper(self.expected, prepared.lower)
        return prepared

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper if self.prepared is None else upper.join(self._new_upper(self.prepared))

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        prepared = self.prepared
        assert prepared is not None
        if self.expected is not None:
            upper = self.expected
        self.stored = rows_in(runs)
        new_upper = self._new_upper(prepared)
        return [append_at(self.handle, runs, self.stored, prepared.lower, upper, new_upper, self.operation)]

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> CommitResult:
        assert self.prepared is not None
        return CommitResult(self.prepared.time, replies[-1], self.stored, seqno)

    def _new_upper(self, prepared: PreparedRows) -> Frontier:
        return upper_of_append(self.handle, self.upper, prepared.latest, prepared.schema)


def append_at(
    handle: CollectionHandle,
    runs: Runs,
    rows: int,
    lower: Frontier,
    upper: Frontier,
    new_upper: Frontier,
    operation: str,
) -> CompareAndAppend:
    """Make the command that appends rows at times not before `lower`; raise LateRows if those are complete."""
    if upper.is_closed:
        raise handle.closed()
    if not upper <= lower:
        raise late_append_error(handle, lower, upper)
    return append_command(handle, runs, rows, upper, new_upper, operation)


def append_command(
    handle: CollectionHandle, runs: Runs, rows: int, upper: Frontier, new_upper: Frontier, operation: str
) -> CompareAndAppend:
    """Make the command that appends runs for [upper, new_upper)."""
    desc = Description(upper, new_upper, Frontier.minimum(handle.known().arity))
    batches = (HollowBatch(desc, rows, runs),) if runs else ()
    return CompareAndAppend(batches, upper, new_upper, operation, handle.config.inline_total_bytes)


# Changes.


@dataclass(slots=True)
class DeltaStep(DependsOnRead):
    """A delta to the present rows: upsert, delete, update, replace, merge."""

    compute: Compute
    operation: str
    must_hold: bool = False
    """Whether an empty delta is committed too, because other steps rely on it."""
    delta: LocalDelta | None = None

    @property
    def pending(self) -> LocalDelta:
        assert self.delta is not None  # it was prepared
        return self.delta

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        now = stack.enter_context(read_current(self.handle, at, holds_since=self.delta is not None))
        self.delta = delta = LocalDelta.of(now, self.compute, self.operation)
        if delta.rows == 0:
            return None
        return PreparedRows(self.handle, now.id, now.schema, delta.table, None, (delta.written,))

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        # SUBTLE: beside other steps an empty delta is committed too. That it is empty follows from a read, and must
        # still be true when the other steps are committed (test_transaction.py).
        return [self.pending.command(runs)] if self.must_hold or self.pending.stored_updates else []

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> CommitResult:
        pending = self.pending
        if not replies:
            return CommitResult(None, pending.now.upper, 0, pending.now.state.seqno)
        pending.done()
        rows = pending.net
        return CommitResult(at if rows else None, replies[-1], rows, seqno)


# Writes ahead of the seal, and seals.


def unsealed_seen_by(handle: CollectionHandle, placed: Frontier | None) -> Frontier:
    """Return the upper of a collection for a step: the stored one, or that after the steps before it."""
    stored = handle.state().upper
    return stored if placed is None else stored.join(placed)


@dataclass(slots=True)
class UnsealedWriteStep(Step):
    """Rows ahead of the seal."""

    rows: object
    at: TimeLike | None
    times: str | None
    late: str
    prepared: PreparedRows | None = None
    too_late: int = 0
    placed: Frontier | None = None
    """The upper after the steps before it, as they are placed."""
    _given: tuple[PreparedRows, pa.ChunkedArray] | None = None
    """The rows before the late policy, and their times: prepared once."""

    @property
    def is_stale(self) -> bool:
        # More rows may be late since `prepare`.
        if self.late == REFUSE or self.prepared is None:
            return False
        return not unsealed_seen_by(self.handle, self.placed) <= self.prepared.lower

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        handle = self.handle
        if self._given is None or self._given[0].id != handle.schema(handle.known())[0]:
            self._given = prepare_unsealed(handle, self.rows, self.at, self.times, self.late)
        given, came = self._given
        self.prepared, self.too_late = apply_late_policy_to(handle, given, came, self.late, upper)
        self.placed = None
        return self.prepared if self.prepared.table.num_rows else None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.prepared is not None
        if not runs:
            return []
        self.placed = upper
        if not upper <= self.prepared.lower:
            raise late_rows_error(self.handle, self.prepared.lower, upper)
        return [write_command(self.handle, self.prepared, runs)]

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> WriteResult:
        assert self.prepared is not None
        count_late(self.handle, self.late, self.too_late)
        if not replies:
            return msgspec.structs.replace(NOTHING, late=self.too_late)
        return write_result(self.prepared, replies[-1], self.too_late, seqno)


@dataclass(slots=True)
class CommandStep(Step):
    """Commands without rows, and the upper that they seal up to."""

    make: Callable[[], Iterable[Command]]
    sealed: Frontier | None = None
    expired: Frontier | None = None
    """The frontier that the caller wants to expire, if this is an expiry."""

    @property
    def only_expires(self) -> bool:
        return self.expired is not None

    @staticmethod
    def of(handle: CollectionHandle, *commands: Command) -> CommandStep:
        """Make a step of given commands."""
        return CommandStep(handle, lambda: commands)

    @staticmethod
    def seal(handle: CollectionHandle, upper: Frontier, if_behind: IfBehind) -> CommandStep:
        """Make a step that seals a collection, or leaves it if it is sealed further and the caller allows that."""
        if if_behind not in ("error", "ignore"):
            raise UsageError(f"if_behind is 'error' or 'ignore', not {short_repr(if_behind)}")
        command = Seal(upper) if if_behind == "error" else AdvanceUpper(upper)
        return CommandStep(handle, lambda: [command], sealed=upper)

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper if self.sealed is None else upper.join(self.sealed)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return list(self.make())

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> StepResult:
        if not replies:
            return None
        reply = replies[-1]
        if self.sealed is not None:
            return SealResult(Frontier(reply.elements), seqno)
        return ExpireResult(self.expired, reply.since, reply.held_by) if self.expired is not None else reply
