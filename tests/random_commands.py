"""A walk over every command: one choice after the other decides what happens to a scene.

`choose(n)` gives a number from 0 to n - 1. Hypothesis can make the choices (and
shrink them), or a seeded generator, for tests that only need a state with
something of everything in it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from assertions import check
from state_harness import TERM_MS, WRITER, StateHarness, batch, bounds_of, inline_part

from timespine.core.batch import HollowBatch, Order, Part
from timespine.core.spine.layers import MergePolicyKind, MergeRequest
from timespine.core.state import Status
from timespine.core.transitions import (
    TRANSITIONS,
    AddRollup,
    AddSchema,
    AdvanceUpper,
    Append,
    AppendNext,
    ApplyMerge,
    ClaimMerge,
    ClaimTurn,
    Command,
    CommitSink,
    CompareAndAppend,
    CompareAndDowngrade,
    DowngradeReader,
    Drain,
    DropSink,
    Evict,
    Exert,
    ExpireCommitter,
    ExpireLeases,
    ExpireReader,
    ExpireWriter,
    Finalize,
    Forget,
    HeartbeatWriter,
    Refresh,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    RegisterWriter,
    ReleaseHold,
    ReleaseTurn,
    RemoveRollups,
    Retain,
    RollUpAll,
    Seal,
    ThinRollups,
    Trim,
    Write,
)
from timespine.core.unsealed_index import UnsealedBatch
from timespine.model import CLOSED, Description, Frontier, advance_by
from timespine.model.oracle import Update

Choose = Callable[[int], int]

ROWS = ("a", "b", "c")
COUNTS = (1, 1, 2, -1)
AHEAD = 3
"""How far ahead of the upper a walk goes in one step."""


class RandomCommands:
    """A scene, whoever chooses, and what late workers still carry around."""

    def __init__(self, choose: Choose, arity: int = 1, merging: MergePolicyKind = MergePolicyKind.FUELED) -> None:
        self.scene = StateHarness(arity, merging=merging)
        self.choose = choose
        self.names = itertools.count()
        self.late: list[MergeRequest] = []
        """Requests that somebody works on since earlier states."""
        self.committed: dict[type, int] = dict.fromkeys(TRANSITIONS, 0)
        """How often each command went through."""

    def step(self) -> None:
        """Do one thing, which may be refused."""
        rule = RULES[self.choose(len(RULES))]
        command, gained = rule(self)
        before = self.scene.state
        committed, reply = self.scene.attempt(command)
        if committed:
            self.committed[type(command)] += 1
            self.scene.oracle.updates.extend(gained)
        else:
            check(self.scene.state is before)
        check(reply is not NotImplemented)

    def run(self, steps: int, agree_every: int = 8) -> StateHarness:
        """Do many things, and compare all reads with the oracle now and then, before and after merging."""
        for number in range(1, steps + 1):
            self.step()
            if number % agree_every == 0:
                self.scene.agree()
        self.settle()
        return self.scene

    def settle(self) -> None:
        """Merge everything into one run; no read may notice."""
        self.scene.agree()
        self.scene.attempt(Drain())
        self.scene.agree()
        self.scene.attempt(Evict())
        self.scene.agree()
        self.scene.attempt(RollUpAll())
        self.scene.merge_all()
        self.scene.agree()
        check(self.scene.state.trace.batch_count <= 1)

    # What the choices are made from.

    def pick(self, options: Any) -> Any:
        listed = list(options)
        return listed[self.choose(len(listed))]

    def later(self, frontier: Frontier) -> Frontier:
        """A frontier at or after one, and not far."""
        if frontier.is_closed:
            return frontier
        joined = frontier
        for _ in range(1 + self.choose(2)):
            time = self.pick(frontier)
            steps = tuple(coordinate + self.choose(AHEAD + 1) for coordinate in time)
            joined = joined.join(Frontier((steps,))) if self.choose(2) else joined.join(frontier.insert(steps))
        return joined

    def updates(self, lower: Frontier, upper: Frontier) -> list[Update]:
        """A few updates at times in [lower, upper), near its beginning."""
        bounds = Description(lower, lower.join(upper), lower)
        chosen: list[Update] = []
        for _ in range(self.choose(6) if len(lower) else 0):
            time = tuple(coordinate + self.choose(AHEAD + 1) for coordinate in self.pick(lower))
            if bounds.contains(time):
                chosen.append((self.pick(ROWS), time, self.pick(COUNTS)))
        return chosen

    def part(self, updates: list[Update], writer: str = WRITER) -> Part:
        """A part with these updates: inline, or in a blob."""
        if self.choose(2) and writer in self.scene.state.writers:
            return self.scene.blob_part(f"c/{writer}/p{next(self.names)}", updates)
        return inline_part(updates)

    def name_of(self, kind: str, known: Iterable[str] = ()) -> str:
        """A name that is known, or one that may be."""
        return str(self.pick([*known, f"{kind}{self.choose(3)}"]))

    def request(self) -> MergeRequest | None:
        """One of the requests there are, or one that a late worker still has."""
        options = [*self.state_requests(), *self.late[-3:]]
        return self.pick(options) if options else None

    def state_requests(self) -> list[MergeRequest]:
        return self.scene.state.trace.requests()


Chosen = tuple[Command, list[Update]]


def _append(walk: RandomCommands) -> Chosen:
    lower = walk.scene.state.upper
    upper = walk.later(lower)
    updates = walk.updates(lower, upper)
    batches = (batch(lower, upper, walk.part(updates)),) if updates else ()
    return CompareAndAppend(batches, lower, upper), updates


def _append_more_than_fits(walk: RandomCommands) -> Chosen:
    """A batch that spans more than the append: its parts are truncated."""
    lower = walk.scene.state.upper
    upper = walk.later(lower)
    beyond = walk.later(upper)
    updates = walk.updates(Frontier.minimum(walk.scene.state.arity), beyond) + walk.updates(lower, beyond)
    inside = Description(lower, upper, lower)
    wide = batch(Frontier.minimum(walk.scene.state.arity), beyond, walk.part(updates))
    return CompareAndAppend((wide,), lower, upper), [each for each in updates if inside.contains(each[1])]


def _append_cut_before(walk: RandomCommands) -> Chosen:
    """A batch that spans more than the append, and of which only some was visible before."""
    command, gained = _append_more_than_fits(walk)
    (wide,) = command.batches
    (part,) = wide.parts
    lower = walk.later(Frontier.minimum(walk.scene.state.arity))
    seen = Description(lower, walk.later(lower), lower)
    cut = batch(wide.desc.lower, wide.desc.upper, msgspec.structs.replace(part, lower=seen.lower, upper=seen.upper))
    cut_command = msgspec.structs.replace(command, batches=(cut,))
    return cut_command, [each for each in gained if seen.contains(each[1])]


def _append_rewritten(walk: RandomCommands) -> Chosen:
    """A batch that may begin before the append, rewritten to times that may be in it."""
    lower, minimum = walk.scene.state.upper, Frontier.minimum(walk.scene.state.arity)
    upper = walk.later(lower)
    rewrite = walk.later(walk.pick((lower, minimum)))
    updates = walk.updates(minimum, upper) + walk.updates(lower, upper)
    part = msgspec.structs.replace(walk.part(updates), rewrite=rewrite)
    wide = batch(walk.pick((lower, minimum)), walk.pick((upper, walk.later(upper))), part)
    inside = [each for each in updates if wide.desc.contains(each[1])]
    if len(inside) < len(updates):
        return Exert(0), []  # a caller that lies about its own data
    return CompareAndAppend((wide,), lower, upper), [(row, advance_by(when, rewrite), n) for row, when, n in updates]


def _append_next(walk: RandomCommands) -> Chosen:
    upper = walk.scene.state.upper
    ((free, *_), *_) = upper.elements or ((0,),)
    at, arity = walk.choose(free + AHEAD), walk.scene.state.arity
    updates: list[Update] = [(walk.pick(ROWS), (at,), walk.pick(COUNTS)) for _ in range(walk.choose(4))]
    further = walk.pick((None, None, free + walk.choose(AHEAD)))
    command = AppendNext(batch(upper, upper, walk.part(updates)), at, further)
    return command, [(row, (max(at, free),), count) for row, _, count in updates] if arity == 1 else []


def _append_elsewhere(walk: RandomCommands) -> Chosen:
    lower = walk.later(Frontier.minimum(walk.scene.state.arity))
    upper = walk.later(lower)
    updates = walk.updates(lower, upper)
    good = updates if lower == walk.scene.state.upper else []
    return CompareAndAppend((batch(lower, upper, inline_part(updates)),), lower, upper), good


def _append_replicated(walk: RandomCommands) -> Chosen:
    lower = Frontier.minimum(walk.scene.state.arity)
    upper = walk.later(walk.scene.state.upper)
    updates = walk.updates(lower, upper) + walk.updates(walk.scene.state.upper, upper)
    new = Description(walk.scene.state.upper, upper, lower)
    return Append(batch(lower, upper, walk.part(updates))), [each for each in updates if new.contains(each[1])]


def _advance(walk: RandomCommands) -> Chosen:
    return AdvanceUpper(walk.later(walk.scene.state.upper)), []


def _write(walk: RandomCommands) -> Chosen:
    lower = walk.scene.state.upper
    updates = walk.updates(lower, walk.later(walk.later(lower)))
    if not updates:
        return Write(lower, (0,) * walk.scene.state.arity, ()), []
    least, latest = bounds_of(updates)
    half = walk.choose(len(updates) + 1)
    parts = tuple(walk.part(piece) for piece in (updates[:half], updates[half:]) if piece)
    return Write(least, latest, parts), updates


def _seal(walk: RandomCommands) -> Chosen:
    return Seal(walk.later(walk.scene.state.upper)), []


def _drain(walk: RandomCommands) -> Chosen:
    return Drain(), []


def _evict(walk: RandomCommands) -> Chosen:
    return Evict(), []


def _unsealed(walk: RandomCommands) -> UnsealedBatch | None:
    options = list(walk.scene.state.unsealed)
    return walk.pick(options) if options else None


def _trim_bounds(walk: RandomCommands) -> Chosen:
    unsealed = _unsealed(walk)
    return Trim(unsealed.seqno if unsealed else 0), []


def _trim_bytes(walk: RandomCommands) -> Chosen:
    unsealed = _unsealed(walk)
    if unsealed is None:
        return Trim(0), []
    against = walk.scene.state.trace.upper
    seen = (update for part in unsealed.parts for update in walk.scene.visible(part))
    kept = [update for update in seen if against.less_equal(update[1])]
    return Trim(unsealed.seqno, (walk.part(kept),) if kept else (), against), []


def _retain(walk: RandomCommands) -> Chosen:
    return Retain(walk.later(walk.scene.state.retention)), []


def _register_reader(walk: RandomCommands) -> Chosen:
    since = walk.later(walk.scene.state.since) if walk.choose(2) else None
    return RegisterReader(walk.name_of("r"), since, TERM_MS), []


def _downgrade_reader(walk: RandomCommands) -> Chosen:
    since = walk.later(walk.scene.state.since) if walk.choose(2) else None
    seqno = walk.scene.state.seqno if walk.choose(2) else None
    return DowngradeReader(walk.name_of("r", walk.scene.state.readers), since, seqno), []


def _expire_reader(walk: RandomCommands) -> Chosen:
    return ExpireReader(walk.name_of("r", walk.scene.state.readers)), []


def _register_hold(walk: RandomCommands) -> Chosen:
    since = walk.later(walk.scene.state.since) if walk.choose(2) else None
    return RegisterHold(walk.name_of("h", walk.scene.state.holds), since, walk.name_of("t")), []


def _downgrade_hold(walk: RandomCommands) -> Chosen:
    name, since = walk.name_of("h", walk.scene.state.holds), walk.later(walk.scene.state.since)
    return CompareAndDowngrade(name, walk.name_of("t"), walk.name_of("t"), since), []


def _release_hold(walk: RandomCommands) -> Chosen:
    return ReleaseHold(walk.name_of("h", walk.scene.state.holds), walk.name_of("t")), []


def _expire_leases(walk: RandomCommands) -> Chosen:
    walk.scene.now_ms += walk.choose(3) * TERM_MS // 2
    return ExpireLeases(), []


def _register_writer(walk: RandomCommands) -> Chosen:
    return RegisterWriter(walk.pick((WRITER, WRITER, "w2")), TERM_MS), []


def _heartbeat_writer(walk: RandomCommands) -> Chosen:
    return HeartbeatWriter(walk.pick((WRITER, "w2")), walk.pick((None, None, 3 * TERM_MS))), []


def _expire_writer(walk: RandomCommands) -> Chosen:
    return ExpireWriter("w2"), []


def _register_committer(walk: RandomCommands) -> Chosen:
    return RegisterCommitter(walk.name_of("k"), TERM_MS), []


def _expire_committer(walk: RandomCommands) -> Chosen:
    return ExpireCommitter(walk.name_of("k", walk.scene.state.committers)), []


def _commit_sink(walk: RandomCommands) -> Chosen:
    return CommitSink(walk.name_of("s", walk.scene.state.sinks), walk.choose(6)), []


def _drop_sink(walk: RandomCommands) -> Chosen:
    return DropSink(walk.name_of("s", walk.scene.state.sinks)), []


def _add_schema(walk: RandomCommands) -> Chosen:
    known = len(walk.scene.state.schemas)
    return AddSchema(known - 1 if known else None, b"schema %d" % walk.choose(3)), []


def _add_rollup(walk: RandomCommands) -> Chosen:
    seqno = walk.scene.state.seqno - walk.choose(min(3, walk.scene.state.seqno + 1))
    dropped = walk.scene.state.totals.dropped_bytes
    asked_ms = None if walk.scene.state.forgetting is None else walk.scene.state.forgetting.asked_ms
    key = f"c/{WRITER}/rollup{next(walk.names)}"
    return AddRollup(seqno, key, 100, dropped - walk.choose(dropped + 1), asked_ms, walk.choose(2) == 1), []


def _remove_rollups(walk: RandomCommands) -> Chosen:
    below = walk.pick((*walk.scene.state.rollups, walk.scene.state.seqno))
    return RemoveRollups(below, walk.choose(4) == 0), []


def _thin_rollups(walk: RandomCommands) -> Chosen:
    return ThinRollups(tuple(walk.scene.state.rollups)), []


def _claim_turn(walk: RandomCommands) -> Chosen:
    walk.scene.now_ms += walk.choose(3) * TERM_MS // 8
    return ClaimTurn(walk.pick((WRITER, "w2")), 1 + walk.choose(TERM_MS // 4)), []


def _release_turn(walk: RandomCommands) -> Chosen:
    return ReleaseTurn(walk.pick((WRITER, "w2"))), []


def _claim(walk: RandomCommands) -> Chosen:
    request = walk.request()
    if request is not None:
        walk.late.append(request)
    return ClaimMerge(request.id if request else (0, 1), walk.name_of("w"), TERM_MS), []


def _merge(walk: RandomCommands) -> Chosen:
    """Answer a request as a whole, from whatever state it was taken."""
    request = walk.request()
    if request is None:
        return Exert(1 + walk.choose(64)), []
    key = f"c/w2/m{next(walk.names)}" if walk.choose(2) and "w2" in walk.scene.state.writers else None
    merged = walk.scene.merged(request, key)
    return ApplyMerge(merged, "w2", rows=merged.len, size=sum(part.total_bytes for part in merged.parts)), []


def _merge_some(walk: RandomCommands) -> Chosen:
    """Answer a contiguous piece of a request."""
    options = [request for request in walk.state_requests() if request.rope.count > 1]
    if not options:
        return RollUpAll(), []
    inputs = list(walk.pick(options).inputs)
    first = walk.choose(len(inputs))
    last = first + walk.choose(len(inputs) - first)
    chosen = inputs[first : last + 1]
    since = chosen[0].desc.since
    for each in chosen:
        since = since.join(each.desc.since)
    desc = Description(chosen[0].desc.lower, chosen[-1].desc.upper, since)
    seen = sorted(update for each in chosen for part in each.parts for update in walk.scene.visible(part))
    parts = (inline_part(seen),) if seen else ()
    merged = batch(desc.lower, desc.upper, *parts, since=since, order=Order.UNORDERED)
    return ApplyMerge(merged, WRITER), []


def _pass_through(walk: RandomCommands) -> Chosen:
    """Answer a request by reference alone, as somebody who may be late."""
    request = walk.request()
    if request is None:
        return Exert(0), []
    runs = tuple(run for each in request.inputs for run in each.runs)
    rows = sum(part.rows for run in runs for part in run.parts)
    since = Frontier.minimum(walk.scene.state.arity)
    for each in request.inputs:
        since = since.join(each.desc.since)
    desc = Description(request.desc.lower, request.desc.upper, since)
    return ApplyMerge(HollowBatch(desc, rows, runs if rows else ()), "late"), []


def _exert(walk: RandomCommands) -> Chosen:
    return Exert(walk.pick((1, 8, 1000))), []


def _refresh(walk: RandomCommands) -> Chosen:
    stale = walk.scene.state.trace.stale()
    return Refresh(walk.pick(stale) if stale else (0, 1), walk.choose(2) == 1), []


def _roll_up_all(walk: RandomCommands) -> Chosen:
    return RollUpAll(), []


def _roll_up_newest(walk: RandomCommands) -> Chosen:
    return RollUpAll(walk.choose(walk.scene.state.trace.next_id + 1), walk.choose(2) == 1), []


def _forget(walk: RandomCommands) -> Chosen:
    lo = walk.pick((None, walk.choose(walk.scene.state.trace.next_id + 1)))
    return Forget(lo, walk.scene.state.since), []


RULES: tuple[Callable[[RandomCommands], Chosen], ...] = (
    *(_append, _append, _append, _append, _write, _write, _seal, _drain),
    *(_merge, _merge, _merge_some, _pass_through, _retain, _claim),
    *(_append_next, _append_next, _append_rewritten, _append_cut_before),
    *(_append_more_than_fits, _append_elsewhere, _append_replicated, _advance),
    *(_evict, _trim_bounds, _trim_bytes, _register_writer, _heartbeat_writer, _expire_writer),
    *(_register_reader, _downgrade_reader, _expire_reader, _expire_leases),
    *(_register_hold, _downgrade_hold, _release_hold, _register_committer, _expire_committer),
    *(_commit_sink, _drop_sink, _add_schema, _add_rollup, _add_rollup, _remove_rollups, _thin_rollups),
    *(_exert, _refresh, _roll_up_all, _roll_up_newest, _forget),
    *(_claim_turn, _release_turn),
)


def seeded(seed: int, steps: int, arity: int = 1) -> RandomCommands:
    """The walk that a seed decides."""
    walk = RandomCommands(random.Random(seed).randrange, arity)
    for _ in range(steps):
        walk.step()
    return walk


def close(scene: StateHarness) -> None:
    """Close a collection for writers and readers, whoever holds it."""
    for reader in scene.state.readers:
        scene.do(ExpireReader(reader))
    for name, hold in scene.state.holds.items():
        scene.do(ReleaseHold(name, hold.token))
    scene.attempt(Seal(CLOSED))
    scene.attempt(Retain(CLOSED))
    scene.attempt(Finalize())
    check(scene.state.status is Status.FINALIZED)
