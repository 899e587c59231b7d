"""The operations of simulated processes. `check_answers.py` checks their answers.

Rows carry the id of the operation that wrote them, so the checks find an update that
is lost, doubled or invented by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from timespine.core.batch import HollowBatch, Part, Run, wrap_int64
from timespine.core.effects import FreshId, GetBlob, Protocol, PutBlob
from timespine.core.encoding.codec import encode_run
from timespine.core.group import CommandTransaction, Refused
from timespine.core.protocols import garbage, maintain
from timespine.core.protocols.commit import commit, commit_transactions, raise_refusal, register_session
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import Session, retry
from timespine.core.read_plan import Plan
from timespine.core.spine.layers import MergePolicyKind
from timespine.core.state import State
from timespine.core.transitions import (
    AddSchema,
    AlreadyCommitted,
    Append,
    AppendNext,
    CommitSink,
    CompareAndAppend,
    Drain,
    Evict,
    Exert,
    ExpireWriter,
    Refresh,
    Retain,
    RollUpAll,
    Seal,
    Trim,
    Write,
)
from timespine.errors import Fenced, InlineBudgetExceeded, LeaseExpired, SchemaConflict, UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.oracle import OracleRow, Update
from timespine.model.time import Time
from timespine.testing.create_or_find import create_or_find
from timespine.testing.formats.naive import visible
from timespine.testing.simulator import core_reads, core_writes
from timespine.testing.simulator.check_answers import AnswerChecks
from timespine.testing.simulator.check_holds import HoldChecks
from timespine.testing.simulator.simulator import Operation, SimulatedProcess, Simulator

MAINTENANCE = ("merge", "ask for merges", "roll up", "collect garbage")

Body = Callable[[SimulatedProcess, str, Operation], Protocol[Any]]
"""The protocol of an operation, for a process and a collection."""


class Workload(AnswerChecks):
    """The choice and the start of operations."""

    on_both: frozenset[str] = frozenset({"append to both"})
    """The operations that need all collections, not one."""

    keep_ms: int = 0
    """How long garbage collection keeps deleted data."""

    def __init__(self, simulator: Simulator, operations: int) -> None:
        self.simulator = simulator
        self.random = simulator.random
        self.world = simulator.world
        self.format = simulator.format
        self.left = operations
        # Every eighth history has a collection with two coordinates: a partial order.
        self.arities = {"c1": 1, "c2": 2 if simulator.seed % 8 == 0 else 1}
        # Every tenth is merged by level. No pinned seed of a planted bug ends so: they go on as they were.
        self.merging = MergePolicyKind.BY_LEVEL if simulator.seed % 10 == 8 else MergePolicyKind.FUELED
        self.rows: dict[str, list[str]] = {name: [] for name in self.arities}
        """Inserted rows, to be retracted some time."""
        self.listeners: dict[tuple[str, str], tuple[str, Time]] = {}
        """Per process and collection: the lease of its feed and its progress."""
        self.holding = HoldChecks(self.world)
        self.sink_batch = dict.fromkeys(self.arities, 0)
        """Per collection: the batch that its streaming sink is at."""
        # Every third history is mostly maintenance of one collection: long chains of merges and collections.
        self.heavy = simulator.seed % 3 == 1
        self.names = ("c1",) if self.heavy else tuple(self.arities)
        self.menu = self._menu()
        favours = simulator.format.favours
        self.weights = [
            weight * favours.get(kind, 1) * (8 if self.heavy and kind in MAINTENANCE else 1)
            for weight, kind, _ in self.menu
        ]

    def _menu(self) -> list[tuple[int, str, Body]]:
        """List the operations, each with its weight."""
        return [
            (26, "append", self._append),
            (8, "append to both", self._append_to_both),
            (8, "append next", self._append_next),
            (7, "replicated append", self._replicated_append),
            (5, "sink", self._sink),
            (4, "group", self._group),
            (2, "schema", self._schema),
            (7, "write", self._write),
            (5, "seal", self._seal),
            (12, "snapshot", self._snapshot),
            (4, "snapshot without lease", self._snapshot_without_lease),
            (7, "listen", self._listen),
            (5, "retain", self._retain),
            (4, "hold", self._hold),
            (13, "merge", self._merge),
            (5, "ask for merges", self._ask_for_merges),
            (5, "tidy unsealed", self._tidy),
            (3, "trim", self._trim),
            (9, "roll up", self._roll_up),
            (9, "collect garbage", self._collect),
            (3, "sweep", self._sweep),
            (7, "expire leases", self._expire),
        ]

    def next_operation(self, process: SimulatedProcess) -> bool:
        """Begin the next operation in a process; False if there are none left."""
        if self.left <= 0:
            return False
        self.left -= 1
        ((_, kind, body),) = self.random.choices(self.menu, self.weights)
        self.begin(process, kind, self.random.choice(self.names), body)
        return True

    def begin(self, process: SimulatedProcess, kind: str, name: str, body: Body) -> None:
        """Begin one operation."""
        id = self.simulator.fresh("op")
        operation = Operation(id, kind, process.name, name, self.world.step, self._check)
        self.simulator.start(process, operation, self._entered(process, name, body, operation))

    def _entered(self, process: SimulatedProcess, name: str, body: Body, operation: Operation) -> Protocol[Any]:
        """Run the operation, after creating the collections and registering with them if needed."""
        try:
            for each in self.arities if operation.kind in self.on_both else (name,):
                if each not in process.entered:
                    yield from self.open(process.session, each)
                    process.entered.add(each)
            reply = yield from body(process, name, operation)
        except Fenced:
            self._reopen(process)
            raise
        if isinstance(reply, Refused) and isinstance(reply.reason, Fenced):
            self._reopen(process)
        return reply

    def open(self, session: Session, name: str) -> Protocol[None]:
        """Create a collection with its first schema, unless it exists, and register with it."""
        arity = self.arities[name]
        yield from create_or_find(session, name, arity, self.merging)
        yield from register_session(session, name)
        schema = self.format.first_schema(arity)
        if schema is not None and not session.state(name).schemas:
            reply = yield from commit(session, name, AddSchema(None, schema))
            if isinstance(reply, Refused) and not isinstance(reply.reason, SchemaConflict):
                raise_refusal(reply)

    def _reopen(self, process: SimulatedProcess) -> None:
        """Begin a new session under new ids, as a fenced caller does."""
        process.session, process.entered = self.simulator.new_process().session, set()

    def _known(self, process: SimulatedProcess, name: str) -> State:
        return process.session.state(name)

    def _data(self, process: SimulatedProcess, name: str, updates: list[Update]) -> core_writes.Data:
        """Encode updates as data to append, under the newest schema that a process knows."""
        return self.format.data_of(updates, self._known(process, name))

    def _counted(self, process: SimulatedProcess, name: str, fetched: core_reads.Fetched) -> dict[OracleRow, int]:
        """Count each row, by the parts that a read fetched."""
        return self.format.counted(*fetched, self._known(process, name))

    def _updates(self, process: SimulatedProcess, operation: Operation, name: str, times: list[Time]) -> list[Update]:
        """Make a few inserts with the operation's id in the row, and perhaps a retraction of an older row."""
        rows = [
            f"{operation.id}.{index}" for index in range(self.random.choice((5, 7) if self.heavy else (1, 1, 2, 3, 6)))
        ]
        updates: list[Update] = [(row, self.random.choice(times), 1) for row in rows]
        old = self.format.retractable(self.rows[name], self._known(process, name))
        if old and self.random.random() < 0.5:
            updates.append((self.random.choice(old), self.random.choice(times), -1))
        operation.details["rows"] = rows
        return updates

    def _next_upper(self, upper: Frontier) -> tuple[Frontier, list[Time]]:
        """Return an upper a little later, and times in between."""
        if upper.arity == 1:
            ((start,),) = upper.elements
            end = start + self.random.choice((1, 1, 2, 5))
            return Frontier.at(end), [(time,) for time in range(start, end)]
        x, y = self.random.choice(upper.elements)
        others = [time for time in upper.elements if time != (x, y)]
        return Frontier((*others, (x + 1, y), (x, y + 1))), [(x, y)]

    def _append(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        upper = self._known(process, name).upper
        if self.random.random() < 0.1:
            upper = self._next_upper(upper)[0]  # a caller that is wrong about the upper
        new_upper, times = self._next_upper(upper)
        updates = self._updates(process, operation, name, times) if self.random.random() < 0.85 else []
        data = self._data(process, name, updates) if updates else None
        reply = yield from core_writes.compare_and_append_data(process.session, name, data, upper, new_upper)
        if isinstance(reply, Refused):
            yield from refresh_state(process.session, name)
        return reply

    def _append_to_both(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        appends = []
        for each in self.arities:
            upper = self._known(process, each).upper
            new_upper, times = self._next_upper(upper)
            data = self._data(process, each, self._updates(process, operation, each, times))
            appends.append((each, data, upper, new_upper))
        operation.details["both"] = True
        reply = yield from core_writes.append_data_to_many(process.session, appends)
        if isinstance(reply, Refused):
            for each in self.arities:
                yield from refresh_state(process.session, each)
        return reply

    def _append_next(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Append at a time that is free, was free once, or will be; sometimes as a hollow run."""
        session = process.session
        (known, *_) = self.random.choice(self._known(process, name).upper.elements)
        at = max(known + self.random.choice((-3, -1, 0, 0, 0, 1, 3)), 0)
        operation.details["at"] = self.world.next_free[operation.id] = at
        updates = self._updates(process, operation, name, [(at,)])
        if self.random.random() < 0.7:
            return (yield from core_writes.append_data_next(session, name, self._data(process, name, updates), at))
        run, keys = yield from self._spilled(process, name, updates)
        rows = sum(part.rows for part in run.parts)
        batch = HollowBatch(Description(Frontier.at(0), Frontier.at(0), Frontier.at(0)), rows, (run,))
        replies = yield from commit(session, name, AppendNext(batch, at))
        if isinstance(replies, Refused):
            yield from maintain.delete_unreferenced(session, keys)
            return replies
        return replies[0]

    def _replicated_append(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Append in one part from the upper on, or from before it: then updates that are there already are cut off."""
        upper = self._known(process, name).upper
        new_upper, times = self._next_upper(upper)
        updates = self._updates(process, operation, name, times)
        operation.details["may be cut"] = True
        if upper.arity == 1 and self.random.random() < 0.7:
            start = max(upper.time - 2, 0)
            updates = [(f"{operation.id}.0", (start,), 1), *updates]
            if self.random.random() < 0.6:
                end = new_upper.time + self.random.choice((0, 0, 2))
                desc = Description(Frontier.at(start), Frontier.at(end), Frontier.at(0))
                return (yield from self._append_seen(process, name, operation, updates, desc))
            upper = Frontier.at(start)
        data = self._data(process, name, updates)
        return (yield from core_writes.append_missing_data(process.session, name, data, upper, new_upper))

    def _append_seen(
        self, process: SimulatedProcess, name: str, operation: Operation, updates: list[Update], desc: Description
    ) -> Protocol[Any]:
        """Append replicated data that is rewritten, or truncated at either end before it is cut to fit."""
        session = process.session
        if self.random.random() < 0.3:
            run, keys = yield from self._spilled(process, name, updates)
        else:
            data = self._data(process, name, updates)
            put = yield from core_writes.put_part(session, name, data)
            run, keys = Run((put,), data.order, data.schema), (put.key,)
        (part,) = run.parts
        (start,), (end,) = desc.lower.elements[0], desc.upper.elements[0]
        lower, upper, rewrite = start, end, start
        if self.random.random() < 0.6:
            rewrite = self.random.randrange(start, end)
            part = msgspec.structs.replace(part, rewrite=Frontier.at(rewrite))
        if self.random.random() < 0.5:
            lower, upper = self.random.choice(((start + 1, end), (start, end - 1), (start + 1, end - 1)))
            part = msgspec.structs.replace(part, lower=Frontier.at(lower), upper=Frontier.at(upper))
        self.world.meant[operation.id] = [
            (row, (max(time, rewrite),), diff) for row, (time,), diff in updates if lower <= time < upper
        ]
        append = Append(HollowBatch(desc, part.rows, (Run((part,), run.order, run.schema),)))
        replies = yield from commit(session, name, append)
        if isinstance(replies, Refused) or not replies[0].taken:
            yield from maintain.delete_unreferenced(session, keys)
        return replies if isinstance(replies, Refused) else replies[0].upper

    def _spilled(
        self, process: SimulatedProcess, name: str, updates: list[Update]
    ) -> Protocol[tuple[Run, tuple[str, ...]]]:
        """Put updates as a run of one hollow run of two parts; return it and the keys of all blobs."""
        session = process.session
        pieces = self.format.pieces_of(updates, self._known(process, name))
        parts = []
        for piece in pieces:
            parts.append((yield from core_writes.put_part(session, name, piece)))
        key = f"{name}/{session.writer}/{(yield FreshId('p'))}"
        listed = encode_run(key, tuple(parts))
        yield from retry(session, PutBlob(key, listed))
        diff_sum = wrap_int64(sum(diff for _, _, diff in updates))
        rows, inside_bytes = sum(part.rows for part in parts), sum(part.total_bytes for part in parts)
        part = Part(key, rows, len(listed), diff_sum, hollow=True, inside_bytes=inside_bytes)
        return Run((part,), pieces[0].order, pieces[0].schema), (*(part.key for part in parts), key)

    def _sink(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Commit a batch of a streaming sink, with retries until it is known to be in."""
        session, batch = process.session, self.sink_batch[name]
        upper = self._known(process, name).upper
        new_upper, times = self._next_upper(upper)
        row = f"{name}sink{batch}"
        data = self._data(process, name, [(f"{row}.0", times[0], 1)])
        part = yield from core_writes.put_part(session, name, data)
        desc = Description(upper, new_upper, Frontier.minimum(self.arities[name]))
        run = Run((part,), data.order, data.schema)
        append = CompareAndAppend((HollowBatch(desc, 1, (run,)),), upper, new_upper)
        reply = yield from commit(session, name, CommitSink("sink", batch), append)
        if isinstance(reply, Refused) and not isinstance(reply.reason, AlreadyCommitted):
            yield from refresh_state(session, name)
            return reply
        if row not in self.world.committed:
            self.world.violate(f"batch {batch} of the sink of {name} is said to be in and is not")
        if self.random.random() < 0.7:  # otherwise the caller dies before it records that the batch is done
            self.sink_batch[name] = max(self.sink_batch[name], batch + 1)
        return None

    def _group(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        """Commit several transactions at once: good ones, an impossible one, one that relies on an upper."""
        upper = self._known(process, name).upper
        later = self._next_upper(upper)[0]
        missing = CommandTransaction((("missing", Seal(upper)),))
        good = CommandTransaction(((name, Seal(later)),), reads=((name, upper),))
        after = CommandTransaction(((name, Exert(1)),), reads=((name, later),))
        first, second, third = yield from commit_transactions(process.session, missing, good, after)
        if not isinstance(first, Refused) or not isinstance(first.reason, UsageError):
            self.world.violate(f"group {operation.id}: a collection that is not there gave {first}")
        if not isinstance(second, Refused):
            operation.details["upper"] = later
            if isinstance(third, Refused):
                self.world.violate(f"group {operation.id}: a later transaction does not see what an earlier one did")
        elif not isinstance(second.reason, UpperMismatch):
            self.world.violate(f"group {operation.id}: {second.reason!r}")
        return None

    def _schema(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        known = self._known(process, name)
        schema = self.format.next_schema(known, operation.id)
        expected = len(known.schemas) - 1 if known.schemas else None
        reply = yield from commit(process.session, name, AddSchema(expected, schema))
        if not isinstance(reply, Refused) and self.world.head(name).schemas[reply[0]] != schema:
            self.world.violate(f"schema {reply[0]} of {name} is not the one that was added")
        return None

    def _write(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        upper = self._known(process, name).upper
        later, times = self._next_upper(upper)
        for _ in range(self.random.randrange(3)):
            later, more = self._next_upper(later)
            times.extend(more)
        updates = self._updates(process, operation, name, times)
        lower = Frontier(tuple(time for _, time, _ in updates))
        latest = tuple(map(max, *(time for _, time, _ in updates))) if len(updates) > 1 else updates[0][1]
        data = self._data(process, name, updates)
        if self.format.writes_inline and len(data.value) <= self.format.config.inline_part_bytes:
            total = self.format.config.inline_total_bytes
            command = Write(lower, latest, (core_writes.inline_part(data),), data.schema, total)
            reply = yield from commit(process.session, name, command)
            if not (isinstance(reply, Refused) and isinstance(reply.reason, InlineBudgetExceeded)):
                return reply
        return (yield from core_writes.write_data(process.session, name, data, lower, latest))

    def _seal(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        upper = self._next_upper(self._known(process, name).upper)[0]
        reply = yield from commit(process.session, name, Seal(upper))
        operation.details["upper"] = upper if not isinstance(reply, Refused) else Frontier.minimum(self.arities[name])
        return reply

    def _time(self, process: SimulatedProcess, name: str) -> Time:
        """Return a time to read at: mostly just below the upper, sometimes anywhere."""
        state = self._known(process, name)
        top = self.random.choice(state.upper.elements)
        return tuple(max(each - self.random.choice((1, 1, 1, 0, 2, 4)), 0) for each in top)

    def _snapshot(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        operation.details["as_of"] = as_of = self._time(process, name)
        reply = yield from core_reads.fetch_snapshot(process.session, name, as_of)
        return self._counted(process, name, reply) if isinstance(reply, tuple) else reply

    def _snapshot_without_lease(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        operation.details["as_of"] = as_of = self._time(process, name)
        reply = yield from core_reads.fetch_snapshot_without_lease(process.session, name, as_of)
        return self._counted(process, name, reply) if isinstance(reply, tuple) else reply

    def _listen(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        if self.arities[name] != 1:
            return None
        session = process.session
        feed = self.listeners.get((session.committer, name))
        if feed is None:
            after = self._time(process, name)
            reader = yield from core_reads.take_lease(session, name, after)
            lease = session.state(name).readers.get(reader)
            if lease is None:
                raise LeaseExpired(f"reader {reader} of {name} expired at once")
            after = max(after, lease.since.elements[0])
        else:
            reader, after = feed
        operation.details["after"] = after
        # Whatever the outcome of the call, the feed goes on where it was, unless its lease is gone.
        self.listeners[session.committer, name] = (reader, after)
        try:
            reply = yield from core_reads.fetch_news(session, name, reader, after)
        except LeaseExpired:
            del self.listeners[session.committer, name]
            raise
        if not isinstance(reply, tuple):
            return reply
        plan: Plan = reply[0]
        self.listeners[session.committer, name] = (reader, plan.until)
        operation.details["until"] = plan.until
        return self._counted(process, name, reply)

    def _retain(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        since = Frontier((self._time(process, name),))
        return (yield from commit(process.session, name, Retain(since)))

    def _hold(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        since = Frontier((self._time(process, name),))
        if name not in self.holding.known:
            return (yield from self.holding.take(process.session, name, since))
        if self.random.random() < 0.4:
            return (yield from self.holding.give_back(process.session, name))
        return (yield from self.holding.move(process.session, name, since))

    def _merge(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        for _ in range(2):
            if (yield from maintain.merge_once(process.session, name)) is None:
                break

    def _ask_for_merges(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        state = self._known(process, name)
        stale = state.trace.stale()
        command = self.random.choice((RollUpAll(), Exert(64), *(Refresh(id) for id in stale[:1])))
        if self.heavy:
            command = RollUpAll()
        return (yield from commit(process.session, name, command))

    def _tidy(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        if self.random.random() < 0.5:
            return (yield from commit(process.session, name, self.random.choice((Drain(), Evict()))))
        return (yield from maintain.tidy_unsealed(process.session, name))

    def _trim(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        session = process.session
        state = self._known(process, name)
        upper = state.trace.upper
        begun = [batch for batch in state.unsealed if batch.has_times_below(upper)]
        batch = next((each for each in begun if not each.is_wholly_below(upper)), None)
        if batch is None:
            return None
        if self.random.random() < 0.5:
            return (yield from commit(session, name, Trim(batch.seqno)))
        # It stays a batch of the schema that it was written with.
        schemas = () if batch.schema is None else state.schemas[: batch.schema + 1]
        written = msgspec.structs.replace(state, schemas=schemas)
        parts = []
        for part in batch.parts:
            data = part.inline if part.inline is not None else (yield from retry(session, GetBlob(part.key)))
            if data is None:
                return None  # another process trimmed or evicted it
            stored = self.format.rows_of(part, data, schemas[-1] if schemas else None)
            kept = [update for update in visible(part, stored) if upper.less_equal(update[1])]
            key = f"{name}/{session.writer}/{(yield FreshId('t'))}"
            trimmed = self.format.data_of(kept, written)
            value, meta = trimmed.sealed(key)
            yield from retry(session, PutBlob(key, value))
            parts.append(Part(key, trimmed.rows, len(value), meta=meta))
        return (yield from commit(session, name, Trim(batch.seqno, tuple(parts), upper)))

    def _roll_up(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        return (yield from maintain.roll_up(process.session, name))

    def _collect(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        return (yield from garbage.collect_garbage(process.session, name))

    def _sweep(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        return (yield from garbage.sweep(process.session, name))

    def _expire(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        writers = sorted(self._known(process, name).writers)
        if writers and self.random.random() < 0.3:  # a writer is fenced in the middle of its work
            return (yield from commit(process.session, name, ExpireWriter(self.random.choice(writers))))
        return (yield from maintain.expire_lapsed_leases(process.session, name))
