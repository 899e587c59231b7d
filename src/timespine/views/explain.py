"""Explain a view: its stages, how the changes of each input reach them, and why not, where they do not."""

from __future__ import annotations

from timespine.views.compute import Compiled
from timespine.views.definition import INCREMENTAL, SPARK, ViewDefinition
from timespine.views.plan.algebra import (
    Aggregate,
    InputScan,
    Join,
    Plan,
    SetOperation,
    Top,
    WindowNode,
    children_of,
    nodes_of,
)

_MODES = {
    "incremental": "incremental: changes from changes, in the process",
    "process": "recomputed whole in the process at each refresh, and compared",
    "spark": "recomputed whole on Spark at each refresh, and compared",
}


def explain_text(name: str, definition: ViewDefinition, compiled: Compiled) -> str:
    """Return the explanation of a view."""
    lines = [f"view {name}: {_MODES[definition.mode]}"]
    if compiled.plan is not None and definition.mode == INCREMENTAL:
        for number, node in enumerate(compiled.aggregates):
            lines.append(f"  stage {number}: {_group_text(node)}")
        for scan in [each for each in nodes_of(compiled.plan) if isinstance(each, InputScan)]:
            steps = _way(compiled.plan, scan) or ["the view"]
            lines.append(f"  changes of {scan.input} -> {' -> '.join(steps)}")
    if compiled.plan is not None:
        lines.append(f"  output: {', '.join(column for column, _ in compiled.named)}")
    if definition.mode != INCREMENTAL:
        why = definition.reasons or (f"policy {definition.policy!r} asks for it",)
        lines.append("not incremental because:")
        lines.extend(f"  {each}" for each in why)
    if definition.mode == SPARK:
        lines.append("its refreshes need a session of Spark")
    return "\n".join(lines)


def _group_text(node: Aggregate) -> str:
    keys = ", ".join(map(str, node.keys)) or "all rows"
    kept = ", ".join(str(call) for _, call in node.calls) or "nothing but the groups"
    return f"group by {keys}; keeps {kept}"


def _way(plan: Plan, scan: Plan) -> list[str] | None:
    """Return the steps of changes of an input up to the top of a plan; None if the plan does not read it."""
    if plan is scan:
        return []
    for child in children_of(plan):
        below = _way(child, scan)
        if below is not None:
            step = _step(plan, child)
            return [*below, step] if step else below
    return None


def _step(plan: Plan, child: Plan) -> str:
    if isinstance(plan, Join):
        other = plan.right if child is plan.left else plan.left
        inputs = sorted({each.input for each in nodes_of(other) if isinstance(each, InputScan)})
        pairs = [(one, two) if child is plan.left else (two, one) for one, two in plan.keys]
        by = ", ".join(str(two) for _, two in pairs) or "every row"
        kind = "" if plan.kind == "inner" else f"{plan.kind} join, "
        return f"{kind}{', '.join(inputs)} by {by}"
    if isinstance(plan, Aggregate):
        return f"groups by {', '.join(map(str, plan.keys)) or 'all rows'}"
    if isinstance(plan, WindowNode):
        return f"partitions by {', '.join(map(str, plan.partition))}"
    if isinstance(plan, Top):
        return f"the first {plan.limit} rows"
    return plan.kind if isinstance(plan, SetOperation) else ""
