"""The examples of the page about S3 and PostgreSQL run, against servers."""

from pathlib import Path

from pages import run_blocks

from timespine.cli.commands.migrate_postgres import migrate_verb

PAGE = Path(__file__).parents[2] / "docs" / "object-stores.md"


def test_every_example_runs(moto, postgres, monkeypatch, capsys):
    database = postgres.make_database()
    for name, value in {
        "AWS_ENDPOINT": moto.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "PGUSER": "owner",
    }.items():
        monkeypatch.setenv(name, value)
    migrate_verb(postgres.conninfo(database))
    assert "version 1" in capsys.readouterr().out
    places = {
        "s3://bucket/notes": moto.url(),
        "s3://bucket/shop": moto.url(),
        "db.internal/timespine": f"127.0.0.1:{postgres.port}/{database}",
    }
    run_blocks(PAGE, places)
