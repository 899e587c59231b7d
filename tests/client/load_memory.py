"""In a process of its own: what loading or appending rows that decode to much takes in memory. Prints bytes."""

import resource
import sys

import pyarrow as pa
import pyarrow.parquet as pq

import timespine as ts

VALUE_BYTES = 1 << 20
PART_BYTES = 4 << 20


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batches(rows: int):
    """One row after the other, each with a long value."""
    for row in range(rows):
        yield pa.record_batch({"k": [row], "v": [bytes([row % 251]) * VALUE_BYTES]})


def main(what: str, folder: str, rows: int) -> None:
    config = ts.Config(part_bytes=PART_BYTES, merge_bytes=16 << 20, cache_bytes=1 << 20)
    store = ts.open(f"{folder}/store", config=config, maintenance=False)
    file = f"{folder}/rows.parquet"
    if what != "reader":
        references = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["A" * VALUE_BYTES]))
        table = pa.table({"k": range(rows), "v": references})
        pq.write_table(table, file, compression="zstd", row_group_size=rows, store_schema=what == "categories")
        del table, references
    before = peak_bytes()
    if what == "reader":
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
        orders.append(pa.RecordBatchReader.from_batches(schema, batches(rows)))
    else:
        orders = store.load("orders", file, key=["k"], timeline="counter")
    assert orders.count() == rows
    print(peak_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
