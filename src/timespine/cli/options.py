"""Arguments and options that several verbs share, and their parsers."""

from __future__ import annotations

import csv
import datetime
import enum
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import timespine as ts
from timespine.cli.output.destination import OutputFormat
from timespine.client.arguments.time_args import FrontierLike, TimeLike
from timespine.errors import UsageError, short_repr

StorePathArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="The store: the path of a folder, or a URL such as s3://bucket/prefix.",
        show_default=False,
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the collection.", show_default=False)]
OutputOption = Annotated[
    OutputFormat | None,
    typer.Option(
        "--output",
        "-o",
        help="The format of the result: text for people; json, a document or one line per row; csv; parquet. "
        "The default is that of the suffix of the file after --to, or text.",
        show_default=False,
    ),
]
ToOption = Annotated[
    Path | None,
    typer.Option("--to", metavar="FILE", help="Write to a file instead of standard output.", show_default=False),
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="The time: a number, or a date and time with its zone, such as 2024-01-31T12:00:00Z.",
        show_default=False,
    ),
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="A,B", help="Only these columns, in this order.", show_default=False)
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="Only rows that this condition selects, such as \"total > 5 AND customer LIKE 'a%'\".",
        show_default=False,
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=0, help="The largest number of rows.", show_default=False)
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="The longest wait until the time is complete.",
        show_default=False,
    ),
]


class TimelineChoice(enum.StrEnum):
    """The source of the next free time."""

    clock = "clock"
    counter = "counter"


class MultiplicityChoice(enum.StrEnum):
    """The output of a row that counts more than once."""

    rows = "rows"
    column = "column"


MultiplicityOption = Annotated[
    MultiplicityChoice,
    typer.Option(
        "--multiplicity",
        help="Repeat each row by its count, or print it once with its count in the column _diff.",
    ),
]

TimelineOption = Annotated[
    TimelineChoice,
    typer.Option("--timeline", help="Times are milliseconds of the wall clock, or count 0, 1, 2."),
]
ClusterColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", metavar="NAME", help="Sort rows by this column first. May be repeated.", show_default=False
    ),
]
RetainOption = Annotated[
    str | None,
    typer.Option(
        "--retain",
        metavar="DURATION",
        help="How long to keep history, such as '7 days', or 'for ever'; the default is the policy of the store.",
        show_default=False,
    ),
]
ForgetWithinOption = Annotated[
    str | None,
    typer.Option(
        "--forget-within",
        metavar="DURATION",
        help="How long expired history may stay on disk, such as '1 hour'.",
        show_default=False,
    ),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Drop an existing collection of that name, and reuse the name.")
]


@contextmanager
def open_store_at(
    store: str, *, create: bool = False, read_only: bool = False, writes_rows: bool = False, reads: bool = False
) -> Iterator[ts.Store]:
    """Open an existing store.

    A verb that writes rows also runs the maintenance thread; other verbs do nothing in the background. A verb that
    `reads` opens a copy for reading only: no process may write there, not even a lease.
    """
    check_path(store, "the location of the store")
    if reads:
        with ts.open(store, create=False, maintenance=False) as found:
            try:
                found.names()
            except ts.ReadOnlyStore:
                read_only = True
            else:
                yield found
                return
    with ts.open(store, create=create, read_only=read_only, maintenance=writes_rows) as found:
        yield found


def check_path(given: str, what: str) -> None:
    """Refuse an empty path, for example from an unset variable: it would mean the current folder."""
    if not given:
        raise UsageError(f"{what} is empty: give a path")


_INTEGER = re.compile(r"[+-]?\d{1,30}")


def parse_time_option(text: str | None) -> TimeLike | None:
    """Parse a time: a number, one per coordinate, or a date and time with its zone."""
    if text is None:
        return None
    pieces = [piece.strip() for piece in text.split(",")]
    if all(_INTEGER.fullmatch(piece) for piece in pieces):
        numbers = tuple(map(int, pieces))
        return numbers[0] if len(numbers) == 1 else numbers
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"{short_repr(text)} is not a time: give a number, or a date and time with its zone: 2024-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise UsageError(f"{short_repr(text)} has no zone: add one, such as 2024-01-31T12:00:00Z")
    return moment


def parse_frontier_option(texts: Sequence[str] | None) -> FrontierLike | None:
    """Parse a frontier: a time, or with several coordinates more than one."""
    times = [parse_time_option(text) for text in texts or ()]
    moments = [each for each in times if each is not None]
    if len(moments) < 2:
        return moments[0] if moments else None
    return moments


def to_names(text: str | None) -> list[str] | None:
    """Parse names separated by commas; a name that contains a comma is in quotes."""
    return None if text is None else [name.strip() for name in next(csv.reader([text]), [])]


def to_types(given: Sequence[str], option: str) -> dict[str, str]:
    """Parse columns, name:type."""
    types: dict[str, str] = {}
    for each in given:
        name, colon, type = each.partition(":")
        if not colon or not name or not type:
            raise UsageError(f"{option} {short_repr(each)} is not a column: give its name and type, such as id:int64")
        if name in types:
            raise UsageError(f"{option} names {short_repr(name)} twice")
        types[name] = type
    return types
