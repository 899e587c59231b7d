"""The contracts of the two ports as tests that any adapter can run.

    class TestMyBlob(BlobConformance):
        def make(self, tmp_path):
            return MyBlob(tmp_path)

        def reopen(self, tmp_path):       # only if it is durable
            return MyBlob(tmp_path)

        def make_pair(self, tmp_path):    # only if several processes may have it open
            return MyBlob(tmp_path), MyBlob(tmp_path)

        rounds = 0.1                      # only if its calls take long

`ConsensusUnderFaults` has more hooks: `break_next(adapter, kind)` lets the next request of the
adapter, or its reply, get lost below it; `save(tmp_path)` copies what it left, for an adapter that
notices when its log goes back; `hang(adapter)` lets storage answer nothing, on a clock of the
test, for one whose calls end within `limit_s`; `refuses_children = True` is for one that a forked
child must not use. `BlobUnderFaults` is the same for blobs: its `break_next(adapter, call, kind)`
says which call is to break, `heal` ends that, and `in_children` is what a forked child gets.

Under pytest that is all. Nothing of pytest is imported here, and nothing is an
`assert` statement, so the suites work in any runner and under `python -O`.
"""

from timespine.testing.conformance.blob import BlobConformance
from timespine.testing.conformance.blob_faults import BlobUnderFaults
from timespine.testing.conformance.consensus import ConsensusConformance
from timespine.testing.conformance.faults import ConsensusUnderFaults

__all__ = ["BlobConformance", "BlobUnderFaults", "ConsensusConformance", "ConsensusUnderFaults"]
