"""Lookups by key, by its first columns, and by ranges: the right rows, and no row group more than needed."""

from __future__ import annotations

import datetime

import polars as pl
import pytest

from timespine.client.read import lookup
from timespine.config import Config
from timespine.errors import UsageError

TINY = Config(part_bytes=4000, row_group_rows=16, inline_part_bytes=1, storage_attempts=3, retry_pause_ms=1)
"""A thousand rows are many parts of many row groups."""

TENANTS = ("a", "b", "c")
PER_TENANT = 400


@pytest.fixture
def visits(place):
    store = place.open(config=TINY)
    visits = store.create("visits", key={"tenant": "string", "n": "int64"}, value={"v": "int64"}, timeline="counter")
    visits.append([{"tenant": each, "n": n, "v": n * 2} for each in TENANTS for n in range(PER_TENANT)])
    visits.append([{"tenant": "b", "n": 1000, "v": 0}, {"tenant": None, "n": 1, "v": 1}])
    visits.compact(wait=True)
    return visits


def read(visits, keys=None, between=None):
    """The rows of a lookup, and the row groups that were read for them and in all."""
    with visits.snapshot() as everything:
        everything.to_arrow()
        whole = everything._tally
    with visits.snapshot() as rows:
        lookup.restrict_to_lookup(rows, keys, between)
        found = sorted((row["tenant"] or "", row["n"]) for row in rows.to_pylist())
    return found, rows._tally, whole


def of(tenant, numbers):
    return [(tenant, n) for n in numbers]


def test_the_first_columns_of_a_key_stand_for_all_keys_that_begin_with_them(visits):
    found = visits.lookup({"tenant": "a"}).to_pylist()
    assert isinstance(found, list)
    assert sorted(row["n"] for row in found) == list(range(PER_TENANT))
    assert {row["tenant"] for row in found} == {"a"}
    assert visits.lookup({"tenant": "z"}).to_pylist() == []
    assert visits.lookup({"tenant": None}).to_pylist() == [{"tenant": None, "n": 1, "v": 1}]
    assert visits.lookup({"tenant": "b", "v": 7}, columns=["n"]).to_pylist()[0] == {"n": 0}, "values are passed over"


def test_a_prefix_reads_the_row_groups_of_its_bounds_only(visits):
    found, scan_stats, whole = read(visits, {"tenant": "a"})
    assert found == of("a", range(PER_TENANT))
    assert whole.groups >= 3 * PER_TENANT // 16
    assert scan_stats.groups <= PER_TENANT // 16 + 2
    assert scan_stats.parts <= whole.parts // 3 + 2


def test_many_prefixes_give_a_table(visits):
    for keys in ([{"tenant": "a"}, {"tenant": "c"}], pl.DataFrame({"tenant": ["a", "c"]})):
        assert sorted(set(visits.lookup(keys).column("tenant").to_pylist())) == ["a", "c"]
        assert visits.lookup(keys).num_rows == 2 * PER_TENANT


@pytest.mark.parametrize(
    ("keys", "between", "expected"),
    [
        ({"tenant": "b"}, (10, 12), of("b", [10, 11, 12])),
        ({"tenant": "b"}, ({"n": 398}, None), of("b", [398, 399, 1000])),
        ({"tenant": "b"}, (None, 1), of("b", [0, 1])),
        ({"tenant": "b"}, (12, 10), []),
        (None, ({"tenant": "a", "n": 398}, {"tenant": "b", "n": 1}), of("a", [398, 399]) + of("b", [0, 1])),
        (None, ({"tenant": "b", "n": 399}, "b"), of("b", [399, 1000])),
        (None, ("c", {"tenant": "c", "n": 0}), of("c", [0])),
        ([{"tenant": "a"}, {"tenant": "c"}], (5, 5), of("a", [5]) + of("c", [5])),
    ],
)
def test_a_range_has_both_of_its_ends_and_reads_its_own_row_groups_only(visits, keys, between, expected):
    found, scan_stats, whole = read(visits, keys, between)
    assert found == expected
    assert scan_stats.groups <= 6 < whole.groups
    assert sorted((row["tenant"], row["n"]) for row in visits.lookup(keys, between=between).to_pylist()) == expected


def test_ranges_and_prefixes_are_as_of_a_time(visits):
    assert visits.lookup({"tenant": "b"}, between=(1000, None)).num_rows == 1
    assert visits.lookup({"tenant": "b"}, 0, between=(1000, None)).num_rows == 0
    assert visits.lookup({"tenant": None}, as_of=0).to_pylist() == []


def test_a_range_of_one_key_column_takes_plain_values(place):
    store = place.open(config=TINY)
    days = store.create("days", key={"day": "date"}, value={"v": "int64"}, timeline="counter")
    first = datetime.date(2024, 1, 1)
    days.append([{"day": first + datetime.timedelta(n), "v": n} for n in range(60)])
    found = days.lookup(between=(datetime.date(2024, 1, 31), datetime.date(2024, 2, 2)))
    assert found.column("v").to_pylist() == [30, 31, 32]


def test_lookups_follow_a_renamed_and_a_widened_key(place):
    store = place.open(config=TINY)
    items = store.create("items", key={"group": "string", "n": "int32"}, value={"v": "int64"}, timeline="counter")
    items.append([{"group": "g", "n": n, "v": n} for n in range(50)])
    items.evolve(rename={"group": "kind"}, widen={"n": "int64"})
    items.append([{"kind": "g", "n": 1 << 40, "v": 1}])
    assert items.lookup({"kind": "g"}, between=(48, None)).column("n").to_pylist() == [48, 49, 1 << 40]
    assert len(items.lookup({"kind": "g"})) == 51


@pytest.mark.parametrize(
    ("keys", "between", "said"),
    [
        (None, None, "lookup needs a key or a range"),
        ({"n": 1}, None, "the rows lack the key column 'tenant'"),
        ({"v": 1}, None, "the rows lack the key columns 'tenant', 'n'"),
        ([{"tenant": "a"}, {"tenant": "a", "n": 1}], None, "the rows lack the key column 'n'"),
        ({"tenant": "a", "n": 1}, (1, 2), "no key column is left"),
        ({"tenant": "a"}, 5, "a pair"),
        ({"tenant": "a"}, (None, None), "no range"),
        ({"tenant": "a"}, ({"v": 1}, None), "names the key columns n"),
        (None, ({"n": 1}, None), "names the key columns tenant, n"),
        (None, ({}, None), "not none"),
        (None, ({"tenant": None}, None), "no null"),
        ({"tenant": "a"}, ("x", None), "column 'n'"),
    ],
)
def test_a_wrong_lookup_says_what_to_change(visits, keys, between, said):
    with pytest.raises(UsageError, match=said):
        visits.lookup(keys, between=between)


def test_without_key_columns_there_is_no_prefix_and_no_range(place):
    log = place.open().create("log", value={"a": "int64", "b": "int64"}, timeline="counter")
    log.append([{"a": 1, "b": 2}])
    assert log.lookup({"a": 1, "b": 2}).to_pylist() == [{"a": 1, "b": 2}]
    with pytest.raises(UsageError, match=r"lack the (key )?column 'b'"):
        log.lookup({"a": 1})
    with pytest.raises(UsageError, match="no key columns"):
        log.lookup(between=(1, 2))
