"""Verbs that read rows: snapshot, changes, lookup, tail, listen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import typer

from timespine.cli.input.column_values import KeyValuesArgument, NullOption, to_key, to_values
from timespine.cli.options import (
    AsOfOption,
    ColumnsOption,
    LimitOption,
    MultiplicityChoice,
    MultiplicityOption,
    NameArgument,
    OutputOption,
    StorePathArgument,
    ToOption,
    WaitOption,
    WhereOption,
    open_store_at,
    parse_time_option,
    to_names,
)
from timespine.cli.output.destination import Destination, OutputFormat, OutputStream, destination
from timespine.cli.output.format_text import type_text
from timespine.cli.output.progress import progress
from timespine.cli.output.row_writers import TextRows, write_rows, writer_for
from timespine.client.arguments.time_args import plain_frontier
from timespine.client.read.rows import Rows
from timespine.columnar.schema.schema import DIFF, TIME
from timespine.errors import UsageError

BeginOption = Annotated[bool, typer.Option("--snapshot/--no-snapshot", help="Begin with the present rows.")]

TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        help="End after this time without an update; the default is to run until Ctrl-C.",
        show_default=False,
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("snapshot")(snapshot_verb)
    app.command("changes")(changes_verb)
    app.command("lookup")(lookup_verb)
    app.command("tail")(tail_verb)
    app.command("listen")(listen_verb)


def snapshot_verb(
    store: StorePathArgument,
    name: NameArgument,
    as_of: AsOfOption = None,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    limit: LimitOption = None,
    multiplicity: MultiplicityOption = MultiplicityChoice.rows,
    wait: WaitOption = 0.0,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Print the rows of a collection as of a time; the default is the newest complete one.

    Holds a lease while it reads, so that no other process deletes what it needs.

    \b
    Example:
      timespine snapshot ./data orders --as-of 7 --where "total > 100" --limit 10
      timespine snapshot ./data orders --as-of 2024-01-31T12:00:00Z --to orders.parquet
    """
    out = destination(output, to)
    names = to_names(columns)
    with open_store_at(store, reads=True) as open_store:
        rows = open_store.collection(name).snapshot(
            parse_time_option(as_of), columns=names, where=where, multiplicity=multiplicity.value, timeout=wait
        )
        # Without all columns, distinct rows can look equal.
        _write(out, rows, limit, whole=multiplicity is MultiplicityChoice.column and names is not None)


def changes_verb(
    store: StorePathArgument,
    name: NameArgument,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="TIME", help="Changes after this time; the default is all.", show_default=False
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Changes up to and including this time; the default is the newest complete one.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images",
            help="Pair retracted and added rows by key, with _change_type: insert, delete, update_preimage, "
            "update_postimage.",
        ),
    ] = False,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    limit: LimitOption = None,
    wait: WaitOption = 0.0,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Print the exact net changes after one time and up to another.

    Every row has its change of count in _diff. Holds a lease while it reads.

    \b
    Example:
      timespine changes ./data orders --after 3 --until 7
    """
    out = destination(output, to)
    names = to_names(columns)
    with open_store_at(store, reads=True) as open_store:
        rows = open_store.collection(name).changes(
            parse_time_option(after), parse_time_option(until), columns=names, where=where, images=images, timeout=wait
        )
        _write(out, rows, limit, whole=images or names is not None)


def lookup_verb(
    store: StorePathArgument,
    name: NameArgument,
    key: KeyValuesArgument = None,
    null: NullOption = None,
    low: Annotated[
        list[str] | None,
        typer.Option(
            "--low",
            metavar="COLUMN=VALUE",
            help="The lowest key of the range, by the key columns after the given ones. May be repeated.",
            show_default=False,
        ),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option(
            "--high", metavar="COLUMN=VALUE", help="The highest key of the range. May be repeated.", show_default=False
        ),
    ] = None,
    as_of: AsOfOption = None,
    columns: ColumnsOption = None,
    wait: WaitOption = 0.0,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Print the rows of a key, of all keys that begin with some columns, or of a range of keys.

    There may be none, or several. Holds a lease while it reads. In a collection
    without key columns, all columns together are the key.

    \b
    Example:
      timespine lookup ./data orders id=17
      timespine lookup ./data visits day=2024-01-31 --null user
      timespine lookup ./data visits tenant=acme --low day=2024-01-01 --high day=2024-01-31
    """
    out = destination(output, to)
    with open_store_at(store, reads=True) as open_store:
        collection = open_store.collection(name)
        schema = collection.schema
        wanted = to_key(key, null, schema, whole=not schema.key)
        names = schema.key_names
        ends = [to_values(end, (), schema, names, "a key column") if end else None for end in (low, high)]
        if wanted is None and not any(ends):
            raise UsageError(
                f"name the rows: COLUMN=VALUE, --null COLUMN, --low or --high; key columns: {', '.join(names)}"
            )
        between = (ends[0], ends[1]) if any(ends) else None
        found = collection.lookup(
            wanted, parse_time_option(as_of), between=between, columns=to_names(columns), timeout=wait
        )
    write_rows(out, found.schema, found.to_batches())


def tail_verb(
    store: StorePathArgument,
    name: NameArgument,
    as_of: AsOfOption = None,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    snapshot: BeginOption = True,
    timeout: TimeoutOption = None,
    output: OutputOption = None,
) -> None:
    """Follow a collection: its rows as of a time, then every update as it becomes complete, until Ctrl-C.

    Each row has its _time and _diff. With JSON, a line {"_progress": T} means that
    all updates up to T are printed. Holds a lease, and ends it afterwards.

    \b
    Example:
      timespine tail ./data orders --output json
    """
    out = _endless(output)
    with open_store_at(store, reads=True) as open_store:
        feed = open_store.collection(name).subscribe(
            parse_time_option(as_of), columns=to_names(columns), where=where, snapshot=snapshot, timeout=timeout
        )
        with feed, out.open() as stream:
            follower = _Follower(out, stream)
            for event in feed:
                if event.rows is not None:
                    follower.write_table(_with_time_column(event.rows, event.through))
                else:
                    follower.say("_progress", event.through, f"complete through {type_text(event.through)}")


def listen_verb(
    store: StorePathArgument,
    name: NameArgument,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    snapshot: BeginOption = True,
    timeout: TimeoutOption = None,
    output: OutputOption = None,
) -> None:
    """Print every commit of a collection as it happens, until Ctrl-C.

    First all present updates, then those of each commit, also at times that are
    not complete yet. With JSON, a line {"_sealed": T} means that no more updates
    come before T. Holds a lease, and ends it afterwards.

    \b
    Example:
      timespine listen ./data orders --output json
    """
    out = _endless(output)
    with open_store_at(store, reads=True) as open_store:
        listener = open_store.collection(name).listen(
            columns=to_names(columns), where=where, snapshot=snapshot, timeout=timeout
        )
        with listener, out.open() as stream:
            follower = _Follower(out, stream)
            for event in listener:
                if event.rows is not None:
                    follower.write_table(event.rows)
                else:
                    follower.say("_sealed", plain_frontier(event.upper), f"sealed up to {type_text(event.upper)}")


def _endless(output: OutputFormat | None) -> Destination:
    """Return the destination of rows without an end; refuse Parquet."""
    out = destination(output, None)
    if out.format is OutputFormat.parquet:
        raise UsageError("a feed has no end, and a Parquet file needs one: use --output text, json or csv")
    return out


class _Follower:
    """A writer of events, which flushes each of them at once."""

    def __init__(self, where: Destination, stream: OutputStream) -> None:
        self._where = where
        self._stream = stream
        self._writer = None if where.format is not OutputFormat.json else writer_for(where, stream, pa.schema([]))

    def write_table(self, table: pa.Table) -> None:
        """Write rows."""
        if self._writer is None:
            self._writer = writer_for(self._where, self._stream, table.schema)
        for batch in table.to_batches():
            self._writer.write(batch)
        self._stream.flush()

    def say(self, what: str, value: Any, text: str) -> None:
        """Write the progress: a line of its own in JSON, a remark in text, nothing in formats of rows only."""
        if self._where.format is OutputFormat.json:
            self._stream.write(msgspec.json.encode({what: value}) + b"\n")
        elif isinstance(self._writer, TextRows):
            self._writer.line(f"-- {text}")
        self._stream.flush()


def _with_time_column(table: pa.Table, time: int) -> pa.Table:
    """Add the column of times to rows: those of a snapshot have its as-of time."""
    if TIME in table.column_names:
        return table
    times = pa.array([time] * table.num_rows, pa.int64())
    return table.add_column(table.column_names.index(DIFF), TIME, times)


def _write(out: Destination, rows: Rows, limit: int | None, *, whole: bool) -> None:
    """Write rows as they are read, or all at once if they cannot be read in pieces."""
    with rows, progress("reading", shown=not out.is_terminal) as told:
        if whole:
            table = rows.to_arrow()
            write_rows(out, table.schema, table.to_batches(), limit=limit)
            return
        batches: Iterator[pa.RecordBatch] = rows.batches()
        with closing(batches):  # type: ignore[type-var]
            write_rows(out, rows.schema, batches, limit=limit, told=lambda done: told(done, None))
