"""All or nothing: what belongs together is committed by one compare-and-set, in all collections or in none.

Every commit carries the number of the group that it is of, so the world can tell
which entries of which logs are one group. Whatever a process means to do at once it
says here first. Then no state, of any collection, has a part of it: not for a reader,
not after a crash, and not when a late write happens long after its caller is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.model.frontier import Frontier
from timespine.model.oracle import Update

Key = tuple[str, int]
"""A group: its committer, and its number."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What one transaction means to do."""

    operation: str
    rows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per collection: rows that are in it afterwards, and were not before."""
    uppers: Mapping[str, Frontier] = field(default_factory=dict)
    """Per collection: an upper that it has afterwards, or a later one."""
    retained: Mapping[str, Frontier] = field(default_factory=dict)
    """Per collection: how far retention has moved afterwards, at least."""
    reads: Mapping[str, Frontier] = field(default_factory=dict)
    """Per collection: an upper that it must have had right before."""
    alone: bool = True
    """Whether it is the only one of its group: then the group is there only if all of it is."""


class Atomicity:
    """Which groups there are, where they are, and that each of them is whole."""

    def __init__(
        self,
        states: Mapping[str, list[State]],
        truth: Mapping[str, list[Update]],
        violate: Callable[[str], None],
    ) -> None:
        self.states = states
        self.truth = truth
        self.violate = violate
        self.groups: dict[Key, dict[str, int]] = {}
        """Per group: the collections that it changed, and the number of the state that it led to."""
        self.wholes: dict[Key, tuple[Whole, ...]] = {}
        """Per group: what its transactions mean to do, if somebody said so."""
        self.owned: set[str] = set()
        """The operations whose rows come with a group that somebody told of."""
        self.fresh: set[str] = set()
        """The operations whose rows the compare-and-set that is under way brings."""
        self.closed: set[str] = set()
        """Committers that have given up: nothing of them comes any more."""

    @contextmanager
    def expected(self, session: Session, *wholes: Whole) -> Iterator[Key]:
        """Tell of the next group that a session commits, for as long as it tries to."""
        key = (session.committer, session.group + 1)
        self.wholes[key] = wholes
        self.owned.update(whole.operation for whole in wholes if whole.rows)
        try:
            yield key
        finally:
            if session.group < key[1]:
                del self.wholes[key]  # it never came to that: the number is free for another group

    def committed(self, collections: Iterable[str]) -> None:
        """A compare-and-set has changed these collections: look at the groups in it."""
        found: dict[Key, dict[str, int]] = {}
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

    def _recorded(self, name: str) -> Iterator[Key]:
        """The groups that the newest state of a collection has recorded and the one before has not."""
        states = self.states[name]
        before = states[-2].committers if len(states) > 1 else {}
        for id, committer in states[-1].committers.items():
            if id in before and before[id].group != committer.group:
                yield id, committer.group

    def _check(self, whole: Whole, where: Mapping[str, int]) -> None:
        """All of a transaction is there, or nothing is."""
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

    def check_judged(self, key: Key, seqnos: Iterable[tuple[str, int]], who: str) -> None:
        """A refusal says by which state it was judged: the one before its group, if the group changed anything."""
        where = self.groups.get(key, {})
        wrong = [(name, seqno) for name, seqno in seqnos if name in where and where[name] != seqno + 1]
        if wrong:
            self.violate(f"{who} says that it was judged by {wrong}, and its group is at {where}")
