"""Verbs about views: view create, refresh, follow, rebuild, explain, status, verify, drop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, cast

import msgspec
import typer

from timespine.cli.input.rereadable_input import RereadableInput
from timespine.cli.options import (
    NameArgument,
    OutputOption,
    RetainOption,
    StorePathArgument,
    open_store_at,
    parse_time_option,
    to_names,
)
from timespine.cli.output.destination import OutputFormat, for_document
from timespine.cli.output.format_text import fields
from timespine.cli.output.row_writers import write_document, write_done
from timespine.client.arguments.argument_types import ViewPolicy, ViewTimes
from timespine.client.lazy_views import load_views_module
from timespine.errors import UsageError

SqlFileOption = Annotated[
    str | None, typer.Option("--sql", metavar="FILE", help="A file with the SELECT; - for standard input.")
]
ViewNamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NAME...", help="Views; all, if none is named.", show_default=False)
]

PolicyOption = Annotated[str, typer.Option("--policy", help="auto, incremental, incremental_strict or full.")]
TimesOption = Annotated[str, typer.Option("--times", help="refresh: exact at refresh points; every: at all times.")]

view_app = typer.Typer(name="view", no_args_is_help=True, rich_markup_mode=None)


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(view_app, name="view", help="Create, refresh and check views: queries kept up to date.")


def _text(file: str | None) -> str:
    if file is None:
        raise UsageError("give the SELECT of the view in a file: --sql FILE, or --sql - for standard input")
    with RereadableInput(file).text() as text:
        return text.read()


@view_app.command("create")
def create_view_verb(
    store: StorePathArgument,
    name: NameArgument,
    sql: SqlFileOption = None,
    key: Annotated[str | None, typer.Option("--key", metavar="A,B", help="Columns that identify a row.")] = None,
    policy: PolicyOption = "auto",
    times: TimesOption = "refresh",
    replace: Annotated[bool, typer.Option("--replace", help="Take the name of another view.")] = False,
    retain: RetainOption = None,
    output: OutputOption = None,
) -> None:
    """Create a view from a SELECT over collections, and compute it.

    \b
    Example:
      timespine view create ./data revenue --sql revenue.sql --key customer
    """
    where = for_document(output)
    text = _text(sql)
    with open_store_at(store, writes_rows=True) as open_store:
        made = open_store.view(
            name,
            sql=text,
            key=to_names(key) or (),
            policy=cast(ViewPolicy, policy),
            times=cast(ViewTimes, times),
            retain=retain,
            replace=replace,
        )
        done = {"name": name, "id": made.id, "mode": made.definition.mode, "reasons": list(made.definition.reasons)}
        write_done(where, done, lambda: f"{made.explain()}\n")


@view_app.command("refresh")
def refresh_verb(
    store: StorePathArgument,
    names: ViewNamesArgument = None,
    through: Annotated[str | None, typer.Option("--through", metavar="TIME", help="Up to this time.")] = None,
    output: OutputOption = None,
) -> None:
    """Refresh views to one time of their inputs, by one commit; exit with 2 if some of all views could not be.

    \b
    Example:
      timespine view refresh ./data
    """
    where = for_document(output)
    with open_store_at(store, writes_rows=True) as open_store:
        done = open_store.refresh(names or None, through=parse_time_option(through))
    lines = [_refreshed_line(name, each) for name, each in done.items()]
    found = {name: asdict(each) for name, each in done.items()}
    write_done(where, found, lambda: "".join(f"{each}\n" for each in lines))
    left = [name for name, each in done.items() if each.error]
    if left:
        raise UsageError(f"not all views were refreshed: {', '.join(left)}")


def _how(each: Any) -> str:
    if each.error:
        return f"not refreshed: {each.error}"
    return "nothing to do" if each.engine == "none" else f"{each.how} by {each.engine}"


def _refreshed_line(name: str, each: Any) -> str:
    why = f" ({each.why})" if each.why else ""
    return f"{name}: as of {each.time}, {_how(each)}, {each.changes:,} changes{why}"


@view_app.command("follow")
def follow_verb(
    store: StorePathArgument,
    names: ViewNamesArgument = None,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Refresh at most this often.")] = "1 s",
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="End after this time.", show_default=False),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Keep views fresh as times of their inputs become complete, until an interrupt.

    \b
    Example:
      timespine view follow ./data --every "5 s"
    """
    where = for_document(output)
    with open_store_at(store, writes_rows=True) as open_store, where.open() as stream:

        def tell(done: dict[str, Any]) -> None:
            for name, each in done.items():
                if where.format is OutputFormat.json:
                    stream.write(msgspec.json.encode({"name": name, **asdict(each)}) + b"\n")
                elif each.engine != "none":
                    stream.write(f"{_refreshed_line(name, each)}\n".encode(where.encoding, "backslashreplace"))
            stream.flush()

        follow = load_views_module("follow.follow_thread").follow_in_foreground
        status = follow(open_store, names or None, every, None, tell, timeout)
    failing = [f"{name}: {each.error}" for name, each in status.views.items() if each.error]
    if failing:
        raise UsageError(f"not all views are fresh: {'; '.join(failing)}")


@view_app.command("explain")
def explain_verb(
    store: StorePathArgument,
    name: NameArgument,
    sql: SqlFileOption = None,
    policy: PolicyOption = "auto",
    times: TimesOption = "refresh",
    output: OutputOption = None,
) -> None:
    """Say how changes of the inputs reach a view, and why not, where they do not; with --sql, of one to create.

    \b
    Example:
      timespine view explain ./data revenue
    """
    where = for_document(output)
    query = _text(sql) if sql is not None else None
    with open_store_at(store, read_only=True) as open_store:
        if query is None:
            text = open_store.view(name).explain()
        else:
            text = load_views_module("view").explain_query(open_store, name, query, policy=policy, times=times)
    write_document(where, {"name": name, "explanation": text.splitlines()}, lambda: f"{text}\n")


@view_app.command("status")
def status_verb(store: StorePathArgument, name: NameArgument, output: OutputOption = None) -> None:
    """Say how far a view is behind its inputs, and what it keeps.

    \b
    Example:
      timespine view status ./data revenue
    """
    where = for_document(output)
    with open_store_at(store, read_only=True) as open_store:
        found = asdict(open_store.view(name).status())
    write_document(
        where, found, lambda: fields([(key, shown) for key, value in found.items() for shown in _shown(value)])
    )


def _shown(value: Any) -> list[str]:
    """Return the lines for one field of a status."""
    if isinstance(value, dict) and any(isinstance(each, dict) for each in value.values()):
        return [f"{key}: {_shown(each)[0]}" for key, each in value.items()]
    if isinstance(value, dict):
        return [", ".join(f"{key} {each}" for key, each in value.items()) or "none"]
    if isinstance(value, list):
        return [_shown(each)[0] for each in value] or ["none"]
    return [str(value)]


@view_app.command("rebuild")
def rebuild_verb(store: StorePathArgument, name: NameArgument, output: OutputOption = None) -> None:
    """Compute a view again, from its text and the columns that its inputs have now.

    \b
    Example:
      timespine view rebuild ./data revenue
    """
    where = for_document(output)
    with open_store_at(store, writes_rows=True) as open_store:
        done = open_store.view(name).rebuild()
    kind = "a new collection" if done.is_new else "the same collection"
    write_done(where, asdict(done), lambda: f"{name}: as of {done.time}, {done.changes:,} changes, {kind}\n")


@view_app.command("verify")
def verify_verb(
    store: StorePathArgument,
    name: NameArgument,
    as_of: Annotated[str | None, typer.Option("--as-of", metavar="TIME", help="A refresh point.")] = None,
    output: OutputOption = None,
) -> None:
    """Compute the query of a view whole, and compare; exit with 6 if they differ.

    \b
    Example:
      timespine view verify ./data revenue
    """
    where = for_document(output)
    with open_store_at(store) as open_store:
        found = open_store.view(name).verify(as_of=parse_time_option(as_of))
    same = "is its query" if found.is_exact else f"differs: {found.missing} rows missing, {found.extra} extra"
    write_document(where, asdict(found), lambda: f"{name} as of {found.time} {same}\n")
    if not found.is_exact:
        raise typer.Exit(6)


@view_app.command("drop")
def drop_view_verb(store: StorePathArgument, name: NameArgument, output: OutputOption = None) -> None:
    """Drop a view with its stages, and release its holds on the inputs.

    \b
    Example:
      timespine view drop ./data revenue
    """
    where = for_document(output)
    with open_store_at(store) as open_store:
        if name not in open_store.views():
            raise UsageError(f"there is no view {name}; there are: {', '.join(open_store.views()) or 'none'}")
        open_store.drop(name)
    write_done(where, {"dropped": name}, lambda: f"{name} was dropped\n")
