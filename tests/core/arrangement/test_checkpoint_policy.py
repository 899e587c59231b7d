"""When an arrangement saves its state: by what a save costs, and by what a restart would read."""

from __future__ import annotations

import pytest

from timespine.core.arrangement.checkpoint_policy import PAUSE_S, SAVE_SHARE, save_pause_s


def test_the_pause_between_checkpoints_follows_what_they_cost_and_what_changed() -> None:
    assert save_pause_s(1_000_000, 1, 0.1) == pytest.approx(PAUSE_S, rel=1e-4)
    assert save_pause_s(1_000_000, 250_000, 0.1) == pytest.approx(PAUSE_S / 2)
    assert save_pause_s(1_000_000, 500_000, 0.1) == pytest.approx(0.1 / SAVE_SHARE)
    assert save_pause_s(1_000_000, 1, 60.0) == pytest.approx(60.0 / SAVE_SHARE)
    assert save_pause_s(0, 0, 0.0) == PAUSE_S
    assert save_pause_s(10, 10_000, 0.0) == 0.0
