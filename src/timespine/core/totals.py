"""The cost of a collection so far, counted in its state, so that every process sees the same.

Each transition adds its own cost; totals never go back. So

    live bytes    = appended + merged - dropped        data that the state refers to
    garbage bytes = dropped - collected                data that only old states refer to

hold whichever process wrote, merged or collected. The output of a merge that was not applied does not count: no
state ever referred to it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from timespine.core.batch import Count

COUNT_MAX = 1 << 62
"""The largest total: counting stops there."""

TotalsPosition = Annotated[int, msgspec.Meta(ge=0, le=8)]
"""The place of a field of the totals, as a diff names it."""


class Totals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows and bytes since a collection was created."""

    appended_rows: Count = 0
    """Updates that writers appended, or wrote ahead of the seal."""
    appended_bytes: Count = 0
    """Bytes of them."""
    merged_rows: Count = 0
    """Updates that maintenance wrote, without those that it passed through by reference."""
    merged_bytes: Count = 0
    """Bytes of them."""
    extra_rows: Count = 0
    """Updates of merges that the spine did not request, charged when maintenance does: at most `appended_rows`."""
    dropped_bytes: Count = 0
    """Bytes of parts that the state referred to once, and does not refer to now."""
    collected_bytes: Count = 0
    """`dropped_bytes` of the state from which garbage was last collected."""
    rollup_bytes: Count = 0
    """Bytes of all rollups."""
    merge_ms: Count = 0
    """Milliseconds that merges took."""

    @property
    def live_bytes(self) -> int:
        """Bytes of the parts that the state refers to, inline ones included."""
        return max(self.appended_bytes + self.merged_bytes - self.dropped_bytes, 0)

    @property
    def garbage_bytes(self) -> int:
        """Bytes of the parts that only older states refer to, and that are still there."""
        return max(self.dropped_bytes - self.collected_bytes, 0)

    @property
    def budget_rows(self) -> int:
        """Updates that maintenance may still write without a request of the spine (`core/maintenance_policy.py`)."""
        return max(self.appended_rows - self.extra_rows, 0)

    @property
    def write_amplification(self) -> float:
        """Bytes written, rollups included, per byte appended; 0 if nothing was appended."""
        written = self.appended_bytes + self.merged_bytes + self.rollup_bytes
        return written / self.appended_bytes if self.appended_bytes else 0.0

    def plus(self, **added: int) -> Totals:
        """Return the totals with additions to some fields."""
        grown = {name: min(getattr(self, name) + by, COUNT_MAX) for name, by in added.items() if by}
        return msgspec.structs.replace(self, **grown) if grown else self


NOTHING = Totals()
"""The totals of a new collection: one object, so that an encoder can leave it out."""

FIELDS = Totals.__struct_fields__


def increase(old: Totals, new: Totals) -> dict[TotalsPosition, Count]:
    """Return the increase of each changed field, by its place, for a diff."""
    pairs = ((place, getattr(new, name) - getattr(old, name)) for place, name in enumerate(FIELDS))
    return {place: by for place, by in pairs if by}


def with_increase(old: Totals, change: dict[TotalsPosition, Count]) -> Totals:
    """Return the totals after a diff."""
    return old.plus(**{FIELDS[place]: by for place, by in change.items()})
