"""How long history is kept: the policy of a collection, that of its store, or for ever.

orders.retain("7 days")     its own policy
orders.retain(None)         its own policy: for ever, whatever the policy of the store is
orders.retain("store")      no policy of its own: that of the store applies
store.retain("7 days")      for all collections without a policy of their own
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from timespine.client.arguments.time_args import DurationLike, parse_duration_ms
from timespine.client.catalog.catalog import (
    FOR_EVER,
    Catalog,
    CatalogEntry,
    Names,
    entry_by_id,
)
from timespine.errors import UsageError
from timespine.hints import Hint

RetentionLike = DurationLike | None
"""How long history is kept: a duration; None or "for ever"; for a collection also "store"."""

OF_STORE = "store"
"""The argument that removes the policy of a collection, so that the one of the store applies."""

_FOR_EVER = "for ever"
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("millisecond", 1))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a collection keeps history, and by which policy."""

    duration_ms: int | None
    """Milliseconds; None: for ever."""
    by: str
    """The policy that applies: that of the "collection", that of the "store", or "none"."""

    def __str__(self) -> str:
        whose = {"collection": "its own policy", "store": "the policy of the store"}.get(self.by, "no policy")
        return f"{duration(self.duration_ms)}, by {whose}"


def duration(milliseconds: int | None) -> str:
    """Format a duration for people."""
    if milliseconds is None:
        return _FOR_EVER
    unit, size = next((unit, size) for unit, size in _UNITS if milliseconds % size == 0)
    number = milliseconds // size
    return f"for {number:,} {unit}{'s' * (number != 1)}"


def policy_of(given: RetentionLike) -> int | None:
    """Return the policy of a collection for its entry: milliseconds, FOR_EVER, or None for that of the store."""
    if given is None or given == _FOR_EVER:
        return FOR_EVER
    return None if given == OF_STORE else parse_duration_ms(given)


def policy_of_store(given: RetentionLike) -> int | None:
    """Return the policy of a store: milliseconds, or None for ever."""
    if given == OF_STORE:
        raise UsageError("a store has no other policy to go by", hint=Hint("give-retention"))
    return None if given is None or given == _FOR_EVER else parse_duration_ms(given)


def no_retention_error() -> UsageError:
    """Make the error for a retention policy of times that are not points of the wall clock."""
    return UsageError("retain needs times of one coordinate that are points of the wall clock", hint=Hint("use-clock"))


def with_retention(id: str, retain_ms: int | None, names: Names) -> Names | None:
    """Set the retention policy of a collection."""
    name, entry = entry_by_id(id, names)
    if retain_ms not in (None, FOR_EVER) and entry.timeline != "clock":
        raise no_retention_error()
    if entry.retain_ms == retain_ms:
        return None
    changed = msgspec.structs.replace(entry, retain_ms=retain_ms)
    return msgspec.structs.replace(names, entries={**names.entries, name: changed})


def with_default_retention(retain_ms: int | None, names: Names) -> Names | None:
    """Set the retention policy of collections without one of their own."""
    return None if names.retain_ms == retain_ms else msgspec.structs.replace(names, retain_ms=retain_ms)


def change_policy(catalog: Catalog, id: str, arity: int, retain_ms: int | None) -> None:
    """Set or remove the policy of a collection."""
    if retain_ms not in (None, FOR_EVER) and arity != 1:
        raise no_retention_error()
    catalog.change(partial(with_retention, id, retain_ms))


def change_deadline(catalog: Catalog, id: str | None, forget_within: DurationLike | None) -> None:
    """Set the deadline for forgetting expired history: of a collection, or of the store for those without one.

    None: that of the store, and for the store that of its configuration.
    """
    within_ms = parse_duration_ms(forget_within) if forget_within is not None else None
    catalog.change(partial(_with_forget_within, id, within_ms))


def _with_forget_within(id: str | None, within_ms: int | None, names: Names) -> Names | None:
    """Set a deadline for forgetting expired history."""
    if id is None:
        changed = msgspec.structs.replace(names, forget_within_ms=within_ms)
    else:
        name, entry = entry_by_id(id, names)
        entry = msgspec.structs.replace(entry, forget_within_ms=within_ms)
        changed = msgspec.structs.replace(names, entries={**names.entries, name: entry})
    return None if changed == names else changed


def retention_of(names: Names, known: CatalogEntry, arity: int) -> Retention:
    """Return the retention of a collection by the newest catalog; by its known entry, if it was dropped."""
    entry = next((each for each in names.entries.values() if each.id == known.id), known)
    if entry.retain_ms is not None:
        return Retention(None if entry.retain_ms == FOR_EVER else entry.retain_ms, "collection")
    # Times of a counter, or of several coordinates, have no age: the policy of the store does not apply to them.
    applies = names.retain_ms is not None and entry.timeline == "clock" and arity == 1
    return Retention(names.retain_ms, "store") if applies else Retention(None, "none")
