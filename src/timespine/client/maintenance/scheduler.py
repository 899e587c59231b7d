"""Maintenance: merges, rollups, garbage collection, expiry of leases, the sweep, retention.

What there is to do is read off the states, so no process can forget it: whoever
comes along next does it. It runs in a background thread of every process that
has a store open for writing, or when somebody calls `store.maintain()`. It never
moves an upper, so nobody who writes is ever refused because of it.

One step does one small thing and says whether there was something to do:

1. merge the smallest request that nobody works on, if enough small batches have
   gathered, the collection is at rest, no larger request would take it up if it is
   left alone (where one does, waiting saves work), or expired history must go
2. write a rollup when enough was committed since the last, or there is much garbage,
   and then collect garbage
3. ask for a rewrite of what may hold expired history, once its deadline has passed
4. when a collection is at rest, ask for a merge that the spine did not ask for, if it
   pays for readers or removes much of what expired, and the budget allows it

What it may write, and when each pays, is derived in `core/upkeep.py`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from timespine.client.commit.group_commit import STORE_CLOSED, TURN_S, Committer
from timespine.client.context import Access
from timespine.client.maintenance.due import is_claimed, is_one_run, is_untidy, size_of
from timespine.client.maintenance.forget_expired import oldest_to_rewrite, worth_forgetting
from timespine.client.maintenance.idle_tracker import Settled
from timespine.client.maintenance.report import NO_SPACE, MaintenanceReport, said
from timespine.client.maintenance.rewrite_unsealed import worth_rewriting
from timespine.core.protocols import garbage, maintain
from timespine.core.spine.layers import MergeRequest
from timespine.core.state import State, Status
from timespine.core.transitions import AdvanceUpper, Command, Finalize, Forget, Retain, RollUpAll
from timespine.core.upkeep import Collecting, is_forgetting_due, next_collecting, worth_compacting
from timespine.errors import ClosedError, CollectionInUse, Fenced, NoSpace, StoreClosed, TimespineError, Unavailable
from timespine.locks import Flag, Lock
from timespine.model.frontier import CLOSED, Frontier

GATHER = 8
"""Hollow batches of one request that are worth a merge while writers are at work."""

PAUSE_S = 0.5
"""How long the background waits between two looks, at first: longer and longer while there is nothing to do."""

REST_S = 10.0
"""A collection that nobody wrote to for so long is at rest: its small requests are answered, too. Long enough for
writers that append every few seconds to gather a merge, short enough that nobody waits long for fewer runs."""

EXPIRE_S = 60.0
"""How often lapsed leases are looked for, per collection."""

SWEEP_S = 3600.0
"""How often leaked blobs are looked for, per collection: it lists every blob."""

SPARE_BYTES = 64 << 20
"""What a merge leaves free on the disk, at least; a small one leaves as much as it writes."""

CLAIM_POLL_S = 0.05
"""How often somebody who waits for a merge that others are at work on looks whether it is done."""

VAIN_MAX = 8
"""Merges in a row whose results did not fit before somebody who waits is told so."""

OVERDUE = 4
"""Times as many commits as are due between two rollups: then whoever commits writes one."""

FINISH_STEPS = 4
FINISH_ROWS = 1 << 17
"""Steps for a collection that this process wrote to, and rows that one of them merges, at most, before it closes."""

STEPS_MIN = 64
"""Steps for one collection in one go, at least: more of them, the more batches there are."""


@dataclass(slots=True)
class _Upkeep:
    """What maintenance remembers of a collection. Only timing: everything that matters is in the state."""

    access: Access
    written: tuple[Frontier, int] | None = None
    """Its upper, and the number of its next write, when it was last looked at."""
    changed: float = 0.0
    """When they were seen to move."""
    expired: float = float("-inf")
    swept: float = float("-inf")
    judged: int = -1
    """The state for which no extra work was found worth doing."""
    skipped: dict[tuple[int, int], float] = field(default_factory=dict)
    rewrite_after: float = float("-inf")
    """An unsealed batch that could not be rewritten is left alone until then."""


class Maintenance:
    """Looks after the collections of one open store."""

    def __init__(
        self,
        committer: Committer,
        accesses: Callable[[], list[Access]],
        free_bytes: Callable[[], int | None],
        *,
        others: Callable[[], list[Access]] = list,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = committer.run
        self._driver = committer.driver
        self._accesses = accesses
        self._others = others
        self._free_bytes = free_bytes
        self._monotonic = monotonic
        self._sleep = sleep
        self._looked = monotonic()  # whoever exits soon looks after what it has opened, and no more
        self._upkeep: dict[str, _Upkeep] = {}
        self._settled = Settled()
        self._wake = Flag()
        self._stop = Flag()
        self._thread: threading.Thread | None = None
        self._at_work = Lock("the maintenance of this store", TURN_S)
        self.report = MaintenanceReport()
        """What was done since the store was opened."""
        self.reason = ""
        """Why the last merge that failed did."""

    # The background thread.

    def start(self) -> None:
        """Begin to work in the background."""
        self._thread = threading.Thread(target=self._loop, name="timespine-maintenance", daemon=True)
        self._thread.start()

    def wake(self, collections: Iterable[str] = ()) -> None:
        """Something was committed to these: there may be something to do."""
        self._settled.take_back(collections)
        self._wake.set()

    def stop(self, limit_s: float) -> bool:
        """Stop after the step that is under way; whether it ended within the limit."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return False
        self._thread = None
        return True

    def bound(self, access: Access) -> None:
        """Where nobody works in the background: roll up what is long overdue, so that opening it stays cheap.

        An append may call it, so it leaves the reserve alone. SUBTLE: it never fails, not even if the store is closed
        meanwhile. What called it is committed, and its caller would delete its blobs (test_close.py).
        """
        try:
            if self._thread is None and maintain.is_rollup_due(access.config, access.known(), OVERDUE):
                self._run(access.id, lambda session: maintain.roll_up(session, access.id), frees_space=False)
        except Exception as error:  # the next commit tries again
            self.report.skip(f"{access.name}: {said(error)}")

    def finish(self) -> None:
        """Before the end: what is overdue and small. Whoever only comes by for a moment does its share, too."""
        if self._thread is None:
            return
        for access in self._accesses():
            if access.shared.counters_of(access.id).get("append rows"):
                self._look_after(access, FINISH_STEPS, most=FINISH_ROWS)

    def _loop(self) -> None:
        """Work while there is work; then wait for a commit, or look again after a while, less and less often."""
        pause = PAUSE_S
        while not self._stop.is_set():
            self._wake.clear()
            busy = self.round()
            if not busy:
                self._driver.consensus.restore_reserve()
            pause = PAUSE_S if busy else min(pause * 2, 30.0)
            if not busy and self._wake.wait(pause):
                pause = PAUSE_S
                # Give writers a moment: a few commits together are one merge.
                self._stop.wait(0.02)

    def round(self) -> bool:
        """One step for every open collection that may need one; whether there was anything to do.

        Now and then the others get as many as they need: whoever wrote to them may have exited at once.
        """
        due = self._settled.others(self._accesses(), self._monotonic())
        busy = sum(self._look_after(access, 1) for access in due) > 0
        now = self._monotonic()
        if now - self._looked >= EXPIRE_S:
            self._looked = now
            for access in self._found_others():
                self._look_after(access, STEPS_MIN)
        return busy and not self._stop.is_set()

    def _found_others(self) -> list[Access]:
        try:
            return self._others()
        except Exception as error:
            self.report.skip(f"the other collections: {said(error)}")
            return []

    def _look_after(self, access: Access, steps: int, most: int | None = None) -> bool:
        """Some steps for one collection; whether there may be more to do. What goes wrong stops nothing else.

        With `most`, merges of more rows than that are left to others.
        """
        try:
            for _ in range(steps):
                if self._stop.is_set():
                    return False
                with self._at_work:
                    upkeep = self._remembered(access)
                    self._settled.put(access.id, self._monotonic())
                    resting = most is None and self._is_at_rest(upkeep)
                    did = self._step(upkeep, resting=resting, most=most)
                    if did or not resting or upkeep.skipped:
                        self._settled.take_back([access.id])
                    if not did:
                        return False
        except Exception as error:  # also what no error of ours is: this thread is the last to notice
            self._settled.take_back([access.id])
            self.report.skip(f"{access.name}: {said(error)}")
            return False
        return True

    def _remembered(self, access: Access) -> _Upkeep:
        upkeep = self._upkeep.setdefault(access.id, _Upkeep(access))
        upkeep.access = access
        return upkeep

    def paused(self) -> Lock:
        """For a `with`: no step is under way meanwhile."""
        return self._at_work

    def maintain(self, accesses: list[Access], *, sweep: bool = False) -> MaintenanceReport:
        """Do all there is to do now. If some collection cannot be looked after, the others are all the same."""
        failure: TimespineError | None = None
        with self._at_work:
            before = self.report.counts()
            for access in accesses:
                try:
                    self._maintain(self._remembered(access), sweep=sweep)
                except TimespineError as error:
                    failure = failure or error
                    self.report.skip(f"{access.name}: {said(error)}")
            done = self.report.since(before)
        self._driver.consensus.restore_reserve()
        if failure is not None:
            raise failure
        return done

    def _maintain(self, upkeep: _Upkeep, *, sweep: bool) -> None:
        access = upkeep.access
        upkeep.skipped.clear()
        upkeep.expired = float("-inf")
        idle = [(access.id, command) for command in access.shared.leases.idle(access.id)]
        if idle:
            access.committer.commit(*idle)
        if sweep:
            upkeep.swept = float("-inf")
        # Only what was there when it began: others may add more than one can keep up with.
        began = access.state()
        for _ in range(STEPS_MIN + 4 * began.trace.hollow_count):
            state = access.state()
            quiet = (state.upper, state.unsealed_next) == (began.upper, began.unsealed_next)
            if not self._step(upkeep, resting=quiet, before=None if quiet else began.trace.next_id):
                break
        self._collect(upkeep, force=True)

    def compact(self, access: Access) -> None:
        """Merge until what is there now is a single run. Waits for others who are at work on it."""
        goal = access.state().trace.upper
        vain = 0
        while True:
            with self._at_work:
                upkeep, skips, merges = self._remembered(access), self.report.failures, self.report.merges
                upkeep.skipped.clear()
                did = self._merge(upkeep, access.state(), least=1, at_once=True)
                why = self.report.skipped[-1] if self.report.failures > skips else ""
                vain = vain + 1 if did and self.report.merges == merges else 0
            state = access.state()
            if not state.trace.requests() or is_one_run(state, goal):
                return
            if vain >= VAIN_MAX:
                why = f"the results of {vain} merges in a row did not fit"
            if why:
                raise Unavailable(f"{access.name} could not be made one run: {why}")
            if self._stop.is_set():
                raise StoreClosed(STORE_CLOSED)
            if not did:
                # Somebody is at work on it, or was and has died: a claim is over soon, one way or the other.
                self._sleep(CLAIM_POLL_S)

    def bury(self, access: Access, freed: Sequence[Command] = ()) -> tuple[bool, int]:
        """Close, finalize and empty a dropped collection; whether nothing is left of it, and how many blobs went.

        `freed` goes with the closing: what releases the critical holds of one that was forced.
        """
        with self._at_work:
            self._run(access.id, lambda session: maintain.expire_leases(session, access.id))
        if access.state().status is not Status.FINALIZED:
            idle = [(access.id, command) for command in access.shared.leases.idle(access.id)]
            try:
                closing = [(access.id, each) for each in (*freed, AdvanceUpper(CLOSED), Retain(CLOSED))]
                access.committer.commit(*idle, *closing)
                access.committer.commit((access.id, Finalize()))
            except (CollectionInUse, Fenced):
                return False, 0  # a reader still has a lease, or another process took a hold over just now
            except ClosedError:
                pass  # somebody else buries it too
        with self._at_work:
            kept = {rollup.key for rollup in access.state().rollups.values()}
            self._run(access.id, lambda session: maintain.roll_up(session, access.id))
            gone = int(self._run(access.id, lambda session: garbage.collect_garbage(session, access.id)))
            gone += int(self._run(access.id, lambda session: garbage.sweep(session, access.id)))
        # A writer that is still registered may have left something: it goes when its lease does. What stays is
        # the tombstone: its log, its rollup, and the one before, which the next collection would take.
        kept.update(rollup.key for rollup in access.state().rollups.values())
        return all(info.key in kept for info in access.shared.blob.list_keys(f"{access.id}/")), gone

    # Steps.

    def _is_at_rest(self, upkeep: _Upkeep) -> bool:
        state = upkeep.access.state()
        now = self._monotonic()
        if upkeep.written != (state.upper, state.unsealed_next):
            upkeep.written, upkeep.changed = (state.upper, state.unsealed_next), now
        return now - upkeep.changed >= REST_S

    def _step(self, upkeep: _Upkeep, *, resting: bool, before: int | None = None, most: int | None = None) -> bool:
        """One small thing; whether there was one.

        `before` restricts merges to what was inserted before that one, `most` to so many rows.
        """
        access = upkeep.access
        state = access.state()
        if state.status is Status.FINALIZED:
            return self._collect(upkeep)
        self._expire(upkeep, state)
        least = 1 if resting or before is not None or not state.trace.gathers else GATHER
        if self._merge(upkeep, state, least=least, before=before, most=most):
            return True
        if self._collect(upkeep):
            return True
        if most is None and self._forget(access, state):
            return True
        if is_untidy(state):
            self._run(access.id, lambda session: maintain.tidy_unsealed(session, access.id))
            state = access.state()
        worth = worth_rewriting(state)
        if worth is not None and self._monotonic() >= upkeep.rewrite_after:
            done = self._run(access.id, lambda session: maintain.rewrite_unsealed(session, access.id, worth))
            upkeep.rewrite_after = self._monotonic() + (0.0 if done else EXPIRE_S)
            return bool(done)
        return resting and self._ask_for_more(upkeep, state)

    def _merge(
        self,
        upkeep: _Upkeep,
        state: State,
        *,
        least: int,
        before: int | None = None,
        most: int | None = None,
        at_once: bool = False,
    ) -> bool:
        """Do one merge; whether one was tried. What fails or does not fit the disk is left alone for a while.

        So is what anybody claims, though its merge may have failed; `at_once`: only if they are still at work.
        """
        access = upkeep.access
        now = self._monotonic()
        upkeep.skipped = {id: until for id, until in upkeep.skipped.items() if until > now}
        # A rewrite of expired history does not wait for company.
        owed = state.forgetting.below if state.forgetting is not None else 0
        wanted = [
            request
            for request in state.trace.requests()
            if (request.rope.count >= least or request.id[0] < owed)
            and (before is None or request.id[1] <= before)
            and (most is None or request.rope.len <= most)
        ]
        due = [
            request
            for request in wanted
            if request.id not in upkeep.skipped and not is_claimed(state, request, access, at_once=at_once)
        ]
        self.report.passed_over += len(wanted) - len(due)
        if not due:
            return False
        request = min(due, key=lambda request: request.rope.len)
        if not self._fits(access, request):
            upkeep.skipped[request.id] = now + EXPIRE_S
            self.report.skip(f"{access.name}: not enough free space for a merge of {size_of(request)} bytes", NO_SPACE)
            return False
        self.report.told.discard(NO_SPACE)
        self.reason = ""
        applied = self._run(access.id, lambda session: maintain.merge_once(session, access.id, request.id))
        if applied is None or not getattr(applied, "is_applied", False):
            upkeep.skipped[request.id] = now + EXPIRE_S
            if self.reason:
                self.report.skip(f"{access.name}: a merge of {size_of(request)} bytes failed: {self.reason}")
        else:
            self.report.merges += 1
        return True

    def _forget(self, access: Access, state: State) -> bool:
        """Ask for a rewrite of what may hold expired history, once its deadline has passed; whether it was asked."""
        if not is_forgetting_due(state, access.now_ms(), access.forget_within_ms):
            return False
        access.committer.commit((access.id, Forget(oldest_to_rewrite(access, state))))
        return access.known().seqno != state.seqno

    def _ask_for_more(self, upkeep: _Upkeep, state: State) -> bool:
        """Ask for a merge that the spine did not ask for, if it pays; whether one was."""
        access = upkeep.access
        if upkeep.judged == state.seqno:
            return False
        upkeep.judged = state.seqno
        lo = worth_compacting(state)
        command = worth_forgetting(state) if lo is None else RollUpAll(lo, extra=True)
        if command is None:
            return False
        access.committer.commit((access.id, command))
        return access.known().seqno != state.seqno

    def _collect(self, upkeep: _Upkeep, *, force: bool = False) -> bool:
        """Roll up and collect garbage when it is due; sweep now and then. Whether something was due and done."""
        access = upkeep.access
        state = access.state()
        step = next_collecting(state)
        if step is Collecting.WAIT and (idle := access.shared.leases.idle(access.id)):
            access.committer.commit(*((access.id, command) for command in idle))
            state = access.state()
            step = next_collecting(state)
        due = maintain.is_rollup_due(access.config, state)
        if due or step is Collecting.ROLL_UP or (force and state.seqno > max(state.rollups, default=0) + 2):
            try:
                self._roll_up(access)
            except NoSpace:  # to collect garbage from an older rollup needs no space before it frees some
                if not self._collect_garbage(access):
                    raise
                self._roll_up(access)
        acts = due or step in (Collecting.ROLL_UP, Collecting.COLLECT)
        if acts or force:
            self._collect_garbage(access)
        did = acts and access.state().seqno != state.seqno
        now = self._monotonic()
        if now - upkeep.swept >= SWEEP_S:
            upkeep.swept = now
            sweep_temporary = getattr(access.shared.blob, "sweep_temporary", None)
            if sweep_temporary is not None:
                sweep_temporary(SWEEP_S, access.shared.clock())
            with contextlib.suppress(garbage.ForeignBlob):
                # It commits nothing, so this process need not register for it with every collection that is there.
                self.report.swept += access.committer.look(lambda session: garbage.sweep(session, access.id))
        return did

    def _roll_up(self, access: Access) -> None:
        self.report.rollups += self._run(access.id, lambda session: maintain.roll_up(session, access.id))

    def _collect_garbage(self, access: Access) -> int:
        collected = self._run(access.id, lambda session: garbage.collect_garbage(session, access.id))
        self.report.collected += collected
        return collected

    def _expire(self, upkeep: _Upkeep, state: State) -> None:
        """Remove what lapsed, and move retention."""
        now = self._monotonic()
        if now - upkeep.expired < EXPIRE_S:
            return
        upkeep.expired = now
        access = upkeep.access
        now_ms = access.now_ms()
        ends = [lease.until_ms for held in (state.readers, state.writers, state.committers) for lease in held.values()]
        if any(until_ms < now_ms for until_ms in ends):
            self.report.leases += self._run(access.id, lambda session: maintain.expire_leases(session, access.id))
        retain_ms = access.entry.retain_ms if access.entry.retain_ms is not None else access.shared.retain_ms
        if retain_ms is not None and access.entry.timeline == "clock" and state.arity == 1 and state.upper.elements:
            # Never past the newest complete time: what is there now stays readable.
            horizon = min(now_ms - retain_ms, state.upper.time - 1)
            if horizon > 0 and not Frontier.at(horizon) <= state.retention:
                idle = [(access.id, command) for command in access.shared.leases.idle(access.id)]
                access.committer.commit(*idle, (access.id, Retain(Frontier.at(horizon))))

    def _fits(self, access: Access, request: MergeRequest) -> bool:
        """Whether the disk has room for the result beside the inputs."""
        try:
            free = self._free_bytes()
        except OSError:
            return True  # nobody knows: the merge finds out
        return free is None or free >= size_of(request) + min(size_of(request), SPARE_BYTES)
