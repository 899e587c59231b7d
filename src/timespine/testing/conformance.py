"""The contracts of the two ports as tests that any adapter can run.

    class TestMyBlob(BlobConformance):
        def make(self, tmp_path):
            return MyBlob(tmp_path)

        def reopen(self, tmp_path):       # only if it is durable
            return MyBlob(tmp_path)

Under pytest that is all. Nothing of pytest is imported here, and nothing is an
`assert` statement, so the suites work in any runner and under `python -O`.
"""

from timespine.testing.conformance_blob import BlobConformance
from timespine.testing.conformance_consensus import ConsensusConformance

__all__ = ["BlobConformance", "ConsensusConformance"]
