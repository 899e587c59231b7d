"""States and groups that tests of groups share."""

from __future__ import annotations

from typing import Any

from state_harness import TERM_MS, StateHarness, at, batch, inline_part, up

from timespine.core.group import CommandTransaction, Evaluated, Group, evaluate
from timespine.core.transitions import CompareAndAppend, RegisterCommitter
from timespine.model import Frontier


class Stage:
    """Several scenes, and groups of one committer over them."""

    def __init__(self, *names: str, committer: str | None = "k1") -> None:
        self.scenes = {name: StateHarness(collection=name) for name in names}
        self.committer = committer
        self.number = 0
        for scene in self.scenes.values():
            scene.do(RegisterCommitter("k1", TERM_MS))

    def group(self, *transactions: CommandTransaction, writer: str | None = None) -> Group:
        self.number += 1
        return Group(transactions, self.committer, self.number if self.committer else 0, writer)

    def judge(self, group: Group, now_ms: int = 0) -> Any:
        known = {name: self.scenes[name].state for name in group.collections() if name in self.scenes}
        return evaluate(known, group, now_ms)

    def commit(self, *transactions: CommandTransaction, now_ms: int = 0, writer: str | None = None) -> Evaluated:
        """Judge a group, and make what it changes the state, after every check."""
        judged = self.judge(self.group(*transactions, writer=writer), now_ms)
        assert isinstance(judged, Evaluated), judged
        self.take(judged)
        return judged

    def take(self, judged: Evaluated) -> None:
        for name, state in judged.changed.items():
            self.scenes[name].advance(state)

    def seqnos(self) -> dict[str, int]:
        return {name: scene.state.seqno for name, scene in self.scenes.items()}


def append(collection: str, lower: int, upper: int, *rows: str) -> tuple[str, CompareAndAppend]:
    part = inline_part([up(row, lower) for row in rows])
    return collection, CompareAndAppend((batch(at(lower), at(upper), part),), at(lower), at(upper))


def tx(*commands: tuple[str, Any], reads: tuple[tuple[str, Frontier], ...] = ()) -> CommandTransaction:
    return CommandTransaction(commands, reads)
