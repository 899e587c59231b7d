"""Consensus on a bucket alone: logs as numbered objects, and nothing else that has to run.

`timespine.location.bucket.consensus.BucketConsensus` is the adapter. The protocol is made of generators that yield
effects on objects (`effects`): the adapter carries them out on an `ObjectStore`, the simulator in a world with faults.
docs/format/bucket.md describes the objects, docs/design/0022-a-bucket-alone.md why the protocol is right.
"""
