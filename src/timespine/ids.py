"""The grammar of names that end up in storage.

A blob key is `collection/writer/name`: three segments of lower-case letters,
digits, `_` and `-`, so that a key is a safe path on every file system and a
safe object name in every bucket. Keys come back from storage too, so they are
parsed, never trusted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from timespine.errors import UsageError, short_repr

SEGMENT_MAX = 64
"""Characters in one segment, at most. Three of them stay far below the 255 bytes of a file name."""

_SEGMENT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEY = re.compile("/".join([f"({_SEGMENT.pattern})"] * 3))


class BlobKey(NamedTuple):
    """A parsed blob key."""

    collection: str
    """The collection that owns the blob."""
    writer: str
    """The registered writer that put it."""
    name: str
    """The name that the writer gave it, unique under its prefix."""

    def __str__(self) -> str:
        return f"{self.collection}/{self.writer}/{self.name}"


def is_segment(text: object) -> bool:
    """Tell whether a value is a text that follows the grammar of one segment."""
    return isinstance(text, str) and _SEGMENT.fullmatch(text) is not None


def check_segment(segment: str, what: str) -> str:
    """Return the segment, or raise UsageError with the grammar that a `what` must follow."""
    if not is_segment(segment):
        raise UsageError(
            f"{what} {short_repr(segment)} is not valid: 1 to {SEGMENT_MAX} lower-case letters, digits, "
            "'_' or '-', beginning with a letter or digit"
        )
    return segment


def is_blob_key(text: object) -> bool:
    """Tell whether a value is a text of the form collection/writer/name."""
    segments = text.split("/") if isinstance(text, str) else []
    return len(segments) == 3 and all(map(is_segment, segments))


def parse_blob_key(key: str) -> BlobKey:
    """Parse a blob key; raise UsageError for anything else."""
    if isinstance(key, str) and (matched := _KEY.fullmatch(key)) is not None:
        return BlobKey(*matched.groups())
    segments = key.split("/") if isinstance(key, str) else []
    if len(segments) != 3:
        raise UsageError(f"blob key {short_repr(key)} is not of the form collection/writer/name")
    collection, writer, name = segments
    return BlobKey(
        check_segment(collection, "collection id"),
        check_segment(writer, "writer id"),
        check_segment(name, "blob name"),
    )


def parse_blob_prefix(prefix: str) -> tuple[str, ...]:
    """Return the segments of a prefix: none, those of `collection/` or of `collection/writer/`."""
    if prefix == "":
        return ()
    segments = prefix.split("/") if isinstance(prefix, str) else []
    if len(segments) not in (2, 3) or segments[-1] != "":
        raise UsageError(
            f"blob prefix {short_repr(prefix)} is not of the form '', 'collection/' or 'collection/writer/'"
        )
    return tuple(check_segment(segment, "segment of a blob prefix") for segment in segments[:-1])
