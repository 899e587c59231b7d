"""A broken promise: a sentence for the reader, and the check that noticed it.

Checks go by the names that PROMISES.md uses: `answers.Answers.compare` is a function of
`timespine.testing`, `seqno_is_dense` an invariant. So a planted bug counts as caught only
if a check of the promise that it breaks noticed it.
"""

from __future__ import annotations

import sys
from types import FrameType

from timespine.errors import TimespineError

BROKEN_CODE = (TypeError, AttributeError, NameError, AssertionError)
"""Errors of code that does not fit together. They show no broken promise, also as the cause of another error."""


class Violation(str):
    """A sentence that says which promise a history broke, and at which step."""

    check: str
    """The function of `timespine.testing` or the invariant that noticed it."""
    is_crash: bool
    """Whether an error that Timespine does not raise on purpose is behind it: code broke, and perhaps no promise."""

    def __new__(cls, sentence: str, check: str = "", is_crash: bool = False) -> Violation:
        """Build a violation from its sentence."""
        violation = super().__new__(cls, sentence)
        violation.check = check
        violation.is_crash = is_crash
        return violation


class BrokenPromise(Exception):
    """The error of a check without a world to report to: the operation that called it ends as a violation."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.check = name_of_check(sys._getframe(1))
        """The function that raised it."""


def name_of_check(frame: FrameType) -> str:
    """Name the function that a frame runs: its module and its qualified name, without functions inside of it."""
    module = str(frame.f_globals["__name__"]).removeprefix("timespine.testing.")
    return f"{module}.{frame.f_code.co_qualname.partition('.<locals>')[0]}"


def is_crash(error: BaseException | None) -> bool:
    """Tell whether an error is not one of Timespine's own, or comes from code that does not fit together."""
    if error is None or isinstance(error, BrokenPromise):
        return False
    if not isinstance(error, TimespineError):
        return True
    return any(isinstance(each, BROKEN_CODE) for each in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """List an error, what caused it, and what was being handled when it was raised."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found
