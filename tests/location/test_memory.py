"""The memory adapters are the contracts, nothing more."""

from __future__ import annotations

from pathlib import Path

from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.testing.conformance import BlobConformance, ConsensusConformance
from timespine.testing.unreliable import Fault, UnreliableConsensus


class TestMemoryBlob(BlobConformance):
    def make(self, tmp_path: Path) -> MemoryBlob:
        return MemoryBlob()


class TestMemoryConsensus(ConsensusConformance):
    def make(self, tmp_path: Path) -> MemoryConsensus:
        return MemoryConsensus()

    def make_pair(self, tmp_path: Path) -> tuple[MemoryConsensus, UnreliableConsensus]:
        log = MemoryConsensus()
        return log, UnreliableConsensus(log, lambda operation, key: Fault.NONE)
