"""What a user sees of the exported classes: every name has a docstring, and hints that say something."""

import ast
import inspect
import itertools
import re
import textwrap
from pathlib import Path

import pytest
from pages import BLOCK

import timespine
from timespine.location.memory import MemoryBlob, MemoryConsensus

ROOT = Path(__file__).parents[2]

PUBLIC = {f"timespine{name}" for name in ("", ".arrangement", ".errors", ".spark", ".testing.conformance", ".views")}
"""The modules that pages and examples may import."""

CLASSES = [name for name in timespine.__all__ if inspect.isclass(getattr(timespine, name))]

INSIDES = {
    "Store": {"engine", "handles", "heart", "maintenance", "adopt", "check_replaceable", "set_retention", "compact"},
    "Transaction": {"add", "change", "also", "create_as", "refreshes"},
    "Rows": {"only", "untouched", "slices", "extent", "tally", "columns_of", "restrict_to", "parts"},
}
"""Names that were public once, and are no business of users."""


def members(name):
    """Give the public methods and properties that a class of ours defines or inherits."""
    for owner in getattr(timespine, name).__mro__:
        if owner.__module__.startswith("timespine."):
            for member, value in vars(owner).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{owner.__name__}.{member}", function


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_name_has_a_docstring_that_begins_with_a_word(name):
    assert (inspect.getdoc(getattr(timespine, name)) or "")[:1].isalpha(), name
    for member, function in members(name):
        text = inspect.getdoc(function) or ""
        assert text[:1].isalpha() or text[:1] in "`", f"{member} has no docstring"


@pytest.mark.parametrize("module", [timespine, timespine.spark, timespine.views, timespine.arrangement])
def test_every_exported_function_and_class_has_a_docstring(module):
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert (vars(value).get("__doc__") or value.__doc__ or "")[:1].isalpha(), f"{module.__name__}.{name}"


@pytest.mark.parametrize("name", CLASSES)
def test_no_hint_of_a_public_method_is_any(name):
    for member, function in members(name):
        if function.__name__ == "<lambda>":
            continue
        given = inspect.signature(function)
        hints = [str(each.annotation) for each in given.parameters.values()] + [str(given.return_annotation)]
        assert not any("Any" in hint for hint in hints), f"{member}: {given}"
        untyped = [
            each
            for each in given.parameters.values()
            if each.annotation is each.empty and each.name not in ("self", "cls")
        ]
        assert not untyped, f"{member}: {untyped}"


@pytest.mark.parametrize("name", INSIDES)
def test_stores_and_rows_show_no_insides(name):
    assert not INSIDES[name] & set(dir(getattr(timespine, name)))


SHOWN = {"as_of", "has_images", "id", "location", "multiplicity", "name", "replies", "since", "token"}
"""Public attributes of handles that are not methods or properties."""


def test_handles_show_no_insides():
    with timespine.Store(MemoryBlob(), MemoryConsensus(), maintenance=False) as store:
        orders = store.create("orders", key={"id": "int64"}, timeline="counter")
        orders.append([{"id": 1}])
        handles = [
            *(store, orders, orders.snapshot(), orders.changes(), orders.updates(), orders.unsealed()),
            *(orders.subscribe(), orders.listen(), orders.hold(), orders.critical_hold("kept"), orders.writer()),
            *(orders.merge([{"id": 1}]), store.transaction(), store.snapshot(["orders"])),
        ]
        for handle in handles:
            named = {*getattr(handle, "__dict__", ()), *getattr(type(handle), "__slots__", ())}
            assert {each for each in named if not each.startswith("_")} <= SHOWN, type(handle).__name__


FRONTIER = re.compile(r"\bFrontier\b")
FRONTIERS = {"upper", "since", "asked"}
TIMES = {"time", "as_of", "through", "first", "last", "until", "after", "at"}


def test_what_is_called_upper_or_since_is_a_frontier_and_other_moments_are_times():
    kinds = {}
    for name in CLASSES:
        for owner in getattr(timespine, name).__mro__:
            if owner.__module__.startswith("timespine."):
                fields = vars(owner).get("__annotations__", {})
                given = {
                    key: value.fget.__annotations__["return"] for key, value in vars(owner).items() if is_ours(value)
                }
                kinds |= {(name, key): str(hint) for key, hint in {**fields, **given}.items()}
    frontiers = {each: hint for each, hint in kinds.items() if each[1] in FRONTIERS}
    times = {each: hint for each, hint in kinds.items() if each[1] in TIMES}
    assert len(frontiers) > 15
    assert len(times) > 5
    plain = {each for each, hint in frontiers.items() if hint == "PlainFrontier"}
    assert plain == {(name, key) for name in ("BatchInfo", "Inspection") for key in ("since", "upper")}
    assert {each for each, hint in frontiers.items() if not FRONTIER.search(hint)} == plain
    assert {each for each, hint in times.items() if "Frontier" in hint} == set()


def is_ours(value):
    return isinstance(value, property) and value.fget is not None


def test_the_options_of_a_transaction_that_creates_are_those_of_the_store():
    of_store = set(inspect.signature(timespine.Store.create).parameters) - {"self", "name", "replace", "if_exists"}
    assert of_store == set(timespine.CreateOptions.__annotations__)


EXPORTING = [timespine, timespine.spark, timespine.views, timespine.arrangement, timespine.model]


def fields_without_text(kind):
    """Give the public fields that a class of ours declares, and that have no sentence under them."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    for declared, below in itertools.pairwise([*defined.body, ast.Pass()]):
        if isinstance(declared, ast.AnnAssign) and not ast.unparse(declared.target).startswith("_"):
            text = below.value if isinstance(below, ast.Expr) else None
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                yield f"{kind.__name__}.{ast.unparse(declared.target)}"


def statements_below(body):
    """Give each statement of a body, and of the blocks in it, with the one right below it."""
    for statement, below in itertools.pairwise([*body, ast.Pass()]):
        yield statement, below
        for block in (statement, *getattr(statement, "handlers", ())):
            for part in ("body", "orelse", "finalbody"):
                yield from statements_below(getattr(block, part, ()))


def attributes(kind):
    """Give the public attributes that the methods of a class set on `self`, with whether a sentence is under them."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    for method in defined.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        for statement, below in statements_below(method.body):
            if not isinstance(statement, ast.Assign | ast.AnnAssign):
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in [leaf for each in targets for leaf in getattr(each, "elts", [each])]:
                is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                if is_own and not target.attr.startswith("_"):
                    text = below.value if isinstance(below, ast.Expr) else None
                    yield target.attr, isinstance(text, ast.Constant) and isinstance(text.value, str)


def attributes_without_text(kind):
    """Give the public attributes of a class of ours that have no sentence anywhere: here, or in a class above."""
    above = [each for each in kind.__mro__ if each.__module__.startswith("timespine.")]
    declared = {name for each in above for name in vars(each).get("__annotations__", {})}
    explained = {name for each in above for name, has_text in attributes(each) if has_text}
    properties = {name for each in above for name, value in vars(each).items() if isinstance(value, property)}
    of_python = {name for each in kind.__mro__ if each not in above for name in vars(each)}
    given = {name for name, _ in attributes(kind)} - declared - explained - properties - of_python
    return [f"{kind.__name__}.{name}" for name in sorted(given)]


def test_every_public_attribute_that_an_exported_class_sets_has_a_sentence_under_it():
    exported = [getattr(module, name) for module in EXPORTING for name in module.__all__]
    classes = [each for each in exported if inspect.isclass(each)]
    ours = {owner for each in classes for owner in each.__mro__ if owner.__module__.startswith("timespine.")}
    assert sum(1 for kind in ours for _ in attributes(kind)) > 40
    assert sorted(field for kind in ours for field in attributes_without_text(kind)) == []


def test_every_public_field_of_an_exported_class_has_a_sentence_under_it():
    exported = [getattr(module, name) for module in EXPORTING for name in module.__all__]
    classes = [each for each in exported if inspect.isclass(each)]
    ours = {owner for each in classes for owner in each.__mro__ if owner.__module__.startswith("timespine.")}
    assert len(ours) > 100
    assert sorted(field for kind in ours for field in fields_without_text(kind)) == []


def imports_of_ours(source):
    """Give the modules of ours that a program imports."""
    for node in ast.walk(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        yield from (name for name in names if name.partition(".")[0] == "timespine")


def test_pages_and_examples_import_only_public_modules():
    """The pages on formats read bytes that no user handles, and import what decodes them."""
    programs = [(path, path.read_text()) for path in sorted((ROOT / "examples").rglob("*.py"))]
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        programs.extend((page, text) for kind, text in BLOCK.findall(page.read_text()) if kind == "python")
    found = [(path.name, name) for path, text in programs for name in imports_of_ours(text)]
    assert len(found) > 15
    assert [(path, name) for path, name in found if name not in PUBLIC] == []
