"""Limits and defaults: each is a sensible integer, and nothing else is taken."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import timespine as ts
from timespine.config import DEFAULT, READ_THREADS_MAX, REMOTE, Config, at_remote_place
from timespine.errors import UsageError
from timespine.pool import outcome
from timespine.testing.latency import SlowPlace

NAMES = [each.name for each in fields(Config) if each.type == "int" and not each.name.startswith("arrangement_")]
LEVEL_ROWS = DEFAULT.arrangement_level_rows


def test_defaults_are_a_valid_config() -> None:
    assert Config() == DEFAULT
    assert DEFAULT.inline_part_bytes < DEFAULT.inline_total_bytes
    assert DEFAULT.retry_pause_ms < DEFAULT.retry_pause_max_ms


def test_a_remote_place_has_defaults_of_its_own_which_a_config_keeps() -> None:
    assert (REMOTE.inline_part_bytes, REMOTE.inline_total_bytes) == (64 * 1024, 8 * 1024 * 1024)
    assert at_remote_place(DEFAULT) == REMOTE
    given = at_remote_place(Config(cache_bytes=1 << 20, outstanding_parts=3))
    assert (given.cache_bytes, given.outstanding_parts) == (1 << 20, 3)
    assert (given.inline_part_bytes, given.inline_total_bytes) == (64 * 1024, 8 * 1024 * 1024)
    assert given.compression == "zstd"


def test_a_store_in_a_bucket_that_is_opened_with_a_config_has_them(moto: Any, tmp_path: Path) -> None:
    config = Config(cache_bytes=1 << 20)
    with ts.open(moto.url(), storage=moto.storage, config=config, maintenance=False) as store:
        assert store._context.config == at_remote_place(config)
    with ts.open(tmp_path / "store", config=config, maintenance=False) as store:
        assert store._context.config == config


def test_what_fits_into_the_log_of_a_remote_place_is_no_blob() -> None:
    place = SlowPlace()
    with place.open(Config(cache_bytes=1 << 20)) as store:
        made = store.create("c", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        place.measured()
        for number, (size, blobs) in enumerate([(60_000, {}), (70_000, {"put": 1})]):
            made.append([{"k": number, "v": random.Random(number).randbytes(size)}])
            assert place.measured()[1] == blobs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, (1 << 40) + 1, 1.5, True, None, "1"])
def test_value_out_of_bounds_is_a_usage_error_that_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        Config(**{name: value})


@pytest.mark.parametrize("name", ["relay_appends", "merge_process"])
@pytest.mark.parametrize("value", [0, 1, None, "True"])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    assert Config(**{name: False}) != DEFAULT
    with pytest.raises(UsageError, match=name):
        Config(**{name: value})


@pytest.mark.parametrize("value", ["LZ4", "gzip", 1, None])
def test_a_compression_is_one_of_two(value: Any) -> None:
    assert REMOTE.compression == Config(compression="zstd").compression != DEFAULT.compression
    with pytest.raises(UsageError, match="compression"):
        Config(compression=value)


@pytest.mark.parametrize("value", ["md5", "SHA256", 1, None])
def test_a_hash_of_pieces_is_one_of_two(value: Any) -> None:
    assert REMOTE.piece_hash == Config(piece_hash="sha256").piece_hash != DEFAULT.piece_hash
    with pytest.raises(UsageError, match="piece_hash"):
        Config(piece_hash=value)


@pytest.mark.parametrize("value", [1, 1 << 40])
def test_bounds_themselves_are_fine(value: int) -> None:
    assert Config(claim_ms=value).claim_ms == value


def test_parts_that_are_uploaded_at_once_are_at_most_as_many_as_there_may_be_threads() -> None:
    assert Config(outstanding_parts=64).outstanding_parts == 64
    with pytest.raises(UsageError, match="outstanding_parts is at most 64, not 65"):
        Config(outstanding_parts=65)


def test_a_turn_takes_a_minute_at_most() -> None:
    assert Config(turn_ms=60_000).turn_ms == 60_000
    with pytest.raises(UsageError, match="turn_ms is at most 60000, not 60001"):
        Config(turn_ms=60_001)


@pytest.mark.parametrize(
    ("cores", "config", "threads"),
    [
        (1, DEFAULT, 4),
        (6, DEFAULT, 6),
        (64, DEFAULT, 32),
        (64, Config(read_threads=3), 3),
        (1, Config(read_threads=32), 32),
        (6, REMOTE, 8),
        (64, Config(read_threads=1, outstanding_parts=64), 64),
    ],
)
def test_a_store_reads_in_as_many_threads_as_there_are_cores(
    cores: int, config: Config, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    with ts.open(tmp_path, config=config, maintenance=False) as store:
        release = threading.Event()
        tasks = [store._pool.submit(release.wait, 600) for _ in range(100)]
        started = len(store._pool._threads)
        release.set()
        assert all(outcome(task) for task in tasks)
    assert started == threads


def test_config_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULT.claim_ms = 1  # type: ignore[misc]


@pytest.mark.parametrize("value", [(), ("ts",), ("a*", "*b")])
def test_untrimmable_columns_are_names_and_their_beginnings_and_ends(value: Any) -> None:
    assert Config(stats_always_keep=value).stats_always_keep == value


@pytest.mark.parametrize("value", ["ts", ["ts"], (1,), ("*",), ("",), None])
def test_anything_else_is_not_a_tuple_of_names(value: Any) -> None:
    with pytest.raises(UsageError, match="stats_always_keep"):
        Config(stats_always_keep=value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("arrangement_level_rows", [(1, *LEVEL_ROWS[1:]), (99_999, *LEVEL_ROWS[1:]), (7,) * 8]),
        ("arrangement_merge_min", [(2,) * 9, (64,) + (2,) * 8]),
        ("arrangement_merge_max", [8, 65_536]),
        ("arrangement_batches", [26, 65_536]),
        ("arrangement_retraction_multiplier", [0, 1_000]),
        ("arrangement_memory_bytes", [None, 1, 1 << 40]),
        ("read_threads", [None, 1, READ_THREADS_MAX]),
    ],
)
def test_limits_of_arrangements_and_threads_may_be_set_within_their_bounds(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("arrangement_level_rows", [(0, *LEVEL_ROWS[1:]), (100_000, *LEVEL_ROWS[1:]), (9, 8, *LEVEL_ROWS[2:])]),
        ("arrangement_level_rows", [LEVEL_ROWS[1:], list(LEVEL_ROWS), (True,) * 8, (1.0,) * 8, 14_999, None]),
        ("arrangement_level_rows", [(*LEVEL_ROWS[:-1], (1 << 40) + 1)]),
        ("arrangement_merge_min", [(1,) * 9, (2,) * 8, [2] * 9, (2.0,) * 9, 2, None]),
        ("arrangement_merge_max", [7, 1, 0, 65_537, 64.0, True, None]),
        ("arrangement_batches", [25, 0, -1, 65_537, 128.0, None]),
        ("arrangement_retraction_multiplier", [-1, 1_001, 0.5, False, None]),
        ("arrangement_memory_bytes", [0, -1, (1 << 40) + 1, 0.5, True, "1"]),
        ("read_threads", [0, -1, READ_THREADS_MAX + 1, 4.0, True, "1"]),
    ],
)
def test_limits_of_arrangements_and_threads_out_of_bounds_are_a_usage_error_that_names_the_field(
    name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(UsageError, match=f"config {name}"):
            Config(**{name: value})
