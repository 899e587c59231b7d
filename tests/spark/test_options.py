"""Options are checked where they are given: what is misspelled, out of place or impossible is refused at once."""

from __future__ import annotations

import datetime

import pytest

from timespine.errors import UsageError
from timespine.spark.options import FEED, PLACES, READ, STREAM, STREAM_WRITE, WRITE, CollectionAddress, Options

PATH = {"path": "/a/b"}


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        (READ, {"asof2": "1"}, "no option 'asof2'; there are: path, store"),
        (READ, {"images": "true"}, "no option 'images'"),
        (READ, {"mode": "upsert"}, r"option mode is for df.write and df.writeStream; here, with spark.read, there are"),
        (READ, {"hold": "x"}, "option hold is for spark.readStream"),
        (READ, {"asOf": "--5"}, "is a time such as"),
        (READ, {"asOf": "²"}, "is a time such as"),
        (READ, {"asOf": "-1"}, "from 0 on"),
        (READ, {"asOf": ""}, "is a time such as"),
        (READ, {"versionAsOf": "2026-01-01"}, "a moment is a timestampAsOf"),
        (READ, {"asOf": "1", "versionAsOf": "2"}, "mean the same"),
        (READ, {"multiplicity": "counts"}, "is rows or column"),
        (READ, {"columns": " , "}, "names none"),
        (READ, {"lease": "soon"}, "not a duration"),
        (READ, {"lease": "0 s"}, "longer than nothing"),
        (READ, {"partitions": "0"}, "from 1 on"),
        (READ, {"readUpdates": "true", "asOf": "1"}, "leave out asOf"),
        (READ, {"readUpdates": "true", "multiplicity": "column"}, "leave out multiplicity"),
        (READ, {"readUpdates": "true", "startingVersion": "1"}, "option readUpdates is for spark.read;"),
        (READ, {"startingVersion": "latest"}, "latest is for streams"),
        (READ, {"startingVersion": "-4"}, "from 0 on"),
        (READ, {"startingVersion": "1", "asOf": "1"}, "option asOf is for spark.read;"),
        (READ, {"readChangeFeed": "true", "multiplicity": "column"}, "option multiplicity is for spark.read;"),
        (READ, {"readChangeFeed": "false", "startingVersion": "1"}, "leave out one"),
        (READ, {"startingVersion": "2", "endingVersion": "1"}, "the ending one must not be before the starting one"),
        (READ, {"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"}, "must not be before"),
        (READ, {"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "mean the same"),
        (STREAM, {"endingVersion": "1"}, "option endingVersion is for spark.read of changes"),
        (STREAM, {"asOf": "0"}, "option asOf is for spark.read;"),
        (STREAM, {"readUpdates": "true"}, "option readUpdates is for spark.read;"),
        (STREAM, {"multiplicity": "column"}, "option multiplicity is for spark.read;"),
        (STREAM, {"lease": "1 hour"}, "option lease is for spark.read and spark.read of changes;"),
        (STREAM, {"startingVersion": "-5"}, "from 0 on"),
        (STREAM, {"hold": "Bad Name!"}, "hold 'Bad Name!' is not valid"),
        (STREAM, {"maxRowsPerTrigger": "0"}, "from 1 on"),
        (STREAM, {"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "either"),
        (WRITE, {"mode": "merge"}, "append, upsert or delete, not 'merge'"),
        (WRITE, {"mode": "upsert", "time": "7"}, "time is for append"),
        (WRITE, {"mode": "delete", "time": "7"}, "time is for append"),
        (WRITE, {"sequenceBy": "n"}, "it is for upsert, not append"),
        (WRITE, {"mode": "delete", "sequenceBy": "n"}, "it is for upsert, not delete"),
        (WRITE, {"asOf": "9"}, "option asOf is for spark.read;"),
        (WRITE, {"where": "id > 7"}, "option where is for"),
        (WRITE, {"sinkId": "x"}, "option sinkId is for df.writeStream"),
        (STREAM_WRITE, {"time": "9"}, "option time is for df.write;"),
        (STREAM_WRITE, {"firstBatch": "-1"}, "from 0 on"),
    ],
)
def test_what_is_wrong_is_said_with_what_there_is(place, options, says):
    with pytest.raises(UsageError, match=says):
        Options({**PATH, **options}, *((READ, FEED) if place == READ else (place,)))


@pytest.mark.parametrize(
    ("places", "options"),
    [
        ((READ, FEED), {"asOf": "3", "columns": "a, b", "where": "a > 1", "partitions": "2", "lease": "10 min"}),
        ((READ, FEED), {"readUpdates": "true", "columns": "a"}),
        ((READ, FEED), {"readChangeFeed": "true", "startingVersion": "1", "endingVersion": "2", "lease": "1 hour"}),
        ((STREAM,), {"startingVersion": "latest", "maxRowsPerTrigger": "5", "hold": "me", "readChangeFeed": "true"}),
        ((WRITE,), {"time": "7"}),
        ((WRITE,), {"mode": "upsert", "sequenceBy": "n"}),
        ((STREAM_WRITE,), {"mode": "delete", "sinkId": "me", "checkpointLocation": "/c", "queryName": "q"}),
    ],
)
def test_what_is_right_is_taken_in_any_spelling(places, options):
    Options({name.lower(): value for name, value in {**PATH, **options}.items()}, *places)
    Options({**PATH, **options, "spark.something": "1", "__more": "2"})


def test_every_option_has_a_place_and_bad_flags_and_numbers_are_refused_in_all_of_them():
    for name, places in PLACES.items():
        assert places, name
        assert set(places) <= {READ, FEED, STREAM, WRITE, STREAM_WRITE}
    for wrong in ({"readChangeFeed": "maybe"}, {"partitions": "many"}, {"firstBatch": "x"}):
        with pytest.raises(UsageError):
            Options({**PATH, **wrong})


@pytest.mark.parametrize("path", ["/a/b/c", "file:/a/b/c", "file:///a/b/c", "/a/b/c/", "/a/b//c"])
def test_a_path_may_be_written_as_the_url_of_a_file(path):
    assert Options({"path": path}).target == CollectionAddress("/a/b", "c")


def test_a_collection_must_be_named():
    for wrong, says in (({}, "name the collection"), ({"path": "orders"}, "not the location")):
        with pytest.raises(UsageError, match=says):
            _ = Options(wrong).target


def test_a_store_at_an_unknown_location_is_refused():
    for wrong in ({"path": "hdfs://name/store/c"}, {"store": "hdfs:/x", "collection": "c"}):
        with pytest.raises(UsageError, match="no location of a store"):
            _ = Options(wrong).target
    assert Options({"store": "file:/a/b", "collection": "c"}).target == CollectionAddress("/a/b", "c")


def test_times_are_numbers_or_moments():
    assert Options({**PATH, "asOf": "3"}).as_of == 3
    moment = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
    assert Options({**PATH, "asOf": "2026-01-31"}).as_of == moment
    assert Options({**PATH, "timestampAsOf": "2026-01-31"}).as_of == moment
