"""The examples and commands of the page about S3 and PostgreSQL run, against servers."""

import re
import shlex
from pathlib import Path

import pytest
from pages import run_blocks
from typer.testing import CliRunner

from timespine.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "object-stores.md"


def commands(places):
    """The command lines of the page, with addresses of the tests."""
    for line in re.findall(r"^    timespine (.*)$", PAGE.read_text(), re.MULTILINE):
        for name, place in places.items():
            line = line.replace(name, place)
        yield shlex.split(line)


def run(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("server", ["moto", "seaweed"])
def test_every_example_and_command_runs(server, postgres, monkeypatch, request):
    objects, database = request.getfixturevalue(server), postgres.make_database()
    for name, value in {
        "AWS_ENDPOINT": objects.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "PGUSER": "owner",
    }.items():
        monkeypatch.setenv(name, value)
    for role in ("app", "reports"):
        postgres.execute("postgres", f"DROP ROLE IF EXISTS {database}_{role}")
        postgres.execute("postgres", f"CREATE ROLE {database}_{role} LOGIN")
    address = f"127.0.0.1:{postgres.port}/{database}"
    places = {
        "s3://bucket/notes": objects.url(),
        "s3://bucket/shop": objects.url(),
        "admin@db.internal/timespine": f"owner@{address}",
        "db.internal/timespine": address,
        "--writer app --reader reports": f"--writer {database}_app --reader {database}_reports",
    }
    migrate, *others = commands(places)
    assert migrate[0] == "migrate"
    assert "version 1" in run(migrate)
    run_blocks(PAGE, places)
    listed, snapshot = map(run, others)
    assert "orders" in listed
    assert "10.0" in snapshot
    assert "12.0" not in snapshot
    rights = "SELECT has_schema_privilege(%s, 'timespine', 'USAGE')"
    assert [postgres.execute(database, rights, f"{database}_{role}") for role in ("app", "reports")] == [[(True,)]] * 2
