"""Verbs that maintain and check a store: compact, maintain, vacuum, doctor, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import count
from typing import Annotated

import typer

from timespine.cli.error_report import CORRUPT, UNAVAILABLE
from timespine.cli.options import NameArgument, OutputOption, StorePathArgument, ToOption, check_path, open_store_at
from timespine.cli.output.destination import Destination, OutputFormat, destination, for_document
from timespine.cli.output.format_text import count_text, fields, one_line, size
from timespine.cli.output.progress import progress, spinner
from timespine.cli.output.row_writers import done_document, write_document, write_done, write_table
from timespine.client.diagnostics.doctor import HealthReport, examine
from timespine.client.maintenance.maintenance_report import MaintenanceReport
from timespine.client.opening.open_store import accept_loss as accept_loss_of
from timespine.client.store import Store

AcceptLossOption = Annotated[
    bool, typer.Option("--accept-loss", help="Accept that the log lost commits, and continue with the remaining ones.")
]
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="The names of collections; the default is all.", show_default=False),
]

_FOUND = ("collection", "kind", "what", "key", "message")


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("compact")(compact_verb)
    app.command("maintain")(maintain_verb)
    app.command("vacuum")(vacuum_verb)
    app.command("doctor")(doctor_verb)
    app.command("metrics")(metrics_verb)


def compact_verb(store: StorePathArgument, name: NameArgument, output: OutputOption = None) -> None:
    """Merge a collection into one run, for the fastest reads and the least space.

    \b
    Example:
      timespine compact ./data orders
    """
    where = for_document(output)
    with open_store_at(store) as open_store:
        collection = open_store.collection(name)
        before = collection.inspect()
        with spinner(f"merging {count_text(before.rows, 'update')}"):
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
            f"{count_text(result['runs'], 'run')}: {count_text(after.rows, 'update')}, {size(after.size)}; "
            f"before {count_text(before.rows, 'update')}, {size(before.size)}\n"
        ),
    )


def maintain_verb(
    store: StorePathArgument,
    names: NamesArgument = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Also sweep the files of crashed writers.")] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Merge millions of updates by jobs of Spark (needs timespine[spark]).")
    ] = False,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Repeat with this pause until interrupted.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="With --every: the number of rounds.")] = None,
    output: OutputOption = None,
) -> None:
    """Do all maintenance that is due: merges, retention, expired leases, garbage collection.

    With --spark, SPARK_REMOTE, SPARK_MASTER_URL or spark-defaults name the cluster; the default is this machine. A
    stopped job does no harm. The exit code is 5 if some maintenance failed, for example if the disk is full.

    \b
    Example:
      timespine maintain ./data
      timespine maintain ./data --spark --every 60
    """
    where = for_document(output)
    failures = 0
    with open_store_at(store) as open_store, _on_spark(open_store) if spark else nullcontext():
        for number in count(1):
            with spinner("maintaining the store"):
                report = open_store.maintain(*names or (), sweep=sweep)
            _report(report, where)
            failures += report.failures
            if every is None or number == rounds:
                break
            time.sleep(every)
    if failures:
        raise typer.Exit(UNAVAILABLE)


@contextmanager
def _on_spark(store: Store) -> Iterator[None]:
    """Start a session of Spark that does the large merges of a store."""
    from timespine.spark import merging_on
    from timespine.spark.setup.session import session

    made = session("timespine maintain")
    try:
        with merging_on(store, made):
            yield
    finally:
        made.stop()


def _report(report: MaintenanceReport, where: Destination) -> None:
    """Print the report of a round of maintenance."""
    lines = [
        f"{count_text(report.merges, 'merge')}, {count_text(report.rollups, 'rollup')}, "
        f"{count_text(report.collected + report.swept, 'file')} deleted, {count_text(report.leases, 'lease')} expired",
        *(f"not done: {one_line(each)}" for each in report.skipped),
    ]
    write_done(where, asdict(report), lambda: "".join(f"{line}\n" for line in lines))


def vacuum_verb(
    store: StorePathArgument,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the files instead of listing them.")] = False,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """List the files of crashed writers that no collection refers to; delete them with --delete.

    This forgets no history: `expire` does.

    \b
    Example:
      timespine vacuum ./data
      timespine vacuum ./data --delete
    """
    where = destination(output, to)
    with open_store_at(store, read_only=not delete) as open_store, spinner("looking for files that nothing refers to"):
        found = open_store.vacuum(dry_run=not delete)
    verb = "deleted" if found.deleted else "could be deleted: run it again with --delete"
    summary = f"{count_text(len(found.blobs), 'file')}, {size(found.bytes)}{f' {verb}' if found.blobs else ''}\n"
    with done_document(lambda: summary) if found.deleted else nullcontext():
        if where.format in (OutputFormat.csv, OutputFormat.parquet):
            write_table(where, ("key",), [{"key": key} for key in found.blobs])
        else:
            write_document(where, asdict(found), lambda: "".join(f"{key}\n" for key in found.blobs) + summary)


def metrics_verb(store: StorePathArgument, output: OutputOption = None, to: ToOption = None) -> None:
    """Print figures of a store: blobs and bytes of all its collections, and the counters of this process.

    \b
    Example:
      timespine metrics ./data --output json
    """
    where = destination(output, to)
    with open_store_at(store, read_only=True) as open_store:
        for name in open_store.names(hidden=True):
            open_store.description(name)
            open_store.collection(name)
        found = open_store.metrics()
    if where.format in (OutputFormat.csv, OutputFormat.parquet):
        write_table(where, ("name", "value"), [{"name": name, "value": float(found[name])} for name in sorted(found)])
    else:
        ordered = {name: found[name] for name in sorted(found)}
        write_document(where, ordered, lambda: fields([(name, f"{value:,g}") for name, value in ordered.items()]))


def doctor_verb(
    store: StorePathArgument,
    names: NamesArgument = None,
    accept_loss: AcceptLossOption = False,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Check every byte of every file of a store against its checksum. Without --accept-loss, nothing is changed.

    The exit code is 6 if a file is missing or damaged. If the log lost commits, every verb fails, this one too: restore
    the store from a copy. If there is no copy, --accept-loss keeps what is left of the log, and the store opens again.

    \b
    Example:
      timespine doctor ./data
      timespine doctor ./data --accept-loss
    """
    where = destination(output, to)
    if accept_loss:
        check_path(store, "the location of the store")
        before, found = accept_loss_of(store)
        counted_before = "an unknown number" if before is None else before
        typer.echo(f"accepted: {found} entries remain, of {counted_before} that were committed", err=True)
    with open_store_at(store, read_only=True) as open_store, progress("verifying", unit="bytes") as told:
        report = examine(open_store, *names or (), progress=told)
    if where.format in (OutputFormat.csv, OutputFormat.parquet):
        write_table(where, _FOUND, [asdict(each) for each in report.findings])
    else:
        write_document(where, {**asdict(report), "is_sound": report.is_sound}, lambda: _report_findings(report))
    if not report.is_sound:
        raise typer.Exit(CORRUPT)


def _report_findings(report: HealthReport) -> str:
    lines = [
        f"{each.kind.value}: {each.what}{f' of {each.collection}' if each.collection else ''}: {one_line(each.message)}"
        for each in report.findings
    ]
    looked = (
        f"{count_text(report.collections, 'collection')}: {count_text(report.parts, 'part')}, "
        f"{count_text(report.inline, 'inline part')}, {count_text(report.runs, 'hollow run')}, "
        f"{count_text(report.rollups, 'rollup')}, {size(report.bytes)}"
    )
    verdict = "all as it was written" if report.is_sound else f"{count_text(len(report.findings), 'finding')}"
    return "".join(f"{line}\n" for line in (*lines, f"{looked}: {verdict}"))
