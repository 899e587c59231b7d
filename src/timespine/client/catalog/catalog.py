"""The catalog of a store: the names of its collections, and how long each keeps history.

The catalog is one small log in consensus. Every entry is the whole catalog, and
older ones are truncated: names change rarely, and a reader wants all of them. One
compare-and-set creates a collection and its name, so neither exists without the
other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from timespine.client.catalog.catalog_log import LOG, first_state, scan_catalog, store_catalog, truncate_catalog
from timespine.client.catalog.store_copy_record import CopyRecord, check_usable
from timespine.client.commit.effect_driver import Driver, fresh_id
from timespine.client.commit.retry_limits import RETRY, rename_contention
from timespine.core.encoding.codec import encode_state
from timespine.core.encoding.envelope import VERSION, EnvelopeKind, unwrap_payload, wrap_payload
from timespine.core.protocols.commit import ExtraWrites
from timespine.core.protocols.session import Session
from timespine.errors import (
    CollectionExists,
    CorruptionError,
    Determinate,
    NameBlocked,
    OwnedCollection,
    UnknownCollection,
    UsageError,
    short_repr,
)
from timespine.hints import Hint
from timespine.ids import check_segment
from timespine.model.time import INT64_MAX

TIMELINES = ("clock", "counter")
ROLES = ("", "view", "stage", "registry")
"""The roles of collections: one of users, a view, the hidden state of a view, the definitions of all views."""

OWNED_VERSION = 2
"""The version of a catalog with owned collections: code that does not know them would seal or change them."""

KEPT_VERSION = 3
"""The version of a catalog that keeps deleted data, or is that of a copy: older code would delete or change those."""

FOR_EVER = INT64_MAX
"""The policy of a collection that keeps all history, whatever the policy of the store is."""
NAME_MAX = 128
NAMED_MAX = 10
"""Most names of collections in a message."""

CHANGES_KEPT = 32
"""Changes whose ids the catalog remembers."""

CANCELLED = "maintenance cancelled the reservation"
"""Why a transaction that took long creates no collection."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class CatalogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One collection of the store."""

    id: str
    """The id of the collection: the key of its log, and the folder of its blobs. Never used again."""
    timeline: str = "clock"
    """The source of the next free time: the wall clock in milliseconds, or a counter."""
    retain_ms: int | None = None
    """The age at which maintenance expires history; FOR_EVER: never; None: the policy of the store."""
    created_ms: int = 0
    """The time of creation."""
    forget_within_ms: int | None = None
    """The deadline for forgetting expired history; None: the deadline of the store."""
    role: str = ""
    """What the collection is for, one of ROLES. Only the refresh of views writes to one with a role."""
    owner: str = ""
    """The id of the view that a stage belongs to."""

    @property
    def is_hidden(self) -> bool:
        """Whether the collection is no concern of users: the state of a view, or the definitions of views."""
        return self.role in ("stage", "registry")


class Names(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole catalog."""

    entries: dict[str, CatalogEntry] = {}
    """Collections by name."""
    dropped: tuple[str, ...] = ()
    """Ids of dropped or replaced collections whose blobs may still exist."""
    retain_ms: int | None = None
    """How long collections without a policy of their own keep history; None: for ever."""
    tombstones: dict[str, str] = {}
    """Blocked names, each with the id of the collection that was last dropped under it."""
    forced: tuple[str, ...] = ()
    """Ids of dropped collections whose critical holds are to be released."""
    forget_within_ms: int | None = None
    """The deadline for forgetting expired history, of collections without one; None: that of Config."""
    reserved: dict[str, int] = {}
    """Reservations: ids under which a running transaction puts blobs, and the time of each reservation."""
    changes: tuple[str, ...] = ()
    """Ids of the last changes, oldest first: a process whose reply was lost finds out whether its change is stored."""
    cancelled: dict[str, int] = {}
    """Cancelled reservations: ids that no transaction will create, and since when. Blobs may still arrive there."""
    changed_ms: int = 0
    """When this entry was made, by the clock of its process; 0: by a version that kept no times."""
    keep_deleted_ms: int | None = None
    """How long deleted data stay restorable; None: maintenance deletes them as soon as it can."""
    dropped_ms: dict[str, int] = {}
    """When each collection in `dropped` was dropped."""
    purged: dict[str, int] = {}
    """Purged collections whose logs are still there, and since when each is purged."""
    placed: dict[str, int] = {}
    """Whole states that this entry placed into logs, for a copy or a restore: the number of each, by collection."""
    store: str = ""
    """The id of the store, where its place keeps none; empty before the first copy."""
    copied: CopyRecord | None = None
    """The origin, if this store is a copy."""
    seqno: int | None = None
    """The sequence number of the entry that this was read from, which is not stored in it; None: there is no entry."""

    @property
    def visible(self) -> list[str]:
        """The names of collections that users see, sorted."""
        return sorted(name for name, entry in self.entries.items() if not entry.is_hidden)

    def unknown(self, name: str) -> UnknownCollection:
        """Make the error for a name that no collection has: it lists the existing ones."""
        gone = ": it was dropped" if name in self.tombstones else ""
        there = ", ".join(self.visible[:NAMED_MAX]) or "none"
        return UnknownCollection(f"there is no collection {name}{gone}; there are: {there}", name)


_decoder = msgspec.msgpack.Decoder(Names)


def check_collection_name(name: object) -> str:
    """Return the name of a collection if it is valid; otherwise raise a UsageError that says what is."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"collection name {short_repr(name)} is not valid: 1 to {NAME_MAX} letters, digits, '_', '-' or '.', "
            "beginning with a letter or digit"
        )
    return name


def check_role(name: str, entry: CatalogEntry, role: str = "") -> None:
    """Raise OwnedCollection if only refreshes of views may change a collection, and it has not the given role."""
    if role and not entry.role:
        raise CollectionExists(name, f"{name} is a collection, and no {role}: drop it first, or use another name")
    if entry.role != role:
        raise OwnedCollection(name, entry.role)


def view_hold_name(view: str) -> str:
    """Return the name of the holds of a view on its inputs, by the id of its collection."""
    return f"view-{view}"[:64]


def fresh_collection_id(name: str) -> str:
    """Return a fresh id that begins with the name, so that people recognize the folder."""
    slug = re.sub(r"[^a-z0-9_-]", "-", name.lower())[:40]
    return f"{slug}-{fresh_id('')[:16]}"


def first_name(id: str) -> str:
    """Return the name that a collection was created under, as far as its id tells."""
    return id.rpartition("-")[0] or id


def encode_catalog(names: Names) -> bytes:
    """Encode the catalog as an entry."""
    is_owned = any(entry.role for entry in names.entries.values())
    payload = msgspec.msgpack.encode(msgspec.structs.replace(names, seqno=None))
    is_kept = names.keep_deleted_ms is not None or names.copied is not None
    version = KEPT_VERSION if is_kept else OWNED_VERSION if is_owned else VERSION
    return wrap_payload(EnvelopeKind.CATALOG, payload, version)


def decode_catalog(seqno: int, data: bytes) -> Names:
    """Decode the catalog from an entry; raise a CorruptionError for anything else."""
    payload = unwrap_payload(EnvelopeKind.CATALOG, data)
    try:
        image = _decoder.decode(payload)
        for name, entry in image.entries.items():
            _check_entry(check_collection_name(name), entry)
        for id in (*image.dropped, *image.forced, *image.tombstones.values(), *image.reserved, *image.cancelled):
            check_segment(id, "collection id")
        for change in image.changes:
            check_segment(change, "change id")
        for name in image.tombstones:
            check_collection_name(name)
        if both := image.entries.keys() & image.tombstones.keys():
            raise UsageError(f"collection {min(both)} is both live and dropped")
        if not set(image.forced) <= set(image.dropped):
            raise UsageError("a collection that is not dropped is marked as dropped by force")
        _check_ids(image)
        for given, what in (
            (image.retain_ms, "keeps history for"),
            (image.forget_within_ms, "forgets within"),
            (image.keep_deleted_ms, "keeps deleted data for"),
        ):
            if given is not None and given <= 0:
                raise UsageError(f"the store {what} {given} milliseconds")
    except (msgspec.MsgspecError, UsageError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"the catalog of the store does not decode: {error}") from error
    return msgspec.structs.replace(image, seqno=seqno)


def _check_ids(names: Names) -> None:
    """Raise a UsageError if a collection is in two states at once."""
    there = {entry.id for entry in names.entries.values()}
    if not there.isdisjoint(names.dropped):
        raise UsageError("the catalog is inconsistent: an id is both live and dropped")
    if not {*there, *names.dropped}.isdisjoint({*names.reserved, *names.cancelled}):
        raise UsageError("the catalog is inconsistent: an id is both reserved and live or dropped")
    if not names.reserved.keys().isdisjoint(names.cancelled):
        raise UsageError("the catalog is inconsistent: an id is both reserved and cancelled")


def _check_entry(name: str, entry: CatalogEntry) -> None:
    """Raise a UsageError if an entry has an invalid value."""
    check_segment(entry.id, "collection id")
    if entry.timeline not in TIMELINES:
        raise UsageError(f"collection {name} has a time line {short_repr(entry.timeline)}")
    if entry.retain_ms is not None and entry.retain_ms <= 0:
        raise UsageError(f"collection {name} keeps history for {entry.retain_ms} milliseconds")
    if entry.forget_within_ms is not None and entry.forget_within_ms <= 0:
        raise UsageError(f"collection {name} forgets within {entry.forget_within_ms} milliseconds")
    if entry.role not in ROLES or bool(entry.owner) != (entry.role == "stage"):
        raise UsageError(
            f"collection {name} has a role {short_repr(entry.role)} and an owner {short_repr(entry.owner)}"
        )
    if entry.owner:
        check_segment(entry.owner, "collection id")


# Changes. Each may be applied twice, if many others came after a lost reply: it sees by ids that it is done.


def with_renamed(id: str, old: str, new: str, names: Names) -> Names | None:
    """Rename a collection; None if the old name is not that of this collection."""
    if old not in names.entries or names.entries[old].id != id:
        return None
    if new in names.entries:
        raise CollectionExists(new, f"there is a collection {new} already")
    if new in names.tombstones:
        raise NameBlocked(new, hint=Hint("use-another-name"))
    entries = {new if name == old else name: entry for name, entry in names.entries.items()}
    return msgspec.structs.replace(names, entries=entries)


def with_undone_create(id: str, name: str, names: Names) -> Names | None:
    """Remove a collection that no caller has seen: its name becomes free.

    SUBTLE: if another call has renamed the collection since, a caller has seen it, and it stays (test_bulk_load.py).
    """
    known = names.entries.get(name)
    if known is None or known.id != id:
        return None
    entries = {each: entry for each, entry in names.entries.items() if each != name}
    return msgspec.structs.replace(names, entries=entries, dropped=(*names.dropped, id))


def _with_name(names: Names, name: str, entry: CatalogEntry) -> Names:
    """Name a collection; drop the one that had the name before."""
    known = names.entries.get(name)
    gone = (*names.dropped, known.id) if known is not None else names.dropped
    tombstones = (
        {each: id for each, id in names.tombstones.items() if each != name}
        if name in names.tombstones
        else names.tombstones
    )
    return msgspec.structs.replace(names, entries={**names.entries, name: entry}, dropped=gone, tombstones=tombstones)


def check_not_blocked(names: Names, name: str) -> None:
    """Raise NameBlocked if a name was that of a dropped collection."""
    if name in names.tombstones:
        raise NameBlocked(name, hint=Hint("replace-blocked-name"))


def with_created(creates: Sequence[tuple[str, CatalogEntry, bool]], reserved: Collection[str], names: Names) -> Names:
    """Name new collections: (name, collection, whether it may take the name of another one).

    Raise Determinate if a reservation was cancelled: the blobs of its collection may be deleted.
    """
    for name, entry, replace in creates:
        if entry.id in reserved and entry.id not in names.reserved:
            raise Determinate(f"the transaction took so long that {CANCELLED} of {name}; run it again")
        if not replace:
            check_not_blocked(names, name)
            if name in names.entries:
                raise CollectionExists(name)
        names = _with_name(names, name, entry)
    ids = {entry.id for _, entry, _ in creates}
    reserved = {id: since for id, since in names.reserved.items() if id not in ids}
    return msgspec.structs.replace(names, reserved=reserved)


def with_taken_over(id: str, name: str, names: Names) -> Names | None:
    """Give a collection a name that is free or that another one has, which is dropped."""
    known = names.entries.get(name)
    if known is not None and known.id == id:
        return None
    entry = next((each for each in names.entries.values() if each.id == id), None)
    if entry is None:
        raise UsageError(f"the collection that was to take the name {name} was dropped")
    entries = {each: other for each, other in names.entries.items() if other.id != id}
    return _with_name(msgspec.structs.replace(names, entries=entries), name, entry)


def entry_by_id(id: str, names: Names) -> tuple[str, CatalogEntry]:
    """Return the name and the entry of a collection; raise a UsageError if it was dropped."""
    found = next(((name, entry) for name, entry in names.entries.items() if entry.id == id), None)
    if found is None:
        raise UsageError(f"collection {first_name(id)} was dropped")
    return found


class Catalog:
    """The reader and writer of the catalog of a store."""

    def __init__(self, driver: Driver, session: Session, *, read_only: bool = False) -> None:
        self._driver = driver
        self._session = session
        self._read_only = read_only
        self._known: Names | None = None
        """The newest catalog that was read or stored, so that each is decoded once."""
        self.check_droppable: Callable[[Names, Names], None] = lambda before, after: None
        """Raises CollectionInUse if a change of names drops a collection that is held."""

    def read(self) -> Names:
        """Read the newest catalog."""
        known = self._known or Names()
        entries = self._driver.run(scan_catalog(self._session, known.seqno))
        names = decode_catalog(*entries[-1]) if entries else known
        check_usable(names.copied, read_only=self._read_only)
        self._known = names
        return names

    def find(self, name: str) -> CatalogEntry:
        """Return the collection of a name; raise an UnknownCollection that lists the existing ones."""
        return self.find_all([name])[0]

    def find_all(self, wanted: Sequence[str]) -> list[CatalogEntry]:
        """Return the collections of some names, all from one read of the catalog."""
        names = self.read()
        for name in wanted:
            if check_collection_name(name) not in names.entries:
                raise names.unknown(name)
        return [names.entries[name] for name in wanted]

    def create(
        self, name: str, entry: CatalogEntry, schema: bytes, arity: int, *, replace: bool
    ) -> tuple[CatalogEntry, bool]:
        """Create a collection under a name; return the entry that has the name, and whether it is the new one.

        The name of a dropped collection stays blocked without `replace`: a program that reads or writes by name must
        not meet other rows unless a caller asked for that.
        """
        check_collection_name(name)
        change = fresh_id("")
        for _ in range(self._session.config.commit_attempts):
            names = self.read()
            known = names.entries.get(name)
            if change in names.changes or (known is not None and known.id == entry.id):
                return entry, True  # an earlier try is stored: its reply was lost, or was wrong
            if known is not None and not replace:
                return known, False
            if not replace:
                check_not_blocked(names, name)
            changed = _with_name(names, name, entry)
            self.check_droppable(names, changed)
            first = encode_state(first_state(entry.id, arity, schema))
            if self._store(change, changed, ((entry.id, None, first),)):
                return entry, True
        raise Determinate(f"collection {name} could not be created: other processes keep changing the catalog")

    def entry_with_created(
        self,
        creates: Sequence[tuple[str, CatalogEntry, bool]],
        reserved: Collection[str] = (),
        needed: Collection[str] = (),
    ) -> ExtraWrites:
        """Make the catalog entry that names new collections, for the commit that creates them; check reservations.

        SUBTLE: the commit is refused if a `needed` collection is dropped, also at the last moment: the entry stands in
        the log of the catalog right after the one that was read here (test_views_and_drops.py).
        """
        before = self.read()
        for id in set(needed).difference(entry.id for entry in before.entries.values()):
            raise UsageError(f"collection {first_name(id)} was dropped or replaced: nothing was created")
        names = with_created(creates, reserved, before)
        self.check_droppable(before, names)
        _check_ids(names)
        return ((LOG, names.seqno, encode_catalog(stamped(names, self._driver.now_ms()))),)

    def reserve_id(self, id: str, now_ms: int) -> None:
        """Reserve an id, before blobs are put under it and a transaction creates its collection.

        SUBTLE: once and never again. A process that finds its reservation cancelled, perhaps long after a lost reply,
        must not reserve the id again: maintenance is about to delete its blobs (test_transaction_creates.py).
        """
        in_doubt, change = False, fresh_id("")
        for _ in range(self._session.config.commit_attempts):
            names = self.read()
            if id in names.reserved or any(entry.id == id for entry in names.entries.values()):
                return  # reserved, or already created: the reply of an earlier try was lost
            if in_doubt or change in names.changes or id in names.cancelled:
                raise Determinate(f"nothing was committed: {CANCELLED}; run the transaction again")
            reserved = {**names.reserved, id: now_ms}
            stored = self._store(change, msgspec.structs.replace(names, reserved=reserved))
            if stored:
                return
            in_doubt = stored is None
        raise Determinate("nothing was committed: other processes keep changing the catalog")

    def change(self, what: Callable[[Names], Names | None], *, frees_space: bool = False) -> bool:
        """Apply a function from names to names (None: no change) until it is stored; return whether this call did.

        A change that frees space may use the reserve. After a lost reply, a stored change counts as that of this call.

        SUBTLE: the function is applied again after a lost reply, perhaps to names that it has changed already: it must
        see that, and change nothing then (test_catalog_failures.py).
        """
        in_doubt, change = False, fresh_id("")
        for _ in range(self._session.config.commit_attempts):
            names = self.read()
            if change in names.changes:
                return True  # an earlier try is stored: its reply was lost, or was wrong
            changed = what(names)
            if changed is None:
                return in_doubt
            self.check_droppable(names, changed)
            stored = self._store(change, changed, frees_space=frees_space)
            if stored:
                return True
            in_doubt = in_doubt or stored is None
        raise Determinate("the catalog could not be changed: other processes keep changing it")

    def rename(self, old: str, new: str) -> str:
        """Rename a collection; return its id. Raise Contention if the name keeps moving to other collections."""
        for _ in range(RETRY.renames):
            id = self.find(old).id
            if old == new or self.change(partial(with_renamed, id, old, new)):
                return id
            # Another process gave the old name to another collection, or removed it: look again.
        raise rename_contention(old, RETRY.renames)

    def _store(self, change: str, names: Names, more: ExtraWrites = (), *, frees_space: bool = False) -> bool | None:
        now_ms = self._driver.now_ms()
        names = stamped(msgspec.structs.replace(names, changes=(*names.changes, change)[-CHANGES_KEPT:]), now_ms)
        _check_ids(names)  # never write a catalog that no process could read
        work = store_catalog(self._session, names.seqno, encode_catalog(names), more)
        stored = self._driver.run(work, frees_space=frees_space)
        if stored:
            self._known = msgspec.structs.replace(names, seqno=0 if names.seqno is None else names.seqno + 1)
            self._truncate(names, now_ms, frees_space=frees_space)
        return stored

    def _truncate(self, names: Names, now_ms: int, *, frees_space: bool) -> None:
        """Drop the entries that a change made superfluous: all before it, unless the store keeps deleted data."""
        if names.seqno is None:
            return
        below = names.seqno + 1
        if names.keep_deleted_ms is not None:
            entries = self._driver.run(scan_catalog(self._session))
            old = [n for n, data in entries if decode_catalog(n, data).changed_ms <= now_ms - names.keep_deleted_ms]
            below = max(old, default=0)
        if below:
            self._driver.run(truncate_catalog(below), frees_space=frees_space)


def stamped(names: Names, now_ms: int) -> Names:
    """Return the next entry of the catalog, with the time of the change."""
    dropped_ms = {id: names.dropped_ms.get(id, now_ms) for id in names.dropped}
    purged = {id: at_ms or now_ms for id, at_ms in names.purged.items()}
    return msgspec.structs.replace(names, changed_ms=now_ms, placed={}, dropped_ms=dropped_ms, purged=purged)
