"""The bound on what maintenance writes, which `core/maintenance_policy.py` derives: for tests and measurements."""

from __future__ import annotations

import math


def written_rows_max(appended: int) -> float:
    """Return the most updates that maintenance writes for this number of appended ones, on its own account."""
    return appended * (math.log2(appended) + 2) if appended else 0.0
