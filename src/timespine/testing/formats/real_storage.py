"""The simulated world on real storage: every effect also happens on files and in SQLite.

Both must give the same answer, and a process gets that of the real adapter. Whenever
a process crashes, the world closes the adapters and opens them again.

The folder is on a file system in memory where there is one: these histories do not
test power loss, and syncing to a disk takes most of the time of a history.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from types import TracebackType

from timespine.columnar.merge import around_changes
from timespine.columnar.scan import prune
from timespine.core.effects import (
    CompareAndSet,
    DeleteBlobs,
    Effect,
    GetBlob,
    ListBlobs,
    PutBlob,
    Scan,
    Truncate,
)
from timespine.errors import TimespineError
from timespine.location.consensus import LogWrite
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.testing.formats.parquet import ParquetFormat
from timespine.testing.simulator.world import World

MEMORY = "/dev/shm"
"""A file system in memory, on Linux."""


@contextlib.contextmanager
def with_low_limits() -> Iterator[None]:
    """Let parts with few row groups of few rows take the paths of large ones.

    Merges copy each row group that no change touches, and lookups read the pages that the filter leaves of any row
    group.
    """
    before = around_changes.COPIED_GROUPS_MIN, prune.NEAR_ROWS
    vars(around_changes)["COPIED_GROUPS_MIN"], vars(prune)["NEAR_ROWS"] = 1, 0
    try:
        yield
    finally:
        vars(around_changes)["COPIED_GROUPS_MIN"], vars(prune)["NEAR_ROWS"] = before


class RealWorld(World):
    """Logs and blobs on real storage, of real rows, and the truth about both."""

    def __init__(self) -> None:
        super().__init__(ParquetFormat())
        self._folder = tempfile.mkdtemp(prefix="timespine-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self._open()
        for kind in self.perform:
            self._mirror(kind)

    def __enter__(self) -> RealWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        shutil.rmtree(self._folder)

    def reopen(self) -> None:
        """Close the adapters, and open them again."""
        self._close()
        self._open()

    def _open(self) -> None:
        self._blob = LocalBlob(os.path.join(self._folder, "blobs"))
        self._consensus = SqliteConsensus(os.path.join(self._folder, "consensus"))

    def _close(self) -> None:
        self._blob.close()
        self._consensus.close()

    def _mirror(self, kind: type[Effect]) -> None:
        """Carry out effects of a kind on both, from now on."""
        simulated = self.perform[kind]

        def both(effect: Effect) -> object:
            expected = simulated(effect)
            try:
                found = self._carry_out(effect)
            except TimespineError as error:
                self.violate(f"{type(effect).__name__} on real storage: {error!r}", error)
                return expected
            if found != expected:
                self.violate(f"{effect!r:.200} on real storage gave {found!r:.200}, not {expected!r:.200}")
            return found

        self.perform[kind] = both

    def _carry_out(self, effect: Effect) -> object:
        """Return the answer of the real adapter."""
        if isinstance(effect, Scan):
            return self._consensus.scan(effect.key, effect.from_seqno, effect.limit)
        if isinstance(effect, CompareAndSet):
            return self._consensus.compare_and_set([LogWrite(*each) for each in effect.writes])
        if isinstance(effect, Truncate):
            return self._consensus.truncate(effect.key, effect.below)
        if isinstance(effect, PutBlob):
            self._blob.put(effect.key, effect.value)
            return None
        if isinstance(effect, GetBlob):
            return self._blob.get(effect.key)
        if isinstance(effect, ListBlobs):
            return [each.key for each in self._blob.list_keys(effect.prefix)]
        assert isinstance(effect, DeleteBlobs)
        for key in effect.keys:
            self._blob.delete(key)
        return None
