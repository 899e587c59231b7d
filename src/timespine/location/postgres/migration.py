"""Create or upgrade the tables of the logs: `timespine migrate`."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from timespine.errors import UsageError, VersionError
from timespine.location.postgres.connections import CONNECT_S, connection_failure
from timespine.location.postgres.schema import GRANT_READ, GRANT_WRITE, LOCK, MIGRATIONS, VERSION


def migration_sql(from_version: int = 0, *, writers: Sequence[str] = (), readers: Sequence[str] = ()) -> str:
    """Return the statements that bring tables of a version to the newest, and let roles use them."""
    texts = [text for version, text in sorted(MIGRATIONS.items()) if version > from_version]
    if texts:
        texts.append(f"DELETE FROM timespine.format;\nINSERT INTO timespine.format (version) VALUES ({VERSION});\n")
    for role in (*writers, *readers):
        texts.append(GRANT_READ.format(role=_quoted(role)))
    texts.extend(GRANT_WRITE.format(role=_quoted(role)) for role in writers)
    return "\n".join(texts)


def migrate(conninfo: str, *, writers: Sequence[str] = (), readers: Sequence[str] = ()) -> tuple[int, int]:
    """Create or upgrade the tables in one transaction, and let roles use them; return the versions before and after.

    The role that runs it owns the tables. Two migrations at once run one after the other.
    """
    try:
        with psycopg.connect(conninfo, connect_timeout=int(CONNECT_S)) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            before = version_of(connection)
            if before > VERSION:
                raise VersionError(f"the tables are of version {before}: this version of Timespine knows {VERSION}")
            text = migration_sql(before, writers=writers, readers=readers)
            if text:
                connection.execute(text.encode())
            return before, VERSION
    except psycopg.errors.UndefinedObject as error:
        raise UsageError(f"{error.diag.message_primary}: create the role first") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise UsageError(
            f"{error.diag.message_primary}: run it as the owner of the database or of the tables"
        ) from None
    except psycopg.Error as error:
        raise connection_failure(error) from None


def version_of(connection: psycopg.Connection[tuple[int, ...]]) -> int:
    """Return the version of the tables; 0 if there are none."""
    found = connection.execute("SELECT to_regclass('timespine.format') IS NOT NULL").fetchone()
    if found is None or not found[0]:
        return 0
    row = connection.execute("SELECT version FROM timespine.format").fetchone()
    return 0 if row is None else row[0]


def _quoted(role: str) -> str:
    """Quote the name of a role."""
    if not role or "\0" in role:
        raise UsageError("the name of a role is empty, or has a NUL in it")
    return sql.Identifier(role).as_string()
