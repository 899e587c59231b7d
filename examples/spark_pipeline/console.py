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
    """What a JVM that is started in the block writes to standard error, now and later, goes to a file.

    It inherits where that leads, and Spark warns before anybody can tell it not to.
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
    """A bar while the block runs; each call of what it gives is a step."""
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
    """A sign of life while the block runs."""
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
