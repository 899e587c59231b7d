"""A place: what is behind a location, before it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from timespine.location.blob import Blob
from timespine.location.consensus import Consensus
from timespine.location.opening.consensus_address import ConsensusAddress

LOOK_S = 0.25
"""Seconds between two looks at a log on this machine, at most, of a reader that waits for commits of others."""

REMOTE_LOOK_S = 1.0
"""The same at a remote place: in a bucket a look costs two requests, and a database sends a notice of each commit."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """How a store is to be opened."""

    create: bool = True
    """Whether to create a store that does not exist."""
    read_only: bool = False
    """Whether nothing may be written."""
    shared: bool = False
    """Whether the files of a new folder follow the umask."""
    consensus: ConsensusAddress | None = None
    """Where the logs are, if the caller says it."""
    adopts_epoch: bool = False
    """Whether to open the logs in the epoch that they have, whatever the descriptor says: to repair it."""
    now_ms: int = 0
    """The time of the caller's clock, for the descriptor of a new store."""


@dataclass(frozen=True, slots=True)
class OpenedPorts:
    """The two ports of an open store."""

    blob: Blob
    """Its blobs."""
    consensus: Consensus
    """Its logs."""
    free_bytes: Callable[[], int | None] = lambda: None
    """The free space of its disk; None where there is no such thing."""
    store_id: str = ""
    """The id of the store, if its place has one: a store in a bucket has a descriptor."""
    is_remote: bool = False
    """Whether a request to its blobs takes milliseconds: then larger data go into the log, and fewer into blobs."""

    @property
    def look_s(self) -> float:
        """The longest pause in seconds of a waiting reader between two looks at the logs."""
        return REMOTE_LOOK_S if self.is_remote else LOOK_S


class Place(Protocol):
    """A folder, a bucket, or memory that holds a store or can hold one."""

    def open(self, request: OpenRequest) -> OpenedPorts:
        """Open both ports; create the store if it is asked for."""
        ...

    def open_blob(self, *, read_only: bool) -> Blob:
        """Open the blobs alone, as executors do: they never open the logs."""
        ...

    def identity(self) -> tuple[object, ...] | None:
        """Return what tells this store from another one that was here before; None if there is no store."""
        ...

    def read_file(self, name: str, bytes_max: int) -> bytes | None:
        """Return the bytes of a small file or object below the location; None if there is none."""
        ...

    def record_epoch(self, epoch: int) -> None:
        """Write the epoch of the logs into the descriptor, where there is one."""
        ...

    def file_of(self, key: str) -> str | None:
        """Return the path of the file of a blob; None where blobs are no files."""
        ...
