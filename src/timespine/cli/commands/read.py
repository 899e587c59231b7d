"""Verbs that read rows: snapshot, changes, lookup, tail, listen."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import typer

from timespine.cli.options import (
    AsOf,
    Columns,
    Limit,
    Name,
    Output,
    StorePath,
    To,
    Wait,
    Where,
    opened,
    to_moment,
    to_names,
)
from timespine.cli.output.columns import KeyValues, Null, to_key, to_values
from timespine.cli.output.destination import Destination, Format, Sink, destination
from timespine.cli.output.progress import progress
from timespine.cli.output.row_writers import TextRows, write_rows, writer_for
from timespine.cli.output.text import typed
from timespine.client.read.rows import Rows
from timespine.client.time_args import plain
from timespine.columnar.schema.schema import DIFF, TIME
from timespine.errors import UsageError

Begin = Annotated[bool, typer.Option("--snapshot/--no-snapshot", help="Begin with the rows that are there already.")]

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        help="End after this time without news; else only Ctrl-C ends it.",
        show_default=False,
    ),
]


class Multiplicity(enum.StrEnum):
    """How a row that counts more than once is given."""

    rows = "rows"
    column = "column"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("snapshot")(snapshot)
    app.command("changes")(changes)
    app.command("lookup")(lookup)
    app.command("tail")(tail)
    app.command("listen")(listen)


def snapshot(
    store: StorePath,
    name: Name,
    as_of: AsOf = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    multiplicity: Annotated[
        Multiplicity,
        typer.Option(
            "--multiplicity",
            help="Give each row as often as it counts, or once with its count in the column _diff.",
        ),
    ] = Multiplicity.rows,
    wait: Wait = 0.0,
    output: Output = None,
    to: To = None,
) -> None:
    """Print the rows of a collection as of a time; of the newest complete one, if none is given.

    Takes a lease while it reads, so that nothing it needs is merged away.

    \b
    Example:
      timespine snapshot ./data orders --as-of 7 --where "total > 100" --limit 10
      timespine snapshot ./data orders --as-of 2024-01-31T12:00:00Z --to orders.parquet
    """
    out = destination(output, to)
    names = to_names(columns)
    with opened(store) as open_store:
        rows = open_store.collection(name).snapshot(
            to_moment(as_of), columns=names, where=where, multiplicity=multiplicity.value, timeout=wait
        )
        # Distinct rows of some columns only can be told apart when all of them are there.
        _write(out, rows, limit, whole=multiplicity is Multiplicity.column and names is not None)


def changes(
    store: StorePath,
    name: Name,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="TIME", help="Changes after this time; all there were, if not given.", show_default=False
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Up to and with this time; the newest complete one.", show_default=False
        ),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images",
            help="Pair what went and what came by key, with _change_type: insert, delete, update_preimage, "
            "update_postimage.",
        ),
    ] = False,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    wait: Wait = 0.0,
    output: Output = None,
    to: To = None,
) -> None:
    """Print what changed after one time and up to another: exactly, and net of what came and went.

    Every row has its change of count in _diff. Takes a lease while it reads.

    \b
    Example:
      timespine changes ./data orders --after 3 --until 7
    """
    out = destination(output, to)
    names = to_names(columns)
    with opened(store) as open_store:
        rows = open_store.collection(name).changes(
            to_moment(after), to_moment(until), columns=names, where=where, images=images, timeout=wait
        )
        _write(out, rows, limit, whole=images or names is not None)


def lookup(
    store: StorePath,
    name: Name,
    key: KeyValues = None,
    null: Null = None,
    low: Annotated[
        list[str] | None,
        typer.Option(
            "--low",
            metavar="COLUMN=VALUE",
            help="Only keys from this on: of the key columns that are not given, from the first on. May be repeated.",
            show_default=False,
        ),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option("--high", metavar="COLUMN=VALUE", help="Only keys up to and with this.", show_default=False),
    ] = None,
    as_of: AsOf = None,
    columns: Columns = None,
    wait: Wait = 0.0,
    output: Output = None,
    to: To = None,
) -> None:
    """Print the rows of a key, of all keys that begin with some columns, or of a range of keys.

    There may be none, or several. Takes a lease while it reads. Rows of a collection
    without key columns are known by all of their columns.

    \b
    Example:
      timespine lookup ./data orders id=17
      timespine lookup ./data visits day=2024-01-31 --null user
      timespine lookup ./data visits tenant=acme --low day=2024-01-01 --high day=2024-01-31
    """
    out = destination(output, to)
    with opened(store) as open_store:
        collection = open_store.collection(name)
        schema = collection.schema
        wanted = to_key(key, null, schema, whole=not schema.key)
        names = schema.key_names
        ends = [to_values(end, (), schema, names, "a key column") if end else None for end in (low, high)]
        if wanted is None and not any(ends):
            raise UsageError(
                f"say which rows: COLUMN=VALUE, --null COLUMN, --low or --high; key columns: {', '.join(names)}"
            )
        between = (ends[0], ends[1]) if any(ends) else None
        found = collection.lookup(wanted, to_moment(as_of), between=between, columns=to_names(columns), timeout=wait)
        assert isinstance(found, pa.Table)
    write_rows(out, found.schema, found.to_batches())


def tail(
    store: StorePath,
    name: Name,
    as_of: AsOf = None,
    columns: Columns = None,
    where: Where = None,
    snapshot: Begin = True,
    timeout: Timeout = None,
    output: Output = None,
) -> None:
    """Follow a collection: its rows as of a time, then every update as it comes, until Ctrl-C.

    Each row has its _time and _diff. With JSON, lines that say {"_progress": T}
    mean that everything up to T has been told. Holds a lease that moves along, and
    is given back at the end.

    \b
    Example:
      timespine tail ./data orders --output json
    """
    out = _endless(output)
    with opened(store) as open_store:
        feed = open_store.collection(name).subscribe(
            to_moment(as_of), columns=to_names(columns), where=where, snapshot=snapshot, timeout=timeout
        )
        with feed, out.open() as stream:
            follower = _Follower(out, stream)
            for event in feed:
                if event.rows is not None:
                    follower.tell(_timed(event.rows, event.through))
                else:
                    follower.say("_progress", event.through, f"complete through {typed(event.through)}")


def listen(
    store: StorePath,
    name: Name,
    columns: Columns = None,
    where: Where = None,
    snapshot: Begin = True,
    timeout: Timeout = None,
    output: Output = None,
) -> None:
    """Hear every commit of a collection as it is committed, until Ctrl-C.

    First all updates that are there, then those of each commit, also at times that are
    not complete yet. With JSON, lines that say {"_sealed": T} mean that nothing more
    will come before T. Holds a lease that moves along, and is given back at the end.

    \b
    Example:
      timespine listen ./data orders --output json
    """
    out = _endless(output)
    with opened(store) as open_store:
        listener = open_store.collection(name).listen(
            columns=to_names(columns), where=where, snapshot=snapshot, timeout=timeout
        )
        with listener, out.open() as stream:
            follower = _Follower(out, stream)
            for event in listener:
                if event.rows is not None:
                    follower.tell(event.rows)
                else:
                    follower.say("_sealed", plain(event.upper), f"sealed up to {typed(event.upper)}")


def _endless(output: Format | None) -> Destination:
    """Where rows go that never end."""
    out = destination(output, None)
    if out.format is Format.parquet:
        raise UsageError("a feed has no end, and a Parquet file needs one: use --output text, json or csv")
    return out


class _Follower:
    """Writes events as they come, each at once."""

    def __init__(self, where: Destination, stream: Sink) -> None:
        self._where = where
        self._stream = stream
        self._writer = None if where.format is not Format.json else writer_for(where, stream, pa.schema([]))

    def tell(self, table: pa.Table) -> None:
        """Write rows."""
        if self._writer is None:
            self._writer = writer_for(self._where, self._stream, table.schema)
        for batch in table.to_batches():
            self._writer.write(batch)
        self._stream.flush()

    def say(self, what: str, value: Any, text: str) -> None:
        """Write how far it is: a line of its own in JSON, a remark in text, nothing where there are only rows."""
        if self._where.format is Format.json:
            self._stream.write(msgspec.json.encode({what: value}) + b"\n")
        elif isinstance(self._writer, TextRows):
            self._writer.line(f"-- {text}")
        self._stream.flush()


def _timed(table: pa.Table, time: int) -> pa.Table:
    """Rows with their times: those of a snapshot stand at the time that it is of."""
    if TIME in table.column_names:
        return table
    times = pa.array([time] * table.num_rows, pa.int64())
    return table.add_column(table.column_names.index(DIFF), TIME, times)


def _write(out: Destination, rows: Rows, limit: int | None, *, whole: bool) -> None:
    """Write rows as they are read, or all at once where they cannot be given piece by piece."""
    with rows, progress("reading", shown=not out.is_terminal) as told:
        if whole:
            table = rows.to_arrow()
            write_rows(out, table.schema, table.to_batches(), limit=limit)
            return
        batches: Iterator[pa.RecordBatch] = rows.batches()
        with closing(batches):  # type: ignore[type-var]
            write_rows(out, rows.schema, batches, limit=limit, told=lambda done: told(done, None))
