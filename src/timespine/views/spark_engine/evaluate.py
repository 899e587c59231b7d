"""Plans evaluated on Spark: the rules of `plan.delta` and the restrictions of `engine.evaluate`, on DataFrames.

While what changed is little, the driver computes what is on the list of the process, below what only Spark computes:
each job that is left out saves 0.1 to 0.2 s. Of the rest, each step of a join brings its rows to the driver, so that
the rows that they touch in the next input can be looked up. From `LOOKUP_ROWS` on rows stay on Spark, and inputs are
restricted by semi joins.

A step uses the rows of the step below it at least twice: it joins them, and restricts the next input to their keys.
So each step is a job of its own, and its result is cut off from how it was made (`cut_off`). Otherwise the plan
of a view, and the text that Spark makes of it for each job, double with every step: after a change of a tenth, views of
six inputs filled a driver of 4 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.spark.quoted_names import quoted
from timespine.spark.type_mapping import to_spark_schema
from timespine.views.engine.accumulators import ADD
from timespine.views.engine.evaluate import Evaluator, Keys, is_change
from timespine.views.engine.lowering import POLARS_FAILURES, WEIGHT, Declined, memory_type
from timespine.views.engine.portable_plans import only_spark
from timespine.views.plan.algebra import (
    Aggregate,
    At,
    Delta,
    Explode,
    Filter,
    InputScan,
    Join,
    Negate,
    PlanNode,
    Project,
    Restrict,
    SetOperation,
    Top,
    Union,
    WindowNode,
    children_of,
    names_of,
    nodes_of,
)
from timespine.views.plan.delta import NEW, delta_rule, rebuild
from timespine.views.plan.expressions import PlanColumn
from timespine.views.spark_engine import source as reading
from timespine.views.spark_engine.frames import (
    SparkKeys,
    SparkRows,
    columns,
    combine_frames,
    consolidate_frame,
    cut_off,
    explode_frame,
    filter_frame,
    forget_rows,
    join_frames,
    negated,
    project,
    top_frame,
    union_frames,
    window_frame,
    with_plan_names,
)
from timespine.views.spark_engine.grouping import SparkGrouping
from timespine.views.spark_engine.source import SparkSource


class SparkEvaluator:
    """The evaluation of one refresh, or of one whole computation, on Spark."""

    def __init__(self, source: SparkSource, *, by_driver: bool = False) -> None:
        self._source = source
        self._driver = Evaluator(source.store) if by_driver else None
        """What computes small parts that are on the list of the process, unless all is to be computed on Spark."""
        self._small: dict[PlanNode, bool] = {}
        self._deltas: dict[PlanNode, SparkRows] = {}
        self._whole: dict[tuple[PlanNode, str], SparkRows] = {}
        self._kept: list[Any] = []
        """DataFrames that are cached until the end."""
        self._cut: list[Any] = []
        """DataFrames that were cut off from how they were made, until the end."""
        self.groups: dict[Aggregate, tuple[SparkRows | None, SparkRows]] = {}
        """The groups of aggregates that changed, as they were and as they are; of a whole computation, none and all."""

    def close(self) -> None:
        """Forget what is cached."""
        for each in self._kept:
            each.unpersist()
        for each in self._cut:
            forget_rows(each)
        self._kept.clear()
        self._cut.clear()

    def keep(self, frame: Any) -> Any:
        """Cache rows that several jobs read."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def _computed(self, frame: Any, give: Callable[[pl.DataFrame], SparkRows], *, is_small: bool) -> SparkRows:
        """Run the job of rows that several steps use: few come to the driver, many are cut off from how they were made.

        `give` makes rows of what comes to the driver. Rows that follow from few changes are few as a rule (`is_small`).
        """
        if is_small:
            found = self._source.collect(frame, reading.LOOKUP_ROWS)
            if found is not None:
                return give(found)
        made = cut_off(frame)
        self._cut.append(made)
        if made.count() <= reading.LOOKUP_ROWS:
            return give(self._source.collect_all(made))
        return SparkRows(made, is_computed=True)

    def rows(self, plan: PlanNode, version: str) -> Any:
        """Evaluate a plan over one version of the inputs."""
        return consolidate_frame(self._at(plan, version, None).frame, names_of(plan))

    def changes(self, plan: PlanNode) -> SparkRows:
        """Evaluate how a plan changed."""
        if plan not in self._deltas:
            found = self._by_driver(plan, None)
            if found is not None:
                self._deltas[plan] = found
                return found
            if isinstance(plan, InputScan):
                got = self._source.changes(plan)
            elif isinstance(plan, Aggregate) and self._source.has_stage(plan):
                got = self._fold(plan)
            else:
                got = self._evaluate(delta_rule(plan), None)
            self._deltas[plan] = self._settled(plan, got)
        return self._deltas[plan]

    def _by_driver(self, plan: PlanNode, at: tuple[str, SparkKeys] | None) -> SparkRows | None:
        """Let the driver compute how a plan changed, or its rows of some keys; None if only Spark can, or should."""
        if self._driver is None or isinstance(plan, InputScan) or not self._is_small(plan):
            return None
        try:
            if at is None:
                found = self._driver.changes(plan)
            else:
                version, keys = at
                assert keys.local is not None
                found = self._driver.rows_of(plan, version, Keys(keys.names, keys.local))
        except (Declined, *POLARS_FAILURES):
            self._small[plan] = False
            return None
        for node in nodes_of(plan):
            if isinstance(node, Aggregate) and node in self._driver.groups and self._source.has_stage(node):
                old, new = (
                    self._source.groups_of(SparkGrouping(node).plain, each) for each in self._driver.groups[node]
                )
                self.groups[node] = (old, new)
        return self._source.rows_of(plan, found)

    def _is_small(self, plan: PlanNode) -> bool:
        """Return whether a plan is on the list of the process, and few changes and rows of inputs are below it."""
        if plan not in self._small:
            scans = [each for each in nodes_of(plan) if isinstance(each, InputScan)]
            self._small[plan] = only_spark(plan) is None and all(map(self._source.is_small, scans))
        return self._small[plan]

    def _settled(self, plan: PlanNode, rows: SparkRows) -> SparkRows:
        """Consolidate changes, and compute them: several terms use them."""
        if rows.local is not None:
            return rows
        whole = consolidate_frame(with_plan_names(rows.frame, plan), names_of(plan))
        return self._localized(plan, SparkRows(whole, is_small=rows.is_small))

    def _localized(self, plan: PlanNode, rows: SparkRows) -> SparkRows:
        """Compute rows of a plan that the next step joins, and takes keys from."""
        if rows.local is not None or rows.is_computed:
            return rows
        frame = with_plan_names(rows.frame, plan)
        return self._computed(frame, lambda found: self._source.rows_of(plan, found), is_small=rows.is_small)

    def _none(self, plan: PlanNode) -> SparkRows:
        empty = pl.DataFrame(schema={**{each.name: memory_type(each.type) for each in plan.columns}, WEIGHT: pl.Int64})
        return self._source.rows_of(plan, empty)

    def _keys(self, plan: PlanNode, rows: SparkRows, renamed: dict[str, str], *, nulls: bool) -> SparkKeys:
        """Return the values of some columns of rows as a restriction under other names."""
        names = tuple(renamed.values())
        if rows.local is not None:
            local = rows.local.select(list(renamed)).rename(renamed)
            local = (local if nulls else local.drop_nulls()).unique()
            types = {column.name: column for column in plan.columns}
            schema = to_spark_schema(pa.schema([(renamed[name], types[name].type) for name in renamed]))
            return SparkKeys(names, local, lambda: self._source.local(local, schema))
        picked = rows.frame.selectExpr(*(f"{quoted(one)} AS {quoted(two)}" for one, two in renamed.items()))
        there = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in names)
        return SparkKeys(names, None, (picked if nulls else picked.where(there)).distinct)

    # Stages.

    def _fold(self, node: Aggregate) -> SparkRows:
        """Change the groups of an aggregate by the changes below it."""
        grouping = SparkGrouping(node)
        changed = self.changes(node.child)
        if changed.is_empty:
            return self._none(node)
        changes = grouping.accumulate(changed.frame, follow=True)
        keys = None
        if grouping.keys:
            keys = self._keys(node.child, changed, {name: name for name in grouping.keys}, nulls=True)
        small = changed.is_small
        old = self._source.groups(node, keys, is_small=not grouping.keys)
        if old.local is None and keys is not None:
            old = self._groups_computed(grouping, keys.only(old.frame), is_small=small)
        folded = self._groups_computed(grouping, grouping.fold(old.frame, changes), is_small=small)
        new, again = self._split(grouping, folded)
        if again is not None:
            keys = self._keys(node.child, again, {name: name for name in grouping.keys}, nulls=True)
            members = self._at(node.child, NEW, keys if grouping.keys else None)
            frame = union_frames([new.frame, grouping.accumulate(members.frame)])
            new = self._groups_computed(grouping, frame, is_small=small)
        self.groups[node] = (old, new)
        shown = union_frames([grouping.show(new.frame), grouping.show(old.frame, -1)])
        return SparkRows(shown, is_small=small)

    def _groups_computed(self, grouping: SparkGrouping, groups: Any, *, is_small: bool) -> SparkRows:
        """Compute accumulated groups, which the view, its stage and the next steps use."""
        return self._computed(groups, lambda found: self._source.groups_of(grouping.plain, found), is_small=is_small)

    def _split(self, grouping: SparkGrouping, folded: SparkRows) -> tuple[SparkRows, SparkRows | None]:
        """Return the groups that follow from the changes, and those that only their rows tell, if there are any."""
        if folded.local is not None:
            halves = [folded.local.filter(pl.col("_again") == flag).drop("_again") for flag in (False, True)]
            new, again = (self._source.groups_of(grouping.plain, each) for each in halves)
            return new, None if again.is_empty else again
        new = SparkRows(columns(folded.frame.where("NOT `_again`"), grouping.names), is_computed=True)
        wanted = folded.frame.where("`_again`")
        has_some = any(each.kind != ADD for each in grouping.accumulators) and not wanted.isEmpty()
        return new, SparkRows(wanted, is_computed=True) if has_some else None

    # Rows of plans, as of before or after.

    def _at(self, plan: PlanNode, version: str, keys: SparkKeys | None) -> SparkRows:
        if (plan, version) in self._whole:
            return self._only(self._whole[plan, version], keys)
        if keys is not None and keys.local is not None:
            found = self._by_driver(plan, (version, keys))
            if found is not None:
                return found
        if isinstance(plan, InputScan):
            got = self._source.rows(plan, version, keys)
            if keys is not None:
                return got if got.local is not None else SparkRows(keys.only(got.frame))
        elif isinstance(plan, Aggregate):
            got = self._groups(plan, version, keys)
        else:
            got = self._evaluate(rebuild(plan, tuple(At(child, version) for child in children_of(plan))), keys)
        if keys is None:
            self._whole[plan, version] = got
        return got

    def _only(self, rows: SparkRows, keys: SparkKeys | None) -> SparkRows:
        if keys is None or rows.is_empty:
            return rows
        if rows.local is not None and keys.local is not None:
            wanted = Keys(keys.names, keys.local)
            kept = wanted.only(rows.local)
            return rows if len(kept) == len(rows.local) else SparkRows(keys.only(rows.frame), is_small=True)
        return SparkRows(keys.only(rows.frame), is_small=rows.is_small or keys.local is not None)

    def _groups(self, node: Aggregate, version: str, keys: SparkKeys | None) -> SparkRows:
        grouping = SparkGrouping(node)
        own = keys.part(tuple(grouping.keys)) if keys is not None else None
        if not self._source.has_stage(node):
            groups = grouping.accumulate(self._at(node.child, version, own).frame)
            if keys is None and version == NEW:
                groups = self.keep(groups)
                self.groups[node] = (None, SparkRows(groups))
            return self._only(SparkRows(grouping.show(groups)), keys)
        shown = grouping.show(self._source.groups(node, own).frame)
        if version == NEW:
            changed = self.changes(node)
            if not changed.is_empty:
                shown = consolidate_frame(union_frames([shown, with_plan_names(changed.frame, node)]), names_of(node))
        return self._only(SparkRows(shown), keys)

    # Nodes of rules.

    def _evaluate(self, plan: PlanNode, keys: SparkKeys | None) -> SparkRows:
        """Evaluate a node of a rule, restricted."""
        if isinstance(plan, At):
            return self._at(plan.node, plan.version, keys)
        if isinstance(plan, Delta):
            changed = self.changes(plan.node)
            return changed if changed.is_empty else self._only(changed, keys)
        if isinstance(plan, Filter):
            below = self._evaluate(plan.child, keys)
            return (
                below
                if below.is_empty
                else SparkRows(filter_frame(below.frame, plan.condition), is_small=below.is_small)
            )
        if isinstance(plan, Project):
            return self._project(plan, keys)
        if isinstance(plan, Explode):
            own = keys.part([column.name for column in plan.kept]) if keys is not None else None
            rows = self._evaluate(plan.child, own)
            if rows.is_empty:
                return self._none(plan)
            return self._only(SparkRows(explode_frame(plan, rows.frame), is_small=rows.is_small), keys)
        if isinstance(plan, Union):
            return self._union(plan, keys)
        if isinstance(plan, Negate):
            below = self._evaluate(plan.child, keys)
            return below if below.is_empty else SparkRows(negated(below.frame, names_of(plan)), is_small=below.is_small)
        if isinstance(plan, Restrict):
            return self._restrict(plan, keys)
        if isinstance(plan, Join):
            return self._join(plan, keys)
        return self._only(self._grouped(plan, keys), keys)

    def _union(self, plan: Union, keys: SparkKeys | None) -> SparkRows:
        parts = [self._evaluate(child, keys) for child in plan.children]
        there = [
            SparkRows(with_plan_names(part.frame, plan), is_small=part.is_small) for part in parts if not part.is_empty
        ]
        if not there:
            return self._none(plan)
        return SparkRows(union_frames([part.frame for part in there]), is_small=all(part.is_small for part in there))

    def _grouped(self, plan: PlanNode, keys: SparkKeys | None) -> SparkRows:
        """Evaluate a node that treats the rows of each key apart: restricted below, if its keys are meant."""
        if isinstance(plan, Aggregate):
            own = keys.part(tuple(column.name for column in plan.keys)) if keys is not None else None
            below = self._evaluate(plan.child, own)
            grouping = SparkGrouping(plan)
            return SparkRows(grouping.show(grouping.accumulate(below.frame)), is_small=below.is_small)
        if isinstance(plan, SetOperation):
            left = self._evaluate(plan.left, keys)
            here, there = names_of(plan.left), names_of(plan.right)
            names = dict(zip(here, there, strict=True))
            right = self._evaluate(
                plan.right, keys.renamed({name: names[name] for name in keys.names}) if keys is not None else None
            )
            made = right.frame.selectExpr(*(f"{quoted(two)} AS {quoted(one)}" for one, two in names.items()), WEIGHT)
            frame = combine_frames(plan.kind, left.frame, made, here)
            return SparkRows(frame, is_small=left.is_small and right.is_small)
        if isinstance(plan, WindowNode):
            own = keys.part(tuple(column.name for column in plan.partition)) if keys is not None else None
            below = self._evaluate(plan.child, own)
            return SparkRows(
                window_frame(plan, consolidate_frame(below.frame, names_of(plan.child))), is_small=below.is_small
            )
        assert isinstance(plan, Top)
        below = self._evaluate(plan.child, None)
        return SparkRows(
            top_frame(plan, consolidate_frame(with_plan_names(below.frame, plan), names_of(plan))), is_small=True
        )

    def _project(self, plan: Project, keys: SparkKeys | None) -> SparkRows:
        """Evaluate expressions; columns that are passed through unchanged are restricted below."""
        below = None
        if keys is not None:
            same = {column.name: each.name for column, each in plan.outputs if isinstance(each, PlanColumn)}
            part = keys.part(tuple(same))
            if part is not None and len({same[name] for name in part.names}) == len(part.names):
                below = part.renamed({name: same[name] for name in part.names})
        rows = self._evaluate(plan.child, below)
        if rows.is_empty:
            return self._none(plan)
        frame = project(rows.frame, [(column.name, each) for column, each in plan.outputs])
        return self._only(SparkRows(frame, is_small=rows.is_small), keys)

    def _restrict(self, plan: Restrict, keys: SparkKeys | None) -> SparkRows:
        by = self._evaluate(plan.by, None)
        by = self._localized(plan.by, by)
        if by.is_empty:
            return self._none(plan)
        if not plan.names:
            return self._evaluate(plan.child, keys)
        wanted = self._keys(plan.by, by, dict(zip(plan.by_names, plan.names, strict=True)), nulls=True)
        return self._only(self._evaluate(plan.child, wanted), keys)

    def _join(self, plan: Join, keys: SparkKeys | None) -> SparkRows:
        """Join two plans, beginning at the side that is restricted or that changed."""
        on_left = keys.part(tuple(names_of(plan.left))) if keys is not None else None
        on_right = keys.part(tuple(names_of(plan.right))) if keys is not None and plan.kind == "inner" else None
        starts_right = plan.kind == "inner" and (
            (on_left is None and on_right is not None) or (is_change(plan.right) and not is_change(plan.left))
        )
        first, second = (plan.right, plan.left) if starts_right else (plan.left, plan.right)
        begun = self._evaluate(first, on_right if starts_right else on_left)
        if begun.is_empty:
            return self._none(plan)
        pairs = [(two, one) if starts_right else (one, two) for one, two in plan.keys]
        there: SparkKeys | None = None
        if pairs and (keys is not None or is_change(first)):
            begun = self._localized(first, begun)
            if begun.is_empty:
                return self._none(plan)
            renamed = {one.name: two.name for one, two in pairs}
            if len(renamed) == len(pairs) == len(set(renamed.values())):
                there = self._keys(first, begun, renamed, nulls=False)
        other = self._evaluate(second, there)
        left, right = (other, begun) if starts_right else (begun, other)
        frame = join_frames(plan, with_plan_names(left.frame, plan.left), with_plan_names(right.frame, plan.right))
        return self._only(SparkRows(frame, is_small=begun.is_small and there is not None), keys)
