"""What was decoded once is found again, wherever the shares of a read are cut, and whatever columns it has."""

from collections import Counter

import pyarrow as pa
import pytest

from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.scan import parallel_scan
from timespine.config import Config

ROWS, GROUP_ROWS = 40_000, 256


@pytest.fixture
def decoded(monkeypatch):
    """How often each column of each row group of each part was decoded."""
    counts = Counter()
    real = PartReader._decode

    def counting(reader, spans, groups, leaves):
        counts.update((reader.key, group, leaf) for group in groups for leaf in leaves)
        return real(reader, spans, groups, leaves)

    monkeypatch.setattr(PartReader, "_decode", counting)
    monkeypatch.setattr(parallel_scan, "SHARE_ROWS", 4096)
    monkeypatch.setattr(parallel_scan, "usable_cores", lambda: 2)
    return counts


def test_repeated_upserts_decode_every_row_group_once_and_keep_it_once(place, decoded):
    store = place.open(config=Config(row_group_rows=GROUP_ROWS, inline_part_bytes=1))
    orders = store.create("orders", key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
    orders.append(pa.table({"k": range(ROWS), "v": range(ROWS)}))
    (base,) = (part.key for part in orders._handle.state().parts())
    for turn in range(8):
        keys = range(turn, ROWS, 61)
        orders.upsert(pa.table({"k": keys, "v": [turn] * len(keys)}))
    assert len({group for key, group, _ in decoded if key == base}) == -(-ROWS // GROUP_ROWS)
    assert set(decoded.values()) == {1}
    kept = Counter()
    for key, (value, _) in store._context.cache._kept.items():
        if isinstance(value, pa.ChunkedArray):
            kept[key[2]] += len(value)
    assert set(kept) == {"k", "v", "_diff"}, "each part is of one time, which its footer has"
    assert max(kept.values()) <= sum(part.rows for part in orders._handle.state().parts())
    assert orders.count() == ROWS


def test_reads_of_other_columns_decode_only_what_no_read_before_had(place, decoded):
    store = place.open(config=Config(row_group_rows=GROUP_ROWS, inline_part_bytes=1))
    orders = store.create("orders", key={"k": "int64"}, value={"a": "int64", "b": "string"}, timeline="counter")
    orders.append(pa.table({"k": range(ROWS), "a": range(ROWS), "b": [str(k % 7) for k in range(ROWS)]}))
    whole = orders.snapshot().to_arrow().sort_by("k")
    store._context.cache.clear()
    decoded.clear()
    for columns in (["k", "b"], ["a", "k"], ["b"], ["b", "k", "a"]):
        got = orders.snapshot(columns=columns).to_arrow()
        assert got.column_names == columns
        if "k" in columns:
            assert got.sort_by("k").equals(whole.select(columns))
    assert set(decoded.values()) == {1}
    assert {leaf for _, _, leaf in decoded} == set(range(3)), "every column; all rows have one time and one count"
