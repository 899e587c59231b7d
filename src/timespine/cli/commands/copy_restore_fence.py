"""Verbs that operate a store: copy, promote, restore, fence, keep-deleted."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Annotated

import typer

from timespine.cli.options import OutputOption, StorePathArgument, check_path, open_store_at, parse_time_option
from timespine.cli.output.destination import for_document
from timespine.cli.output.format_text import count_text, size
from timespine.cli.output.progress import progress
from timespine.cli.output.row_writers import write_done
from timespine.client.backup.copy_store import copy, promote
from timespine.client.backup.fence_store import fence
from timespine.client.backup.restore_to_commit import RestorePoint, restore_store
from timespine.client.catalog.retention import duration as as_words
from timespine.errors import UsageError, short_repr

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="The place of the copy: a folder or a URL, as for a store.", show_default=False
    ),
]
ConsensusOption = Annotated[
    str | None,
    typer.Option(
        "--consensus",
        metavar="ADDRESS",
        help="The logs of the target, if it is new and they are to be in a database: postgresql://host/database.",
        show_default=False,
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("copy")(copy_verb)
    app.command("promote")(promote_verb)
    app.command("restore")(restore_verb)
    app.command("fence")(fence_verb)
    app.command("keep-deleted")(keep_deleted_verb)


def copy_verb(
    store: StorePathArgument,
    target: TargetArgument,
    consensus: ConsensusOption = None,
    full: Annotated[
        bool, typer.Option("--verify-full", help="Read every file of the copy back, and compare it with its hashes.")
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Take no leases on the store: it need not be writable.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Copy a store as of one moment; again to the same place, copy what is new: an incremental backup.

    The copy has an id of its own. It can be read at any time, and written only after `timespine promote`. If it is
    interrupted, it leaves the earlier copy as it was, or a place that says that it is incomplete.

    \b
    Example:
      timespine copy ./data s3://bucket/backup
    """
    where = for_document(output)
    check_path(store, "the location of the store")
    check_path(target, "the place of the copy")
    with progress(f"copying to {target}", unit="bytes") as tell:
        done = copy(
            store, target, consensus=consensus, read_only=read_only, verify="full" if full else "sizes", progress=tell
        )
    write_done(
        where,
        asdict(done),
        lambda: (
            f"{count_text(done.collections, 'collection')}, {count_text(done.blobs, 'file')}, {size(done.bytes)}; "
            f"copied {count_text(done.copied_blobs, 'file')}, {size(done.copied_bytes)}; "
            f"deleted {count_text(done.deleted_blobs, 'file')}\n"
        ),
    )


def promote_verb(store: StorePathArgument, consensus: ConsensusOption = None, output: OutputOption = None) -> None:
    """Make a copy a store of its own, which programs may write to. Later runs of copy refuse it.

    \b
    Example:
      timespine promote s3://bucket/backup
    """
    where = for_document(output)
    check_path(store, "the location of the store")
    origin = promote(store, consensus=consensus)
    write_done(where, {"store": store, "origin": origin}, lambda: f"{store} is a store of its own now\n")


def restore_verb(
    store: StorePathArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TIME|NAME@NUMBER",
            help="A date and time with its zone, milliseconds since 1970, or a commit of a collection: orders@57.",
            show_default=False,
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="TARGET", help="An empty place for the restored store.", show_default=False),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Restore a store to an earlier commit: in its place, or into another one.

    In its place, it also fences the store: programs that have it open must open it again. A store knows the commits of
    the time that `timespine keep-deleted` says.

    \b
    Example:
      timespine restore ./data --to 2024-01-31T12:00:00Z --into ./as-of-noon
      timespine restore ./data --to orders@57
    """
    where = for_document(output)
    check_path(store, "the location of the store")
    with progress("restoring", unit="bytes") as tell:
        done = restore_store(store, _point(to), into=into, progress=tell)
    moment = datetime.datetime.fromtimestamp(done.at_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    write_done(
        where,
        asdict(done),
        lambda: f"{done.location} is as of {moment}: {count_text(len(done.collections), 'collection')}\n",
    )


def _point(text: str) -> RestorePoint:
    """Parse a point in the past: a time, or a collection and the number of a commit."""
    name, at, number = text.rpartition("@")
    if at:
        if not name or not number.isdecimal():
            raise UsageError(f"{short_repr(text)} is not a commit: give the collection and a number, such as orders@57")
        return name, int(number)
    moment = parse_time_option(text)
    if isinstance(moment, int | datetime.datetime):
        return moment
    raise UsageError(f"{short_repr(text)} is not a moment: give a date and time with its zone: 2024-01-31T12:00:00Z")


def fence_verb(store: StorePathArgument, output: OutputOption = None) -> None:
    """Lock out every program that has a store open: its commits fail from now on, until it opens the store again.

    Run it after a failover, and after a restore by the means of a database or a bucket.

    \b
    Example:
      timespine fence s3://bucket/shop
    """
    where = for_document(output)
    check_path(store, "the location of the store")
    epoch = fence(store)
    write_done(where, {"store": store, "epoch": epoch}, lambda: f"{store} is in epoch {epoch} now\n")


def keep_deleted_verb(
    store: StorePathArgument,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="A duration such as '7 days'; nothing: delete at once.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Set how long deleted data stay restorable: every commit of that time. Without --for, print the setting.

    It costs the bytes that are deleted during that time. Expired history that must be forgotten stays as much longer.

    \b
    Example:
      timespine keep-deleted ./data --for '7 days'
    """
    where = for_document(output)
    with open_store_at(store) as open_store:
        if duration is not None:
            open_store.keep_deleted(None if duration == "nothing" else duration)
        kept = open_store.kept_deleted_ms()
    text = "deleted data go at once" if kept is None else f"deleted data stay restorable {as_words(kept)}"
    write_done(where, {"keep_deleted_ms": kept}, lambda: f"{text}\n")
