"""What tests of builders share: a small schema, update tables, blobs that wait or fail, and reading back."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from assertions import check

from timespine.columnar.parts.inline_part import decode_inline
from timespine.columnar.parts.part_list_tree import cover, hollow_part, read_run
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.schema.schema import define
from timespine.columnar.write.batch_builder import BatchBuilder
from timespine.config import DEFAULT
from timespine.core.batch import Order
from timespine.location.memory import MemoryBlob
from timespine.model import Frontier

at = Frontier.at
SCHEMA = define({"k": "int64"}, {"v": "string"})
SCHEMA2 = define({"k": "int64"}, {"v": "string"}, arity=2)
TINY = replace(DEFAULT, part_bytes=1, inline_part_bytes=1, storage_attempts=1)
"""Every row is a part, nothing is inline, nothing is tried twice."""


def table_of(updates, schema=SCHEMA):
    """An update table of ((k, v), time, diff)."""
    columns = [[row[place] for row, _, _ in updates] for place in range(len(schema.names))]
    columns += [[time[place] for _, time, _ in updates] for place in range(schema.arity)]
    columns.append([diff for _, _, diff in updates])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema.update_arrow, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.update_arrow)


def updates_of(table, schema=SCHEMA):
    """The other way round."""
    columns = [table.column(name).to_pylist() for name in schema.update_arrow.names]
    width = len(schema.names)
    return [(line[:width], line[width:-1], line[-1]) for line in zip(*columns, strict=True)]


def up(k, time, diff=1, v="x"):
    return (k, v), (time,) if isinstance(time, int) else time, diff


class Fresh:
    """Names that are new, and the same in every test run."""

    def __init__(self):
        self.numbers = itertools.count(1)

    def __call__(self, prefix):
        return f"{prefix}{next(self.numbers)}"


def builder(blob=None, config=TINY, schema=SCHEMA, *, order=Order.UNORDERED, lower=None, since=None, **options):
    least = Frontier.minimum(schema.arity)
    return BatchBuilder(
        "orders",
        "w1",
        schema,
        4,
        least if lower is None else lower,
        least if since is None else since,
        MemoryBlob() if blob is None else blob,
        config,
        fresh=options.pop("fresh", None) or Fresh(),
        order=order,
        **options,
    )


def leaves(parts, blob):
    """All parts with rows, in order."""
    for part in parts:
        if part.hollow:
            yield from leaves(read_run(part, blob), blob)
        else:
            yield part


def read_part(part, blob, schema=SCHEMA):
    """The rows of one part, by nothing but pyarrow."""
    if part.inline is not None:
        return decode_inline(part.inline, schema, part.rows, DEFAULT)
    table = pq.read_table(pa.BufferReader(blob.get(part.key)))
    check(table.num_rows == part.rows)
    check(len(blob.get(part.key)) == part.size)
    return table


def read_run_of(run, blob, schema=SCHEMA):
    """The updates of a run, in order."""
    return [update for part in leaves(run.parts, blob) for update in updates_of(read_part(part, blob, schema), schema)]


def hollow(key, children, size):
    """The reference to a hollow run of these parts, by what they say of themselves."""
    metas = [PartMeta.decode(part.meta) if part.meta else None for part in children]
    return hollow_part(key, children, size, cover(children, metas))


def keys_in(blob):
    return [info.key for info in blob.list_keys()]


class Gated(MemoryBlob):
    """A blob whose puts wait until they are let through, one by one."""

    def __init__(self):
        super().__init__()
        self.gates = {}
        self.changed = threading.Condition()

    def put(self, key, value):
        with self.changed:
            gate = self.gates.setdefault(key, threading.Event())
            self.changed.notify_all()
        check(gate.wait(60), f"nobody opened the gate of {key}")
        super().put(key, value)

    def arrived(self, key):
        """Wait until somebody is at the gate."""
        with self.changed:
            check(self.changed.wait_for(lambda: key in self.gates, 60), f"nobody came to put {key}")

    def open(self, key):
        self.arrived(key)
        self.gates[key].set()

    def open_all(self):
        class Open(dict):
            def setdefault(self, key, value):
                value.set()
                return super().setdefault(key, value)

        with self.changed:
            for gate in self.gates.values():
                gate.set()
            self.gates = Open(self.gates)


class StallClock:
    """A clock that moves by one with every look, and tells when the caller's thread looks at it.

    A builder that is given a pool looks at the clock in its own thread only when a stall begins or ends.
    """

    def __init__(self):
        self.now = itertools.count()
        self.owner = None
        self.stalling = threading.Event()

    def __call__(self):
        if threading.current_thread() is self.owner:
            self.stalling.set()
        return float(next(self.now))


FOUR = [up(1, 1), up(2, 2), up(3, 3), up(4, 4)]
ORDERS = [Order.SORTED, Order.UNORDERED]


def built(updates, upper, *, chunk=1, schema=SCHEMA, **options):
    blob = options.pop("blob", None) or MemoryBlob()
    with builder(blob, schema=schema, **options) as made:
        for start in range(0, len(updates), chunk):
            made.add(table_of(updates[start : start + chunk], schema))
        return made.finish(upper), blob


def add_all(made, updates):
    made.add(table_of(updates))
    return made


def add_each(made, number):
    for k in range(number):
        made.add(table_of([up(k, 0)]))
    return made
