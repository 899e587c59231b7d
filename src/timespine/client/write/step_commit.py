"""Commit steps: the one way in which rows become part of collections.

    prepare     rows become updates of the schema            Step.prepare
    stage       the updates become durable                   stage.stage
    place       each step gets a free time, and commands     Step.commands
    commit      one compare-and-set over all collections     Committer

If a commit is refused, it goes back as far as the reason demands, and no further: other processes were first (place
again), the state has no room for inline rows, the writer was expired or the schema changed (stage again), rows that
were read are no longer known (prepare again). `client.commit.retry` has the limits.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from timespine.client.commit.retry import RETRY, contention, reread_contention
from timespine.client.commit.turn import Turn
from timespine.client.context import Access
from timespine.client.write.prepare import PreparedRows
from timespine.client.write.stage import Runs, StagedRuns, did_not_commit, prepare_again, stage
from timespine.client.write.transaction_steps import Step
from timespine.core import group
from timespine.core.group import Answers
from timespine.core.transitions import Command
from timespine.errors import Fenced, InlineBudgetExceeded, LateRows, SchemaChanged, TimespineError, UpperMismatch
from timespine.model.frontier import Frontier

Reads = Sequence[tuple[Access, Frontier]]
"""Collections whose upper the caller relies on."""

Committed = tuple[list[Any], int | None, int]
"""Of one step: the replies to its commands, the time of the transaction, and the number of the state that has it."""

CommitPlaced = Callable[[Callable[[], group.Transaction]], Answers]
"""Commits what a function makes in its turn, when no other thread of the process commits."""


def commit_steps(*steps: Step, starts: int | None = None) -> list[Any]:
    """Commit steps as one transaction; give the result of each."""
    return StepCommit(steps, starts=starts).run()


class StepCommit:
    """One commit of some steps, all or nothing."""

    def __init__(
        self, steps: Sequence[Step], reads: Reads = (), create: CommitPlaced | None = None, starts: int | None = None
    ) -> None:
        self.steps = steps
        self.times: dict[str, int] = {}
        """The time of the transaction on each time line, where a step stands at it."""
        self._at: list[int | None] = [None] * len(steps)
        """The time of each step; None if it does not stand at the time of the transaction."""
        self._reads = reads
        self._create = create
        """Commits with the names of collections that the transaction creates; None if it creates none."""
        self._starts = starts
        """How often it may be prepared; None: as the policy says."""
        self._committer = steps[0].access.committer
        self._is_conditional = any(step.is_conditional for step in steps)
        self._seqnos: dict[str, int] = {}
        """The numbers of the states that the steps were placed by."""
        self._prepared: list[Step] = []
        """The steps that were prepared in this try."""

    def run(self) -> list[Any]:
        """Commit; give the result of each step."""
        # SUBTLE: results are made outside of all that retries and deletes. An error in one of them must not pass for
        # a refusal of what is committed (test_transaction.py).
        committed = self._commit()
        return [step.result(*each) for step, each in zip(self.steps, committed, strict=True)]

    def _commit(self) -> list[Committed]:
        self._committer.check_writable()
        steps = self.steps
        self.times = _earliest_times(steps)
        changed = {step.access.id: step.access for step in steps if step.depends_on_read}
        if not changed:
            return self._start(self._starts or self._committer.config.commit_attempts)
        with contextlib.ExitStack() as stack:
            for _, access in sorted(changed.items()):  # in one order, so that no two transactions wait in a circle
                stack.enter_context(access.changing.held_by(sys._getframe()))
            return self._start(self._starts or RETRY.reads)

    def _start(self, attempts: int) -> list[Committed]:
        """Prepare and commit, again if what was read or chosen is no longer right."""
        for _ in range(attempts):
            try:
                return self._try()
            except UpperMismatch:
                if self._is_conditional:
                    raise
                check_reads(self._reads)
            except SchemaChanged as changed:
                # A delta is computed again; all other rows would lose values.
                if not any(step.depends_on_read and step.access.id == changed.collection for step in self._prepared):
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
        """Prepare the rows of each step, where the steps before it leave the upper."""
        if self.times:
            self._place()
        self._prepared = []
        uppers = self._uppers()
        prepared: list[PreparedRows | None] = []
        for step, at in zip(self.steps, self._at, strict=True):
            id = step.access.id
            prepared.append(step.prepare(uppers[id], at, stack))
            self._prepared.append(step)
            uppers[id] = step.next_upper(uppers[id], at)
        return prepared

    def _stage_and_commit(self, prepared: list[PreparedRows | None]) -> list[Committed]:
        """Stage rows and commit, again if they have to be put in another way."""
        inline = True
        for _ in range(RETRY.stagings):
            try:
                return self._commit_staged(prepared, inline=inline)
            except InlineBudgetExceeded:
                inline = False
                for step in self.steps:
                    step.flush()
            except Fenced as fenced:
                # This process slept past its lease, and its blobs may be swept: put them again under a new writer.
                if fenced.in_doubt:
                    raise
            except SchemaChanged as changed:
                id = changed.collection
                if not any(each is not None and each.access.id == id for each in prepared):
                    raise
                prepared = [
                    prepare_again(each, changed) if each is not None and each.access.id == id else each
                    for each in prepared
                ]
        for step in self.steps:
            step.flush()
        return self._commit_staged(prepared, inline=False)

    def _commit_staged(self, prepared: list[PreparedRows | None], *, inline: bool) -> list[Committed]:
        """Stage rows and commit them; delete what was put if the commit is refused."""
        staged: list[StagedRuns] = []
        try:
            for rows in prepared:
                staged.append(stage(rows, inline=inline))
            committed = self._place_and_commit([each.runs for each in staged])
        except TimespineError as error:
            if did_not_commit(error) or len(staged) < len(prepared):
                for each in staged:
                    each.discard()
            raise
        for each in staged:
            each.count_rows()
        return committed

    def _place_and_commit(self, runs: list[Runs]) -> list[Committed]:
        """Commit staged rows. A loss to another process only means another place, and a look at what it committed."""
        turn = Turn(self._committer, [step.access.id for step in self.steps])
        try:
            for losses in range(RETRY.placements):
                # What was committed so far is followed before the turn, as it may be much; the rest in the turn.
                if self.times and self._takes_turn(losses):
                    self._follow(exactly=False)
                try:
                    return self._commit_placed(runs, losses, turn)
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

    def _commit_placed(self, runs: list[Runs], losses: int, turn: Turn) -> list[Committed]:
        """Commit at free times: after the first loss, while no other thread of the process commits.

        After a few losses it claims a turn, for which the other processes wait.
        """
        commands: list[list[Command]] = []

        def place(*, quickly: bool = losses < RETRY.quick_losses) -> group.Transaction:
            if self.times:
                self._follow(quickly=quickly)
            commands[:] = self._commands(runs)
            return self._transaction(commands)

        if not self._takes_turn(losses):
            whole = place(quickly=False)
            answers = self._committer.commit(*whole.commands, reads=whole.reads) if whole.commands else Answers((), ())
        else:
            answers = turn.commit(losses, self._create or self._committer.commit_placed, place)
        left, seqnos = iter(answers), self._seqnos | dict(answers.seqnos)
        return [
            ([next(left) for _ in told], at, seqnos[step.access.id])
            for step, told, at in zip(self.steps, commands, self._at, strict=True)
        ]

    def _takes_turn(self, losses: int) -> bool:
        """Say whether no other thread of the process may commit between placing and committing."""
        return losses > 0 or self._create is not None

    def _commands(self, runs: list[Runs]) -> list[list[Command]]:
        """Make the commands of each step, where the steps before it leave the upper."""
        uppers = self._uppers()
        commands: list[list[Command]] = []
        for step, staged, at in zip(self.steps, runs, self._at, strict=True):
            id = step.access.id
            upper = uppers[id]
            if at is not None and not upper.less_equal((at,)):
                # SUBTLE: another thread of this process has committed since the times were chosen. They are chosen
                # again, and nothing is wrong with the rows (test_transaction.py).
                raise UpperMismatch(Frontier.at(at), upper)
            commands.append(step.commands(staged, upper, at))
            uppers[id] = step.next_upper(upper, at)
        return commands

    def _transaction(self, commands: list[list[Command]]) -> group.Transaction:
        reads = tuple((access.id, expected) for access, expected in self._reads)
        pairs = [(step.access.id, each) for step, told in zip(self.steps, commands, strict=True) for each in told]
        return group.Transaction(tuple(pairs), reads)

    # Times.

    def _follow(self, *, exactly: bool = True, quickly: bool = False) -> None:
        """Choose times that are free, and make deltas right for them and for the known states."""
        self._place()
        for step, at in zip(self.steps, self._at, strict=True):
            step.follow(at, exactly=exactly, quickly=quickly)

    def _place(self) -> None:
        """Move the times of the transaction until they are free in every collection where a step stands at them."""
        times = self.times
        while True:
            before = dict(times)
            uppers = self._uppers()
            for step in self.steps:
                line, id = step.access.entry.timeline, step.access.id
                if step.is_free:
                    upper = uppers[id]
                    if upper.is_closed:
                        raise step.access.closed()
                    # Collections whose times have several coordinates are refused when the step is prepared.
                    times[line] = max(times[line], upper.elements[0][0])
                uppers[id] = step.next_upper(uppers[id], times[line] if step.is_free else None)
            if times == before:
                break
        self._at = [times[step.access.entry.timeline] if step.is_free else None for step in self.steps]

    def _uppers(self) -> dict[str, Frontier]:
        """Give the known uppers of all collections; closed collections refuse rows at the time of the transaction.

        SUBTLE: the numbers of the states are noted here, before the commit. A commit must not fail because the store
        is closed right after it (test_close.py).
        """
        uppers: dict[str, Frontier] = {}
        for step in self.steps:
            id = step.access.id
            if id not in uppers:
                known = step.access.known()
                uppers[id], self._seqnos[id] = known.upper, known.seqno
            if self.times and step.is_free and uppers[id].is_closed:
                raise step.access.closed()
        return uppers

    def _count(self, what: str) -> None:
        self._committer.session.count(f"{'changes' if self._is_change else 'commits'} {what}")

    @property
    def _is_change(self) -> bool:
        return any(step.depends_on_read for step in self.steps)

    @property
    def _names(self) -> str:
        return ", ".join(sorted({step.access.name for step in self.steps}))


def check_reads(reads: Reads) -> None:
    """Raise UpperMismatch if a collection that the caller relies on has moved."""
    for access, expected in reads:
        reached = access.state().upper
        if reached != expected:
            raise UpperMismatch(expected, reached)


def _earliest_times(steps: Sequence[Step]) -> dict[str, int]:
    """Give the earliest time on each time line that the transaction may stand at."""
    times: dict[str, int] = {}
    for step in steps:
        if step.is_free:
            line = step.access.entry.timeline
            times[line] = max(times.get(line, 0), step.earliest)
    return times
