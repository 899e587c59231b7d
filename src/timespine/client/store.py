"""A store: a place with many collections."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from timespine.client.catalog.catalog import Catalog, Entry, Names, check_name, discarded, retained_by_all, taken_over
from timespine.client.catalog.create import Nursery, entry_of, shape_of
from timespine.client.catalog.drop import Dropping
from timespine.client.catalog.retention import (
    Policy,
    Retention,
    change_deadline,
    change_policy,
    policy_of_store,
    retention_of,
)
from timespine.client.catalog.same_definition import check_alike
from timespine.client.close_store import end_background
from timespine.client.collection import Collection
from timespine.client.commit.driver import Driver, fresh_id
from timespine.client.commit.group_commit import STORE_CLOSED, Committer
from timespine.client.context import Access, Shared, decoded_schema
from timespine.client.diagnostics.metrics import of_store
from timespine.client.handles import Handles
from timespine.client.load import file_source
from timespine.client.maintenance.heartbeat import Heart
from timespine.client.maintenance.report import MaintenanceReport, said
from timespine.client.maintenance.scheduler import Maintenance
from timespine.client.maintenance.vacuum import VacuumResult, vacuum
from timespine.client.process_guard import OneProcess
from timespine.client.read.acquire import WAIT_S
from timespine.client.read.leases import Leases
from timespine.client.read.multi_snapshot import MultiSnapshot, snapshot_many
from timespine.client.results import SealResult
from timespine.client.signatures import IfExists, Multiplicity, Timeline
from timespine.client.time_args import Moment, Progress, checked_clock, to_time
from timespine.client.write import bulk_load
from timespine.client.write.transaction import Transaction, as_list
from timespine.columnar.merge_engine import Engine
from timespine.columnar.parts.cache import PartCache
from timespine.columnar.parts.hollow_run import count
from timespine.columnar.schema.schema import Schema, infer
from timespine.config import DEFAULT, Config
from timespine.core.effects import MergeRuns, Output, Protocol
from timespine.core.transitions import AdvanceUpper
from timespine.errors import ClosedError, CollectionExists, TimespineError, Unavailable, UsageError, shown
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.location.consensus import WRITES_MAX, Consensus
from timespine.locks import Lock
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.pool import Pool

LOAD_OPTIONS = ("timeline", "retain", "forget_within", "if_exists")
"""What `load` takes besides what it names itself: options of `create`."""

READ_THREADS = 4
"""Threads that read ahead and encode, at least: decoding and encoding run outside of the interpreter's lock."""

CLOSE_S = 600.0
"""How long closing waits for a merge or a call that is under way, unless the caller says otherwise."""


class Store(OneProcess):
    """An open store. May be used by many threads, and by the process that opened it: a forked child opens its own."""

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
        self._pool = Pool(max(READ_THREADS, config.outstanding_parts), "timespine-read", STORE_CLOSED)
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
            sleep=sleep,
        )
        clock = checked_clock(clock)
        self._driver = Driver(blob, consensus, self._merge, clock=clock, sleep=sleep)
        self._committer = Committer(self._driver, config, read_only=read_only)
        # Maintenance commits by itself: nobody who writes waits for a merge.
        beside = self._committer.session.beside()
        self._upkeep = Committer(self._driver, config, read_only=read_only, session=beside)
        self._leases = Leases(self._committer, read_only=read_only, monotonic=monotonic)
        self._shared = Shared(
            self._committer, self._leases, blob, self._cache, self._pool, config, clock, audit=audit, location=location
        )
        self._shared.monotonic, self._shared.sleep = monotonic, sleep
        self._catalog = Catalog(self._driver, self._committer.session)
        self._dropping = Dropping(self._catalog, self._committer)
        self.handles = Handles()
        """The collections that are open here."""
        self._closing = Lock("the end of this store")
        self.maintenance = Maintenance(
            self._upkeep, self.handles.all, free_bytes, others=self._others, monotonic=monotonic, sleep=sleep
        )
        """What looks after the collections."""
        self._committer.told.append(self._told)
        self._committer.name_of = self.handles.name_of
        self.heart = Heart(self._shared, self.engine)
        """What keeps alive what this process counts on."""
        self.heart.start()
        if maintenance and not read_only:
            self.maintenance.start()

    # Collections.

    def create(
        self,
        name: str,
        *,
        key: Mapping[str, Any] | Sequence[str] | None = None,
        value: Mapping[str, Any] | None = None,
        schema: Any = None,
        cluster: Sequence[str] = (),
        arity: int = 1,
        timeline: Timeline = "clock",
        retain: Policy = None,
        forget_within: Policy = None,
        replace: bool = False,
        if_exists: IfExists = "error",
    ) -> Collection:
        """Create a collection. `if_exists="open"` opens one of the same shape; `replace=True` takes its name over.

        `key` and `value` map names to types (`columnar.schema.type_names` lists them). Or `schema` gives all columns: a
        text such as "id bigint, name string", an Arrow schema or a StructType of Spark; then `key` names columns.
        The name of a collection that was dropped stays blocked, unless `replace=True` takes it.
        "The same shape": the same schema, or one that it had before it was evolved, the same timeline and, if given,
        the same `retain` and `forget_within`.
        """
        made = shape_of(key, value, schema, cluster, arity)
        options: dict[str, Any] = {"replace": replace, "if_exists": if_exists, "forget_within": forget_within}
        return self._create(name, made, timeline, retain, **options)[0]

    def _create(
        self,
        name: str,
        made: Schema,
        timeline: Timeline = "clock",
        retain: Policy = None,
        *,
        replace: bool = False,
        if_exists: IfExists = "error",
        forget_within: Policy = None,
    ) -> tuple[Collection, bool]:
        """A collection of that name and shape, and whether it is new."""
        if if_exists not in ("error", "open"):
            raise UsageError(f"if_exists is 'error' or 'open', not {shown(if_exists)}")
        self._committer.check_writable()
        entry = entry_of(name, made, timeline, retain, self._shared.clock(), forget_within)
        if replace:
            self.check_replaceable(name)
        found, new = self._catalog.create(name, entry, made.encode(), made.arity, replace=replace)
        if replace:
            self._dropping.close()
        if not new and if_exists == "error":
            raise CollectionExists(name)
        collection = self._collection(name, found)
        if not new:
            state = collection._access.state()
            check_alike(name, (found, [decoded_schema(each) for each in state.schemas]), (entry, made))
        return collection, new

    def adopt(self, access: Access, *, replace: bool) -> None:
        """Take care of a collection that a transaction has created, perhaps in the place of another one."""
        if replace:
            self._dropping.close()
        self.handles.adopt(access)

    def collection(self, name: str) -> Collection:
        """Open a collection by its name; UnknownCollection if there is none."""
        return self._found([name])[0]

    def _found(self, names: Sequence[str]) -> list[Collection]:
        """Collections by their names, all looked up at once."""
        self._committer.check_open()
        return [self._collection(*each) for each in zip(names, self._catalog.find_all(names), strict=True)]

    __getitem__ = collection

    def get(self, name: str) -> Collection | None:
        """Open a collection by its name; None if there is none."""
        self._committer.check_open()
        entry = self._catalog.read().entries.get(check_name(name))
        return self._collection(name, entry) if entry is not None else None

    def __contains__(self, name: object) -> bool:
        self._committer.check_open()
        return isinstance(name, str) and name in self._catalog.read().entries

    def names(self) -> list[str]:
        """The names of all collections."""
        self._committer.check_open()
        return sorted(self._catalog.read().entries)

    def description(self, name: str) -> Description:
        """The times that a collection speaks for, from its beginning up to its upper, and its since."""
        self._committer.check_open()
        state = self._committer.state(self._catalog.find(name).id)
        return Description(Frontier.minimum(state.arity), state.upper, state.since)

    def rename(self, old: str, new: str) -> None:
        """Give a collection another name. Handles that are open go on."""
        self._committer.check_writable()
        check_name(new)
        self.handles.rename(self._catalog.rename(old, new), new)

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Remove a collection; False if that was done before. Its name stays blocked: see `create`.

        Its data goes when nobody can read it any more, with maintenance. Handles that are open go on reading what
        they have begun to read; writing is refused, and feeds end. It is refused while there are critical holds on
        it, unless forced: then they go, too.
        """
        self._committer.check_writable()
        return self._dropping.drop(name, force=force)

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
        those of `create`: `timeline`, `retain`, `forget_within`, `if_exists`.
        """
        self._committer.check_writable()
        unknown = next((option for option in options if option not in LOAD_OPTIONS), None)
        if unknown is not None:
            raise UsageError(f"load has no option {unknown}; there are: {', '.join(LOAD_OPTIONS)}")
        arrow, batches = file_source.source_of(path)
        made = infer(arrow, key, cluster=cluster)
        check_name(name)
        if replace:
            self.check_replaceable(name)
        under = f"{name[:80]}.load-{fresh_id('')[:16]}" if replace else name
        collection, new = self._create(under, made, **options)
        try:
            bulk_load.load(collection._access, batches, progress)
            if replace:
                self.check_replaceable(name)
                self._catalog.change(partial(taken_over, collection.id, name))
                self._dropping.close()
        except BaseException:
            if new:
                with contextlib.suppress(TimespineError):  # storage is away: an empty collection stays
                    self._catalog.change(partial(discarded, collection.id, under), frees_space=True)
            raise
        return self.collection(name) if replace else collection

    # Many collections at once.

    def transaction(self) -> Transaction:
        """Rows and seals for any number of collections, all of them or none: leave its `with` to commit."""
        self._committer.check_writable()
        return Transaction(self._found, self._committer, Nursery(self, self._shared, self._catalog))

    def seal(
        self, collections: str | Collection | Sequence[str | Collection], upper: Progress
    ) -> dict[str, SealResult]:
        """Say of some collections, all or none, that nothing more comes before a time; by name, what it came to."""
        with self.transaction() as transaction:
            transaction.seal(collections, upper)
        names = [each if isinstance(each, str) else each.name for each in as_list(collections)]
        return dict(zip(names, transaction.replies, strict=True))

    def snapshot(
        self,
        collections: Sequence[str | Collection],
        as_of: Moment | None = None,
        *,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> MultiSnapshot:
        """Several collections as of one time; the largest that is complete in all of them, if none is named."""
        given = as_list(collections)
        if not all(isinstance(each, str | Collection) for each in given):
            raise UsageError("name the collections, or give them as they are")
        names = [each for each in given if isinstance(each, str)]
        by_name = dict(zip(names, self._found(names), strict=True))
        found = [by_name[each] if isinstance(each, str) else each for each in given]
        return snapshot_many(found, as_of, timeout, multiplicity)

    # Maintenance.

    def maintain(self, *names: str, sweep: bool = False) -> MaintenanceReport:
        """Do now what the background does: merges, rollups, garbage collection, expiry."""
        self._committer.check_writable()
        self._learn(self._catalog.read())
        report = self.maintenance.maintain([self.collection(n)._access for n in names or self.names()], sweep=sweep)
        if not names:
            before = self.maintenance.report.counts()
            report.collected += self._bury(at_once=True)
            buried = self.maintenance.report.since(before)
            report.failures += buried.failures
            report.skipped += buried.skipped
        return report

    def vacuum(self, *, dry_run: bool = True) -> VacuumResult:
        """Find blobs that nobody can reach, and delete them unless it is a dry run."""
        if not dry_run:
            self._committer.check_writable()
        accesses = [self.collection(name)._access for name in self.names()]
        with self.maintenance.paused():
            return vacuum(accesses, self._shared.blob, self._upkeep, dry_run=dry_run)

    def advance(self, to: int | datetime.datetime | None = None) -> int:
        """Seal idle collections of the wall clock at one time (now, if none is named); the time.

        In one commit, if there are not more than 4,096 of them.
        """
        self._committer.check_writable()
        (time_ms,) = to_time(to, 1) if to is not None else (int(self._shared.clock() * 1000),)
        commands = [
            (entry.id, AdvanceUpper(Frontier.at(time_ms)))
            for entry in self._catalog.read().entries.values()
            if entry.timeline == "clock" and self._committer.state(entry.id).arity == 1
        ]
        for start in range(0, len(commands), WRITES_MAX):
            self._committer.commit(*commands[start : start + WRITES_MAX])
        return time_ms

    def metrics(self) -> dict[str, float]:
        """What was counted since the store was opened, and the blobs and bytes of the collections that are open."""
        return of_store(self)

    # The end.

    def close(self, timeout: float = CLOSE_S) -> None:
        """Stop the background, give back leases, close the ports. Twice is fine.

        Determinate if something is still at work after `timeout` seconds, and what it is: close it again to go on.
        In a forked child nothing happens: the store belongs to the parent.
        """
        if not self._committer.is_own:
            return
        with self._closing.within(timeout):
            if not self._closed:
                end_background(self._shared, self.maintenance, self.heart, self._upkeep, timeout)
                self._pool.shutdown(limit_s=timeout)
                try:
                    self._driver.close()
                except Exception:
                    self._closed = True  # each port was told
                    raise
                self._closed = True

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<store {self.location}>"

    # Inside.

    def retain(self, duration: Policy) -> None:
        """Keep history for so long in all collections that have no policy of their own; None: for ever.

        Those with `timeline="counter"`, or several coordinates, keep all of it: their times say nothing about age.
        """
        self._committer.check_writable()
        self._catalog.change(partial(retained_by_all, policy_of_store(duration)))
        self._learn(self._catalog.read())

    def forget_within(self, duration: Policy, collection: str | None = None) -> None:
        """After how long expired history is physically gone: of a collection, by its id, or of all that do not say."""
        self._committer.check_writable()
        change_deadline(self._catalog, collection, duration)
        self._learn(self._catalog.read())

    def set_retention(self, name: str, retain_ms: int | None) -> None:
        """Change how long a collection keeps history: see `timespine.client.catalog.retention.policy_of`."""
        self._committer.check_writable()
        # A handle that is open knows its collection by id, whatever it is called by now.
        opened = next((access for access in self.handles.all() if access.name == name), None)
        id = opened.id if opened is not None else self._catalog.find(name).id
        change_policy(self._catalog, id, self._committer.state(id).arity, retain_ms)
        self._learn(self._catalog.read())

    def retention(self, access: Access) -> Retention:
        """How long a collection keeps history now, whichever process decided so."""
        self._committer.check_open()
        return retention_of(self._catalog.read(), access.entry, access.known().arity)

    def compact(self, id: str) -> None:
        """Merge a collection into one run."""
        self._committer.check_writable()
        access = self.handles.get(id)
        if access is None:
            raise ClosedError(f"collection {self.handles.name_of(id)} was dropped")
        self.maintenance.compact(access)

    def _collection(self, name: str, entry: Entry) -> Collection:
        self._committer.check_open()
        return Collection(self.handles.open(self._shared, name, entry), self)

    def check_replaceable(self, name: str) -> None:
        """CollectionInUse if there is a critical hold on what has a name: no process could release it afterwards."""
        known = self._catalog.read().entries.get(check_name(name))
        if known is not None:
            self._dropping.check_unheld(name, known.id, Hint("release-or-drop", {"name": name}))

    def _learn(self, names: Names) -> None:
        """Take over what others changed about collections that are open here: names, and how long history is kept."""
        self._shared.retain_ms, self._shared.forget_within_ms = names.retain_ms, names.forget_within_ms
        for name, entry in names.entries.items():
            if entry.id in self.handles:
                self._collection(name, entry)

    def _others(self) -> list[Access]:
        """Collections that are not open here, to be looked after too. Lets dropped ones go on the way."""
        names = self._catalog.read()
        self._learn(names)
        if names.dropped or names.expected or names.given_up:
            self._bury()
        return [
            Access(self._shared, name, entry) for name, entry in names.entries.items() if entry.id not in self.handles
        ]

    def _schemas(self, collection: str) -> list[Schema]:
        return [decoded_schema(data) for data in self._upkeep.known(collection).schemas]

    def _merge(self, effect: MergeRuns) -> Protocol[Output]:
        if False:
            yield
        try:
            output = self.engine.merge(effect)
        except Exception as error:
            self.maintenance.reason = said(error)
            if isinstance(error, TimespineError):
                raise
            # A merge that cannot be done is skipped, whatever the reason.
            raise Unavailable(f"a merge failed: {type(error).__name__}") from error
        if output is not None:
            count(self._shared.counters_of(effect.collection), "merge bytes inline", output.batch.inline_bytes)
        return output

    def _told(self, collections: set[str]) -> None:
        self._shared.committed.ring()
        self.maintenance.wake(collections)
        for access in filter(None, map(self.handles.get, collections)):
            self.maintenance.bound(access)

    def _bury(self, *, at_once: bool = False) -> int:
        """Delete data of dropped collections that no lease holds, and of those never created; how many blobs went."""
        unborn = self._dropping.sweep_given_up(self._shared.blob, self.maintenance.report, at_once=at_once)
        buried, gone = self._dropping.bury(self.maintenance, lambda id: Access(self._shared, id, Entry(id)))
        self.handles.forget(buried)
        for each in (self._committer, self._upkeep):
            each.forget(buried)
        return gone + unborn
