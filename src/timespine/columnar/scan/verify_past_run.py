"""Check the claim of a past run: its rows add up to zero, and no time of it is later than it says."""

from __future__ import annotations

from timespine.columnar.parts.part_cache import CacheHint
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.core.batch import Run
from timespine.errors import CorruptionError


def check_past_run(parts: Parts, run: Run) -> None:
    """Read a run that claims to be of the past; raise a CorruptionError if it is not."""
    _, schema = parts.schema(run)
    every_row = ScanRequest(schema, schema.names, hint=CacheHint.NEVER_ADD)
    memory_bytes = parts.config.merge_bytes // 4
    if any(table.num_rows for table in scan(parts, [run], every_row, memory_bytes)):
        raise CorruptionError(f"a past run of {parts.collection} has rows that do not add up to zero")
    later = ScanRequest(schema, schema.names, Window(after=run.zero_from), keep_times=True, hint=CacheHint.NEVER_ADD)
    if any(table.num_rows for table in scan(parts, [run], later, memory_bytes)):
        raise CorruptionError(f"a past run of {parts.collection} has updates after {run.zero_from}")
