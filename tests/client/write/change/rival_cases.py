"""A table that other writers change while a change is under way."""

from collections import Counter

import polars as pl
from memory_store import QUICK, Script, counted

from timespine.testing.unreliable import Fault


def create(store, name="t", **options):
    return store.create(name, **{"key": {"k": "int64"}, "value": {"n": "int64"}, "timeline": "counter", **options})


def row(k, n=0, **more):
    return {"k": k, "n": n, **more}


def now(table, as_of=None):
    return counted(table.snapshot(as_of, multiplicity="column").to_pylist(), "k", "n")


def counts(table, *names):
    """How often a change read its rows, was placed again, and was patched."""
    counters = table._handle.committer.counters
    return tuple(counters.get(name, 0) for name in names or ("changes read", "changes placed again", "changes patched"))


class Rival:
    """Another process that does something just before each of the next compare-and-sets of a collection."""

    def __init__(self, place, works, name="t"):
        self.script = Script()
        self.works = list(works)
        self._place = place
        self._name = name
        self._theirs = None
        self.is_on = False

    def __call__(self, operation, key):
        self.script.calls[operation] += 1
        if self.is_on and self.works and operation == "compare_and_set":
            if self._theirs is None:
                self._theirs = self._place.open()[self._name]
            self.is_on = False
            self.works.pop(0)(self._theirs)
            self.is_on = True
        return Fault.NONE


def beside(place, works, config=QUICK, rows=((1, 1), (2, 2)), **options):
    """A collection with some rows, read already (under a lease if they are in blobs), and a rival that begins now."""
    rival = Rival(place, works)
    table = create(place.open(script=rival, config=config), **options)
    if rows:
        table.append([row(*each) for each in rows])
    table.snapshot().close()
    rival.is_on = True
    return table, rival


def _updated(model, bound, value):
    new = Counter()
    for (k, n), count in model.items():
        new[k, value(n) if k >= bound else n] += count
    return new


def _merged(model, source, bound):
    new = Counter()
    for (k, n), count in model.items():
        if k in source:
            new[k, (n + source[k]) % 5] += count
        elif k < bound:
            new[k, n] += count
    for k, n in source.items():
        if all(k != each for each, _ in model):
            new[k, n] += 1
    return new


def _summed(model, bound):
    chosen = [n for (k, n), count in model.items() if k >= bound for _ in range(count)]
    return _updated(model, bound, lambda n: max(chosen))


def of(operation):
    """An operation on a collection, and on a plain multiset."""
    kind, given = operation
    if kind == "append":
        return lambda t: t.append([row(*each) for each in given]), lambda m: m + Counter(given)
    if kind == "write":
        rows, ahead = given
        return (
            lambda t: t.write([row(*each) for each in rows], at=t.upper.elements[0][0] + ahead, late="move"),
            lambda m: m + Counter(rows),
        )
    if kind == "upsert":
        return (
            lambda t: t.upsert([row(*each) for each in given.items()]),
            lambda m: Counter({e: c for e, c in m.items() if e[0] not in given}) + Counter(given.items()),
        )
    if kind == "delete":
        return (
            lambda t: t.delete([{"k": k} for k in given]),
            lambda m: Counter({e: c for e, c in m.items() if e[0] not in given}),
        )
    if kind == "delete where":
        return lambda t: t.delete(where=f"n = {given}"), lambda m: Counter(
            {e: c for e, c in m.items() if e[1] != given}
        )
    if kind == "update":
        return (
            lambda t: t.update(where=f"k >= {given}", set={"n": (pl.col("n") + 1) % 5}),
            lambda m: _updated(m, given, lambda n: (n + 1) % 5),
        )
    if kind == "update by all":
        return (
            lambda t: t.update(where=f"k >= {given}", set={"n": pl.col("n").max()}),
            lambda m: _summed(m, given),
        )
    if kind == "replace":
        return (
            lambda t: t.replace([row(9, given)], where=f"n = {given}"),
            lambda m: Counter({e: c for e, c in m.items() if e[1] != given}) + Counter([(9, given)]),
        )
    source, bound = given
    return (
        lambda t: (
            t.merge([row(*each) for each in source.items()])
            .when_matched_update({"n": (pl.col("n") + pl.col("source.n")) % 5})
            .when_not_matched_insert()
            .when_not_matched_by_source_delete(where=f"k >= {bound}")
            .execute()
        ),
        lambda m: _merged(m, source, bound),
    )
