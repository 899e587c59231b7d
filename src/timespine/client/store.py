"""A store: a place with many collections."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

import pyarrow as pa

from timespine.client.arguments.argument_types import IfBehind, IfExists, KeyLike, Multiplicity, SchemaLike, Timeline
from timespine.client.arguments.time_args import DurationLike, FrontierLike, TimeLike, check_clock, parse_time
from timespine.client.catalog.catalog import Catalog, CatalogEntry, Names, check_collection_name, check_role
from timespine.client.catalog.create_in_transaction import Definition, PendingCreates, check_new_name, schema_of
from timespine.client.catalog.drop_and_purge import DropService
from timespine.client.catalog.keep_deleted_setting import KeepDeletedVerbs
from timespine.client.catalog.retention import (
    Retention,
    RetentionLike,
    change_deadline,
    change_policy,
    policy_of_store,
    retention_of,
    with_default_retention,
)
from timespine.client.catalog.same_definition import require_same_definition
from timespine.client.collection import Collection
from timespine.client.commit.effect_driver import Driver, fresh_id
from timespine.client.commit.group_commit import STORE_CLOSED, GroupCommitter
from timespine.client.create_from_files import load_collection
from timespine.client.diagnostics.metrics import store_metrics
from timespine.client.inner_handles import CollectionHandle, StoreContext, read_threads
from timespine.client.lazy_views import ViewVerbs
from timespine.client.maintenance.heartbeat import HeartbeatThread
from timespine.client.maintenance.maintenance import Maintenance
from timespine.client.maintenance.maintenance_report import MaintenanceReport
from timespine.client.maintenance.merge_effect import perform_merge
from timespine.client.maintenance.merge_process.merge_process import MergeProcess
from timespine.client.maintenance.vacuum import VacuumResult, vacuum_collections
from timespine.client.opening.close_store import end_background
from timespine.client.opening.open_collections import Handles
from timespine.client.read.acquire import WAIT_S
from timespine.client.read.leases import Leases
from timespine.client.read.multi_snapshot import MultiSnapshot, snapshot_many
from timespine.client.write.small_appends.serve_relayed_appends import make_relay
from timespine.client.write.transaction import Transaction, as_list
from timespine.client.write_results import SealResult
from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.schema.schema import Schema, decode_schema, infer
from timespine.columnar.schema.types import TypeLike
from timespine.config import DEFAULT, Config
from timespine.core.effects import MergeRuns, Output, Protocol
from timespine.core.transitions import AdvanceUpper
from timespine.errors import ClosedError, CollectionExists, OwnedCollection, UsageError, short_repr
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.location.consensus import WRITES_MAX, Consensus
from timespine.location.machine.role import MAINTAINER, role_of
from timespine.locks import Lock
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.pool import Pool

CLOSE_S = 600.0
"""Seconds that `close` waits for a running merge or call, unless the caller gives a timeout."""


class Store(ViewVerbs, KeepDeletedVerbs):
    """An open store. Many threads of the process that opened it may use it; a forked child opens its own."""

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
            raise UsageError(f"audit is a share, from 0 to 1, not {short_repr(audit)}")
        self.location = location
        """The location of the store: the absolute path of its folder, or its URL."""
        self._closed = False
        self._pool = Pool(read_threads(config), "timespine-read", STORE_CLOSED)
        self._cache = PartCache(config.cache_bytes)
        self._engine = self._make_engine(blob, config, monotonic, sleep)
        clock = check_clock(clock)
        self._driver = Driver(blob, consensus, self._merge, clock=clock, sleep=sleep)
        self._committer = GroupCommitter(self._driver, config, read_only=read_only)
        # The maintenance thread commits through its own committer, so that no writer waits for a merge.
        beside = self._committer.session.beside()
        self._upkeep = GroupCommitter(self._driver, config, read_only=read_only, session=beside)
        self._leases = Leases(self._committer, read_only=read_only, monotonic=monotonic)
        self._context = StoreContext(
            self._committer, self._leases, blob, self._cache, self._pool, config, clock, audit=audit, location=location
        )
        self._context.monotonic, self._context.sleep, self._context.read_keep_ms = monotonic, sleep, self._read_keep_ms
        self._merge_process = MergeProcess(self._context)
        self._engine.whole_delegate = self._merge_process.merge
        self._catalog = Catalog(self._driver, self._committer.session, read_only=read_only)
        self._drop_service = DropService(self._catalog, self._committer)
        self._handles = Handles()
        """The handles of the collections that this process has opened."""
        self._closing = Lock("the end of this store")
        self._maintenance = Maintenance(
            self._upkeep,
            self._handles.all,
            free_bytes,
            others=self._others,
            role=role_of(consensus, MAINTAINER),
            monotonic=monotonic,
            sleep=sleep,
        )
        """The scheduler of merges, rollups, garbage collection and expiry."""
        self._committer.on_commit.append(self._on_commit)
        self._committer.name_of = self._handles.name_of
        if config.relay_appends and not read_only:
            handle_of = partial(self._handles.open_by_id, self._context, self._catalog.read)
            self._committer.relay = make_relay(consensus, self._committer, handle_of, monotonic)
        self._heartbeat_thread = HeartbeatThread(self._context, self._engine)
        """The thread that renews the leases and registrations of this process."""
        self._heartbeat_thread.start()
        if maintenance and not read_only:
            self._maintenance.start()

    # Collections.

    def create(
        self,
        name: str,
        *,
        key: KeyLike | None = None,
        value: Mapping[str, TypeLike] | None = None,
        schema: SchemaLike | None = None,
        cluster: Sequence[str] = (),
        time_coordinates: int = 1,
        timeline: Timeline = "clock",
        retain: RetentionLike = None,
        forget_within: DurationLike | None = None,
        replace: bool = False,
        if_exists: IfExists = "error",
    ) -> Collection:
        """Create a collection. `if_exists="open"` opens one of the same shape; `replace=True` takes its name over.

        `key` and `value` map names to types (`columnar.schema.type_parser` lists them). Or `schema` gives all columns:
        a text such as "id bigint, name string", an Arrow schema or a StructType of Spark; then `key` names columns.
        The name of a dropped collection stays blocked; only `replace=True` takes it.
        "The same shape" means the same schema, or one from before an `evolve`, the same timeline and, if given,
        the same `retain` and `forget_within`.
        """
        made = schema_of(key, value, schema, cluster, time_coordinates)
        definition = Definition(made, timeline, retain, forget_within)
        return self._create(name, definition, replace=replace, if_exists=if_exists)[0]

    def _create(
        self, name: str, definition: Definition, *, replace: bool, if_exists: IfExists
    ) -> tuple[Collection, bool]:
        """Create or open a collection of that name and shape; return it, and whether it is new."""
        if if_exists not in ("error", "open"):
            raise UsageError(f"if_exists is 'error' or 'open', not {short_repr(if_exists)}")
        self._committer.check_writable()
        entry, made = definition.entry(name, self._context.clock()), definition.schema
        if replace:
            self._check_replaceable(name)
        found, new = self._catalog.create(name, entry, made.encode(), made.arity, replace=replace)
        if replace:
            self._drop_service.close()
        if not new and if_exists == "error":
            raise CollectionExists(name)
        collection = self._collection(name, found)
        if not new:
            state = collection._handle.state()
            require_same_definition(name, (found, [decode_schema(each) for each in state.schemas]), (entry, made))
        return collection, new

    def _adopt(self, handle: CollectionHandle, *, replace: bool) -> None:
        """Register a collection that a transaction has created, or that it replaced another one by."""
        if replace:
            self._drop_service.close()
        self._handles.register_created(handle)

    def collection(self, name: str) -> Collection:
        """Open a collection by its name; raise UnknownCollection if there is none."""
        return self._found([name])[0]

    def _found(self, names: Sequence[str]) -> list[Collection]:
        """Open collections by their names, with one read of the catalog."""
        self._committer.check_open()
        return [self._collection(*each) for each in zip(names, self._catalog.find_all(names), strict=True)]

    __getitem__ = collection

    def get(self, name: str) -> Collection | None:
        """Open a collection by its name; return None if there is none."""
        self._committer.check_open()
        entry = self._catalog.read().entries.get(check_collection_name(name))
        return self._collection(name, entry) if entry is not None else None

    def __contains__(self, name: object) -> bool:
        self._committer.check_open()
        return isinstance(name, str) and name in self._catalog.read().entries

    def names(self, *, hidden: bool = False) -> list[str]:
        """List the names of all collections, sorted; with `hidden` also those that keep the state of views."""
        self._committer.check_open()
        names = self._catalog.read()
        return sorted(names.entries) if hidden else names.visible

    def description(self, name: str) -> Description:
        """Return the lower frontier of a collection, its upper and its since."""
        self._committer.check_open()
        state = self._committer.state(self._catalog.find(name).id)
        return Description(Frontier.minimum(state.arity), state.upper, state.since)

    def rename(self, old: str, new: str) -> None:
        """Rename a collection. Open handles stay valid."""
        self._committer.check_writable()
        check_new_name(new)
        self._handles.rename(self._catalog.rename(old, new), new)

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Remove a collection; return False if it was dropped before. Its name stays blocked: see `create`.

        Maintenance deletes the data when no lease holds it. Open handles finish the reads that they have begun; writes
        raise an error, and feeds end. Critical holds and views on it raise CollectionInUse; `force` releases the holds.
        """
        self._committer.check_writable()
        try:
            return self._drop_service.drop(name, force=force)
        except OwnedCollection as owned:
            return self._drop_view(owned, force=force)

    def load(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        key: Sequence[str] = (),
        cluster: Sequence[str] = (),
        progress: Callable[[int], None] | None = None,
        timeline: Timeline = "clock",
        retain: RetentionLike = None,
        forget_within: DurationLike | None = None,
        replace: bool = False,
        if_exists: IfExists = "error",
    ) -> Collection:
        """Create a collection from a Parquet file, a folder of such files, or a Delta table, in one commit.

        With `replace`, the collection takes over the name after all rows are loaded. Further options are those of
        `create`.
        """

        def define(arrow: pa.Schema) -> Definition:
            return Definition(infer(arrow, key, cluster=cluster), timeline, retain, forget_within)

        return load_collection(self, name, path, define, progress, replace=replace, if_exists=if_exists)

    # Many collections at once.

    def transaction(self) -> Transaction:
        """Begin a transaction on any number of collections: leave its `with` to commit all of it, or nothing."""
        self._committer.check_writable()
        return Transaction(self._found, self._committer, PendingCreates(self, self._context, self._catalog))

    def seal(
        self,
        collections: str | Collection | Sequence[str | Collection],
        upper: FrontierLike,
        *,
        if_behind: IfBehind = "error",
    ) -> dict[str, SealResult]:
        """Seal some collections in one commit, all or none; return the result of each by its name.

        A collection that is sealed further raises an error; `if_behind="ignore"` leaves it unchanged.
        """
        with self.transaction() as transaction:
            transaction.seal(collections, upper, if_behind=if_behind)
        names = [each if isinstance(each, str) else each.name for each in as_list(collections)]
        return dict(zip(names, transaction.replies, strict=True))

    def snapshot(
        self,
        collections: Sequence[str | Collection],
        as_of: TimeLike | None = None,
        *,
        multiplicity: Multiplicity = "rows",
        timeout: float | None = WAIT_S,
    ) -> MultiSnapshot:
        """Read several collections as of one time: by default the largest that is complete in all of them."""
        given = as_list(collections)
        if not all(isinstance(each, str | Collection) for each in given):
            raise UsageError("name the collections, or give them as they are")
        by_name = dict(zip(names := [each for each in given if isinstance(each, str)], self._found(names), strict=True))
        found = [by_name[each] if isinstance(each, str) else each for each in given]
        return snapshot_many(found, as_of, timeout, multiplicity)

    # Maintenance.

    def maintain(self, *names: str, sweep: bool = False) -> MaintenanceReport:
        """Run maintenance now, in this thread: merges, rollups, garbage collection, expiry."""
        self._committer.check_writable()
        self._sync_names(self._catalog.read())
        report = self._maintenance.maintain(
            [self.collection(n)._handle for n in names or self.names(hidden=True)], sweep=sweep
        )
        if not names:
            before = self._maintenance.report.counts()
            report.collected += self._purge_dropped(at_once=True)
            purged = self._maintenance.report.since(before)
            report.failures += purged.failures
            report.skipped += purged.skipped
        return report

    def vacuum(self, *, dry_run: bool = True) -> VacuumResult:
        """Find orphaned blobs of expired writers; delete them unless `dry_run`."""
        if not dry_run:
            self._committer.check_writable()
        handles = [self.collection(name)._handle for name in self.names(hidden=True)]
        with self._maintenance.paused():
            return vacuum_collections(handles, self._context.blob, self._upkeep, dry_run=dry_run)

    def seal_idle(self, upper: int | datetime.datetime | None = None) -> int:
        """Seal all collections of the wall clock that are behind a time (default: now), except views; return the time.

        Up to 4,096 collections are sealed in one commit. Collections that are sealed further stay unchanged.
        """
        self._committer.check_writable()
        (time_ms,) = parse_time(upper, 1) if upper is not None else (int(self._context.clock() * 1000),)
        commands = [
            (entry.id, AdvanceUpper(Frontier.at(time_ms)))
            for entry in self._catalog.read().entries.values()
            if not entry.role and entry.timeline == "clock" and self._committer.state(entry.id).arity == 1
        ]
        for start in range(0, len(commands), WRITES_MAX):
            self._committer.commit(*commands[start : start + WRITES_MAX])
        return time_ms

    def metrics(self) -> dict[str, float]:
        """Return the counters since the store was opened, and the blobs and bytes of open collections."""
        return store_metrics(self)

    def retain(self, duration: RetentionLike) -> None:
        """Set how long collections without a policy of their own keep history; None: for ever.

        Collections with `timeline="counter"` or several coordinates keep all of it: their times have no age.
        """
        self._committer.check_writable()
        self._catalog.change(partial(with_default_retention, policy_of_store(duration)))
        self._sync_names(self._catalog.read())

    def forget_within(self, duration: DurationLike | None) -> None:
        """Set the deadline for forgetting expired history, for collections that have no deadline of their own.

        None: as the configuration says.
        """
        self._change_deadline(None, duration)

    # The end.

    def close(self, timeout: float = CLOSE_S) -> None:
        """Stop the threads of the store, return its leases and close its ports. Twice is fine.

        A full disk is no error here: leases are returned with the reserved space. If that is used up, or storage is
        unavailable, they expire like those of a killed process.
        Raise Determinate, with the name of what still runs, after `timeout` seconds: call `close` again to go on.
        In a forked child nothing happens: the store belongs to the parent.
        """
        if not self._committer.is_own:
            return
        with self._closing.within(timeout):
            if not self._closed:
                try:
                    end_background(self._context, self._maintenance, self._heartbeat_thread, self._upkeep, timeout)
                finally:
                    self._merge_process.close()  # also if its merge is what takes too long
                self._pool.shutdown(limit_s=timeout)
                try:
                    self._driver.close()
                except Exception:
                    self._closed = True  # every port got its call
                    raise
                self._closed = True

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<store {self.location}>"

    # Inside.

    def _make_engine(
        self, blob: Blob, config: Config, monotonic: Callable[[], float], sleep: Callable[[float], None]
    ) -> Engine:
        """Make the engine that does the merges of this process."""
        return Engine(
            blob,
            self._schemas,
            config,
            fresh=fresh_id,
            cache=self._cache,
            pool=self._pool,
            counters_of=lambda collection: self._context.counters_of(collection),
            monotonic=monotonic,
            sleep=sleep,
        )

    def _set_retention(self, name: str, retain_ms: int | None) -> None:
        """Change how long a collection keeps history: see `timespine.client.catalog.retention.policy_of`."""
        self._committer.check_writable()
        # An open handle knows its collection by id, also after another process renamed it.
        opened = next((handle for handle in self._handles.all() if handle.name == name), None)
        id = opened.id if opened is not None else self._catalog.find(name).id
        change_policy(self._catalog, id, self._committer.state(id).arity, retain_ms)
        self._sync_names(self._catalog.read())

    def _change_deadline(self, id: str | None, duration: DurationLike | None) -> None:
        """Set the deadline for forgetting expired history: of a collection, or the default of the store."""
        self._committer.check_writable()
        change_deadline(self._catalog, id, duration)
        self._sync_names(self._catalog.read())

    def _retention(self, handle: CollectionHandle) -> Retention:
        """Return how long a collection keeps history, as the newest catalog says."""
        self._committer.check_open()
        return retention_of(self._catalog.read(), handle.entry, handle.known().arity)

    def _compact(self, id: str) -> None:
        """Merge a collection into one run."""
        self._committer.check_writable()
        handle = self._handles.get(id)
        if handle is None:
            raise ClosedError(f"collection {self._handles.name_of(id)} was dropped")
        self._maintenance.compact(handle)

    def _collection(self, name: str, entry: CatalogEntry) -> Collection:
        self._committer.check_open()
        return Collection(self._handles.open(self._context, name, entry), self)

    def _check_replaceable(self, name: str, role: str = "") -> None:
        """Raise CollectionInUse if a collection has a critical hold, which no process could release later."""
        known = self._catalog.read().entries.get(check_collection_name(name))
        if known is not None:
            check_role(name, known, role)
            self._drop_service.check_unheld(name, known.id, Hint("release-or-drop", {"name": name}))

    def _sync_names(self, names: Names) -> None:
        """Apply changes that other processes made to open collections: names, and how long they keep history."""
        self._context.retain_ms, self._context.forget_within_ms = names.retain_ms, names.forget_within_ms
        self._context.keep_deleted_ms = names.keep_deleted_ms or 0
        for name, entry in names.entries.items():
            if entry.id in self._handles:
                self._collection(name, entry)

    def _others(self) -> list[CollectionHandle]:
        """List handles of collections that are not open here, for maintenance. Purges dropped ones first."""
        names = self._catalog.read()
        self._sync_names(names)
        if names.dropped or names.reserved or names.cancelled or names.purged:
            self._purge_dropped()
        closed = ((name, entry) for name, entry in names.entries.items() if entry.id not in self._handles)
        return [CollectionHandle(self._context, name, entry) for name, entry in closed]

    def _schemas(self, collection: str) -> list[Schema]:
        return [decode_schema(data) for data in self._upkeep.known(collection).schemas]

    def _merge(self, effect: MergeRuns) -> Protocol[Output]:
        yield from ()  # the engine waits for storage itself, and needs no effect of a protocol
        return perform_merge(self._engine, self._context, self._maintenance, effect)

    def _on_commit(self, collections: set[str]) -> None:
        self._maintenance.wake(collections)
        self._context.committed.ring()
        for handle in filter(None, map(self._handles.get, collections)):
            self._maintenance.bound(handle)

    def _purge_dropped(self, *, at_once: bool = False) -> int:
        """Delete the blobs of dropped collections that no lease holds, and of reservations; return how many."""
        context, drops = self._context, self._drop_service
        swept = drops.sweep_cancelled(context.blob, self._maintenance.report, at_once=at_once)
        purged, gone = drops.purge(self._maintenance, lambda id: CollectionHandle(context, id, CatalogEntry(id)))
        self._handles.forget(purged)
        for each in (self._committer, self._upkeep):
            each.forget(purged)
        return gone + swept
