"""Whether the kernels of this thread work in the background, beside threads that run Python.

Every long call of numpy or Arrow lets the interpreter lock go. Beside a thread that runs Python, it then waits for the
switch interval of the interpreter, 5 ms, to get the lock back. So in the background few long calls win, though less of
their data stays in the cache of the core: kernels work in larger blocks, and start no second thread, which would wait
as well. `python -m bench.beside` measures it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_background: ContextVar[bool] = ContextVar("is background", default=False)


@contextmanager
def background_work() -> Iterator[None]:
    """Let the kernels of this thread work in the background until the block ends."""
    before = _is_background.set(True)
    try:
        yield
    finally:
        _is_background.reset(before)


def is_background() -> bool:
    """Tell whether the kernels of this thread work in the background."""
    return _is_background.get()
