"""Steps whose runs were durable before the transaction: built by a bulk load, a batch writer, or tasks of Spark.

Their blobs belong to the builder, which deletes them if the transaction is refused. A step deletes only blobs
that it has put itself: those of inline parts that the state had no room for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import PreparedRows
from timespine.client.write.stage_rows import Runs, count_appended, delete_flushed, flush_inline, unplaced_description
from timespine.client.write.transaction_steps import AppendStep, CommandReplies, Step, StepResult, append_at
from timespine.client.write_results import CommitResult
from timespine.core.batch import HollowBatch, rows_in
from timespine.core.transitions import AppendResult, Command
from timespine.model.frontier import Frontier
from timespine.model.time import Time

HollowBatches = tuple[HollowBatch, ...]


class FlushesRuns:
    """The part of a step that puts inline parts as blobs if the state has no room for them, and deletes those blobs."""

    handle: CollectionHandle
    flushed: Runs
    """The runs without inline parts; none if the step did not flush them."""

    @property
    def built(self) -> Runs:
        """The runs as they were built."""
        raise NotImplementedError

    @property
    def offered(self) -> Runs:
        """The runs to offer: the flushed ones, if there are any."""
        return self.flushed or self.built

    def flush(self) -> None:
        """Put inline parts as blobs."""
        self.flushed = flush_runs(self.handle, self.built)

    def unstage(self) -> None:
        """Delete the blobs of flushed runs, after a refusal."""
        discard_flushed(self.handle, self.built, self.flushed)
        self.flushed = ()


@dataclass(slots=True)
class PrebuiltAppendStep(FlushesRuns, AppendStep):
    """Runs whose rows all have one time, to be moved to that of the transaction."""

    runs: Runs = ()
    flushed: Runs = ()

    @property
    def built(self) -> Runs:
        return self.runs

    @property
    def earliest(self) -> int:
        # SUBTLE: rows can move to a later time, and never to an earlier one, wherever the clock is
        # (test_late_rows.py).
        return max(self.handle.next_time(), self.written)

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return AppendStep.commands(self, self.offered, upper, at)

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> CommitResult:
        count_appended(self.handle, self.offered, self.rows)
        return AppendStep.result(self, replies, at, seqno)


@dataclass(slots=True)
class PrebuiltAppendAtStep(FlushesRuns, Step):
    """Runs whose rows have fixed times."""

    runs: Runs
    rows: int
    lower: Frontier
    """A frontier at or before all rows."""
    upper: Frontier
    """The upper after the step, past all rows."""
    expected: Frontier | None
    """The upper that the caller expects; None: any."""
    operation: str
    time: int | Time | None
    """The time of all rows, for the result; None if they have several."""
    flushed: Runs = ()

    @property
    def built(self) -> Runs:
        return self.runs

    @property
    def is_conditional(self) -> bool:
        return self.expected is not None

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper.join(self.upper)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        expected = upper if self.expected is None else self.expected
        return [append_at(self.handle, self.offered, self.rows, self.lower, expected, self.upper, self.operation)]

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> CommitResult:
        count_appended(self.handle, self.offered, self.rows)
        return CommitResult(self.time, replies[-1], self.rows, seqno)


@dataclass(slots=True)
class PrebuiltBatchStep(Step):
    """Whole batches of a batch writer, which makes the command. A refusal is the result."""

    batches: HollowBatches
    command: Callable[[HollowBatches], Command]
    flushes_first: bool = False
    """Whether to put inline parts as blobs before the first try: the command has no limit for them."""
    flushed: HollowBatches = field(default=())

    @property
    def is_conditional(self) -> bool:
        return True

    @property
    def offered(self) -> HollowBatches:
        """The batches to offer: the flushed ones, if there are any."""
        return self.flushed or self.batches

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        if self.flushes_first and not self.flushed:
            self.flush()
        return [self.command(self.offered)]

    def flush(self) -> None:
        self.flushed = _flush(self.handle, self.batches)

    def unstage(self) -> None:
        delete_flushed(self.handle, self.batches, self.flushed)
        self.flushed = ()

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> StepResult:
        reply = replies[-1]
        if isinstance(reply, AppendResult) and not reply.taken:
            self.unstage()
            return reply
        for batch in self.offered:
            count_appended(self.handle, batch.runs, batch.len)
        return reply


def flush_runs(handle: CollectionHandle, runs: Runs) -> Runs:
    """Put the inline parts of runs as blobs, because the state has no room for them."""
    return _flush(handle, (_unplaced(runs, rows_in(runs)),))[0].runs if runs else ()


def discard_flushed(handle: CollectionHandle, runs: Runs, flushed: Runs) -> None:
    """Delete the blobs of flushed runs, after a refusal."""
    if flushed:
        delete_flushed(handle, (_unplaced(runs, 0),), (_unplaced(flushed, 0),))


def _flush(handle: CollectionHandle, batches: HollowBatches) -> HollowBatches:
    """Put the inline parts of batches as blobs, of all or of none."""
    writer = handle.committer.writer(handle.id)
    flushed: list[HollowBatch] = []
    try:
        for batch in batches:
            flushed.append(flush_inline(handle, batch, writer))
    except BaseException:
        delete_flushed(handle, batches, tuple(flushed))
        raise
    return tuple(flushed)


def _unplaced(runs: Runs, rows: int) -> HollowBatch:
    return HollowBatch(unplaced_description(1), rows, runs)
