"""pyarrow: a kernel to compare with, not a table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bench.peers.system import System
from bench.rows import COLUMNS


class Arrow(System):
    """Group and sort, as the Arrow compute functions do it."""

    name = "pyarrow"
    kind = "kernel"
    packages = ("pyarrow",)
    cannot = {
        "append": "a kernel, not a table",
        "merge_runs": "sorts in memory only",
        "write_runs": "sorts in memory only",
    }

    def consolidate(self, updates: pa.Table) -> pa.Table:
        keys = [*COLUMNS, "_time"]
        grouped = updates.group_by(keys).aggregate([("_diff", "sum")])
        kept = grouped.filter(pc.field("_diff_sum") != 0)
        return kept.sort_by([(each, "ascending") for each in keys]).rename_columns([*keys, "_diff"])
