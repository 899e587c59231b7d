"""The command line: `timespine VERB STORE ...`.

Exit codes, the same for every verb:

    0    done
    1    a bug in Timespine: run it again with --debug and report the output
    2    fix the call: an argument, a name or a file is wrong; nothing was changed
    3    ask for something else: that time is expired or not complete yet, or another writer was first
    4    start again: the lease or the token is no longer valid
    5    try again: storage failed
    6    stop: stored bytes are damaged, or written by a newer version; also when doctor finds damage
    7    do not run it again: it was done, but the result could not be written; standard error says what it was
    130  interrupted by Ctrl-C; 143 by a termination signal; 141 the reader of the output closed it

Rows and documents go to standard output, everything else to standard error.
It needs typer and rich, the extra `cli`.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

NEEDED = ("typer", "click", "rich")
"""The packages of the extra `cli`."""


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from timespine.cli.app import app
        from timespine.cli.error_report import TERMINATED
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in NEEDED:
            raise
        print(f"error: {missing.name} is not installed: pip install 'timespine[cli]'", file=sys.stderr)
        raise SystemExit(2) from None

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)  # through every `with`, so that leases end

    signal.signal(signal.SIGTERM, terminate)
    _occupy_standard_streams()
    app()


def _occupy_standard_streams() -> None:
    """Open the null device for closed standard streams, so that no file of the store gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
