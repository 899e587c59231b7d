"""A state with a merge request."""

from __future__ import annotations

from state_harness import TERM_MS, StateHarness, at, up

from timespine.core.spine.layers import MergeRequest
from timespine.core.transitions import RegisterWriter, RollUpAll


def fueled(appends: int = 2) -> tuple[StateHarness, MergeRequest]:
    """A scene with appends in blobs p0, p1, ... that wait to be merged, and the request."""
    scene = StateHarness()
    for when in range(appends):
        scene.append(at(when + 1), up("a", when), key=f"c/w1/p{when}")
    scene.do(RollUpAll())
    scene.do(RegisterWriter("m1", TERM_MS))
    (request,) = scene.state.trace.requests()
    return scene, request
