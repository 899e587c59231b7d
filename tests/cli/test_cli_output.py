"""Where results go: refused before anything is done; and what was done is told, even if the output is broken."""

import json
import os
import re
import subprocess
import sys

import pytest
from running import ROOT, document, failure, process, run, seqnos

from timespine.errors import Indeterminate

WRITES = {
    "append": ("append", "orders", "new.csv"),
    "create": ("create", "fresh", "--key", "id:int64"),
    "rename": ("rename", "orders", "others"),
    "drop": ("drop", "orders"),
    "expire": ("expire", "orders", "--before", "2"),
    "compact": ("compact", "orders"),
    "maintain": ("maintain",),
    "load": ("load", "loaded", "table.parquet", "--key", "id"),
    "hold": ("hold", "orders", "add", "mine"),
}


@pytest.fixture
def arguments(store, tmp_path):
    """The arguments of a verb that writes, for the store and the files of the test."""
    (tmp_path / "new.csv").write_text("id\n7\n")
    run("snapshot", store, "items", "--to", tmp_path / "table.parquet")

    def made(verb):
        name, *rest = WRITES[verb]
        return [name, store, *(tmp_path / each if each.endswith((".csv", ".parquet")) else each for each in rest)]

    return made


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("verb", WRITES)
def test_a_format_that_a_verb_does_not_have_is_refused_before_anything_is_done(store, arguments, verb, form):
    before = seqnos(store)
    assert "--output text or json" in failure(*arguments(verb), "-o", form, code=2)
    assert seqnos(store) == before


def test_init_with_a_format_that_it_does_not_have_makes_no_store(tmp_path):
    failure("init", tmp_path / "store", "-o", "csv", code=2)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("to", ["/nope/x.json", "/", "/proc/nope", f"/tmp/{'x' * 300}", "{store}/consensus.db"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_done(store, arguments, to):
    before = seqnos(store)
    assert "cannot be written" in failure(*arguments("hold"), "--to", to.format(store=store), code=2)
    assert "cannot be written" in failure("vacuum", store, "--delete", "--to", to.format(store=store), code=2)
    assert seqnos(store) == before
    assert [each["kind"] for each in document("hold", store, "orders", "list")] == ["retention"]


def test_trying_a_file_leaves_nothing_behind(store, tmp_path):
    (tmp_path / "out").mkdir()
    failure("snapshot", store, "nope", "--to", tmp_path / "out" / "x.csv", code=2)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("verb", WRITES)
def test_what_was_done_is_said_when_the_output_is_full(store, arguments, verb):
    with open("/dev/full", "wb") as full:
        code, error = ended(arguments(verb), stdout=full)
    assert code == 7
    assert error.startswith("error: this was done: ")
    assert "No space left on device" in error
    assert error.endswith("do not run it again\n")
    assert error.count("\n") == 1


def test_the_token_of_a_hold_outlives_a_broken_output(store, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    code, error = ended([*arguments("hold"), "-o", "json"], stdout=writer)
    os.close(writer)
    assert code == 7
    told = json.loads(error)
    assert (told["error"], told["exit_code"]) == ("ResultNotWritten", 7)
    token = re.search(r"its token is (\w+)", told["message"])[1]
    run("hold", store, "orders", "release", "mine", "--token", token)


def test_the_token_of_a_hold_that_may_be_there_is_said(store, arguments, monkeypatch):
    def fail(*_, **__):
        raise Indeterminate("no answer")

    monkeypatch.setattr("timespine.client.collection.Collection.critical_hold", fail)
    assert re.search(r"if hold mine exists, its token is t\w{16}", failure(*arguments("hold"), code=5))


@pytest.mark.parametrize("args", [("list",), ("append", "orders", "new.csv"), ("snapshot", "orders")])
def test_a_closed_output_is_refused_before_anything_is_done(store, arguments, tmp_path, args):
    before = seqnos(store)
    verb, *rest = args
    rest = [tmp_path / each if each.endswith(".csv") else each for each in rest]
    code, error = ended([verb, store, *rest], closed=">&-")
    assert code == 141
    assert error.startswith("error: standard output is closed, and nothing was done")
    assert seqnos(store) == before


def test_a_file_needs_no_standard_output(store, tmp_path):
    assert ended(["snapshot", store, "orders", "--to", tmp_path / "x.json"], closed=">&-") == (0, "")
    assert len((tmp_path / "x.json").read_text().splitlines()) == 2


def test_closed_errors_and_a_closed_input_are_no_mistakes_of_ours(store):
    assert ended(["snapshot", store, "nope"], closed="2>&-") == (2, "")
    assert ended(["doctor", store], closed="2>&-") == (0, "")
    code, error = ended(["append", store, "orders", "-", "--format", "json"], closed="<&-")
    assert code == 2
    assert error.startswith("error: standard input is closed")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_rows_that_cannot_be_written_say_where(store, tmp_path):
    with open("/dev/full", "wb") as full:
        code, error = ended(["snapshot", store, "items"], stdout=full)
    assert (code, error) == (5, "error: standard output: No space left on device\n")
    code, error = ended(["snapshot", store, "items", "--to", "/dev/full"])
    assert (code, error) == (5, "error: /dev/full: No space left on device\n")


def test_python_runs_the_package(store):
    started = process("list", store, "-o", "csv", module="timespine")
    out, err = started.communicate(timeout=30)
    assert (started.returncode, err) == (0, b"")
    assert out.startswith(b'"name"')


def ended(args, closed="", stdout=subprocess.DEVNULL):
    """How a process ends whose streams are closed like that in the shell: its exit code, and what it said."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "timespine", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    return done.returncode, done.stderr
