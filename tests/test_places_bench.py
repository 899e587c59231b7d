"""What operations cost at each place, in requests: figures of `python -m bench.places` that must not grow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import places
from bench.places import BUCKET, FOLDER, PLACES, POSTGRESQL, Cost, measure


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, Cost]]:
    return {name: {each.operation: each for each in measure(make())} for name, make in PLACES.items()}


ONE_COMMIT = ({}, {"compare_and_set": 1})
COMMITS = ("append 1 row", "append 100 rows", "append 1,000 rows")


@pytest.mark.parametrize("operation", COMMITS)
def test_an_append_of_some_rows_is_one_commit_and_no_blob(operation, costs):
    found = costs[POSTGRESQL][operation]
    assert (found.blobs, found.logs, found.ms) == (*ONE_COMMIT, 1.0)
    found = costs[BUCKET][operation]
    assert (found.blobs, found.logs, found.ms) == ({}, {"put": 1, "get": 1}, 35.0)


def test_what_may_be_inline_depends_on_the_place(costs):
    assert costs[FOLDER]["append 1,000 rows"].blobs == {"put": 1}
    assert costs[POSTGRESQL]["append 1,000 rows"].blobs == {}


@pytest.mark.parametrize(
    ("operation", "most"),
    [
        ("open a store", {"open": 5, "get": 1, "put": 2}),
        ("find a collection", {"scan": 1}),
        ("append 1 row, the first of a process", {"scan": 1, "compare_and_set": 2}),
        ("upsert 1 row, the first", {"scan": 1}),  # it changes nothing, and rows in the state need no lease
        ("upsert 1 row", {"scan": 1, "compare_and_set": 1}),
        ("upsert 1 row among 40 runs, the first of a process", {"scan": 2, "compare_and_set": 3, "get": 1}),
        ("upsert 1 row among 40 runs", {"scan": 1, "compare_and_set": 1}),
        ("transaction over two collections", {"scan": 2, "compare_and_set": 1}),
        ("snapshot, the first of a process", {"scan": 1}),
        ("snapshot again", {"scan": 1}),
        ("open, and snapshot of 40 runs", {"open": 5, "scan": 2, "compare_and_set": 1, "get": 41, "put": 2}),
        ("snapshot of 40 runs, again", {"scan": 1}),
        ("open, and lookup of 1 row among 40 runs", {"open": 5, "scan": 2, "compare_and_set": 1, "get": 2, "put": 2}),
        ("lookup of 1 row among 40 runs, again", {"scan": 1}),
        ("lookup of a row of another row group", {"scan": 1}),
        ("maintain again, nothing to do", {"scan": 24, "get": 4}),
        ("plan a read of 1,000 parts in 32 pieces", {"scan": 1, "get": 34}),
    ],
)
def test_no_operation_on_postgresql_makes_more_calls_than_it_needs(operation, most, costs):
    found = costs[POSTGRESQL][operation]
    assert {**found.logs, **found.blobs} == most


@pytest.mark.parametrize(
    ("operation", "puts", "gets", "blobs"),
    [
        ("open a store", 0, 1, {"get": 1, "put": 2}),
        ("find a collection", 0, 33, {}),  # slots of the log, 32 at once, and its base
        ("append 1 row, the first of a process", 2, 4, {}),
        ("upsert 1 row, the first", 0, 2, {}),  # it changes nothing, and rows in the state need no lease
        ("upsert 1 row", 1, 3, {}),
        ("upsert 1 row among 40 runs, the first of a process", 3, 7, {"get": 1}),
        ("upsert 1 row among 40 runs", 1, 3, {}),
        ("transaction over two collections", 1, 5, {}),
        ("snapshot, the first of a process", 0, 2, {}),
        ("snapshot again", 0, 2, {}),
        ("open, and snapshot of 40 runs", 1, 101, {"get": 41, "put": 2}),
        ("open, and lookup of 1 row among 40 runs", 1, 101, {"get": 2, "put": 2}),
        ("lookup of 1 row among 40 runs, again", 0, 2, {}),
        ("lookup of a row of another row group", 0, 2, {}),
        ("plan a read of 1,000 parts in 32 pieces", 0, 2, {"get": 34}),
        ("maintain again, nothing to do", 0, 48, {"get": 4}),
    ],
)
def test_no_operation_on_a_bucket_makes_more_requests_than_it_needs(operation, puts, gets, blobs, costs):
    found = costs[BUCKET][operation]
    assert (found.logs.get("put", 0), found.logs.get("get", 0), found.blobs) == (puts, gets, blobs)


def test_maintenance_of_two_collections_makes_few_calls(costs):
    operation = "open, and maintain two collections"
    found = costs[POSTGRESQL][operation]
    assert found.logs["scan"] <= 43
    assert (found.logs["compare_and_set"], found.blobs) == (17, {"get": 3, "put": 4, "list": 2})
    found = costs[BUCKET][operation]
    assert found.logs["get"] <= 143
    assert (found.logs["put"], found.blobs) == (19, {"get": 3, "put": 4, "list": 2})


@pytest.mark.parametrize(
    ("place", "operation", "most_ms"),
    [
        (POSTGRESQL, "open, and snapshot of 40 runs", 200),
        (BUCKET, "open, and snapshot of 40 runs", 200),
        (POSTGRESQL, "open, and lookup of 1 row among 40 runs", 60),
        (BUCKET, "open, and lookup of 1 row among 40 runs", 175),
        (POSTGRESQL, "plan a read of 1,000 parts in 32 pieces", 300),
        (BUCKET, "plan a read of 1,000 parts in 32 pieces", 300),
    ],
)
def test_virtual_time_stays_within_the_published_bounds(place, operation, most_ms, costs):
    assert costs[place][operation].ms <= most_ms


@pytest.mark.parametrize("place", PLACES)
def test_a_plan_of_1000_parts_reads_their_lists_and_none_of_them(place, costs):
    lists = costs[place]["plan a read of 1,000 parts in 32 pieces"].blobs["get"]
    assert lists <= 1000 // 32 + 3


@pytest.mark.parametrize("place", [POSTGRESQL, BUCKET])
def test_merged_blobs_are_deleted_many_at_a_time(place, costs):
    merge = costs[place]["merge 40 runs into one"]
    assert (merge.blobs["get"], merge.blobs["put"]) == (40, 1)
    assert merge.ms <= 400  # the parts are read 32 at a time; the rest are commits
    assert costs[place]["collect the 40 blobs that were merged"].blobs["delete"] <= 3


PUBLISHED = {
    "open a store for writing": "open a store",
    "append 1, 100 or 1,000 small rows": "append 1,000 rows",
    "the first append of a process": "append 1 row, the first of a process",
    "upsert 1 row": "upsert 1 row",
    "transaction over two collections": "transaction over two collections",
    "snapshot of known rows": "snapshot again",
    "open, and snapshot of 40 parts": "open, and snapshot of 40 runs",
    "open, and look up 1 row among 40 parts": "open, and lookup of 1 row among 40 runs",
    "merge 40 parts": "merge 40 runs into one",
}
"""The rows of the table in docs/object-stores.md, and the operations that they are about."""


def test_the_published_table_has_the_figures_of_the_bench(costs):
    page = (Path(__file__).parents[1] / "docs" / "object-stores.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\d+) \| ([^|]+) \| (\d+) \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == list(PUBLISHED)
    for name, *found in rows:
        database, bucket = costs[POSTGRESQL][PUBLISHED[name]], costs[BUCKET][PUBLISHED[name]]
        statements = sum(database.logs.values())
        gets, puts = (database.blobs.get(kind, 0) for kind in ("get", "put"))
        shown = _shown((statements, "statement" if statements == 1 else "statements"), (gets, "GET"), (puts, "PUT"))
        puts, gets = (bucket.blobs.get(kind, 0) + bucket.logs.get(kind, 0) for kind in ("put", "get"))
        wanted = [shown, f"{database.ms:.0f}", _shown((puts, "PUT"), (gets, "GET")), f"{bucket.ms:.0f}"]
        assert found == wanted, name


def _shown(*counts):
    return ", ".join(f"{count} {kind}" for count, kind in counts if count)


def test_the_command_prints_all_of_it(capsys, tmp_path):
    places.main(["--json", str(tmp_path / "places.json")])
    printed = capsys.readouterr().out
    assert "| append 100 rows | 1 | 1 CAS | 1 | 1 CAS | 35 | 1 PUT, 1 GET |" in printed
    written = json.loads((tmp_path / "places.json").read_text())
    assert {name: len(found) for name, found in written.items()} == dict.fromkeys(PLACES, printed.count("\n") - 2)
