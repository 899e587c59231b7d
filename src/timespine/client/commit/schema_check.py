"""Rows that were made under a schema that is not the newest one: accepted if nothing is lost, refused otherwise.

The core compares ids of schemas and refuses what is not of the newest one. Here the
schemas are compared. Nothing is lost if the newest one has every column that the
older one had, by its id: columns that were added, renamed or widened are seen
through the newest schema when the rows are read. So the same runs are committed
again, and say by which schema they were judged. A column that was dropped is lost,
also if another one has its name now.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from timespine.client.commit.retry import RETRY
from timespine.columnar.ingest.update_table import project
from timespine.columnar.schema.schema import Field, Schema
from timespine.core.group import Answers, Refused, Transaction
from timespine.core.state import State
from timespine.core.transitions import Append, AppendNext, Command, CompareAndAppend, Write
from timespine.errors import SchemaChanged

Offer = Callable[[Transaction], Answers | Refused]


class Judge:
    """Judges the rows of one transaction by the newest schemas, once a commit was refused because of them."""

    def __init__(self, newest: Callable[[str], State]) -> None:
        self._newest = newest
        """Gives the newest state of a collection."""
        self._states: dict[str, State] = {}
        self._left = RETRY.schema_judgements

    def apply(self, transaction: Transaction) -> Transaction:
        """The transaction as it is to be committed now; SchemaChanged if values would be lost."""
        for state in self._states.values():
            transaction = _accepted(transaction, state)
        return transaction

    def looks_again(self, reply: Answers | Refused) -> bool:
        """Whether a commit was refused because of a schema that this has not judged by, and may be tried again."""
        if self._left == 0 or not isinstance(reply, Refused) or not isinstance(reply.reason, SchemaChanged):
            return False
        self._left -= 1
        self._states[reply.reason.collection] = self._newest(reply.reason.collection)
        return True


def judged(transaction: Transaction, offer: Offer, newest: Callable[[str], State]) -> Answers | Refused:
    """Offer a transaction, and again after a change of the schema that loses nothing of its rows.

    `newest` gives the newest state of a collection. SchemaChanged is raised if values would be lost.
    """
    judge = Judge(newest)
    while judge.looks_again(reply := offer(judge.apply(transaction))):
        pass
    return reply


def _accepted(transaction: Transaction, state: State) -> Transaction:
    """The transaction with the rows of one collection judged by its newest schema."""
    newest = len(state.schemas) - 1
    schema = Schema.decode(state.schemas[newest])
    commands: list[tuple[str, Command]] = []
    for collection, command in transaction.commands:
        written = _schemas_of(command) if collection == state.collection else set()
        for id in sorted(written - {newest}):
            dropped = dropped_between(Schema.decode(state.schemas[id]), schema)
            if dropped:
                raise SchemaChanged(state.collection, id, newest, tuple(field.name for field in dropped))
        commands.append((collection, msgspec.structs.replace(command, judged_by=newest) if written else command))
    return msgspec.structs.replace(transaction, commands=tuple(commands))


def _schemas_of(command: Command) -> set[int]:
    """The schemas under which the new rows of a command were made."""
    match command:
        case Write():
            ids = {command.schema}
        case CompareAndAppend():
            ids = {run.schema for batch in command.batches for run in batch.runs}
        case Append() | AppendNext():
            ids = {run.schema for run in command.batch.runs}
        case _:
            ids = set()
    return {id for id in ids if id is not None}


def dropped_between(written: Schema, newest: Schema) -> list[Field]:
    """The columns that a newer schema does not have."""
    return [field for field in written.fields if not newest.has_id(field.id)]


def made_again(table: pa.Table, written: Schema, newest: Schema) -> tuple[pa.Table, tuple[str, ...]]:
    """Updates as a newer schema has them, and the names of the columns whose values that loses.

    A dropped column loses nothing if every row holds its default there: nobody gave it a value. Rows stay
    distinct and in order: what is dropped or added is the same in all of them, and a wider type orders values as
    the narrow one does.
    """
    lost = [field.name for field in dropped_between(written, newest) if not _is_default(table, field)]
    return project(table, written, newest), tuple(lost)


def _is_default(table: pa.Table, field: Field) -> bool:
    """Whether all rows hold what a column holds that nobody gave a value."""
    column = table.column(field.name)
    default = field.default_scalar()
    if not default.is_valid:
        return bool(column.null_count == len(column))
    return bool(column.null_count == 0 and pc.all(pc.equal(column, default)).as_py() is not False)
