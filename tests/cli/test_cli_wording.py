"""Errors say what a user of the command line can do, in options and verbs, not in Python."""

import pickle
import re
from pathlib import Path

import pytest
import typer.main
from running import failure, run

import timespine as ts
from timespine import hints as library
from timespine.cli import error_wording
from timespine.cli.app import app
from timespine.errors import InvalidRows, UsageError
from timespine.hints import Hint

LIBRARY = Path(ts.__file__).parent
PYTHON = re.compile(
    r"store\[|=True|view\.|spark=|updates\(|storage=|timespine\.open|datetime\.|store\.\w+\(|\w+='|=\(\.|`(at|upper|as_of)`|where="
)


def test_the_command_line_has_a_sentence_for_every_hint_of_the_library():
    assert set(error_wording.SENTENCES) == set(library.SENTENCES)


def test_every_hint_is_given_somewhere():
    source = "\n".join(file.read_text() for file in LIBRARY.rglob("*.py"))
    given = set(re.findall(r'Hint\("([\w-]+)"', source))
    assert given == set(library.SENTENCES)


def test_sentences_of_the_command_line_have_no_python_in_them():
    args = {"name": "orders", "timeline": "clock", "columns": "_time", "engine": "spark"}
    for code in error_wording.SENTENCES:
        assert not PYTHON.search(error_wording.hint_text(Hint(code, args), can_wait=True)), code


def test_help_is_in_plain_english():
    verbs = [(), *((name,) for name in typer.main.get_command(app).commands)]
    for verb in verbs:
        text = " ".join(run(*verb, "--help").stdout.split())
        found = re.search(r"\b(whoever|somebody|nobody|anybody|all the same|so many|any more|by now|meanwhile)\b", text)
        assert found is None, (verb, found)


@pytest.fixture
def wide(store):
    """The store, with a collection whose rows count less than nothing, and one that has no key but a list."""
    run("create", store, "nested", "--value", "list:list<int64>")
    run("create", store, "less", "--key", "id:int64", "--timeline", "counter")
    run("append", store, "less", "-", "--format", "json", input='{"id": 1, "_time": 0, "_diff": -1}')
    return store


SAME = ("--key", "id:int64", "--value", "customer:string", "--value", "total:double", "--if-not-exists")
WRONG = [
    (("create", "orders", "--key", "id:int64"), "--replace"),
    (("create", "orders", "--key", "id:int64", "--if-not-exists"), "--replace"),
    (("create", "orders", *SAME, "--timeline", "clock"), "--timeline counter"),
    (("create", "other", "--key", "id:int64", "--timeline", "counter", "--retain", "7 days"), "--timeline clock"),
    (("snapshot", "less"), "--multiplicity column"),
    (("snapshot", "orders", "--as-of", "2024-01-31"), "has no zone"),
    (("snapshot", "orders", "--wait", "nan"), "error"),
    (("tail", "orders", "--timeout", "nan"), "error"),
    (("lookup", "nested", "list=[1]"), "--where SQL"),
    (("append", "orders", "at.json", "--at", "7"), "leave out --at"),
    (("append", "orders", "empty.csv"), "give rows, or --upper"),
    (("lookup", "orders", "id=1", "--low", "id=2"), "no key column is left for a range"),
    (("lookup", "nested", "--low", "list=[1]"), "use `timespine snapshot --where SQL`"),
    (("append", "orders", "struct.json"), "column 'total': it holds an object where float64 is needed"),
]


@pytest.mark.parametrize(("args", "says"), WRONG)
def test_what_to_do_is_said_in_options(wide, tmp_path, args, says):
    (tmp_path / "at.json").write_text('{"id": 7, "_time": 8}')
    (tmp_path / "empty.csv").write_text("id,_time\n")
    (tmp_path / "struct.json").write_text('{"id": 7, "total": {}}')
    verb, name, *rest = args
    rest = [tmp_path / each if (tmp_path / each).exists() else each for each in rest]
    line = failure(verb, wide, name, *rest, code=2)
    assert says in line
    assert not PYTHON.search(line), line


def test_expiry_ahead_of_the_upper_is_asked_for_by_an_option(store):
    run("create", store, "pairs", "--key", "id:int64", "--timeline", "counter", "--time-coordinates", "2")
    run("append", store, "pairs", "-", "--format", "json", "--at", "0,0", "--upper", "1,1", input='{"id": 1}')
    line = failure("expire", store, "pairs", "--before", "1,1", code=2)
    assert line.endswith("the collection is complete up to 1,1; add --ahead if that is what you want")
    run("expire", store, "pairs", "--before", "1,1", "--ahead")


def test_a_row_that_counts_too_often_is_looked_for_over_fewer_times(store):
    run("create", store, "often", "--value", "v:int32", "--timeline", "counter")
    for time in range(2):
        row = f'{{"v": 1, "_time": {time}, "_diff": {2**63 - 1}}}'
        run("append", store, "often", "-", "--format", "json", input=row)
    line = failure("changes", store, "often", code=2)
    assert "find its diffs with `timespine changes` over fewer times, --after and --until" in line
    assert str(2**63 - 1) in run("changes", store, "often", "--after", 0).stdout


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("s3://bucket/x?a=1", "give options in the variables of the environment"),
        ("s3://me@bucket/x", "credentials and the endpoint come from the variables of the environment"),
    ],
)
def test_options_of_storage_come_from_the_environment(location, says):
    assert failure("init", location, code=2).endswith(says)


def test_a_store_that_is_not_there_is_made_with_a_verb(tmp_path):
    line = failure("list", tmp_path / "nope", code=2)
    assert line.endswith("make one with `timespine init`")


@pytest.mark.parametrize(("verb", "can_wait"), [("snapshot", True), ("tail", False), ("lookup", True)])
def test_only_verbs_that_can_wait_say_how(store, verb, can_wait):
    line = failure(verb, store, "orders", *["id=1"] * (verb == "lookup"), "--as-of", 99, code=3)
    assert ("--wait" in line) is can_wait
    assert not PYTHON.search(line), line


def test_types_of_values_are_those_of_json_and_no_other_words_change():
    error = InvalidRows.of_type("dict", "where int64 is needed").in_context("column 'it holds a dict where'")
    assert str(error) == "column 'it holds a dict where': it holds a dict where int64 is needed"
    assert error_wording.error_text(error) == "column 'it holds a dict where': it holds an object where int64 is needed"
    assert error_wording.error_text(pickle.loads(pickle.dumps(error))) == error_wording.error_text(error)
    assert error_wording.error_text(UsageError("there is no column 'dict'")) == "there is no column 'dict'"
