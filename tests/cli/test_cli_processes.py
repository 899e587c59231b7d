"""The command line as people run it: processes, pipes, signals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from assertions import examples, until
from running import ROOT, document, process, run, seqnos

import timespine as ts


def finished(started, input=None, timeout=120):
    out, err = started.communicate(input, timeout=timeout)
    return started.returncode, out, err


def test_rows_go_through_pipes(store):
    run("create", store, "copy", "--key", "id:int64", "--value", "name:string", "--timeline", "counter")
    reading = process("snapshot", store, "items", "--output", "parquet")
    writing = process("append", store, "copy", "-", "--format", "parquet", "-o", "json", stdin=reading.stdout)
    reading.stdout.close()
    code, out, err = finished(writing)
    assert (code, json.loads(out)["rows"], err) == (0, 3000, b"")
    assert reading.wait(30) == 0
    reading.stderr.close()


def test_a_reader_that_goes_away_ends_it_quietly(store):
    with ts.open(store, maintenance=False) as opened:
        opened.create("many", key={"id": "int64"}, timeline="counter").append([{"id": i} for i in range(200_000)])
    started = process("snapshot", store, "many", "-o", "csv")
    assert started.stdout.readline() == b'"id"\n'
    started.stdout.close()
    assert started.stderr.read() == b""
    assert started.wait(30) == 141
    started.stderr.close()
    assert document("inspect", store, "many")["readers"] == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_tail_ends_by_signal_and_gives_its_lease_back(store, number, code):
    started = process("tail", store, "orders", "--output", "json")
    assert json.loads(started.stdout.readline())["id"] == 1
    assert json.loads(started.stdout.readline())["id"] == 3
    if number == signal.SIGINT:
        run("append", store, "orders", "-", "--format", "json", input='{"id": 77}\n')
        told = json.loads(started.stdout.readline())
        assert (told["id"], told["_time"], told["_diff"]) == (77, 3, 1)
        assert json.loads(started.stdout.readline()) == {"_progress": 3}
    assert len(document("inspect", store, "orders")["readers"]) == 1
    started.send_signal(number)
    assert finished(started) == (code, b"", b"")
    assert document("inspect", store, "orders")["readers"] == {}


@pytest.mark.parametrize("output", ["json", "text"])
def test_listen_tells_updates_and_seals_as_they_are_committed(store, output):
    started = process("listen", store, "orders", "--columns", "id", "--where", "id > 50", "--output", output)
    until(lambda: len(document("inspect", store, "orders")["readers"]) == 1)
    run("append", store, "orders", "-", "--format", "json", input='{"id": 77}\n')
    if output == "json":
        assert json.loads(started.stdout.readline()) == {"id": 77, "_time": 3, "_diff": 1}
        assert json.loads(started.stdout.readline()) == {"_sealed": 4}
    else:
        lines = iter(started.stdout.readline, b"-- sealed up to 4\n")
        assert b"77" in b"".join(lines)
    started.send_signal(signal.SIGINT)
    assert finished(started)[::2] == (130, b"")
    assert document("inspect", store, "orders")["readers"] == {}


def test_a_failure_says_one_line_and_exits_with_its_code(store):
    before = seqnos(store)
    code, out, err = finished(process("snapshot", store, "orders", "--as-of", "-3"))
    assert (code, out) == (2, b"")
    assert err.startswith(b"error: -3")
    assert err.count(b"\n") == 1
    assert seqnos(store) == before


def test_a_csv_that_is_wrong_never_aborts_the_process(store, tmp_path):
    """Arrow's threads would come back for a stream of ours while the process ends. It was one time in fifteen."""
    (tmp_path / "x.csv").write_text("id,colour\n1,2\n")
    for _ in range(examples(1)):
        together = [process("append", store, "orders", tmp_path / "x.csv") for _ in range(4)]
        for started in together:
            code, _, err = finished(started)
            assert (code, err.count(b"\n")) == (2, 1), err


def test_rows_come_out_of_a_pipe_that_has_a_name(store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    started = process("append", store, "orders", tmp_path / "pipe", "--format", "csv", "-o", "json")
    writing = subprocess.Popen(["sh", "-c", 'printf "id\\n7\\n8\\n" > "$0"', tmp_path / "pipe"])
    code, out, err = finished(started)
    writing.kill()
    writing.wait()
    assert (code, json.loads(out)["rows"], err) == (0, 2, b"")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_terminal_gets_progress_and_no_binary(store, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "timespine.cli"]
    code, text = on_terminal([*command, "doctor", str(store)], env)
    assert code == 0
    assert b"verifying" in text
    assert b"all as it was written" in text
    code, text = on_terminal([*command, "snapshot", str(store), "items", "-o", "parquet"], env)
    assert code == 2
    assert b"--to FILE" in text
    assert b"PAR1" not in text


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
@pytest.mark.parametrize(
    ("args", "shows"),
    [
        (("append", "copy", "[red]items.csv"), b"appending 3,000 rows"),
        (("load", "copy", "items.parquet", "--key", "id", "--replace"), b"loading copy"),
        (("compact", "items"), b"merging 3,000 updates"),
        (("doctor",), b"verifying"),
        (("append", "copy", "orders.csv"), b"reading"),
    ],
)
def test_long_work_shows_itself_and_leaves_the_terminal_as_it_was(store, tmp_path, args, shows):
    run("create", store, "copy", "--key", "id:int64", "--value", "name:string")
    for name, file in (("items", "[red]items.csv"), ("items", "items.parquet"), ("orders", "orders.csv")):
        run("snapshot", store, name, "--to", tmp_path / file)
    verb, *rest = args
    rest = [str(tmp_path / each) if (tmp_path / each).exists() else each for each in rest]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    code, text = on_terminal([sys.executable, "-m", "timespine", verb, str(store), *rest], env)
    assert code == (2 if "orders.csv" in args else 0)
    assert shows in text
    assert text.count(b"\x1b[?25h") == text.count(b"\x1b[?25l") > 0  # the cursor is back
    *_, last = text.split(b"\x1b[2K")  # after the line of the bar was cleared
    assert last.count(b"\r\n") == 1
    assert b"\x1b" not in last


def on_terminal(command, env):
    ours, theirs = os.openpty()
    started = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    return started.wait(30), text
