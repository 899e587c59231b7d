"""Check rows that were made under an older schema: accept them if no value is lost, refuse them otherwise.

The core compares ids of schemas and refuses rows of an older one. This module compares
the schemas. No value is lost if the newest one has every column that the older one had,
by its id: a read sees added, renamed or widened columns through the newest schema. So
the same runs are committed again, with the id of the schema that they were judged by.
The values of a dropped column are lost, also if another column has its name now.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from timespine.client.commit.retry_limits import RETRY
from timespine.columnar.ingest.update_table import project_rows
from timespine.columnar.schema.schema import Field, Schema
from timespine.core.group import Answers, CommandTransaction, Refused
from timespine.core.state import State
from timespine.core.transitions import Append, AppendNext, Command, CompareAndAppend, Write
from timespine.errors import SchemaChanged
from timespine.libraries import pc

OfferTransaction = Callable[[CommandTransaction], Answers | Refused]


class SchemaCheck:
    """The judge of the rows of one transaction by the newest schemas, after a commit was refused because of them."""

    def __init__(self, newest: Callable[[str], State]) -> None:
        self._newest = newest
        """The function that reads the newest state of a collection."""
        self._states: dict[str, State] = {}
        self._left = RETRY.schema_judgements

    def apply(self, transaction: CommandTransaction) -> CommandTransaction:
        """Return the transaction with the newest schemas; raise SchemaChanged if values would be lost."""
        for state in self._states.values():
            transaction = _with_newest_schema(transaction, state)
        return transaction

    def looks_again(self, reply: Answers | Refused) -> bool:
        """Return whether a commit was refused because of a schema not yet judged by, and may be tried again."""
        if self._left == 0 or not isinstance(reply, Refused) or not isinstance(reply.reason, SchemaChanged):
            return False
        self._left -= 1
        self._states[reply.reason.collection] = self._newest(reply.reason.collection)
        return True


def offer_checked(
    transaction: CommandTransaction, offer: OfferTransaction, newest: Callable[[str], State]
) -> Answers | Refused:
    """Offer a transaction, and again after a change of the schema by which its rows lose no value.

    `newest` reads the newest state of a collection. Raise SchemaChanged if values would be lost.
    """
    check = SchemaCheck(newest)
    while check.looks_again(reply := offer(check.apply(transaction))):
        pass
    return reply


def _with_newest_schema(transaction: CommandTransaction, state: State) -> CommandTransaction:
    """Judge the rows of one collection by its newest schema; return the transaction with its id."""
    newest = len(state.schemas) - 1
    schema = Schema.decode(state.schemas[newest])
    commands: list[tuple[str, Command]] = []
    for collection, command in transaction.commands:
        written = _schemas_of(command) if collection == state.collection else set()
        for id in sorted(written - {newest}):
            dropped = dropped_columns(Schema.decode(state.schemas[id]), schema)
            if dropped:
                raise SchemaChanged(state.collection, id, newest, tuple(field.name for field in dropped))
        commands.append((collection, msgspec.structs.replace(command, judged_by=newest) if written else command))
    return msgspec.structs.replace(transaction, commands=tuple(commands))


def _schemas_of(command: Command) -> set[int]:
    """Return the schemas under which the new rows of a command were made."""
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


def dropped_columns(written: Schema, newest: Schema) -> list[Field]:
    """List the columns that a newer schema lacks."""
    return [field for field in written.fields if not newest.has_id(field.id)]


def convert_to_newest(table: pa.Table, written: Schema, newest: Schema) -> tuple[pa.Table, tuple[str, ...]]:
    """Convert updates to a newer schema; also return the names of the columns whose values that loses.

    A dropped column loses nothing if every row has its default there: no caller gave it a value. Rows stay
    distinct and in order: dropped and added columns are the same in all of them, and a wider type orders values as
    the narrow one does.
    """
    lost = [field.name for field in dropped_columns(written, newest) if not _is_default(table, field)]
    return project_rows(table, written, newest), tuple(lost)


def _is_default(table: pa.Table, field: Field) -> bool:
    """Return whether all rows have the default of a column."""
    column = table.column(field.name)
    default = field.default_scalar()
    if not default.is_valid:
        return bool(column.null_count == len(column))
    return bool(column.null_count == 0 and pc.all(pc.equal(column, default)).as_py() is not False)
