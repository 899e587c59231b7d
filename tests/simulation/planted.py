"""Planted bugs: patches that break one thing each, to see that the checker notices.

Each is applied in tests only. `python tests/simulation/planted.py` searches, for each, the first seed whose history
gives it away; `--pin` writes them down for `test_planted.py`. A survivor means that a property is missing. The files
`planted_*.py` have the bugs, one file for each part of the system.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

import planted_bucket  # noqa: F401 (for the bugs in it)
import planted_checkpoints  # noqa: F401 (for the bugs in it)
import planted_client  # noqa: F401 (for the bugs in it)
import planted_commits  # noqa: F401 (for the bugs in it)
import planted_copies  # noqa: F401 (for the bugs in it)
import planted_following  # noqa: F401 (for the bugs in it)
import planted_kept  # noqa: F401 (for the bugs in it)
import planted_maintenance  # noqa: F401 (for the bugs in it)
import planted_parts  # noqa: F401 (for the bugs in it)
import planted_relay  # noqa: F401 (for the bugs in it)
import planted_spines  # noqa: F401 (for the bugs in it)
import planted_states  # noqa: F401 (for the bugs in it)
import planted_streams  # noqa: F401 (for the bugs in it)
import planted_turns  # noqa: F401 (for the bugs in it)
import planted_views  # noqa: F401 (for the bugs in it)
from mutations import (
    ARRANGEMENTS,
    BUCKET,
    BUGS,
    COPIES,
    KEPT,
    REAL,
    REAL_SPINES,
    SCHEMAS,
    SPINES,
    STORES,
    STREAMS,
    VIEWS,
    catching,
)

from timespine.testing.bucket.history import run_bucket_history
from timespine.testing.copies.copy_history import run_copy_history
from timespine.testing.refreshers.view_history import run_view_history
from timespine.testing.simulator.checker import HistoryResult, run_core_history
from timespine.testing.simulator.violation import Violation
from timespine.testing.spines.history import run_spine_history
from timespine.testing.stores import history_run
from timespine.testing.stores.arranging_users import run_arrangement_history

SEEDS = Path(__file__).with_name("planted_seeds.json")

REAL_OPERATIONS = 25
"""Operations of such a history."""

STORE_CALLS = 40
"""Calls of a history of real stores."""

SPINE_CALLS = 60
"""Calls of a history of spines."""

BUCKET_CALLS = 40
"""Calls of a history of a bucket."""

COPY_CALLS = 20
"""Calls of a history of copies."""

VIEW_CALLS = 30
"""Calls of a history of views."""

SPREAD = 12
"""Seeds from the pinned one on that may give a bug of real rows or stores away: what their histories meet changes with
the columnar layer and the client."""


def history(name: str, seed: int) -> HistoryResult:
    """A history of the kind that gives a bug away."""
    if name in REAL:
        return run_core_history(seed, REAL_OPERATIONS, real=True)
    if name in BUCKET:
        return run_bucket_history(seed, BUCKET_CALLS)
    if name in ARRANGEMENTS:
        return run_arrangement_history(seed, STORE_CALLS)
    if name in COPIES:
        return run_copy_history(seed, COPY_CALLS)
    if name in STORES:
        return history_run.run_store_history(seed, STORE_CALLS)
    if name in VIEWS:
        return run_view_history(seed, VIEW_CALLS)
    if name in SPINES:
        return run_spine_history(seed, SPINE_CALLS, real=name in REAL_SPINES)
    flavours = {"schemas": SCHEMAS, "streams": STREAMS, "kept": KEPT}
    return run_core_history(
        seed, 60, flavour=next((each for each, names in flavours.items() if name in names), "mixed")
    )


def is_caught(name: str, seed: int) -> bool:
    """Whether a check of its promise notices a planted bug at its pinned seed, or one of those right after it."""
    with BUGS[name]():
        later = range(SPREAD if name in REAL | STORES | ARRANGEMENTS | VIEWS | COPIES else 1)
        return any(catching(name, history(name, seed + each).violations) for each in later)


def first_seed(name: str, histories: int) -> tuple[int, Violation] | None:
    """The first seed at which a check of its promise notices a planted bug, and what the check says.

    A seed at which the history has a violation without the bug is passed over, and reported.
    """
    others: Counter[str] = Counter()
    for seed in range(histories):
        with BUGS[name]():
            violations = history(name, seed).violations
        caught = catching(name, violations)
        if caught is not None:
            clean = history(name, seed).violations
            if not clean:
                return seed, caught
            print(f"      seed {seed} has a violation without a planted bug: {clean[0]}", flush=True)
        else:
            others.update(f"{each.check}{' (crash)' if each.is_crash else ''}: {each}" for each in violations[:1])
    for other, _ in others.most_common(3):
        print(f"      not a check of its promise: {other[:200]}")
    return None


def main() -> int:
    pin = "--pin" in sys.argv
    names = [name for name in sys.argv[1:] if name != "--pin"] or list(BUGS)
    seeds: dict[str, int] = json.loads(SEEDS.read_text()) if SEEDS.exists() else {}
    survivors = 0
    for name in names:
        began = time.perf_counter()
        found = first_seed(name, 2000)
        seconds = time.perf_counter() - began
        if found is None:
            survivors += 1
            print(f"SURVIVED {name} ({seconds:.0f} s)", flush=True)
        else:
            seeds[name] = found[0]
            print(f"{found[0]:5} {name}: {found[1].check}: {found[1][:110]} ({seconds:.0f} s)", flush=True)
    if pin:
        kept = {name: seeds[name] for name in sorted(BUGS) if name in seeds}
        SEEDS.write_text(json.dumps(kept, indent=2) + "\n")
    print(f"{len(names) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
