"""The directives of the trace: the fueled spine and its pending merge requests.

    push-batch [diff-sum=] [runs=]  one or more hollow batches   ok
    downgrade-since since=                                       ok
    since-upper                                                  [since][upper]
    spine-batches                                                [lo-hi][lower][upper][since] parts/len key key ...
    take-merge-reqs                                              [lower][upper][since] key key ...
    apply-merge-res [diff-sum=] [runs=]  one hollow batch        applied exact, applied subset, no-op, no-op ...

and, beyond the common ones:

    trace arity=                    begin with times of more coordinates, while nothing has happened yet
    all-merge-reqs                  every fueled batch, as `take-merge-reqs` writes it
    exert fuel=                     fuel without data
    stale                           the ids that `refresh` accepts, a line each
    refresh id=lo-hi                ok, or no-op
    roll-up-all                     ok
    describe                        a line per layer, from the top down
    metrics                         counts
    validate                        ok, or what does not hold
    flatten-roundtrip               how many rows the flat tables have, once they gave the same spine again

A frontier is `[3]`, `[]` (closed) or `[(1, 2), (2, 1)]`; as an argument also `3`,
`()` or `(1, 2)`. A hollow batch is a line `[lower][upper][since] len key key ...`.
The trace has times of one coordinate, unless `trace arity=` or the very first
frontier that it is given says otherwise.

`diff-sum=` makes the sum of diffs known, which it is not otherwise, and
`runs=each` makes a run of every key instead of one of all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import msgspec

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding import flat_spine
from timespine.core.spine import merge_result
from timespine.core.spine.layers import MergeRequest
from timespine.core.spine.spine import Spine, empty_spine, freeze
from timespine.errors import CorruptionError, UsageError, short_repr
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MIN, Time
from timespine.testing.datadriven import Directive, DirectiveCall, DirectiveSet

LEN_MAX = 1 << 62
"""Updates in one batch, at most."""

DIGITS_MAX = len(str(INT64_MIN))
"""Characters of a number, at most: longer ones are no int64, and slow to read."""

_TIME = r"[0-9]+|\(\s*[0-9]+(?:\s*,\s*[0-9]+)*\s*,?\s*\)"
_ELEMENTS = re.compile(rf"\s*(?:(?:{_TIME})(?:\s*,\s*(?:{_TIME}))*)?\s*")
_BATCH = re.compile(r"\[([^\]]*)\]\s*\[([^\]]*)\]\s*\[([^\]]*)\]\s+([0-9]+)((?:\s+\S+)*)\s*")


@dataclass(frozen=True, slots=True)
class Trace:
    """The state that a script works on."""

    spine: Spine
    """The spine."""
    arity: int = 1
    """Coordinates per time."""
    pending: tuple[MergeRequest, ...] = ()
    """The requests that pushes returned and no directive has taken."""

    @property
    def is_untouched(self) -> bool:
        """Whether nothing has happened yet, so that the arity is still open."""
        return self.spine.next_id == 0 and self.spine.since == Frontier.minimum(self.arity)


def fresh_trace(arity: int = 1) -> Trace:
    """Return a trace at the minimum."""
    return Trace(empty_spine(arity), arity)


def read_integer(text: str) -> int:
    """Parse a number, or raise UsageError."""
    if len(text) > DIGITS_MAX or not re.fullmatch(r"-?[0-9]+", text, re.ASCII):
        raise UsageError(f"{short_repr(text)} is not a number")
    return int(text)


def read_frontier(text: str) -> Frontier:
    """Parse the inside of the brackets of a frontier."""
    if not _ELEMENTS.fullmatch(text):
        raise UsageError(f"{short_repr(text)} is not a frontier: write [3], [] or [(1, 2), (2, 1)]")
    elements = [read_time(element) for element in re.findall(_TIME, text)]
    frontier = Frontier(tuple(elements))
    if len(frontier) != len(elements):
        raise UsageError(f"[{text}] is not an antichain: {frontier} says the same")
    return frontier


def read_time(text: str) -> Time:
    """Parse a time: `3` or `(1, 2)`."""
    return tuple(read_integer(coordinate) for coordinate in re.findall(r"[0-9]+", text))


def read_frontier_argument(text: str) -> Frontier:
    """Parse a frontier as an argument: `3`, `()`, `(1, 2)`, or in brackets as everywhere else."""
    if text.startswith("[") and text.endswith("]"):
        return read_frontier(text[1:-1])
    if re.fullmatch(r"\(\s*\)", text):
        return Frontier()
    if not text:
        raise UsageError("a frontier is missing: write 3, (), (1, 2) or [(1, 2), (2, 1)]")
    return read_frontier(text)


def read_hollow_batch(line: str, call: DirectiveCall) -> HollowBatch:
    """Parse a line `[lower][upper][since] len key key ...`."""
    match = _BATCH.fullmatch(line.strip())
    if match is None:
        raise UsageError(
            f"{short_repr(line.strip())} is not a hollow batch: write [lower][upper][since] len key key ..."
        )
    length = read_integer(match[4])
    if length > LEN_MAX:
        raise UsageError(f"a batch of {length} updates is too large")
    desc = Description(read_frontier(match[1]), read_frontier(match[2]), read_frontier(match[3]))
    return HollowBatch(desc, length, _runs(match[5].split(), length, call))


def _runs(keys: list[str], length: int, call: DirectiveCall) -> tuple[Run, ...]:
    """Return the runs of a batch: one of all keys, or one of each."""
    total = call.arguments.get("diff-sum")
    # The first part has all rows and the whole sum: no directive looks at how they are divided.
    parts = [Part(key, 0, diff_sum=None if total is None else 0) for key in keys]
    if parts:
        parts[0] = Part(keys[0], length, diff_sum=None if total is None else read_integer(total))
    layout = call.arguments.get("runs", "one")
    if layout not in ("one", "each"):
        raise UsageError(f"{call.name}: runs= is one or each, not {short_repr(layout)}")
    if layout == "each":
        return tuple(Run((part,)) for part in parts)
    return (Run(tuple(parts)),) if parts else ()


def _batches(call: DirectiveCall) -> list[HollowBatch]:
    batches = [read_hollow_batch(line, call) for line in call.input if line.strip()]
    if not batches:
        raise UsageError(f"{call.name}: a hollow batch is needed as input")
    return batches


def _adopt(trace: Trace, frontier: Frontier) -> Trace:
    """Return the trace, with the number of coordinates of its first frontier."""
    if trace.is_untouched and frontier.arity not in (None, trace.arity):
        return fresh_trace(len(frontier.elements[0]))
    return trace


def _push_batch(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    batches = _batches(call)
    trace = _adopt(trace, batches[0].desc.lower)
    spine, pending = trace.spine, [*trace.pending]
    for batch in batches:
        policy = spine.policy()
        policy.insert(batch)
        spine = freeze(policy)
        pending.extend(without_redundant(policy.requests))
    return replace(trace, spine=spine, pending=tuple(pending)), "ok"


def without_redundant(requests: list[MergeRequest]) -> list[MergeRequest]:
    """Return the requests that no other one covers, last created first.

    Rolling up completes one layer after the other and so asks for (a, b), then (a, b, c), ...; only the last is worth
    doing. The state shows only the last anyway: the scripts show the requests of one insertion, in its order.
    """
    kept: list[MergeRequest] = []
    for request in reversed(requests):
        if not any(_covers(other, request) for other in kept):
            kept = [other for other in kept if not _covers(request, other)]
            kept.append(request)
    return kept


def _covers(request: MergeRequest, other: MergeRequest) -> bool:
    """Tell whether the answer to one request makes the other redundant."""
    outer, inner = request.desc, other.desc
    return outer.lower <= inner.lower and inner.upper <= outer.upper and outer.since == inner.since


def _apply_merge_res(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    batches = _batches(call)
    if len(batches) != 1:
        raise UsageError(f"{call.name}: one hollow batch is needed, not {len(batches)}")
    replacement = merge_result.apply_merge_result(trace.spine, batches[0])
    return replace(trace, spine=replacement.spine), replacement.applied.value


def _downgrade_since(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    since = read_frontier_argument(call.arguments["since"])
    trace = _adopt(trace, since)
    return replace(trace, spine=trace.spine.downgrade_since(since)), "ok"


def _since_upper(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    return trace, f"{trace.spine.since}{trace.spine.upper}"


def _spine_batches(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    lines = []
    for batch in trace.spine.batches():
        request = MergeRequest(batch.desc, batch.rope)
        bounds = f"[{batch.id[0]}-{batch.id[1]}]{batch.desc}"
        lines.append(" ".join([bounds, f"{batch.rope.count}/{batch.len}", *_keys(request)]))
    return trace, "\n".join(lines)


def _keys(request: MergeRequest) -> list[str]:
    return [key for batch in request.inputs for key in batch.keys]


def _shown_requests(requests: list[MergeRequest]) -> str:
    return "\n".join(" ".join([str(request.desc), *_keys(request)]) for request in requests)


def _take_merge_reqs(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    return replace(trace, pending=()), _shown_requests([*trace.pending])


def _all_merge_reqs(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    return trace, _shown_requests(trace.spine.requests())


def _trace(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    if not trace.is_untouched:
        raise UsageError("the number of coordinates cannot change once something has happened")
    return fresh_trace(read_integer(call.arguments["arity"])), "ok"


def _exert(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    return replace(trace, spine=trace.spine.exert(read_integer(call.arguments["fuel"]))), "ok"


def _stale(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    return trace, "\n".join(f"{lo}-{hi}" for lo, hi in trace.spine.stale())


def _refresh(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    lo, dash, hi = call.arguments["id"].partition("-")
    if not dash:
        raise UsageError(f"{short_repr(call.arguments['id'])} is not a spine id: write lo-hi")
    refreshed = trace.spine.refresh((read_integer(lo), read_integer(hi)))
    return (trace, "no-op") if refreshed is None else (replace(trace, spine=refreshed), "ok")


def _roll_up_all(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    return replace(trace, spine=trace.spine.roll_up_all()), "ok"


def _describe(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    lines = []
    for level, (batches, updates) in reversed([*enumerate(trace.spine.describe())]):
        line = f"layer {level}: " + (f"batches={batches} updates={updates}" if batches else "vacant")
        merge = trace.spine.layers[level].merge
        lines.append(line if merge is None else f"{line} merging since={merge.since} left={merge.remaining}")
    return trace, "\n".join(lines)


def _metrics(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    spine = trace.spine
    metrics = spine.metrics()
    lines = [
        f"compact={metrics.compact} compacting={metrics.compacting} non-compact={metrics.noncompact}",
        f"spine-batches={spine.batch_count} hollow-batches={spine.hollow_count} updates={spine.update_count}",
    ]
    return trace, "\n".join(lines)


def _validate(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    flat_spine.validate_deep(trace.spine, trace.arity)
    return trace, "ok"


def _flatten_roundtrip(trace: Trace, call: DirectiveCall) -> tuple[Trace, str]:
    table = flat_spine.flatten(trace.spine)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=flat_spine.FlatSpine)
    again = flat_spine.unflatten(decoded, trace.arity)
    if again != trace.spine or again.describe() != trace.spine.describe() or flat_spine.flatten(again) != table:
        raise CorruptionError("the flat tables gave another spine")
    return replace(trace, spine=again), (
        f"hollow={len(table.hollow)} batches={len(table.batches)} merges={len(table.merges)}"
    )


TRACE: DirectiveSet[Trace] = DirectiveSet(
    fresh_trace,
    {
        "push-batch": Directive(_push_batch, optional=("diff-sum", "runs"), takes_input=True),
        "downgrade-since": Directive(_downgrade_since, required=("since",)),
        "since-upper": Directive(_since_upper),
        "spine-batches": Directive(_spine_batches),
        "take-merge-reqs": Directive(_take_merge_reqs),
        "apply-merge-res": Directive(_apply_merge_res, optional=("diff-sum", "runs"), takes_input=True),
        "trace": Directive(_trace, required=("arity",)),
        "all-merge-reqs": Directive(_all_merge_reqs),
        "exert": Directive(_exert, required=("fuel",)),
        "stale": Directive(_stale),
        "refresh": Directive(_refresh, required=("id",)),
        "roll-up-all": Directive(_roll_up_all),
        "describe": Directive(_describe),
        "metrics": Directive(_metrics),
        "validate": Directive(_validate),
        "flatten-roundtrip": Directive(_flatten_roundtrip),
    },
)
