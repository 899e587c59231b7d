"""A cut of the past: the catalog and all collections as of an earlier commit, from logs and rollups that are kept.

The logs say when each commit was made, by the clock of its process. A log is read up to the last commit that is not
later than the wanted time. Clocks differ, so this alone could tear a transaction: then the commits of its collections
on both sides of the cut have the same group number of the same committer, and the cut moves before all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from timespine.client.backup.store_cut import StoreCut
from timespine.client.catalog.catalog import Names, decode_catalog
from timespine.client.catalog.catalog_log import scan_catalog
from timespine.client.store import Store
from timespine.core.effects import GetBlob, Protocol, Scan
from timespine.core.encoding.codec import decode_diff, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.protocols.load_state import Entries, load_state, replay
from timespine.core.protocols.session import Session, retry
from timespine.core.state import Committer, Rollup, State
from timespine.errors import UsageError

GroupId = tuple[str, int]
"""A committer and the number of a group."""


@dataclass(frozen=True, slots=True)
class PastCommit:
    """One commit of a collection."""

    seqno: int
    """The state that it led to."""
    at_ms: int
    """When it was made; never before the commit that it follows."""
    groups: frozenset[GroupId]
    """The groups that it was the first to record."""


@dataclass(frozen=True, slots=True)
class PastLog:
    """The commits of a collection that its log still has."""

    entries: Entries
    """The entries of the log."""
    rollups: dict[int, Rollup]
    """The rollups that the newest state lists."""
    commits: tuple[PastCommit, ...]
    """The commits, oldest first. The first may be the state that a rollup holds: then it is as old as the rollup."""


@dataclass(slots=True)
class PastStore:
    """What the logs of a store still know."""

    catalogs: list[Names]
    """The entries of the catalog, oldest first."""
    logs: dict[str, PastLog]
    """The logs of all collections that these name, by id."""

    def cut_at(self, at_ms: int, exact: tuple[str, int] | None = None) -> tuple[Names, dict[str, int]]:
        """Return the catalog as of a time, and the number of the state of each collection in it.

        `exact` names a collection and the state that it must have.
        """
        names = self._catalog_at(at_ms)
        while True:
            chosen = self._states_at(names, at_ms, exact)
            moved = self._without_torn(chosen, self._dropped_before(names, at_ms))
            if isinstance(moved, str):
                names = self._before_creation(names, moved)
            elif exact is not None and moved[exact[0]] != exact[1]:
                raise UsageError(
                    f"the clocks of processes differ so much that commit {exact[1]} cannot be told from later ones"
                )
            else:
                return names, moved

    def _states_at(self, names: Names, at_ms: int, exact: tuple[str, int] | None) -> dict[str, int]:
        """Return the last state, as of a time, of each collection of a catalog."""
        ids = [entry.id for entry in names.entries.values()]
        last = {id: _last_before(self.logs[id], at_ms) if id in self.logs else None for id in ids}
        if exact is not None:
            last[exact[0]] = exact[1]
        chosen = {id: seqno for id, seqno in last.items() if seqno is not None}
        if lost := [id for id in ids if id not in chosen]:
            raise UsageError(f"that commit is older than the oldest commit that the log of {lost[0]} keeps")
        return chosen

    def _before_creation(self, names: Names, id: str) -> Names:
        """Return the catalog before the transaction that created a collection, if its log begins with that.

        SUBTLE: such a transaction writes the catalog too, by another look at the clock. A time between the two would
        tear it (test_restore.py).
        """
        if self.logs[id].commits[0].seqno == 0:
            for earlier, each in pairwise(self.catalogs[: self.catalogs.index(names) + 1]):
                if any(entry.id == id for entry in each.entries.values()):
                    return earlier
        raise UsageError(f"that commit is older than the oldest commit that the log of {id} keeps")

    def _catalog_at(self, at_ms: int) -> Names:
        found: Names | None = None
        latest = 0
        for names in self.catalogs:
            latest = max(latest, names.changed_ms)
            if latest <= at_ms:
                found = names
        if found is None:
            raise UsageError("that commit is older than the oldest commit that the catalog keeps")
        return found

    def _dropped_before(self, names: Names, at_ms: int) -> dict[str, int]:
        """Return the last state, as of a time, of each collection that was dropped before a catalog.

        SUBTLE: its commits are before the cut, though it is not in it. Without them a transaction over it and another
        collection would look torn, and the cut of the other one would move back (test_restore.py).
        """
        earlier = self.catalogs[: self.catalogs.index(names)]
        ids = {entry.id for each in earlier for entry in each.entries.values()}
        ids -= {entry.id for entry in names.entries.values()}
        last = {id: _last_before(self.logs[id], at_ms) for id in ids if id in self.logs}
        return {id: seqno for id, seqno in last.items() if seqno is not None}

    def _without_torn(self, chosen: Mapping[str, int], dropped: Mapping[str, int]) -> dict[str, int] | str:
        """Move the cut of collections back until no group is in one of them and not in another.

        Return the id of a collection whose log begins later than that, if there is one.
        """
        moved = dict(chosen)
        while True:
            cut = {**dropped, **moved}
            after = {
                group
                for id, log in self.logs.items()
                for commit in log.commits
                if commit.seqno > cut.get(id, -1)
                for group in commit.groups
            }
            torn = {
                id: min(commit.seqno for commit in self.logs[id].commits if _is_torn(commit, seqno, after)) - 1
                for id, seqno in moved.items()
                if any(_is_torn(commit, seqno, after) for commit in self.logs[id].commits)
            }
            if not torn:
                return moved
            for id, seqno in torn.items():
                if seqno < self.logs[id].commits[0].seqno:
                    return id
                moved[id] = seqno


def _is_torn(commit: PastCommit, last: int, after: set[GroupId]) -> bool:
    return commit.seqno <= last and not commit.groups.isdisjoint(after)


def _last_before(log: PastLog, at_ms: int) -> int | None:
    """Return the newest state of a log as of a time; None if the log begins later."""
    found = [commit.seqno for commit in log.commits if commit.at_ms <= at_ms]
    return max(found, default=None)


def read_past(store: Store) -> PastStore:
    """Read all logs of a store."""
    committer = store._committer
    session = Session("k", "w", committer.config)
    entries = committer.driver.run(scan_catalog(session))
    catalogs = [decode_catalog(*entry) for entry in entries]
    ids = {entry.id for names in catalogs for entry in names.entries.values()}
    placed = {(id, seqno): names.changed_ms for names in catalogs for id, seqno in names.placed.items()}
    logs = {id: committer.driver.run(_read_log(session, id, placed)) for id in sorted(ids)}
    return PastStore(catalogs, {id: log for id, log in logs.items() if log is not None})


def _read_log(session: Session, id: str, placed: Mapping[tuple[str, int], int]) -> Protocol[PastLog | None]:
    state = yield from load_state(session, id)
    if state is None:
        return None  # it was purged
    entries: Entries = yield from retry(session, Scan(id, 0))
    commits: list[PastCommit] = []
    first = entries[0][0] - 1
    if first in state.rollups and envelope_kind(entries[0][1]) is EnvelopeKind.DIFF:
        commits.append(PastCommit(first, state.rollups[first].added_ms or 0, frozenset()))
    at_ms = 0
    known: set[GroupId] = set()
    for seqno, data in entries:
        if envelope_kind(data) is EnvelopeKind.STATE:
            at_ms = max(at_ms, placed.get((id, seqno), 0))
            groups = _groups(decode_state(data).committers.items())
        else:
            change = decode_diff(data)
            at_ms = max(at_ms, change.k or 0)
            groups = _groups(change.c.items())
        commits.append(PastCommit(seqno, at_ms, frozenset(groups - known)))
        known |= groups
    return PastLog(entries, state.rollups, tuple(commits))


def _groups(committers: Iterable[tuple[str, Committer | None]]) -> set[GroupId]:
    return {(id, committer.group) for id, committer in committers if committer is not None and committer.group}


def build_cut(store: Store, past: PastStore, names: Names, seqnos: Mapping[str, int], at_ms: int) -> StoreCut:
    """Build the states of a cut from rollups and entries."""
    committer = store._committer
    session = Session("k", "w", committer.config)
    states = {
        id: committer.driver.run(partial(_build, log=past.logs[id], seqno=seqno)(session))
        for id, seqno in seqnos.items()
    }
    return StoreCut(names, states, at_ms)


def _build(session: Session, log: PastLog, seqno: int) -> Protocol[State]:
    """Build a state from the newest whole one at or before it."""
    whole = [number for number, data in log.entries if envelope_kind(data) is EnvelopeKind.STATE and number <= seqno]
    rollups = [number for number in log.rollups if number <= seqno and number >= log.entries[0][0] - 1]
    base = max([*whole, *rollups], default=None)
    if base is None:
        raise UsageError("the state of that commit cannot be read: no rollup of that time is left")
    if base in whole:
        data: bytes | None = next(data for number, data in log.entries if number == base)
    else:
        data = yield from retry(session, GetBlob(log.rollups[base].key))
    if data is None:
        raise UsageError("the state of that commit cannot be read: the rollup of that time was deleted meanwhile")
    return replay(decode_state(data), [entry for entry in log.entries if base < entry[0] <= seqno])
