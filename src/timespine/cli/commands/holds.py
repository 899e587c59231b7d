"""Verbs about history: expire, retain, hold."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from timespine.cli.options import AsOf, Name, Output, StorePath, To, opened, to_moment, to_progress
from timespine.cli.output.destination import Destination, destination, for_document
from timespine.cli.output.row_writers import write_done, write_table
from timespine.cli.output.text import typed
from timespine.client.catalog.retention import duration as as_words
from timespine.client.collection import Collection, access_of
from timespine.client.commit.driver import fresh_id
from timespine.client.read.holds import CriticalHold
from timespine.client.time_args import plain
from timespine.errors import Indeterminate, UsageError, shown


class Action(enum.StrEnum):
    """What to do with holds."""

    add = "add"
    advance = "advance"
    release = "release"
    list = "list"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("expire")(expire)
    app.command("retain")(retain)
    app.command("hold")(hold)


def expire(
    store: StorePath,
    name: Name,
    before: Annotated[
        list[str],
        typer.Option(
            "--before",
            metavar="TIME",
            help="Reads before this time end. With several coordinates it may be repeated.",
            show_default=False,
        ),
    ],
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Also if that time is not complete yet: nothing can be read until it is.")
    ] = False,
    output: Output = None,
) -> None:
    """Forget history before a time: older states of the collection can no longer be read. Its rows of now stay.

    Readers and holds that still need older history are named; it goes when they release it.
    Space is freed by `timespine maintain`.

    \b
    Example:
      timespine expire ./data orders --before 5
    """
    where = for_document(output)
    moment = to_progress(before)
    assert moment is not None
    with opened(store) as open_store:
        reply = open_store.collection(name).expire(moment, ahead=ahead)
    result = {"asked": plain(reply.asked), "since": plain(reply.since), "held_by": list(reply.held_by)}
    held = f"; held by {', '.join(reply.held_by)}" if reply.held_by else ""
    write_done(where, result, lambda: f"readable from {typed(reply.since)} on{held}\n")


def retain(
    store: StorePath,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A collection; the policy of the store, if none.", show_default=False),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="How long, such as '7 days'; ever: all of it; store, for a collection: as long as the store says.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Say how long history is kept: by a collection, or by all that have no policy of their own.

    `timespine maintain`, and every process that writes, forgets what is older. Without
    --for nothing is changed: the policy of the store, or what holds for a collection, is printed.

    \b
    Example:
      timespine retain ./data --for "30 days"
      timespine retain ./data audit --for ever
      timespine retain ./data audit
      timespine retain ./data
    """
    where = for_document(output)
    policy = None if duration == "ever" else duration
    with opened(store, read_only=duration is None) as open_store:
        if name is None:
            if duration is not None:
                open_store.retain(policy)
            kept_ms = open_store._catalog.read().retain_ms
            said = f"history is kept {as_words(kept_ms)}, unless a collection has a policy of its own\n"
            write_done(where, {"store": store, "retain_ms": kept_ms}, lambda: said)
            return
        collection = open_store.collection(name)
        if duration is not None:
            collection.retain(policy)
        found = collection.retention
    result = {"name": name, "retain_ms": found.duration_ms, "retain_by": found.by}
    write_done(where, result, lambda: f"history of {name} is kept {found}, unless expired\n")


def hold(
    store: StorePath,
    name: Name,
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="add, advance, release or list.", show_default=False)
    ],
    title: Annotated[
        str | None, typer.Argument(metavar="HOLD", help="The name of the hold.", show_default=False)
    ] = None,
    as_of: AsOf = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="What moves and releases a hold. `add` makes one up and prints it.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    to: To = None,
) -> None:
    """Keep history readable from a time on, under a name, until it is released. It never expires.

    \b
    add HOLD      keep history from --as-of on, or all there is
    advance HOLD  let history before --as-of go; needs --token
    release HOLD  let go; needs --token
    list          who holds history, and from where on

    \b
    Example:
      timespine hold ./data orders add nightly-report --as-of 5
      timespine hold ./data orders release nightly-report --token t0123...
    """
    if action is Action.list:
        listed = destination(output, to)
        with opened(store, read_only=True) as open_store:
            _list(open_store.collection(name), listed)
        return
    where = for_document(output, to)
    if title is None:
        raise UsageError(f"say which hold to {action.value}: timespine hold STORE NAME {action.value} HOLD")
    with opened(store) as open_store:
        collection = open_store.collection(name)
        if action is Action.add:
            _add(collection, where, title, as_of, token)
        else:
            _change(collection, where, action, title, as_of, token)


def _list(collection: Collection, where: Destination) -> None:
    state = access_of(collection).state()
    rows = [{"kind": "retention", "name": None, "since": plain(state.retention), "until_ms": None}]
    rows += [
        {"kind": "hold", "name": name, "since": plain(each.since), "until_ms": None}
        for name, each in state.holds.items()
    ]
    rows += [
        {"kind": "lease", "name": name, "since": plain(each.since), "until_ms": each.until_ms}
        for name, each in state.readers.items()
    ]
    write_table(where, ("kind", "name", "since", "until_ms"), rows)


def _add(collection: Collection, where: Destination, title: str, as_of: str | None, token: str | None) -> None:
    token = token if token is not None else fresh_id("t")
    try:
        made = collection.hold(to_moment(as_of), critical=title, token=token)
    except Indeterminate as error:
        raise Indeterminate(f"{error}; if hold {title} is there, its token is {token}") from error
    assert isinstance(made, CriticalHold)
    result = {"hold": title, "token": made.token, "since": plain(made.since)}
    write_done(
        where, result, lambda: f"hold {title} keeps history from {typed(made.since)} on; its token is {made.token}\n"
    )


def _change(
    collection: Collection, where: Destination, action: Action, title: str, as_of: str | None, token: str | None
) -> None:
    """Move or release a hold that is there."""
    holds = access_of(collection).state().holds
    if title not in holds:
        raise UsageError(f"there is no hold {shown(title)}; there are: {', '.join(sorted(holds)) or 'none'}")
    if token is None:
        raise UsageError(f"--token is needed to {action.value} a hold: `add` printed it")
    found = CriticalHold(access_of(collection), title, token, holds[title].since)
    moment = to_moment(as_of)
    if action is Action.release:
        found.release()
    elif moment is None:
        raise UsageError("--as-of is needed: history before it is let go")
    else:
        found.advance(moment)
    since = plain(collection.since)
    done = "was released" if action is Action.release else f"keeps history from {typed(found.since)} on"
    result = {"hold": title, "action": action.value, "since": since}
    write_done(where, result, lambda: f"hold {title} {done}; readable from {typed(since)} on\n")
