"""The logs of stores in buckets, by kind of their address. Adapters are imported when they are needed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from timespine.errors import UsageError, short_repr
from timespine.location.consensus import Consensus, LogWrite
from timespine.location.opening.consensus_address import (
    BUCKET,
    POSTGRESQL,
    SQLITE,
    ConsensusAddress,
    sqlite_path,
    to_conninfo,
)
from timespine.location.opening.descriptor import Descriptor
from timespine.location.opening.extras import needs
from timespine.location.opening.store_location import StoreLocation

STORE_KEY = "store"
"""The log in a SQLite file whose first entry is the id of the store that the file belongs to."""


class LogKind(Protocol):
    """One kind of consensus: how a new store becomes known to it, and how its logs are opened."""

    def reserve(self, address: ConsensusAddress, store: str) -> str:
        """Make a new store known to the logs; return its id, which may be one that was reserved before."""
        ...

    def open(
        self, address: ConsensusAddress, descriptor: Descriptor, location: StoreLocation, *, read_only: bool
    ) -> Consensus:
        """Open the logs of the store at a location; raise UsageError if they are those of another store."""
        ...


@dataclass(frozen=True, slots=True)
class _BucketAlone:
    """Logs in the bucket of the store. Their names contain its id, so that they cannot be those of another one."""

    def reserve(self, address: ConsensusAddress, store: str) -> str:
        return store

    def open(
        self, address: ConsensusAddress, descriptor: Descriptor, location: StoreLocation, *, read_only: bool
    ) -> Consensus:
        from timespine.location.bucket.consensus import BucketConsensus
        from timespine.location.bucket.obstore_objects import ObstoreObjects
        from timespine.location.object_store.bucket import Bucket

        bucket = Bucket(location)
        objects = ObstoreObjects(bucket.objects(), bucket.path(f"{address.at}{descriptor.store}/"))
        return BucketConsensus(objects, read_only=read_only, epoch=descriptor.epoch, store=descriptor.store)


@dataclass(frozen=True, slots=True)
class _Sqlite:
    """Logs in a SQLite file of this machine."""

    def reserve(self, address: ConsensusAddress, store: str) -> str:
        from timespine.location.sqlite.sqlite_consensus import SqliteConsensus

        with contextlib.closing(SqliteConsensus(sqlite_path(address))) as logs:
            logs.compare_and_set([LogWrite(STORE_KEY, None, store.encode())])
            found = logs.head(STORE_KEY)
            if found is None or logs.list_keys() != [STORE_KEY]:
                raise UsageError(f"{sqlite_path(address)} has the logs of another store: give the path of a new file")
            return found.data.decode()

    def open(
        self, address: ConsensusAddress, descriptor: Descriptor, location: StoreLocation, *, read_only: bool
    ) -> Consensus:
        from timespine.location.sqlite.sqlite_consensus import SqliteConsensus

        logs = SqliteConsensus(sqlite_path(address), read_only=read_only)
        found = logs.head(STORE_KEY)
        if found is None or found.data != descriptor.store.encode():
            logs.close()
            raise UsageError(
                f"{sqlite_path(address)} does not have the logs of store {descriptor.store}: open it on the machine "
                "that has them, or give their path as `consensus`"
            )
        return logs


@dataclass(frozen=True, slots=True)
class _Postgresql:
    """Logs in a PostgreSQL database."""

    def reserve(self, address: ConsensusAddress, store: str) -> str:
        with needs("psycopg", "postgresql", "postgres"):
            from timespine.location.postgres.postgres_consensus import register_store
        register_store(to_conninfo(address), store)
        return store

    def open(
        self, address: ConsensusAddress, descriptor: Descriptor, location: StoreLocation, *, read_only: bool
    ) -> Consensus:
        with needs("psycopg", "postgresql", "postgres"):
            from timespine.location.postgres.postgres_consensus import PostgresConsensus
        return PostgresConsensus(to_conninfo(address), descriptor.store, descriptor.epoch, read_only=read_only)


KINDS: dict[str, LogKind] = {BUCKET: _BucketAlone(), POSTGRESQL: _Postgresql(), SQLITE: _Sqlite()}
"""The kinds of consensus that this version has."""


def reserve_store(address: ConsensusAddress, store: str) -> str:
    """Make a new store known to its logs; return its id."""
    return _kind(address).reserve(address, store)


def open_logs(
    address: ConsensusAddress, descriptor: Descriptor, location: StoreLocation, *, read_only: bool
) -> Consensus:
    """Open the logs of the store at a location."""
    return _kind(address).open(address, descriptor, location, read_only=read_only)


def _kind(address: ConsensusAddress) -> LogKind:
    found = KINDS.get(address.kind)
    if found is None:
        raise UsageError(f"this version has no consensus of kind {short_repr(address.kind)}: {', '.join(KINDS)}")
    return found
