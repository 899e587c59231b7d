"""The process that does large background merges, so that Python of the user does not slow them down.

A merge makes a thousand calls of numpy, Arrow and the file system for a million rows. Beside a thread that runs Python,
each of them waits for the interpreter lock, 5 ms at worst. Another process has a lock of its own. It is started for the
first large merge, and ends when it had nothing to do for a while (docs/design/0027).

What it fails to do, this process does itself at once, so that the other one decides about nothing but speed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

import timespine
from timespine.client.inner_handles import StoreContext
from timespine.client.maintenance.merge_process.merge_messages import (
    MergeOrder,
    MergeReply,
    read_framed,
    write_framed,
)
from timespine.columnar.kernels.background_flag import is_background
from timespine.columnar.merge.run_merge import MergeTask
from timespine.columnar.parts.part_list_tree import Counters, add_to_counter
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import rows_in
from timespine.core.effects import Output
from timespine.errors import Unavailable
from timespine.location.opening.store_location import MEMORY, parse_location
from timespine.locks import Lock
from timespine.model.description import Description

LEAST_ROWS = 1 << 18
"""The least updates of a merge that another process does. To start one takes half a second. Beside a busy interpreter
as many rows take a second in this process, and alone a twentieth of one."""

IDLE_S = 60.0
"""Seconds without a merge after which the process ends, and gives its memory back."""

SPARE_S = 10.0
"""How much longer the process itself waits: it must not end while a merge is on its way to it."""

MERGES_FAILED = "merges that the process failed to do"
"""The name of their counter."""

FAILURES_MAX = 3
"""Merges in a row that the process failed to do and this one did, after which this one does all."""

PROGRAM = "timespine.client.maintenance.merge_process.serve_merges"
"""The module whose `serve` the process runs."""

END_S = 5.0
"""Seconds to wait for a killed process: the system cannot end one that waits for a lost disk."""


class MergeProcess:
    """The process that merges for the maintenance thread of a store."""

    def __init__(self, context: StoreContext, *, least_rows: int = LEAST_ROWS, idle_s: float = IDLE_S) -> None:
        self.least_rows = least_rows
        """The least updates of a merge that the process does."""
        self.failures = 0
        """Merges in a row that the process failed to do and this one did."""
        self._context = context
        context.counters[MERGES_FAILED] = 0  # so that it can be watched before it happens
        self._idle_s = idle_s
        self._asking = Lock("the process that merges", END_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: IO[bytes] | None = None
        """What the process writes."""
        self._replied_at = 0.0
        """When the process replied last, or was started."""
        self._is_closed = False

    def merge(
        self,
        work: MergeTask,
        desc: Description,
        schemas: Sequence[Schema],
        counters: Counters,
        here: Callable[[], Output],
    ) -> Output:
        """Let the process do a large background merge, and do others, or what it fails to do, by `here`.

        Return None if an input is gone.
        """
        if not self._takes(work):
            return here()
        with self._asking:
            try:
                reply = self._ask(work, desc, schemas)
            except BaseException as error:
                self._end()  # it may reply later, or write to the store
                if not isinstance(error, Exception):
                    raise
                if self._is_closed:
                    raise Unavailable("the store was closed before the merge was done") from error
                reply = None
        if reply is None:
            output = here()  # if this fails too, it is no failure of the process
            self.failures += 1
            add_to_counter(self._context.counters, MERGES_FAILED, 1)
            return output
        self.failures = 0
        for what, count in reply.counters.items():
            add_to_counter(counters, what, count)
        add_to_counter(self._context.counters, "merges by process", 1)
        return reply.output

    def close(self) -> None:
        """End the process, in the middle of a merge too, which fails then."""
        self._is_closed = True
        process = self._process
        if process is None:
            return  # a merge that starts one now looks whether the store is closed, and ends it
        process.kill()  # so that a merge that waits for its reply ends
        with self._asking:
            self._end()

    def _takes(self, work: MergeTask) -> bool:
        """Tell whether the process does a merge: a large one in the background, of a store that it can open."""
        context = self._context
        if not context.config.merge_process or self.failures >= FAILURES_MAX or not is_background():
            return False
        if rows_in(work.runs) < self.least_rows or not context.location or not _has_interpreter():
            return False
        return parse_location(context.location, dict(context.storage)).scheme != MEMORY

    def _ask(self, work: MergeTask, desc: Description, schemas: Sequence[Schema]) -> MergeReply:
        """Let the process merge; raise what went wrong."""
        context = self._context
        encoded = tuple(schema.encode() for schema in schemas)
        order = MergeOrder(
            timespine.__version__, context.location, context.storage, context.config, encoded, work, desc
        )
        orders, replies = self._running()
        write_framed(orders, order)
        reply = _decoder.decode(read_framed(replies))
        self._replied_at = context.monotonic()
        if reply.error or reply.writer != work.writer:
            raise Unavailable(reply.error or "the reply is to another merge")
        return reply

    def _running(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return where the running process reads and writes. Start one if there is none."""
        process = self._process
        if process is not None and (
            process.poll() is not None or self._context.monotonic() - self._replied_at > self._idle_s
        ):
            self._end()
        if self._process is None:
            self._start()
        if self._is_closed or self._process is None or self._process.stdin is None or self._replies is None:
            raise Unavailable("the store is closed")
        return self._process.stdin, self._replies

    def _start(self) -> None:
        """Start the process. It imports from where this one does, and nothing of the user's."""
        path = [os.path.abspath(each) for each in sys.path if isinstance(each, str)]
        ours, theirs = os.pipe()
        self._replies = open(ours, "rb", buffering=0)  # noqa: SIM115 - `_end` closes it
        serve = f"serve({theirs}, {os.getpid()}, {self._idle_s + SPARE_S!r})"
        code = f"import sys; sys.path[:] = {path!r}; from {PROGRAM} import serve; {serve}"
        try:
            # SUBTLE: in a session of its own, a signal of the terminal to this program does not interrupt its merge.
            # What libraries print goes nowhere, since replies have a pipe of their own.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self._replied_at = self._context.monotonic()

    def _end(self) -> None:
        """End the process, if there is one. What it has put in vain is swept with the writer of the merge."""
        process, self._process = self._process, None
        replies, self._replies = self._replies, None
        if replies is not None:
            replies.close()
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        if process.stdin is not None:
            process.stdin.close()


def _has_interpreter() -> bool:
    """Tell whether this program can start Python: one that embeds it names another program, or none."""
    return Path(sys.executable or "").name.lower().startswith(("python", "pypy")) and not hasattr(sys, "frozen")


_decoder = msgspec.msgpack.Decoder(MergeReply)
