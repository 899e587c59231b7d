"""What was decoded once is found again, wherever the shares of a read are cut."""

from collections import Counter

import pyarrow as pa
import pytest

from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.scan import parallel_scan
from timespine.config import Config

ROWS, GROUP_ROWS = 40_000, 256


@pytest.fixture
def decoded(monkeypatch):
    """How often each row group of each part was decoded."""
    counts = Counter()
    real = PartReader._decode

    def counting(reader, spans, groups, leaves):
        counts.update((reader.key, group) for group in groups)
        return real(reader, spans, groups, leaves)

    monkeypatch.setattr(PartReader, "_decode", counting)
    monkeypatch.setattr(parallel_scan, "SHARE_ROWS", 4096)
    monkeypatch.setattr(parallel_scan, "_cores", lambda: 2)
    return counts


def test_repeated_upserts_decode_every_row_group_once_and_keep_it_once(place, decoded):
    store = place.open(config=Config(row_group_rows=GROUP_ROWS, inline_part_bytes=1))
    orders = store.create("orders", key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
    orders.append(pa.table({"k": range(ROWS), "v": range(ROWS)}))
    (base,) = (part.key for part in orders._handle.state().parts())
    for turn in range(8):
        keys = range(turn, ROWS, 61)
        orders.upsert(pa.table({"k": keys, "v": [turn] * len(keys)}))
    assert sum(key == base for key, _ in decoded) == -(-ROWS // GROUP_ROWS)
    assert set(decoded.values()) == {1}
    kept = store._context.cache._kept
    tables = [table for table, _ in kept.values() if isinstance(table, pa.Table)]
    assert sum(table.num_rows for table in tables) <= sum(part.rows for part in orders._handle.state().parts())
    assert orders.count() == ROWS
