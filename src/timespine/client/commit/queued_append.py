"""Queued appends: small appends that wait in the queue of the committer, until the leading thread stages them.

The leading thread stages all queued appends of one kind as one, and commits them together with the waiting
transactions. So an append stands in one queue, and its rows are converted, encoded and committed with those of its
neighbours.

The stages of a queued append are a generator. It yields transactions, and receives the reply to each, or the error;
it ends when all its callers have a reply or an error. SUBTLE: a generator that is dropped, because its leader was
interrupted, must delete nothing: its transaction may be committed (tests/client/commit/test_interrupts.py).
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import Any, Protocol, TypeAlias, TypeGuard

from timespine.client.commit.leader_queue import PendingCall
from timespine.core.group import Answers, CommandTransaction, Origin, Refused

AppendCalls: TypeAlias = list[PendingCall[Any]]
"""The calls of some queued appends of one kind. Their items are of the class whose method gets them."""

Stages = Generator[CommandTransaction, Answers | Refused, None]
"""A generator that yields transactions to commit, and receives the replies."""


class QueuedAppend(Protocol):
    """A call that waits to become part of a transaction."""

    @property
    def kind(self) -> Hashable:
        """The kind of the queued append: queued appends of one kind are staged together."""

    @property
    def collection(self) -> str:
        """The id of the collection that it is for."""

    def stages(self, group: AppendCalls) -> Stages:
        """Stage all queued appends of a group, which are of this kind, and give each its reply or its error."""

    def relay(self, group: AppendCalls) -> Handover | None:
        """Return a group of queued appends of this kind for another process to commit; None if only this one can."""


class Handover(Protocol):
    """Queued appends of one kind, while another process commits them."""

    def encode(self, origin: Origin) -> bytes | None:
        """Encode the queued appends, as the group `origin`; return None if another process could not take them."""

    def accept(self, reply: bytes) -> bool:
        """Give each queued append its reply; return False if the other process did not commit them."""

    def accept_recorded(self, seqno: int, first: int) -> None:
        """Give each queued append its reply, by the commit and the first time that the state recorded for them."""


QueuedCalls: TypeAlias = list[PendingCall[CommandTransaction | QueuedAppend]]
"""Calls in the queue of a committer."""


class StagedAppends:
    """Queued appends of one kind while they are committed: their present transaction, and its reply or error."""

    __slots__ = ("_group", "_stages", "error", "item", "reply")

    def __init__(self, group: AppendCalls) -> None:
        self._group = group
        self._stages: Stages = group[0].item.stages(group)
        self.item = NOTHING
        """The transaction to commit."""
        self.reply: Answers | Refused | None = None
        self.error: BaseException | None = None

    def advance(self) -> bool:
        """Pass the reply of the last transaction on; return whether there is another one to commit."""
        reply, error = self.reply, self.error
        self.reply = self.error = None
        try:
            if error is not None:
                self.item = self._stages.throw(error)
            elif reply is not None:
                self.item = self._stages.send(reply)
            else:
                self.item = next(self._stages)
        except StopIteration:
            return False
        except Exception as failure:
            for each in self._group:
                if not each.is_done:
                    each.error = failure
            return False
        return True


NOTHING = CommandTransaction(())


def is_transaction(call: PendingCall[CommandTransaction | QueuedAppend]) -> TypeGuard[PendingCall[CommandTransaction]]:
    """Tell whether a call is a transaction, and no queued append."""
    return isinstance(call.item, CommandTransaction)


def appends_by_kind(group: QueuedCalls) -> list[AppendCalls]:
    """List the queued appends of a group by their kinds."""
    by_kind: dict[Hashable, AppendCalls] = {}
    for each in group:
        if not isinstance(each.item, CommandTransaction):
            by_kind.setdefault(each.item.kind, []).append(each)
    return list(by_kind.values())


def stage_by_kind(group: QueuedCalls) -> list[StagedAppends]:
    """Stage the queued appends of a group by their kinds; return those that have a transaction."""
    return [staged for each in appends_by_kind(group) if (staged := StagedAppends(each)).advance()]
