"""The address of the logs of a store in a bucket: `consensus="postgresql://..."`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from timespine.errors import UsageError

POSTGRESQL, SQLITE, BUCKET = "postgresql", "sqlite", "bucket"
"""The kinds of consensus of a store in a bucket."""

LOGS = "logs/"
"""Where the logs of a store are that needs nothing but its bucket, below its prefix."""

_POSTGRESQL = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[a-zA-Z0-9_.-]+)@)?(?P<hosts>[a-zA-Z0-9.,:_\[\]-]*)/(?P<database>[a-zA-Z0-9_-]+)"
)
_SQLITE = re.compile(r"sqlite:(?://)?(?P<path>/.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConsensusAddress:
    """How a process reaches the logs."""

    kind: str
    """One of the kinds."""
    at: str
    """The address that the descriptor records: without user name, never with a password."""
    user: str = ""
    """The user name that this process gave, if any."""


def parse_consensus(given: str) -> ConsensusAddress:
    """Parse an address that a user gave. No message repeats it: it may contain a password."""
    if given == BUCKET:
        return ConsensusAddress(BUCKET, LOGS)
    if not isinstance(given, str):
        raise UsageError(f"consensus is a text such as 'postgresql://host/database', not {type(given).__name__}")
    found = _POSTGRESQL.fullmatch(given)
    if found is not None:
        return ConsensusAddress(POSTGRESQL, f"postgresql://{found['hosts']}/{found['database']}", found["user"] or "")
    if given.startswith(("postgresql://", "postgres://")):
        raise UsageError(
            "consensus is postgresql://user@host:port/database, without a password and without '?': libpq takes "
            "passwords from PGPASSFILE, a service file or PGPASSWORD, and options from variables such as PGSSLMODE"
        )
    found = _SQLITE.fullmatch(given)
    if found is not None:
        return ConsensusAddress(SQLITE, f"sqlite:{os.path.abspath(found['path'])}")
    raise UsageError(
        "consensus is 'bucket', 'postgresql://host/database', or 'sqlite:/absolute/path' for processes of one machine"
    )


def sqlite_path(address: ConsensusAddress) -> str:
    """Return the path of the SQLite file."""
    return address.at.removeprefix("sqlite:")


def to_conninfo(address: ConsensusAddress) -> str:
    """Return the text that libpq connects with."""
    if not address.user:
        return address.at
    return address.at.replace("postgresql://", f"postgresql://{address.user}@", 1)
