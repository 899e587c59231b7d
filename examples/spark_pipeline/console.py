"""What a person sees while Spark works: bars instead of the log."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def quietly(file: Path) -> Iterator[None]:
    """Redirect standard error to a file while the block runs, for good in a JVM that starts there.

    The JVM inherits the redirection. Spark prints warnings before a program can switch them off.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(opened, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(opened)


@contextmanager
def bar(console: Console, what: str, total: int) -> Iterator[Callable[..., Any]]:
    """Show a bar while the block runs; give a function that counts one step."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda *_: progress.advance(task)


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Show a spinner while the block runs."""
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
