"""What a state says of the parts that it refers to."""

from __future__ import annotations

from state_harness import StateHarness, at, up


def test_a_state_is_inline_until_one_of_its_parts_is_a_blob() -> None:
    scene = StateHarness()
    assert scene.state.is_inline
    scene.append(at(1), up("a", 0))
    scene.write(up("b", 5))
    assert scene.state.is_inline
    scene.append(at(2), up("c", 1), key="c/w1/p0")
    assert not scene.state.is_inline
