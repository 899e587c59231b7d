"""Verbs about checkpoints of arrangements: arrangement show, get, scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

import timespine as ts
from timespine.cli.input.column_values import KeyValuesArgument, NullOption, to_values
from timespine.cli.options import (
    AsOfOption,
    ColumnsOption,
    LimitOption,
    MultiplicityChoice,
    MultiplicityOption,
    OutputOption,
    ToOption,
    check_path,
    parse_time_option,
    to_names,
)
from timespine.cli.output.destination import Destination, destination, for_document
from timespine.cli.output.format_text import Columns, fields, size, type_text
from timespine.cli.output.row_writers import write_document, write_rows
from timespine.client.api_for_engines import repeat_by_diff
from timespine.client.arguments.time_args import parse_time, plain_frontier
from timespine.columnar.schema.schema import DIFF
from timespine.errors import UsageError

if TYPE_CHECKING:
    from timespine.arrangement import ArrangementView, OpenedCheckpoint

FolderArgument = Annotated[
    str, typer.Argument(metavar="FOLDER", help="The folder of the checkpoints of an arrangement.", show_default=False)
]
LowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--low",
        metavar="COLUMN=VALUE",
        help="The lowest key, by the first arranged columns. May be repeated.",
        show_default=False,
    ),
]
HighOption = Annotated[
    list[str] | None,
    typer.Option(
        "--high",
        metavar="COLUMN=VALUE",
        help="The highest key; all that begin with it are printed too. May be repeated.",
        show_default=False,
    ),
]

arrangement_app = typer.Typer(name="arrangement", no_args_is_help=True, rich_markup_mode=None)


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(arrangement_app, name="arrangement", help="Read the checkpoints of an arrangement: a live index.")


@contextmanager
def _opened(folder: str) -> Iterator[OpenedCheckpoint]:
    """Open the newest checkpoint of a folder, which its owner does not delete meanwhile."""
    check_path(folder, "the folder of the checkpoints")
    with ts.arrangement.open(folder) as found:
        yield found


@arrangement_app.command("show")
def show_verb(
    folder: FolderArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Compare all bytes with their hashes first.")] = False,
    output: OutputOption = None,
) -> None:
    """Print what the newest checkpoint has: its frontiers, columns, levels and files.

    Reads the manifest and the footers of the files, and no rows.

    \b
    Example:
      timespine arrangement show ./index
    """
    where = for_document(output)
    with _opened(folder) as opened:
        if verify:
            opened.verify()
        found = opened.describe()
    for name in ("since", "upper"):
        found[name] = None if found[name] is None else plain_frontier(found[name])
    write_document(where, found, lambda: _shown(found))


def _shown(found: dict[str, Any]) -> str:
    lines = [
        ("folder", found["folder"]),
        ("checkpoint", found["number"]),
        ("collection", found["collection"] or "none"),
        ("since", "all times" if found["since"] is None else type_text(found["since"])),
        ("upper", "not known" if found["upper"] is None else type_text(found["upper"])),
        ("arranged by", ", ".join(found["arranged_by"])),
        ("columns", ", ".join(f"{name} {kind}" for name, kind in found["columns"].items())),
        ("updates", f"{found['rows']:,}"),
        ("in memory", size(found["bytes"])),
    ]
    return f"{fields(lines)}\n{_table(found['levels'])}\n{_table(found['files'])}" if found["files"] else fields(lines)


def _table(rows: list[dict[str, Any]]) -> str:
    """Format rows of the same names as a table."""
    cells = [[type_text(each) if isinstance(each, tuple) else each for each in row.values()] for row in rows]
    columns = Columns(list(rows[0]), cells, cut=False)
    return "".join(f"{line}\n" for line in (columns.head(), *map(columns.row, cells)))


@arrangement_app.command("get")
def get_verb(
    folder: FolderArgument,
    key: KeyValuesArgument = None,
    null: NullOption = None,
    as_of: AsOfOption = None,
    columns: ColumnsOption = None,
    multiplicity: MultiplicityOption = MultiplicityChoice.rows,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Print the rows of a key, or of all keys that begin with some columns, from the newest checkpoint.

    \b
    Example:
      timespine arrangement get ./index customer=ada
    """
    out = destination(output, to)
    with _opened(folder) as opened:
        view = _view(opened, as_of)
        values = _bound(view, key, null)
        if values is None:
            raise UsageError(f"name the rows: COLUMN=VALUE or --null COLUMN; arranged by: {', '.join(view.layout.by)}")
        types = view.layout.schema.types
        wanted = pa.table({name: pa.array([value], types[name]) for name, value in values.items()})
        _write(out, view, [view.fetch(wanted)], columns, multiplicity)


@arrangement_app.command("scan")
def scan_verb(
    folder: FolderArgument,
    low: LowOption = None,
    high: HighOption = None,
    as_of: AsOfOption = None,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    multiplicity: MultiplicityOption = MultiplicityChoice.rows,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Print the rows of a range of keys in the order of the arranged columns, or all, from the newest checkpoint.

    \b
    Example:
      timespine arrangement scan ./index --low customer=ada --high customer=bob --limit 10
    """
    out = destination(output, to)
    with _opened(folder) as opened:
        view = _view(opened, as_of)
        found = view.scan(_bound(view, low), _bound(view, high), inclusive=True)
        _write(out, view, found, columns, multiplicity, limit)


def _view(opened: OpenedCheckpoint, as_of: str | None) -> ArrangementView:
    """Return the rows as of a time, or of the newest one."""
    time = parse_time_option(as_of)
    return opened.at(None if time is None else parse_time(time, opened.layout.schema.arity))


def _bound(view: ArrangementView, given: list[str] | None, null: list[str] | None = None) -> dict[str, Any] | None:
    """Parse a key of the first arranged columns; None if there is none."""
    schema, by = view.layout.schema, view.layout.by
    values = to_values(given or (), null or (), schema, by, "an arranged column")
    if set(by[: len(values)]) != set(values):
        raise UsageError(f"give the arranged columns from the first on: {', '.join(by)}")
    return values or None


def _write(
    out: Destination,
    view: ArrangementView,
    tables: Iterable[pa.Table],
    columns: str | None,
    multiplicity: MultiplicityChoice,
    limit: int | None = None,
) -> None:
    """Write rows with their counts, or as often as they count."""
    names = to_names(columns) or list(view.layout.schema.names)
    for name in names:
        view.layout.schema.field(name)
    if multiplicity is MultiplicityChoice.column:
        names = [*names, DIFF]
        repeated = iter(tables)
    else:
        repeated = (part for table in tables for part in repeat_by_diff(table, DIFF))
    batches = (batch for table in repeated for batch in table.select(names).to_batches())
    shape = pa.schema([view.layout.counted_arrow.field(name) for name in names])
    write_rows(out, shape, batches, limit=limit)
