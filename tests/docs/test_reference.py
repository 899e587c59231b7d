"""docs/reference.md names everything that `timespine` exports. Run this file to write it anew."""

import ast
import functools
import inspect
import itertools
import re
from pathlib import Path

import timespine
from timespine.errors import TimespineError

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"

HEAD = """# Reference

Everything that `import timespine as ts` gives, with the first sentences of its docstring; `help(ts.Collection)`
says the rest. Errors are in `timespine.errors`, too, where their tree is drawn. `python tests/docs/test_reference.py`
writes this page.
"""

GROUPS = {
    "Stores and collections": "open Store Collection Config Transaction Merge Writer BatchBuilder HollowBatch",
    "Reading": "Rows Snapshot Changes Updates Contents MultiSnapshot Hold CriticalHold",
    "Following": "ChangeFeed FeedEvent CommitStream CommitEvent ArrangementHold OpenArrangement",
    "Conditions and shapes": "col Column Predicate Schema Field Frontier Description",
    "Arguments": "Value Row RowsLike Where SetLike KeyLike SchemaLike TypeLike CreateOptions TimeLike FrontierLike "
    "DurationLike RetentionLike Timeline IfExists IfBehind LatePolicy Multiplicity "
    "ViewPolicy ViewTimes ViewEngine",
    "Operating": "copy CopyResult promote restore RestorePoint RestoreResult fence",
    "Results": "CommitResult WriteResult SealResult ExpireResult VacuumResult AppendResult MaintenanceReport Retention",
    "Looking inside": "Inspection BatchInfo PartInfo HistoryEntry Amplification examine HealthReport Finding",
}


def errors():
    """Name the errors, by their depth in the tree."""
    found = [each for name in timespine.__all__ if is_error(each := getattr(timespine, name))]
    return ["Hint", *(each.__name__ for each in sorted(found, key=lambda each: [base.__name__ for base in path(each)]))]


def is_error(each):
    return inspect.isclass(each) and issubclass(each, TimespineError)


def path(error):
    return [base for base in reversed(error.__mro__) if is_error(base)]


ALIASES = (
    "client/argument_types.py",
    "client/time_args.py",
    "client/catalog/retention.py",
    "client/backup/restore_to_commit.py",
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


def summary(name):
    """Give the first paragraph of a docstring in one line."""
    text = alias_docs().get(name) or inspect.getdoc(getattr(timespine, name)) or ""
    return " ".join(text.partition("\n\n")[0].split())


def page():
    """Write the page."""
    groups = {**{title: names.split() for title, names in GROUPS.items()}, "Errors": errors()}
    lists = (
        f"## {title}\n\n" + "\n".join(f"- `{name}`: {summary(name)}" for name in names) + "\n"
        for title, names in groups.items()
    )
    return "\n".join((HEAD, *lists))


def test_the_reference_has_every_exported_name_once():
    named = [*(name for names in GROUPS.values() for name in names.split()), *errors(), "__version__"]
    assert sorted(named) == sorted(timespine.__all__)
    assert all(summary(name) for name in named if name != "__version__")


def test_the_page_is_written_from_the_docstrings():
    assert PAGE.read_text() == page(), "run: python tests/docs/test_reference.py"


HANDLES = (
    "Store",
    "Collection",
    "Transaction",
    "Snapshot",
    "Changes",
    "Updates",
    "MultiSnapshot",
    "Contents",
    "Hold",
    "Writer",
)

INSIDE = {"Part", "Parts", "Slice"}
"""What only Spark asks rows for."""


def types_in(function):
    """Give the classes of ours that the annotation of a result names."""
    for name in re.findall(r"\w+", str(function.__annotations__.get("return"))):
        found = function.__globals__.get(name)
        if inspect.isclass(found) and found.__module__.startswith("timespine."):
            yield found


def test_every_type_that_a_public_method_gives_is_exported():
    exported = {id(getattr(timespine, name)) for name in timespine.__all__}
    for name in HANDLES:
        for method, value in inspect.getmembers(getattr(timespine, name)):
            function = value.fget if isinstance(value, property) else value
            if method.startswith("_") or not inspect.isfunction(function):
                continue
            for found in types_in(function):
                assert found.__name__ in INSIDE or id(found) in exported, f"{name}.{method} gives {found.__name__}"


if __name__ == "__main__":
    PAGE.write_text(page())
