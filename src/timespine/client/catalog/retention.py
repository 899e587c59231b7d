"""How long history is kept: the policy of a collection, that of its store, or for ever.

orders.retain("7 days")     its own policy
orders.retain(None)         its own policy: for ever, whatever the store says
orders.retain("store")      no policy of its own: that of the store holds
store.retain("7 days")      for all collections without a policy of their own
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import partial

import msgspec

from timespine.client.catalog.catalog import FOR_EVER, Catalog, Entry, Names, entry_by_id, no_retention, retained
from timespine.client.time_args import to_ms
from timespine.errors import UsageError
from timespine.hints import Hint

Policy = str | float | datetime.timedelta | None
"""A duration; None or "for ever"; for a collection also "store"."""

OF_STORE = "store"
"""What gives up the policy of a collection, so that the one of the store holds."""

_FOR_EVER = "for ever"
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("millisecond", 1))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a collection keeps history, and which policy says so."""

    duration_ms: int | None
    """Milliseconds; None: for ever."""
    by: str
    """Which policy holds: that of the "collection", that of the "store", or "none" if no policy applies."""

    def __str__(self) -> str:
        whose = {"collection": "its own policy", "store": "the policy of the store"}.get(self.by, "no policy")
        return f"{duration(self.duration_ms)}, by {whose}"


def duration(milliseconds: int | None) -> str:
    """A duration as people say it."""
    if milliseconds is None:
        return _FOR_EVER
    unit, size = next((unit, size) for unit, size in _UNITS if milliseconds % size == 0)
    number = milliseconds // size
    return f"for {number:,} {unit}{'s' * (number != 1)}"


def policy_of(given: Policy) -> int | None:
    """The policy of a collection as its entry has it: milliseconds, FOR_EVER, or None if the one of the store holds."""
    if given is None or given == _FOR_EVER:
        return FOR_EVER
    return None if given == OF_STORE else to_ms(given)


def policy_of_store(given: Policy) -> int | None:
    """The policy of a store: milliseconds, or None for ever."""
    if given == OF_STORE:
        raise UsageError("a store has no other policy to go by", hint=Hint("give-retention"))
    return None if given is None or given == _FOR_EVER else to_ms(given)


def change_policy(catalog: Catalog, id: str, arity: int, retain_ms: int | None) -> None:
    """Give a collection a policy of its own, or none."""
    if retain_ms not in (None, FOR_EVER) and arity != 1:
        raise no_retention()
    catalog.change(partial(retained, id, retain_ms))


def change_deadline(catalog: Catalog, id: str | None, forget_within: Policy) -> None:
    """Change after how long expired history is physically gone: of a collection, or of all that do not say so.

    None: as the store says, and for the store as its configuration says.
    """
    within_ms = to_ms(forget_within) if forget_within is not None else None
    catalog.change(partial(_forgotten, id, within_ms))


def _forgotten(id: str | None, within_ms: int | None, names: Names) -> Names | None:
    """With another deadline by which expired history is gone."""
    if id is None:
        changed = msgspec.structs.replace(names, forget_within_ms=within_ms)
    else:
        name, entry = entry_by_id(id, names)
        entry = msgspec.structs.replace(entry, forget_within_ms=within_ms)
        changed = msgspec.structs.replace(names, entries={**names.entries, name: entry})
    return None if changed == names else changed


def retention_of(names: Names, known: Entry, arity: int) -> Retention:
    """What holds for a collection, by the names of its store; by what is known of it, if it was dropped."""
    entry = next((each for each in names.entries.values() if each.id == known.id), known)
    if entry.retain_ms is not None:
        return Retention(None if entry.retain_ms == FOR_EVER else entry.retain_ms, "collection")
    # The times of a counter, or of several coordinates, say nothing about age: the policy of the store passes them by.
    applies = names.retain_ms is not None and entry.timeline == "clock" and arity == 1
    return Retention(names.retain_ms, "store") if applies else Retention(None, "none")
