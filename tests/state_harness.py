"""A collection on stage: its state, the oracle beside it, and every check on every commit.

Parts hold their updates as JSON, inline or in a dict of blobs, so that a read
through a plan can be compared with the oracle, which never forgets anything.

`StateHarness.do` carries out a command and checks what must hold for every commit of
any kind: the diff survives its encoding and leads to the same state, a follower
that knows only diffs has that state too, the whole state survives its encoding,
no invariant is broken, and no blob that could be deleted is referred to again.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import msgspec
from assertions import check

from timespine.core.batch import HollowBatch, Order, Part, Run, wrap_int64
from timespine.core.encoding.codec import decode_diff, decode_state, encode_diff, encode_state
from timespine.core.encoding.flat_spine import flatten
from timespine.core.encoding.state_diff import apply_diff, diff
from timespine.core.invariants import violations
from timespine.core.read_plan import Plan, plan_changes, plan_snapshot
from timespine.core.spine.layers import MergePolicyKind, MergeRequest
from timespine.core.state import Commit, NoOp, State, new_state
from timespine.core.transitions import AddSchema, ApplyMerge, Command, CompareAndAppend, RegisterWriter, Write, apply
from timespine.errors import NotSealed, SinceError, UsageError
from timespine.model import Description, Frontier, Time, advance_by
from timespine.model import time as times
from timespine.model.oracle import Oracle, OracleRow, Update, compact

TERM_MS = 1000
"""The term of every lease that a scene takes by itself."""

WRITER = "w1"
"""The writer that every scene has from the start."""


def at(*coordinates: int) -> Frontier:
    """The frontier of one time; without coordinates the closed one."""
    return Frontier((coordinates,)) if coordinates else Frontier()


def up(row: str, when: int | Time, count: int = 1) -> Update:
    """An update; a bare number is a time of one coordinate."""
    return row, (when,) if isinstance(when, int) else when, count


def encoded(updates: Iterable[Update]) -> bytes:
    """Updates as the bytes of a part."""
    return json.dumps(list(updates)).encode()


@functools.lru_cache(10_000)
def decoded(data: bytes) -> list[Update]:
    """The updates in the bytes of a part."""
    return [(row, tuple(when), count) for row, when, count in json.loads(data)]


def inline_part(updates: list[Update], **changes: Any) -> Part:
    """A part that keeps its updates in the state itself."""
    data = encoded(updates)
    part = Part("", len(updates), len(data), diff_sum_of(updates), data)
    return msgspec.structs.replace(part, **changes)


def diff_sum_of(updates: Iterable[Update]) -> int:
    """The sum of the diffs, as a part keeps it."""
    return wrap_int64(sum(count for _, _, count in updates))


def batch(
    lower: Frontier, upper: Frontier, *parts: Part, since: Frontier | None = None, order: Order = Order.SORTED
) -> HollowBatch:
    """A hollow batch with one run per part."""
    exact_from = Frontier.minimum(lower.arity or 1) if since is None else since
    runs = tuple(Run((part,), order) for part in parts)
    return HollowBatch(Description(lower, upper, exact_from), sum(part.rows for part in parts), runs)


def bounds_of(updates: Iterable[Update]) -> tuple[Frontier, Time]:
    """The minimal times of updates, and a time at or after all of them."""
    moments = [when for _, when, _ in updates]
    return Frontier(tuple(moments)), tuple(map(max, *moments, moments[0]))


def same_state(one: State, other: State) -> list[str]:
    """The fields in which two states differ, layers of the trace included."""
    plain = (name for name in State.__struct_fields__ if name != "trace")
    # By == alone: a sequence may define it and leave != to its base class.
    fields = [name for name in plain if (getattr(one, name) == getattr(other, name)) is False]
    if one.trace.merging is not other.trace.merging:
        fields.append("merging")
    if flatten(one.trace) != flatten(other.trace) or one.trace.next_id != other.trace.next_id:
        fields.append("trace")
    if one.trace.upper != other.trace.upper or one.trace.describe() != other.trace.describe():
        fields.append("layers")
    return fields


class StateHarness:
    """One collection, its history as an oracle, and a follower that reads only diffs."""

    def __init__(
        self, arity: int = 1, collection: str = "c", merging: MergePolicyKind = MergePolicyKind.FUELED
    ) -> None:
        self.state = new_state(collection, arity, merging)
        self.follower = decode_state(encode_state(self.state))
        self.now_ms = 0
        self.blobs: dict[str, bytes] = {}
        self.gone: set[str] = set()
        """Blobs that no state refers to any more: garbage collection may have them."""
        self.oracle = Oracle(arity)
        self.do(RegisterWriter(WRITER, TERM_MS))

    def do(self, command: Command, now_ms: int | None = None) -> Any:
        """Carry out a command that must commit; its reply."""
        committed, reply = self.attempt(command, now_ms)
        check(committed, f"{command} did not commit: {reply!r}")
        return reply

    def evolve(self, times: int) -> None:
        """Give the collection so many schemas."""
        for number in range(times):
            self.do(AddSchema(number - 1 if number else None, f"schema {number}".encode()))

    def declined(self, command: Command | Callable[[], Command], now_ms: int | None = None) -> Any:
        """Carry out a command that must change nothing, or make one that cannot be made; its reply, or the error."""
        if isinstance(command, FunctionType):
            try:
                command = command()
            except UsageError as error:
                return error
        committed, reply = self.attempt(command, now_ms)
        check(not committed, f"{command} committed: {reply!r}")
        return reply

    def attempt(self, command: Command, now_ms: int | None = None) -> tuple[bool, Any]:
        """Carry out a command; whether it committed, and its reply."""
        outcome = apply(self.state, command, self.now_ms if now_ms is None else now_ms)
        if isinstance(outcome, NoOp):
            return False, outcome.reply
        check(isinstance(outcome, Commit))
        self.advance(msgspec.structs.replace(outcome.state, seqno=self.state.seqno + 1))
        return True, outcome.reply

    def advance(self, new: State) -> None:
        """Take the next state, after every check that a commit must pass."""
        old = self.state
        change = decode_diff(encode_diff(diff(old, new)))
        for which, base in (("the writer", old), ("a follower", self.follower)):
            wrong = same_state(apply_diff(base, change), new)
            check(not wrong, f"the diff as applied by {which} differs in {wrong}")
        wrong = same_state(decode_state(encode_state(new)), new)
        check(not wrong, f"the state as stored differs in {wrong}")
        broken = violations(old, new)
        check(not broken, f"broken: {broken}")
        keys = set(new.keys())
        check(not keys & self.gone, f"blobs {keys & self.gone} came back after they could be deleted")
        self.gone |= set(old.keys()) - keys
        self.follower = apply_diff(self.follower, change)
        self.state = new
        self.oracle.upper, self.oracle.since = new.upper, new.since

    def blob_part(self, key: str, updates: list[Update], **changes: Any) -> Part:
        """A part in a blob, which is put at once."""
        data = encoded(updates)
        self.blobs[key] = data
        return msgspec.structs.replace(Part(key, len(updates), len(data), diff_sum_of(updates)), **changes)

    def append(self, upper: Frontier, *updates: Update, key: str | None = None) -> Any:
        """Compare-and-append updates from the upper on, inline or in a blob."""
        listed = list(updates)
        parts = [self.blob_part(key, listed) if key else inline_part(listed)] if listed else []
        lower = self.state.upper
        reply = self.do(CompareAndAppend((batch(lower, upper, *parts),), lower, upper))
        self.oracle.updates.extend(listed)
        return reply

    def write(self, *updates: Update, key: str | None = None) -> int:
        """Write unsealed updates; the number of the write."""
        listed = list(updates)
        lower, latest = bounds_of(listed)
        part = self.blob_part(key, listed) if key else inline_part(listed)
        number: int = self.do(Write(lower, latest, (part,)))
        self.oracle.updates.extend(listed)
        return number

    def data(self, part: Part) -> list[Update]:
        """All updates in a part, visible or not."""
        return decoded(self.blobs[part.key] if part.inline is None else part.inline)

    def visible(self, part: Part) -> list[Update]:
        """The updates that are seen through a reference, at the times they are seen at."""
        seen: list[Update] = []
        for row, when, count in self.data(part):
            hidden = part.lower is not None and not part.lower.less_equal(when)
            if hidden or (part.upper is not None and part.upper.less_equal(when)):
                continue
            seen.append((row, when if part.rewrite is None else advance_by(when, part.rewrite), count))
        return seen

    def read(self, plan: Plan) -> dict[OracleRow, int]:
        """What a plan leads to."""
        counts: dict[OracleRow, int] = {}
        for part in plan.parts:
            for row, when, count in self.data(part):
                if plan.counts(part, when):
                    counts[row] = counts.get(row, 0) + count
        return {row: count for row, count in counts.items() if count}

    def snapshot(self, *as_of: int) -> dict[OracleRow, int]:
        """The collection as of a time that must be readable."""
        plan = plan_snapshot(self.state, as_of)
        check(isinstance(plan, Plan), f"{as_of} cannot be read: {plan}")
        return self.read(plan)  # type: ignore[arg-type]

    def merged(self, request: MergeRequest, key: str | None = None) -> HollowBatch:
        """The naive answer to a merge request: all visible updates, compacted, in one sorted part."""
        seen = (update for each in request.inputs for part in each.parts for update in self.visible(part))
        updates = sorted(compact(seen, request.desc.since))
        if not updates:
            return HollowBatch(request.desc, 0)
        part = self.blob_part(key, updates) if key else inline_part(updates)
        return HollowBatch(request.desc, len(updates), (Run((part,)),))

    def merge_all(self) -> int:
        """Answer every merge request there is; how many."""
        requests = self.state.trace.requests()
        for request in requests:
            applied = self.do(ApplyMerge(self.merged(request), WRITER))
            check(applied.is_applied, str(applied))
        return len(requests)

    def grid(self) -> list[Time]:
        """The times at which something may be different: every mix of coordinates that occur, and a bit more."""
        moments = [when for _, when, _ in self.oracle.updates]
        moments += [*self.state.upper, *self.state.since, (0,) * self.state.arity]
        axes = [sorted({c for each in axis for c in (each, each + 1)}) for axis in zip(*moments, strict=True)]
        return thinned(list(itertools.product(*axes)), 100)

    def agree(self) -> None:
        """Check that every snapshot and every change, or its refusal, is what the oracle says."""
        readable = []
        for as_of in self.grid():
            plan = plan_snapshot(self.state, as_of)
            try:
                expected = self.oracle.snapshot(as_of)
            except (SinceError, NotSealed) as error:
                check(type(plan) is type(error), f"{as_of}: {plan} where the oracle says {error}")
                continue
            check(isinstance(plan, Plan), f"{as_of} is readable, and refused: {plan}")
            found = self.read(plan)  # type: ignore[arg-type]
            check(found == expected, f"as of {as_of}: {found}, the oracle has {expected}")
            readable.append(as_of)
        pairs = itertools.combinations(thinned(readable, 16), 2)
        for after, until in thinned([each for each in pairs if times.less_equal(*each)], 40):
            plan = plan_changes(self.state, after, until)
            check(isinstance(plan, Plan), f"({after}, {until}] is readable, and refused: {plan}")
            found, expected = self.read(plan), self.oracle.changes(after, until)  # type: ignore[arg-type]
            check(found == expected, f"in ({after}, {until}]: {found}, the oracle has {expected}")


def thinned(items: list[Any], most: int) -> list[Any]:
    """All items, or about that many of them, evenly spread."""
    return items[:: max(1, -(-len(items) // most))]
