"""Users of arrangements: every read gives the collection as of a moment of the call, whatever happens meanwhile.

    rows of a read  ==  rows of the collection as of the newest complete time of some state between its begin and end

Changes of the same process go through its arrangements, and the checks of all histories are about those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from timespine.arrangement.arrangement import Arrangement, arrange
from timespine.arrangement.spine import spine as spine_module
from timespine.core.arrangement.levels import LevelRules
from timespine.errors import SinceError, UsageError
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores import history_run
from timespine.testing.stores.check_answers import Pair, last_time
from timespine.testing.stores.history_run import User
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import KEYS, Kinds

RULES = LevelRules((3, *(4 * 3**level for level in range(1, 8))), (2,) * 9, batches_max=12)
"""Small levels: few rows make several of them, and merges."""

READS = ("get", "lookup", "lookup", "fetch", "scan", "held")
"""How an arrangement is read."""


class ArrangingUser(User):
    """A user that makes all kinds of calls, and keeps an arrangement."""

    index: tuple[str, Arrangement] | None = None
    """The collection that is arranged, and the arrangement."""

    def kinds(self) -> Kinds:
        return {**super().kinds(), self.evolve: 6, self.arranged: 30}

    def usual(self) -> None:
        self.arranged()

    def finish(self) -> None:
        super().finish()
        if self.index is not None:
            self._close_index(self.index[1])

    def arranged(self) -> None:
        """Begin an arrangement, read it, or close it."""
        if self.process.is_read_only:
            return
        if self.index is None:
            self._begin_index()
        elif self.chance.random() < 0.1:
            self._close_index(self.index[1])
        else:
            self._read_index(*self.index)

    def _begin_index(self) -> None:
        by = self.chance.choice((None, None, None, ["v"], ["v", "k"]))
        history = self.chance.choice(("latest", "latest", "all"))

        def work(call: UserCall) -> Any:
            orders = self.some()
            return orders.id, arrange(orders, by, history=history)  # type: ignore[arg-type]

        call = self.call("arrange", work, SinceError)
        if call.is_done:
            self.index = call.result

    def _close_index(self, index: Arrangement) -> None:
        self.index = None
        self.call("close an arrangement", lambda call: index.close())

    def _read_index(self, id: str, index: Arrangement) -> None:
        key = self.chance.randrange(KEYS)
        how = self.chance.choice(READS)

        def work(call: UserCall) -> Any:
            if self.chance.random() < 0.2:
                self.dawdle()
            return pairs_of(index, how, key)

        call = self.call(f"{how} of an arrangement", work, SinceError)
        if call.error is not None:
            if isinstance(call.error, UsageError):
                self.index = None
            return
        if call.result is None:
            return
        by_key, found = call.result
        if how == "held":
            before, again = found
            if before != again:
                self.violate(call, f"gave {before} as of a held time, and then {again}")
            return
        states = self.world.states_between(id, call.since_event, call.until_event)
        possible = []
        for time in sorted({last_time(state) for state in states}):
            pairs = self.answers.pairs_at(id, time) if time >= 0 else []
            possible.append(sorted(pair for pair in pairs if not by_key or pair[0] == key))
        if sorted(found) not in possible:
            self.violate(call, f"of {key} found {sorted(found)}, and the collection had {possible}")


def pairs_of(index: Arrangement, how: str, key: int) -> tuple[bool, list[Any]] | None:
    """Read an arrangement; return whether by the key, and the rows. None if there is nothing to compare.

    A held time is read twice, and both answers are returned.
    """
    if how == "held":
        upper = index.upper.last_complete()
        if upper is None or index.upper.is_closed:
            return None
        with index.hold(upper):
            return False, [sorted(_pairs(index.at(upper).scan())) for _ in range(2)]
    if how == "scan" or index.layout.by[0] != "k":
        tables = index.scan()
    elif how == "get":
        return True, [(row["k"], row["v"]) for row in index.get(key)]
    elif how == "lookup":
        return True, _pairs([index._beginning._collection.lookup({"k": key})])
    else:
        tables = iter([index.fetch([key])])
        return True, _pairs(tables)
    return False, _pairs(tables)


def _pairs(tables: Any) -> list[Pair]:
    found = []
    for table in tables:
        for row in table.to_pylist():
            found += [(row["k"], row["v"])] * row.get("_diff", 1)
    return found


@contextlib.contextmanager
def merging_inside_of_calls() -> Iterator[None]:
    """Let spines merge in the thread that inserts, in small levels: one seed then decides when."""
    real = spine_module.Spine.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **{**options, "threads": False, "rules": RULES})

    with mock.patch.object(spine_module.Spine, "__init__", init):
        yield


def run_arrangement_history(
    seed: int, operations: int, faults: Faults | None = None, tracing: bool = False
) -> HistoryResult:
    """Run one history of real stores whose users arrange their collections."""
    with merging_inside_of_calls(), mock.patch.object(history_run, "User", ArrangingUser):
        return history_run.run_store_history(seed, operations, faults, tracing)
