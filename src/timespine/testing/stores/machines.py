"""The machines of a history: roles that a process loses when it dies, and channels that lose requests and replies."""

from __future__ import annotations

from timespine.errors import Determinate, Indeterminate
from timespine.location.machine.channel import ANSWER_S, Answer
from timespine.testing.stores.thread_scheduler import ScheduledThread, Scheduler, VirtualProcess
from timespine.testing.stores.world import StoreWorld

RELAY = "timespine-relay"
"""The name of threads that carry out requests."""


class Machines:
    """What the processes of each machine share."""

    def __init__(self, world: StoreWorld, scheduler: Scheduler) -> None:
        self.world = world
        self.scheduler = scheduler
        self.roles: dict[tuple[int, str], VirtualProcess] = {}
        """By machine and name of a role: the process that has it, or that died with it."""
        self.listeners: dict[tuple[int, str], tuple[VirtualProcess, Answer]] = {}
        """By machine and name of a channel: the process that listens, and how it answers."""
        self.fail = 0.0
        """The chance that a request or its reply is lost."""

    @property
    def process(self) -> VirtualProcess:
        """The process of the running thread."""
        assert self.scheduler.current is not None
        return self.scheduler.current.process

    def roles_of(self, process: VirtualProcess) -> list[str]:
        """Return the names of the roles that a process has."""
        return [name for (_, name), holder in self.roles.items() if holder is process]


class SimulatedRole:
    """A role of the processes of one machine, which the machine takes from a process that dies."""

    def __init__(self, machines: Machines, name: str) -> None:
        self._machines = machines
        self._name = name

    @property
    def _key(self) -> tuple[int, str]:
        return self._machines.process.machine, self._name

    def take(self) -> bool:
        """Take the role without waiting; return whether this process has it."""
        machines = self._machines
        machines.scheduler.switch(f"take the role of the {self._name}")
        holder = machines.roles.setdefault(self._key, machines.process)
        if holder.is_dead:
            machines.world.counts["roles taken over"] += 1
            holder = machines.roles[self._key] = machines.process
        return holder is machines.process

    def release(self) -> None:
        """Give the role back."""
        machines = self._machines
        machines.scheduler.check_alive()
        if machines.roles.get(self._key) is machines.process:
            del machines.roles[self._key]


class SimulatedChannel(SimulatedRole):
    """Requests to the process that has a role: each runs in a thread of that process."""

    def listen(self, answer: Answer) -> bool:
        """Answer requests from now on."""
        self._machines.listeners[self._key] = self._machines.process, answer
        return True

    def ask(self, request: bytes) -> bytes:
        """Let the process that has the role carry out a request, and wait for its reply."""
        machines, scheduler = self._machines, self._machines.scheduler
        scheduler.switch("ask the appender")
        listener, answer = machines.listeners.get(self._key, (None, bytes))
        if listener is None or listener.is_dead:
            raise Determinate("there is no process to ask")
        chance = scheduler.random.random()
        if chance < machines.fail / 2:
            machines.world.counts["requests lost"] += 1
            raise Indeterminate("injected: the request was lost")
        replies: list[bytes] = []
        task = scheduler.spawn(listener, RELAY, lambda: replies.append(answer(request)))
        deadline = scheduler.now + ANSWER_S
        while not task.is_done and scheduler.now < deadline:
            scheduler.wait_for_end([task], deadline - scheduler.now)
        if not replies or chance < machines.fail:
            machines.world.counts["requests in doubt"] += 1
            raise Indeterminate("the appender did not reply")
        machines.world.counts["requests answered"] += 1
        return replies[0]

    def stop(self, limit_s: float) -> bool:
        """Take no more requests, and wait for those that were begun; return False if one still runs after the limit."""
        machines, scheduler = self._machines, self._machines.scheduler
        process, _ = machines.listeners.get(self._key, (None, bytes))
        if process is machines.process:
            del machines.listeners[self._key]
        deadline = scheduler.now + limit_s
        while (running := self._running()) and scheduler.now < deadline:
            scheduler.wait_for_end(running, deadline - scheduler.now)
        return not running

    def _running(self) -> list[ScheduledThread]:
        return [each for each in self._machines.process.tasks if each.name == RELAY]
