"""When an arrangement that follows a collection saves its state.

A checkpoint is worth what a restart saves: it reads only the changes since. It costs the writing of batches that have
no file yet. So the pause between two of them is

    pause = max(cost / SAVE_SHARE, PAUSE_S * (1 - min(1, 2 * changed / rows)))

`cost` are the seconds of the last save: saving takes at most SAVE_SHARE of the time. `changed` are the updates since
the last save, `rows` all updates: with few of them a restart loses little, and PAUSE_S passes; with half of them it
would read about as much as the whole collection, and only the cost counts. Nothing is saved if no time became complete.
"""

from __future__ import annotations

PAUSE_S = 300.0
"""Seconds between two checkpoints while little changes."""

SAVE_SHARE = 0.05
"""The largest share of the time that saving takes."""


def save_pause_s(rows: int, changed: int, cost_s: float) -> float:
    """Return the least seconds between the last checkpoint and the next."""
    share = min(1.0, 2 * changed / max(rows, 1))
    return max(cost_s / SAVE_SHARE, PAUSE_S * (1 - share))
