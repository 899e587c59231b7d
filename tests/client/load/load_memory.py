"""In a process of its own: what loading or appending rows that decode to much takes in memory. Prints bytes."""

import resource
import sys

import pyarrow as pa
import pyarrow.parquet as pq

import timespine as ts

VALUE_BYTES = 1 << 20
PART_BYTES = 4 << 20
CHUNKS = 6
"""Of a table: so few that they are not copied into one when rows are converted."""


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batches(rows: int):
    """One row after the other, each with a long value."""
    for row in range(rows):
        yield pa.record_batch({"k": [row], "v": [bytes([row % 251]) * VALUE_BYTES]})


def descending(rows: int, schema: pa.Schema):
    """All rows as a table of a few chunks, the last row first."""
    size = rows // CHUNKS
    chunks = [reversed(range(start, start + size)) for start in range(0, rows, size)]
    made = (
        pa.record_batch({"k": keys, "v": [bytes([k % 251]) * VALUE_BYTES for k in keys]}) for keys in map(list, chunks)
    )
    return pa.Table.from_batches(reversed(list(made)), schema)


def main(what: str, folder: str, rows: int) -> None:
    config = ts.Config(part_bytes=PART_BYTES, sort_bytes=16 << 20, merge_bytes=16 << 20, cache_bytes=1 << 20)
    if what == "defaults":
        config = ts.Config()
    store = ts.open(f"{folder}/store", config=config, maintenance=False)
    file = f"{folder}/rows.parquet"
    schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    given = descending(rows, schema) if what == "table" else None
    if what not in ("reader", "table"):
        references = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["A" * VALUE_BYTES]))
        table = pa.table({"k": range(rows), "v": references})
        pq.write_table(table, file, compression="zstd", row_group_size=rows, store_schema=what == "categories")
        del table, references
    before = peak_bytes()
    if what in ("reader", "table"):
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        orders.append(pa.RecordBatchReader.from_batches(schema, batches(rows)) if given is None else given)
    else:
        orders = store.load("orders", file, key=["k"], timeline="counter")
    assert orders.count() == rows
    print(peak_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
