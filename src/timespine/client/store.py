"""A store: a place with many collections."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from timespine.client.access import Access, Pool, Shared, decoded_schema
from timespine.client.alike import check_alike
from timespine.client.catalog import (
    NO_RETENTION,
    TIMELINES,
    Catalog,
    Entry,
    Names,
    buried_for_good,
    check_name,
    dropped,
    first_name,
    fresh_collection_id,
    renamed,
    retained,
    retained_by_all,
    taken_over,
)
from timespine.client.collection import WAIT_S, Collection
from timespine.client.committer import Committer
from timespine.client.cut import Cut, cut
from timespine.client.driver import Driver, fresh_id
from timespine.client.leases import Leases
from timespine.client.loading import load, source_of
from timespine.client.maintenance import Maintenance
from timespine.client.metrics import of_process
from timespine.client.moments import Moment, to_ms, to_time
from timespine.client.report import Report
from timespine.client.transaction import Transaction, listed
from timespine.client.vacuum import Vacuumed, vacuum
from timespine.columnar.cache import PartCache
from timespine.columnar.engine import Engine
from timespine.columnar.runs import count
from timespine.columnar.schema import Schema, define, infer
from timespine.config import DEFAULT, Config
from timespine.core.effects import MergeRuns, Output, Protocol
from timespine.core.transitions import AdvanceUpper, ClaimMerge, HeartbeatWriter
from timespine.errors import ClosedError, TimespineError, Unavailable, UsageError, shown
from timespine.location.blob import Blob
from timespine.location.consensus import Consensus
from timespine.model.frontier import CLOSED, Frontier

HEARTBEAT_S = 2.0
"""How often the leases of the process are looked after. It writes only when one is due."""

MERGE_BEAT_S = 60.0
"""How often a merge or a job that takes that long says that it is still at work."""

LOAD_OPTIONS = ("timeline", "retain", "if_exists")
"""What `load` takes besides what it names itself: options of `create`."""

READ_THREADS = 4
"""Threads that read ahead and encode: decoding and encoding run outside of the interpreter's lock."""


class Store:
    """An open store. May be used by many threads; not across a fork."""

    def __init__(
        self,
        blob: Blob,
        consensus: Consensus,
        *,
        config: Config = DEFAULT,
        read_only: bool = False,
        maintenance: bool = True,
        audit: float = 0.0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        free_bytes: Callable[[], int | None] = lambda: None,
        location: str = "",
    ) -> None:
        if isinstance(audit, bool) or not isinstance(audit, int | float) or not 0 <= audit <= 1:
            raise UsageError(f"audit is a share, from 0 to 1, not {shown(audit)}")
        self.location = location
        """Where it is, for people."""
        self._closed = False
        self._pool = Pool(READ_THREADS, thread_name_prefix="timespine-read")
        self._cache = PartCache(config.cache_bytes)
        self.engine = Engine(
            blob,
            self._schemas,
            config,
            fresh=fresh_id,
            cache=self._cache,
            pool=self._pool,
            counters_of=lambda collection: self._shared.counters_of(collection),
            monotonic=monotonic,
        )
        self._driver = Driver(blob, consensus, self._merge, clock=clock, sleep=sleep)
        self._committer = Committer(self._driver, config, read_only=read_only)
        # Maintenance commits by itself: nobody who writes waits for a merge.
        beside = self._committer.session.beside()
        self._upkeep = Committer(self._driver, config, read_only=read_only, session=beside)
        self._leases = Leases(self._committer, read_only=read_only, monotonic=monotonic)
        self._shared = Shared(
            self._committer, self._leases, blob, self._cache, self._pool, config, clock, audit=audit, location=location
        )
        self._catalog = Catalog(self._driver, self._committer.session)
        self._accesses: dict[str, Access] = {}
        self._named: dict[str, Access] = {}
        self._lock = threading.Lock()
        self.maintenance = Maintenance(
            self._upkeep.run, self._opened, free_bytes, others=self._others, monotonic=monotonic, sleep=sleep
        )
        """What looks after the collections."""
        self._committer.told.append(self._told)
        self._committer.name_of = self._name_of
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="timespine-heartbeat", daemon=True)
        self._heart.start()
        if maintenance and not read_only:
            self.maintenance.start()

    # Collections.

    def create(
        self,
        name: str,
        *,
        key: Mapping[str, Any] | None = None,
        value: Mapping[str, Any] | None = None,
        schema: Schema | None = None,
        cluster: Sequence[str] = (),
        arity: int = 1,
        timeline: str = "clock",
        retain: Any = None,
        replace: bool = False,
        if_exists: str = "error",
    ) -> Collection:
        """Create a collection. `if_exists="open"` opens one of the same shape; `replace=True` takes its name over.

        "The same shape": the same schema and timeline, and, if given, the same `retain`.
        """
        if schema is not None and (key is not None or value is not None or tuple(cluster) or arity != 1):
            raise UsageError("a schema says what key, value, cluster and arity are: give either")
        made = schema if schema is not None else define(key, value, cluster, arity)
        return self._create(name, made, timeline, retain, replace=replace, if_exists=if_exists)[0]

    def _create(
        self,
        name: str,
        made: Schema,
        timeline: str = "clock",
        retain: Any = None,
        *,
        replace: bool = False,
        if_exists: str = "error",
    ) -> tuple[Collection, bool]:
        """A collection of that name and shape, and whether it is new."""
        self._committer.check_writable()
        if timeline not in TIMELINES:
            raise UsageError(f"timeline is 'clock' or 'counter', not {shown(timeline)}")
        if if_exists not in ("error", "open"):
            raise UsageError(f"if_exists is 'error' or 'open', not {shown(if_exists)}")
        retain_ms = to_ms(retain) if retain is not None else None
        if retain_ms is not None and (timeline != "clock" or made.arity != 1):
            raise UsageError(NO_RETENTION)
        now_ms = int(self._shared.clock() * 1000)
        entry = Entry(fresh_collection_id(check_name(name)), timeline, retain_ms, now_ms)
        found, new = self._catalog.create(name, entry, made.encode(), made.arity, replace=replace)
        if replace:
            self._close_dropped()
        if not new and if_exists == "error":
            raise UsageError(f"collection {name} exists: open it with store[{name!r}], or pass replace=True")
        collection = self._collection(name, found)
        if not new:
            check_alike(name, (found, collection.schema), (entry, made))
        return collection, new

    def collection(self, name: str) -> Collection:
        """Open a collection by its name."""
        return self._found([name])[0]

    def _found(self, names: Sequence[str]) -> list[Collection]:
        """Collections by their names, all looked up at once."""
        return [self._collection(*each) for each in zip(names, self._catalog.find_all(names), strict=True)]

    __getitem__ = collection

    def __contains__(self, name: object) -> bool:
        self._committer.check_open()
        return isinstance(name, str) and name in self._catalog.read().entries

    def names(self) -> list[str]:
        """The names of all collections."""
        self._committer.check_open()
        return sorted(self._catalog.read().entries)

    def rename(self, old: str, new: str) -> None:
        """Give a collection another name. Handles that are open go on."""
        self._committer.check_writable()
        check_name(new)

        id = self._catalog.find(old).id
        self._catalog.change(partial(renamed, id, old, new))
        with self._lock:
            if id in self._accesses:
                self._name(self._accesses[id], new)

    def drop(self, name: str) -> None:
        """Remove a collection. Its data goes when nobody can read it any more, with maintenance.

        Handles that are open go on reading what they have begun to read; writing is refused, and feeds end.
        """
        self._committer.check_writable()
        self._catalog.change(partial(dropped, self._catalog.find(name).id))
        self._close_dropped()

    def load(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        key: Sequence[str] = (),
        cluster: Sequence[str] = (),
        progress: Callable[[int], None] | None = None,
        replace: bool = False,
        **options: Any,
    ) -> Collection:
        """Make a collection of an existing Parquet file, folder of files, or Delta table, in one commit.

        With `replace` the rows are loaded first, and take over the name when all are there. Further options are
        those of `create`: `timeline`, `retain`, `if_exists`.
        """
        self._committer.check_writable()
        unknown = next((option for option in options if option not in LOAD_OPTIONS), None)
        if unknown is not None:
            raise UsageError(f"load has no option {unknown}; there are: {', '.join(LOAD_OPTIONS)}")
        arrow, batches = source_of(path)
        made = infer(arrow, key, cluster=cluster)
        check_name(name)
        under = f"{name[:80]}.load-{fresh_id('')[:16]}" if replace else name
        collection, new = self._create(under, made, **options)
        try:
            load(collection._access, batches, progress)
            if replace:
                self._catalog.change(partial(taken_over, collection.id, name))
                self._close_dropped()
        except BaseException:
            if new:
                with contextlib.suppress(TimespineError):  # storage is away: an empty collection stays
                    self._catalog.change(partial(dropped, collection.id))
            raise
        return self.collection(name) if replace else collection

    # Many collections at once.

    def transaction(self) -> Transaction:
        """Rows and seals for any number of collections, all of them or none: leave its `with` to commit."""
        self._committer.check_writable()
        return Transaction(self._found, self._committer)

    def seal(self, collections: str | Collection | Sequence[str | Collection], upper: Moment) -> None:
        """Say of some collections, all or none, that nothing more comes before a time."""
        with self.transaction() as transaction:
            transaction.seal(collections, upper)

    def snapshot(
        self,
        collections: Sequence[str | Collection],
        as_of: Moment | None = None,
        *,
        multiplicity: str = "rows",
        timeout: float | None = WAIT_S,
    ) -> Cut:
        """Several collections as of one time; the largest that is complete in all of them, if none is named."""
        given = listed(collections)
        names = [each for each in given if isinstance(each, str)]
        by_name = dict(zip(names, self._found(names), strict=True))
        found = [by_name[each] if isinstance(each, str) else each for each in given]
        return cut(found, as_of, timeout, multiplicity=multiplicity)

    # Maintenance.

    def maintain(self, *names: str, sweep: bool = False) -> Report:
        """Do now what the background does: merges, rollups, garbage collection, expiry."""
        self._committer.check_writable()
        self._learn(self._catalog.read())
        chosen = names or tuple(self.names())
        report = self.maintenance.maintain([self.collection(name)._access for name in chosen], sweep=sweep)
        if not names:
            report.collected += self._bury()
        return report

    def vacuum(self, *, dry_run: bool = True) -> Vacuumed:
        """Find blobs that nobody can reach, and delete them unless it is a dry run."""
        if not dry_run:
            self._committer.check_writable()
        accesses = [self.collection(name)._access for name in self.names()]
        with self.maintenance.paused():
            return vacuum(accesses, self._shared.blob, self._upkeep, dry_run=dry_run)

    def advance(self, to: int | datetime.datetime | None = None) -> int:
        """Seal idle collections of the wall clock at one time (now, if none is named), in one commit; the time."""
        self._committer.check_writable()
        (time_ms,) = to_time(to, 1) if to is not None else (int(self._shared.clock() * 1000),)
        commands = [
            (entry.id, AdvanceUpper(Frontier.at(time_ms)))
            for entry in self._catalog.read().entries.values()
            if entry.timeline == "clock" and self._committer.state(entry.id).arity == 1
        ]
        if commands:
            self._committer.commit(*commands)
        return time_ms

    def metrics(self) -> dict[str, float]:
        """What was counted since the store was opened."""
        return of_process(self)

    # The end.

    def close(self) -> None:
        """Stop the background, give back leases, close the ports. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.maintenance.finish()
        self._stop.set()
        self.maintenance.stop()
        self._heart.join()
        for end in (self._leases.close, self._committer.close, self._upkeep.close):
            with contextlib.suppress(Exception):  # storage is away: what stays behind expires by itself
                end()
        self._pool.shutdown(wait=True)
        self._driver.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<store {self.location}>"

    # Inside.

    def retain(self, duration: str | float | datetime.timedelta | None) -> None:
        """Keep history for so long in all collections that have no policy of their own; None: for ever.

        Those with `timeline="counter"`, or several coordinates, keep all of it: their times say nothing about age.
        """
        self._committer.check_writable()
        self._catalog.change(partial(retained_by_all, to_ms(duration) if duration is not None else None))
        self._learn(self._catalog.read())

    def set_retention(self, name: str, retain_ms: int | None) -> None:
        """Change how long a collection keeps history."""
        self._committer.check_writable()

        # A handle that is open knows its collection by id, whatever it is called by now.
        opened = next((access for access in self._opened() if access.name == name), None)
        id = opened.id if opened is not None else self._catalog.find(name).id
        if retain_ms is not None and self._committer.state(id).arity != 1:
            raise UsageError(NO_RETENTION)
        self._catalog.change(partial(retained, id, retain_ms))
        self._learn(self._catalog.read())

    def compact(self, id: str) -> None:
        """Merge a collection into one run."""
        self._committer.check_writable()
        access = next((access for access in self._opened() if access.id == id), None)
        if access is None:
            raise ClosedError(f"collection {self._name_of(id)} was dropped")
        self.maintenance.compact(access)

    def _collection(self, name: str, entry: Entry) -> Collection:
        self._committer.check_open()
        with self._lock:
            access = self._accesses.get(entry.id)
            if access is None:
                access = self._accesses[entry.id] = Access(self._shared, name, entry)
            self._name(access, name)
            access.entry = entry
        return Collection(access, self)

    def _name(self, access: Access, name: str) -> None:
        """Call a collection by its name; whoever had it before is called by its id, too."""
        known = self._named.get(name)
        if known is not None and known is not access and known.name == name:
            known.name = f"{name} ({known.id})"
        access.name = name
        self._named[name] = access

    def _close_dropped(self) -> None:
        """Close what was dropped: whoever has a handle still is told so, and is not promised what nobody will keep.

        The names are changed by now. What fails here is done by maintenance, before the data goes.
        """
        with contextlib.suppress(TimespineError):
            for id in self._catalog.read().dropped:
                with contextlib.suppress(TimespineError):
                    if not self._committer.known(id).upper.is_closed:
                        self._committer.commit((id, AdvanceUpper(CLOSED)))

    def _name_of(self, id: str) -> str:
        """What people call a collection, or called it once."""
        with self._lock:
            access = self._accesses.get(id)
        return access.name if access is not None else first_name(id)

    def _learn(self, names: Names) -> None:
        """Take over what others changed about collections that are open here: names, and how long history is kept."""
        self._shared.retain_ms = names.retain_ms
        for name, entry in names.entries.items():
            if entry.id in self._accesses:
                self._collection(name, entry)

    def _others(self) -> list[Access]:
        """Collections that are not open here, to be looked after too. Lets dropped ones go on the way."""
        names = self._catalog.read()
        self._learn(names)
        if names.dropped:
            self._bury()
        return [
            Access(self._shared, name, entry) for name, entry in names.entries.items() if entry.id not in self._accesses
        ]

    def _opened(self) -> list[Access]:
        with self._lock:
            return list(self._accesses.values())

    def _schemas(self, collection: str) -> list[Schema]:
        return [decoded_schema(data) for data in self._upkeep.known(collection).schemas]

    def _merge(self, effect: MergeRuns) -> Protocol[Output]:
        if False:
            yield
        try:
            output = self.engine.merge(effect)
        except Exception as error:
            self.maintenance.reason = f"{type(error).__name__}: {error}"
            if isinstance(error, TimespineError):
                raise
            # A merge that cannot be done is skipped, whatever the reason.
            raise Unavailable(f"a merge failed: {type(error).__name__}") from error
        if output is not None:
            count(self._shared.counters_of(effect.collection), "merge bytes inline", output.inline_bytes)
        return output

    def _told(self, collections: set[str]) -> None:
        with self._shared.committed:
            self._shared.committed.notify_all()
        self.maintenance.wake(collections)
        for access in filter(None, map(self._accesses.get, collections)):
            self.maintenance.bound(access)

    def _beat(self) -> None:
        """Keep alive what this process counts on: leases of readers, and writers and claims of long merges."""
        while not self._stop.wait(HEARTBEAT_S):
            self.beat()

    def beat(self) -> None:
        """One heartbeat. Storage may be away: the next one tries again."""
        with contextlib.suppress(Exception):
            self._leases.heartbeat()
        for collection, id, writer in self.engine.long_merges(MERGE_BEAT_S):
            claim = ClaimMerge(id, writer, self._shared.config.claim_ms)
            with contextlib.suppress(Exception):
                self._committer.commit((collection, HeartbeatWriter(writer)), (collection, claim))
        now = self._shared.monotonic()
        for (collection, writer), heard in list(self._shared.writing.items()):
            if now - heard >= MERGE_BEAT_S:
                self._shared.writing[collection, writer] = now
                with contextlib.suppress(Exception):
                    self._committer.commit((collection, HeartbeatWriter(writer)))

    def _bury(self) -> int:
        """Let the data of dropped collections go, as far as nobody reads it any more; blobs that went."""
        gone = 0
        for id in self._catalog.read().dropped:
            buried, collected = self.maintenance.bury(Access(self._shared, id, Entry(id)))
            gone += collected
            if buried:
                self._catalog.change(partial(buried_for_good, id))
                with self._lock:
                    gone_for_good = self._accesses.pop(id, None)
                    if gone_for_good is not None and self._named.get(gone_for_good.name) is gone_for_good:
                        del self._named[gone_for_good.name]
        return gone
