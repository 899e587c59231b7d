"""What goes wrong is told in one line that says what to do, with the exit code of its kind, and never a traceback."""

import json
import sqlite3

import pytest
from running import document, failure, run
from typer.testing import CliRunner

from timespine import errors
from timespine.cli import error_report
from timespine.cli.app import app
from timespine.model.frontier import Frontier

READING = ("snapshot", "changes", "tail", "describe", "inspect", "history", "compact")


@pytest.mark.parametrize("verb", READING)
def test_a_store_that_is_not_there_is_not_made(tmp_path, verb):
    assert "timespine init" in failure(verb, tmp_path / "nope", "orders", code=2)
    assert not (tmp_path / "nope").exists()


def test_loss_can_only_be_accepted_where_there_is_a_store(tmp_path):
    for place in (tmp_path, tmp_path / "nope"):
        assert "there is no store in" in failure("doctor", place, "--accept-loss", code=2)
    assert "empty" in failure("doctor", "", "--accept-loss", code=2)
    assert list(tmp_path.iterdir()) == []


def test_advice_is_given_once(store):
    (store / "consensus.db").unlink()
    line = failure("list", store, code=6)
    assert line.count("restore") == 1
    assert "restore" in error_report.hint(errors.CorruptionError("a part is damaged"))


@pytest.mark.parametrize("verb", ["list", "doctor", "maintain", "vacuum"])
def test_a_folder_that_is_no_store_stays_as_it_is(tmp_path, verb):
    (tmp_path / "file").write_text("mine")
    failure(verb, tmp_path, code=2)
    failure(verb, tmp_path / "file", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("verb", "name"),
    [*((verb, "nope") for verb in READING), *(("snapshot", name) for name in ("", "../orders", "or ders", "\x1b[31m"))],
)
def test_a_name_that_is_not_there(original, verb, name):
    line = failure(verb, original, name, code=2)
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--as-of", "-1"), 2, "-1"),
        (("--as-of", "99"), 3, "--wait"),
        (("--as-of", "9223372036854775808"), 2, "2^63"),
        (("--as-of", "1,2"), 2, "coordinate"),
        (("--as-of", "yesterday"), 2, "not a time"),
        (("--as-of", ""), 2, "not a time"),
        (("--as-of", "1.5"), 2, "not a time"),
        (("--columns", "colour"), 2, "'colour'"),
        (("--columns", "id,id"), 2, "twice"),
        (("--columns", ""), 2, "at least one"),
        (("--where", "colour = 1"), 2, "'colour'"),
        (("--where", "id = 'x'"), 2, "id"),
        (("--where", "id >"), 2, "error"),
        (("--where", "); DROP TABLE orders"), 2, "error"),
        (("--where", ""), 2, "error"),
        (("--limit", "-1"), 2, "--limit"),
        (("--limit", "many"), 2, "--limit"),
        (("--wait", "-1"), 2, "--wait"),
        (("--multiplicity", "thrice"), 2, "--multiplicity"),
        (("--output", "xml"), 2, "--output"),
        (("--nonsense",), 2, "timespine snapshot --help"),
        (("one", "too", "many"), 2, "timespine snapshot --help"),
    ],
)
def test_invalid_arguments_are_answered_in_one_line(original, args, code, says):
    assert says in failure("snapshot", original, "orders", *args, code=code)


@pytest.mark.parametrize(
    "key",
    [
        ("id",),
        ("id=x",),
        ("id=",),
        ("id=1.5",),
        ("nope=1",),
        ("id=1", "id=2"),
        ("total=1",),
        ("id=99999999999999999999",),
    ],
)
def test_a_key_that_is_none(original, key):
    failure("lookup", original, "orders", *key, code=2)


def test_a_collection_that_could_not_be_meant(store):
    assert "--key" in failure("create", store, "other", code=2)
    assert "one of them" in failure(
        "create", store, "orders", "--key", "id:int64", "--replace", "--if-not-exists", code=2
    )
    assert document("inspect", store, "orders")["upper"] == 3


def test_an_empty_path_is_not_the_folder_one_is_in(store, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for args in (("init", ""), ("list", "")):
        assert "the location of the store is empty" in failure(*args, code=2)
    for args in (("append", store, "orders", ""), ("load", store, "new", "")):
        assert "is empty: give a path" in failure(*args, code=2)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_range_that_makes_no_sense(store):
    failure("changes", store, "orders", "--after", 2, "--until", 1, code=2)
    failure("changes", store, "orders", "--after", 99, code=2)
    failure("tail", store, "orders", "--as-of", 99, "--timeout", 0, code=3)
    failure("tail", store, "orders", "-o", "parquet", code=2)
    failure("listen", store, "orders", "-o", "parquet", code=2)
    failure("expire", store, "orders", "--before", -5, code=2)
    failure("expire", store, "orders", code=2)


def test_a_store_whose_database_is_damaged(store):
    path = store / "consensus.db"
    whole = path.read_bytes()
    path.write_bytes(b"this is not a database" + whole[22:])
    for verb in ("list", "doctor"):
        failure(verb, store, code=6)
    failure("snapshot", store, "orders", code=6)
    path.write_bytes(whole[: len(whole) // 2])
    failure("snapshot", store, "orders", code=6)


def test_a_collection_whose_log_is_damaged_does_not_hide_the_others(store):
    """An entry with a checksum that fits its bytes, which are nonsense: what a faulty program might write."""
    damage(store, "orders")
    assert "doctor" in failure("snapshot", store, "orders", code=6)
    listed = {each["name"]: each["state"] for each in document("list", store)}
    assert listed == {"items": "open", "orders": "damaged"}
    run("snapshot", store, "items")
    (found,) = json.loads(run("doctor", store, "-o", "json", code=6).stdout)["findings"]
    assert (found["collection"], found["what"]) == ("orders", "log")


def damage(store, name):
    connection = sqlite3.connect(store / "consensus.db")
    with connection:
        connection.execute(
            "UPDATE entries SET data = zeroblob(length(data)) WHERE key LIKE ? AND seqno = 1", (f"{name}-%",)
        )
    connection.close()


def test_errors_are_json_when_json_was_asked_for(store):
    result = run("snapshot", store, "orders", "--as-of", 99, "--output=json", code=3)
    error = json.loads(result.stderr)
    assert error["error"] == "NotSealed"
    assert (error["asked"], error["upper"], error["exit_code"]) == (99, 3, 3)
    assert "--wait" in error["hint"]
    error = json.loads(run("snapshot", store, "-o", "json", code=2).stderr)
    assert (error["error"], error["exit_code"]) == ("UsageError", 2)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.DiffOverflow("x"), 2),
        (errors.UpperMismatch(1, 2), 3),
        (errors.SinceError((0,), Frontier.at(1)), 3),
        (errors.NotSealed((0,), Frontier.at(1)), 3),
        (errors.SchemaConflict(1, 2), 3),
        (errors.ClosedError("x"), 3),
        (errors.InlineBudgetExceeded(1, 2, 3), 3),
        (errors.LeaseExpired("x"), 4),
        (errors.Fenced("x"), 4),
        (errors.Unavailable("x"), 5),
        (errors.Determinate("x"), 5),
        (errors.Indeterminate("x"), 5),
        (errors.CorruptionError("x"), 6),
        (errors.VersionError("x"), 6),
        (FileNotFoundError(2, "No such file", "x"), 2),
        (OSError(28, "No space left on device"), 5),
        (RuntimeError("x\n\x1b[31my"), 1),
    ],
)
def test_every_error_has_its_exit_code_and_fits_one_line(original, monkeypatch, capsys, error, code):
    def fail(self):
        raise error

    monkeypatch.setattr("timespine.client.store.Store.names", fail)
    line = failure("list", original, code=code)
    assert "\x1b" not in line
    assert error_report.report_error(error, as_json=True, debug=False) == code
    assert json.loads(capsys.readouterr().err)["exit_code"] == code


def test_a_traceback_is_shown_when_it_was_asked_for(store):
    result = CliRunner().invoke(app, ["snapshot", str(store), "nope", "--debug"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: there is no collection nope")


def test_every_verb_has_help_with_an_example():
    result = run("--help")
    verbs = [line.split()[0] for line in result.stdout.split("Commands:")[1].splitlines() if line.startswith("  ")]
    verbs = verbs[: verbs.index("inspect") + 1]
    assert {"init", "create", "append", "load", "snapshot", "doctor", "tail", "hold"} <= set(verbs)
    assert "Exit codes:" in result.stdout
    for verb in verbs:
        text = run(verb, "--help").stdout
        assert "Example:" in text, verb
        assert f"timespine {verb}" in text, verb


def test_without_a_verb_there_is_help():
    assert "Commands:" in run(code=2).stdout
    assert run("--version").stdout.startswith("timespine ")
    assert "No such command" in failure("frobnicate", code=2)
