"""Restore a store to an earlier commit: in its place, or into another one.

In its place, one compare-and-set puts the states of that commit after the newest ones, and the catalog with them, so
the restore itself can be undone by another one. The epoch is raised first: processes that have the store open cannot
commit after that, and a read of what went back is an error for them. Into another place, the states are copied, and
the origin stays as it is.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from timespine.client.arguments.argument_types import Progress
from timespine.client.backup.copy_blobs import NeededBlob, reachable_blobs
from timespine.client.backup.copy_store import CopyResult, fill_target, identify, quiet_progress, store_epoch
from timespine.client.backup.copy_target import CopyTarget
from timespine.client.backup.fence_store import raise_epoch
from timespine.client.backup.past_cut import PastStore, build_cut, read_past
from timespine.client.backup.store_cut import StoreCut, placed_state
from timespine.client.catalog.catalog import Names, decode_catalog, encode_catalog, stamped
from timespine.client.catalog.catalog_log import LOG, scan_catalog
from timespine.client.opening.open_store import logs_address, open
from timespine.client.store import Store
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.core.encoding.codec import encode_state
from timespine.core.protocols.load_state import load_state
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.errors import Contention, CorruptionError, UsageError, short_repr
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, LogWrite
from timespine.location.opening.store_location import parse_location

RestorePoint = int | datetime.datetime | tuple[str, int]
"""A time, in milliseconds since 1970 or as a datetime with a zone; or a collection and the number of a commit of it."""

PLACES_MAX = 5
"""How often a restore in place is tried while other processes commit: after the fence, none can."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore."""

    location: str
    """The location of the restored store."""
    at_ms: int
    """The time of the restored commit, in milliseconds since 1970."""
    collections: dict[str, int]
    """The number of the commit that each collection was restored to, by name."""
    epoch: int
    """The epoch of the store since then."""
    copied: CopyResult | None
    """What was copied, if the store was restored into another place."""


def restore_store(
    location: str | os.PathLike[str],
    to: RestorePoint,
    *,
    into: str | os.PathLike[str] | None = None,
    consensus: str | None = None,
    storage: Mapping[str, str | bool] | None = None,
    progress: Progress | None = None,
) -> RestoreResult:
    """Restore a store to the last commit at or before a time, or to a commit of one collection.

    All collections are as of that moment. Without `into` the store itself goes back: its epoch is raised, so every
    process that has it open must open it again. With `into` the store of that moment is made there, as a store of its
    own, and the origin stays as it is. A store knows the commits of the time that `keep_deleted` says, and perhaps
    some more; only those of that time are restored in place.
    """
    with open(location, create=False, maintenance=False, consensus=consensus, storage=storage) as store:
        past = read_past(store)
        at_ms, exact = _point(past, to)
        names, seqnos = past.cut_at(at_ms, exact)
        cut = build_cut(store, past, names, seqnos, at_ms)
        found = {name: seqnos[entry.id] for name, entry in names.entries.items()}
        if into is None:
            _check_kept(store, at_ms)
            epoch = _restore_in_place(store, cut)
            return RestoreResult(store.location, at_ms, found, epoch, None)
        place = parse_location(into)
        with CopyTarget(place, logs_address(place, None)) as target:
            if target.names.seqno is not None:
                raise UsageError(f"{place.url} is a store already: give an empty place")
            there = target.begin(identify(store), store_epoch(store), store.location)
            with _named_missing():
                copied = fill_target(store, target, cut, there, "sizes", progress or quiet_progress)
            target.promote()
        return RestoreResult(place.url, at_ms, found, 0, copied)


def _point(past: PastStore, to: RestorePoint) -> tuple[int, tuple[str, int] | None]:
    """Return the time of a point, and the collection and number that it names, if it does."""
    if isinstance(to, tuple):
        name, seqno = to
        ids = [names.entries[name].id for names in past.catalogs if name in names.entries]
        for id in dict.fromkeys(reversed(ids)):
            found = (
                next((each for each in past.logs[id].commits if each.seqno == seqno), None) if id in past.logs else None
            )
            if found is not None:
                return found.at_ms, (id, seqno)
        raise UsageError(f"the log of {name} has no commit {seqno}, or it was cut since")
    if isinstance(to, datetime.datetime):
        if to.tzinfo is None:
            raise UsageError(f"{to} has no zone: give one, such as datetime.timezone.utc")
        return int(to.timestamp() * 1000), None
    if isinstance(to, bool) or not isinstance(to, int):
        raise UsageError(
            f"restore to a datetime, to milliseconds since 1970, or to (name, number), not {short_repr(to)}"
        )
    return to, None


def _check_kept(store: Store, at_ms: int) -> None:
    """Refuse to go back, in place, to a commit whose blobs garbage collection may delete at this moment."""
    keep_ms = store._catalog.read().keep_deleted_ms
    if keep_ms is None:
        raise UsageError(
            "the store keeps no deleted data, so what that commit needs may go at any time: restore into another place"
        )
    if at_ms < store._committer.driver.now_ms() - keep_ms:
        raise UsageError(
            "that commit is older than the time for which the store keeps deleted data: restore it into another place"
        )


def _restore_in_place(store: Store, cut: StoreCut) -> int:
    """Put the states of a cut after the newest ones; return the new epoch."""
    with _named_missing():
        _check_there(store, reachable_blobs(cut, store._context.blob))
    epoch = raise_epoch(store)
    consensus = store._committer.driver.consensus
    for _ in range(PLACES_MAX):
        writes = _writes(store, cut)
        size = sum(len(write.data) for write in writes)
        if len(writes) > WRITES_MAX or size > ENTRY_BYTES_MAX:
            raise UsageError(f"the states have {size} bytes, more than one commit takes: restore into another place")
        if consensus.compare_and_set(writes) is None:
            return epoch
    raise Contention("other processes keep committing: stop them, and restore again")


def _writes(store: Store, cut: StoreCut) -> list[LogWrite]:
    """Return the entries that restore a cut, after the newest entries of its logs."""
    driver = store._committer.driver
    session = Session("k", "w", store._committer.config)
    newest = decode_catalog(*driver.run(scan_catalog(session))[-1])
    writes: list[LogWrite] = []
    placed: dict[str, int] = {}
    for id, state in cut.states.items():
        head = driver.run(load_state(session, id))
        if head is None:
            raise CorruptionError(f"the log of {id} is gone")
        placed[id] = head.seqno + 1
        writes.append(LogWrite(id, head.seqno, encode_state(state_after(head, state))))
    names = stamped(_restored_names(cut.names, newest), driver.now_ms())
    names = msgspec.structs.replace(names, placed=placed)
    return [LogWrite(LOG, newest.seqno, encode_catalog(names)), *writes]


def state_after(head: State, state: State) -> State:
    """Return an earlier state as it is placed after the newest one of the same log.

    The rollups of the log stay: garbage collection counts from the oldest of them. The totals go on: what the newest
    state referred to is dropped, and what the earlier one refers to is there again.
    """
    totals = head.totals.plus(appended_bytes=state.totals.live_bytes, dropped_bytes=head.totals.live_bytes)
    placed = placed_state(state, head.seqno + 1)
    return msgspec.structs.replace(placed, rollups=head.rollups, totals=totals)


def _restored_names(old: Names, newest: Names) -> Names:
    """Return the names of a commit, with what is under way now. Collections that came later are dropped."""
    there = {entry.id for entry in old.entries.values()}
    later = [entry.id for entry in newest.entries.values() if entry.id not in there]
    dropped = (*(id for id in newest.dropped if id not in there), *later)
    return msgspec.structs.replace(
        old,
        dropped=dropped,
        dropped_ms={id: at_ms for id, at_ms in newest.dropped_ms.items() if id in dropped},
        forced=tuple(id for id in newest.forced if id in dropped),
        reserved={id: at_ms for id, at_ms in newest.reserved.items() if id not in there},
        cancelled={id: at_ms for id, at_ms in newest.cancelled.items() if id not in there},
        purged=newest.purged,
        keep_deleted_ms=newest.keep_deleted_ms,
        store=newest.store,
        copied=newest.copied,
        changes=(),
        seqno=newest.seqno,
    )


def _check_there(store: Store, needed: Mapping[str, NeededBlob]) -> None:
    """Raise UsageError if a blob of a cut is gone."""
    sizes = {
        info.key: info.size
        for id in sorted({each.state.collection for each in needed.values()})
        for info in store._context.blob.list_keys(f"{id}/")
    }
    for key, each in needed.items():
        if sizes.get(key) != each.part.size:
            raise MissingBlob(key)


@contextlib.contextmanager
def _named_missing() -> Iterator[None]:
    """Turn a missing blob into an error that says what to do."""
    try:
        yield
    except MissingBlob as missing:
        raise UsageError(
            f"{missing}: garbage collection deleted it, because the commit is older than the time for which deleted "
            "data are kept: restore to a later one"
        ) from None
