"""The works, by name, in the order in which they run.

Those that share a setup stand together. Works with an aim that take little time stand before long ones, so that a run
with `--minutes` reaches them. The pipeline takes most time and comes last, so that short time costs nothing else.
"""

from __future__ import annotations

from bench.works.commits import Commit, Threads
from bench.works.kernels import Compact, Consolidate
from bench.works.lookups import Lookup
from bench.works.opening import Open
from bench.works.pipeline import Growth, Pipeline
from bench.works.snapshots import ManyCommits, Snapshots, Upkeep
from bench.works.subscribing import Subscribe
from bench.works.upserts import Changes, NetChanges, UpsertLarge, UpsertSmall
from bench.works.work import Work

_ALL: tuple[Work, ...] = (
    Commit("commit-1", 1, 200),
    Commit("commit-100", 100, 200),
    Commit("commit-10k", 10_000, 50),
    Threads(),
    Subscribe(),
    Open(),
    UpsertSmall(),
    NetChanges(),
    UpsertLarge(),
    Changes(),
    Upkeep(),
    Snapshots(),
    Consolidate(),
    Compact(),
    Lookup(),
    ManyCommits(),
    Growth(),
    Pipeline(),
)

WORKS = {each.name: each for each in _ALL}
