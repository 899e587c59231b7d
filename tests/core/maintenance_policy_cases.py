"""States that grow and merge, for tests of the policy of maintenance."""

from __future__ import annotations

from state_harness import WRITER, StateHarness, at, batch

from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.spine.layers import MergeRequest
from timespine.core.transitions import ApplyMerge, CompareAndAppend


def grow(scene: StateHarness, rows: int, runs: int = 1, order: Order = Order.SORTED) -> None:
    """Append so many made-up updates, as so many runs."""
    lower = scene.state.upper
    upper = at(lower.elements[0][0] + 1)
    number = scene.state.trace.next_id
    parts = [Part(f"c/{WRITER}/p{number}-{place}", rows // runs, 10 * rows // runs) for place in range(runs)]
    scene.do(CompareAndAppend((batch(lower, upper, *(parts if rows else ()), order=order),), lower, upper))


def answered(scene: StateHarness, request: MergeRequest, rows: int, passed: int = 0) -> None:
    """Answer a request with so many updates, some of them passed on by reference."""
    number = scene.state.seqno
    part = Part(f"c/{WRITER}/m{number}", rows, 10 * rows)
    output = HollowBatch(request.desc, rows, (Run((part,)),) if rows else ())
    written = rows - passed
    assert scene.do(ApplyMerge(output, WRITER, rows=written, size=10 * written, ms=7)).is_applied
