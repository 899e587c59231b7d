"""Spark Connect: no context, no JVM at hand, and everything works as on a classic session.

One server for all tests: one script in a process of its own runs the functions of connect_parts.py, and the tests look
at what they told. Some of them run on a store in a bucket with logs in PostgreSQL, too.
"""

from __future__ import annotations

import importlib.util

import pytest
from connect_parts import script
from servers.object_servers import ACCESS_KEY, SECRET_KEY

from timespine.location.postgres.migration import migrate

pytestmark = pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")


_told = {}


@pytest.fixture
def told(told_by, seaweed, postgres):
    """What a function of the script told, by its name. The script is run once, also when it fails."""
    if not _told:
        _told["failed"] = "the script failed"
        logs = postgres.conninfo(postgres.make_database())
        migrate(logs)
        remote = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT": seaweed.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "PGUSER": "owner",
            "STORE_URL": seaweed.url(),
            "LOGS": logs,
        }
        local = {"SPARK_TESTING": "1", "SPARK_REMOTE": "local[2]", "SPARK_LOCAL_IP": "127.0.0.1"}
        _told.update(told_by(script(), **local, **remote))
        del _told["failed"]
    assert "failed" not in _told, _told["failed"]

    def of(name, place="folder"):
        answer = _told[f"{name} {place}"]
        assert "failed" not in answer, answer["failed"]
        return answer

    return of


@pytest.fixture(params=["folder", "bucket"])
def told_there(told, request):
    """What a function told of a store in a folder, and of one in a bucket."""
    return lambda name: told(name, request.param)


def test_the_session_has_neither_a_context_nor_a_jvm(told):
    found = told("session")
    assert found["type"].startswith("pyspark.sql.connect")
    assert len(found["refused"]) == 2


def test_one_consolidated_run_is_read_by_spark_itself_and_gives_the_rows_of_the_slices(told):
    assert told("snapshots")["files"] == [1, 0]
    assert told("snapshots")["same"]


def test_snapshots_are_merged_by_tasks_as_of_any_time(told):
    assert told("snapshots")["merged"] == [[0, "a"], [1, "b"], [3, "a"], [5000, "c"]]
    assert told("snapshots")["counts"] == [3000, 3001, 3000]


def test_changes_are_net_and_images_are_paired(told):
    assert told("snapshots")["changes"] == [[1, "a", -1], [1, "b", 1], [2, "a", -1], [5000, "c", 1]]
    assert told("snapshots")["images"] == [
        [1, "update_postimage"],
        [1, "update_preimage"],
        [2, "delete"],
        [5000, "insert"],
    ]


def test_few_rows_are_written_by_the_driver_in_one_commit_each(told):
    check_writes(told("by_driver"), 0)


def test_many_rows_are_written_by_executors_in_one_commit_each(told_there):
    check_writes(told_there("by_executors"), 4)


def check_writes(found, jobs):
    assert found["rows"] == [300, 200, 50]
    assert found["ids"] == list(range(50, 300))
    assert found["names"] == [[False, "a"], [True, "b"]]
    assert found["history"] == ["append", "upsert", "delete"]
    assert found["jobs"] == jobs
    assert found["orphans"] == []


@pytest.mark.parametrize("part", ["by_driver", "by_executors"])
def test_rows_that_do_not_fit_are_one_clear_error(told, part):
    assert told(part)["says"] == "column id of the key has nulls: leave these rows out, or fill them"


def test_the_source_reads_as_of_a_time_and_gives_the_change_feed(told_there):
    found = told_there("source")
    assert found["now"] == [[1, "a"], [2, "b"]]
    assert found["before"] == [[1, "a"], [2, "a"]]
    assert found["feed"] == [[2, "a", "update_preimage", 1, -1], [2, "b", "update_postimage", 1, 1]]


def test_frames_are_written_by_the_source_in_one_commit_each(told_there):
    assert told_there("source")["written"] == [[1, "a"], [2, "c"], [3, "d"], [4, "d"]]
    assert told_there("source")["history"] == 4


def test_a_feed_through_the_sink_makes_a_copy_in_one_commit(told_there):
    assert told_there("sink") == {"wrong": None, "rows": [[0, "a"], [1, "b"], [3, "a"], [4, "a"]], "history": 1}


def test_a_checkpoint_in_a_bucket_that_the_session_cannot_reach_is_refused_at_the_start(told):
    first, second = told("bucket_checkpoint")["said"]
    assert "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER" in first
    assert "No FileSystem for scheme" in second
    assert told("bucket_checkpoint")["history"] == 0


def test_foreach_batch_opens_the_store_beside_the_server_and_writes_once_what_comes_twice(told_there):
    found = told_there("each_batch")
    assert found["wrong"] is None
    assert found["rows"] == [[0, "a"], [1, "b"], [3, "a"], [4, "a"]]
    assert found["done"] == ["0 4", "0 None"]
    assert found["history"] == 1
    assert found["sinks"] == {"each": 0}


def test_a_batch_is_split_and_committed_to_several_collections_beside_the_server(told):
    found = told("together")
    assert found["wrong"] is None
    assert found["rows"] == [[[1, "a"], [2, "b"]]] * 3
    assert found["uppers"] == [1, 1, 8]
    assert found["sinks"] == [{"together": 0}] * 3


def test_foreach_batch_without_a_name_is_an_error_at_the_start(told):
    assert "name the sink, foreach_batch(collection, sink='...')" in told("nameless")["said"]


def test_foreach_batch_does_not_write_to_another_collection_of_the_same_name(told_there):
    assert (
        told_there("each_batch")["replaced"] == "each is another collection than the one that was opened: open it again"
    )


def test_views_functions_and_changes_in_sql(told_there):
    found = told_there("sql")
    assert found["views"]
    assert found["counts"] == [12, 10, 12, 16]
    assert found["changes"] == [[8, -1], [8, 1], [9, -1], [9, 1], [10, 1], [11, 1]]
    assert "7 is not complete yet" in found["says"]


def test_a_session_holds_what_its_frames_read_until_it_is_released(told):
    assert told("release") == {"held": 1000, "released": [1, 0], "since": 1}


def test_rows_are_enriched_from_a_checkpoint(told):
    assert told("enriched") == {"left": [[98, "n98"], [99, "n99"], [100, None], [101, None]], "inner": 2}


def test_views_are_kept_fresh_by_changes_and_by_functions(told):
    found = told("kept_fresh")
    assert found["done"] == [["spark", "changes"], ["spark", "whole"]] * 2
    assert found["exact"] == [True, True]
    assert found["rows"] == 39
