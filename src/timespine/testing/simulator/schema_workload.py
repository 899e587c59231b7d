"""Histories in which schemas change between the making of rows and their commit.

The caller makes rows under the schema that it knows. Then the schema changes, once
or twice, and only then the rows are committed: as an append, at the next free time,
by several writers, or ahead of the seal. The caller may have checked the rows against
the schema that was the newest one at some moment in between.
"""

from __future__ import annotations

from typing import Any

import msgspec

from timespine.core.batch import HollowBatch, Run
from timespine.core.effects import Protocol
from timespine.core.group import Refused
from timespine.core.protocols.commit import commit
from timespine.core.protocols.maintain import delete_unreferenced
from timespine.core.transitions import AddSchema, Append, AppendNext, Command, CompareAndAppend, Write
from timespine.errors import SchemaChanged
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.testing.simulator.core_writes import put_part
from timespine.testing.simulator.simulator import Operation, SimulatedProcess
from timespine.testing.simulator.workload import Body, Workload

ACROSS = "append across a change of the schema"


class SchemaWorkload(Workload):
    """The operations of any workload, and many that commit rows of a stale schema."""

    def _menu(self) -> list[tuple[int, str, Body]]:
        menu = [(8 if kind == "schema" else weight, kind, body) for weight, kind, body in super()._menu()]
        return [*menu, (40, ACROSS, self._append_across)]

    def _append_across(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        session = process.session
        state = self._known(process, name)
        new_upper, times = self._next_upper(state.upper)
        updates = self._updates(process, operation, name, times[:1])
        operation.details["may be cut"] = True  # as with a replicated append, nothing may be left to append
        data = self._data(process, name, updates)
        part = yield from put_part(session, name, data)
        run = Run((part,), data.order, data.schema)
        yield from self._change(process, name, f"{operation.id}_1")
        judged_by = self._judged(process, name, data.schema)
        if self.random.random() < 0.3:
            yield from self._change(process, name, f"{operation.id}_2")
        choice = self.random.randrange(4 if state.arity == 1 else 2)
        command = self._command(choice, run, state.upper, new_upper, times[0])
        if choice == 3:
            self.world.next_free[operation.id] = times[0][0]
        command = msgspec.structs.replace(command, judged_by=judged_by)
        reply = yield from commit(session, name, command)
        if isinstance(reply, Refused) and isinstance(reply.reason, SchemaChanged):
            judged_by = self._judged(process, name, data.schema)
            if judged_by is not None:
                command = msgspec.structs.replace(command, judged_by=judged_by)
                reply = yield from commit(session, name, command)
        if isinstance(reply, Refused):
            yield from delete_unreferenced(session, (part.key,))
        return reply

    def _change(self, process: SimulatedProcess, name: str, id: str) -> Protocol[None]:
        """Change the schema; another process may be first."""
        known = self._known(process, name)
        newest = len(known.schemas) - 1 if known.schemas else None
        yield from commit(process.session, name, AddSchema(newest, self.format.next_schema(known, id)))

    def _judged(self, process: SimulatedProcess, name: str, written: int | None) -> int | None:
        """Return the newest schema that a process knows; None if rows of an older one lose something under it."""
        known = self._known(process, name)
        return None if written is None or self.format.loses(known, written) else len(known.schemas) - 1

    def _command(self, choice: int, run: Run, upper: Frontier, new_upper: Frontier, at: Time) -> Command:
        """Make one of the commands that add rows, all of which stand at one time."""
        (part,) = run.parts
        batch = HollowBatch(Description(upper, new_upper, Frontier.minimum(len(at))), part.rows, (run,))
        match choice:
            case 0:
                return CompareAndAppend((batch,), upper, new_upper)
            case 1:
                return Write(Frontier((at,)), at, (part,), run.schema)
            case 2:
                return Append(batch)
            case _:
                return AppendNext(batch, at[0])
