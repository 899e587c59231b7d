"""Updates and commits that tests of commit streams share."""

from __future__ import annotations

from collections import Counter

from memory_store import SMALL

from timespine.client.write import prepare, stage_rows
from timespine.core.transitions import Seal, Write
from timespine.model import Frontier

KEY, VALUE = {"id": "int64"}, {"name": "string"}


def made(store, name="orders", **options):
    return store.create(name, **{"key": KEY, "value": VALUE, "timeline": "counter", **options})


def rows(*ids, name="x"):
    return [{"id": id, "name": name} for id in ids]


def up(id, time, diff=1, name="x"):
    return {"id": id, "name": name, "_time": time, "_diff": diff}


def written(collection, *updates, blob=False):
    """The command that writes updates ahead of the seal."""
    handle = collection._handle
    updates = prepare.prepare_rows(handle, list(updates), None)
    runs, _ = stage_rows.make_runs(handle, updates.id, updates.schema, updates.table, inline=not blob)
    parts = tuple(part for run in runs for part in run.parts)
    return Write(updates.lower, updates.latest, parts, updates.id)


def write(collection, *updates):
    commit(collection, written(collection, *updates))


def seal(collection, upper):
    commit(collection, Seal(Frontier.at(upper)))


def commit(collection, *commands):
    collection._handle.committer.commit(*((collection.id, each) for each in commands))


def counted(table):
    """Updates as a multiset."""
    total = Counter()
    for row in table.to_pylist():
        total[row["id"], row["name"], row["_time"]] += row["_diff"]
    return {update: count for update, count in total.items() if count}


def told(events):
    """Events in short: what is in them, in their order."""
    return [
        (event.kind, counted(event.rows)) if event.rows is not None else (event.kind, *event.upper.elements)
        for event in events
    ]


def updates(*each):
    return "updates", {(id, name, time): diff for id, name, time, diff in each}


def forget(place, config=SMALL, before=None):
    """Another process expires, merges, rolls up and deletes whatever it may."""
    with place.open(config=config) as other:
        theirs = other["orders"]
        if before is not None:
            theirs.expire(before=before)
        theirs.compact(wait=True)
        other.maintain(sweep=True)
        other.maintain(sweep=True)
