"""The rules for names of columns and of fields of structs."""

from __future__ import annotations

from timespine.errors import UsageError, short_repr

NAME_BYTES_MAX = 255
"""The most UTF-8 bytes in the name of a column or of a field of a struct."""


def check_column_name(name: object, what: str) -> str:
    """Return a valid name of a column or of a field of a struct; raise a UsageError if it is not valid."""
    fault = name_fault(name)
    if fault is not None:
        raise UsageError(f"{short_repr(name)} cannot be the name of a {what}: {fault}")
    return str(name)


def name_fault(name: object) -> str | None:
    """Return what is wrong with a name of a column or of a field of a struct; None if it is valid."""
    if type(name) is not str or not name:
        return "a text that is not empty is needed"
    if any(letter < " " or letter == "\x7f" for letter in name):
        return "leave out the control characters"
    if name == "*" or (name.startswith("^") and name.endswith("$")):
        return "Polars takes it for a pattern"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return f"over {NAME_BYTES_MAX} bytes" if size > NAME_BYTES_MAX else None
