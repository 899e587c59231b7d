"""Collections that tests of snapshots share."""

from __future__ import annotations

from memory_store import SMALL


def orders_of(store, **options):
    options = {"timeline": "counter", **options}
    return store.create("orders", key={"id": "int64"}, value={"name": "string", "total": "double"}, **options)


def row(id, name="x", total=1.0):
    return {"id": id, "name": name, "total": total}


def filled(store, commits=5, size=6):
    """A collection of some commits, each of which updates some rows and adds others."""
    orders = orders_of(store)
    for time in range(commits):
        orders.upsert([row(id, f"v{time}", float(time)) for id in range(time * 2, time * 2 + size)])
    return orders


def forgetting(place, orders, before):
    """Another process expires, merges, and deletes whatever it may."""
    other = place.open(config=SMALL)
    theirs = other["orders"]
    theirs.expire(before=before)
    theirs.compact(wait=True)
    other.maintain(sweep=True)
    theirs.append([row(10_000)])
    other.maintain(sweep=True)
    other.close()
