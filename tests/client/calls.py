"""A call of every public method of a store and of a collection: for tests of what holds for all of them.

A method that is added belongs here, too: `test_read_only.py` looks whether one is missing.
"""

from __future__ import annotations

import inspect

import pyarrow as pa
import pyarrow.parquet as pq

from timespine.client.collection import Collection
from timespine.client.store import Store

KEY = {"id": "int64"}
VALUE = {"name": "string"}
ROW = {"id": 1, "name": "x"}
SHAPE = {"key": KEY, "value": VALUE, "timeline": "counter"}


def public(kind):
    """The names of the methods and properties that a user may call."""
    operators = {"__getitem__", "__contains__"}
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_") or name in operators}


def of_store(folder):
    """Calls by method of a store that has a collection `orders`: those that change something, that read, and others.

    Where it can be, there would be nothing to change: it is refused all the same.
    """
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    changes = {
        "create": [
            lambda store: store.create("new", key=KEY),
            lambda store: store.create("orders", **SHAPE, if_exists="open"),
            lambda store: store.create("orders", **SHAPE, replace=True),
        ],
        "load": [
            lambda store: store.load("new", path),
            lambda store: store.load("orders", path, replace=True),
        ],
        "rename": [lambda store: store.rename("orders", "orders2")],
        "drop": [
            lambda store: store.drop("orders"),
            lambda store: store.drop("orders", force=True),
            lambda store: store.drop("gone"),
            lambda store: store.drop("never"),
        ],
        "maintain": [lambda store: store.maintain(), lambda store: store.maintain("orders", sweep=True)],
        "seal_idle": [lambda store: store.seal_idle(), lambda store: store.seal_idle(0)],
        "retain": [lambda store: store.retain(None), lambda store: store.retain("7 days")],
        "forget_within": [lambda store: store.forget_within("2 days")],
        "keep_deleted": [lambda store: store.keep_deleted("7 days"), lambda store: store.keep_deleted(None)],
        "vacuum": [lambda store: store.vacuum(dry_run=False)],
        "transaction": [lambda store: store.transaction()],
        "view": [lambda store: store.view("new", sql="SELECT id FROM orders")],
        "seal": [lambda store: store.seal(["orders"], 99), lambda store: store.seal([], 99)],
    }
    reads = {
        "collection": [lambda store: store.collection("orders")],
        "__getitem__": [lambda store: store["orders"]],
        "__contains__": [lambda store: "orders" in store],
        "get": [lambda store: store.get("orders"), lambda store: store.get("never")],
        "names": [lambda store: store.names()],
        "kept_deleted_ms": [lambda store: store.kept_deleted_ms()],
        "description": [lambda store: store.description("orders")],
        "vacuum": [lambda store: store.vacuum()],
        "snapshot": [lambda store: store.snapshot(["orders"])["orders"].to_arrow()],
    }
    return changes, reads, {"metrics", "close", "refresh", "views", "follow", "sql"}


def of_collection():
    """The same of a collection."""
    changes = {
        "append": [
            lambda orders: orders.append([ROW]),
            lambda orders: orders.append([], upper=99),
            lambda orders: orders.append(pa.table({"id": range(9000), "name": ["x" * 9] * 9000})),
        ],
        "write": [lambda orders: orders.write([ROW], at=99), lambda orders: orders.write([], at=99)],
        "seal": [lambda orders: orders.seal(99), lambda orders: orders.seal(1, if_behind="ignore")],
        "upsert": [lambda orders: orders.upsert([ROW]), lambda orders: orders.upsert([])],
        "delete": [lambda orders: orders.delete({"id": 1}), lambda orders: orders.delete(where="id = -1")],
        "update": [lambda orders: orders.update(where="id = -1", set={"name": "y"})],
        "replace": [lambda orders: orders.replace([], where="id = -1"), lambda orders: orders.replace([ROW])],
        "merge": [lambda orders: orders.merge([ROW]).when_not_matched_insert().execute()],
        "finish": [lambda orders: orders.finish()],
        "writer": [lambda orders: orders.writer()],
        "subscribe": [lambda orders: orders.subscribe(), lambda orders: orders.subscribe(0, snapshot=False)],
        "arrange": [lambda orders: orders.arrange()],
        "hold": [lambda orders: orders.hold(1)],
        "critical_hold": [lambda orders: orders.critical_hold("other", 1)],
        "expire": [lambda orders: orders.expire(before=0)],
        "retain": [lambda orders: orders.retain(None)],
        "forget_within": [lambda orders: orders.forget_within("2 days")],
        "compact": [lambda orders: orders.compact(), lambda orders: orders.compact(wait=True)],
        "evolve": [lambda orders: orders.evolve(add={"more": "string"})],
    }
    reads = {
        "snapshot": [lambda orders: orders.snapshot().to_arrow(), lambda orders: orders.snapshot(2).to_arrow()],
        "changes": [
            lambda orders: orders.changes(2).to_arrow(),
            lambda orders: orders.changes(2, images=True).to_arrow(),
        ],
        "updates": [lambda orders: orders.updates().to_arrow()],
        "listen": [lambda orders: orders.listen().close(), lambda orders: orders.listen(snapshot=False).close()],
        "unsealed": [lambda orders: orders.unsealed().to_arrow()],
        "contents": [lambda orders: orders.contents().sealed.to_arrow(), lambda orders: orders.contents(2).close()],
        "lookup": [lambda orders: orders.lookup({"id": 1}), lambda orders: orders.lookup([{"id": 1}, {"id": 2}])],
        "count": [lambda orders: orders.count(), lambda orders: orders.count(2, where="id = 1")],
        "history": [lambda orders: orders.history()],
        "inspect": [lambda orders: orders.inspect(parts=True)],
        "retention": [lambda orders: orders.retention],
        "schema": [lambda orders: orders.schema],
        "since": [lambda orders: orders.since],
        "upper": [lambda orders: orders.upper],
    }
    return changes, reads, {"name", "id"}


def missing(folder):
    """Methods that nobody has said anything about, and those that are not there any more."""
    of_both = ((Store, of_store(folder)), (Collection, of_collection()))
    return [public(kind) ^ {*changes, *reads, *others} for kind, (changes, reads, others) in of_both]
