"""One protocol at a time on a simulated world, with a script of what goes wrong and when.

The simulator lets chance decide; here the test does. A *cue* waits for the n-th
effect of a type and then lets it fail in one of the three ways in which storage
fails, lets something else happen first, or answers in its place. Whatever
happens in a cue happens without cues. A cue that never came is an error: the
test would not have tested what it says.

The world checks every commit and every deletion; the first violation fails the test.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from assertions import check

from timespine.config import Config
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.effects import CompareAndSet, Effect, FreshId, MergeRuns, Now, Protocol, Sleep
from timespine.core.encoding.codec import decode_run, encode_run
from timespine.core.group import Refused
from timespine.core.protocols import maintain
from timespine.core.protocols.commit import commit, register_session
from timespine.core.protocols.garbage import references
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.core.transitions import (
    AddSchema,
    Command,
    CompareAndAppend,
    ExpireWriter,
    RegisterWriter,
    Retain,
    RollUpAll,
)
from timespine.errors import Determinate, Indeterminate
from timespine.model import Description, Frontier, Time
from timespine.model.oracle import OracleRow, Update, accumulate
from timespine.testing.create_or_find import create_or_find
from timespine.testing.formats.naive import data_of, merge_runs, row_counts
from timespine.testing.simulator import core_reads, core_writes
from timespine.testing.simulator.world import World

T = TypeVar("T")

CONFIG = Config(
    reader_lease_ms=1_000,
    writer_lease_ms=4_000,
    claim_ms=500,
    inline_part_bytes=1,
    inline_total_bytes=100,
    rollup_seqnos=8,
    commit_attempts=4,
    storage_attempts=3,
    retry_pause_ms=1,
    retry_pause_max_ms=3,
    delete_batch=2,
)
"""Small limits, so that few effects reach them. Whatever is appended becomes a blob."""


def configured(**changes: int) -> Config:
    """The small limits, with some of them changed."""
    return dataclasses.replace(CONFIG, **changes)


def at(*coordinates: int) -> Frontier:
    """The frontier of one time; without coordinates the closed one."""
    return Frontier((coordinates,)) if coordinates else Frontier()


def up(row: str, when: int | Time, count: int = 1) -> Update:
    """An update; a bare number is a time of one coordinate."""
    return row, (when,) if isinstance(when, int) else when, count


class Fault(enum.Enum):
    """The ways in which storage fails."""

    DETERMINATE = "it did not happen, and says so"
    DONE = "it happened, and the reply was lost"
    NOT_DONE = "it did not happen, and the reply was lost"
    MISREPORTED = "a compare-and-set happened, and the reply says that another one was first"


FAILURES = (Fault.DETERMINATE, Fault.DONE, Fault.NOT_DONE)
"""The ways in which an effect can fail that is no compare-and-set."""


@dataclass(slots=True)
class Cue:
    """What to do when certain effects come."""

    kind: type[Effect]
    where: Callable[[Any], bool]
    skip: int
    """How many of them to let pass first."""
    times: int
    """For how many of them it is."""
    fault: Fault | None = None
    action: Callable[[], object] | None = None
    answer: Callable[[Any], object] | None = None


class Crashed(BaseException):
    """The process died: not to be caught by any protocol."""


class ProtocolHarness:
    """A world, a clock, and the script."""

    def __init__(self, *collections: str, arity: int = 1) -> None:
        self.world = World()
        self.now_ms = 1_000
        self.ids = 0
        self.cues: list[Cue] = []
        self.effects: list[Effect] = []
        """The effects of the last run, in order, those that failed included."""
        self.left: int | None = None
        """Effects until the process dies, if it does."""
        keeper = Session(self.fresh("k"), self.fresh("w"), CONFIG)
        for each in collections or ("c",):
            self.run(create_or_find(keeper, each, arity))

    def fresh(self, prefix: str) -> str:
        """An id that was never used before."""
        self.ids += 1
        return f"{prefix}{self.ids}"

    def session(self, *collections: str, config: Config = CONFIG) -> Session:
        """A process that has just started, and is registered with some collections."""
        session = Session(self.fresh("k"), self.fresh("w"), config)
        for each in collections or ("c",):
            self.run(register_session(session, each))
        return session

    def stranger(self, config: Config = CONFIG) -> Session:
        """A process that knows nothing and is registered nowhere."""
        return Session(self.fresh("k"), self.fresh("w"), config)

    # -- the script ------------------------------------------------------------------------------

    def fail(
        self,
        kind: type[Effect],
        fault: Fault,
        nth: int = 1,
        times: int = 1,
        where: Callable[[Any], bool] = lambda effect: True,
    ) -> None:
        """Let the n-th effect of a type from now on fail, and as many more as `times` says."""
        self.cues.append(Cue(kind, where, nth - 1, times, fault=fault))

    def before(
        self,
        kind: type[Effect],
        action: Callable[[], object],
        nth: int = 1,
        times: int = 1,
        where: Callable[[Any], bool] = lambda effect: True,
    ) -> None:
        """Let something happen just before the n-th effect of a type from now on."""
        self.cues.append(Cue(kind, where, nth - 1, times, action=action))

    def answer(
        self,
        kind: type[Effect],
        answer: Callable[[Any], object],
        nth: int = 1,
        times: int = 1,
        where: Callable[[Any], bool] = lambda effect: True,
    ) -> None:
        """Answer the n-th effect of a type from now on in place of the world: storage that lies."""
        self.cues.append(Cue(kind, where, nth - 1, times, answer=answer))

    # -- running ---------------------------------------------------------------------------------

    def run(self, protocol: Protocol[T]) -> T:
        """Drive a protocol to its end; every cue must have come by then."""
        self.effects = []
        try:
            return self._drive(protocol)
        finally:
            waiting, self.cues = self.cues, []
            check(not waiting, f"cues that never came: {waiting}")

    def crash(self, protocol: Protocol[Any], after: int) -> bool:
        """Drive a protocol for a number of effects, then let the process die; whether it got that far."""
        self.left = after
        try:
            self.run(protocol)
        except Crashed:
            return True
        finally:
            self.left = None
        return False

    def _drive(self, protocol: Protocol[T]) -> T:
        value: object = None
        error: Exception | None = None
        while True:
            try:
                effect = protocol.send(value) if error is None else protocol.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            value, error = None, None
            try:
                value = self._carry_out(effect)
            except Crashed:
                protocol.close()
                raise
            except Exception as raised:
                error = raised
            check(not self.world.violations, "; ".join(self.world.violations))

    def _carry_out(self, effect: Effect) -> object:
        """One effect, as the script wants it."""
        if self.left is not None:
            if self.left == 0:
                raise Crashed
            self.left -= 1
        self.world.step += 1
        self.effects.append(effect)
        for cue in self._due(effect):
            if cue.action is not None:
                with self._aside():
                    cue.action()
            elif cue.answer is not None:
                return cue.answer(effect)
            elif cue.fault is Fault.MISREPORTED:
                return self._misreported(effect)
            elif cue.fault is Fault.DETERMINATE:
                raise Determinate("scripted: did not happen")
            else:
                if cue.fault is Fault.DONE:
                    lost = self._perform(effect)
                    check(lost is None or not isinstance(effect, CompareAndSet), f"it did not happen: {lost}")
                raise Indeterminate("scripted: may have happened")
        return self._perform(effect)

    def _misreported(self, effect: Effect) -> object:
        """Carry out an effect; a compare-and-set that succeeded is reported as lost to what it wrote itself."""
        answer = self._perform(effect)
        if not isinstance(effect, CompareAndSet) or answer is not None:
            return answer
        return {key: 0 if expected is None else expected + 1 for key, expected, _ in effect.writes}

    def _due(self, effect: Effect) -> list[Cue]:
        """The cues for an effect; one that has come often enough is over."""
        due = []
        for cue in list(self.cues):
            if not isinstance(effect, cue.kind) or not cue.where(effect):
                continue
            if cue.skip:
                cue.skip -= 1
                continue
            due.append(cue)
            cue.times -= 1
            if cue.times == 0:
                self.cues.remove(cue)
        return due

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What happens on the side has no cues, does not crash, and is not listed."""
        cues, effects, left = self.cues, self.effects, self.left
        self.cues, self.effects, self.left = [], [], None
        try:
            yield
        finally:
            self.cues, self.effects, self.left = cues, effects, left

    def _perform(self, effect: Effect) -> object:
        if isinstance(effect, Now):
            return self.now_ms
        if isinstance(effect, Sleep):
            self.now_ms += effect.ms
            return None
        if isinstance(effect, FreshId):
            return self.fresh(effect.prefix)
        if isinstance(effect, MergeRuns):
            return self._drive(merge_runs(effect))
        return self.world.perform[type(effect)](effect)

    # -- what tests do often ---------------------------------------------------------------------

    def of(self, *kinds: type[Effect]) -> list[Any]:
        """The effects of the last run that are of some types."""
        return [effect for effect in self.effects if isinstance(effect, kinds)]

    def commit(self, session: Session, *commands: Command, name: str = "c") -> tuple[Any, ...]:
        """Commit commands that must be accepted; their replies."""
        replies: tuple[Any, ...] = accepted(self.run(commit(session, name, *commands)))
        return replies

    def disturb(self, session: Session, name: str = "c") -> None:
        """Commit something that is in nobody's way."""
        known = len(self.head(name).schemas)
        self.commit(session, AddSchema(known - 1 if known else None, self.fresh("s").encode()), name=name)

    def append(self, session: Session, upper: int, *updates: Update, name: str = "c") -> None:
        """Append updates from the upper to a later one."""
        state = self.run(refresh_state(session, name))
        check(state is not None, f"there is no collection {name}")
        expected = state.upper  # type: ignore[union-attr]
        data = data_of(updates) if updates else None
        accepted(self.run(core_writes.compare_and_append_data(session, name, data, expected, at(upper))))

    def compact(self, session: Session, since: int, name: str = "c") -> None:
        """Move since, and merge everything into one batch, unless it is one already."""
        self.commit(session, Retain(at(since)), name=name)
        self.commit(session, RollUpAll(), name=name)
        if not self.head(name).trace.requests():
            return
        applied = self.run(maintain.merge_once(session, name))
        check(applied is not None and applied.is_applied, f"the merge was not applied: {applied}")

    def put_run(self, session: Session, key: str, *children: Part) -> Part:
        """A hollow run as a blob, and the part that points at it."""
        data = encode_run(key, children)
        self.world.blobs[key] = data
        sums = [child.diff_sum or 0 for child in children]
        rows, inside_bytes = sum(child.rows for child in children), sum(child.total_bytes for child in children)
        return Part(key, rows, len(data), sum(sums), hollow=True, inside_bytes=inside_bytes)

    def put(self, key: str, *updates: Update) -> Part:
        """Updates as a blob that no protocol put there, and the part that points at it."""
        data = data_of(updates)
        self.world.blobs[key] = data.value
        return Part(key, data.rows, len(data.value), data.diff_sum)

    def append_parts(self, session: Session, upper: int, *parts: Part, name: str = "c") -> None:
        """Append parts that are there already, each as a run of its own."""
        state = self.run(refresh_state(session, name))
        check(state is not None, f"there is no collection {name}")
        lower = state.upper  # type: ignore[union-attr]
        desc = Description(lower, at(upper), Frontier.minimum(1))
        batch = HollowBatch(desc, sum(part.rows for part in parts), tuple(Run((part,)) for part in parts))
        self.commit(session, CompareAndAppend((batch,), lower, at(upper)), name=name)

    def borrowed_writer(self, session: Session, name: str = "c") -> str:
        """A registered writer besides that of the session."""
        writer = self.fresh("w")
        self.commit(session, RegisterWriter(writer, CONFIG.writer_lease_ms), name=name)
        return writer

    def expire_writer(self, session: Session, writer: str, name: str = "c") -> None:
        """Fence a writer."""
        self.commit(session, ExpireWriter(writer), name=name)

    # -- what must be true -----------------------------------------------------------------------

    def head(self, name: str = "c") -> State:
        """The newest state."""
        return self.world.head(name)

    def rows(self, as_of: int | Time, name: str = "c") -> dict[OracleRow, int]:
        """The collection as of a time that must be readable, by a process that knows nothing."""
        time = (as_of,) if isinstance(as_of, int) else as_of
        reply = self.run(core_reads.fetch_snapshot_without_lease(self.stranger(), name, time))
        check(isinstance(reply, tuple), f"{name} cannot be read as of {time}: {reply!r}")
        return row_counts(*reply)  # type: ignore[misc]

    def agree(self, name: str = "c") -> None:
        """Check that every readable time of a totally ordered collection gives the truth."""
        state = self.head(name)
        for when in range(state.since.elements[0][0], state.upper.elements[0][0]):
            found, truth = self.rows(when, name), accumulate(self.world.truth[name], (when,))
            check(found == truth, f"{name} as of {when} is {found}, not {truth}")

    def there(self, name: str = "c") -> set[str]:
        """The blobs of a collection."""
        return {key for key in self.world.blobs if key.startswith(f"{name}/")}

    def referred(self, name: str = "c") -> set[str]:
        """Everything that states refer to which the log still gives, inside hollow runs included."""
        keys = dict.fromkeys(self.world.reachable(name), False)
        for state in self.world.states[name][max(self.world.first.get(name, 0) - 1, 0) :]:
            keys.update(references(state))
        found = set(keys)
        waiting = [key for key, hollow in keys.items() if hollow]
        while waiting:
            key = waiting.pop()
            for part in decode_run(key, self.world.blobs[key]) if key in self.world.blobs else ():
                found.add(part.key)
                if part.hollow:
                    waiting.append(part.key)
        return found

    def check_storage(self, name: str = "c") -> None:
        """Check that exactly what the states of the log refer to is there."""
        there, referred = self.there(name), self.referred(name)
        check(not self.world.reachable(name) - there, f"missing: {self.world.reachable(name) - there}")
        check(not there - referred, f"garbage: {there - referred}")


def accepted(reply: Any) -> Any:
    """The reply, which must not be a refusal."""
    check(not isinstance(reply, Refused), f"refused: {reply}")
    return reply


def refused(reply: Any) -> Any:
    """The reason of a reply that must be a refusal."""
    check(isinstance(reply, Refused), f"not refused: {reply}")
    return reply.reason
