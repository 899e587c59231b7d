"""Explain a view: its stages, how the changes of each input reach them, and why not, where they do not.

view revenue: incremental, exact at its refresh points
  stage 1 (hidden): group by name; keeps sum(total), count(*)
    changes of orders -> customers by id (key) -> groups by name
    changes of customers -> orders by customer (scan of 2 columns) -> groups by name
  output: name, revenue, orders; key name
computed again from rows: nothing
"""

from __future__ import annotations

from collections.abc import Mapping

from timespine.views.compute_changes import Compiled
from timespine.views.definition import INCREMENTAL, SPARK, ViewDefinition
from timespine.views.engine.accumulators import AGAIN, GREATEST, LEAST, accumulators_of
from timespine.views.engine.portable_plans import only_spark
from timespine.views.plan.algebra import (
    Aggregate,
    Explode,
    Filter,
    InputScan,
    Join,
    PlanNode,
    Project,
    SetOperation,
    Top,
    WindowNode,
    children_of,
    names_of,
    nodes_of,
)
from timespine.views.plan.expressions import PlanColumn, shown, widened_column
from timespine.views.sql.parse import ignored_orders, parse_query

_MODES = {
    "incremental": "incremental",
    "process": "recomputed whole in the process at each refresh, and compared",
    "spark": "recomputed whole on Spark at each refresh, and compared",
}
_TIMES = {"refresh": "exact at its refresh points", "every": "exact at every time of its inputs"}

InputKeys = Mapping[str, tuple[str, ...]]
"""The key columns of the inputs, by their names in the text."""


def explain_text(
    name: str,
    definition: ViewDefinition,
    compiled: Compiled,
    keys: InputKeys | None = None,
    key: tuple[str, ...] = (),
) -> str:
    """Return the explanation of a view; `keys` has the keys of its inputs, and `key` is its own."""
    lines = [f"view {name}: {_MODES[definition.mode]}, {_TIMES[definition.times]}"]
    plan = compiled.plan
    if plan is not None and definition.mode == INCREMENTAL:
        lines += _stages(plan, compiled.aggregates, keys or {})
    if plan is not None:
        proven = _identifying(compiled)
        own = f"; no key, though {', '.join(proven)} would identify its rows" if proven else ""
        own = f"; key {', '.join(key)}" if key else own
        lines.append(f"  output: {', '.join(column for column, _ in compiled.named)}{own}")
    if definition.mode == INCREMENTAL:
        again = _recomputed(compiled) if plan is not None else []
        lines.append(f"computed again from rows: {'' if again else 'nothing'}".rstrip())
        lines.extend(f"  {each}" for each in again)
        portable = only_spark(plan) if plan is not None else None
        if portable is not None:
            lines.append(f"its refreshes need a session of Spark: {portable}")
    else:
        why = definition.reasons or (f"policy {definition.policy!r} asks for it",)
        lines.append("not incremental because:")
        lines.extend(f"  {each}" for each in why)
    if definition.mode == SPARK:
        lines.append("its refreshes need a session of Spark")
    if definition.sql:
        lines.extend(map(str, ignored_orders(parse_query(definition.sql))))
    return "\n".join(lines)


def _stages(plan: PlanNode, aggregates: list[Aggregate], keys: InputKeys) -> list[str]:
    """Say how changes reach each stage, and from the last stages, or from inputs, the view."""
    lines = []
    numbers = {node: number for number, node in enumerate(aggregates, 1)}
    for top, title in [*((node, _stage_title(node, number)) for node, number in numbers.items()), (plan, "")]:
        if title:
            lines.append(f"  {title}")
        elif top in numbers:
            continue  # the view is its last stage
        for leaf in _leaves(top, numbers):
            source = f"stage {numbers[leaf]}" if isinstance(leaf, Aggregate) else _input_of(leaf)
            steps = _way(top, leaf, keys, numbers) or ["the view"]
            lines.append(f"{'    ' if title else '  '}changes of {source} -> {' -> '.join(steps)}")
    return lines


def _stage_title(node: Aggregate, number: int) -> str:
    by = ", ".join(map(str, node.keys)) or "all rows"
    kept = ", ".join(str(call) for _, call in node.calls) or "nothing but the groups"
    return f"stage {number} (hidden): group by {by}; keeps {kept}"


def _input_of(leaf: PlanNode) -> str:
    return leaf.input if isinstance(leaf, InputScan) else "?"


def _leaves(top: PlanNode, numbers: Mapping[Aggregate, int]) -> list[PlanNode]:
    """Return the inputs and the stages right below a stage, or below the view, in order."""
    found: dict[PlanNode, None] = {}

    def walk(node: PlanNode) -> None:
        if isinstance(node, InputScan) or (node in numbers and node is not top):
            found[node] = None
            return
        for child in children_of(node):
            walk(child)

    walk(top)
    return list(found)


def _way(
    plan: PlanNode, leaf: PlanNode, keys: InputKeys, numbers: Mapping[Aggregate, int], *, is_top: bool = True
) -> list[str] | None:
    """Return the steps of changes of a leaf up to the top of a plan; None if it is not below."""
    if plan is leaf:
        return []
    if not is_top and plan in numbers:
        return None
    for child in children_of(plan):
        below = _way(child, leaf, keys, numbers, is_top=False)
        if below is not None:
            step = _step(plan, child, keys, numbers)
            return [*below, step] if step else below
    return None


def _step(plan: PlanNode, child: PlanNode, keys: InputKeys, numbers: Mapping[Aggregate, int]) -> str:
    if isinstance(plan, Join):
        other = plan.right if child is plan.left else plan.left
        pairs = [(one, two) if child is plan.left else (two, one) for one, two in plan.keys]
        names = [two.name for _, two in pairs]
        kind = "" if plan.kind == "inner" else f"{plan.kind} join, "
        by = ", ".join(map(shown, names)) or "every row"
        return f"{kind}{_relation(other, numbers)} by {by}{_access(other, names, keys)}"
    if isinstance(plan, Aggregate):
        return f"groups by {', '.join(map(str, plan.keys)) or 'all rows'}"
    if isinstance(plan, Explode):
        return f"a row for each element of {plan.array}"
    if isinstance(plan, WindowNode):
        return f"partitions by {', '.join(map(str, plan.partition)) or 'all rows'}"
    if isinstance(plan, Top):
        return f"the first {plan.limit} rows"
    return plan.kind if isinstance(plan, SetOperation) else ""


def _relation(plan: PlanNode, numbers: Mapping[Aggregate, int]) -> str:
    """Name what a plan reads: inputs, and stages."""
    leaves = _leaves(plan, numbers) if plan not in numbers else [plan]
    named = [f"stage {numbers[each]}" if isinstance(each, Aggregate) else _input_of(each) for each in leaves]
    return ", ".join(dict.fromkeys(named))


def _access(plan: PlanNode, names: list[str], keys: InputKeys) -> str:
    """Say how rows with certain values are found: by the key, by its first columns, or by a scan."""
    while isinstance(plan, Filter | Project | Explode):
        if isinstance(plan, Explode) and not {*names} <= {column.name for column in plan.kept}:
            return " (computed, so all rows are read)"
        if isinstance(plan, Project):
            same = {
                column.name: origin.name
                for column, each in plan.outputs
                if (origin := widened_column(each)) is not None
            }
            if not all(name in same for name in names):
                return " (computed, so all rows are read)"
            names = [same[name] for name in names]
        plan = plan.child
    if isinstance(plan, Aggregate):
        own = [column.name for column in plan.keys]
        return " (key)" if names and set(own) == set(names) else " (scan)"
    if not isinstance(plan, InputScan):
        return ""
    sources = {column.name: source for column, source in plan.outputs}
    wanted = {sources[name].lower() for name in names}
    key = [each.lower() for each in keys.get(plan.input, ())]
    if wanted and wanted == set(key):
        return " (key)"
    if wanted and wanted == set(key[: len(wanted)]):
        return " (key prefix)"
    count = len(names_of(plan))
    return f" (scan of {count} column{'' if count == 1 else 's'})"


def _identifying(compiled: Compiled) -> list[str]:
    """Return the columns of the view that are those of its GROUP BY, or all of a DISTINCT; none if one is missing."""
    plan = compiled.plan
    names = {column.name: name for name, column in compiled.named}
    while isinstance(plan, Filter | Top | Project):
        if isinstance(plan, Project):
            same = {column.name: each.name for column, each in plan.outputs if isinstance(each, PlanColumn)}
            names = {same[column]: name for column, name in names.items() if column in same}
        plan = plan.child
    if not isinstance(plan, Aggregate) or not all(column.name in names for column in plan.keys):
        return []
    return [names[column.name] for column in plan.keys]


def _is_stored(node: Top, compiled: Compiled) -> bool:
    """Return whether the view is the first rows in an order, with all columns of them (`StoreSource.first_rows`)."""
    return compiled.plan is node and {column.name for _, column in compiled.named} >= set(names_of(node))


def _recomputed(compiled: Compiled) -> list[str]:
    """Say what an incremental view computes again from rows, of what a change touches."""
    assert compiled.plan is not None
    found: dict[str, None] = {}
    for node in nodes_of(compiled.plan):
        if isinstance(node, Aggregate):
            for each in accumulators_of(node):
                if each.kind == AGAIN:
                    found[f"{each.call}: of each touched group, from its rows"] = None
                elif each.kind in (LEAST, GREATEST):
                    found[f"{each.call}: of groups whose extreme was retracted, from their rows"] = None
        elif isinstance(node, WindowNode):
            by = ", ".join(map(str, node.partition))
            where = f"of each touched partition by {by}" if by else "of all rows: add PARTITION BY to read fewer"
            found[f"window functions: {where}"] = None
        elif isinstance(node, Top):
            when = "when one of them leaves" if _is_stored(node, compiled) else "when any row below changes"
            found[f"the first {node.limit} rows: from all rows below, {when}"] = None
        elif isinstance(node, SetOperation):
            found[f"{node.kind}: of each touched row"] = None
        elif isinstance(node, Join) and not node.keys:
            found["a join without an equality: all rows of the other side are read"] = None
    return list(found)
