"""Quote names of columns for Spark, and choose names that are free in any case.

Columns of a collection may have any name, such as `a.b` and `it's`. Spark reads a dot as
the access to a field of a struct, and ignores case.
"""

from __future__ import annotations

from collections.abc import Iterable


def quoted(name: str) -> str:
    """Quote a name, so that Spark takes all of its characters literally."""
    return "`" + name.replace("`", "``") + "`"


def free_name(name: str, taken: Iterable[str]) -> str:
    """Derive a name from this one that differs from all taken names, ignoring case."""
    others = {each.lower() for each in taken}
    while name.lower() in others:
        name += "_"
    return name
