"""The verb that changes columns: evolve."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from timespine.cli.input.value_codec import from_text
from timespine.cli.options import NameArgument, OutputOption, StorePathArgument, open_store_at, to_types
from timespine.cli.output.destination import for_document
from timespine.cli.output.row_writers import write_done
from timespine.columnar.schema.types import parse_type
from timespine.errors import UsageError, short_repr


def add_commands(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("evolve")(evolve_verb)


def _repeatable_option(option: str, metavar: str, help: str) -> Any:
    return typer.Option(option, metavar=metavar, help=f"{help} May be repeated.", show_default=False)


def evolve_verb(
    store: StorePathArgument,
    name: NameArgument,
    add: Annotated[
        list[str] | None, _repeatable_option("--add", "NAME:TYPE", "A new column, null in old rows.")
    ] = None,
    default: Annotated[
        list[str] | None,
        _repeatable_option("--default", "NAME=VALUE", "The value of a new column in old rows, instead of null."),
    ] = None,
    drop: Annotated[list[str] | None, _repeatable_option("--drop", "NAME", "The name of a column to drop.")] = None,
    rename: Annotated[
        list[str] | None, _repeatable_option("--rename", "OLD=NEW", "The old and the new name of a column.")
    ] = None,
    widen: Annotated[
        list[str] | None, _repeatable_option("--widen", "NAME:TYPE", "A larger type for a column.")
    ] = None,
    expected: Annotated[
        int | None,
        typer.Option(
            "--expected",
            metavar="ID",
            help="Evolve only if this is the number of the newest schema: else exit code 3.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Change the columns of a collection. No row is rewritten: reads convert old rows to the new columns.

    \b
    Example:
      timespine evolve ./data orders --add currency:string --default currency=EUR --rename total=amount
      timespine evolve ./data orders --widen count:int64 --drop note
    """
    where = for_document(output)
    added = _columns_to_add(to_types(add or (), "--add"), _pairs(default or [], "--default", "currency=EUR"))
    if not any((add, drop, rename, widen)):
        raise UsageError("name a change: --add, --drop, --rename or --widen")
    with open_store_at(store) as open_store:
        collection = open_store.collection(name)
        id = collection.evolve(
            add=added,
            drop=drop or (),
            rename=_pairs(rename or [], "--rename", "total=amount"),
            widen=to_types(widen or (), "--widen"),
            expected=expected,
        )
        columns = {field.name: field.type for field in collection.schema.fields}
    result = {"schema": id, "columns": columns}
    write_done(where, result, lambda: f"schema {id}: {', '.join(f'{each}:{type}' for each, type in columns.items())}\n")


def _columns_to_add(types: dict[str, str], defaults: dict[str, str]) -> dict[str, Any]:
    """Combine new columns with their types and their defaults."""
    unknown = next((name for name in defaults if name not in types), None)
    if unknown is not None:
        raise UsageError(f"--default is for a column of --add, and {short_repr(unknown)} is none")
    return {
        name: (type, from_text(defaults[name], parse_type(type))) if name in defaults else type
        for name, type in types.items()
    }


def _pairs(given: list[str], option: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign or not name:
            raise UsageError(f"{option} {short_repr(each)} is not NAME=VALUE, such as {example}")
        if name in pairs:
            raise UsageError(f"{option} names {short_repr(name)} twice")
        pairs[name] = text
    return pairs
