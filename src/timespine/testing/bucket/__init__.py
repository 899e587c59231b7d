"""Simulated histories of the consensus of a bucket alone: `python -m timespine.testing.simulate --flavour bucket`."""
