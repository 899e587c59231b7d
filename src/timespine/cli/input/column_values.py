"""Parse values of columns from arguments: COLUMN=VALUE, and --null COLUMN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

from timespine.cli.input.value_codec import from_text
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, short_repr

KeyValuesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="COLUMN=VALUE...", help="Values of key columns.", show_default=False),
]
NullOption = Annotated[
    list[str] | None,
    typer.Option("--null", metavar="COLUMN", help="A column that is null. May be repeated.", show_default=False),
]


def to_values(
    given: Sequence[str], null: Sequence[str], schema: Schema, allowed: Sequence[str], what: str
) -> dict[str, Any]:
    """Parse values of some of the allowed columns, by name. Errors call those columns `what`."""
    pairs: list[tuple[str, str | None]] = [(name, None) for name in null]
    for each in given:
        name, sign, text = each.partition("=")
        if not sign:
            raise UsageError(f"{short_repr(each)} is not a value: give COLUMN=VALUE, such as id=17, or --null COLUMN")
        pairs.append((name, text))
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in allowed:
            raise UsageError(f"{short_repr(name)} is not {what} of this collection; there are: {', '.join(allowed)}")
        if name in values:
            raise UsageError(f"{short_repr(name)} is given twice")
        try:
            values[name] = None if value is None else from_text(value, schema.types[name])
        except UsageError as error:
            raise UsageError(f"column {short_repr(name)}: {error}") from None
    return values


def to_key(given: Sequence[str] | None, null: Sequence[str] | None, schema: Schema, *, whole: bool) -> pa.Table | None:
    """Parse a key from arguments such as id=17 and options such as --null id; None if there are none.

    The key may have only its first columns, unless it must be `whole`.
    """
    values = to_values(given or (), null or (), schema, schema.key_names, "a key column")
    if not values:
        return None
    leading = schema.key_names[: len(values)]
    if set(leading) != set(values) or (whole and len(values) < len(schema.key_names)):
        some = "every key column" if whole else "the key columns from the first on"
        names = ", ".join(schema.key_names)
        raise UsageError(f"give COLUMN=VALUE, or --null COLUMN, for {some}; key columns: {names}")
    return pa.table({name: pa.array([values[name]], schema.types[name]) for name in leading})
