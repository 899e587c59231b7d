"""All or nothing: one compare-and-set commits the parts of a group, in all collections or in none.

Every commit carries the number of its group, so the world can tell which entries of which logs are one group. A process
announces here what its next group means to do. Then no state, of any collection, has only a part of it: not for a
reader, not after a crash, and not when a late write happens long after its caller is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.model.frontier import Frontier
from timespine.model.oracle import Update

GroupKey = tuple[str, int]
"""A group: its committer, and its number."""


@dataclass(frozen=True, slots=True)
class AtomicCommit:
    """The intended effects of one transaction."""

    operation: str
    rows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per collection: rows that are in it afterwards, and were not before."""
    uppers: Mapping[str, Frontier] = field(default_factory=dict)
    """Per collection: an upper that it has afterwards, or a later one."""
    retained: Mapping[str, Frontier] = field(default_factory=dict)
    """Per collection: the least retention afterwards."""
    reads: Mapping[str, Frontier] = field(default_factory=dict)
    """Per collection: an upper that it must have had right before."""
    alone: bool = True
    """Whether it is the only one of its group: then the group is there only if all of it is."""


class AtomicityCheck:
    """The groups, the collections that they changed, and the check that each of them is whole."""

    def __init__(
        self,
        states: Mapping[str, list[State]],
        truth: Mapping[str, list[Update]],
        violate: Callable[[str], None],
    ) -> None:
        self.states = states
        self.truth = truth
        self.violate = violate
        self.groups: dict[GroupKey, dict[str, int]] = {}
        """Per group: the collections that it changed, and the number of the state that it led to."""
        self.wholes: dict[GroupKey, tuple[AtomicCommit, ...]] = {}
        """Per group: the intended effects of its transactions, if its process announced them."""
        self.owned: set[str] = set()
        """The operations whose rows come with an announced group."""
        self.fresh: set[str] = set()
        """The operations whose rows the present compare-and-set brings."""
        self.closed: set[str] = set()
        """Committers that have given up: no group of them may come later."""

    @contextmanager
    def expected(self, session: Session, *wholes: AtomicCommit) -> Iterator[GroupKey]:
        """Announce the next group that a session commits, for as long as it tries to."""
        key = (session.committer, session.group + 1)
        self.wholes[key] = wholes
        self.owned.update(whole.operation for whole in wholes if whole.rows)
        try:
            yield key
        finally:
            if session.group < key[1]:
                del self.wholes[key]  # no such group was committed: the number is free for another one

    def committed(self, collections: Iterable[str]) -> None:
        """Check the groups of a compare-and-set that has changed these collections."""
        found: dict[GroupKey, dict[str, int]] = {}
        for name in collections:
            for key in self._recorded(name):
                found.setdefault(key, {})[name] = self.states[name][-1].seqno
        for key, where in found.items():
            if key in self.groups:
                self.violate(f"group {key} was committed in pieces: {where} after {self.groups[key]}")
            if key[0] in self.closed:
                self.violate(f"group {key} was committed after its committer had given up")
            self.groups[key] = where
            for whole in self.wholes.get(key, ()):
                self._check(whole, where)
        whose = {whole.operation for key in found for whole in self.wholes.get(key, ())}
        astray = (self.fresh & self.owned) - whose
        if astray:
            self.violate(f"rows of {sorted(astray)} came without the group that they belong to")
        self.fresh.clear()

    def _recorded(self, name: str) -> Iterator[GroupKey]:
        """Yield the groups that the newest state of a collection has recorded and the one before has not."""
        states = self.states[name]
        before = states[-2].committers if len(states) > 1 else {}
        for id, committer in states[-1].committers.items():
            if id in before and before[id].group != committer.group:
                yield id, committer.group

    def _check(self, whole: AtomicCommit, where: Mapping[str, int]) -> None:
        """Check that all of a transaction is there, or nothing."""
        there = {name: {row for row, _, diff in self.truth[name] if diff > 0} for name in whole.rows}
        if not whole.alone and not any(there[name] & rows for name, rows in whole.rows.items()):
            return
        missing = [f"rows in {name}" for name, rows in whole.rows.items() if not rows <= there[name]]
        heads = {name: self.states[name][-1] for name in (*whole.uppers, *whole.retained)}
        missing += [f"the seal of {name}" for name, upper in whole.uppers.items() if not upper <= heads[name].upper]
        missing += [
            f"the retention of {name}" for name, since in whole.retained.items() if not since <= heads[name].retention
        ]
        if missing:
            self.violate(f"{whole.operation} was committed without {', '.join(missing)}")
        for name, expected in whole.reads.items():
            states = self.states[name]
            before = states[where[name] - 1] if name in where else states[-1]
            if before.upper != expected:
                self.violate(f"{whole.operation} relied on upper {expected} of {name}, which was at {before.upper}")

    def check_judged(self, key: GroupKey, seqnos: Iterable[tuple[str, int]], who: str) -> None:
        """Check that a refusal names the state that refused it: the one before its group, if the group changed
        anything."""
        where = self.groups.get(key, {})
        wrong = [(name, seqno) for name, seqno in seqnos if name in where and where[name] != seqno + 1]
        if wrong:
            self.violate(f"{who} says that it was judged by {wrong}, and its group is at {where}")
