"""A small story, to be read: demo."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import timespine as ts
from timespine.cli.text import Columns, counted
from timespine.client.collection import Collection
from timespine.errors import SinceError, UsageError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    store: Annotated[
        str | None,
        typer.Argument(metavar="[STORE]", help="Keep the store there, in a new folder.", show_default=False),
    ] = None,
) -> None:
    """Tell a small story on a store of its own: orders come and go, and the past stays as it was.

    \b
    Example:
      timespine demo
    """
    with ExitStack() as stack:
        folder = store or stack.enter_context(tempfile.TemporaryDirectory(prefix="timespine-demo-"))
        open_store = stack.enter_context(ts.open(folder, maintenance=False))
        if open_store.names():
            raise UsageError(f"{folder} is a store with collections: give a new folder")
        _tell(open_store)
    if store is not None:
        typer.echo(f"\nThe store is in {store}: try `timespine snapshot {store} orders`.")


def _tell(store: ts.Store) -> None:
    say = typer.echo
    say(f"A store in {store.location}, with one collection.\n")
    orders = store.create(
        "orders", key={"id": "int64"}, value={"customer": "string", "total": "double"}, timeline="counter"
    )
    orders.append([{"id": 1, "customer": "ann", "total": 10.0}, {"id": 2, "customer": "bob", "total": 25.0}])
    say("Time 0: two orders come in.")
    orders.upsert([{"id": 1, "customer": "ann", "total": 12.0}, {"id": 3, "customer": "eve", "total": 40.0}])
    say("Time 1: order 1 becomes larger, order 3 comes in.")
    orders.delete({"id": 2})
    say("Time 2: order 2 is cancelled.")
    before = [_rows(orders, time) for time in range(3)]
    for time, rows in enumerate(before):
        _show(f"\nThe orders as of {time}:", rows)
    _show("\nWhat changed after 0, and up to 2:", orders.changes(after=0, until=2, images=True).to_pylist())
    batches = len(orders.inspect().batches)
    orders.compact(wait=True)
    same = [_rows(orders, time) for time in range(3)] == before
    say(f"\n{counted(batches, 'batch').replace('batchs', 'batches')} were merged into {len(orders.inspect().batches)}.")
    say(f"The three reads give {'the same rows' if same else 'OTHER ROWS: this is a mistake of ours'}.")
    orders.expire(before=2)
    orders.compact(wait=True)
    say(f"\nAll before 2 was expired: {counted(orders.inspect().rows, 'update')} are left.")
    try:
        orders.snapshot(0)
    except SinceError as error:
        say(f"Reading as of 0 says: {error}.")
    if not same or _rows(orders, 2) != before[2]:
        raise typer.Exit(1)


def _rows(orders: Collection, time: int) -> list[dict[str, Any]]:
    with orders.snapshot(time) as rows:
        return rows.to_pylist()


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    columns = Columns(list(rows[0]), [list(row.values()) for row in rows], cut=False)
    lines = [title, *columns.head().splitlines(), *(columns.row(list(row.values())) for row in rows)]
    typer.echo("\n  ".join(lines))
