"""Verbs that look after a store: compact, maintain, vacuum, doctor."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer

from timespine.cli.destination import Format, destination, for_document
from timespine.cli.failures import CORRUPT, UNAVAILABLE
from timespine.cli.options import Name, Output, StorePath, To, opened
from timespine.cli.output import done, write_document, write_done, write_table
from timespine.cli.progress import progress, waiting
from timespine.cli.text import counted, one_line, size
from timespine.client.doctor import Report, examine

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Collections; all, if none is named.", show_default=False),
]

_FOUND = ("collection", "kind", "what", "key", "message")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("compact")(compact)
    app.command("maintain")(maintain)
    app.command("vacuum")(vacuum)
    app.command("doctor")(doctor)


def compact(store: StorePath, name: Name, output: Output = None) -> None:
    """Merge a collection into one run, so that it is read fastest and takes the least space.

    \b
    Example:
      timespine compact ./data orders
    """
    where = for_document(output)
    with opened(store) as open_store:
        collection = open_store.collection(name)
        before = collection.inspect()
        with waiting(f"merging {counted(before.rows, 'update')}"):
            collection.compact(wait=True)
        after = collection.inspect()
    result = {
        "runs": sum(batch.runs for batch in after.batches),
        "updates": after.rows,
        "bytes": after.size,
        "updates_before": before.rows,
        "bytes_before": before.size,
    }
    write_done(
        where,
        result,
        lambda: (
            f"{counted(result['runs'], 'run')}: {counted(after.rows, 'update')}, {size(after.size)}; "
            f"before {counted(before.rows, 'update')}, {size(before.size)}\n"
        ),
    )


def maintain(
    store: StorePath,
    names: Names = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also look for files that crashed writers left behind.")
    ] = False,
    output: Output = None,
) -> None:
    """Do all upkeep that is due: merges, retention, expired leases, files that nobody needs any more.

    Exit code 5 if something could not be done, such as for want of space.

    \b
    Example:
      timespine maintain ./data
    """
    where = for_document(output)
    with opened(store) as open_store, waiting("looking after the store"):
        report = open_store.maintain(*names or (), sweep=sweep)
    lines = [
        f"{counted(report.merges, 'merge')}, {counted(report.rollups, 'rollup')}, "
        f"{counted(report.collected + report.swept, 'file')} deleted, {counted(report.leases, 'lease')} expired",
        *(f"not done: {one_line(each)}" for each in report.skipped),
    ]
    write_done(where, asdict(report), lambda: "".join(f"{line}\n" for line in lines))
    if report.failures:
        raise typer.Exit(UNAVAILABLE)


def vacuum(
    store: StorePath,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; without, they are only listed.")] = False,
    output: Output = None,
    to: To = None,
) -> None:
    """List the files that no collection can ever reach, left behind by writers that crashed; delete them if told.

    No history is forgotten: `expire` is the verb for that.

    \b
    Example:
      timespine vacuum ./data
      timespine vacuum ./data --delete
    """
    where = destination(output, to)
    with opened(store, read_only=not delete) as open_store, waiting("looking for files that nobody can reach"):
        found = open_store.vacuum(dry_run=not delete)
    verb = "deleted" if found.deleted else "could be deleted: run it again with --delete"
    summary = f"{counted(len(found.blobs), 'file')}, {size(found.bytes)}{f' {verb}' if found.blobs else ''}\n"
    with done(lambda: summary) if found.deleted else nullcontext():
        if where.format in (Format.csv, Format.parquet):
            write_table(where, ("key",), [{"key": key} for key in found.blobs])
        else:
            write_document(where, asdict(found), lambda: "".join(f"{key}\n" for key in found.blobs) + summary)


def doctor(store: StorePath, names: Names = None, output: Output = None, to: To = None) -> None:
    """Compare everything that can be reached with what was written: every byte of every file. Changes nothing.

    Exit code 6 if something is missing or damaged.

    \b
    Example:
      timespine doctor ./data
    """
    where = destination(output, to)
    with opened(store, read_only=True) as open_store, progress("verifying", unit="bytes") as told:
        report = examine(open_store, *names or (), progress=told)
    if where.format in (Format.csv, Format.parquet):
        write_table(where, _FOUND, [asdict(each) for each in report.findings])
    else:
        write_document(where, {**asdict(report), "is_sound": report.is_sound}, lambda: _told(report))
    if not report.is_sound:
        raise typer.Exit(CORRUPT)


def _told(report: Report) -> str:
    lines = [
        f"{each.kind.value}: {each.what}{f' of {each.collection}' if each.collection else ''}: {one_line(each.message)}"
        for each in report.findings
    ]
    looked = (
        f"{counted(report.collections, 'collection')}: {counted(report.parts, 'part')}, "
        f"{counted(report.inline, 'inline part')}, {counted(report.runs, 'hollow run')}, "
        f"{counted(report.rollups, 'rollup')}, {size(report.bytes)}"
    )
    verdict = "all as it was written" if report.is_sound else f"{counted(len(report.findings), 'finding')}"
    return "".join(f"{line}\n" for line in (*lines, f"{looked}: {verdict}"))
