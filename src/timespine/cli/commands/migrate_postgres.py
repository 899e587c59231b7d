"""The verb about databases of logs: migrate."""

from __future__ import annotations

from typing import Annotated

import typer

from timespine.cli.options import OutputOption
from timespine.cli.output.destination import for_document
from timespine.cli.output.row_writers import write_done
from timespine.errors import UsageError
from timespine.location.opening.consensus_address import POSTGRESQL, parse_consensus, to_conninfo
from timespine.location.opening.extras import needs

AddressArgument = Annotated[
    str,
    typer.Argument(metavar="ADDRESS", help="The database: postgresql://user@host:port/database.", show_default=False),
]
WritersOption = Annotated[
    list[str] | None,
    typer.Option("--writer", metavar="ROLE", help="Let this role read and write logs. May be repeated."),
]
ReadersOption = Annotated[
    list[str] | None, typer.Option("--reader", metavar="ROLE", help="Let this role read logs. May be repeated.")
]


def add_commands(app: typer.Typer) -> None:
    """Add the verb to the application."""
    app.command("migrate")(migrate_verb)


def migrate_verb(
    address: AddressArgument,
    writers: WritersOption = None,
    readers: ReadersOption = None,
    print_sql: Annotated[bool, typer.Option("--sql", help="Print the statements, and run none.")] = False,
    output: OutputOption = None,
) -> None:
    """Create or upgrade the tables in PostgreSQL that hold the logs of stores in buckets.

    The role that runs it owns the tables. Other roles get the rights that they need, and no more. Repeating it is
    harmless. Passwords come from PGPASSFILE, a service file or PGPASSWORD.

    \b
    Example:
      timespine migrate postgresql://admin@db.internal/timespine --writer app --reader reports
      timespine migrate postgresql://admin@db.internal/timespine --sql
    """
    where = for_document(output)
    parsed = parse_consensus(address)
    if parsed.kind != POSTGRESQL:
        raise UsageError("only a PostgreSQL database has tables to migrate: give postgresql://host/database")
    with needs("psycopg", "postgresql", "postgres"):
        from timespine.location.postgres.migration import migrate, migration_sql
    if print_sql:
        typer.echo(migration_sql(writers=writers or (), readers=readers or ()), nl=False)
        return
    before, after = migrate(to_conninfo(parsed), writers=writers or (), readers=readers or ())
    text = f"the tables are of version {after}" + (" already" if before == after else f", from {before}" * bool(before))
    write_done(where, {"database": parsed.at, "before": before, "after": after}, lambda: f"{text}\n")
