"""Verbs for times that are not complete yet: write, seal, seal-idle, unsealed."""

from __future__ import annotations

import enum
from contextlib import nullcontext
from typing import Annotated

import typer

from timespine.cli.commands.append_and_load import FileArgument, FormatOption
from timespine.cli.input.read_rows import read_rows
from timespine.cli.input.rereadable_input import STDIN
from timespine.cli.options import (
    ColumnsOption,
    LimitOption,
    NameArgument,
    OutputOption,
    StorePathArgument,
    ToOption,
    WhereOption,
    check_path,
    open_store_at,
    parse_frontier_option,
    parse_time_option,
    to_names,
)
from timespine.cli.output.destination import destination, for_document
from timespine.cli.output.format_text import count_text, type_text
from timespine.cli.output.progress import spinner
from timespine.cli.output.row_writers import write_done, write_rows
from timespine.client.arguments.time_args import plain_frontier
from timespine.errors import UsageError


class Late(enum.StrEnum):
    """The policy for late rows."""

    refuse = "refuse"
    drop = "drop"
    move = "move"


class Behind(enum.StrEnum):
    """The action for a collection that is sealed further."""

    error = "error"
    ignore = "ignore"


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("write")(write_verb)
    app.command("seal")(seal_verb)
    app.command("seal-idle")(seal_idle_verb)
    app.command("unsealed")(unsealed_verb)


def write_verb(
    store: StorePathArgument,
    name: NameArgument,
    file: FileArgument,
    format: FormatOption = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="The time of all rows.", show_default=False)
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            "--time-column",
            metavar="NAME",
            help="The column with the times: one of the collection, or an extra one of whole numbers.",
            show_default=False,
        ),
    ] = None,
    late: Annotated[
        Late, typer.Option("--late", help="Refuse late rows, drop them, or move them to a time that is not complete.")
    ] = Late.refuse,
    output: OutputOption = None,
) -> None:
    """Make the rows of a file durable ahead of the seal: at times that are not complete yet, in any order.

    They become part of the collection when `timespine seal` makes their times complete.
    The times are in the column _time, in the one that --time-column names, or all --at one.

    \b
    Example:
      timespine write ./data events late.csv --time-column minute --late move
      timespine seal ./data events --at 10
    """
    where = for_document(output)
    check_path(file, "the file")
    moment = parse_time_option(at)
    with open_store_at(store, writes_rows=True) as open_store:
        collection = open_store.collection(name)
        schema = collection.schema
        if time_column is not None and time_column not in (*schema.names, *schema.system_names):
            schema = schema.add(time_column, "int64")
        with spinner(f"reading {file}") if file != STDIN else nullcontext():  # a person may be typing
            rows = read_rows(file, format, schema)
        with spinner(f"writing {count_text(rows.num_rows, 'row')}"):
            done = collection.write(rows, at=moment, times=time_column, late=late.value)
    result = {
        "rows": rows.num_rows,
        "updates": done.rows,
        "first": done.first,
        "last": done.last,
        "late": done.late,
        "seqno": done.seqno,
    }
    start = "" if done.first is None else f"from {type_text(done.first)} "
    span = f"{start}up to {type_text(done.last)}"
    when = f" {span}" if done.rows else ""
    too_late = f"; {count_text(done.late, 'row')} came too late ({late.value})" if done.late else ""
    said = f"{count_text(rows.num_rows, 'row')}, {count_text(done.rows, 'update')}{when}{too_late}\n"
    write_done(where, result, lambda: said)


def seal_verb(
    store: StorePathArgument,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The names of the collections.", show_default=False)
    ],
    at: Annotated[
        list[str],
        typer.Option(
            "--at",
            metavar="TIME",
            help="The new upper: no updates come before this time. May be repeated with several coordinates.",
            show_default=False,
        ),
    ],
    if_behind: Annotated[
        Behind, typer.Option("--if-behind", help="The action for a collection that is sealed further.")
    ] = Behind.error,
    output: OutputOption = None,
) -> None:
    """Seal collections: no more updates come before a time, in all of them or in none.

    The rows written before that time become part of them. The same time again
    changes nothing; an earlier one is an error, unless --if-behind ignores it.

    \b
    Example:
      timespine seal ./data orders items --at 10
      timespine seal ./data prices --at 3,0 --at 0,3
    """
    where = for_document(output)
    upper = parse_frontier_option(at)
    assert upper is not None
    with open_store_at(store, writes_rows=True) as open_store:
        sealed = open_store.seal(names, upper, if_behind=if_behind.value)
    reached = {name: plain_frontier(each.upper) for name, each in sealed.items()}
    write_done(
        where,
        {"upper": reached, "seqno": {name: each.seqno for name, each in sealed.items()}},
        lambda: "".join(f"{name} is complete below {type_text(upper)}\n" for name, upper in reached.items()),
    )


def seal_idle_verb(
    store: StorePathArgument,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="The new upper: no updates come before this time; the default is now.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Seal all collections of the wall clock that are behind a time, so that idle ones are readable as of it.

    Collections that are sealed further stay as they are.

    \b
    Example:
      timespine seal-idle ./data
      timespine seal-idle ./data --at 2024-01-31T12:00:00Z
    """
    where = for_document(output)
    upper = parse_time_option(at)
    if isinstance(upper, tuple):
        raise UsageError("collections of the wall clock are sealed at one time: --at 10")
    with open_store_at(store, writes_rows=True) as open_store:
        reached = open_store.seal_idle(upper)
    write_done(
        where,
        {"upper": reached},
        lambda: f"every collection of the wall clock is complete below {type_text(reached)}\n",
    )


def unsealed_verb(
    store: StorePathArgument,
    name: NameArgument,
    lower: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Only updates at this time or after it.", show_default=False),
    ] = None,
    upper: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Only updates before this time.", show_default=False)
    ] = None,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    limit: LimitOption = None,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Print the unsealed updates of a collection, with _time and _diff.

    \b
    Example:
      timespine unsealed ./data events --before 20
    """
    out = destination(output, to)
    names = to_names(columns)
    with open_store_at(store) as open_store:
        rows = open_store.collection(name).unsealed(
            parse_time_option(lower), parse_time_option(upper), columns=names, where=where
        )
        with rows:
            table = rows.to_arrow()
    write_rows(out, table.schema, table.to_batches(), limit=limit)
