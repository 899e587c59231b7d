"""The doctor: looks at everything that the newest states can reach, and says what is not as it was written.

For every collection the state is built from storage alone, as a new process would
do it. Then every part is compared with its hashes to the last byte, inline data,
hollow runs and rollups are decoded. Nothing is changed, and no lease is taken. So
a blob that is missing is only reported if the newest state still wants it after
all others were looked at: what garbage collection took meanwhile is no damage.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from timespine.client.context import Access
from timespine.client.store import Store
from timespine.columnar.parts.hollow_run import read_run
from timespine.columnar.parts.inline import decode_inline
from timespine.columnar.parts.part_reader import MissingBlob, open_part
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import Part
from timespine.core.encoding.codec import decode_state
from timespine.core.protocols.load_state import load
from timespine.core.protocols.session import Session
from timespine.core.state import Rollup, State
from timespine.errors import CorruptionError, TimespineError, Unavailable, VersionError
from timespine.ids import parse_blob_key

ROLLUP = "s"
"""What the names of rollups begin with."""

Progress = Callable[[int, int], None]
"""Called with the bytes looked at so far, and the bytes that there are as far as is known."""


class Kind(enum.StrEnum):
    """What is wrong, by what to do about it."""

    MISSING = "missing"
    """A blob is not there: bring it back from a copy of the store."""
    DAMAGED = "damaged"
    """Bytes are not what was written: the same."""
    UNREADABLE = "unreadable"
    """Storage did not give the bytes: look at the disk."""
    NEWER = "newer"
    """Written by a newer version: upgrade."""
    FOREIGN = "foreign"
    """A link that is no part of the store, and is never followed: look at it, and remove it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage that `examine` found."""

    collection: str
    """The name of the collection; empty for the catalog of the store."""
    kind: Kind
    """What is wrong."""
    what: str
    """What it is wrong with: catalog, log, part, inline part, hollow run, rollup, folder."""
    key: str
    """The blob; empty if it is none."""
    message: str
    """The details, in words."""


@dataclass(slots=True)
class HealthReport:
    """The result of `examine`: what was read, and what is damaged."""

    collections: int = 0
    parts: int = 0
    """Blobs with rows."""
    inline: int = 0
    """Parts inside of states."""
    runs: int = 0
    """Hollow runs."""
    rollups: int = 0
    bytes: int = 0
    """Bytes of all of them that were compared or decoded."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether everything is as it was written."""
        return not self.findings


def examine(store: Store, *names: str, progress: Progress | None = None) -> HealthReport:
    """Look at some collections, or at all of them."""
    report = HealthReport()
    try:
        accesses = [store.collection(name)._access for name in names or store.names()]
    except (CorruptionError, VersionError) as error:
        report.findings.append(Finding("", _kind(error), "catalog", "", str(error)))
        return report
    if not names:
        report.findings.extend(_lost_catalog(store))
        report.findings.extend(_links(store))
    for access in accesses:
        _Examination(access, report, progress or _quiet).run(is_there=lambda name: name in store)
        report.collections += 1
    return report


def _lost_catalog(store: Store) -> Iterator[Finding]:
    """There is no catalog, and there are blobs: every blob is of a collection that a catalog announced before."""
    if store._catalog.read().seqno is not None:
        return
    some = next(iter(store._shared.blob.list_keys()), None)
    if some is not None and store._catalog.read().seqno is None:  # another process may have created it meanwhile
        message = f"there is no catalog, and there are blobs, such as {some.key}: the log lost it"
        yield Finding("", Kind.DAMAGED, "catalog", some.key, message)


def _links(store: Store) -> Iterator[Finding]:
    """Links among the blobs, where these are in a folder."""
    links: Callable[[], list[str]] | None = getattr(store._shared.blob, "links", None)
    for path in links() if links is not None else ():
        yield Finding(
            "", Kind.FOREIGN, "link", "", f"{path} is a link: nothing inside of a store may be one; remove it"
        )


class _Examination:
    """Looks at one collection."""

    def __init__(self, access: Access, report: HealthReport, progress: Progress) -> None:
        self._access = access
        self._blob = access.shared.blob
        self._report = report
        self._progress = progress
        self._sizes: dict[str, int] = {}
        self._seen: set[str] = set()
        self._missing: list[Finding] = []
        self._total = report.bytes

    def run(self, is_there: Callable[[str], bool]) -> None:
        """Build the state, then walk over all that it refers to."""
        state = self._state(is_there)
        if state is None:
            return
        self._total += sum(part.size for part in state.parts()) + sum(each.size for each in state.rollups.values())
        self._list_sizes()
        self._rollups_ahead(state, is_there)
        for schema, part in _references(state):
            self._part(state, schema, part)
        for seqno, rollup in state.rollups.items():
            self._look("rollup", rollup.key, rollup.size, partial(self._rollup, seqno, rollup))
            self._report.rollups += 1
        self._settle_missing(is_there)

    def _state(self, is_there: Callable[[str], bool]) -> State | None:
        """The newest state, from storage alone; None, and a finding, if it cannot be built."""
        access = self._access
        try:
            state = access.committer.driver.run(load(Session("k", "w", access.config), access.id))
            if state is None and is_there(access.name):
                raise CorruptionError(f"collection {access.name} is in the catalog and has no log")
            return state
        except (CorruptionError, VersionError, Unavailable) as error:
            self._found("log", "", error)
            return None

    def _list_sizes(self) -> None:
        try:
            self._sizes = {info.key: info.size for info in self._blob.list_keys(f"{self._access.id}/")}
        except (CorruptionError, Unavailable) as error:
            self._found("folder", "", error)

    def _rollups_ahead(self, state: State, is_there: Callable[[str], bool]) -> None:
        """Find rollups of states that the log does not reach: it had them once, since a rollup is of a stored state."""
        known = {rollup.key for rollup in state.rollups.values()}
        others = [key for key in self._sizes if parse_blob_key(key).name.startswith(ROLLUP) and key not in known]
        ahead: dict[str, int] = {}
        for key in others:
            with contextlib.suppress(TimespineError):  # nothing refers to it, so damage to it is none
                data = self._blob.get(key)
                rolled = decode_state(data) if data is not None else state
                if rolled.seqno > state.seqno:
                    ahead[key] = rolled.seqno
        newest = self._state(is_there) if ahead else None  # others may have committed meanwhile
        for key, seqno in ahead.items():
            if newest is not None and newest.seqno < seqno:
                lost = f"the log ends at {newest.seqno}, and was at {seqno} when rollup {key} was made: it lost entries"
                self._found("log", key, CorruptionError(lost))

    def _part(self, state: State, schema: int | None, part: Part) -> None:
        """One part, and what is inside of it. Each blob once, however often it is referred to."""
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

    def _look(self, what: str, key: str, size: int, look: Callable[[], None]) -> None:
        """Do one look; whatever it raises is a finding."""
        try:
            look()
            there = self._sizes.get(key, size)
            if there != size:
                raise CorruptionError(f"{what} {key} has {there} bytes, not {size}")
        except MissingBlob as missing:
            self._missing.append(Finding(self._access.name, Kind.MISSING, what, key, str(missing)))
        except TimespineError as error:
            self._found(what, key, error)
        self._report.bytes += size
        self._progress(self._report.bytes, max(self._total, self._report.bytes))

    def _inline(self, state: State, schema: int | None, part: Part) -> None:
        assert part.inline is not None
        _, known = self._schema(state, schema)
        decode_inline(part.inline, known, part.rows, self._access.config)

    def _verify(self, state: State, schema: int | None, part: Part) -> None:
        id, known = self._schema(state, schema)
        fetch = partial(self._blob.get_range, part.key)
        open_part(part, self._access.id, known, id, fetch, self._access.config).verify()

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
        if (state.collection, state.seqno) != (self._access.id, seqno):
            raise CorruptionError(f"rollup {rollup.key} is of {state.collection} at {state.seqno}, not at {seqno}")

    def _schema(self, state: State, schema: int | None) -> tuple[int, Schema]:
        if schema is None:
            raise CorruptionError(f"a run of {self._access.name} names no schema")
        return schema, self._access.parts(state).schema_of(schema)

    def _settle_missing(self, is_there: Callable[[str], bool]) -> None:
        """Report what is missing, unless the newest state does not want it any more."""
        if not self._missing:
            return
        state = self._state(is_there)
        wanted = set(self._reachable(state)) if state is not None else set()
        self._report.findings.extend(each for each in self._missing if each.key in wanted)

    def _reachable(self, state: State) -> Iterator[str]:
        """All blobs that a state can reach, as far as its hollow runs are there."""
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
        self._report.findings.append(Finding(self._access.name, _kind(error), what, key, str(error)))


def _references(state: State) -> Iterator[tuple[int | None, Part]]:
    """Every part that a state refers to, with the schema that it was written with."""
    for batch in state.hollow_batches():
        for run in batch.runs:
            yield from ((run.schema, part) for part in run.parts)
    for unsealed in state.unsealed:
        yield from ((unsealed.schema, part) for part in unsealed.parts)


def _kind(error: TimespineError) -> Kind:
    if isinstance(error, VersionError):
        return Kind.NEWER
    if isinstance(error, Unavailable):
        return Kind.UNREADABLE
    return Kind.DAMAGED  # a UsageError too: no key or range that we wrote is refused by storage


def _quiet(done: int, total: int) -> None:
    return None


__all__ = ["Finding", "HealthReport", "Kind", "Progress", "examine"]
