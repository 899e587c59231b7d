"""How tests run the command line: in this process, or as a process of its own."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import typer.main
import typer.testing
from typer.testing import CliRunner

import timespine as ts
from timespine.cli.app import app
from timespine.core.encoding.codec import decode_diff
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind

ROOT = Path(ts.__file__).parent.parent

# The runner puts all verbs together anew every time, which takes longer than most of them run.
typer.testing._get_command = functools.cache(typer.main.get_command)


def run(*args, input=None, code=0):
    """Run a verb in this process; what it wrote. The exit code must be the one that is expected."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=input)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exc_info)
    assert "Traceback" not in result.stderr
    return result


def rows(*args, **options):
    """The rows that a verb gives as JSON lines."""
    return [json.loads(line) for line in run(*args, "--output", "json", **options).stdout.splitlines()]


def document(*args, **options):
    """The document that a verb gives as JSON."""
    return json.loads(run(*args, "--output", "json", **options).stdout)


def failure(*args, code, input=None):
    """The one line that a verb says when it fails."""
    result = run(*args, code=code, input=input)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def process(*args, module="timespine.cli", **options):
    """A verb as a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, args)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def part_of(store, name):
    """The file of the first part of a collection."""
    with ts.open(store, read_only=True) as opened:
        return store / "blobs" / next(iter(opened[name]._handle.state().parts())).key


def recorded(store, name):
    """The numbers of the commits of a collection that are lines of its history: appends, writes and seals."""
    with ts.open(store, read_only=True) as opened:
        handle = opened[name]._handle
        entries = list(handle.committer.driver.consensus.scan(handle.id, 1))
        return [number for number, data in entries if envelope_kind(data) is EnvelopeKind.DIFF and decode_diff(data).h]


def seqnos(store):
    """How many commits every collection has had: what changes when anything does."""
    with ts.open(store, read_only=True) as opened:
        return {name: opened[name]._handle.state().seqno for name in opened.names()}
