"""Every error that Timespine raises, grouped by what the caller does about it and named by what happened.

    TimespineError
    |- UsageError (also a ValueError)   fix the call
    |  |- InvalidRows                     the rows do not fit the schema of the collection
    |  |- InvalidCondition                a condition cannot be read, or does not fit the columns
    |  |- UnsupportedType                 no column can have that type
    |  |- LateRows                        the rows stand at times that are sealed
    |  |- DiffOverflow                    the count of a row does not fit 64 bits
    |  |- SchemaChanged                   a column was dropped that the new rows have values for
    |  |- CollectionExists                a collection has that name
    |  |- NameBlocked                     a dropped collection had that name
    |  |- CollectionInUse                 a reader, a hold or a view keeps the collection
    |  |- OwnedCollection                 only the refresh of a view writes to the collection
    |  |- UnsupportedView                 a view cannot be maintained as it was asked for: here are all reasons
    |  |- ArrangementMisfit               an open arrangement does not fit the newest schema: close it
    |  |- StoreClosed                     the store, or a port of it, was closed: open it again
    |  |- ReadOnlyStore                   the store was opened for reading only, or is a copy
    |  |- IncompleteCopy                  the store is a copy that was interrupted: copy again
    |  |- WrongProcess                    a handle belongs to the process that opened it: open the store in this one
    |  `- UnknownCollection (a KeyError)  there is no collection of that name
    |- Conflict                         ask again, for something else
    |  |- UpperMismatch                   another writer was first: here is the true upper
    |  |  `- ConcurrentWrite                another writer wrote ahead of the seal what this would have sealed
    |  |- SinceError                      history before `since` is gone: read at or after it
    |  |- NotSealed                       the time is not complete yet: wait, or read earlier
    |  |- SchemaConflict                  another process changed the schema first
    |  |- ClosedError                     the collection is closed or finalized for good
    |  |- BatchAlreadyCommitted           this batch of a streaming sink was committed before: nothing is left to do
    |  `- InlineBudgetExceeded            no room in the state: put the data into a blob and commit again
    |- HandleExpired                    start again with a new handle
    |  |- LeaseExpired                    the lease of this handle lapsed and was removed
    |  `- Fenced                          another process took over, or this writer is no longer registered
    |     `- StoreFenced                    the store was fenced or restored: open it again
    |- Unavailable                      retry
    |  |- Determinate                     it did not happen
    |  |  |- Contention                     other writers were first every time that it was tried
    |  |  `- NoSpace                        the disk is full: free space, or expire history and maintain
    |  `- Indeterminate                   it may have happened
    |- CorruptionError                  stop: stored bytes are not what was written
    `- VersionError                     stop: written by a newer version, upgrade to read it

An expected "no" of the pure core is one of these as a *value*: transitions
return it inside `NoOp`, and only the outermost shell raises it. Messages carry
ids and frontiers, never row data or passwords.
"""

from __future__ import annotations

import copy
from typing import Self, TypeVar

from timespine.hints import Hint, sentence

E = TypeVar("E", bound="TimespineError")

SHOWN_MAX = 120
"""Characters of a foreign value that a message repeats, at most."""


def short_repr(value: object) -> str:
    """Return a short repr for a message. Never fails, whatever the value is."""
    try:
        text = repr(value)
    except Exception:  # a hostile or half-built object, or an integer too long to print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def with_article(noun: str) -> str:
    """Return a noun with its article: "an int", "a str"."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def _time(time: object) -> object:
    """Format a time of one coordinate as users write it."""
    return time[0] if isinstance(time, tuple) and len(time) == 1 else time


class TimespineError(Exception):
    """The root: catch this to catch everything that Timespine raises on purpose."""

    hint: Hint | None = None
    """What to do about it, where the message does not say so itself."""
    seqnos: tuple[tuple[str, int], ...] = ()
    """The state numbers that a refused command was checked against, by collection."""

    def __init__(self, message: str = "", *, hint: Hint | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    @property
    def message(self) -> str:
        """The message without the hint."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {sentence(self.hint)}"

    def in_context(self: E, where: str) -> E:
        """Give the same error with a message that begins with where it happened."""
        error = copy.copy(self)
        error.args = (f"{where}: {self.message}",)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        # By default, pickle rebuilds an exception from its message. The constructors here take other arguments,
        # so a process pool could not pass such an error on.
        return _made_again, (type(self), self.args, dict(self.__dict__))


class UsageError(TimespineError, ValueError):
    """The call is wrong and changed nothing; the message says what to change."""


class InvalidRows(UsageError):
    """The rows do not fit the schema of the collection, or cannot be read as rows. Nothing was written."""

    row: int | None = None
    """The position of the first row that does not fit, from 0 on; None if the error is not about one row."""
    column: str = ""
    """The column that does not fit, if the error is about one row."""
    why: str = ""
    """What is wrong with the row."""
    found_type: str = ""
    """The Python type of the values that do not fit, if the error is about their type."""
    needed: str = ""
    """What is needed instead, if the error is about the type of the values: "where int64 is needed"."""
    place: str = ""
    """Where such values are: "column 'total': "."""

    @classmethod
    def of_row(cls, column: str, row: int, why: str) -> InvalidRows:
        """Make the error for one row whose value does not fit a column."""
        error = cls(f"column {short_repr(column)}: row {row} {why}")
        error.column, error.row, error.why = column, row, why
        return error

    @classmethod
    def of_type(cls, found_type: str, needed: str) -> InvalidRows:
        """Make the error for values of a Python type that does not stand for the wanted one."""
        error = cls(f"it holds {with_article(found_type)} {needed}")
        error.found_type, error.needed = found_type, needed
        return error

    def in_context(self, where: str) -> Self:
        """Give the same error with a message that begins with where it happened."""
        error = super().in_context(where)
        error.place = f"{where}: {self.place}"
        return error

    def with_found(self, found: str) -> str:
        """Give the message with other words for the type of the values."""
        return f"{self.place}it holds {found} {self.needed}" if self.found_type else self.message

    def at(self, place: str) -> str:
        """Give the message with another name for the row."""
        return self.message if self.row is None else f"column {short_repr(self.column)}: {place} {self.why}"


class LateRows(UsageError):
    """Rows stand at times that are sealed. Nothing was written."""

    def __init__(self, message: str, earliest: object, upper: object, *, hint: Hint | None = None) -> None:
        super().__init__(message, hint=hint)
        self.earliest = earliest
        """The earliest times of the rows."""
        self.upper = upper
        """The frontier up to which the collection is complete."""


class DiffOverflow(UsageError):
    """The diffs of one row add up to more than 64 bits can count. Nothing was written."""

    key_range: tuple[dict[str, object], dict[str, object]] | None = None
    """The least and the greatest key of such rows where the read met them; None if they are not known."""


class InvalidCondition(UsageError):
    """A condition on rows cannot be read, or does not fit the columns. Nothing was changed."""


class UnsupportedType(UsageError):
    """No column can have this type; the message says which one to use instead, where there is one."""


class SchemaChanged(UsageError):
    """New rows were made under a schema that is not the newest one, and would lose values. Nothing was written."""

    def __init__(
        self, collection: str, written: int, newest: int, dropped: tuple[str, ...] = (), name: str = ""
    ) -> None:
        lost = f"column {', '.join(dropped)} was dropped" if dropped else "the schema was changed"
        super().__init__(
            f"{lost} in {name or collection} after these rows were made (with schema {written}, now {newest}): "
            "nothing was written; look at the columns, and give the rows again"
        )
        self.collection = collection
        """The id of the collection."""
        self.written = written
        """The schema that the rows were made under."""
        self.newest = newest
        """The newest schema of the collection."""
        self.dropped = dropped
        """The columns whose values would be lost, by the names that they had; empty if that is not known."""


class CollectionExists(UsageError):
    """A collection already has the requested name, perhaps with another schema. Nothing was changed."""

    def __init__(self, name: str, message: str = "", *, hint: Hint | None = None) -> None:
        if not message:
            message, hint = f"collection {name} exists", Hint("open-or-replace", {"name": name})
        super().__init__(message, hint=hint)
        self.name = name
        """The name."""


class NameBlocked(UsageError):
    """A dropped collection had the requested name. Nothing was changed."""

    def __init__(self, name: str, *, hint: Hint) -> None:
        super().__init__(f"a collection {name} was dropped, and its name stays blocked", hint=hint)
        self.name = name
        """The name."""


class CollectionInUse(UsageError):
    """A reader, a hold or a view keeps the collection from being dropped. Nothing was changed."""


class OwnedCollection(UsageError):
    """Only the refresh of a view changes this collection. Nothing was changed."""

    def __init__(self, name: str, role: str) -> None:
        what = {"view": "is a view", "stage": "is state of a view", "registry": "holds the definitions of views"}[role]
        super().__init__(
            f"collection {name} {what}: only refreshes of views change it; write to the inputs of the view"
        )
        self.name = name
        """The name of the collection."""
        self.role = role
        """What it is for: view, stage or registry."""


class UnsupportedView(UsageError):
    """A view cannot be maintained as it was asked for. Nothing was changed."""

    def __init__(self, message: str, reasons: tuple[object, ...] = (), *, hint: Hint | None = None) -> None:
        super().__init__("\n".join((message, *(f"  {reason}" for reason in reasons))), hint=hint)
        self.reasons = reasons
        """Each reason: its line and column in the SQL text, what is wrong, and what to write instead."""

    def __str__(self) -> str:
        first, line_end, reasons = self.message.partition("\n")
        return f"{first if self.hint is None else f'{first}; {sentence(self.hint)}'}{line_end}{reasons}"


class ArrangementMisfit(UsageError):
    """An open arrangement does not fit the newest schema of its collection: close it, and arrange by other columns."""


class StoreClosed(UsageError):
    """The store, or a port of it, was closed before the call. Nothing was changed."""


class ReadOnlyStore(UsageError):
    """The store was opened for reading only. Nothing was changed."""


class IncompleteCopy(UsageError):
    """The store is a copy whose last run was interrupted. Run `copy` again to finish it."""


class WrongProcess(UsageError):
    """A handle was used in, or sent to, a process other than the one that opened it. Nothing was changed."""


class UnknownCollection(UsageError, KeyError):
    """No collection has this name: it never existed, or it was dropped. Nothing was changed."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name
        """The requested name."""


class Conflict(TimespineError):
    """The call was valid, but not for this time or this upper."""


class UpperMismatch(Conflict):
    """Another writer was first. Nothing was written."""

    def __init__(self, expected: object, actual: object) -> None:
        super().__init__(
            f"the upper is {actual}, not {expected}: nothing was written; "
            f"append again from {actual} if that is still what you mean"
        )
        self.expected = expected
        """The upper that the caller expected."""
        self.actual = actual
        """The upper that the collection has."""


class ConcurrentWrite(UpperMismatch):
    """A delta is stale: another writer wrote updates before its time after the delta was computed."""

    def __init__(self, expected: object, actual: object) -> None:
        super().__init__(expected, actual)
        self.args = ("another writer wrote updates that this append would have sealed: read again, and append again",)


class SinceError(Conflict):
    """The requested history may have been compacted away."""

    def __init__(self, asked: object, since: object) -> None:
        super().__init__(f"{_time(asked)} can no longer be read: history is exact from {since} on")
        self.asked = asked
        """The requested time or frontier."""
        self.since = since
        """The first times that can be read."""


class NotSealed(Conflict):
    """The requested time is not complete yet."""

    def __init__(self, asked: object, upper: object, *, expired: bool = False) -> None:
        if expired:
            super().__init__(
                f"nothing can be read before {_time(asked)} is complete: history before it was expired, and the "
                f"collection is sealed up to {upper}",
                hint=Hint("wait-for-seal"),
            )
        else:
            super().__init__(
                f"{_time(asked)} is not complete yet: the collection is sealed up to {upper}",
                hint=Hint("read-complete-time"),
            )
        self.asked = asked
        """The requested time; without one, the first time that a snapshot could read."""
        self.upper = upper
        """The frontier up to which the collection is complete."""
        self.expired = expired
        """Whether the caller gave no time, and every complete time was expired."""


class SchemaConflict(Conflict):
    """Another process changed the schema first. Nothing was changed."""

    def __init__(self, expected: int | None, actual: int | None) -> None:
        newest = "there is no schema" if actual is None else f"the newest schema is number {actual}"
        super().__init__(f"{newest}, not {expected}: look at it, and evolve that one")
        self.expected = expected
        """The number of the schema that the caller expected to be the newest; None for no schema."""
        self.actual = actual
        """The number of the newest schema; None if there is none."""


class ClosedError(Conflict):
    """The collection is closed or finalized; this will not change."""


class InlineBudgetExceeded(Conflict):
    """The state has no room for more inline data. Nothing was written."""

    def __init__(self, asked: int, used: int, budget: int) -> None:
        super().__init__(f"{asked} bytes inline do not fit beside {used} of {budget}: put them into a blob instead")
        self.asked = asked
        """The bytes to put inline."""
        self.used = used
        """The bytes that the state has inline."""
        self.budget = budget
        """The most bytes that a state may have inline."""


class BatchAlreadyCommitted(Conflict):
    """An earlier commit already holds this batch of a streaming sink: nothing is left to do."""


class HandleExpired(TimespineError):
    """The handle has expired: open a new one."""


class LeaseExpired(HandleExpired):
    """The lease lapsed and was removed; the state and history that it protected may be gone."""


class Fenced(HandleExpired):
    """A writer that is not registered, or whose registration expired, tried to commit."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        """Whether the command may have been committed."""


class StoreFenced(Fenced):
    """The store was fenced or restored after this process opened it. Close it, and open it again."""


class Unavailable(TimespineError):
    """Storage did not answer as it should; the same call may work later."""


class Determinate(Unavailable):
    """The call failed and had no effect."""


class Contention(Determinate):
    """Other writers were first in every attempt, up to a limit. Nothing was written."""


class NoSpace(Determinate):
    """The disk, or the user's quota on it, is full. Nothing was written; reads still work."""


class Indeterminate(Unavailable):
    """The call failed and may have taken effect, now or later."""


class CorruptionError(TimespineError):
    """Stored bytes are not what was written: stop, and look at the storage."""


class VersionError(TimespineError):
    """Stored bytes were written by a newer version: upgrade to read them."""


def _made_again(kind: type[TimespineError], args: tuple[object, ...], fields: dict[str, object]) -> TimespineError:
    """Rebuild an error in another process."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error
