"""Maintenance: merges, rollups, garbage collection, expiry of leases, the sweep, retention.

The states tell what is due, so no process can forget it: the next process that looks
does it. It runs in the maintenance thread of one process of a machine
(`maintenance_thread`), or when a caller calls `store.maintain()`. It never moves an upper,
so no writer is refused because of it.

One step does one small thing and returns whether there was something to do:

1. merge the smallest request that no process has claimed, if enough small batches have
   gathered, the collection is at rest, no larger request would include it later
   (if one does, waiting saves work), or expired history must go
2. write a rollup after enough commits since the last, or if there is much garbage,
   and then collect garbage
3. request a rewrite of batches that may hold expired history, after their deadline
4. when a collection is at rest, request a merge that the spine did not request, if it
   pays for readers or removes much expired history, and the budget allows it

`core/maintenance_policy.py` derives what it may write, and when each step pays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from timespine.client.commit.group_commit import STORE_CLOSED, TURN_S, GroupCommitter
from timespine.client.inner_handles import CollectionHandle
from timespine.client.maintenance.due_merges import (
    GATHER,
    NEARLY_FULL,
    OVERDUE_FULL,
    fits,
    is_claimed,
    is_one_run,
    is_untidy,
    requests_worth_merging,
    size_of,
    worth_folding,
)
from timespine.client.maintenance.estimate_expired_history import oldest_to_rewrite, worth_forgetting
from timespine.client.maintenance.maintenance_report import NO_SPACE, MaintenanceReport, describe_error
from timespine.client.maintenance.maintenance_thread import MaintenanceThread
from timespine.client.maintenance.maintenance_times import MaintenanceTimes
from timespine.client.maintenance.rewrite_unsealed_policy import worth_rewriting
from timespine.client.maintenance.settled_collections import (
    SettledCollections,
    has_lapsed_leases,
    is_due_by_time,
    retention_horizon,
)
from timespine.client.maintenance.skip_idle_collections import IdleTracker
from timespine.client.maintenance.sweep_claim import SweepTurns
from timespine.columnar.kernels.background_flag import background_work
from timespine.core.maintenance_policy import CollectStep, is_forgetting_due, next_collect_step, worth_compacting
from timespine.core.protocols import garbage, maintain
from timespine.core.state import State, Status
from timespine.core.transitions import AdvanceUpper, Command, Finalize, Forget, Retain, RollUpAll
from timespine.errors import ClosedError, CollectionInUse, Fenced, NoSpace, StoreClosed, TimespineError, Unavailable
from timespine.location.machine.role import EveryProcess, Role
from timespine.locks import Lock
from timespine.model.frontier import CLOSED

REST_S = 10.0
"""Seconds without a write after which a collection is at rest: its small requests are merged too. Long enough for
writers that append every few seconds to gather a merge, short enough that readers soon have fewer runs."""

EXPIRE_S = 60.0
"""Seconds between two looks for expired leases, per collection."""

SWEEP_S = 3600.0
"""Seconds between two sweeps, per collection: each lists every blob."""

CLAIM_POLL_S = 0.05
"""Seconds between two looks of a caller that waits for a merge of another process."""

VAIN_MAX = 8
"""Merges in a row that were not applied, before a waiting caller gets an error."""

OVERDUE = 4
"""Factor on the commits between two rollups, from which on a commit writes a rollup itself."""

FINISH_STEPS = 4
FINISH_ROWS = 1 << 17
"""Most steps for a collection that this process wrote to, and most rows of one merge, before it closes."""

STEPS_MIN = 64
"""Least number of steps for one collection at once: it grows with the number of batches."""


class Maintenance:
    """The maintenance of the collections of one open store."""

    def __init__(
        self,
        committer: GroupCommitter,
        handles: Callable[[], list[CollectionHandle]],
        free_bytes: Callable[[], int | None],
        *,
        others: Callable[[], list[CollectionHandle]] = list,
        role: Role | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = committer.run
        self._driver = committer.driver
        self._handles = handles
        self._others = others
        self._free_bytes = free_bytes
        self._monotonic = monotonic
        self._sleep = sleep
        self._looked = monotonic()  # a process that exits soon maintains only the collections that it has opened
        self._upkeep: dict[str, MaintenanceTimes] = {}
        self._idle_tracker = IdleTracker()
        self._sweep_turns = SweepTurns(self._driver.consensus, SWEEP_S, monotonic)
        self._settled = SettledCollections(self._driver.consensus)
        self._thread = MaintenanceThread(
            self._round, self._look_for_others, self._restore_reserve, role or EveryProcess(), monotonic
        )
        self._stop = self._thread.stopping
        self._at_work = Lock("the maintenance of this store", TURN_S)
        self.report = MaintenanceReport()
        """The report since the store was opened."""
        self.reason = ""
        """The reason why the last failed merge failed."""

    # The maintenance thread.

    def start(self) -> None:
        """Start the maintenance thread."""
        self._thread.start()

    def wake(self, collections: Iterable[str] = ()) -> None:
        """Mark collections as having pending maintenance, and wake the maintenance thread."""
        self._idle_tracker.mark_dirty(collections)
        self._thread.wake()

    def stop(self, limit_s: float) -> bool:
        """Stop after the present step; return whether it ended within the limit."""
        return self._thread.stop(limit_s)

    def bound(self, handle: CollectionHandle) -> None:
        """Fold inline parts that nearly fill a state, and write a rollup that is long overdue.

        So commits stay small, and opening stays cheap. In the process of the maintainer, fold only what its thread
        leaves for too long.

        An append may call it, so it does not use the reserve. SUBTLE: it never raises, also if another thread closes
        the store. Its caller has committed, and would delete its blobs after an error (test_close.py).
        """
        try:
            is_maintainer = self._thread.is_maintainer
            for request in worth_folding(handle, OVERDUE_FULL if is_maintainer else NEARLY_FULL):
                if fits(request, self._free_bytes):
                    fold = partial(maintain.merge_once, collection=handle.id, id=request.id)
                    self._run(handle.id, fold, frees_space=False)
            if is_maintainer:
                return
            state, upkeep = handle.known(), self._upkeep_of(handle)
            if state.seqno < upkeep.rollup_from:
                return
            upkeep.rollup_from = maintain.next_rollup_seqno(handle.config, state, OVERDUE)
            if maintain.is_rollup_due(handle.config, state, OVERDUE):
                self._run(handle.id, lambda session: maintain.roll_up(session, handle.id), frees_space=False)
        except Exception as error:  # the next commit tries again
            self.report.skip(f"{handle.name}: {describe_error(error)}")

    def finish(self) -> None:
        """Do small overdue steps before the store closes, so that short-lived processes do their share too."""
        if not self._thread.is_alive() or not self._thread.take_role():
            return
        for handle in self._handles():
            if handle.context.counters_of(handle.id).get("append rows"):
                self._look_after(handle, FINISH_STEPS, most=FINISH_ROWS)

    def _restore_reserve(self) -> None:
        self._driver.consensus.restore_reserve()

    def round(self) -> bool:
        """Do one step for every open collection that may need one; return whether there was anything to do.

        Once in a while do all steps of the others: the process that wrote to them may have exited.
        """
        due = self._idle_tracker.due(self._handles(), self._monotonic())
        busy = sum(self._look_after(handle, 1) for handle in self._collections_to_check(due)) > 0
        for handle in self._collections_to_check(self._look_for_others()):
            self._look_after(handle, STEPS_MIN)
        return busy and not self._stop.is_set()

    def _round(self) -> tuple[bool, bool]:
        """Do one round; return whether there was anything to do, and whether processes write to open collections."""
        with background_work():
            busy = self.round()
        now = self._monotonic()
        return busy, any(now - each.changed < REST_S for each in list(self._upkeep.values()) if each.written)

    def _collections_to_check(self, handles: list[CollectionHandle]) -> list[CollectionHandle]:
        """List the collections that need a look; the others have none pending for a while."""
        now = self._monotonic()

        def is_due(handle: CollectionHandle) -> bool:
            return now - self._upkeep_of(handle).swept >= SWEEP_S or is_due_by_time(handle, handle.known())

        for handle in handles:
            self._idle_tracker.mark_idle(handle.id, now)
        return self._settled.to_check(handles, is_due)

    def _look_for_others(self) -> list[CollectionHandle]:
        """List the collections that are not open here, once in a while: that also shows changes of the catalog."""
        now = self._monotonic()
        if now - self._looked < EXPIRE_S:
            return []
        self._looked = now
        try:
            return self._others()
        except Exception as error:
            self.report.skip(f"the other collections: {describe_error(error)}")
            return []

    def _look_after(self, handle: CollectionHandle, steps: int, most: int | None = None) -> bool:
        """Do some steps for one collection; return whether there may be more to do. An error stops nothing else.

        With `most`, leave merges of more rows than that to other processes.
        """
        try:
            for _ in range(steps):
                if self._stop.is_set():
                    return False
                with self._at_work:
                    upkeep = self._upkeep_of(handle)
                    self._idle_tracker.mark_idle(handle.id, self._monotonic())
                    resting = most is None and self._is_at_rest(upkeep)
                    seqno = handle.known().seqno
                    did = self._step(upkeep, resting=resting, most=most)
                    if resting and not did and not upkeep.skipped:
                        self._settled.mark_settled(handle.id, seqno)
                    if did or not resting or upkeep.skipped:
                        self._idle_tracker.mark_dirty([handle.id])
                    if not did:
                        return False
        except Exception as error:  # of any kind: an error must not end this thread
            self._idle_tracker.mark_dirty([handle.id])
            self.report.skip(f"{handle.name}: {describe_error(error)}")
            return False
        return True

    def _upkeep_of(self, handle: CollectionHandle) -> MaintenanceTimes:
        upkeep = self._upkeep.setdefault(handle.id, MaintenanceTimes(handle))
        upkeep.handle = handle
        return upkeep

    def paused(self) -> Lock:
        """Return the lock that keeps steps from running, for a `with`."""
        return self._at_work

    def maintain(self, handles: list[CollectionHandle], *, sweep: bool = False) -> MaintenanceReport:
        """Do all that is due. If one collection fails, do the others, and then raise its error."""
        failure: TimespineError | None = None
        with self._at_work:
            before = self.report.counts()
            for handle in handles:
                try:
                    self._maintain(self._upkeep_of(handle), sweep=sweep)
                except TimespineError as error:
                    failure = failure or error
                    self.report.skip(f"{handle.name}: {describe_error(error)}")
            done = self.report.since(before)
        self._driver.consensus.restore_reserve()
        if failure is not None:
            raise failure
        return done

    def _maintain(self, upkeep: MaintenanceTimes, *, sweep: bool) -> None:
        handle = upkeep.handle
        upkeep.skipped.clear()
        upkeep.expired = float("-inf")
        idle = [(handle.id, command) for command in handle.context.leases.idle(handle.id)]
        if idle:
            handle.committer.commit(*idle)
        if sweep:
            upkeep.swept, upkeep.is_sweep_asked = float("-inf"), True
        # Only batches from before it began: other processes may add more than it can keep up with.
        began = handle.state()
        for _ in range(STEPS_MIN + 4 * began.trace.hollow_count):
            state = handle.state()
            quiet = (state.upper, state.unsealed_next) == (began.upper, began.unsealed_next)
            if not self._step(upkeep, resting=quiet, before=None if quiet else began.trace.next_id):
                break
        self._collect(upkeep, force=True)

    def compact(self, handle: CollectionHandle) -> None:
        """Merge until all present batches are one run. Waits for merges of other processes."""
        goal = handle.state().trace.upper
        vain = 0
        while True:
            with self._at_work:
                upkeep, skips, merges = self._upkeep_of(handle), self.report.failures, self.report.merges
                upkeep.skipped.clear()
                did = self._merge(upkeep, handle.state(), least=1, at_once=True)
                why = self.report.skipped[-1] if self.report.failures > skips else ""
                vain = vain + 1 if did and self.report.merges == merges else 0
            state = handle.state()
            if not state.trace.requests() or is_one_run(state, goal):
                return
            if vain >= VAIN_MAX:
                why = f"the results of {vain} merges in a row could not be applied"
            if why:
                raise Unavailable(f"{handle.name} could not be merged into one run: {why}")
            if self._stop.is_set():
                raise StoreClosed(STORE_CLOSED)
            if not did:
                # Another process works on it, or did and has died: its claim ends soon in either case.
                self._sleep(CLAIM_POLL_S)

    def purge(self, handle: CollectionHandle, freed: Sequence[Command] = ()) -> tuple[bool, int]:
        """Close, finalize and empty a dropped collection; return whether no data is left, and how many blobs went.

        `freed` are commands for the same commit, which release critical holds after a forced drop.
        """
        with self._at_work:
            self._run(handle.id, lambda session: maintain.expire_lapsed_leases(session, handle.id))
        if handle.state().status is not Status.FINALIZED:
            idle = [(handle.id, command) for command in handle.context.leases.idle(handle.id)]
            try:
                closing = [(handle.id, each) for each in (*freed, AdvanceUpper(CLOSED), Retain(CLOSED))]
                handle.committer.commit(*idle, *closing)
                handle.committer.commit((handle.id, Finalize()))
            except (CollectionInUse, Fenced):
                return False, 0  # a reader still has a lease, or another process took a hold over just now
            except ClosedError:
                pass  # another process purges it too
        with self._at_work:
            kept = {rollup.key for rollup in handle.state().rollups.values()}
            self._run(handle.id, lambda session: maintain.roll_up(session, handle.id))
            gone = int(self._run(handle.id, lambda session: garbage.collect_garbage(session, handle.id)))
            gone += int(self._run(handle.id, lambda session: garbage.sweep(session, handle.id)))
        # The blobs of a writer that is still registered go when its lease expires. The tombstone stays: the log, the
        # rollup, and the one before, which the next garbage collection would delete.
        kept.update(rollup.key for rollup in handle.state().rollups.values())
        return all(info.key in kept for info in handle.context.blob.list_keys(f"{handle.id}/")), gone

    # Steps.

    def _is_at_rest(self, upkeep: MaintenanceTimes) -> bool:
        state = upkeep.handle.state()
        now = self._monotonic()
        if upkeep.written != (state.upper, state.unsealed_next):
            upkeep.written, upkeep.changed = (state.upper, state.unsealed_next), now
        return now - upkeep.changed >= REST_S

    def _step(
        self, upkeep: MaintenanceTimes, *, resting: bool, before: int | None = None, most: int | None = None
    ) -> bool:
        """Do one small thing; return whether there was one.

        `before` restricts merges to insertions before that one, `most` to a number of rows.
        """
        handle = upkeep.handle
        state = handle.state()
        if state.status is Status.FINALIZED:
            return self._collect(upkeep)
        self._expire(upkeep, state)
        least = 1 if resting or before is not None or not state.trace.coalesces_requests else GATHER
        if self._merge(upkeep, state, least=least, before=before, most=most):
            return True
        if self._collect(upkeep):
            return True
        if most is None and self._forget(handle, state):
            return True
        if is_untidy(state):
            self._run(handle.id, lambda session: maintain.tidy_unsealed(session, handle.id))
            state = handle.state()
        worth = worth_rewriting(state)
        if worth is not None and self._monotonic() >= upkeep.rewrite_after:
            done = self._run(handle.id, lambda session: maintain.rewrite_unsealed(session, handle.id, worth))
            upkeep.rewrite_after = self._monotonic() + (0.0 if done else EXPIRE_S)
            return bool(done)
        return resting and self._ask_for_more(upkeep, state)

    def _merge(
        self,
        upkeep: MaintenanceTimes,
        state: State,
        *,
        least: int,
        before: int | None = None,
        most: int | None = None,
        at_once: bool = False,
    ) -> bool:
        """Do one merge; return whether one was tried. One that fails or does not fit the disk is skipped for a while.

        So is a claimed one, though the merge may have failed; with `at_once` only if its process is still working.
        """
        handle = upkeep.handle
        now = self._monotonic()
        upkeep.skipped = {id: until for id, until in upkeep.skipped.items() if until > now}
        wanted = requests_worth_merging(state, handle, least=least, before=before, most=most)
        due = [
            request
            for request in wanted
            if request.id not in upkeep.skipped and not is_claimed(state, request, handle, at_once=at_once)
        ]
        self.report.passed_over += len(wanted) - len(due)
        if not due:
            return False
        request = due[0]
        if not fits(request, self._free_bytes):
            upkeep.skipped[request.id] = now + EXPIRE_S
            self.report.skip(f"{handle.name}: not enough free space for a merge of {size_of(request)} bytes", NO_SPACE)
            return False
        self.report.reported.discard(NO_SPACE)
        self.reason = ""
        applied = self._run(handle.id, lambda session: maintain.merge_once(session, handle.id, request.id))
        if applied is None or not getattr(applied, "is_applied", False):
            upkeep.skipped[request.id] = now + EXPIRE_S
            if self.reason:
                self.report.skip(f"{handle.name}: a merge of {size_of(request)} bytes failed: {self.reason}")
        else:
            self.report.merges += 1
        return True

    def _forget(self, handle: CollectionHandle, state: State) -> bool:
        """Request a rewrite of batches that may hold expired history, after the deadline; return whether it did."""
        if not is_forgetting_due(state, handle.now_ms(), handle.forget_within_ms):
            return False
        handle.committer.commit((handle.id, Forget(oldest_to_rewrite(handle, state), state.since)))
        return handle.known().seqno != state.seqno

    def _ask_for_more(self, upkeep: MaintenanceTimes, state: State) -> bool:
        """Request a merge that the spine did not request, if it pays; return whether it did."""
        handle = upkeep.handle
        if upkeep.judged == state.seqno:
            return False
        upkeep.judged = state.seqno
        lo = worth_compacting(state)
        command = worth_forgetting(state) if lo is None else RollUpAll(lo, extra=True)
        if command is None:
            return False
        handle.committer.commit((handle.id, command))
        return handle.known().seqno != state.seqno

    def _collect(self, upkeep: MaintenanceTimes, *, force: bool = False) -> bool:
        """Roll up and collect garbage when due; sweep once in a while. Return whether something was due and done."""
        handle = upkeep.handle
        state = handle.state()
        keep_ms = handle.context.keep_deleted_ms
        step = next_collect_step(state, handle.now_ms(), keep_ms)
        if step is CollectStep.WAIT and (idle := handle.context.leases.idle(handle.id)):
            handle.committer.commit(*((handle.id, command) for command in idle))
            state = handle.state()
            step = next_collect_step(state, handle.now_ms(), keep_ms)
        due = maintain.is_rollup_due(handle.config, state)
        if due or step is CollectStep.ROLL_UP or (force and state.seqno > max(state.rollups, default=0) + 2):
            try:
                self._roll_up(handle)
            except NoSpace:  # garbage collection from an older rollup frees space before it needs some
                if not self._collect_garbage(handle):
                    raise
                self._roll_up(handle)
        acts = due or step in (CollectStep.ROLL_UP, CollectStep.COLLECT)
        if acts or force:
            self._collect_garbage(handle)
        did = acts and handle.state().seqno != state.seqno
        now = self._monotonic()
        if now - upkeep.swept >= SWEEP_S:
            upkeep.swept = now
            if not self._sweep_turns.is_due(upkeep, handle.known().seqno, handle.now_ms()):
                return did
            sweep_temporary = getattr(handle.context.blob, "sweep_temporary", None)
            if sweep_temporary is not None:
                sweep_temporary(SWEEP_S, handle.context.clock())
            with contextlib.suppress(garbage.ForeignBlob):
                # The sweep commits nothing, so this process need not register with every existing collection.
                self.report.swept += handle.committer.look(lambda session: garbage.sweep(session, handle.id))
        return did

    def _roll_up(self, handle: CollectionHandle) -> None:
        self.report.rollups += self._run(handle.id, lambda session: maintain.roll_up(session, handle.id))

    def _collect_garbage(self, handle: CollectionHandle) -> int:
        # SUBTLE: read now. A process that knew an old setting would delete what is to be kept (test_keep_deleted.py).
        keep_ms = handle.context.keep_deleted_ms = handle.context.read_keep_ms()
        collected = self._run(handle.id, lambda session: garbage.collect_garbage(session, handle.id, keep_ms))
        self.report.collected += collected
        return collected

    def _expire(self, upkeep: MaintenanceTimes, state: State) -> None:
        """Expire leases, and move retention."""
        if (now := self._monotonic()) - upkeep.expired < EXPIRE_S:
            return
        upkeep.expired = now
        handle, id = upkeep.handle, upkeep.handle.id
        if has_lapsed_leases(handle, state):
            self.report.leases += self._run(id, lambda session: maintain.expire_lapsed_leases(session, id))
        if (horizon := retention_horizon(handle, state)) is not None:
            idle = [(handle.id, command) for command in handle.context.leases.idle(handle.id)]
            handle.committer.commit(*idle, (handle.id, Retain(horizon)))
