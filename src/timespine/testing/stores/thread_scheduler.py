"""A deterministic scheduler: real threads, of which exactly one runs at a time.

A thread lets others go on at *switch points*: at every call of storage, and wherever it
takes a lock, waits or sleeps. There a seed decides which thread goes on. Nothing else
runs meanwhile, so a history depends on the seed alone.

Time is virtual. It moves a little with every step, and jumps to the next timer when no
thread can go on. If there is no timer either, the threads wait for each other for ever:
a deadlock, which the scheduler reports with the reason of every wait.

A process is a set of threads. A killed one ends at its next switch point: the scheduler
raises `Killed` in each of its threads, and again for every call while they unwind. A
paused one does nothing until a later time.
"""

from __future__ import annotations

import _thread
import heapq
import random
from collections.abc import Callable

START_S = 1_700_000_000.0
"""The virtual wall clock when a history begins, in seconds."""

STEP_S = 0.003
"""The longest duration of one step, in virtual seconds."""


class Killed(BaseException):
    """The process of this thread is gone. Not an Exception, so that no handler of errors goes on after it."""


class VirtualProcess:
    """Threads that live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.machine = 0
        """The machine on which it runs."""
        self.is_dead = False
        """Whether it was killed."""
        self.paused_until = 0.0
        """The time before which none of its threads goes on."""
        self.tasks: list[ScheduledThread] = []
        """Its threads that have not ended."""


class ScheduledThread:
    """One thread, as the scheduler sees it."""

    __slots__ = ("baton", "is_done", "joining", "name", "parked", "process", "reason", "returns_to", "was_woken")

    def __init__(self, process: VirtualProcess, name: str) -> None:
        self.process = process
        self.name = name
        self.baton = _thread.allocate_lock()
        """A lock that is free when it is this thread's turn."""
        self.baton.acquire()
        self.reason = ""
        """The reason of its wait, for people."""
        self.parked = 0
        """The number of its wait; 0 if it can go on."""
        self.was_woken = False
        """Whether its last wait ended by a wake, and not by its timer."""
        self.is_done = False
        self.joining: list[ScheduledThread] = []
        """Threads that wait for its end."""
        self.returns_to: Callable[[], None] | None = None
        """The continuation after its end, if the scheduler ends it."""

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Scheduler:
    """Tasks, of which one runs at a time."""

    def __init__(self, seed: int, *, stay: float = 0.5) -> None:
        self.random = random.Random(seed)
        """The only source of chance of a history."""
        self.stay = stay
        """The chance that a thread goes on at a switch point without a choice among the others."""
        self.now = START_S
        """Virtual seconds."""
        self.steps = 0
        self.current: ScheduledThread | None = None
        """The thread that runs now."""
        self.on_step: Callable[[ScheduledThread, str], None] = lambda task, where: None
        """Called at every switch point; may kill or pause processes."""
        self.on_escape: Callable[[ScheduledThread, BaseException], None] = lambda task, error: None
        """Called when a thread ends by an exception."""
        self.is_over: Callable[[], bool] = lambda: False
        """Whether the history is to stop here."""
        self.deadlock: list[str] = []
        """The waits of all threads when none could go on."""
        self._ready: list[ScheduledThread] = []
        self._timers: list[tuple[float, int, ScheduledThread]] = []
        self._waits = 0
        self._processes: list[VirtualProcess] = []
        self._home = _thread.allocate_lock()
        self._home.acquire()

    # What threads call.

    def spawn(self, process: VirtualProcess, name: str, work: Callable[[], None]) -> ScheduledThread:
        """Begin a thread. It is not a switch point: the seed decides when the new one goes on."""
        task = ScheduledThread(process, name)
        if process not in self._processes:
            self._processes.append(process)
        process.tasks.append(task)
        self._ready.append(task)
        _thread.start_new_thread(self._run, (task, work))
        return task

    def switch(self, where: str) -> None:
        """Pass a switch point: another thread may go on here, and the process may be killed or paused."""
        task = self.current
        if task is None:
            return
        process, chance = task.process, self.random.random
        if process.is_dead:
            raise Killed
        self.steps += 1
        self.now += chance() * STEP_S
        self.on_step(task, where)
        if process.is_dead:
            raise Killed
        if self.is_over():
            self._give_home(task)
        elif process.paused_until > self.now or chance() >= self.stay:
            self._pass_on(task)

    def park(self, reason: str, timeout_s: float | None = None) -> bool:
        """Wait until this thread is woken, or until a timeout; return whether it was woken."""
        task = self.current
        assert task is not None
        self.check_alive()
        self._waits += 1
        task.parked, task.reason, task.was_woken = self._waits, reason, False
        self._ready.remove(task)
        if timeout_s is not None and timeout_s != float("inf"):
            heapq.heappush(self._timers, (self.now + max(timeout_s, 0.0), self._waits, task))
        self._pass_on(task)
        return task.was_woken

    def wake(self, task: ScheduledThread) -> None:
        """Let a thread that waits go on."""
        if task.parked:
            task.parked, task.was_woken = 0, True
            self._ready.append(task)

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        if self.current is not None:
            self.park("sleeps", seconds)

    def wait_for_any(self, tasks: list[ScheduledThread]) -> None:
        """Wait until one of these threads has ended."""
        if tasks and not any(each.is_done for each in tasks):
            self.wait_for_end(tasks)

    def wait_for_end(self, tasks: list[ScheduledThread], timeout_s: float | None = None) -> bool:
        """Wait until one of these threads ends; return False after the timeout."""
        me = self.current
        assert me is not None
        for each in tasks:
            each.joining.append(me)
        try:
            return self.park(f"waits for the end of {tasks}", timeout_s)
        finally:
            for each in tasks:
                each.joining.remove(me)

    def check_alive(self) -> None:
        """End this thread if its process is gone."""
        if self.current is not None and self.current.process.is_dead:
            raise Killed

    def kill(self, process: VirtualProcess) -> None:
        """End all threads of a process. Raise Killed if this is one of them."""
        process.is_dead = True
        for task in list(process.tasks):
            if task is not self.current:
                self._unwind(task)
        self.check_alive()

    # What the history calls.

    def run(self, work: Callable[[], None]) -> None:
        """Run work in a thread of its own, with all threads that it begins, until it ends; then end the others."""
        process = VirtualProcess("history")
        director = self.spawn(process, "director", work)
        director.returns_to = self._home.release
        self.current = director
        director.baton.release()
        self._home.acquire()
        self.current = None
        for each in self._processes:
            each.is_dead = True
        for each in self._processes:
            for task in list(each.tasks):
                self._unwind(task)

    def waiting(self) -> list[str]:
        """List the wait of every thread."""
        return [
            f"{task} {task.reason if task.parked else 'could go on'}"
            for process in self._processes
            for task in process.tasks
        ]

    # Handing over.

    def _run(self, task: ScheduledThread, work: Callable[[], None]) -> None:
        """Run a thread from its start to its end."""
        task.baton.acquire()
        try:
            if not task.process.is_dead:
                work()
        except Killed:
            pass
        except BaseException as error:
            self.on_escape(task, error)
        self._end(task)

    def _end(self, task: ScheduledThread) -> None:
        task.is_done = True
        task.process.tasks.remove(task)
        if task in self._ready:
            self._ready.remove(task)
        for each in list(task.joining):
            self.wake(each)
        if task.returns_to is not None:
            task.returns_to()
            return
        successor = self._choose()
        if successor is None:
            self._home.release()
            return
        self.current = successor
        successor.baton.release()

    def _pass_on(self, task: ScheduledThread) -> None:
        """Let the seed choose the next thread, and wait for the next turn of this one."""
        successor = self._choose()
        if successor is None:
            self._give_home(task)
        elif successor is not task:
            self.current = successor
            successor.baton.release()
            task.baton.acquire()
        self.check_alive()

    def _give_home(self, task: ScheduledThread) -> None:
        """Park this thread after the end of the history: it goes on once more only to end."""
        self._home.release()
        task.baton.acquire()
        self.check_alive()

    def _choose(self) -> ScheduledThread | None:
        """Choose the thread that goes on; None if none ever can."""
        while True:
            while self._timers and self._timers[0][0] <= self.now:
                _, number, task = heapq.heappop(self._timers)
                if task.parked == number and not task.is_done:
                    task.parked = 0
                    self._ready.append(task)
            now = self.now
            ready = [task for task in self._ready if task.process.paused_until <= now]
            if ready:
                return ready[int(self.random.random() * len(ready))] if len(ready) > 1 else ready[0]
            moments = [task.process.paused_until for task in self._ready]
            if self._timers:
                moments.append(self._timers[0][0])
            if not moments:
                self.deadlock = self.waiting()
                return None
            self.now = max(self.now, min(moments))

    def _unwind(self, task: ScheduledThread) -> None:
        """Let a thread of a dead process end, and wait for that."""
        caller = self.current
        ended = _thread.allocate_lock()
        ended.acquire()
        task.returns_to = ended.release
        self.current = task
        task.baton.release()
        ended.acquire()
        self.current = caller
