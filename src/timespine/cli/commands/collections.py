"""Verbs about the store and its collections: init, create, list, describe, history, rename, drop."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from timespine.cli.options import (
    ClusterColumnsOption,
    ForgetWithinOption,
    NameArgument,
    OutputOption,
    ReplaceOption,
    RetainOption,
    StorePathArgument,
    TimelineChoice,
    TimelineOption,
    ToOption,
    check_path,
    open_store_at,
    to_types,
)
from timespine.cli.output.destination import destination, for_document
from timespine.cli.output.format_text import Columns, amplification_text, clock, fields, size, type_text
from timespine.cli.output.row_writers import write_document, write_done, write_table
from timespine.client.arguments.time_args import plain_frontier
from timespine.client.catalog.retention import duration
from timespine.client.collection import Collection, handle_of
from timespine.client.store import Store
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import parse_location
from timespine.model.time import ARITY_MAX

_LISTED = ("name", "since", "upper", "updates", "bytes", "batches", "state")
_COSTS = ("write_amplification", "read_amplification", "space_amplification", "garbage_bytes", "log_bytes")
_COMMITS = ("upper", "committed_ms", "operation", "rows", "bytes")

NewNameArgument = Annotated[str, typer.Argument(metavar="NEW", help="The new name.", show_default=False)]
KeyColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="NAME:TYPE", help="A key column, such as id:int64. May be repeated.", show_default=False
    ),
]
ValueColumnsOption = Annotated[
    list[str] | None,
    typer.Option("--value", metavar="NAME:TYPE", help="A value column. May be repeated.", show_default=False),
]


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("init")(init_verb)
    app.command("create")(create_verb)
    app.command("list")(list_verb)
    app.command("describe")(describe_verb)
    app.command("history")(history_verb)
    app.command("rename")(rename_verb)
    app.command("drop")(drop_verb)


def init_verb(store: StorePathArgument, output: OutputOption = None) -> None:
    """Create a store in a folder, or in a bucket. An existing one stays as it is.

    A new store in a bucket needs the address of its logs, in TIMESPINE_CONSENSUS. Credentials come from the variables
    that the storage and the database define.

    \b
    Example:
      timespine init ./data
      TIMESPINE_CONSENSUS=postgresql://db.internal/timespine timespine init s3://bucket/shop
    """
    where = for_document(output)
    check_path(store, "the location of the store")
    location = parse_location(store)
    there = place_of(location).identity() is not None
    if not there and location.is_folder:
        _check_empty(store, Path(location.path))
    with open_store_at(store, create=True):
        pass
    done = {"store": store, "created": not there}
    write_done(where, done, lambda: f"{store} {'was a store already' if there else 'is a store now'}\n")


def _check_empty(store: str, root: Path) -> None:
    """Refuse a folder that holds something else."""
    if root.exists() and not root.is_dir():
        raise UsageError(f"{store} is a file: give the path of a folder")
    if root.exists() and any(root.iterdir()):
        raise UsageError(f"{store} holds other files and is no store: give an empty or a new folder")


def create_verb(
    store: StorePathArgument,
    name: NameArgument,
    key: KeyColumnsOption = None,
    value: ValueColumnsOption = None,
    cluster: ClusterColumnsOption = None,
    timeline: TimelineOption = TimelineChoice.clock,
    time_coordinates: Annotated[
        int, typer.Option("--time-coordinates", metavar="N", min=1, max=ARITY_MAX, help="Integers of a time.")
    ] = 1,
    retain: RetainOption = None,
    forget_within: ForgetWithinOption = None,
    replace: ReplaceOption = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Keep an existing collection with the same columns.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Create a collection. Without a key, all columns together identify a row.

    \b
    Types: bool, int8 to int64, uint8 to uint64, float, double, decimal(18,2),
      string, binary, date, timestamp, timestamp[UTC], list<int64>, struct<a:int64>

    \b
    Example:
      timespine create ./data orders --key id:int64 --value customer:string --value total:double
    """
    where = for_document(output)
    if not key and not value:
        raise UsageError("a collection needs columns: give at least one --key or --value, such as --key id:int64")
    if replace and if_not_exists:
        raise UsageError("--replace drops an existing collection, --if-not-exists keeps it: give one of them")
    with open_store_at(store) as open_store:
        made = open_store.create(
            name,
            key=to_types(key or (), "--key"),
            value=to_types(value or (), "--value"),
            cluster=tuple(cluster or ()),
            time_coordinates=time_coordinates,
            timeline=timeline.value,
            retain=retain,
            forget_within=forget_within,
            replace=replace,
            if_exists="open" if if_not_exists else "error",
        )
        write_done(where, {"name": name, "id": made.id}, lambda: f"collection {name} is there\n")


def list_verb(
    store: StorePathArgument,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also list costs: amplification, garbage, log.")
    ] = False,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """List the collections of a store, each with its readable times and its size.

    \b
    Example:
      timespine list ./data
    """
    where = destination(output, to)
    columns = (*_LISTED, *_COSTS) if verbose else _LISTED
    with open_store_at(store, read_only=True) as open_store:
        found = [_summarize(open_store, name) for name in open_store.names()]
    write_table(where, columns, [{column: each[column] for column in columns} for each in found])


def _summarize(store: Store, name: str) -> dict[str, Any]:
    """Make one line. A damaged collection does not hide the others."""
    try:
        found = store.collection(name).inspect()
    except (CorruptionError, VersionError) as error:
        damaged = "damaged" if isinstance(error, CorruptionError) else "newer version"
        return {**dict.fromkeys((*_LISTED, *_COSTS)), "name": name, "state": damaged}
    costs = found.amplification
    return {
        "name": name,
        "since": found.since,
        "upper": found.upper,
        "updates": found.rows,
        "bytes": found.size,
        "batches": len(found.batches),
        "state": "closed" if found.upper is None else "open",
        "write_amplification": round(costs.write, 2),
        "read_amplification": costs.read,
        "space_amplification": round(costs.space, 2),
        "garbage_bytes": costs.garbage_bytes,
        "log_bytes": costs.log_bytes,
    }


def describe_verb(
    store: StorePathArgument, name: NameArgument, output: OutputOption = None, to: ToOption = None
) -> None:
    """Describe a collection: its columns, its times, its retention and its size.

    \b
    Example:
      timespine describe ./data orders
    """
    where = for_document(output, to)
    with open_store_at(store, read_only=True) as open_store:
        found = _describe(open_store.collection(name))
    write_document(where, found, lambda: _description(found))


def _describe(collection: Collection) -> dict[str, Any]:
    state = collection.inspect()
    schema = collection.schema
    entry = handle_of(collection).entry
    retention = collection.retention
    key = schema.key_names if schema.key else ()
    return {
        "name": state.name,
        "id": state.id,
        "timeline": entry.timeline,
        "retain_ms": retention.duration_ms,
        "retain_by": retention.by,
        "history": f"kept {retention}, unless expired",
        "forget_within_ms": handle_of(collection).forget_within_ms,
        "created_ms": entry.created_ms,
        "coordinates": schema.arity,
        "since": state.since,
        "upper": state.upper,
        "updates": state.rows,
        "bytes": state.size,
        "amplification": asdict(state.amplification),
        "cost": amplification_text(state.amplification),
        "columns": [
            {
                "name": field.name,
                "type": field.type,
                "role": "key" if field.name in key else "value",
                "cluster": field.name in schema.cluster_names,
                "default": field.default,
            }
            for field in schema.fields
        ],
    }


def _description(found: dict[str, Any]) -> str:
    time = clock if found["timeline"] == "clock" else type_text
    head = fields(
        [
            ("name", found["name"]),
            ("id", found["id"]),
            ("created", clock(found["created_ms"])),
            ("times", _times(found)),
            ("readable from", time(found["since"])),
            ("complete below", time(found["upper"])),
            ("history", found["history"]),
            ("forgotten", f"within {duration(found['forget_within_ms']).removeprefix('for ')} after it expired"),
            ("size", f"{found['updates']:,} updates, {size(found['bytes'])}"),
            ("amplification", found["cost"]),
        ]
    )
    names = ("column", "type", "role")
    rows = [(each["name"], each["type"], f"{each['role']}{', cluster' * each['cluster']}") for each in found["columns"]]
    columns = Columns(names, rows, cut=False)
    return f"{head}\n{columns.head()}\n" + "".join(f"{columns.row(row)}\n" for row in rows)


def _times(found: dict[str, Any]) -> str:
    kind = "milliseconds of the wall clock" if found["timeline"] == "clock" else "a counter"
    return kind if found["coordinates"] == 1 else f"{kind}, {found['coordinates']} coordinates"


def history_verb(
    store: StorePathArgument, name: NameArgument, output: OutputOption = None, to: ToOption = None
) -> None:
    """List the commits in the history of a collection, oldest first.

    \b
    Example:
      timespine history ./data orders
    """
    where = destination(output, to)
    with open_store_at(store, read_only=True) as open_store:
        entries = open_store.collection(name).history()
    rows = [
        {
            "upper": plain_frontier(entry.upper),
            "committed_ms": entry.committed_ms,
            "operation": entry.operation,
            "rows": entry.rows,
            "bytes": entry.size,
        }
        for entry in entries
    ]
    write_table(where, _COMMITS, rows)


def rename_verb(
    store: StorePathArgument, name: NameArgument, new: NewNameArgument, output: OutputOption = None
) -> None:
    """Give a collection another name.

    \b
    Example:
      timespine rename ./data orders orders_2024
    """
    where = for_document(output)
    with open_store_at(store) as open_store:
        open_store.rename(name, new)
    write_done(where, {"name": new, "was": name}, lambda: f"{name} is now called {new}\n")


def drop_verb(
    store: StorePathArgument,
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Drop it even if it has critical holds, and end those.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Drop a collection with all its history. The next `timespine maintain` deletes its files.

    Its name stays blocked: only `create --replace` and `load --replace` use it again. To drop it twice is no error.

    \b
    Example:
      timespine drop ./data orders
    """
    where = for_document(output)
    with open_store_at(store) as open_store:
        now = open_store.drop(name, force=force)
    write_done(where, {"dropped": name, "before": not now}, lambda: f"{name} was dropped{'' if now else ' before'}\n")
