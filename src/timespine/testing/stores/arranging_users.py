"""Users of arrangements: every read gives the collection as of a moment of the call, whatever happens meanwhile.

    rows of a read  ==  rows of the collection as of the newest complete time of some state between its begin and end

Changes of the same process go through its arrangements, and the checks of all histories are about those. Some
arrangements have folders. Processes save, die, and go on from checkpoints; others read them meanwhile:

    rows of a checkpoint  ==  rows of the collection as of the last time before its upper
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from timespine.arrangement.arrangement import Arrangement, arrange
from timespine.arrangement.opened_checkpoint import OpenedCheckpoint
from timespine.arrangement.spine import spine as spine_module
from timespine.client.collection import Collection
from timespine.client.store import Store
from timespine.core.arrangement.levels import LevelRules
from timespine.core.arrangement.spine_files import MANIFESTS_KEPT
from timespine.errors import SinceError, TimespineError, UsageError
from timespine.model.time import INT64_MAX
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.check_answers import Pair, last_time
from timespine.testing.stores.checkpoint_folders import CheckpointFolders
from timespine.testing.stores.history import StoreHistory, StoreProcess
from timespine.testing.stores.history_run import FAULTS, HistoryRun, User, run_course
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import KEYS, Caller, Kinds

RULES = LevelRules((3, *(4 * 3**level for level in range(1, 8))), (2,) * 9, batches_max=12)
"""Small levels: few rows make several of them, and merges."""

MEMORY_BYTES = 1 << 40
"""The memory of batches: no pressure, which would depend on the machine. Histories of spines have it."""

FOLDER_CHANCE = 0.8
"""The chance that an arrangement has a folder."""

READS = ("get", "lookup", "lookup", "fetch", "scan", "held")
"""How an arrangement is read."""


class ArrangingUser(User):
    """A user that makes all kinds of calls, and keeps an arrangement."""

    index: tuple[str, Arrangement] | None = None
    """The collection that is arranged, and the arrangement."""
    checkpoint: tuple[str, OpenedCheckpoint, list[Pair]] | None = None
    """The collection, a checkpoint of it that is open, and its rows."""

    def __init__(self, history: StoreHistory, process: StoreProcess, folders: CheckpointFolders) -> None:
        super().__init__(history, process)
        self.folders = folders

    def kinds(self) -> Kinds:
        return {**super().kinds(), self.evolve: 6, self.arranged: 30, self.opened: 20}

    def call(self, kind: str, work: Callable[[UserCall], Any], *expected: type[TimespineError]) -> UserCall:
        """Make a call, as all users do. What its error says does not depend on where the folders of this run are."""

        def work_and_rename(call: UserCall) -> Any:
            try:
                return work(call)
            except TimespineError as error:
                root = self.folders.root
                error.args = tuple(each.replace(root, "") if isinstance(each, str) else each for each in error.args)
                raise

        return super().call(kind, work_and_rename, *expected)

    def usual(self) -> None:
        self.arranged()

    def finish(self) -> None:
        super().finish()
        if self.checkpoint is not None:
            self._close_checkpoint()
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
        elif self.index[1].question.folder is not None and self.chance.random() < 0.5:
            self._save_index(self.index[1])
        else:
            self._read_index(*self.index)

    def _begin_index(self) -> None:
        has_folder = self.chance.random() < FOLDER_CHANCE
        # Few folders, so that processes meet in them.
        by = self.chance.choice((None, None, ["v"]) if has_folder else (None, None, None, ["v"], ["v", "k"]))
        history = "latest" if has_folder else self.chance.choice(("latest", "latest", "all"))

        def work(call: UserCall) -> Any:
            orders = self.some()
            folder = self.folders.path(orders.id, by, history) if has_folder else None
            return orders.id, arrange(orders, by, history=history, folder=folder)  # type: ignore[arg-type]

        call = self.call("arrange", work, SinceError, UsageError)
        if isinstance(call.error, UsageError) and "another process or spine writes" not in str(call.error):
            self.check_reason(call)
        if call.is_done:
            self.index = call.result
            if has_folder:
                self.check_folder(call, self.index[1])

    def _save_index(self, index: Arrangement) -> None:
        call = self.call("save an arrangement", lambda call: index.save(), SinceError)
        if call.error is None:
            self.world.counts["checkpoints saved"] += bool(call.result)
            self.check_folder(call, index)

    def check_folder(self, call: UserCall, index: Arrangement) -> None:
        """Check that every checkpoint of a folder is whole."""
        assert index.question.folder is not None
        wrong = self.folders.check(index.question.folder)
        if wrong is not None:
            self.violate(call, f"left a folder in which {wrong}")

    def _close_index(self, index: Arrangement) -> None:
        self.index = None
        self.call("close an arrangement", lambda call: index.close())

    # Checkpoints that are open beside the process that saves.

    def opened(self) -> None:
        """Open a checkpoint, read it again, open the same or a newer one beside it, or close it."""
        if self.checkpoint is None:
            self._open_checkpoint()
        elif self.chance.random() < 0.1:
            self._close_checkpoint()
        else:
            self._read_checkpoint(*self.checkpoint)

    def _open_checkpoint(self) -> None:
        if not self.folders.questions:
            return
        path = self.chance.choice(list(self.folders.questions))
        id = self.folders.questions[path][0]
        call = self.call("open a checkpoint", lambda call: OpenedCheckpoint(path), UsageError)
        if isinstance(call.error, UsageError) and "save" not in str(call.error):
            self.check_reason(call)
        if call.error is None:
            opened: OpenedCheckpoint = call.result
            self.world.counts["checkpoints opened"] += 1
            self.checkpoint = id, opened, self.check_rows(call, id, opened)

    def check_rows(self, call: UserCall, id: str, opened: OpenedCheckpoint) -> list[Pair]:
        """Check that a checkpoint has the rows of the collection as of the last time before its upper."""
        assert opened.upper is not None
        last = opened.upper.last_complete()
        found = sorted(_pairs(opened.scan()))
        expected = sorted(self.answers.pairs_at(id, INT64_MAX if last is None else last))
        if found != expected:
            self.violate(call, f"gave {found} as of {last}, and the collection had {expected}")
        return found

    def _read_checkpoint(self, id: str, opened: OpenedCheckpoint, rows: list[Pair]) -> None:
        refreshes = self.chance.random() < 0.3

        def work(call: UserCall) -> Any:
            with OpenedCheckpoint(opened.folder, opened.number) as same:
                again = [sorted(_pairs(each.scan())) for each in (opened, same)]
            return again, refreshes and opened.refresh()

        call = self.call("read a checkpoint", work)
        if call.error is None:
            again, is_newer = call.result
            if again != [rows, rows]:
                self.violate(call, f"gave {again}, and {rows} before")
            self.checkpoint = id, opened, self.check_rows(call, id, opened) if is_newer else rows

    def _close_checkpoint(self) -> None:
        assert self.checkpoint is not None
        opened, self.checkpoint = self.checkpoint[1], None
        self.call("close a checkpoint", lambda call: opened.close())

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
        real(self, *args, **{**options, "threads": False, "rules": RULES, "memory_bytes": MEMORY_BYTES})

    with mock.patch.object(spine_module.Spine, "__init__", init):
        yield


class ArrangingRun(HistoryRun):
    """The course of a history whose users arrange collections."""

    def __init__(self, history: StoreHistory, operations: int, folders: CheckpointFolders) -> None:
        super().__init__(history, operations)
        self.folders = folders

    def user(self, process: StoreProcess, *, read_only: bool) -> Caller:
        if read_only:
            return super().user(process, read_only=True)
        return ArrangingUser(self.history, process, self.folders)

    def _settle(self, process: StoreProcess, store: Store) -> None:
        """Check that arrangements go on from their last checkpoints, and that what these do not need is deleted."""
        super()._settle(process, store)
        live = {store[name].id: store[name] for name in self._must(process, "names", store.names).result}
        for path, (id, by, history) in self.folders.questions.items():
            if id in live and not self.history.world.states[id][-1].upper.is_closed:
                self._settle_folder(process, live[id], path, by, history)

    def _settle_folder(
        self, process: StoreProcess, collection: Collection, path: str, by: list[str] | None, history: Any
    ) -> None:
        def work() -> Any:
            self.folders.reap()
            with arrange(collection, by, history=history, folder=path) as index:
                # One checkpoint that did not fit stays until two newer ones are there.
                for _ in range(MANIFESTS_KEPT):
                    collection.append([{"k": 0, "v": "end"}])
                    index.save()
                return sorted(_pairs(index.scan())), index.metrics()["checkpoints restored"]

        call = self._must(process, "arrange in the end", work)
        found, restored = call.result
        world = self.history.world
        world.counts["checkpoints restored"] += restored
        expected = sorted(self.answers.pairs_at(collection.id, last_time(world.states[collection.id][-1])))
        if found != expected:
            world.violate(f"{call} found {found}, and the collection has {expected}")
        wrong = self.folders.check(path) or self.folders.check_reclaimed(path)
        if wrong is not None:
            world.violate(f"after {call}, {wrong}")


def run_arrangement_history(
    seed: int, operations: int, faults: Faults | None = None, tracing: bool = False
) -> HistoryResult:
    """Run one history of real stores whose users arrange their collections."""
    history = StoreHistory(seed, faults if faults is not None else FAULTS, tracing=tracing)
    with tempfile.TemporaryDirectory() as root:
        folders = CheckpointFolders(history, root)
        with merging_inside_of_calls(), folders.simulated():
            return run_course(seed, ArrangingRun(history, operations, folders))
