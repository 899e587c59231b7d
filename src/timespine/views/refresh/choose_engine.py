"""Which engine refreshes a view, from sizes that are known before anything is read.

    rows = changes + what they touch: by the first columns of a key a few rows for each change, otherwise an input whole
    process        0.005 s + rows * 0.5 us
    Spark          0.6 s + rows * 0.15 us + joins * 0.36 s: those above what only Spark computes are some jobs each
    Spark, whole   0.6 s + all rows of the inputs * 1.5 us                                      each times its factor

The constants are of TPC-H on two cores. The factors are what past refreshes of the view took, over what was expected
(`views.refresh.refresh_costs`). What the process cannot compute as Spark does goes to Spark. Where most of an input
changed, or that is expected to be faster, policy "auto" lets Spark compute the view whole and compare. The caller may
force an engine. A choice always says why (tests/views/test_choose_engine.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from timespine.client.api_for_engines import ReadOptions, extent_of, open_changes
from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.views.engine.portable_plans import only_spark
from timespine.views.engine.store_source import InputReader
from timespine.views.plan.algebra import Aggregate, InputScan, Join, PlanNode, SetOperation, Top, WindowNode, nodes_of

PROCESS, SPARK = "process", "spark"
CHANGES, WHOLE = "changes", "whole"

ENGINES = (PROCESS, SPARK)

_BASE_S = {PROCESS: 0.005, SPARK: 0.6}
_ROW_S = {PROCESS: 0.5e-6, SPARK: 0.15e-6}
_JOIN_S = 0.36
_WHOLE_BASE_S, _WHOLE_ROW_S = 0.6, 1.5e-6

ON_SPARK_WHOLE = "spark whole"
"""The name of what Spark takes for a whole computation, beside the names of engines."""

FANOUT = 8
"""Rows of an input that one change is expected to touch, if they are found by the first columns of its key."""

MOST_CHANGED = 0.2
"""The share of changed rows from which computing the view whole is expected to read less."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of a refresh before anything is read."""

    changed: int
    """Updates of the inputs, at most."""
    touched: int
    """Rows that they are expected to touch, with themselves."""
    total: int
    """Rows of the inputs, at most."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How a view is refreshed."""

    engine: str
    """process or spark."""
    how: str
    """changes: from what changed; whole: computed whole, and compared with what is stored."""
    why: str
    """Why so."""
    expected: float = 0.0
    """The seconds that this is expected to take; 0 if nothing was estimated."""

    @property
    def way(self) -> str:
        """What the seconds of past refreshes are kept by: the engine, and whether it computed the view whole."""
        return ON_SPARK_WHOLE if (self.engine, self.how) == (SPARK, WHOLE) else self.engine


def check_engine(engine: str | None) -> None:
    """Raise a UsageError for an engine that does not exist."""
    if engine is not None and engine not in ENGINES:
        raise UsageError(f"engine is 'process' or 'spark', not {short_repr(engine)}")


def expected_seconds(plan: PlanNode, sizes: Sizes, factors: Mapping[str, float]) -> dict[str, float]:
    """Return how long each way is expected to take."""
    joins = 0
    if sizes.changed:  # a first build looks nothing up
        joins = sum(isinstance(each, Join) and only_spark(each) is not None for each in nodes_of(plan))
    seconds = {
        PROCESS: _BASE_S[PROCESS] + sizes.touched * _ROW_S[PROCESS],
        SPARK: _BASE_S[SPARK] + sizes.touched * _ROW_S[SPARK] + joins * _JOIN_S,
        ON_SPARK_WHOLE: _WHOLE_BASE_S + sizes.total * _WHOLE_ROW_S,
    }
    return {way: each * factors.get(way, 1.0) for way, each in seconds.items()}


def choose_engine(
    plan: PlanNode,
    sizes: Sizes | None,
    forced: str | None,
    policy: str,
    factors: Mapping[str, float],
    *,
    has_spark: bool,
) -> Choice:
    """Choose how to refresh a view. Without a session of Spark there are no sizes: only the process can."""
    portable = only_spark(plan)
    if forced == PROCESS or (forced is None and not has_spark):
        if portable is not None:
            raise UsageError(f"only Spark can compute this view ({portable})", hint=Hint("give-session"))
        return Choice(PROCESS, CHANGES, "the caller asked for it" if forced else "there is no session of Spark")
    if sizes is None:
        return Choice(SPARK, CHANGES, "the caller asked for it" if forced else portable or "")
    seconds = expected_seconds(plan, sizes, factors)
    said = (
        f"{sizes.changed:,} changes, about {sizes.touched:,} rows to read: expected {seconds[PROCESS]:.2f} s in the "
        f"process, {seconds[SPARK]:.2f} s on Spark"
    )
    on_spark = min(seconds[SPARK], seconds[ON_SPARK_WHOLE]) if policy == "auto" else seconds[SPARK]
    if forced is None and portable is None and seconds[PROCESS] <= on_spark:
        return Choice(PROCESS, CHANGES, said, seconds[PROCESS])
    reason = "the caller asked for Spark" if forced else portable or said
    why = ""
    if sizes.changed > MOST_CHANGED * sizes.total:
        why = f"{sizes.changed:,} changes of {sizes.total:,} rows: computed whole and compared"
    elif seconds[ON_SPARK_WHOLE] < seconds[SPARK]:
        why = (
            f"computed whole and compared, as {seconds[ON_SPARK_WHOLE]:.2f} s are expected for all {sizes.total:,} rows"
            f", and {seconds[SPARK]:.2f} s for {sizes.changed:,} changes"
        )
    if policy == "auto" and why:
        return Choice(SPARK, WHOLE, f"{reason}; {why}", seconds[ON_SPARK_WHOLE])
    return Choice(SPARK, CHANGES, reason, seconds[SPARK])


def sizes_of(plan: PlanNode, readers: Mapping[str, InputReader]) -> Sizes:
    """Estimate a refresh from the descriptions of what is stored."""
    changed, total, by_key = 0, 0, 0
    scanned = 0
    for name, reader in readers.items():
        before = reader.before
        size = reader.extent()
        if before is not None and reader.pending is None:
            with open_changes(reader.handle, before, reader.after, ReadOptions()) as rows:
                changed += min(extent_of(rows)[0], size + 1) if size else extent_of(rows)[0]
        elif reader.pending is not None:
            changed += len(reader.pending)
        total += size
        kind = _access(plan, name, reader)
        if kind == "key":
            by_key += size
        elif kind == "scan":
            scanned += size
    touched = changed + min(by_key, FANOUT * changed) + (scanned if changed else 0)
    return Sizes(changed, touched, total)


def _access(plan: PlanNode, name: str, reader: InputReader) -> str:
    """Return how rows of an input are found that a change touches: by its key, by a scan, or not at all."""
    _, schema = reader.handle.schema(reader.handle.known())
    found = "none"
    for scan in [each for each in nodes_of(plan) if isinstance(each, InputScan) and each.input == name]:
        sources = {column.name: reader.names.get(source, source) for column, source in scan.outputs}
        for node in nodes_of(plan):
            wanted: set[str] = set()
            if isinstance(node, Join):
                wanted = {sources[column.name] for pair in node.keys for column in pair if column.name in sources}
            elif isinstance(node, Aggregate | WindowNode | SetOperation | Top) and not isinstance(node, Aggregate):
                wanted = {"*"}
            if not wanted:
                continue
            if wanted != set(schema.key_names[: len(wanted)]):
                return "scan"
            found = "key"
    return found
