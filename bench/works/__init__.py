"""The works, by name, in the order in which they run: those that share a setup stand together."""

from __future__ import annotations

from bench.works.commits import Commit, Threads
from bench.works.kernels import Compact, Consolidate
from bench.works.lookups import Lookup
from bench.works.opening import Open
from bench.works.snapshots import ManyCommits, Snapshots
from bench.works.subscribing import Subscribe
from bench.works.upserts import Changes, NetChanges, UpsertLarge, UpsertSmall
from bench.works.work import Work

_ALL: tuple[Work, ...] = (
    Commit("commit-1", 1, 200),
    Commit("commit-100", 100, 200),
    Commit("commit-10k", 10_000, 50),
    Threads(),
    UpsertSmall(),
    NetChanges(),
    UpsertLarge(),
    Changes(),
    Snapshots(),
    Consolidate(),
    Compact(),
    Lookup(),
    ManyCommits(),
    Open(),
    Subscribe(),
)

WORKS = {each.name: each for each in _ALL}
