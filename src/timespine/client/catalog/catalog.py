"""The names of a store: which collection has which name, and how it is kept.

The catalog is one small log in consensus. Every entry is the whole catalog, and
older ones are dropped: names change rarely, and a reader wants all of them. A
new collection and its name appear in one compare-and-set, so there is never one
without the other.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from timespine.client.commit.driver import Driver, fresh_id
from timespine.core.effects import CompareAndSet, Protocol, Scan, Sleep, Truncate
from timespine.core.encoding.codec import encode_state
from timespine.core.encoding.envelope import Kind, seal, unseal
from timespine.core.protocols.commit import Beside
from timespine.core.protocols.session import Session, determinately_retried, pause_ms, retried
from timespine.core.state import Commit, State, new_state
from timespine.core.transitions import AddSchema, apply
from timespine.errors import (
    CollectionExists,
    CorruptionError,
    Determinate,
    Indeterminate,
    NameBlocked,
    Unavailable,
    UnknownCollection,
    UsageError,
    shown,
)
from timespine.hints import Hint
from timespine.ids import check_segment
from timespine.model.time import INT64_MAX

LOG = "catalog"
"""The key of the log. No collection can have it: their ids end in a random part."""

TIMELINES = ("clock", "counter")
FOR_EVER = INT64_MAX
"""The policy of a collection that keeps all history, whatever the policy of the store is."""
NAME_MAX = 128
NAMED_MAX = 10
"""Names of collections that a message repeats, at most."""

CHANGES_KEPT = 32
"""Changes that the catalog remembers by their ids."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One collection of the store."""

    id: str
    """Its id: the key of its log, and the folder of its blobs. Never used again."""
    timeline: str = "clock"
    """Where the next free time comes from: the wall clock in milliseconds, or counting."""
    retain_ms: int | None = None
    """Maintenance expires history that is older; FOR_EVER: none of it; None: the policy of the store decides."""
    created_ms: int = 0
    """When it was created."""
    forget_within_ms: int | None = None
    """After how long expired history is physically gone; None: as the store says."""


class Names(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole catalog."""

    entries: dict[str, Entry] = {}
    """Collections by name."""
    dropped: tuple[str, ...] = ()
    """Ids of collections that were dropped or replaced and whose data may still be there."""
    retain_ms: int | None = None
    """How long collections without a policy of their own keep history; None: for ever."""
    graves: dict[str, str] = {}
    """Names that stay blocked, and the id of the collection that was dropped under each, the last one."""
    forced: tuple[str, ...] = ()
    """Those of `dropped` whose critical holds go, too."""
    forget_within_ms: int | None = None
    """After how long expired history is physically gone, where a collection does not say so; None: as in Config."""
    expected: dict[str, int] = {}
    """Ids that a transaction puts blobs under, and that are not collections before it is committed; and since when."""
    changes: tuple[str, ...] = ()
    """Ids of the last changes, oldest first: whoever is told that its change was lost sees whether that is true."""
    given_up: dict[str, int] = {}
    """Ids that were expected, and that no transaction will create; and since when. Blobs may still arrive there."""
    seqno: int | None = None
    """The place of the entry that it was read from, which is not stored in it; None: there is none yet."""

    def unknown(self, name: str) -> UnknownCollection:
        """What to raise for a name that no collection has: it names the ones there are."""
        gone = " any more: it was dropped" if name in self.graves else ""
        there = ", ".join(sorted(self.entries)[:NAMED_MAX]) or "none"
        return UnknownCollection(f"there is no collection {name}{gone}; there are: {there}", name)


_decoder = msgspec.msgpack.Decoder(Names)


def check_name(name: object) -> str:
    """The name of a collection itself, or a UsageError that says what one looks like."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"collection name {shown(name)} is not valid: 1 to {NAME_MAX} letters, digits, '_', '-' or '.', "
            "beginning with a letter or digit"
        )
    return name


def fresh_collection_id(name: str) -> str:
    """An id that tells people whose folder it is, and that nobody had before."""
    slug = re.sub(r"[^a-z0-9_-]", "-", name.lower())[:40]
    return f"{slug}-{fresh_id('')[:16]}"


def first_name(id: str) -> str:
    """What a collection was called when it was created, as far as its id tells."""
    return id.rpartition("-")[0] or id


def encode(names: Names) -> bytes:
    """The catalog as an entry."""
    return seal(Kind.CATALOG, msgspec.msgpack.encode(msgspec.structs.replace(names, seqno=None)))


def decode(seqno: int, data: bytes) -> Names:
    """The catalog in an entry; anything else is a CorruptionError."""
    payload = unseal(Kind.CATALOG, data)
    try:
        image = _decoder.decode(payload)
        for name, entry in image.entries.items():
            _check_entry(check_name(name), entry)
        for id in (*image.dropped, *image.forced, *image.graves.values(), *image.expected, *image.given_up):
            check_segment(id, "collection id")
        for change in image.changes:
            check_segment(change, "change id")
        for name in image.graves:
            check_name(name)
        if both := image.entries.keys() & image.graves.keys():
            raise UsageError(f"collection {min(both)} is there and was dropped")
        if not set(image.forced) <= set(image.dropped):
            raise UsageError("a collection that was not dropped was forced to be")
        _check_ids(image)
        for given, what in ((image.retain_ms, "keeps history for"), (image.forget_within_ms, "forgets within")):
            if given is not None and given <= 0:
                raise UsageError(f"the store {what} {given} milliseconds")
    except (msgspec.MsgspecError, UsageError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"the catalog of the store does not decode: {error}") from error
    return msgspec.structs.replace(image, seqno=seqno)


def _check_ids(names: Names) -> None:
    """A UsageError if a collection is in two states at once."""
    there = {entry.id for entry in names.entries.values()}
    if not there.isdisjoint(names.dropped):
        raise UsageError("a collection is there and was dropped")
    if not {*there, *names.dropped}.isdisjoint({*names.expected, *names.given_up}):
        raise UsageError("a collection is there, or was dropped, and is yet to come")
    if not names.expected.keys().isdisjoint(names.given_up):
        raise UsageError("a collection is yet to come, and was given up")


def _check_entry(name: str, entry: Entry) -> None:
    """A UsageError if an entry says what no entry may say."""
    check_segment(entry.id, "collection id")
    if entry.timeline not in TIMELINES:
        raise UsageError(f"collection {name} has a time line {shown(entry.timeline)}")
    if entry.retain_ms is not None and entry.retain_ms <= 0:
        raise UsageError(f"collection {name} keeps history for {entry.retain_ms} milliseconds")
    if entry.forget_within_ms is not None and entry.forget_within_ms <= 0:
        raise UsageError(f"collection {name} forgets within {entry.forget_within_ms} milliseconds")


# Changes. Each may be applied twice, if many others came after a lost reply: it knows by ids that it is done.


def renamed(id: str, old: str, new: str, names: Names) -> Names | None:
    """With another name for a collection; None if the old name is not that of this collection."""
    if old not in names.entries or names.entries[old].id != id:
        return None
    if new in names.entries:
        raise CollectionExists(new, f"there is a collection {new} already")
    if new in names.graves:
        raise NameBlocked(new, hint=Hint("use-another-name"))
    entries = {new if name == old else name: entry for name, entry in names.entries.items()}
    return msgspec.structs.replace(names, entries=entries)


def dropped(id: str, name: str, force: bool, names: Names) -> Names | None:
    """Without the collection of a name, whose data is still there; the name stays blocked."""
    known = names.entries.get(name)
    if known is None or known.id != id:
        return None
    return msgspec.structs.replace(
        names,
        entries={each: entry for each, entry in names.entries.items() if each != name},
        dropped=(*names.dropped, id),
        graves={**names.graves, name: id},
        forced=(*names.forced, id) if force else names.forced,
    )


def discarded(id: str, name: str, names: Names) -> Names | None:
    """Without a collection that nobody was to see: its name can be given again.

    SUBTLE: a collection that another call has renamed since was meant to be seen, and stays (test_bulk_load.py).
    """
    known = names.entries.get(name)
    if known is None or known.id != id:
        return None
    entries = {each: entry for each, entry in names.entries.items() if each != name}
    return msgspec.structs.replace(names, entries=entries, dropped=(*names.dropped, id))


def _named(names: Names, name: str, entry: Entry) -> Names:
    """With a name for a collection, whoever had it before: that one is dropped."""
    known = names.entries.get(name)
    gone = (*names.dropped, known.id) if known is not None else names.dropped
    graves = {each: id for each, id in names.graves.items() if each != name} if name in names.graves else names.graves
    return msgspec.structs.replace(names, entries={**names.entries, name: entry}, dropped=gone, graves=graves)


def no_retention() -> UsageError:
    """Make the error for a retention policy of times that are not points of the wall clock."""
    return UsageError("retain needs times of one coordinate that are points of the wall clock", hint=Hint("use-clock"))


def check_not_blocked(names: Names, name: str) -> None:
    """NameBlocked if a name was that of a collection that was dropped."""
    if name in names.graves:
        raise NameBlocked(name, hint=Hint("replace-blocked-name"))


def born(births: Sequence[tuple[str, Entry, bool]], awaited: Collection[str], names: Names) -> Names:
    """With names for new collections: (name, collection, whether it may take the name of another one).

    Determinate if one that was announced is not expected any more: its blobs may be gone.
    """
    for name, entry, replace in births:
        if entry.id in awaited and entry.id not in names.expected:
            raise Determinate(f"the transaction took so long that {name} is not expected any more: do it again")
        if not replace:
            check_not_blocked(names, name)
            if name in names.entries:
                raise CollectionExists(name)
        names = _named(names, name, entry)
    ids = {entry.id for _, entry, _ in births}
    expected = {id: since for id, since in names.expected.items() if id not in ids}
    return msgspec.structs.replace(names, expected=expected)


def taken_over(id: str, name: str, names: Names) -> Names | None:
    """With a collection under the name that another one has, which is dropped, or that nobody has."""
    known = names.entries.get(name)
    if known is not None and known.id == id:
        return None
    entry = next((each for each in names.entries.values() if each.id == id), None)
    if entry is None:
        raise UsageError(f"the collection that was to be called {name} was dropped")
    entries = {each: other for each, other in names.entries.items() if other.id != id}
    return _named(msgspec.structs.replace(names, entries=entries), name, entry)


def retained(id: str, retain_ms: int | None, names: Names) -> Names | None:
    """With another policy for the history of a collection."""
    name, entry = entry_by_id(id, names)
    if retain_ms not in (None, FOR_EVER) and entry.timeline != "clock":
        raise no_retention()
    if entry.retain_ms == retain_ms:
        return None
    changed = msgspec.structs.replace(entry, retain_ms=retain_ms)
    return msgspec.structs.replace(names, entries={**names.entries, name: changed})


def entry_by_id(id: str, names: Names) -> tuple[str, Entry]:
    """The name and the entry of a collection, or a UsageError if it was dropped."""
    found = next(((name, entry) for name, entry in names.entries.items() if entry.id == id), None)
    if found is None:
        raise UsageError(f"collection {first_name(id)} was dropped")
    return found


def buried_for_good(id: str, names: Names) -> Names | None:
    """Without a dropped collection of which nothing is left."""
    if id not in names.dropped:
        return None
    left = tuple(each for each in names.dropped if each != id)
    return msgspec.structs.replace(names, dropped=left, forced=tuple(each for each in names.forced if each != id))


def retained_by_all(retain_ms: int | None, names: Names) -> Names | None:
    """With another policy for collections that have none of their own."""
    return None if names.retain_ms == retain_ms else msgspec.structs.replace(names, retain_ms=retain_ms)


class Catalog:
    """Reads and changes the names of a store."""

    def __init__(self, driver: Driver, session: Session) -> None:
        self._driver = driver
        self._session = session
        self._known: Names | None = None
        """The newest names that were read or stored: they are decoded once, however many there are."""

    def read(self) -> Names:
        """The names as of now."""
        names = self._driver.run(_read(self._session, self._known))
        self._known = names
        return names

    def find(self, name: str) -> Entry:
        """The collection of that name, or an UnknownCollection that names the ones there are."""
        return self.find_all([name])[0]

    def find_all(self, wanted: Sequence[str]) -> list[Entry]:
        """The collections of some names, all as of one moment."""
        names = self.read()
        for name in wanted:
            if check_name(name) not in names.entries:
                raise names.unknown(name)
        return [names.entries[name] for name in wanted]

    def create(self, name: str, entry: Entry, schema: bytes, arity: int, *, replace: bool) -> tuple[Entry, bool]:
        """Give a name to a new collection; the entry that has the name now, and whether it is the new one.

        The name of what was dropped stays blocked, unless it is to be replaced: whoever reads or writes by name
        must not be taken to other rows without anybody having said so.
        """
        check_name(name)
        change = fresh_id("")
        for _ in range(self._session.config.commit_attempts):
            names = self.read()
            known = names.entries.get(name)
            if change in names.changes or (known is not None and known.id == entry.id):
                return entry, True  # an earlier try went through, though its reply was lost, or said otherwise
            if known is not None and not replace:
                return known, False
            if not replace:
                check_not_blocked(names, name)
            if self._store(
                change,
                _named(names, name, entry),
                ((entry.id, None, encode_state(first_state(entry.id, arity, schema))),),
            ):
                return entry, True
        raise Determinate(f"collection {name} could not be created: others keep changing the catalog")

    def beside(self, births: Sequence[tuple[str, Entry, bool]], awaited: Collection[str] = ()) -> Beside:
        """The entry that names new collections, to appear together with them; some must have been announced."""
        names = born(births, awaited, self.read())
        _check_ids(names)
        return ((LOG, names.seqno, encode(names)),)

    def announce(self, id: str, now_ms: int) -> None:
        """Say that blobs are put under an id before it is a collection.

        SUBTLE: once and never again. Whoever finds that it was given up, perhaps because the reply was lost and
        much time went by, must not announce it anew: its blobs are about to be deleted (test_transaction.py).
        """
        in_doubt, change = False, fresh_id("")
        for _ in range(self._session.config.commit_attempts):
            names = self.read()
            if id in names.expected or any(entry.id == id for entry in names.entries.values()):
                return  # what was born, though its transaction was not told so, is not to come any more
            if in_doubt or change in names.changes or id in names.given_up:
                raise Determinate("nothing was committed: what was to be created is not expected any more: do it again")
            expected = {**names.expected, id: now_ms}
            stored = self._store(change, msgspec.structs.replace(names, expected=expected))
            if stored:
                return
            in_doubt = stored is None
        raise Determinate("nothing was committed: others keep changing the catalog")

    def change(self, what: Callable[[Names], Names | None], *, frees_space: bool = False) -> bool:
        """Apply a function from names to names (or None for no change) until it is stored; whether this call did it.

        What frees space may use the reserve. If a reply was lost and it is done, it counts as done by this call.

        SUBTLE: it is applied again after a reply was lost, perhaps to names in which it is done already: it
        must see that, and change nothing then (test_catalog.py).
        """
        in_doubt, change = False, fresh_id("")
        for _ in range(self._session.config.commit_attempts):
            names = self.read()
            if change in names.changes:
                return True  # an earlier try went through, though its reply was lost, or said otherwise
            changed = what(names)
            if changed is None:
                return in_doubt
            stored = self._store(change, changed, frees_space=frees_space)
            if stored:
                return True
            in_doubt = in_doubt or stored is None
        raise Determinate("the catalog could not be changed: others keep changing it")

    def rename(self, old: str, new: str) -> str:
        """Give the collection of a name another one; its id."""
        while True:
            id = self.find(old).id
            if old == new or self.change(partial(renamed, id, old, new)):
                return id
            # Another process gave the old name to another collection, or took it away: look again.

    def _store(self, change: str, names: Names, more: Beside = (), *, frees_space: bool = False) -> bool | None:
        names = msgspec.structs.replace(names, changes=(*names.changes, change)[-CHANGES_KEPT:])
        _check_ids(names)  # what nobody could read is not written
        stored = self._driver.run(_store(self._session, names, more), frees_space=frees_space)
        if stored:
            self._known = msgspec.structs.replace(names, seqno=0 if names.seqno is None else names.seqno + 1)
        return stored


def first_state(id: str, arity: int, schema: bytes) -> State:
    """The state of a collection that was just created: empty, with its schema."""
    outcome = apply(new_state(id, arity), AddSchema(None, schema), 0)
    if not isinstance(outcome, Commit):
        raise UsageError(str(outcome.reply))
    return outcome.state


def _read(session: Session, known: Names | None) -> Protocol[Names]:
    """The newest names; those that are known, if there are none after them."""
    after = known.seqno if known is not None else None
    entries: list[tuple[int, bytes]] = yield from retried(session, Scan(LOG, 0 if after is None else after + 1))
    if entries:
        return decode(*entries[-1])
    return known if known is not None else Names()


def _store(session: Session, names: Names, more: tuple[tuple[str, int | None, bytes], ...]) -> Protocol[bool | None]:
    """Store the catalog, and what must appear with it, in one compare-and-set; whether it is in.

    None: it was lost, perhaps to itself. A loss may be to itself also if storage says that it is sure: the
    caller finds its change in the newest names then.
    """
    write = CompareAndSet(((LOG, names.seqno, encode(names)), *more))
    lost: bool | None = False
    try:
        mismatch = yield from determinately_retried(session, write)
    except Indeterminate:
        lost = None
        mismatch = yield from _sent_again(session, write)
    if mismatch is not None:
        return lost
    if names.seqno is not None:
        with contextlib.suppress(Unavailable):  # what stays is dropped with the next change
            yield Truncate(LOG, names.seqno + 1)
    return True


def _sent_again(session: Session, write: CompareAndSet) -> Protocol[Any]:
    """The answer to a compare-and-set that may have happened, sent again byte for byte until there is one.

    It goes to one slot, so it cannot be in twice. If it is lost, it may be to itself: the caller looks.
    """
    for attempt in range(session.config.storage_attempts):
        yield Sleep(pause_ms(session.config, attempt))
        try:
            return (yield write)
        except Unavailable:
            session.count("retries")
    raise Indeterminate("the catalog may or may not have been changed: storage does not answer")
