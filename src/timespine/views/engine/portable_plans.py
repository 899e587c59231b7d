"""Which plans the process can compute: those whose functions are all on its list."""

from __future__ import annotations

from timespine.views.engine.accumulators import FUNCTIONS as AGGREGATES
from timespine.views.engine.lowering import listed
from timespine.views.engine.windows import computes
from timespine.views.plan.algebra import Aggregate, Explode, Filter, Join, PlanNode, Project, WindowNode, nodes_of
from timespine.views.plan.expressions import TEXT_CALL, Call, Expression, Literal


def only_spark(plan: PlanNode) -> str | None:
    """Return what of a plan only Spark can compute; None if there is nothing."""
    for node in nodes_of(plan):
        for each in _expressions(node):
            found = _unlisted(each)
            if found is not None:
                return found
        if isinstance(node, Aggregate):
            calls = [call for _, call in node.calls if call.function not in AGGREGATES]
            if calls:
                return f"only Spark computes {calls[0]}"
        if isinstance(node, WindowNode):
            over = [call for _, call in node.calls if not computes(call)]
            if over:
                return f"only Spark computes {over[0].function} over this window"
    return None


def _expressions(node: PlanNode) -> list[Expression]:
    if isinstance(node, Filter):
        return [node.condition]
    if isinstance(node, Project):
        return [each for _, each in node.outputs]
    if isinstance(node, Explode):
        return [node.array]
    if isinstance(node, Join):
        return [node.condition] if node.condition is not None else []
    if isinstance(node, Aggregate | WindowNode):
        return [call.argument for _, call in node.calls if call.argument is not None]
    return []


def _unlisted(expression: Expression) -> str | None:
    waiting = [expression]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Call):
            continue
        if each.function == TEXT_CALL:
            return f"only Spark computes {_shown(each)}"
        if not listed(each.function):
            return f"only Spark computes {each.function}"
        waiting.extend(reversed(each.args))
    return None


def _shown(call: Call) -> str:
    """Return the text of a call as the user wrote it, with the names of its columns."""
    template, *args = call.args
    assert isinstance(template, Literal)
    pieces = str(template.value).split("\0")
    filled = (f"{args[int(number)]}{text}" for number, text in zip(pieces[1::2], pieces[2::2], strict=True))
    return (pieces[0] + "".join(filled)).lower()
