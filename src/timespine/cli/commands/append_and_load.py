"""Verbs that write rows: append, load."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from timespine.cli.error_wording import reword
from timespine.cli.input.parquet_row_counts import RowsPerFile
from timespine.cli.input.read_rows import FileFormat, read_rows
from timespine.cli.input.rereadable_input import STDIN
from timespine.cli.options import (
    ClusterColumnsOption,
    NameArgument,
    OutputOption,
    ReplaceOption,
    RetainOption,
    StorePathArgument,
    TimelineChoice,
    TimelineOption,
    check_path,
    open_store_at,
    parse_frontier_option,
    parse_time_option,
)
from timespine.cli.output.destination import for_document
from timespine.cli.output.format_text import count_text, type_text
from timespine.cli.output.progress import progress, spinner
from timespine.cli.output.row_writers import write_done
from timespine.client.arguments.time_args import plain_frontier
from timespine.errors import UsageError

FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A file, or - for standard input.", show_default=False)
]
FormatOption = Annotated[
    FileFormat | None,
    typer.Option("--format", help="The format of the file, if its suffix is of none.", show_default=False),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="The time of the rows; the default is the next free one.", show_default=False
    ),
]
UpperOption = Annotated[
    list[str] | None,
    typer.Option(
        "--upper",
        metavar="TIME",
        help="The upper after the append: all times below it are complete. May be repeated with several coordinates.",
        show_default=False,
    ),
]
ExpectedUpperOption = Annotated[
    list[str] | None,
    typer.Option(
        "--expected-upper",
        metavar="TIME",
        help="Append only if this is the upper of the collection: else exit code 3. May be repeated like --upper.",
        show_default=False,
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("append")(append_verb)
    app.command("load")(load_verb)


def append_verb(
    store: StorePathArgument,
    name: NameArgument,
    file: FileArgument,
    format: FormatOption = None,
    at: AtOption = None,
    upper: UpperOption = None,
    expected_upper: ExpectedUpperOption = None,
    upsert: Annotated[bool, typer.Option("--upsert", help="Replace the rows with the same keys, or add rows.")] = False,
    output: OutputOption = None,
) -> None:
    """Add the rows of a CSV, JSON lines or Parquet file, all in one commit or none.

    Values must fit the types of the collection. The columns _time and _diff are
    optional. Dates and times are ISO 8601, binary values base64. In CSV an empty
    cell is null, and "" in quotes an empty text. `timespine maintain` merges later.

    \b
    Example:
      timespine append ./data orders orders.csv --at 7
      cat changed.jsonl | timespine append ./data orders - --format json --upsert
    """
    where = for_document(output)
    if upsert and (at is not None or upper or expected_upper):
        raise UsageError("--upsert chooses the time: leave out --at, --upper and --expected-upper")
    check_path(file, "the file")
    moment, complete, expected = (
        parse_time_option(at),
        parse_frontier_option(upper),
        parse_frontier_option(expected_upper),
    )
    with open_store_at(store, writes_rows=True) as open_store:
        collection = open_store.collection(name)
        schema = collection.schema
        with spinner(f"reading {file}") if file != STDIN else nullcontext():  # a person may be typing
            rows = read_rows(file, format, schema)
        with spinner(f"appending {count_text(rows.num_rows, 'row')}"):
            if upsert:
                done = collection.upsert(rows)
            else:
                done = collection.append(rows, at=moment, upper=complete, expected_upper=expected)
    result = {
        "rows": rows.num_rows,
        "updates": done.rows,
        "time": done.time,
        "upper": plain_frontier(done.upper),
        "seqno": done.seqno,
    }
    when = f" at {type_text(done.time)}" if done.time is not None else ""
    what = f"{count_text(rows.num_rows, 'row')}, {count_text(done.rows, 'update')}{when}"
    write_done(where, result, lambda: f"{what}; complete below {type_text(done.upper)}\n")


def load_verb(
    store: StorePathArgument,
    name: NameArgument,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A Parquet file, a folder of them, or a Delta table.", show_default=False),
    ],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME", help="A key column. May be repeated.", show_default=False),
    ] = None,
    cluster: ClusterColumnsOption = None,
    timeline: TimelineOption = TimelineChoice.clock,
    retain: RetainOption = None,
    replace: ReplaceOption = False,
    output: OutputOption = None,
) -> None:
    """Create a collection from a Parquet or Delta table, in one commit.

    \b
    Example:
      timespine load ./data orders ./orders.parquet --key id
    """
    where = for_document(output)
    check_path(path, "what to load")
    source = RowsPerFile(Path(path))
    rows = 0

    def count_rows_so_far(done: int) -> None:
        nonlocal rows
        rows = done
        report(done, source.rows)

    with open_store_at(store, writes_rows=True) as open_store, progress(f"loading {name}") as report:
        try:
            made = open_store.load(
                name,
                path,
                key=key or (),
                cluster=cluster or (),
                progress=count_rows_so_far,
                timeline=timeline.value,
                retain=retain,
                replace=replace,
            )
        except UsageError as error:
            raise reword(error, source.with_file_name(rows, error)) from error
        upper = plain_frontier(made.upper)
    result = {"name": name, "id": made.id, "rows": rows, "upper": upper}
    write_done(
        where, result, lambda: f"{count_text(rows, 'row')} loaded into {name}; complete below {type_text(upper)}\n"
    )
