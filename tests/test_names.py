"""No public name at the top of a module means two things."""

import ast
import pkgutil
import re
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import timespine
from timespine.core.encoding import envelope
from timespine.location import consensus

ROOT = Path(timespine.__file__).parent

SAME_MEANING = {
    ("add_commands", "cli/commands/*.py"): "each module of cli.commands adds its verbs by it",
    ("consolidate", "columnar/kernels/consolidate.py", "model/oracle.py"): "the kernel, and the oracle for comparison",
    (
        "drop_sink",
        "core/transitions/writers.py",
        "spark/__init__.py",
    ): "the transition, and the function of users that commits it",
    (
        "Spine",
        "arrangement/spine/spine.py",
        "core/spine/spine.py",
    ): "batches and the policy that merges them: of a collection in its state, of an arrangement in memory",
    ("main", "cli/__init__.py", "testing/datadriven.py", "testing/simulate.py"): "the entry points of programs",
}
"""Names that several modules define, the patterns of their files, and what they all mean by it."""

DOTTED = re.compile(r"timespine(?:\.\w+)+")
LOGGERS = {"timespine.maintenance"}


def names_of(node):
    """Names that a statement defines: of a class, a function, or a type that it assigns."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets):
            return [each.id for each in targets if isinstance(each, ast.Name) and is_of_a_type(each.id)]
        case ast.AnnAssign(ast.Name(name)) if is_of_a_type(name):
            return [name]
        case ast.If(_, body, otherwise):
            return [name for each in (*body, *otherwise) for name in names_of(each)]
    return []


def is_of_a_type(name):
    """Return whether an assigned name is written as types are. Constants are not, nor type variables of one letter."""
    return name[0].isupper() and not name.isupper()


def definitions():
    """Modules by the public classes, functions and assigned types that they define."""
    found = defaultdict(set)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            for name in names_of(node):
                if not name.startswith("_"):
                    found[name].add(path.relative_to(ROOT).as_posix())
    return found


def with_same_meaning(found):
    """Return each entry of SAME_MEANING, and the files that its patterns select among the definitions of its name."""
    for name, *patterns in SAME_MEANING:
        yield name, patterns, {file for file in found[name] if any(fnmatch(file, each) for each in patterns)}


def test_no_public_name_is_defined_with_two_meanings():
    found = definitions()
    several = {name: files for name, files in found.items() if len(files) > 1}
    for name, _, files in with_same_meaning(found):
        if several.get(name) == files:
            del several[name]
    assert {name: sorted(files) for name, files in several.items()} == {}


def test_names_that_may_be_defined_twice_still_are():
    for name, patterns, files in with_same_meaning(definitions()):
        assert len(files) > 1, name
        assert all(any(fnmatch(file, each) for file in files) for each in patterns), name


def test_types_that_are_assigned_count_as_definitions_and_constants_do_not():
    source = 'Rows = list\nRow: object = dict\nROWS = 1\nT = TypeVar("T")\nrows = 2\nif TYPE_CHECKING:\n    Place = int'
    found = [name for node in ast.parse(source).body for name in names_of(node)]
    assert found == ["Rows", "Row", "Place"]


def test_a_limit_that_two_layers_state_is_the_same_in_both():
    assert consensus.ENTRY_BYTES_MAX == envelope.ENTRY_BYTES_MAX


def test_every_name_of_the_library_that_tests_patch_or_import_by_text_exists():
    """A patch of a name that is gone fails only where the test runs, which for Spark is a slow place to find out."""
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
                try:
                    pkgutil.resolve_name(node.value)
                except (ImportError, AttributeError):
                    where = f"{path.relative_to(tests)}:{node.lineno}"
                    assert node.value in LOGGERS, f"{where} names {node.value}, which does not exist"
