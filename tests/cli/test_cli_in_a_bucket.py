"""The command line on a store in a bucket: the same verbs with a location, and the statements of migrate."""

from __future__ import annotations

import pytest
from running import document, failure, rows, run

from timespine.location.postgres.migration import migrate


@pytest.fixture
def url(moto, monkeypatch):
    """A location of no store, which the environment leads to."""
    for name, value in {"AWS_ENDPOINT": moto.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return moto.url()


@pytest.fixture
def database(postgres):
    return postgres.make_database()


@pytest.mark.parametrize("logs", ["bucket", "postgresql"])
def test_a_store_in_a_bucket_from_init_to_snapshot(logs, url, request, monkeypatch):
    monkeypatch.setenv("PGUSER", "owner")
    if logs == "postgresql":
        address = request.getfixturevalue("postgres").conninfo(request.getfixturevalue("database"))
        assert document("migrate", address)["after"] == 1
        monkeypatch.setenv("TIMESPINE_CONSENSUS", address)
    run("init", url)
    monkeypatch.delenv("TIMESPINE_CONSENSUS", raising=False)  # the descriptor names the logs
    run("create", url, "orders", "--key", "id:int64", "--value", "total:double", "--timeline", "counter")
    for id, total in ((1, 10.0), (2, 25.0)):
        run("append", url, "orders", "-", "--format", "json", input=f'{{"id": {id}, "total": {total}}}\n')
    assert [each["name"] for each in document("list", url)] == ["orders"]
    found = rows("snapshot", url, "orders")
    assert sorted(found, key=lambda row: row["id"]) == [{"id": 1, "total": 10.0}, {"id": 2, "total": 25.0}]
    assert rows("snapshot", url, "orders", "--as-of", "0") == [{"id": 1, "total": 10.0}]
    assert "no store" in failure("list", f"{url}/missing", code=2)


STRUCTURE = """
SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE c.relnamespace = 'timespine'::regnamespace AND a.attnum > 0
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), ''
  FROM pg_constraint WHERE connamespace = 'timespine'::regnamespace
UNION ALL
SELECT 'function', proname, '', pg_get_functiondef(oid), coalesce(proacl::text, '')
  FROM pg_proc WHERE pronamespace = 'timespine'::regnamespace
UNION ALL
SELECT 'rights', relname, relkind::text, '', coalesce(relacl::text, '')
  FROM pg_class WHERE relnamespace = 'timespine'::regnamespace
UNION ALL
SELECT 'version', version::text, '', '', '' FROM timespine.format
ORDER BY 1, 2, 3, 4
"""


def test_the_statements_of_migrate_make_what_migrate_makes(postgres, database):
    """Executed in an empty database, with a writer and a reader, whose rights are compared too."""
    by_hand, roles = postgres.make_database(), (f"{database}_writer", f"{database}_reader")
    for role in roles:
        postgres.execute("postgres", f'CREATE ROLE "{role}"')
    options = ("--writer", roles[0], "--reader", roles[1])
    statements = run("migrate", postgres.conninfo(by_hand), *options, "--sql").stdout
    with pytest.raises(Exception, match="timespine"):
        postgres.execute(by_hand, STRUCTURE)  # it printed them, and ran none
    postgres.execute(by_hand, statements)
    made = document("migrate", postgres.conninfo(database), *options)
    assert (made["before"], made["after"]) == (0, 1)
    found = postgres.execute(database, STRUCTURE)
    assert len(found) > 20
    assert postgres.execute(by_hand, STRUCTURE) == found
    assert any(roles[0] in row[4] for row in found)
    assert any(roles[1] in row[4] for row in found)
    assert migrate(postgres.conninfo(by_hand)) == (1, 1)  # and it is known as migrated
