"""Plans evaluated in the process: frames of Polars with a column of counts, fetched by the keys that matter.

`Evaluator` carries out the rules of `plan.delta`. A restriction (rows that have certain values in certain columns)
travels down to the inputs, so that a join begins at what changed and fetches only the touched rows of the others.
Aggregates with a stage read their groups from it; all else is worked out from the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import polars as pl

from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.explode_rows import explode_rows
from timespine.views.engine.lowering import WEIGHT, evaluate_columns, keep_rows, memory_type
from timespine.views.engine.windows import top_after, top_around, top_rows, window_rows
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
)
from timespine.views.plan.delta import NEW, OLD, delta_rule, rebuild
from timespine.views.plan.expressions import PlanColumn, widened_column

PUSHED_MAX = 1_000_000
"""Most keys that an input is asked for by; with more, it is read whole."""

_PLACE = "_place"


@dataclass(frozen=True, slots=True)
class Keys:
    """A restriction: rows that have one of these combinations of values; nulls are equal."""

    names: tuple[str, ...]
    """Columns of the restricted plan."""
    frame: pl.DataFrame
    """The combinations, under these names, each once."""

    def part(self, names: tuple[str, ...]) -> Keys | None:
        """Return the restriction of some of the columns; None if they are none."""
        kept = tuple(name for name in self.names if name in names)
        if len(kept) == len(self.names):
            return self
        return Keys(kept, self.frame.select(kept).unique()) if kept else None

    def renamed(self, names: dict[str, str]) -> Keys:
        """Return the restriction under other names."""
        return Keys(tuple(names[name] for name in self.names), self.frame.rename(names))

    def narrowed(self, origins: dict[str, PlanColumn]) -> Keys:
        """Return the restriction of the columns that these ones have their values from, which may be narrower.

        SUBTLE: a whole number beyond the narrower type matches nothing, and null matches null: so such combinations
        are left out before they are cast (tests/views/test_key_pushing.py).
        """
        kept, types = self.frame, {name: memory_type(origin.type) for name, origin in origins.items()}
        narrower = {name: kind for name, kind in types.items() if kept.schema[name] != kind}
        for name, kind in narrower.items():
            fits = pl.col(name).is_between(kind.min(), kind.max())
            kept = kept.filter(fits | pl.col(name).is_null()).with_columns(pl.col(name).cast(kind))
        return Keys(self.names, kept).renamed({name: origin.name for name, origin in origins.items()})

    def only(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows that satisfy the restriction."""
        return rows.join(self.frame, on=list(self.names), how="semi", nulls_equal=True)


class Source(Protocol):
    """Where rows come from: the inputs of a view, and its stages."""

    def rows(self, scan: InputScan, version: str, keys: Keys | None) -> pl.DataFrame:
        """Read an input as of before or after, all of it or the rows of some keys, with their counts."""
        ...

    def changes(self, scan: InputScan) -> pl.DataFrame:
        """Read the net changes of an input."""
        ...

    def groups(self, node: Aggregate, keys: Keys | None) -> pl.DataFrame | None:
        """Read accumulated groups as of before, all or those of some keys; None if the aggregate has no stage."""
        ...

    def has_groups(self, node: Aggregate) -> bool:
        """Return whether an aggregate has a stage."""
        ...

    def first_rows(self, node: Top) -> pl.DataFrame | None:
        """Read the first rows in an order as of before; None if they are not stored."""
        ...


class Evaluator:
    """The evaluation of one refresh, or of one whole computation."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._deltas: dict[PlanNode, pl.DataFrame] = {}
        self._summed: dict[PlanNode, pl.DataFrame] = {}
        self._whole: dict[tuple[PlanNode, str], pl.DataFrame] = {}
        self._touched: dict[Restrict, pl.DataFrame] = {}
        self.groups: dict[Aggregate, tuple[pl.DataFrame, pl.DataFrame]] = {}
        """The groups of aggregates that changed, as they were and as they are; of a whole computation, none and all."""

    def rows(self, plan: PlanNode, version: str) -> pl.DataFrame:
        """Evaluate a plan over one version of the inputs."""
        return consolidate_rows(self._at(plan, version, None))

    def rows_of(self, plan: PlanNode, version: str, keys: Keys | None) -> pl.DataFrame:
        """Evaluate the rows of a plan that have some keys, or all, over one version of the inputs."""
        return self._at(plan, version, keys)

    def changes(self, plan: PlanNode) -> pl.DataFrame:
        """Evaluate how a plan changed: each row once, with its count."""
        if plan not in self._summed:
            known = self._deltas.get(plan)
            self._summed[plan] = consolidate_rows(self._changed(plan) if known is None else known)
        return self._summed[plan]

    def _terms(self, plan: PlanNode) -> pl.DataFrame:
        """Evaluate how a plan changed: rows may occur several times.

        Linear nodes, and the keys that changes touch, need no more; to sum up after each node would take longer.
        """
        # SUBTLE: the same answer each time. The rows before and after of a rule are those of the keys of one change; if
        # it were summed up in between, the second would lose keys whose terms cancel out (test_engine.py).
        if plan in self._deltas:
            return self._deltas[plan]
        # SUBTLE: a join both sides of which changed has terms that cancel out, of rows that never were in it. No
        # expression may see these: it could decline them (test_engine.py).
        is_both = isinstance(plan, Join) and all(len(self._terms(each)) for each in children_of(plan))
        if plan in self._summed or is_both or isinstance(plan, InputScan):
            return self.changes(plan)
        self._deltas[plan] = self._changed(plan)
        return self._deltas[plan]

    def _changed(self, plan: PlanNode) -> pl.DataFrame:
        if isinstance(plan, InputScan):
            return self._source.changes(plan)
        if not any(len(self._terms(child)) for child in children_of(plan)):
            return _empty(plan)
        if isinstance(plan, Aggregate) and self._source.has_groups(plan):
            return self._fold(plan)
        if isinstance(plan, Top):
            return self._first_rows(plan)
        return self._evaluate(delta_rule(plan), None)

    def _first_rows(self, plan: Top) -> pl.DataFrame:
        """Change the first rows in an order: from those before, or else from one read of all rows after."""
        changed = self.changes(plan.child)
        before = self._source.first_rows(plan)
        after = None if before is None else top_after(plan, before, changed)
        if after is None:
            whole = consolidate_rows(self._at(plan.child, NEW, None))
            earlier, after = top_around(plan, whole, changed)
            before = earlier if before is None else before
        assert before is not None
        names = [*names_of(plan), WEIGHT]
        self._whole[plan, OLD], self._whole[plan, NEW] = before.select(names), after.select(names)
        return pl.concat([after.select(names), _negated(before).select(names)])

    def _fold(self, node: Aggregate) -> pl.DataFrame:
        """Change the groups of an aggregate by the changes below it."""
        grouping = Grouping(node)
        changed = self.changes(node.child)
        changes = grouping.accumulate(changed, follow=True)
        gone = changes.clear()
        if grouping.minds_retractions:
            gone = grouping.accumulate(_negated(changed.filter(pl.col(WEIGHT) < 0)), follow=True)
        keys = Keys(tuple(grouping.keys), changes.select(grouping.keys)) if grouping.keys else None
        old = self._source.groups(node, keys)
        assert old is not None
        new, again = grouping.fold(old, changes, gone)
        if len(again) or (not grouping.keys and not len(new)):
            wanted = Keys(tuple(grouping.keys), again) if grouping.keys else None
            members = self._at(node.child, NEW, wanted)
            new = pl.concat([new, grouping.accumulate(members).select(new.columns)])
        self.groups[node] = (old, new)
        return pl.concat([grouping.show(new), _negated(grouping.show(old))])

    # Rows of plans, as of before or after.

    def _at(self, plan: PlanNode, version: str, keys: Keys | None) -> pl.DataFrame:
        """Evaluate a plan over one version, restricted."""
        if (plan, version) in self._whole:
            whole = self._whole[plan, version]
            return whole if keys is None else keys.only(whole)
        if isinstance(plan, InputScan):
            return self._scan(plan, version, keys)
        if isinstance(plan, Aggregate):
            got = self._groups(plan, version, keys)
        else:
            got = self._evaluate(rebuild(plan, tuple(At(child, version) for child in children_of(plan))), keys)
        if keys is None:
            self._whole[plan, version] = got
        return got

    def _scan(self, plan: InputScan, version: str, keys: Keys | None) -> pl.DataFrame:
        if keys is None or len(keys.frame) > PUSHED_MAX:
            whole = self._whole[plan, version] = self._source.rows(plan, version, None)
            return whole if keys is None else keys.only(whole)
        return self._source.rows(plan, version, keys)

    def _groups(self, node: Aggregate, version: str, keys: Keys | None) -> pl.DataFrame:
        grouping = Grouping(node)
        own = keys.part(tuple(grouping.keys)) if keys is not None else None
        stored = self._source.groups(node, own)
        if stored is None:
            members = self._at(node.child, version, own)
            groups = grouping.accumulate(members)
            if keys is None and version == NEW:
                self.groups[node] = (groups.clear(), groups)
            shown = grouping.show(groups)
        else:
            shown = grouping.show(stored)
            if version == NEW:
                shown = pl.concat([shown, self.changes(node)])
                shown = consolidate_rows(own.only(shown) if own is not None else shown)
        return shown if keys is None or own is keys else keys.only(shown)

    # Nodes of rules.

    def _evaluate(self, plan: PlanNode, keys: Keys | None) -> pl.DataFrame:
        """Evaluate a node of a rule, restricted: the rows of the keys, and no others."""
        if isinstance(plan, At):
            return self._at(plan.node, plan.version, keys)
        if isinstance(plan, Delta):
            changed = self._terms(plan.node)
            return changed if keys is None else keys.only(changed)
        if isinstance(plan, Filter):
            return keep_rows(self._evaluate(plan.child, keys), plan.condition)
        if isinstance(plan, Project):
            return self._project(plan, keys)
        if isinstance(plan, Explode):
            own = keys.part(tuple(column.name for column in plan.kept)) if keys is not None else None
            got = explode_rows(plan, self._evaluate(plan.child, own))
            return got if keys is None or own is keys else keys.only(got)
        if isinstance(plan, Union):
            names = [*names_of(plan), WEIGHT]
            parts = [self._evaluate(child, keys) for child in plan.children]
            return pl.concat([part if part.columns == names else part.select(names) for part in parts])
        if isinstance(plan, Negate):
            return _negated(self._evaluate(plan.child, keys))
        if isinstance(plan, Restrict):
            return self._restrict(plan, keys)
        if isinstance(plan, Join):
            return self._join(plan, keys)
        return self._grouped(plan, keys)

    def _grouped(self, plan: PlanNode, keys: Keys | None) -> pl.DataFrame:
        """Evaluate a node that treats the rows of each key apart: restricted below, if its keys are meant."""
        if isinstance(plan, Aggregate):
            own = keys.part(tuple(column.name for column in plan.keys)) if keys is not None else None
            grouping = Grouping(plan)
            got = grouping.show(grouping.accumulate(self._evaluate(plan.child, own)))
            return got if keys is None or own is keys else keys.only(got)
        if isinstance(plan, SetOperation):
            left = consolidate_rows(self._evaluate(plan.left, keys))
            names = dict(zip(names_of(plan.left), names_of(plan.right), strict=True))
            other = keys.renamed({name: names[name] for name in keys.names}) if keys is not None else None
            right = self._evaluate(plan.right, other).rename({new: old for old, new in names.items()})
            return set_operation(plan.kind, left, consolidate_rows(right.select(left.columns)))
        if isinstance(plan, WindowNode):
            own = keys.part(tuple(column.name for column in plan.partition)) if keys is not None else None
            got = window_rows(plan, consolidate_rows(self._evaluate(plan.child, own)))
            return got if keys is None or own is keys else keys.only(got)
        assert isinstance(plan, Top)
        got = top_rows(plan, consolidate_rows(self._evaluate(plan.child, None)))
        return got if keys is None else keys.only(got)

    def _project(self, plan: Project, keys: Keys | None) -> pl.DataFrame:
        """Evaluate expressions; columns that are passed through, or only widened, are restricted below."""
        below = None
        if keys is not None:
            same = {
                column.name: origin for column, each in plan.outputs if (origin := widened_column(each)) is not None
            }
            part = keys.part(tuple(same))
            if part is not None and len({same[name].name for name in part.names}) == len(part.names):
                below = part.narrowed({name: same[name] for name in part.names})
                if not len(below.frame):
                    return _empty(plan)
        rows = self._evaluate(plan.child, below)
        got = evaluate_columns(rows, [(column.name, each) for column, each in plan.outputs], [WEIGHT])
        is_done = keys is None or (below is not None and len(below.names) == len(keys.names))
        return got if keys is None or is_done else keys.only(got)

    def _restrict(self, plan: Restrict, keys: Keys | None) -> pl.DataFrame:
        """Evaluate the rows that changes touch; both versions of a semi join ask for the same ones."""
        if plan not in self._touched:
            got = self._touch(plan, keys)
            if keys is None:
                self._touched[plan] = got
            return got
        whole = self._touched[plan]
        return whole if keys is None else keys.only(whole)

    def _touch(self, plan: Restrict, keys: Keys | None) -> pl.DataFrame:
        by = self._evaluate(plan.by, None)
        if not plan.names:
            return self._evaluate(plan.child, keys) if len(by) else _empty(plan)
        wanted = by.select(plan.by_names).rename(dict(zip(plan.by_names, plan.names, strict=True))).unique()
        if not len(wanted):
            return _empty(plan)
        got = self._evaluate(plan.child, Keys(plan.names, wanted))
        return got if keys is None else keys.only(got)

    def _join(self, plan: Join, keys: Keys | None) -> pl.DataFrame:
        """Join two plans, beginning at the side that is restricted or that changed."""
        on_left = keys.part(tuple(names_of(plan.left))) if keys is not None else None
        on_right = keys.part(tuple(names_of(plan.right))) if keys is not None and plan.kind == "inner" else None
        starts_right = plan.kind == "inner" and (
            (on_left is None and on_right is not None) or (is_change(plan.right) and not is_change(plan.left))
        )
        first, second = (plan.right, plan.left) if starts_right else (plan.left, plan.right)
        begun = self._evaluate(first, on_right if starts_right else on_left)
        if not len(begun):
            return _empty(plan)
        pairs = [(two, one) if starts_right else (one, two) for one, two in plan.keys]
        there: Keys | None = None
        if pairs and (keys is not None or is_change(first)):
            renamed = {one.name: two.name for one, two in pairs}
            if len(renamed) == len(pairs) == len(set(renamed.values())):
                there = Keys(tuple(renamed.values()), _different(begun, renamed))
        other = self._evaluate(second, there)
        left, right = (other, begun) if starts_right else (begun, other)
        got = join_rows(plan, left, right)
        is_done = keys is None or (on_right if starts_right else on_left) is keys
        return got if keys is None or is_done else keys.only(got)


def is_change(plan: PlanNode) -> bool:
    """Return whether a plan is as small as the changes: it is one, or is restricted by one."""
    if isinstance(plan, Delta | Restrict):
        return True
    if isinstance(plan, Filter | Project | Explode):
        return is_change(plan.child)
    if isinstance(plan, Join):
        return is_change(plan.left) or (plan.kind == "inner" and is_change(plan.right))
    return False


def _empty(plan: PlanNode) -> pl.DataFrame:
    return pl.DataFrame(schema={**{each.name: memory_type(each.type) for each in plan.columns}, WEIGHT: pl.Int64})


def _different(rows: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    """Return the different values of some columns, without nulls, under other names."""
    found = rows.select([pl.col(name).alias(other) for name, other in names.items()])
    if any(column.null_count() for column in found.get_columns()):
        found = found.drop_nulls()
    return found.unique()


def _negated(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(-pl.col(WEIGHT))


def consolidate_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the counts of equal rows, and drop those that count 0."""
    names = [name for name in rows.columns if name != WEIGHT]
    if len(rows) <= 1:
        rows = rows.select([*names, WEIGHT])
        return rows if not len(rows) or rows[WEIGHT].item() else rows.clear()
    if not names:
        total = rows[WEIGHT].sum()
        return pl.DataFrame({WEIGHT: [total] if total else []}, schema={WEIGHT: pl.Int64})
    return rows.group_by(names).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) != 0)


def join_rows(plan: Join, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Join the rows of two plans."""
    if plan.kind != "inner":
        return _matching(plan, left, right)
    pairs = _pairs(plan, left, right.rename({WEIGHT: f"{WEIGHT}2"}))
    return pairs.select([*names_of(plan), (pl.col(WEIGHT) * pl.col(f"{WEIGHT}2")).alias(WEIGHT)])


def _matching(plan: Join, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Keep the rows of the left that match some row of the right, or none."""
    right = consolidate_rows(right).filter(pl.col(WEIGHT) > 0).drop(WEIGHT)
    how = "semi" if plan.kind == "semi" else "anti"
    if plan.condition is None and plan.keys:
        here, there = ([column.name for column in side] for side in zip(*plan.keys, strict=True))
        return left.join(right, left_on=here, right_on=there, how=how)  # type: ignore[arg-type]
    numbered = left.with_row_index(_PLACE)
    matched = _pairs(plan, numbered, right).select(_PLACE).unique()
    return numbered.join(matched, on=_PLACE, how=how).drop(_PLACE)  # type: ignore[arg-type]


def _pairs(plan: Join, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of rows that match."""
    if plan.keys:
        here, there = ([column.name for column in side] for side in zip(*plan.keys, strict=True))
        pairs = left.join(right, left_on=here, right_on=there, how="inner", coalesce=False)
    else:
        pairs = left.join(right, how="cross")
    return pairs if plan.condition is None else keep_rows(pairs, plan.condition)


def set_operation(kind: str, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Combine the counts of rows of two relations."""
    names = [name for name in left.columns if name != WEIGHT]
    both = pl.concat(
        [
            left.rename({WEIGHT: "_left"}).with_columns(pl.lit(0, pl.Int64).alias("_right")),
            right.rename({WEIGHT: "_right"})
            .with_columns(pl.lit(0, pl.Int64).alias("_left"))
            .select([*names, "_left", "_right"]),
        ]
    )
    counted = both.group_by(names).agg(pl.col("_left").sum(), pl.col("_right").sum())
    one, two = pl.col("_left"), pl.col("_right")
    count = {
        "intersect": ((one > 0) & (two > 0)).cast(pl.Int64),
        "intersect all": pl.min_horizontal(one, two).clip(0),
        "except": ((one > 0) & (two <= 0)).cast(pl.Int64),
        "except all": (one - two).clip(0),
    }[kind]
    return counted.select([*names, count.alias(WEIGHT)]).filter(pl.col(WEIGHT) != 0)


__all__ = ["NEW", "OLD", "Evaluator", "Keys", "Source", "consolidate_rows"]
