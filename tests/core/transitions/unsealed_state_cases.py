"""What tests of unsealed batches share."""

from __future__ import annotations

from state_harness import StateHarness


def numbers(scene: StateHarness) -> list[int]:
    """The numbers of the unsealed batches there are."""
    return [batch.seqno for batch in scene.state.unsealed]
