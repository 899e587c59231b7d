"""How long deleted data stay restorable: a setting of a store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from timespine.client.arguments.time_args import DurationLike, parse_duration_ms
from timespine.client.catalog.catalog import Catalog, Names

if TYPE_CHECKING:
    from timespine.client.commit.group_commit import GroupCommitter


class KeepDeletedVerbs:
    """The call of a store about deleted data."""

    _catalog: Catalog
    _committer: GroupCommitter

    def keep_deleted(self, duration: DurationLike | None) -> None:
        """Keep what maintenance deletes restorable for a time: every commit of that time, see `timespine.restore`.

        That concerns blobs, logs and dropped collections. It costs the bytes that are deleted during that time. History
        that must be forgotten stays as much longer: `forget_within` and this add up. None: delete at once.
        """
        self._committer.check_writable()
        keep_ms = None if duration is None else parse_duration_ms(duration)
        self._catalog.change(partial(_with_kept, keep_ms))

    def kept_deleted_ms(self) -> int | None:
        """Return how long deleted data stay restorable, in milliseconds; None: they go at once."""
        self._committer.check_open()
        return self._catalog.read().keep_deleted_ms

    def _read_keep_ms(self) -> int:
        """Read the setting from the newest catalog; 0 if there is none."""
        return self._catalog.read().keep_deleted_ms or 0


def _with_kept(keep_ms: int | None, names: Names) -> Names | None:
    if names.keep_deleted_ms == keep_ms:
        return None
    return msgspec.structs.replace(names, keep_deleted_ms=keep_ms)


def is_kept(names: Names, id: str, now_ms: int) -> bool:
    """Tell whether a dropped collection must stay restorable."""
    keep_ms = names.keep_deleted_ms
    return keep_ms is not None and now_ms - names.dropped_ms.get(id, now_ms) < keep_ms
