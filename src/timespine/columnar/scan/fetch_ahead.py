"""What a read will need, announced to blobs of a remote place, so that it is fetched at once.

A place that needs no announcement has no `fetch_ahead`, and nothing is worked out for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.parts.part_stats import known_meta
from timespine.core.batch import Part
from timespine.location.blob import Blob
from timespine.location.remote.read_ahead import BlobRange

WHOLE_BYTES = 1 << 20
"""A part of at most this size is fetched whole, by one request: that takes as long as fetching its footer."""

FOOTERS_AHEAD = 64
"""Parts of one run whose footers are fetched before the read begins."""

STREAMED_AHEAD = 8
"""Parts of a run that is streamed whose footers are fetched ahead of the one that is read."""

Announce = Callable[[Iterable[BlobRange]], None]


def announcer(blob: Blob) -> Announce | None:
    """Return the function that takes announcements, if blobs are at a remote place."""
    found: Announce | None = getattr(blob, "fetch_ahead", None)
    return found


def announce_lists(blob: Blob, parts: Iterable[Part], is_known: Callable[[Part], bool]) -> None:
    """Announce the lists of hollow runs."""
    announce = announcer(blob)
    if announce is not None:
        hollow = [part for part in parts if part.hollow and not is_known(part)]
        announce([BlobRange(part.key, 0, part.size, True) for part in hollow])


def announce_footers(blob: Blob, parts: Iterable[Part], is_known: Callable[[Part], bool]) -> None:
    """Announce the footers of parts, and small parts as a whole."""
    announce = announcer(blob)
    if announce is not None:
        announce(
            [
                BlobRange(part.key, 0, part.size, True)
                if part.size <= WHOLE_BYTES
                else BlobRange(part.key, part.size - min(known_meta(part.meta).tail, part.size), part.size)
                for part in parts
                if part.inline is None and not part.hollow and part.meta and not is_known(part)
            ]
        )


def announce_blooms(blob: Blob, readers: Iterable[PartReader]) -> None:
    """Announce the Bloom filters of parts, for a lookup."""
    announce = announcer(blob)
    if announce is not None:
        ranges = [(reader.key, reader.bloom_range) for reader in readers]
        announce([BlobRange(key, *range) for key, range in ranges if range is not None])


def announce_groups(blob: Blob, reader: PartReader, groups: Sequence[int], columns: Sequence[str]) -> None:
    """Announce row groups of a part."""
    announce = announcer(blob)
    if announce is not None and groups:
        announce([BlobRange(reader.key, *range) for range in reader.ranges(groups, columns)])
