"""Verbs about history: expire, retain, hold."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from timespine.cli.options import (
    AsOfOption,
    NameArgument,
    OutputOption,
    StorePathArgument,
    ToOption,
    open_store_at,
    parse_frontier_option,
    parse_time_option,
)
from timespine.cli.output.destination import Destination, destination, for_document
from timespine.cli.output.format_text import type_text
from timespine.cli.output.row_writers import write_done, write_table
from timespine.client.api_for_engines import retention_of_store
from timespine.client.arguments.time_args import plain_frontier
from timespine.client.catalog.retention import duration as as_words
from timespine.client.collection import Collection, handle_of
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.read.user_holds import CriticalHold
from timespine.errors import Indeterminate, UsageError, short_repr


class Action(enum.StrEnum):
    """The actions on holds."""

    add = "add"
    release_before = "release-before"
    release = "release"
    list = "list"


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("expire")(expire_verb)
    app.command("retain")(retain_verb)
    app.command("hold")(hold_verb)


def expire_verb(
    store: StorePathArgument,
    name: NameArgument,
    before: Annotated[
        list[str],
        typer.Option(
            "--before",
            metavar="TIME",
            help="The earliest time that stays readable. May be repeated with several coordinates.",
            show_default=False,
        ),
    ],
    ahead: Annotated[
        bool,
        typer.Option("--ahead", help="Expire even if that time is not complete yet: no time is readable until it is."),
    ] = False,
    output: OutputOption = None,
) -> None:
    """Expire history before a time: earlier times of the collection are no longer readable. Its current rows stay.

    Names the readers and holds that still keep older history, until they release it.
    `timespine maintain` frees the space.

    \b
    Example:
      timespine expire ./data orders --before 5
    """
    where = for_document(output)
    moment = parse_frontier_option(before)
    assert moment is not None
    with open_store_at(store) as open_store:
        reply = open_store.collection(name).expire(moment, ahead=ahead)
    result = {
        "asked": plain_frontier(reply.asked),
        "since": plain_frontier(reply.since),
        "held_by": list(reply.held_by),
    }
    held = f"; held by {', '.join(reply.held_by)}" if reply.held_by else ""
    write_done(where, result, lambda: f"readable from {type_text(reply.since)} on{held}\n")


def retain_verb(
    store: StorePathArgument,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="A collection; the default is the policy of the store.", show_default=False
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="A duration such as '7 days'; ever: all history; store: as the policy of the store says.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Set how long a collection keeps history, or all collections without a policy of their own.

    `timespine maintain`, and every process that writes, forgets older history. Without
    --for, print the policy of the store, or the one that applies to a collection.

    \b
    Example:
      timespine retain ./data --for "30 days"
      timespine retain ./data audit --for ever
      timespine retain ./data audit
      timespine retain ./data
    """
    where = for_document(output)
    policy = None if duration == "ever" else duration
    with open_store_at(store, read_only=duration is None) as open_store:
        if name is None:
            if duration is not None:
                open_store.retain(policy)
            kept_ms = retention_of_store(open_store)
            said = f"history is kept {as_words(kept_ms)}, unless a collection has a policy of its own\n"
            write_done(where, {"store": store, "retain_ms": kept_ms}, lambda: said)
            return
        collection = open_store.collection(name)
        if duration is not None:
            collection.retain(policy)
        found = collection.retention
    result = {"name": name, "retain_ms": found.duration_ms, "retain_by": found.by}
    write_done(where, result, lambda: f"history of {name} is kept {found}, unless expired\n")


def hold_verb(
    store: StorePathArgument,
    name: NameArgument,
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="add, release-before, release or list.", show_default=False)
    ],
    title: Annotated[
        str | None, typer.Argument(metavar="HOLD", help="The name of the hold.", show_default=False)
    ] = None,
    as_of: AsOfOption = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="The secret for releasing a hold. `add` chooses one and prints it.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Keep history readable from a time on, under a name, until a release. A hold never expires.

    \b
    add HOLD             keep history from --as-of on, or all history
    release-before HOLD  release history before --as-of; needs --token
    release HOLD         release all of it; needs --token
    list                 the holds, and the time from which each keeps history

    \b
    Example:
      timespine hold ./data orders add nightly-report --as-of 5
      timespine hold ./data orders release nightly-report --token t0123...
    """
    if action is Action.list:
        listed = destination(output, to)
        with open_store_at(store, read_only=True) as open_store:
            _list(open_store.collection(name), listed)
        return
    where = for_document(output, to)
    if title is None:
        raise UsageError(f"name the hold to {action.value}: timespine hold STORE NAME {action.value} HOLD")
    with open_store_at(store) as open_store:
        collection = open_store.collection(name)
        if action is Action.add:
            _add(collection, where, title, as_of, token)
        else:
            _change(collection, where, action, title, as_of, token)


def _list(collection: Collection, where: Destination) -> None:
    state = handle_of(collection).state()
    rows = [{"kind": "retention", "name": None, "since": plain_frontier(state.retention), "until_ms": None}]
    rows += [
        {"kind": "hold", "name": name, "since": plain_frontier(each.since), "until_ms": None}
        for name, each in state.holds.items()
    ]
    rows += [
        {"kind": "lease", "name": name, "since": plain_frontier(each.since), "until_ms": each.until_ms}
        for name, each in state.readers.items()
    ]
    write_table(where, ("kind", "name", "since", "until_ms"), rows)


def _add(collection: Collection, where: Destination, title: str, as_of: str | None, token: str | None) -> None:
    token = token if token is not None else fresh_id("t")
    try:
        made = collection.critical_hold(title, parse_time_option(as_of), token=token)
    except Indeterminate as error:
        raise Indeterminate(f"{error}; if hold {title} exists, its token is {token}") from error
    result = {"hold": title, "token": made.token, "since": plain_frontier(made.since)}
    write_done(
        where,
        result,
        lambda: f"hold {title} keeps history from {type_text(made.since)} on; its token is {made.token}\n",
    )


def _change(
    collection: Collection, where: Destination, action: Action, title: str, as_of: str | None, token: str | None
) -> None:
    """Move or release an existing hold."""
    holds = handle_of(collection).state().holds
    if title not in holds:
        raise UsageError(f"there is no hold {short_repr(title)}; there are: {', '.join(sorted(holds)) or 'none'}")
    if token is None:
        raise UsageError(f"--token is needed to {action.value} a hold: `add` printed it")
    found = CriticalHold(handle_of(collection), title, token, holds[title].since)
    moment = parse_time_option(as_of)
    if action is Action.release:
        found.release()
    elif moment is None:
        raise UsageError("--as-of is needed: history before it is released")
    else:
        found.release_before(moment)
    since = plain_frontier(collection.since)
    done = "was released" if action is Action.release else f"keeps history from {type_text(found.since)} on"
    result = {"hold": title, "action": action.value, "since": since}
    write_done(where, result, lambda: f"hold {title} {done}; readable from {type_text(since)} on\n")
