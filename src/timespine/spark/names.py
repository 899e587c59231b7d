"""Names of columns where Spark reads text: quoted, and such that none stands for two things.

Columns of a collection may be called what they like, `a.b` and `it's` too. Spark takes a
dot for a field of a struct, and does not tell upper from lower case.
"""

from __future__ import annotations

from collections.abc import Iterable


def quoted(name: str) -> str:
    """A name that Spark takes as it is, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def free_name(name: str, taken: Iterable[str]) -> str:
    """A name like this one that no column has, in any spelling."""
    others = {each.lower() for each in taken}
    while name.lower() in others:
        name += "_"
    return name


def local_path(text: str) -> str:
    """A path as the file system knows it, of one that may be written as a URL of a file."""
    return text.removeprefix("file://").removeprefix("file:")
