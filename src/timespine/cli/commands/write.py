"""Verbs about what is not complete yet: write, seal, advance, unsealed."""

from __future__ import annotations

import datetime
import enum
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from timespine.cli.commands.append import File, FormatOption
from timespine.cli.input.read_rows import read_rows
from timespine.cli.input.source import STDIN
from timespine.cli.options import (
    Columns,
    Limit,
    Name,
    Output,
    StorePath,
    To,
    Where,
    check_path,
    opened,
    to_moment,
    to_names,
    to_progress,
)
from timespine.cli.output.destination import destination, for_document
from timespine.cli.output.progress import waiting
from timespine.cli.output.row_writers import write_done, write_rows
from timespine.cli.output.text import counted, typed
from timespine.client.time_args import plain
from timespine.errors import UsageError


class Late(enum.StrEnum):
    """What becomes of rows whose time is sealed already."""

    refuse = "refuse"
    drop = "drop"
    move = "move"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("write")(write)
    app.command("seal")(seal)
    app.command("advance")(advance)
    app.command("unsealed")(unsealed)


def write(
    store: StorePath,
    name: Name,
    file: File,
    format: FormatOption = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="The time of all rows.", show_default=False)
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            "--time-column",
            metavar="NAME",
            help="The column that has the times: one of the collection, or one more, of whole numbers.",
            show_default=False,
        ),
    ] = None,
    late: Annotated[
        Late, typer.Option("--late", help="Refuse rows whose time is sealed, drop them, or move them to an open one.")
    ] = Late.refuse,
    output: Output = None,
) -> None:
    """Make the rows of a file durable ahead of the seal: at times that are not complete yet, in any order.

    They become part of the collection when `timespine seal` says that nothing more
    comes before their time. Their times are in the column _time, in one that
    --time-column names, or all --at one.

    \b
    Example:
      timespine write ./data events late.csv --time-column minute --late move
      timespine seal ./data events --at 10
    """
    where = for_document(output)
    check_path(file, "the file")
    moment = to_moment(at)
    with opened(store, writes_rows=True) as open_store:
        collection = open_store.collection(name)
        schema = collection.schema
        if time_column is not None and time_column not in (*schema.names, *schema.system_names):
            schema = schema.add(time_column, "int64")
        with waiting(f"reading {file}") if file != STDIN else nullcontext():  # a person may be typing
            rows = read_rows(file, format, schema)
        with waiting(f"writing {counted(rows.num_rows, 'row')}"):
            done = collection.write(rows, at=moment, times=time_column, late=late.value)
    result = {
        "rows": rows.num_rows,
        "updates": done.rows,
        "first": done.first,
        "last": done.last,
        "late": done.late,
        "seqno": done.seqno,
    }
    start = "" if done.first is None else f"from {typed(done.first)} "
    span = f"{start}up to {typed(done.last)}"
    when = f" {span}" if done.rows else ""
    too_late = f"; {counted(done.late, 'row')} came too late ({late.value})" if done.late else ""
    said = f"{counted(rows.num_rows, 'row')}, {counted(done.rows, 'update')}{when}{too_late}\n"
    write_done(where, result, lambda: said)


def seal(
    store: StorePath,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The names of the collections.", show_default=False)
    ],
    at: Annotated[
        list[str],
        typer.Option(
            "--at",
            metavar="TIME",
            help="Nothing more comes before this time. With several coordinates it may be repeated.",
            show_default=False,
        ),
    ],
    output: Output = None,
) -> None:
    """Say that nothing more comes before a time: of all these collections, or of none.

    What was written before it is part of them from now on. The same time again
    changes nothing; an earlier one is an error.

    \b
    Example:
      timespine seal ./data orders items --at 10
      timespine seal ./data prices --at 3,0 --at 0,3
    """
    where = for_document(output)
    upper = to_progress(at)
    assert upper is not None
    with opened(store, writes_rows=True) as open_store:
        sealed = open_store.seal(names, upper)
    reached = {name: plain(each.upper) for name, each in sealed.items()}
    write_done(
        where,
        {"upper": reached, "seqno": {name: each.seqno for name, each in sealed.items()}},
        lambda: "".join(f"{name} is complete below {typed(upper)}\n" for name, upper in reached.items()),
    )


def advance(
    store: StorePath,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A collection; all, if none is named.", show_default=False)
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Nothing more comes before this time; now, for all collections. May be repeated as with seal.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Say that nothing more comes before a time, and change nothing where that was said already.

    Without a name, of all collections whose times are those of the wall clock: then
    idle ones can be read as of the same time as the others.

    \b
    Example:
      timespine advance ./data
      timespine advance ./data orders --at 10
    """
    where = for_document(output)
    upper = to_progress(at)
    if name is not None and upper is None:
        raise UsageError("say which time: --at 10")
    with opened(store, writes_rows=True) as open_store:
        if name is not None and upper is not None:
            sealed = open_store.collection(name).advance(upper)
            result: dict[str, Any] = {"upper": plain(sealed.upper), "seqno": sealed.seqno}
        elif upper is None or isinstance(upper, int | datetime.datetime):
            result = {"upper": open_store.advance(upper)}
        else:
            raise UsageError(
                "all collections are advanced to one time of the wall clock: name one collection, or one time"
            )
    what = name if name is not None else "every collection of the wall clock"
    write_done(where, result, lambda: f"{what} is complete below {typed(result['upper'])}\n")


def unsealed(
    store: StorePath,
    name: Name,
    lower: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Only updates at this time or after it.", show_default=False),
    ] = None,
    upper: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Only updates before this time.", show_default=False)
    ] = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    output: Output = None,
    to: To = None,
) -> None:
    """Print the updates that were written ahead of the seal and are not sealed yet, with _time and _diff.

    \b
    Example:
      timespine unsealed ./data events --before 20
    """
    out = destination(output, to)
    names = to_names(columns)
    with opened(store) as open_store:
        rows = open_store.collection(name).unsealed(to_moment(lower), to_moment(upper), columns=names, where=where)
        with rows:
            table = rows.to_arrow()
    write_rows(out, table.schema, table.to_batches(), limit=limit)
