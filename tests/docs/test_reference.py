"""docs/reference.md names everything that `timespine` exports. Run this file to write it anew."""

import ast
import functools
import inspect
import itertools
import re
import sys
from pathlib import Path

import pytest

import timespine
import timespine.arrangement
import timespine.views
from timespine.errors import TimespineError

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"

HEAD = """# Reference

Everything that `import timespine as ts` gives, with the first sentences of its docstring; `help(ts.Collection)`
says the rest. Errors are in `timespine.errors`, too, where their tree is drawn. The last groups are of `ts.spark`,
`ts.views` and `ts.arrangement`. `python tests/docs/test_reference.py` writes this page.
"""

GROUPS = {
    "Stores and collections": "open Store Collection Config Transaction Merge Writer",
    "Batches built by hand": "BatchBuilder AddResult HollowBatch Run Part Order",
    "Reading": "Rows Snapshot Changes Updates Contents MultiSnapshot Hold CriticalHold",
    "Following": "ChangeFeed FeedEvent CommitStream CommitEvent OpenArrangement ArrangementReads ArrangementHold",
    "Conditions and shapes": "col Column Predicate define Schema Field Frontier Description",
    "Arguments": "Value Row RowsLike Where SetLike KeyLike SchemaLike TypeLike CreateOptions TimeLike FrontierLike "
    "DurationLike RetentionLike Timeline IfExists IfBehind LatePolicy Multiplicity "
    "ViewPolicy ViewTimes ViewEngine FrameFunction Progress Verification",
    "Operating": "copy CopyResult promote restore RestorePoint RestoreResult fence",
    "Results": "CommitResult WriteResult SealResult ExpireResult VacuumResult AppendResult MaintenanceReport Retention",
    "Looking inside": "Inspection BatchInfo PartInfo PlainFrontier HistoryEntry Amplification",
    "Checking": "examine HealthReport Finding FindingKind",
    "With an extra": "View Refreshed Following StatementResult register_collector",
}

MODULES = {
    "Spark": "spark",
    "Views": "views",
    "Arrangements": "arrangement",
}
"""The modules with groups of their own, by the titles of these."""

WITH_EXTRA = GROUPS["With an extra"].split()
"""Names that are not in `__all__`: they import libraries that an extra installs."""


def errors():
    """Name the errors, by their depth in the tree."""
    found = [each for name in timespine.__all__ if is_error(each := getattr(timespine, name))]
    return ["Hint", *(each.__name__ for each in sorted(found, key=lambda each: [base.__name__ for base in path(each)]))]


def is_error(each):
    return inspect.isclass(each) and issubclass(each, TimespineError)


def path(error):
    return [base for base in reversed(error.__mro__) if is_error(base)]


ALIASES = (
    "client/arguments/argument_types.py",
    "client/arguments/time_args.py",
    "client/catalog/retention.py",
    "client/backup/restore_to_commit.py",
    "arrangement/spine/retention_filters.py",
    "columnar/predicate/where.py",
    "columnar/schema/types.py",
)
"""The files that define types of arguments."""


@functools.cache
def alias_docs():
    """Give the text that stands below each type of an argument."""
    found = {}
    for file in ALIASES:
        body = ast.parse((Path(timespine.__file__).parent / file).read_text()).body
        for assigned, text in itertools.pairwise(body):
            if isinstance(assigned, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
                target = assigned.target if isinstance(assigned, ast.AnnAssign) else assigned.targets[0]
                found[ast.unparse(target)] = ast.literal_eval(text.value)
    return found


def summary(name, module=timespine):
    """Give the first paragraph of a docstring in one line."""
    text = alias_docs().get(name) or inspect.getdoc(getattr(module, name)) or ""
    return " ".join(text.partition("\n\n")[0].split())


def page():
    """Write the page."""
    groups = {**{title: names.split() for title, names in GROUPS.items()}, "Errors": errors()}
    lists = (
        f"## {title}\n\n" + "\n".join(f"- `{name}`: {summary(name)}" for name in names) + "\n"
        for title, names in groups.items()
    )
    return "\n".join((HEAD, *lists, *(page_of_module(*each) for each in MODULES.items())))


def page_of_module(title, name):
    """Write the group of a module."""
    module = getattr(timespine, name)
    names = sorted(module.__all__, key=str.lower)
    return f"## {title}\n\n" + "\n".join(f"- `ts.{name}.{each}`: {summary(each, module)}" for each in names) + "\n"


def test_the_reference_has_every_exported_name_once():
    named = [*(name for names in GROUPS.values() for name in names.split()), *errors(), "__version__"]
    assert sorted(named) == sorted([*timespine.__all__, *WITH_EXTRA])
    assert all(summary(name) for name in named if name != "__version__")


@pytest.mark.parametrize("name", MODULES.values())
def test_the_reference_has_every_exported_name_of_the_modules_with_their_own_groups(name):
    module = getattr(timespine, name)
    text = PAGE.read_text()
    assert [each for each in module.__all__ if text.count(f"`ts.{name}.{each}`: {summary(each, module)}\n") != 1] == []
    assert all(summary(each, module) for each in module.__all__)


def test_the_page_is_written_from_the_docstrings():
    assert PAGE.read_text() == page(), "run: python tests/docs/test_reference.py"


def types_in(annotation, names):
    """Give the classes of ours that an annotation names."""
    for name in re.findall(r"\w+", str(annotation)):
        found = names.get(name)
        if inspect.isclass(found) and found.__module__.startswith("timespine."):
            yield found


def given_types(module):
    """Give each type that a user gets from an exported function, method, property or field, with where that is."""
    for name in module.__all__:
        each = getattr(module, name)
        if inspect.isfunction(each):
            yield from ((name, found) for found in types_in(each.__annotations__.get("return"), each.__globals__))
        for owner in each.__mro__ if inspect.isclass(each) else ():
            if not owner.__module__.startswith("timespine."):
                continue
            for field, annotation in vars(owner).get("__annotations__", {}).items():
                names = vars(sys.modules[owner.__module__])
                yield from ((f"{name}.{field}", found) for found in types_in(annotation, names))
            for method, value in vars(owner).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if inspect.isfunction(function):
                    types = types_in(function.__annotations__.get("return"), function.__globals__)
                    yield from ((f"{name}.{method}", found) for found in types)


INSIDES = {"Batch.around", "Batch.filters", "Batch.locate"}
"""Methods for the packages of an arrangement. They give pieces of a batch, which users do not handle."""


@pytest.mark.parametrize(("module", "least"), [(timespine, 150), (timespine.arrangement, 20)], ids=str)
def test_every_type_that_users_get_is_exported_with_a_docstring(module, least):
    exported = {id(getattr(each, name)) for each in (timespine, module) for name in each.__all__}
    shown = [each for each in given_types(module) if each[0] not in INSIDES]
    given = [(where, found) for where, found in shown if not where.partition(".")[2].startswith("_")]
    assert len({where for where, _ in given}) > least
    assert [where for where, found in given if id(found) not in exported] == []
    assert [where for where, found in given if not inspect.getdoc(found)] == []


def test_the_alias_of_frontiers_in_results_is_exported():
    assert timespine.Inspection.__annotations__["upper"] == "PlainFrontier"
    assert timespine.PlainFrontier == int | list[list[int]] | None


if __name__ == "__main__":
    PAGE.write_text(page())
