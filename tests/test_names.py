"""No public name at the top of a module means two things."""

import ast
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

import timespine

ROOT = Path(timespine.__file__).parent

SAME_MEANING = {
    "add_commands": "each module of cli.commands adds its verbs by it",
    "consolidate": "the kernel, and the oracle that it is compared with",
    "drop_sink": "the transition, and the function of users that commits it",
    "Spine": "batches and the policy that merges them: of a collection in its state, of an arrangement in memory",
    "main": "the entry points of programs",
}
"""Names that several modules define, and what they all mean by it."""

DOTTED = re.compile(r"timespine(?:\.\w+)+")
LOGGERS = {"timespine.maintenance"}


def definitions():
    """Modules by the public classes and functions that they define."""
    found = defaultdict(set)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(ROOT).as_posix())
    return found


def test_no_public_name_is_defined_with_two_meanings():
    several = {name: sorted(files) for name, files in definitions().items() if len(files) > 1}
    assert {name: files for name, files in several.items() if name not in SAME_MEANING} == {}


def test_names_that_may_be_defined_twice_still_are():
    found = definitions()
    assert [name for name in SAME_MEANING if len(found[name]) < 2] == []


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
