"""The target of a copy: a store that only runs of `copy` write, until it is promoted.

A run registers itself in the catalog, copies blobs, and then places all states by compare-and-sets that also change the
catalog: so a run that another one followed can change nothing after that. One compare-and-set is enough, unless states
are larger than it may be; then the copy is incomplete in between, and says so.

A run deletes only blobs that were in the target when it began. A later run begins after that, with a later cut: what an
earlier cut did not reach, and was there, no later cut reaches.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType

import msgspec

from timespine.client.backup.store_cut import StoreCut, placed_state
from timespine.client.catalog.catalog import Names, decode_catalog, encode_catalog
from timespine.client.catalog.catalog_log import MoreWrites, scan_catalog, store_catalog, truncate_catalog
from timespine.client.catalog.store_copy_record import CopyRecord
from timespine.client.commit.effect_driver import Driver, fresh_id
from timespine.config import DEFAULT
from timespine.core.effects import MergeRuns, Output, Protocol, Truncate
from timespine.core.encoding.codec import encode_state
from timespine.core.protocols.session import Session, retry
from timespine.errors import Contention, UsageError
from timespine.location.blob import delete_blobs
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, read_heads_at_once
from timespine.location.opening.consensus_address import ConsensusAddress
from timespine.location.opening.place import OpenRequest
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import StoreLocation

DELETE_BATCH = 1000
"""Blobs that one call deletes, at most."""

SPARE_BYTES = 1 << 20
"""Bytes of one compare-and-set that stay free beside states and the catalog."""


class CopyTarget:
    """An open target."""

    def __init__(self, location: StoreLocation, consensus: ConsensusAddress | None, *, create: bool = True) -> None:
        now_ms = int(time.time() * 1000)
        ports = place_of(location).open(OpenRequest(create=create, consensus=consensus, now_ms=now_ms))
        self.location = location.url
        self.driver = Driver(ports.blob, ports.consensus, _merge_nothing)
        self.blob = ports.blob
        self._store_id = ports.store_id
        self._session = Session(fresh_id("k"), fresh_id("w"), DEFAULT)
        self._run = fresh_id("")
        self.names = self._read()
        """The newest catalog of the target that this run has stored or read."""

    @property
    def store_id(self) -> str:
        """The id of the target."""
        return self._store_id or self.names.store

    def begin(self, origin: str, epoch: int, location: str) -> dict[str, int]:
        """Register this run; return the blobs that are in the target, with their sizes.

        Raise UsageError if the target is anything but a copy of that store, or empty.
        """
        known = self.names.copied
        if self.names.seqno is not None:
            if self.store_id == origin:
                raise UsageError(f"{self.location} is the store itself: give another place for the copy")
            if known is None:
                raise UsageError(f"{self.location} is a store of its own, and not a copy: give an empty place")
            if (known.origin, known.epoch) != (origin, epoch):
                raise UsageError(
                    f"{self.location} is a copy of store {known.origin} in epoch {known.epoch}, and not of {origin} in "
                    f"epoch {epoch}: give an empty place"
                )
        names = msgspec.structs.replace(self.names, store=self.names.store or str(uuid.uuid4()))
        begun = CopyRecord(origin, epoch, location, 0, False, self._run)
        record = begun if known is None else msgspec.structs.replace(known, location=location, run=self._run)
        self._store(msgspec.structs.replace(names, copied=record))
        return self.list_sizes()

    def list_sizes(self) -> dict[str, int]:
        """List the blobs of the target, with their sizes."""
        return {info.key: info.size for info in self.blob.list_keys()}

    def place(self, cut: StoreCut) -> None:
        """Replace all states and the catalog by those of a cut."""
        assert self.names.copied is not None, "the run has begun"
        heads = read_heads_at_once(self.driver.consensus, list(cut.states))
        seqnos = {id: 0 if heads[id] is None else heads[id] + 1 for id in cut.states}  # type: ignore[operator]
        writes: list[tuple[str, int | None, bytes]] = [
            (id, heads[id], encode_state(placed_state(state, seqnos[id]))) for id, state in cut.states.items()
        ]
        record = msgspec.structs.replace(self.names.copied, cut_ms=cut.cut_ms, heads=cut.heads, is_complete=True)
        final = msgspec.structs.replace(
            names_of_copy(cut.names), store=self.names.store, copied=record, placed=seqnos, seqno=self.names.seqno
        )
        room = ENTRY_BYTES_MAX - len(encode_catalog(final)) - len(encode_catalog(self.names)) - SPARE_BYTES
        *before, last = _grouped(writes, room)
        for group in before:
            unfinished = msgspec.structs.replace(self.names.copied, is_complete=False)
            self._store(msgspec.structs.replace(self.names, copied=unfinished), group)
        self._store(msgspec.structs.replace(final, seqno=self.names.seqno), last)
        for id, seqno in seqnos.items():
            self.driver.run(retry(self._session, Truncate(id, seqno)))

    def prune(self, there: Mapping[str, int], needed: Mapping[str, object]) -> int:
        """Delete the blobs that were there when the run began and that the cut does not reach; return how many."""
        gone = sorted(key for key in there if key not in needed)
        for start in range(0, len(gone), DELETE_BATCH):
            delete_blobs(self.blob, gone[start : start + DELETE_BATCH], None)
        return len(gone)

    def promote(self) -> CopyRecord:
        """Make the copy a store of its own; return what it was a copy of."""
        record = self.names.copied
        if record is None:
            raise UsageError(f"{self.location} is not a copy: it is a store of its own already")
        self._store(msgspec.structs.replace(self.names, copied=None))
        return record

    def close(self) -> None:
        """Close the ports."""
        self.driver.close()

    def __enter__(self) -> CopyTarget:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _read(self) -> Names:
        entries = self.driver.run(scan_catalog(self._session))
        return decode_catalog(*entries[-1]) if entries else Names()

    def _store(self, names: Names, more: MoreWrites = ()) -> None:
        """Store the next catalog, and states with it; raise Contention if another run has changed it."""
        names = msgspec.structs.replace(names, changed_ms=self.driver.now_ms())
        data = encode_catalog(names)
        seqno = 0 if names.seqno is None else names.seqno + 1
        stored = self.driver.run(store_catalog(self._session, names.seqno, data, more))
        if not stored:
            newest = self.driver.run(scan_catalog(self._session, names.seqno))
            if not newest or newest[0] != (seqno, data):  # it may have lost to itself
                raise Contention(f"another run changed {self.location} meanwhile: run it again if that one failed")
        self.names = msgspec.structs.replace(names, seqno=seqno)
        self.driver.run(truncate_catalog(seqno))


def names_of_copy(names: Names) -> Names:
    """Return the catalog of a copy: the names and policies, and nothing that is under way in the origin."""
    return msgspec.structs.replace(
        names,
        dropped=(),
        forced=(),
        dropped_ms={},
        reserved={},
        cancelled={},
        purged={},
        changes=(),
        placed={},
        copied=None,
    )


def _grouped(writes: list[tuple[str, int | None, bytes]], room: int) -> Iterator[MoreWrites]:
    """Yield writes in groups that fit a compare-and-set, with the catalog beside them; at least one group."""
    group: list[tuple[str, int | None, bytes]] = []
    size = 0
    for write in writes:
        if len(write[2]) > room:
            raise UsageError(
                f"the state of {write[0]} has {len(write[2])} bytes, and one entry of a log takes {room}: compact it"
            )
        if group and (len(group) >= WRITES_MAX - 1 or size + len(write[2]) > room):
            yield tuple(group)
            group, size = [], 0
        group.append(write)
        size += len(write[2])
    yield tuple(group)


def _merge_nothing(effect: MergeRuns) -> Protocol[Output]:
    raise AssertionError(f"a copy merges nothing: {effect!r}")
