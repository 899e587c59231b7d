"""The rows that every system is given: a pure function of id and version.

    id int64, customer string (8 to 24 bytes), total double, created timestamp[us], note string or null

Nothing is stored between two processes: a process that needs the row that id 17 had
before its third update computes it again. That is how a work retracts a row,
and how it checks what a system gave back.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

SEED = 20_240_229
GOLDEN = 0x9E3779B97F4A7C15
CUSTOMERS = 1 << 16
NOTES = 1 << 12
CREATED_US = 1_700_000_000_000_000

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("total", pa.float64()),
        pa.field("created", pa.timestamp("us")),
        pa.field("note", pa.string()),
    ]
)
COLUMNS = SCHEMA.names


def rows(ids: np.ndarray, version: int = 0) -> pa.Table:
    """The rows that these ids have at this version; two versions of an id differ in `total`, most also elsewhere."""
    ids = np.asarray(ids, dtype=np.int64)
    mixed = _mix(ids.astype(np.uint64) + np.uint64((version * GOLDEN + SEED) % (1 << 64)))
    customers, notes = _pools()
    note_at = (mixed >> np.uint64(40)).astype(np.int64) % (NOTES * 10 // 3)
    # The cents carry the version, so that an update is never a row equal to the one before it.
    total = (mixed % np.uint64(10_000_000)).astype(np.float64) + version % 100 / 100
    columns = [
        pa.array(ids),
        customers.take(pa.array((mixed >> np.uint64(20)).astype(np.int64) % CUSTOMERS)),
        pa.array(total),
        pa.array(CREATED_US + ids * 1000 + (mixed % np.uint64(1000)).astype(np.int64), pa.timestamp("us")),
        notes.take(pa.array(note_at, mask=note_at >= NOTES)),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def updates(table: pa.Table, time: int, diff: int = 1) -> pa.Table:
    """The same rows as updates: with a time and a diff."""
    count = table.num_rows
    stamped = table.append_column("_time", pa.array(np.full(count, time, dtype=np.int64)))
    return stamped.append_column("_diff", pa.array(np.full(count, diff, dtype=np.int64)))


def sample(count: int, of: int, salt: int) -> np.ndarray:
    """Distinct ids below `of`, in random order; the same for the same arguments."""
    return np.random.default_rng((SEED, salt)).choice(of, count, replace=False).astype(np.int64)


Digest = tuple[int, int, int]
"""What equal multisets of rows have in common: count, sum of ids, sum of totals in cents. Digests add up."""


def digest(table: pa.Table) -> Digest:
    count = ids = cents = 0
    for batch in table.select(["id", "total"]).to_batches(max_chunksize=1 << 17):
        count += batch.num_rows
        ids += int(batch.column("id").to_numpy().sum())
        cents += int(np.rint(batch.column("total").to_numpy() * 100).astype(np.int64).sum())
    return count, ids, cents


def plus(left: Digest, right: Digest) -> Digest:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def minus(left: Digest, right: Digest) -> Digest:
    return left[0] - right[0], left[1] - right[1], left[2] - right[2]


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: spreads consecutive ids over all 64 bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _pools() -> tuple[pa.Array, pa.Array]:
    random = np.random.default_rng(SEED)
    return _strings(random, CUSTOMERS, 8, 24), _strings(random, NOTES, 12, 48)


def _strings(random: np.random.Generator, count: int, shortest: int, longest: int) -> pa.Array:
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(random.integers(shortest, longest + 1, count), out=offsets[1:])
    letters = random.integers(ord("a"), ord("z") + 1, int(offsets[-1])).astype(np.uint8)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
