"""Report errors on the command line: one line that says what to do, and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
from typing import Any

import msgspec

from timespine.cli.error_wording import error_text, hint_text
from timespine.cli.output.format_text import one_line, type_text
from timespine.client.arguments.time_args import plain_frontier
from timespine.errors import (
    Conflict,
    CorruptionError,
    HandleExpired,
    Indeterminate,
    SinceError,
    TimespineError,
    Unavailable,
    UsageError,
    VersionError,
)
from timespine.model.frontier import Frontier

OUR_MISTAKE, USAGE, CONFLICT, HANDLE_EXPIRED, UNAVAILABLE, CORRUPT, NOT_TOLD = 1, 2, 3, 4, 5, 6, 7
INTERRUPTED, NO_READER, TERMINATED = 130, 141, 143


class ResultNotWritten(TimespineError):
    """The verb changed the store, but its result could not be written."""


class OutputClosed(TimespineError):
    """Standard output is closed. The verb did nothing."""


_CODES: tuple[tuple[type[TimespineError], int], ...] = (
    (UsageError, USAGE),
    (Conflict, CONFLICT),
    (HandleExpired, HANDLE_EXPIRED),
    (Unavailable, UNAVAILABLE),
    (CorruptionError, CORRUPT),
    (VersionError, CORRUPT),
    (ResultNotWritten, NOT_TOLD),
    (OutputClosed, NO_READER),
)

_WRONG_PATH = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTEMPTY),
    }
)
"""The error numbers of the operating system for a wrong path, as opposed to a failing disk."""


def exit_code(error: Exception) -> int:
    """Return the exit code of a command that fails with this error."""
    if is_typers(error):
        return int(getattr(error, "exit_code", USAGE))
    if isinstance(error, TimespineError):
        return next((code for kind, code in _CODES if isinstance(error, kind)), OUR_MISTAKE)
    if isinstance(error, OSError) and error.errno is not None:
        return USAGE if error.errno in _WRONG_PATH else UNAVAILABLE
    return OUR_MISTAKE


def is_typers(error: Exception) -> bool:
    """Return whether the parser of arguments raised it. Check its methods, since its class moved between versions."""
    return callable(getattr(error, "format_message", None))


def hint(error: Exception, *, can_wait: bool = False) -> str:
    """Return advice: the hint of the error, or that of its group, or nothing."""
    if is_typers(error):
        context = getattr(error, "ctx", None)
        return f"see {context.command_path} --help" if context is not None else ""
    if isinstance(error, TimespineError) and error.hint is not None:
        return hint_text(error.hint, can_wait=can_wait)
    if isinstance(error, SinceError):
        return f"ask for a time at or after {type_text(error.since)}"
    if isinstance(error, ResultNotWritten):
        return "do not run it again"
    if isinstance(error, Indeterminate):
        return "it may have happened: check before you run it again"
    if isinstance(error, Unavailable):
        return "nothing was changed: run it again"
    if isinstance(error, HandleExpired):
        return "run it again; if it is a hold, with the token it has now"
    if isinstance(error, CorruptionError) and "restore" not in str(error):
        return "stop writing, see `timespine doctor STORE`, and restore what is damaged from a copy"
    if exit_code(error) == OUR_MISTAKE:
        return "this is a bug in Timespine: run it again with --debug and report the output"
    return ""


def message(error: Exception) -> str:
    """Describe the error in one line, without the hint."""
    if is_typers(error):
        return one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    if isinstance(error, TimespineError):
        return one_line(error_text(error))
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return one_line(f"{type(error).__name__}: {error}")


def report_error(error: Exception, *, as_json: bool, debug: bool, can_wait: bool = False) -> int:
    """Print the error to standard error; return the exit code."""
    code = exit_code(error)
    if sys.stderr is None:  # closed: `print` would write to standard output
        return code
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    advice = hint(error, can_wait=can_wait)
    line = f"error: {message(error)}{'; ' if advice else ''}{advice}"
    if as_json:
        line = msgspec.json.encode(_document(error, code, advice)).decode()
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
    return code


def _document(error: Exception, code: int, advice: str) -> dict[str, Any]:
    kind = "UsageError" if is_typers(error) else type(error).__name__
    known = {name: _value(value) for name, value in vars(error).items() if name in _FIELDS}
    return {"error": kind, "message": message(error), "hint": advice, "exit_code": code, **known}


_FIELDS = frozenset({"expected", "actual", "asked", "since", "upper", "in_doubt"})


def _value(value: object) -> Any:
    if isinstance(value, Frontier):
        return plain_frontier(value)
    if isinstance(value, tuple) and len(value) == 1:
        return value[0]
    return value if isinstance(value, int | str | bool | tuple) else str(value)
