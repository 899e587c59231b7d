"""Reads and writes where blobs are remote: counts of requests, and time on a clock that only storage spends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timespine.client.api_for_engines import slices_of
from timespine.config import Config
from timespine.testing.latency import SlowPlace, pools_on

SMALL = Config(inline_part_bytes=1, row_group_rows=512)
"""Every append becomes a part."""


@pytest.fixture
def remote() -> Iterator[SlowPlace]:
    place = SlowPlace()
    with pools_on(place.clock):
        yield place


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"k": first + number, "v": f"value {number}"} for number in range(count)]


def filled(remote: SlowPlace, parts: int, each: int, config: Config = SMALL) -> None:
    with remote.open(config) as store:
        numbers = store.create("numbers", key={"k": "int64"}, value={"v": "string"}, timeline="counter")
        for part in range(parts):
            numbers.append(rows(part * each, each))
    remote.measured()


def test_an_append_of_100_or_1000_rows_is_one_compare_and_set_and_no_put(remote: SlowPlace) -> None:
    with remote.open() as store:
        numbers = store.create("numbers", key={"k": "int64"}, value={"v": "string"}, timeline="counter")
        numbers.append(rows(0, 1))
        for count in (1, 100, 1000):
            remote.measured()
            numbers.append(rows(0, count))
            ms, blobs, logs = remote.measured()
            assert (blobs, logs, ms) == ({}, {"compare_and_set": 1}, 1.0)


def test_a_cold_snapshot_of_40_parts_reads_each_once_and_all_at_once(remote: SlowPlace) -> None:
    filled(remote, 40, 2000)
    with remote.open(SMALL, read_only=True) as store:
        numbers = store["numbers"]
        remote.measured()
        assert numbers.snapshot().to_arrow().num_rows == 80_000
        ms, blobs, _ = remote.measured()
        assert blobs == {"get": 40}
        assert ms <= 40


def test_a_cold_process_with_leases_reads_40_parts_within_200_ms(remote: SlowPlace) -> None:
    filled(remote, 40, 2000)
    with remote.open(SMALL) as store:
        assert store["numbers"].snapshot().to_arrow().num_rows == 80_000
        ms, blobs, _ = remote.measured()
    assert blobs["get"] <= 41  # and perhaps a rollup
    assert ms <= 200


def test_a_cold_lookup_among_40_parts_takes_less_than_60_ms(remote: SlowPlace) -> None:
    filled(remote, 40, 2000)
    with remote.open(SMALL) as store:
        found = store["numbers"].lookup([{"k": 41_234}]).to_pylist()
        ms, blobs, _ = remote.measured()
    assert [row["k"] for row in found] == [41_234]
    assert ms <= 60
    assert blobs["get"] <= 2  # bounds rule out the other parts


def test_footers_of_large_parts_are_fetched_at_once_and_then_their_row_groups(
    remote: SlowPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(remote, 12, 2000)
    monkeypatch.setattr("timespine.columnar.scan.fetch_ahead.WHOLE_BYTES", 0)
    with remote.open(SMALL, read_only=True) as store:
        numbers = store["numbers"]
        remote.measured()
        assert numbers.snapshot().to_arrow().num_rows == 24_000
        ms, blobs, _ = remote.measured()
    assert blobs == {"get": 24}
    assert ms <= 40


def test_bloom_filters_of_overlapping_parts_are_fetched_at_once(
    remote: SlowPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with remote.open(SMALL) as store:
        numbers = store.create("numbers", key={"k": "int64"}, value={"v": "string"}, timeline="counter")
        for part in range(20):
            numbers.append([{"k": part + 20 * number, "v": "x"} for number in range(1000)])
    remote.measured()
    monkeypatch.setattr("timespine.columnar.scan.fetch_ahead.WHOLE_BYTES", 0)
    with remote.open(SMALL) as store:
        found = store["numbers"].lookup([{"k": 20 * 17 + 5}]).to_pylist()
        ms, blobs, _ = remote.measured()
    assert len(found) == 1
    assert ms <= 60 + 15
    assert blobs["get"] <= 2 * 20 + 4


def test_planning_1000_parts_reads_their_lists_and_none_of_them(remote: SlowPlace) -> None:
    config = Config(inline_part_bytes=1, part_bytes=640)
    filled(remote, 1, 17_000, config)
    with remote.open(config, read_only=True) as store:
        numbers = store["numbers"]
        remote.measured()
        with numbers.snapshot() as snapshot:
            pieces = slices_of(snapshot, 32)
        ms, blobs, _ = remote.measured()
    assert len(pieces) == 32
    assert len({part.key for piece in pieces for run in piece.runs for part in run.parts}) >= 1000
    assert blobs["get"] <= 50
    assert ms <= 300
