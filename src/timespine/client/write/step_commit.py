"""Commit steps: the way in which a thread makes its rows part of collections.

    prepare     rows become updates of the schema            Step.prepare
    stage       the updates become durable                   stage_rows.StagedTogether
    place       each step gets a free time, and commands     Step.commands
    commit      one compare-and-set over all collections     Committer

If a commit is refused, it goes back as far as the reason demands, and no further: other processes were first (place
again), the state has no room for inline rows, the writer had expired or the schema changed (stage again), rows that
the change depends on can no longer be followed (prepare again). `client.commit.retry_limits` has the limits.

Small appends that wait in one queue go through the same stations in `group_small_appends`: their leading thread offers
them beside the transactions that wait, and so it never waits for a reply or a turn itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

from timespine.client.commit.cross_process_turn import Patience, TurnCommit
from timespine.client.commit.retry_limits import RETRY, contention, reread_contention
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import PreparedRows
from timespine.client.write.stage_rows import Runs, StagedTogether, did_not_commit, prepare_again
from timespine.client.write.transaction_steps import CommandReplies, Step, StepResult
from timespine.core import group
from timespine.core.group import Answers
from timespine.core.transitions import Command
from timespine.errors import Fenced, InlineBudgetExceeded, LateRows, SchemaChanged, TimespineError, UpperMismatch
from timespine.model.frontier import CLOSED, Frontier

Reads = Sequence[tuple[CollectionHandle, Frontier]]
"""Collections whose upper the caller relies on."""

Committed = tuple[CommandReplies, int | None, int]
"""Of one step: the replies to its commands, the time of the transaction, and the sequence number of its state."""

CommitPlaced = Callable[[Callable[[], group.CommandTransaction], Patience], Answers]
"""A function that commits a transaction made by another function under the commit lock."""


def commit_steps(*steps: Step, starts: int | None = None) -> list[StepResult]:
    """Commit steps as one transaction; return the result of each."""
    return StepCommit(steps, starts=starts).run()


class StepCommit:
    """One commit of some steps, all or nothing."""

    def __init__(
        self,
        steps: Sequence[Step],
        reads: Reads = (),
        create: CommitPlaced | None = None,
        starts: int | None = None,
        *,
        refreshes: bool = False,
    ) -> None:
        self.steps = steps
        self._refreshes = refreshes
        """Whether this is a refresh of views, which may write to owned collections."""
        self.times: dict[str, int] = {}
        """The time of the transaction on each time line that has a step at it."""
        self._at: list[int | None] = [None] * len(steps)
        """The time of each step; None for steps that are not at the time of the transaction."""
        self._reads = reads
        self._create = create
        """The function that commits together with the names of new collections; None if there are none."""
        self._starts = starts
        """Most times that the steps are prepared; None: the limit of the policy."""
        self._committer = steps[0].handle.committer
        self._patience = self._committer.patience()
        """The bound on waits for turns of other processes, over all offers."""
        self._is_conditional = any(step.is_conditional for step in steps)
        self._seqnos: dict[str, int] = {}
        """The sequence numbers of the states that the steps were placed on."""
        self._times_of: dict[str, int] | None = None
        """The sequence numbers of the states that the times were chosen for; None: they were not chosen yet."""
        self._free_from: dict[str, Frontier] = {}
        """The uppers of those states."""
        self._turn: TurnCommit | None = None
        """The turn of the change after losses; None if it has not lost."""
        self._prepared: list[Step] = []
        """The steps prepared in this try."""

    def run(self) -> list[StepResult]:
        """Commit; return the result of each step."""
        # SUBTLE: results are made after all retries and deletions. An error in a result must not look like a refusal
        # of a committed transaction (test_transaction_model.py).
        committed = self._commit()
        return [step.result(*each) for step, each in zip(self.steps, committed, strict=True)]

    def _commit(self) -> list[Committed]:
        self._committer.check_writable()
        steps = self.steps
        for step in steps:
            if not self._refreshes and not step.only_expires:
                step.handle.check_unowned()
        self.times = _earliest_times(steps)
        changed = {step.handle.id: step.handle for step in steps if step.depends_on_read}
        if not changed:
            return self._start(self._starts or self._committer.config.commit_attempts)
        with contextlib.ExitStack() as stack:
            for _, handle in sorted(changed.items()):  # in one order, so that no two transactions wait in a circle
                stack.enter_context(handle.changing.held_by(sys._getframe()))
            return self._start(self._starts or RETRY.reads)

    def _start(self, attempts: int) -> list[Committed]:
        """Prepare and commit, again if a read or a chosen time is no longer right."""
        for _ in range(attempts):
            try:
                return self._try()
            except UpperMismatch:
                if self._is_conditional:
                    raise
                check_reads(self._reads)
            except SchemaChanged as changed:
                # A delta is computed again; other rows would lose values.
                if not any(step.depends_on_read and step.handle.id == changed.collection for step in self._prepared):
                    raise
            except LateRows:
                if not any(step.is_stale for step in self._prepared):
                    raise
            self._count("started again")
        raise (reread_contention if self._is_change else contention)(self._names, attempts)

    def _try(self) -> list[Committed]:
        """Prepare all rows, stage them, and commit."""
        if self._reads:
            check_reads(self._reads)
        with contextlib.ExitStack() as stack:
            return self._stage_and_commit(self._prepare(stack))

    def _prepare(self, stack: contextlib.ExitStack) -> list[PreparedRows | None]:
        """Prepare the rows of each step, after the upper of the steps before it."""
        if self.times:
            self._place()
        self._prepared = []
        uppers = self._uppers()
        prepared: list[PreparedRows | None] = []
        for step, at in zip(self.steps, self._at, strict=True):
            id = step.handle.id
            prepared.append(step.prepare(uppers[id], at, stack))
            self._prepared.append(step)
            if step is not self.steps[-1]:
                uppers[id] = step.next_upper(uppers[id], at)
        return prepared

    def _stage_and_commit(self, prepared: list[PreparedRows | None]) -> list[Committed]:
        """Stage rows and commit, again if the rows must be put in another way."""
        inline = True
        for _ in range(RETRY.stagings):
            try:
                return self._commit_staged(prepared, inline=inline)
            except InlineBudgetExceeded:
                inline = False
                for step in self.steps:
                    step.flush()
            except Fenced as fenced:
                # The lease of the writer expired, and the sweep may delete its blobs: put them under a new writer.
                if fenced.in_doubt:
                    raise
            except SchemaChanged as changed:
                id = changed.collection
                if not any(each is not None and each.handle.id == id for each in prepared):
                    raise
                prepared = [
                    prepare_again(each, changed) if each is not None and each.handle.id == id else each
                    for each in prepared
                ]
        for step in self.steps:
            step.flush()
        return self._commit_staged(prepared, inline=False)

    def _commit_staged(self, prepared: list[PreparedRows | None], *, inline: bool) -> list[Committed]:
        """Stage rows and commit them; delete their blobs if the commit is refused."""
        with StagedTogether(len(prepared)) as staged:
            for rows in prepared:
                staged.add(rows, inline=inline)
            committed = self._place_and_commit(staged.runs)
        staged.count_rows()
        return committed

    def _place_and_commit(self, runs: list[Runs]) -> list[Committed]:
        """Commit staged rows. After a loss to another process, judge its commit and place the rows again."""
        try:
            for losses in range(RETRY.placements):
                # Follow the commits so far before the commit lock, as they may be many; follow the rest under it.
                if self.times and self._takes_turn(losses):
                    self._follow(exactly=False)
                try:
                    return self._commit_placed(runs, losses)
                except UpperMismatch:
                    if self._is_conditional:
                        raise
                    check_reads(self._reads)
                    self._count("placed again")
            raise contention(self._names, RETRY.placements)
        except TimespineError as error:
            if did_not_commit(error):
                for step in self.steps:
                    step.unstage()
            raise

    def _commit_placed(self, runs: list[Runs], losses: int) -> list[Committed]:
        """Commit at free times: after the first loss, under the commit lock.

        After a few losses it claims a turn, for which the other processes wait.
        """
        commands: list[list[Command]] = []

        def place(*, quickly: bool = losses < RETRY.quick_losses) -> group.CommandTransaction:
            if self.times:
                self._follow(quickly=quickly)
            commands[:] = self._commands(runs)
            return self._transaction(commands)

        if not self._takes_turn(losses):
            whole = place(quickly=False)
            if whole.commands:
                answers = self._committer.commit(*whole.commands, reads=whole.reads, patience=self._patience)
            else:
                answers = Answers((), ())
        else:
            commit_placed = self._create or self._committer.commit_placed
            if self._turn is None:
                self._turn = TurnCommit(self._committer, [step.handle.id for step in self.steps])
            answers = self._turn.commit(losses, lambda place: commit_placed(place, self._patience), place)
        left, seqnos = iter(answers), self._seqnos | dict(answers.seqnos)
        return [
            ([next(left) for _ in told], at, seqnos[step.handle.id])
            for step, told, at in zip(self.steps, commands, self._at, strict=True)
        ]

    def _takes_turn(self, losses: int) -> bool:
        """Return whether to hold the commit lock from placing to committing."""
        return losses > 0 or self._create is not None

    def _commands(self, runs: list[Runs]) -> list[list[Command]]:
        """Make the commands of each step, after the upper of the steps before it."""
        uppers = self._uppers()
        commands: list[list[Command]] = []
        for step, staged, at in zip(self.steps, runs, self._at, strict=True):
            id = step.handle.id
            upper = uppers[id]
            if at is not None and upper != self._free_from.get(id) and not upper.less_equal((at,)):
                # SUBTLE: another thread of this process has committed since the times were chosen. They are chosen
                # again, and nothing is wrong with the rows (test_transaction.py).
                raise UpperMismatch(Frontier.at(at), upper)
            commands.append(step.commands(staged, upper, at))
            if step is not self.steps[-1]:
                uppers[id] = step.next_upper(upper, at)
        return commands

    def _transaction(self, commands: list[list[Command]]) -> group.CommandTransaction:
        reads = tuple((handle.id, expected) for handle, expected in self._reads)
        pairs = [(step.handle.id, each) for step, told in zip(self.steps, commands, strict=True) for each in told]
        return group.CommandTransaction(tuple(pairs), reads)

    # Times.

    def _follow(self, *, exactly: bool = True, quickly: bool = False) -> None:
        """Choose free times, and make deltas right for them and for the known states."""
        self._place()
        for step, at in zip(self.steps, self._at, strict=True):
            step.follow(at, exactly=exactly, quickly=quickly)

    def _place(self) -> None:
        """Move the times of the transaction until they are free in every collection that has a step at them.

        Times that were chosen for the known states stay: staging rows takes long, and mostly nothing comes in between.
        """
        known = {step.handle.id: step.handle.known().seqno for step in self.steps}
        if known == self._times_of:
            return
        times = self.times
        while True:
            before = dict(times)
            uppers = self._uppers()
            free_from = dict(uppers)
            for step in self.steps:
                line, id, is_free = step.handle.entry.timeline, step.handle.id, step.is_free
                if is_free:
                    upper = uppers[id]
                    if upper == CLOSED:
                        raise step.handle.closed()
                    times[line] = max(times[line], upper.time)
                if step is not self.steps[-1]:
                    uppers[id] = step.next_upper(uppers[id], times[line] if is_free else None)
            if times == before or len(self.steps) == 1:  # one step moves no time of another
                break
        self._at = [times[step.handle.entry.timeline] if step.is_free else None for step in self.steps]
        self._times_of, self._free_from = known, free_from

    def _uppers(self) -> dict[str, Frontier]:
        """Return the known uppers of all collections; raise ClosedError for rows of a closed one.

        SUBTLE: the sequence numbers are recorded here, before the commit. A commit must not fail because the store
        is closed right after it (test_close.py).
        """
        uppers: dict[str, Frontier] = {}
        for step in self.steps:
            id = step.handle.id
            if id not in uppers:
                known = step.handle.known()
                uppers[id], self._seqnos[id] = known.upper, known.seqno
            if self.times and uppers[id] == CLOSED and step.is_free:
                raise step.handle.closed()
        return uppers

    def _count(self, what: str) -> None:
        self._committer.session.count(f"{'changes' if self._is_change else 'commits'} {what}")

    @property
    def _is_change(self) -> bool:
        return any(step.depends_on_read for step in self.steps)

    @property
    def _names(self) -> str:
        return ", ".join(sorted({step.handle.name for step in self.steps}))


def check_reads(reads: Reads) -> None:
    """Raise UpperMismatch if the upper of a collection that the caller relies on has moved."""
    for handle, expected in reads:
        reached = handle.state().upper
        if reached != expected:
            raise UpperMismatch(expected, reached)


def _earliest_times(steps: Sequence[Step]) -> dict[str, int]:
    """Return the earliest time of the transaction on each time line."""
    times: dict[str, int] = {}
    for step in steps:
        if step.is_free:
            step.check_arity()
            line = step.handle.entry.timeline
            times[line] = max(times.get(line, 0), step.earliest)
    return times
