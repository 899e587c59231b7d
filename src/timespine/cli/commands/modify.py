"""Verbs that change present rows: delete, update, replace, merge."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated

import pyarrow as pa
import typer

from timespine.cli.commands.append_and_load import FileArgument, FormatOption
from timespine.cli.input.column_values import KeyValuesArgument, NullOption, to_key, to_values
from timespine.cli.input.read_rows import read_rows
from timespine.cli.input.rereadable_input import STDIN
from timespine.cli.options import NameArgument, OutputOption, StorePathArgument, WhereOption, check_path, open_store_at
from timespine.cli.output.destination import Destination, for_document
from timespine.cli.output.format_text import count_text, type_text
from timespine.cli.output.progress import spinner
from timespine.cli.output.row_writers import write_done
from timespine.client.arguments.time_args import plain_frontier
from timespine.client.collection import Collection
from timespine.client.write_results import CommitResult
from timespine.columnar.predicate.predicate import Constant
from timespine.errors import UsageError

AllOption = Annotated[bool, typer.Option("--all", help="Take all rows of the collection.")]


class Matched(enum.StrEnum):
    """The action for a key in both the collection and the file."""

    update = "update"
    delete = "delete"
    keep = "keep"


class NotMatched(enum.StrEnum):
    """The action for a key that only the file has."""

    insert = "insert"
    skip = "skip"


class NotMatchedBySource(enum.StrEnum):
    """The action for a key that only the collection has."""

    keep = "keep"
    delete = "delete"


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("delete")(delete_verb)
    app.command("update")(update_verb)
    app.command("replace")(replace_verb)
    app.command("merge")(merge_verb)


def delete_verb(
    store: StorePathArgument,
    name: NameArgument,
    key: KeyValuesArgument = None,
    null: NullOption = None,
    where: WhereOption = None,
    all_rows: AllOption = False,
    output: OutputOption = None,
) -> None:
    """Delete the rows of a key, or those that a condition selects. History keeps them.

    \b
    Example:
      timespine delete ./data orders id=17
      timespine delete ./data orders --where "total < 5"
    """
    out = for_document(output)
    given = sum((bool(key or null), where is not None, all_rows))
    if given != 1:
        which = "COLUMN=VALUE for every key column, or --where SQL, or --all"
        raise UsageError(
            f"name the rows to delete in one way: {which}" if given else f"name the rows to delete: {which}"
        )

    def change(collection: Collection) -> CommitResult:
        keys = to_key(key, null, collection.schema, whole=True)
        return collection.delete(keys, where=Constant(True) if all_rows else where)

    _change(store, name, out, change)


def update_verb(
    store: StorePathArgument,
    name: NameArgument,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="A new value. May be repeated.", show_default=False),
    ] = None,
    null: NullOption = None,
    where: WhereOption = None,
    all_rows: AllOption = False,
    output: OutputOption = None,
) -> None:
    """Set values in the rows that a condition selects.

    \b
    Example:
      timespine update ./data orders --set customer=ann --where "customer = 'anne'"
      timespine update ./data orders --null total --all
    """
    out = for_document(output)
    if not values and not null:
        raise UsageError("name a change: --set COLUMN=VALUE, or --null COLUMN")
    if (where is not None) == all_rows:
        raise UsageError("name the rows to change: --where SQL, or --all")

    def change(collection: Collection) -> CommitResult:
        schema = collection.schema
        return collection.update(where=where, set=to_values(values or (), null or (), schema, schema.names, "a column"))

    _change(store, name, out, change)


def replace_verb(
    store: StorePathArgument,
    name: NameArgument,
    file: FileArgument,
    format: FormatOption = None,
    where: WhereOption = None,
    output: OutputOption = None,
) -> None:
    """Replace rows by those of a file, in one commit: all rows, or those that a condition selects.

    \b
    Example:
      timespine replace ./data orders today.csv --where "day = '2024-01-31'"
    """
    out = for_document(output)
    _change_by_file(store, name, file, format, out, lambda collection, rows: collection.replace(rows, where=where))


def merge_verb(
    store: StorePathArgument,
    name: NameArgument,
    file: FileArgument,
    format: FormatOption = None,
    matched: Annotated[
        Matched, typer.Option("--matched", help="The action for a key in both the collection and the file.")
    ] = Matched.update,
    not_matched: Annotated[
        NotMatched, typer.Option("--not-matched", help="The action for a key that only the file has.")
    ] = NotMatched.insert,
    not_matched_by_source: Annotated[
        NotMatchedBySource,
        typer.Option("--not-matched-by-source", help="The action for a key that only the collection has."),
    ] = NotMatchedBySource.keep,
    output: OutputOption = None,
) -> None:
    """Merge the rows of a file into a collection by their keys, in one commit.

    \b
    Example:
      timespine merge ./data orders new.csv
      timespine merge ./data orders gone.csv --matched delete --not-matched skip
    """
    out = for_document(output)

    def change(collection: Collection, rows: pa.Table) -> CommitResult:
        merging = collection.merge(rows)
        if matched is not Matched.keep:
            merging = merging.when_matched_update() if matched is Matched.update else merging.when_matched_delete()
        if not_matched is NotMatched.insert:
            merging = merging.when_not_matched_insert()
        if not_matched_by_source is NotMatchedBySource.delete:
            merging = merging.when_not_matched_by_source_delete()
        return merging.execute()

    if (matched, not_matched, not_matched_by_source) == (Matched.keep, NotMatched.skip, NotMatchedBySource.keep):
        raise UsageError("nothing would happen: let --matched, --not-matched or --not-matched-by-source do something")
    _change_by_file(store, name, file, format, out, change)


def _change_by_file(
    store: str,
    name: str,
    file: str,
    format: FormatOption,
    out: Destination,
    change: Callable[[Collection, pa.Table], CommitResult],
) -> None:
    check_path(file, "the file")

    def change_rows(collection: Collection) -> CommitResult:
        with spinner(f"reading {file}") if file != STDIN else nullcontext():  # a person may be typing
            rows = read_rows(file, format, collection.schema)
        with spinner(f"changing rows by {count_text(rows.num_rows, 'row')}"):
            return change(collection, rows)

    _change(store, name, out, change_rows)


def _change(store: str, name: str, out: Destination, change: Callable[[Collection], CommitResult]) -> None:
    """Change a collection, and write the result."""
    with open_store_at(store, writes_rows=True) as open_store:
        done = change(open_store.collection(name))
    result = {"updates": done.rows, "time": done.time, "upper": plain_frontier(done.upper), "seqno": done.seqno}
    what = f"{count_text(done.rows, 'update')} at {type_text(done.time)}" if done.rows else "nothing changed"
    write_done(out, result, lambda: f"{what}; complete below {type_text(done.upper)}\n")
