"""Open a store by its location: a folder, or a bucket of an object store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from timespine.client.store import Store
from timespine.config import DEFAULT, Config, at_remote_place
from timespine.errors import UsageError
from timespine.location.consensus import ListeningConsensus
from timespine.location.opening.consensus_address import ConsensusAddress, parse_consensus
from timespine.location.opening.folder_place import FolderPlace
from timespine.location.opening.place import OpenRequest
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import MEMORY, StoreLocation, parse_location

CONSENSUS_VARIABLE = "TIMESPINE_CONSENSUS"
"""The variable of the environment with the address of the logs of stores in buckets, where none is given."""


def accept_loss(location: str | os.PathLike[str]) -> tuple[int | None, int]:
    """Accept that the log of a store in a folder lost commits: no process can open the store before that.

    Return how many entries were committed (None: unknown), and how many the log has.
    """
    found = parse_location(location)
    if not found.is_folder:
        raise UsageError(f"{found.url} is not in a folder: restore its logs by the means of their database")
    return FolderPlace(found).accept_loss()


def open(  # the name that users know
    location: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    maintenance: bool = True,
    audit: float = 0.0,
    config: Config = DEFAULT,
    clock: Callable[[], float] = time.time,
    shared: bool = False,
    consensus: str | None = None,
    storage: Mapping[str, str | bool] | None = None,
) -> Store:
    """Open the store at a location; create it if it does not exist. Keep one open per process, and close it.

    The location is the path of a folder, or a URL such as `s3://bucket/prefix`. The logs of a new store in a bucket
    are in the bucket too, unless `consensus` is an address such as `postgresql://host/database`. Later openings find
    it in the descriptor of the store, and `consensus` only says how this process reaches the same logs. `storage`
    says how the bucket is reached (`region`, `endpoint`). Credentials are no arguments: they come from the environment.

    With `read_only` the process writes nothing, not even a lease: a merge may delete blobs of a read, which is then
    planned again, and history may expire during a read. The folder need not be writable, and other processes may
    write to it. (One exception: a writer crashed, and its log was copied without the file that SQLite keeps beside
    it. Then a process has to open the store for writing first.)

    A new store in a folder is for its owner alone (modes 0700 and 0600). With `shared` it is made as the umask says.
    Files made later have the permissions of `blobs` and `consensus.db`, so the option counts only once.

    A bucket has its own defaults (`timespine.config.REMOTE`), in every field of `config` that is as in `Config()`.

    `audit` is the share of parts that statistics allow to skip and that are read anyway, to check the statistics.
    """
    parsed = parse_location(location, storage)
    request = OpenRequest(
        create=create and not read_only,
        read_only=read_only,
        shared=shared,
        consensus=logs_address(parsed, consensus),
        now_ms=int(time.time() * 1000),
    )
    ports = place_of(parsed).open(request)
    with contextlib.ExitStack() as opened:  # a failed opening closes the ports
        opened.enter_context(contextlib.closing(ports.blob))
        opened.enter_context(contextlib.closing(ports.consensus))
        store = Store(
            ports.blob,
            ports.consensus,
            config=at_remote_place(config) if ports.is_remote else config,
            read_only=read_only,
            maintenance=maintenance,
            audit=audit,
            clock=clock,
            free_bytes=ports.free_bytes,
            location=parsed.url,
        )
        store._context.storage, store._context.consensus_address = parsed.storage, consensus or ""
        store._context.store_id, store._context.look_s = ports.store_id, ports.look_s
        if isinstance(ports.consensus, ListeningConsensus):
            store._context.listen = ports.consensus.listen
        opened.pop_all()
    return store


def logs_address(location: StoreLocation, given: str | None) -> ConsensusAddress | None:
    """Parse the address of the logs that a caller or the environment gives; a folder looks at no environment."""
    if given is None and not location.is_folder and location.scheme != MEMORY:
        given = os.environ.get(CONSENSUS_VARIABLE) or None
    return None if given is None else parse_consensus(given)
