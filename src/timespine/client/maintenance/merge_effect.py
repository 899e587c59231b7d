"""Perform the merge of a protocol, with the engine of the process."""

from __future__ import annotations

from timespine.client.inner_handles import StoreContext
from timespine.client.maintenance.maintenance import Maintenance
from timespine.client.maintenance.maintenance_report import describe_error
from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.parts.part_list_tree import add_to_counter
from timespine.core.effects import MergeRuns, Output
from timespine.errors import TimespineError, Unavailable


def perform_merge(engine: Engine, context: StoreContext, maintenance: Maintenance, effect: MergeRuns) -> Output:
    """Merge the runs of an effect; return None if an input is gone. Turn third-party errors into Unavailable.

    Maintenance then skips the merge, and its report has the reason.
    """
    try:
        output = engine.merge(effect)
    except Exception as error:
        maintenance.reason = describe_error(error)
        if isinstance(error, TimespineError):
            raise
        raise Unavailable(f"a merge failed: {type(error).__name__}") from error
    if output is not None:
        add_to_counter(context.counters_of(effect.collection), "merge bytes inline", output.batch.inline_bytes)
    return output
