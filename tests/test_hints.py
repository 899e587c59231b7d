"""Messages of errors reach users of the command line too: what has Python syntax in it is a hint."""

import ast
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import timespine as ts
from timespine.cli.error_wording import hint_text
from timespine.errors import UnsupportedView, UsageError
from timespine.hints import Hint, rendered_by

SOURCE = Path(ts.__file__).parent
PYTHON = re.compile(r"(?<![\w:?&-])[a-z_]\w*=(?![=<>])|[\w\])]\.\w+\(|\b[a-z_]\w*\(\)")
"""An argument by name, the call of a method, and the call of a function without arguments."""

ELSEWHERE = (
    "hints.py",  # the words of the library
    "cli/",  # the words of the command line
    "testing/",  # for tests of Python programs
    "spark/",  # for programs with a session of Spark
    "location/postgres/schema.py",  # SQL of functions in the database
    "location/postgres/postgres_consensus.py",  # SQL that calls them
    "views/plan/expressions.py",  # the text of plans, of which digests are made
)

ALLOWED = {
    ("client/read/to_dicts.py", "read it with to_arrow()"): "the command line reads Arrow data",
    ("client/write/merge_builder.py", "when_matched_update()"): "the command line refuses a merge without clauses",
    ("views/sql/from_sql.py", "row_number()"): "SQL, which a view of the command line has too",
    ("views/sql/statements.py", "store[name].snapshot()"): "no verb runs a statement of views",
}
"""Messages with such syntax, and why no user of the command line reads Python there."""


def strings(path: Path) -> Iterator[str]:
    """Give the texts in a file that can be messages: neither docstrings nor single words."""
    tree = ast.parse(path.read_text())
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_message_has_python_syntax_but_hints():
    found, used = [], set()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(ELSEWHERE):
            continue
        for text in strings(path):
            if " " not in text or PYTHON.search(text) is None:
                continue
            allowed = {each for each in ALLOWED if each[0] == name and each[1] in text}
            used |= allowed
            if not allowed:
                found.append(f"{name}: {text}")
    assert found == []
    assert used == set(ALLOWED)


@pytest.mark.parametrize("text", ["pass ahead=True", "say at=(...)", "until view.rebuild()", "updates() gives them"])
def test_python_syntax_is_found(text):
    assert PYTHON.search(text) is not None


@pytest.mark.parametrize("text", ["as ['id']", "use sum, max(v) or count(*)", "write a >= b", "https://host/path"])
def test_what_is_no_python_is_not_found(text):
    assert PYTHON.search(text) is None


def test_texts_of_errors_are_in_the_words_of_the_interface_that_runs():
    error = UsageError("a is no view", hint=Hint("create-view"))
    with rendered_by(partial(hint_text, can_wait=False)):
        assert str(error) == "a is no view; create one with `timespine view create`"
    assert str(error) == "a is no view; create one with store.view(name, sql=...)"


def test_hint_of_a_refused_view_comes_before_its_reasons():
    error = UnsupportedView("there is no session", ("one", "two"), hint=Hint("give-session-or-change"))
    assert str(error) == "there is no session; give one, spark=..., or change them\n  one\n  two"
    assert error.message == "there is no session\n  one\n  two"
    assert str(UnsupportedView("no", ("one",))) == "no\n  one"
