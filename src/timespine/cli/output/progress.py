"""Show the progress of long work on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from timespine.cli.output.format_text import one_line

ProgressCallback = Callable[[int, int | None], None]
"""A function that takes the amount of finished work, and the total if it is known."""


@contextmanager
def progress(what: str, *, unit: str = "rows", shown: bool = True) -> Iterator[ProgressCallback]:
    """Show a bar while the block runs; give the function that updates it."""
    if not shown or not _is_seen():
        yield lambda done, total: None
        return
    amount = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), amount, Elapsed())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(_plain(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Show a spinner while the block runs."""
    if not _is_seen():
        yield
        return
    with Console(stderr=True).status(_plain(what)):
        yield


def _is_seen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _plain(text: str) -> str:
    """Escape a text for rich: the name of a file may look like markup."""
    return escape(one_line(text))
