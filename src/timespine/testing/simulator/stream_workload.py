"""Histories of streams: writes ahead of the seal, transactions over both collections, cuts, processes that close.

Operations mark their most delicate points, so that processes die and storage goes
away right there more often than by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timespine.core.batch import HollowBatch, Run
from timespine.core.effects import CompareAndSet, Effect, FreshId, MergeRuns, Protocol, PutBlob
from timespine.core.group import CommandTransaction, Refused
from timespine.core.protocols import maintain
from timespine.core.protocols.commit import commit, commit_transactions
from timespine.core.protocols.load_state import refresh_state
from timespine.core.read_plan import Plan, plan_snapshot, plan_unsealed
from timespine.core.state import State
from timespine.core.transitions import (
    Command,
    CompareAndAppend,
    Drain,
    Evict,
    ExpireCommitter,
    ExpireReader,
    ExpireWriter,
    RegisterReader,
    Retain,
    Seal,
    Write,
)
from timespine.errors import Fenced, TimespineError, UsageError
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.oracle import Update, consolidate
from timespine.model.time import Time
from timespine.testing.formats.naive import visible
from timespine.testing.simulator import core_reads, core_writes
from timespine.testing.simulator.check_atomicity import AtomicCommit, GroupKey
from timespine.testing.simulator.simulator import Operation, SimulatedProcess
from timespine.testing.simulator.workload import Body, Workload

UNCOMMITTED = "between data and commit"
IN_A_GROUP = "inside a group"

MARKS: dict[str, tuple[str, type[Effect], str]] = {
    "append": ("", PutBlob, UNCOMMITTED),
    "write": ("", PutBlob, UNCOMMITTED),
    "append at one time": ("", PutBlob, UNCOMMITTED),
    "transaction": ("", PutBlob, UNCOMMITTED),
    "write after a read": ("", PutBlob, UNCOMMITTED),
    "transactions": ("", PutBlob, IN_A_GROUP),
    "tidy unsealed": ("during a drain", CompareAndSet, "between drain and evict"),
    "merge": ("", MergeRuns, "during a merge response"),
    "close": ("during close", CompareAndSet, "during close"),
}
"""Per kind of operation: the mark that it begins with, an effect, and the mark that it has from that effect on."""

POINTS = tuple(sorted({mark for first, _, then in MARKS.values() for mark in (first, then) if mark}))
"""Every marked point."""

Put = tuple[Command, str, frozenset[str]]
"""A command for data that was put, the key of that data, and the rows in it."""


class StreamWorkload(Workload):
    """The choice and the start of operations on streams."""

    on_both = frozenset(
        {
            "append to both",
            "append at one time",
            "seal both",
            "transaction",
            "write after a read",
            "transactions",
            "cut",
            "close",
        }
    )

    def _menu(self) -> list[tuple[int, str, Body]]:
        self.heavy, self.names = False, tuple(self.arities)
        self.halves: dict[str, int] = {}
        """The common time of each operation that appended to both collections at one time."""
        return [
            (10, "append", self._append),
            (4, "append to both", self._append_to_both),
            (9, "append at one time", self._append_at_one_time),
            (2, "append next", self._append_next),
            (2, "replicated append", self._replicated_append),
            (14, "write", self._write),
            (6, "seal", self._seal),
            (7, "seal both", self._seal_both),
            (14, "transaction", self._transaction),
            (7, "write after a read", self._write_after_a_read),
            (8, "transactions", self._transactions),
            (10, "cut", self._cut),
            (9, "read unsealed", self._read_unsealed),
            (7, "snapshot", self._snapshot),
            (2, "snapshot without lease", self._snapshot_without_lease),
            (5, "listen", self._listen),
            (3, "retain", self._retain),
            (1, "hold", self._hold),
            (9, "merge", self._merge),
            (4, "ask for merges", self._ask_for_merges),
            (12, "tidy unsealed", self._tidy),
            (5, "trim", self._trim),
            (6, "roll up", self._roll_up),
            (6, "collect garbage", self._collect),
            (2, "sweep", self._sweep),
            (3, "expire leases", self._expire),
            (3, "close", self._give_up),
        ]

    def begin(self, process: SimulatedProcess, kind: str, name: str, body: Body) -> None:
        """Begin one operation, with the points in it marked."""
        mark = MARKS.get(kind)
        if mark is None:
            super().begin(process, kind, name, body)
            return

        def marked(process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
            return _marked(process, body(process, name, operation), *mark)

        super().begin(process, kind, name, marked)

    # Both collections at once.

    def _append_at_one_time(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Append to both at the same time, if they can be compared: a cut has both halves or none."""
        uppers = self._uppers(process)
        if set(self.arities.values()) != {1}:
            return (yield from self._append_to_both(process, name, operation))
        at = max(upper.time for upper in uppers.values()) + self.random.choice((0, 0, 1))
        self.halves[operation.id] = at
        rows = [f"{operation.id}.{index}" for index in range(self.random.choice((1, 2)))]
        operation.details.update(both=True, rows=rows, keep=True)
        updates: list[Update] = [(row, (at,), 1) for row in rows]
        appends = [
            (each, self._data(process, each, updates), upper, Frontier.at(at + 1)) for each, upper in uppers.items()
        ]
        whole = AtomicCommit(
            operation.id,
            dict.fromkeys(self.arities, frozenset(rows)),
            dict.fromkeys(self.arities, Frontier.at(at + 1)),
        )
        with self.world.atomic.expected(process.session, whole):
            reply = yield from core_writes.append_data_to_many(process.session, appends)
        return (yield from self._told(process, reply))

    def _seal_both(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        seals = self._later(process)
        operation.details["both"] = True
        transaction = CommandTransaction(tuple((each, Seal(upper)) for each, upper in seals.items()))
        with self.world.atomic.expected(process.session, AtomicCommit(operation.id, uppers=seals)) as key:
            (reply,) = yield from commit_transactions(process.session, transaction)
        self._check_sealed(operation, key, reply, seals)
        return (yield from self._told(process, reply))

    def _check_sealed(self, operation: Operation, key: GroupKey, reply: object, seals: Mapping[str, Frontier]) -> None:
        """Check that an acknowledged seal stands in all collections, and that a refused one has changed nothing."""
        if isinstance(reply, Refused):
            if key in self.world.atomic.groups:
                self.world.violate(f"{operation.kind} {operation.id} was refused and is there")
            return
        behind = [each for each, upper in seals.items() if not upper <= self.world.head(each).upper]
        if behind:
            self.world.violate(f"{operation.kind} {operation.id} was acknowledged and {behind} are not sealed")

    def _transaction(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Write to one, append to the other, seal both, release history; it may rely on uppers, also wrong ones."""
        chance, other = self.random.random, self._other(name)
        uppers, later = self._uppers(process), self._later(process)
        puts: list[tuple[str, Put]] = []
        seals, retained, reads = {}, {}, {}
        if chance() < 0.75:
            times = self._times_from(uppers[name], 3)
            puts.append((name, (yield from self._put_write(process, name, operation, "w", times))))
        if chance() < 0.6:
            seals[other] = later[other]
            append = yield from self._put_append(process, other, operation, uppers[other], later[other])
            puts.append((other, append))
        commands: list[tuple[str, Command]] = []
        if chance() < 0.6 or not puts:
            seals.update(later)
            commands += [(each, Seal(upper)) for each, upper in later.items()]
        if chance() < 0.3:
            retained[name] = Frontier((self._time(process, name),))
            commands.append((name, Retain(retained[name])))
        if chance() < 0.5:
            reads = {each: uppers[each] for each in self.random.choice(((name,), (other,), (name, other)))}
        if reads and chance() < 0.15:
            reads[name] = self._next_upper(uppers[name])[0]  # a caller that has read something else
        whole = AtomicCommit(operation.id, {each: put[2] for each, put in puts}, seals, retained, reads)
        return (yield from self._commit_whole(process, operation, puts, commands, whole))

    def _write_after_a_read(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Write to one collection after a read of the other, which must not have moved on meanwhile."""
        other, uppers = self._other(name), self._uppers(process)
        put = yield from self._put_write(process, name, operation, "r", self._times_from(uppers[name], 3))
        whole = AtomicCommit(operation.id, {name: put[2]}, reads={other: uppers[other]})
        return (yield from self._commit_whole(process, operation, [(name, put)], [], whole))

    def _commit_whole(
        self,
        process: SimulatedProcess,
        operation: Operation,
        puts: list[tuple[str, Put]],
        commands: list[tuple[str, Command]],
        whole: AtomicCommit,
    ) -> Protocol[Any]:
        """Commit puts and more commands, all or nothing."""
        session = process.session
        operation.details.update(about_both=True, both=len(puts) > 1)
        if puts:
            operation.details["rows"] = sorted(row for rows in whole.rows.values() for row in rows)
        commands = [*((each, put[0]) for each, put in puts), *commands]
        transaction = CommandTransaction(tuple(commands), tuple(whole.reads.items()))
        with self.world.atomic.expected(session, whole) as key:
            (reply,) = yield from commit_transactions(session, transaction)
        self._check_sealed(operation, key, reply, whole.uppers)
        if isinstance(reply, Refused):
            self.world.atomic.check_judged(key, reply.seqnos, f"{operation.kind} {operation.id}")
            if puts:
                yield from maintain.delete_unreferenced(session, tuple(put[1] for _, put in puts))
        return (yield from self._told(process, reply))

    def _transactions(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Commit a group of several: each sees the effects of the ones before it, and a bad one does not affect the
        others."""
        session = process.session
        other = self._other(name)
        uppers, later = self._uppers(process), self._later(process)

        def put(each: str, label: str, times: list[Time]) -> Protocol[Put]:
            return self._put_write(process, each, operation, label, times)

        ahead = yield from put(name, "a", self._times_from(uppers[name], 3))
        aside = yield from put(other, "a", self._times_from(uppers[other], 3))
        after = yield from put(name, "b", self._times_from(later[name], 1))
        fine = yield from put(other, "c", self._times_from(later[other], 1))
        late = yield from put(name, "c", self._times_between(uppers[name], later[name]))
        seals = tuple((each, Seal(upper)) for each, upper in later.items())
        group = [
            ("ahead", CommandTransaction(((name, ahead[0]), (other, aside[0]))), {name: ahead[2], other: aside[2]}),
            ("seal", CommandTransaction(seals, ((name, uppers[name]),)), {}),
            ("after", CommandTransaction(((name, after[0]),), ((name, later[name]),)), {name: after[2]}),
            ("late", CommandTransaction(((other, fine[0]), (name, late[0]))), {other: fine[2], name: late[2]}),
            ("missing", CommandTransaction((("missing", Seal(uppers[name])),)), {}),
        ]
        group = [each for each in group if each[0] == "seal" or self.random.random() < 0.8]
        wholes = [AtomicCommit(operation.id, rows, alone=False) for _, _, rows in group if rows]
        with self.world.atomic.expected(session, *wholes) as key:
            replies = yield from commit_transactions(session, *(each[1] for each in group))
        told = {label: reply for (label, _, _), reply in zip(group, replies, strict=True)}
        self._check_group(operation, key, told, {label: rows for label, _, rows in group})
        refused = [reply for reply in replies if isinstance(reply, Refused)]
        if any(isinstance(each.reason, Fenced) for each in refused):
            self._reopen(process)
        keys = {"ahead": (ahead[1], aside[1]), "after": (after[1],), "late": (fine[1], late[1])}
        vain = [key for label, put in keys.items() if isinstance(told.get(label), Refused) for key in put]
        if vain:
            yield from maintain.delete_unreferenced(session, tuple(vain))
        return None

    def _check_group(
        self, operation: Operation, key: GroupKey, told: dict[str, Any], rows: dict[str, dict[str, frozenset[str]]]
    ) -> None:
        """Check the answer of each transaction of a group against the effects of those before it."""
        who, violate = f"{operation.kind} {operation.id}", self.world.violate
        refusals = {label: reply for label, reply in told.items() if isinstance(reply, Refused)}
        for label, reply in refusals.items():
            self.world.atomic.check_judged(key, reply.seqnos, f"{label} of {who}")
            if not isinstance(reply.reason, TimespineError):
                violate(f"{label} of {who} was refused: {reply.reason!r}")
        for label, where in rows.items():
            for name, expected in where.items():
                there = expected & {row for row, _, _ in self.world.truth[name]}
                if there != (frozenset() if label in refusals else expected):
                    violate(f"{label} of {who} was told {told[label]} and {sorted(there)} of it are in {name}")
        fenced = any(isinstance(each.reason, Fenced) for each in refusals.values())
        if "missing" in told and "missing" not in refusals:
            violate(f"{who}: a collection that is not there gave {told['missing']}")
        if "seal" not in refusals and not fenced:
            if "after" in refusals:
                violate(f"{who}: a later transaction does not see what an earlier one did: {refusals['after']}")
            if "late" in told and "late" not in refusals:
                violate(f"{who}: a later transaction wrote below the seal of an earlier one")

    # Reading.

    def _cut(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Read both collections as of one time, under leases that were taken at once."""
        session = process.session
        readers: dict[str, str] = {}
        for each in self.arities:
            readers[each] = yield FreshId("r")
        term = session.config.reader_lease_ms
        leases = tuple((each, RegisterReader(reader, None, term)) for each, reader in readers.items())
        (reply,) = yield from commit_transactions(session, CommandTransaction(leases))
        if isinstance(reply, Refused):
            return reply
        states = {each: session.state(each) for each in self.arities}
        operation.details["as_of"] = as_of = self._time_of_cut(states)
        found: dict[str, Any] = {}
        for each, time in as_of.items():
            plan = plan_snapshot(states[each], time)
            if isinstance(plan, Plan):
                plan = plan.summed()
                fetched = yield from core_reads.fetch_leased(session, each, readers[each], plan)
                found[each] = self.format.counted(plan, fetched, states[each])
            else:
                found[each] = plan
        ends = tuple((each, ExpireReader(reader)) for each, reader in readers.items())
        yield from commit_transactions(session, CommandTransaction(ends))
        return found

    def _time_of_cut(self, states: dict[str, State]) -> dict[str, Time]:
        """Return the last time that is complete in both, if they can be compared; none if there is no such time."""
        if set(self.arities.values()) == {1}:
            last = min(state.upper.time for state in states.values()) - 1
            last -= self.random.choice((0, 0, 0, 1, 2))
            return dict.fromkeys(states, (last,)) if last >= 0 else {}
        below = {each: tuple(c - 1 for c in self.random.choice(state.upper.elements)) for each, state in states.items()}
        return {each: time for each, time in below.items() if min(time) >= 0}

    def _read_unsealed(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Read the unsealed updates at some times."""
        session = process.session
        reader = yield from core_reads.take_lease(session, name, self._time(process, name))
        state = session.state(name)
        lower, upper = self._range(state)
        operation.details.update(seqno=state.seqno, between=(lower, upper))
        if not upper <= lower:
            self._check_backwards(operation, state, upper, lower)
        runs = plan_unsealed(state, lower, upper)
        plan = Plan(state.seqno, state.since, None, (0,) * state.arity, runs, state.upper)
        fetched = yield from core_reads.fetch_leased(session, name, reader, plan)
        yield from core_reads.release_lease(session, name, reader)
        schemas = [run.schema for run in runs for _ in run.parts]
        found: list[Update] = []
        for schema, (part, data) in zip(schemas, fetched, strict=True):
            stored = self.format.rows_of(part, data, None if schema is None else state.schemas[schema])
            found.extend(visible(part, stored))
        return sorted(consolidate(found), key=str)

    def _check_backwards(self, operation: Operation, state: State, lower: Frontier, upper: Frontier) -> None:
        try:
            plan_unsealed(state, lower, upper)
        except UsageError:
            return
        self.world.violate(f"{operation.kind} {operation.id} was let read from {lower} back to {upper}")

    def _range(self, state: State) -> tuple[Frontier, Frontier]:
        """Return times around the upper, mostly."""
        if state.arity != 1:
            later = self._next_upper(self._next_upper(state.upper)[0])[0]
            return self.random.choice((Frontier.minimum(state.arity), state.upper)), self.random.choice((later, CLOSED))
        first = max(state.upper.time + self.random.choice((-3, -1, 0, 0, 1, 2)), 0)
        end = first + self.random.choice((0, 1, 2, 4, 6))
        return Frontier.at(first), CLOSED if self.random.random() < 0.3 else Frontier.at(end)

    # Upkeep.

    def _tidy(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        if self.random.random() < 0.3:
            return (yield from commit(process.session, name, self.random.choice((Drain(), Evict()))))
        return (yield from maintain.tidy_unsealed(process.session, name))

    def _give_up(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Close a process: it gives up its ids, and another one takes its place, whatever the outcome."""
        session, entered = process.session, sorted(process.entered)
        ends = [
            CommandTransaction(((each, ExpireWriter(session.writer)), (each, ExpireCommitter(session.committer))))
            for each in entered
        ]
        try:
            replies = yield from commit_transactions(session, *ends)
        except TimespineError:
            self._reopen(process)
            raise
        self._reopen(process)
        if session.frozen is not None:
            self.world.violate(f"{session.committer} closed and left a group in doubt")
        for each, reply in zip(entered, replies, strict=True):
            head = self.world.head(each)
            if isinstance(reply, Refused) and not isinstance(reply.reason, Fenced):
                self.world.violate(f"{session.committer} could not close: {reply.reason!r}")
            elif session.committer in head.committers or (reply and session.writer in head.writers):
                self.world.violate(f"{session.committer} closed and is still registered with {each}")
        self.world.atomic.closed.add(session.committer)
        return None

    # What the operations are made of.

    def _other(self, name: str) -> str:
        (other,) = (each for each in self.arities if each != name)
        return other

    def _uppers(self, process: SimulatedProcess) -> dict[str, Frontier]:
        return {each: self._known(process, each).upper for each in self.arities}

    def _later(self, process: SimulatedProcess) -> dict[str, Frontier]:
        """Return an upper to seal each collection at: one time for both, if they can be compared."""
        later = {each: self._next_upper(upper)[0] for each, upper in self._uppers(process).items()}
        if set(self.arities.values()) != {1} or self.random.random() < 0.2:
            return later
        return dict.fromkeys(later, max(later.values(), key=lambda upper: upper.elements[0]))

    def _times_from(self, upper: Frontier, rounds: int) -> list[Time]:
        """Return some times from an upper on."""
        times: list[Time] = []
        for _ in range(rounds):
            upper, more = self._next_upper(upper)
            times.extend(more)
        return times

    def _times_between(self, upper: Frontier, later: Frontier) -> list[Time]:
        """Return times from an upper on and before a later one, some if there are many."""
        (start, *_) = upper.elements
        if len(start) > 1:
            return [time for time in upper.elements if not later.less_equal(time)]
        return [(time,) for time in range(start[0], min(later.time, start[0] + 5))]

    def _rows_at(self, operation: Operation, label: str, times: list[Time]) -> list[Update]:
        rows = range(self.random.choice((1, 1, 2, 3)))
        return [(f"{operation.id}.{label}{index}", self.random.choice(times), 1) for index in rows]

    def _put_write(
        self, process: SimulatedProcess, name: str, operation: Operation, label: str, times: list[Time]
    ) -> Protocol[Put]:
        """Put data, and return the command that would write it ahead of the seal."""
        updates = self._rows_at(operation, label, times)
        data = self._data(process, name, updates)
        part = yield from core_writes.put_part(process.session, name, data)
        stand = [time for _, time, _ in updates]
        latest: Time = tuple(map(max, *stand, stand[0]))
        return Write(Frontier(tuple(stand)), latest, (part,), data.schema), part.key, _rows(updates)

    def _put_append(
        self, process: SimulatedProcess, name: str, operation: Operation, upper: Frontier, later: Frontier
    ) -> Protocol[Put]:
        """Put data, and return the command that would append it."""
        updates = self._rows_at(operation, "p", self._times_between(upper, later))
        data = self._data(process, name, updates)
        part = yield from core_writes.put_part(process.session, name, data)
        desc = Description(upper, later, Frontier.minimum(self.arities[name]))
        batch = HollowBatch(desc, part.rows, (Run((part,), data.order, data.schema),))
        return CompareAndAppend((batch,), upper, later), part.key, _rows(updates)

    def _told(self, process: SimulatedProcess, reply: Any) -> Protocol[Any]:
        """Return the reply; after a refusal, read the states again first."""
        if isinstance(reply, Refused):
            for each in self.arities:
                yield from refresh_state(process.session, each)
        return reply


def _rows(updates: list[Update]) -> frozenset[str]:
    return frozenset(str(row) for row, _, _ in updates)


def _marked(
    process: SimulatedProcess, protocol: Protocol[Any], first: str, kind: type[Effect], then: str
) -> Protocol[Any]:
    """Run the protocol, with the process marked: from its start, or from an effect of some kind on."""
    process.mark = first
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                effect = protocol.send(answer) if error is None else protocol.throw(error)
            except StopIteration as stop:
                return stop.value
            answer, error = None, None
            try:
                answer = yield effect
            except Exception as raised:
                error = raised
            if isinstance(effect, kind):
                process.mark = then
    finally:
        process.mark = ""
        protocol.close()
