"""Steps whose runs were durable before the transaction: built by a bulk load, a batch writer, or tasks of Spark.

Their blobs belong to the builder, which deletes them if the transaction is refused. A step itself deletes only what
it has put: the blobs of inline parts that the state had no room for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from timespine.client.context import Access
from timespine.client.results import CommitResult
from timespine.client.write.prepare import PreparedRows
from timespine.client.write.stage import Runs, count_appended, delete_flushed, flush_inline, unplaced_description
from timespine.client.write.transaction_steps import AppendStep, Step, append_at
from timespine.columnar.parts.hollow_run import rows_in
from timespine.core.batch import HollowBatch
from timespine.core.transitions import Appended, Command
from timespine.model.frontier import Frontier
from timespine.model.time import Time

Batches = tuple[HollowBatch, ...]


@dataclass(slots=True)
class PrebuiltAppendStep(AppendStep):
    """Runs whose rows all stand at one time, to be moved to that of the transaction."""

    runs: Runs = ()
    flushed: Runs = ()
    """The runs without inline parts, once the state had no room for those."""

    @property
    def earliest(self) -> int:
        # SUBTLE: rows can be moved to a later time, and never to an earlier one, wherever the clock is
        # (test_late_rows.py).
        return max(self.access.next_time(), self.written)

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return AppendStep.commands(self, self.flushed or self.runs, upper, at)

    def result(self, replies: list[Any], at: int | None, seqno: int) -> CommitResult:
        count_appended(self.access, self.flushed or self.runs, self.rows)
        return AppendStep.result(self, replies, at, seqno)

    def flush(self) -> None:
        self.flushed = flush_runs(self.access, self.runs)

    def unstage(self) -> None:
        discard_flushed(self.access, self.runs, self.flushed)
        self.flushed = ()


@dataclass(slots=True)
class PrebuiltAppendAtStep(Step):
    """Runs whose rows stand at fixed times."""

    runs: Runs
    rows: int
    lower: Frontier
    """No row is before this."""
    upper: Frontier
    """How far the step completes the collection: past all rows."""
    expected: Frontier | None
    """The upper that the caller expects; None: whatever it is."""
    operation: str
    time: int | Time | None
    """The time of all rows, for the answer; None if they have several."""
    flushed: Runs = ()
    """The runs without inline parts, once the state had no room for those."""

    @property
    def is_conditional(self) -> bool:
        return self.expected is not None

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper.join(self.upper)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        expected = upper if self.expected is None else self.expected
        runs = self.flushed or self.runs
        return [append_at(self.access, runs, self.rows, self.lower, expected, self.upper, self.operation)]

    def result(self, replies: list[Any], at: int | None, seqno: int) -> CommitResult:
        count_appended(self.access, self.flushed or self.runs, self.rows)
        return CommitResult(self.time, replies[-1], self.rows, seqno)

    def flush(self) -> None:
        self.flushed = flush_runs(self.access, self.runs)

    def unstage(self) -> None:
        discard_flushed(self.access, self.runs, self.flushed)
        self.flushed = ()


@dataclass(slots=True)
class PrebuiltBatchStep(Step):
    """Whole batches of a batch writer, which says what command appends them. A refusal is the answer."""

    batches: Batches
    command: Callable[[Batches], Command]
    flushes_first: bool = False
    """Whether inline parts are put as blobs before the first try: the command has no limit for them."""
    flushed: Batches = field(default=())

    @property
    def is_conditional(self) -> bool:
        return True

    @property
    def offered(self) -> Batches:
        """The batches as they are offered: flushed, if they were."""
        return self.flushed or self.batches

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        if self.flushes_first and not self.flushed:
            self.flush()
        return [self.command(self.offered)]

    def flush(self) -> None:
        self.flushed = _flush(self.access, self.batches)

    def unstage(self) -> None:
        delete_flushed(self.access, self.batches, self.flushed)
        self.flushed = ()

    def result(self, replies: list[Any], at: int | None, seqno: int) -> Any:
        reply = replies[-1]
        if isinstance(reply, Appended) and not reply.taken:
            self.unstage()
            return reply
        for batch in self.offered:
            count_appended(self.access, batch.runs, batch.len)
        return reply


def flush_runs(access: Access, runs: Runs) -> Runs:
    """Put the inline parts of runs as blobs, because the state has no room for them."""
    return _flush(access, (_unplaced(runs, rows_in(runs)),))[0].runs if runs else ()


def discard_flushed(access: Access, runs: Runs, flushed: Runs) -> None:
    """Delete what was put to flush runs: their commit was refused."""
    if flushed:
        delete_flushed(access, (_unplaced(runs, 0),), (_unplaced(flushed, 0),))


def _flush(access: Access, batches: Batches) -> Batches:
    """Put the inline parts of batches as blobs, of all or of none."""
    writer = access.committer.writer(access.id)
    flushed: list[HollowBatch] = []
    try:
        for batch in batches:
            flushed.append(flush_inline(access, batch, writer))
    except BaseException:
        delete_flushed(access, batches, tuple(flushed))
        raise
    return tuple(flushed)


def _unplaced(runs: Runs, rows: int) -> HollowBatch:
    return HollowBatch(unplaced_description(1), rows, runs)
