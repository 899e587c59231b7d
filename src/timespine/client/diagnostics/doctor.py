"""The doctor: reads everything that the newest states can reach, and reports damage.

It builds the state of every collection from storage alone, as a new process would do.
Then it compares every part with its hashes to the last byte, and decodes inline data,
hollow runs and rollups. It changes nothing, and takes no lease. So it reports a missing
blob only if the newest state still refers to it after all others were read: a blob that
garbage collection deleted in between is no damage.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from timespine.client.arguments.argument_types import Progress
from timespine.client.inner_handles import CollectionHandle
from timespine.client.store import Store
from timespine.columnar.parts.inline_part import decode_inline
from timespine.columnar.parts.part_list_tree import read_run
from timespine.columnar.parts.part_reader import MissingBlob, open_part
from timespine.columnar.scan.verify_past_run import check_past_run
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import Part
from timespine.core.encoding.codec import decode_state
from timespine.core.protocols.load_state import load_state
from timespine.core.protocols.session import Session
from timespine.core.state import Rollup, State
from timespine.errors import CorruptionError, TimespineError, Unavailable, VersionError
from timespine.ids import parse_blob_key

ROLLUP = "s"
"""The prefix of the names of rollups."""


class FindingKind(enum.StrEnum):
    """The kind of a damage, by its remedy."""

    MISSING = "missing"
    """A blob does not exist: restore it from a copy of the store."""
    DAMAGED = "damaged"
    """Bytes differ from those that were written: restore them from a copy of the store."""
    UNREADABLE = "unreadable"
    """Storage failed to return the bytes: check the disk."""
    NEWER = "newer"
    """Written by a newer version: upgrade."""
    FOREIGN = "foreign"
    """A link that is no part of the store, and is never followed: check it, and remove it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage that `examine` found."""

    collection: str
    """The name of the collection; empty for the catalog of the store."""
    kind: FindingKind
    """The kind of the damage."""
    what: str
    """The damaged thing: catalog, log, part, inline part, hollow run, rollup, folder."""
    key: str
    """The key of the blob; empty if it is none."""
    message: str
    """The details, for people."""


@dataclass(slots=True)
class HealthReport:
    """The result of `examine`: counts of what was read, and the damages."""

    collections: int = 0
    """Collections that were examined."""
    parts: int = 0
    """Blobs with rows that were read."""
    inline: int = 0
    """Inline parts that were read."""
    runs: int = 0
    """Hollow runs that were read."""
    rollups: int = 0
    """Rollups that were looked at."""
    bytes: int = 0
    """Bytes that were compared or decoded."""
    findings: list[Finding] = field(default_factory=list)
    """The damages."""

    @property
    def is_sound(self) -> bool:
        """Whether there is no damage."""
        return not self.findings


def examine(store: Store, *names: str, progress: Progress | None = None) -> HealthReport:
    """Examine some collections, or all of them."""
    report = HealthReport()
    try:
        handles = [store.collection(name)._handle for name in names or store.names(hidden=True)]
    except (CorruptionError, VersionError) as error:
        report.findings.append(Finding("", _kind(error), "catalog", "", str(error)))
        return report
    if not names:
        report.findings.extend(_lost_catalog(store))
        report.findings.extend(_links(store))
    for handle in handles:
        _Examination(handle, report, progress or _quiet).run(is_there=lambda name: name in store)
        report.collections += 1
    return report


def _lost_catalog(store: Store) -> Iterator[Finding]:
    """Find a lost catalog: there are blobs, and a catalog listed the collection of every blob before it was put."""
    if store._catalog.read().seqno is not None:
        return
    some = next(iter(store._context.blob.list_keys()), None)
    if some is not None and store._catalog.read().seqno is None:  # another process may just have created it
        message = f"there is no catalog, and there are blobs, such as {some.key}: the log lost it"
        yield Finding("", FindingKind.DAMAGED, "catalog", some.key, message)


def _links(store: Store) -> Iterator[Finding]:
    """Find links among the blobs, if these are in a folder."""
    links: Callable[[], list[str]] | None = getattr(store._context.blob, "links", None)
    for path in links() if links is not None else ():
        yield Finding(
            "", FindingKind.FOREIGN, "link", "", f"{path} is a link: nothing inside of a store may be one; remove it"
        )


class _Examination:
    """The examination of one collection."""

    def __init__(self, handle: CollectionHandle, report: HealthReport, progress: Progress) -> None:
        self._handle = handle
        self._blob = handle.context.blob
        self._report = report
        self._progress = progress
        self._sizes: dict[str, int] = {}
        self._seen: set[str] = set()
        self._missing: list[Finding] = []
        self._total = report.bytes

    def run(self, is_there: Callable[[str], bool]) -> None:
        """Build the state, then examine all that it refers to."""
        state = self._state(is_there)
        if state is None:
            return
        self._total += sum(part.size for part in state.parts()) + sum(each.size for each in state.rollups.values())
        self._list_sizes()
        self._rollups_ahead(state, is_there)
        before = len(self._report.findings) + len(self._missing)
        for schema, part in state.parts_with_schemas():
            self._part(state, schema, part)
        if len(self._report.findings) + len(self._missing) == before:
            self._past_runs(state)
        for seqno, rollup in state.rollups.items():
            self._look("rollup", rollup.key, rollup.size, partial(self._rollup, seqno, rollup))
            self._report.rollups += 1
        self._settle_missing(is_there)

    def _state(self, is_there: Callable[[str], bool]) -> State | None:
        """Build the newest state from storage alone; return None, with a finding, if that fails."""
        handle = self._handle
        try:
            state = handle.committer.driver.run(load_state(Session("k", "w", handle.config), handle.id))
            if state is None and is_there(handle.name):
                raise CorruptionError(f"collection {handle.name} is in the catalog and has no log")
            return state
        except (CorruptionError, VersionError, Unavailable) as error:
            self._found("log", "", error)
            return None

    def _list_sizes(self) -> None:
        try:
            self._sizes = {info.key: info.size for info in self._blob.list_keys(f"{self._handle.id}/")}
        except (CorruptionError, Unavailable) as error:
            self._found("folder", "", error)

    def _rollups_ahead(self, state: State, is_there: Callable[[str], bool]) -> None:
        """Find rollups of states after the end of the log: the log had them, since a rollup is of a stored state."""
        known = {rollup.key for rollup in state.rollups.values()}
        others = [key for key in self._sizes if parse_blob_key(key).name.startswith(ROLLUP) and key not in known]
        ahead: dict[str, int] = {}
        for key in others:
            with contextlib.suppress(TimespineError):  # nothing refers to it, so it cannot be damage
                data = self._blob.get(key)
                rolled = decode_state(data) if data is not None else state
                if rolled.seqno > state.seqno:
                    ahead[key] = rolled.seqno
        newest = self._state(is_there) if ahead else None  # other processes may have committed in between
        for key, seqno in ahead.items():
            if newest is not None and newest.seqno < seqno:
                lost = f"the log ends at {newest.seqno}, and was at {seqno} when rollup {key} was made: it lost entries"
                self._found("log", key, CorruptionError(lost))

    def _part(self, state: State, schema: int | None, part: Part) -> None:
        """Examine one part, and its children. Each blob once, however many references it has."""
        if part.inline is not None:
            self._report.inline += 1
            self._look("inline part", "", part.size, partial(self._inline, state, schema, part))
            return
        if part.key in self._seen:
            return
        self._seen.add(part.key)
        if not part.hollow:
            self._report.parts += 1
            self._look("part", part.key, part.size, partial(self._verify, state, schema, part))
            return
        self._report.runs += 1
        children: list[Part] = []
        self._look("hollow run", part.key, part.size, lambda: children.extend(self._children(part)))
        self._total += sum(child.size for child in children)
        for child in children:
            self._part(state, schema, child)

    def _past_runs(self, state: State) -> None:
        """Check that the rows of past runs add up to zero, once their parts are known to be sound."""
        parts = self._handle.parts(state)
        for run in (run for batch in state.hollow_batches() for run in batch.runs if run.zero_from is not None):
            self._look("past run", "", 0, partial(check_past_run, parts, run))

    def _look(self, what: str, key: str, size: int, look: Callable[[], None]) -> None:
        """Run one check; turn any error into a finding."""
        try:
            look()
            there = self._sizes.get(key, size)
            if there != size:
                raise CorruptionError(f"{what} {key} has {there} bytes, not {size}")
        except MissingBlob as missing:
            self._missing.append(Finding(self._handle.name, FindingKind.MISSING, what, key, str(missing)))
        except TimespineError as error:
            self._found(what, key, error)
        self._report.bytes += size
        self._progress(self._report.bytes, max(self._total, self._report.bytes))

    def _inline(self, state: State, schema: int | None, part: Part) -> None:
        assert part.inline is not None
        _, known = self._schema(state, schema)
        decode_inline(part.inline, known, part.rows, self._handle.config)

    def _verify(self, state: State, schema: int | None, part: Part) -> None:
        id, known = self._schema(state, schema)
        fetch = partial(self._blob.get_range, part.key)
        open_part(part, self._handle.id, known, id, fetch, self._handle.config).verify()

    def _children(self, part: Part) -> tuple[Part, ...]:
        children = read_run(part, self._blob)
        if children is None:
            raise MissingBlob(part.key)
        return children

    def _rollup(self, seqno: int, rollup: Rollup) -> None:
        data = self._blob.get(rollup.key)
        if data is None:
            raise MissingBlob(rollup.key)
        if len(data) != rollup.size:
            raise CorruptionError(f"rollup {rollup.key} has {len(data)} bytes, not {rollup.size}")
        state = decode_state(data)
        if (state.collection, state.seqno) != (self._handle.id, seqno):
            raise CorruptionError(f"rollup {rollup.key} is of {state.collection} at {state.seqno}, not at {seqno}")

    def _schema(self, state: State, schema: int | None) -> tuple[int, Schema]:
        if schema is None:
            raise CorruptionError(f"a run of {self._handle.name} names no schema")
        return schema, self._handle.parts(state).schema_of(schema)

    def _settle_missing(self, is_there: Callable[[str], bool]) -> None:
        """Report missing blobs to which the newest state still refers."""
        if not self._missing:
            return
        state = self._state(is_there)
        wanted = set(self._reachable(state)) if state is not None else set()
        self._report.findings.extend(each for each in self._missing if each.key in wanted)

    def _reachable(self, state: State) -> Iterator[str]:
        """List all blobs that a state can reach, as far as its hollow runs can be read."""
        yield from (rollup.key for rollup in state.rollups.values())
        waiting = list(state.parts())
        seen: set[str] = set()
        while waiting:
            part = waiting.pop()
            if not part.key or part.key in seen:
                continue
            seen.add(part.key)
            yield part.key
            if part.hollow:
                try:
                    waiting.extend(read_run(part, self._blob) or ())
                except TimespineError:
                    continue  # it is a finding already

    def _found(self, what: str, key: str, error: TimespineError) -> None:
        self._report.findings.append(Finding(self._handle.name, _kind(error), what, key, str(error)))


def _kind(error: TimespineError) -> FindingKind:
    if isinstance(error, VersionError):
        return FindingKind.NEWER
    if isinstance(error, Unavailable):
        return FindingKind.UNREADABLE
    return FindingKind.DAMAGED  # a UsageError too: storage refuses no key or range that this library wrote


def _quiet(done: int, total: int) -> None:
    return None


__all__ = ["Finding", "FindingKind", "HealthReport", "examine"]
