"""Arguments and options that several verbs share, and how their texts are read."""

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
from timespine.cli.output.destination import Format
from timespine.client.time_args import Moment, Progress
from timespine.errors import UsageError, shown

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The folder of the store.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the collection.", show_default=False)]
Output = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        help="How to write the result: text for people; json, a document or one line per row; csv; parquet. "
        "If it is not given, the name of the file after --to decides, else text.",
        show_default=False,
    ),
]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="FILE", help="Write to a file instead of standard output.", show_default=False),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="The time: a number, or a date and time with its zone, such as 2024-01-31T12:00:00Z.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="A,B", help="Only these columns, in this order.", show_default=False)
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="Only rows for which this holds, such as \"total > 5 AND customer LIKE 'a%'\".",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=0, help="The largest number of rows.", show_default=False)
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="How long to wait for the time to become complete, if it is not yet.",
        show_default=False,
    ),
]


class Timeline(enum.StrEnum):
    """Where the next free time comes from."""

    clock = "clock"
    counter = "counter"


TimelineOption = Annotated[
    Timeline,
    typer.Option("--timeline", help="Times are milliseconds of the wall clock, or count 0, 1, 2."),
]
ClusterColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", metavar="NAME", help="Sort rows by this column first. May be repeated.", show_default=False
    ),
]
Retain = Annotated[
    str | None,
    typer.Option(
        "--retain",
        metavar="DURATION",
        help="How long to keep history, such as '7 days', or 'for ever'; else as long as the store says.",
        show_default=False,
    ),
]
ForgetWithin = Annotated[
    str | None,
    typer.Option(
        "--forget-within",
        metavar="DURATION",
        help="How long after it expired history is deleted from disk, such as '1 hour'.",
        show_default=False,
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="If there is a collection of that name, drop it and take its name over.")
]


@contextmanager
def opened(
    store: str, *, create: bool = False, read_only: bool = False, writes_rows: bool = False
) -> Iterator[ts.Store]:
    """An open store, which is not made if it is not there.

    Whoever writes rows does its share of the upkeep, too; nobody else does anything in the background.
    """
    check_path(store, "the folder of the store")
    with ts.open(store, create=create, read_only=read_only, maintenance=writes_rows) as found:
        yield found


def check_path(given: str, what: str) -> None:
    """Refuse a path of nothing, as a variable leaves it that is not set: it would be the folder one is in."""
    if not given:
        raise UsageError(f"{what} is an empty text: give its path")


_INTEGER = re.compile(r"[+-]?\d{1,30}")


def to_moment(text: str | None) -> Moment | None:
    """A time as it was typed: a number, one per coordinate, or a date and time with its zone."""
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
            f"{shown(text)} is not a time: give a number, or a date and time with its zone: 2024-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise UsageError(f"{shown(text)} has no zone and could be anywhere: give it one, such as 2024-01-31T12:00:00Z")
    return moment


def to_progress(texts: Sequence[str] | None) -> Progress | None:
    """How far times are complete, as it was typed: a time, or with several coordinates more than one."""
    times = [to_moment(text) for text in texts or ()]
    moments = [each for each in times if each is not None]
    if len(moments) < 2:
        return moments[0] if moments else None
    return moments


def to_names(text: str | None) -> list[str] | None:
    """Names with commas between them; one that has a comma itself in quotes."""
    return None if text is None else [name.strip() for name in next(csv.reader([text]), [])]


def to_types(given: Sequence[str], option: str) -> dict[str, str]:
    """Columns as they were typed, name:type."""
    types: dict[str, str] = {}
    for each in given:
        name, colon, type = each.partition(":")
        if not colon or not name or not type:
            raise UsageError(f"{option} {shown(each)} is not a column: give its name and type, such as id:int64")
        if name in types:
            raise UsageError(f"{option} names {shown(name)} twice")
        types[name] = type
    return types
