"""Writing ahead of the seal, and sealing, from the command line."""

import pytest
from running import document, failure, recorded, rows, run

import timespine as ts


@pytest.fixture
def events(tmp_path):
    """A store with two collections, of which one is complete below 5."""
    root = tmp_path / "store"
    with ts.open(root, maintenance=False) as store:
        store.create("events", key={"id": "int64"}, value={"minute": "int64"}, timeline="counter").seal(5)
        store.create("others", key={"id": "int64"}, timeline="counter")
    return root


def written(root, name="events"):
    with ts.open(root, read_only=True) as store, store.collection(name).unsealed() as found:
        return {row["id"]: row["_time"] for row in found.to_pylist()}


def write(root, text, *options, **more):
    return document("write", root, "events", "-", "--format", "json", *options, input=text, **more)


def test_rows_are_durable_at_once_and_seen_when_their_time_is_sealed(events):
    found = write(events, '{"id": 1, "minute": 9}\n{"id": 2, "minute": 7}\n', "--time-column", "minute")
    seqno = recorded(events, "events")[-1]
    assert found == {"rows": 2, "updates": 2, "first": 7, "last": 9, "late": 0, "seqno": seqno}
    assert rows("snapshot", events, "events") == []
    assert written(events) == {1: 9, 2: 7}
    sealed = document("seal", events, "events", "others", "--at", 8)
    seqnos = {name: recorded(events, name)[-1] for name in ("events", "others")}
    assert sealed == {"upper": {"events": 8, "others": 8}, "seqno": seqnos}
    assert rows("snapshot", events, "events") == [{"id": 2, "minute": 7}]
    assert run("seal", events, "events", "--at", 8).stdout == "events is complete below 8\n"


def test_times_come_from_the_rows_or_from_one_more_column_or_are_one_for_all(events, tmp_path):
    write(events, '{"id": 1, "_time": 6}\n')
    write(events, '{"id": 2, "at": 7}\n', "--time-column", "at")
    write(events, '{"id": 3}\n', "--at", 8)
    (tmp_path / "more.csv").write_text("id,at\n4,9\n")
    run("write", events, "events", tmp_path / "more.csv", "--time-column", "at")
    assert written(events) == {1: 6, 2: 7, 3: 8, 4: 9}


@pytest.mark.parametrize(("late", "kept"), [("drop", {2: 6}), ("move", {1: 5, 2: 6})])
def test_rows_that_come_too_late_go_by_rule(events, late, kept):
    text = '{"id": 1, "_time": 2}\n{"id": 2, "_time": 6}\n'
    line = failure("write", events, "events", "-", "--format", "json", input=text, code=2)
    assert "come too late: events is complete up to 5; write them with --late move or --late drop" in line
    assert written(events) == {}
    result = run("write", events, "events", "-", "--format", "json", "--late", late, input=text)
    assert f"1 row came too late ({late})" in result.stdout
    assert written(events) == kept


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "--at TIME, --time-column NAME, or the columns _time"),
        (("--at", 7, "--time-column", "minute"), "give either --at or --time-column"),
        (("--time-column", "minute"), "no column 'minute' to take times from"),
    ],
)
def test_what_cannot_be_meant_is_said_in_options(events, args, says):
    assert says in failure("write", events, "events", "-", "--format", "json", *args, input='{"id": 1}\n', code=2)
    assert written(events) == {}


def test_all_collections_are_sealed_or_none(events):
    assert "sealed up to 5" in failure("seal", events, "others", "events", "--at", 3, code=2)
    assert "nowhere" in failure("seal", events, "others", "nowhere", "--at", 9, code=2)
    with ts.open(events, read_only=True) as store:
        assert store["others"].upper.elements == ((0,),)
