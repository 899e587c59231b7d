"""Reading from the command line: rows in every format, at every time, and nothing is changed."""

import io
import json

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from running import document, failure, part_of, rows, run, seqnos

import timespine as ts


def test_a_snapshot_is_text_for_people(original):
    assert run("snapshot", original, "orders").stdout.splitlines() == [
        "id  customer  total",
        "--  --------  -----",
        " 1  ann        12.0",
        " 3  null       null",
    ]


def test_a_snapshot_as_of_a_time(original):
    assert [row["total"] for row in rows("snapshot", original, "orders", "--as-of", 0)] == [10.0, 25.0]
    assert [row["id"] for row in rows("snapshot", original, "orders", "--as-of", 1)] == [1, 2, 3]


def test_a_snapshot_of_some_columns_and_rows(original):
    found = rows("snapshot", original, "orders", "--as-of", 0, "--columns", "customer, id", "--where", "total > 20")
    assert found == [{"customer": "bob", "id": 2}]
    assert list(found[0]) == ["customer", "id"]


@pytest.mark.parametrize("limit", [0, 1, 2999, 3000, 5000])
def test_a_limit(original, limit):
    assert len(rows("snapshot", original, "items", "--limit", limit)) == min(limit, 3000)


def test_a_row_that_counts_twice_is_given_twice_or_with_its_count(store):
    run("append", store, "orders", "-", "--format", "json", input='{"id": 3, "_diff": 1}\n')
    assert len(rows("snapshot", store, "orders", "--where", "id = 3")) == 2
    (row,) = rows("snapshot", store, "orders", "--where", "id = 3", "--multiplicity", "column")
    assert row["_diff"] == 2
    (row,) = rows("snapshot", store, "orders", "--where", "id = 3", "--multiplicity", "column", "--columns", "id")
    assert row == {"id": 3, "_diff": 2}


def test_parquet_goes_into_a_pipe_or_a_file(store, tmp_path):
    piped = pq.read_table(io.BytesIO(run("snapshot", store, "items", "-o", "parquet").stdout_bytes))
    assert piped.num_rows == 3000
    assert piped.schema.names == ["id", "name"]
    run("snapshot", store, "items", "--to", tmp_path / "items.parquet")
    assert pq.read_table(tmp_path / "items.parquet").equals(piped)


def test_parquet_never_goes_to_a_terminal(store, monkeypatch):
    is_terminal = property(lambda self: self.path is None)
    monkeypatch.setattr("timespine.cli.output.row_writers.Destination.is_terminal", is_terminal)
    assert "--to FILE" in failure("snapshot", store, "items", "-o", "parquet", code=2)


def test_csv_tells_null_from_an_empty_text(store):
    run("append", store, "orders", "-", "--format", "json", input='{"id": 4, "customer": "", "total": 1}\n')
    text = run("snapshot", store, "orders", "-o", "csv").stdout
    assert text == '"id","customer","total"\n1,"ann",12\n3,,\n4,"",1\n'


def test_rows_of_an_empty_collection_have_their_columns(store, tmp_path):
    run("create", store, "empty", "--key", "id:int64", "--value", "s:string")
    assert rows("snapshot", store, "empty") == []
    assert run("snapshot", store, "empty", "-o", "csv").stdout == '"id","s"\n'
    assert run("snapshot", store, "empty").stdout.split() == ["id", "s", "--", "-"]
    run("snapshot", store, "empty", "--to", tmp_path / "empty.parquet")
    assert pq.read_schema(tmp_path / "empty.parquet").types == [pa.int64(), pa.string()]
    assert rows("changes", store, "empty") == []
    assert rows("lookup", store, "empty", "id=1") == []


def test_a_file_appears_whole_or_not_at_all(store, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("as it was")
    part = part_of(store, "items")
    data = bytearray(part.read_bytes())
    data[200] ^= 1
    part.write_bytes(data)
    failure("snapshot", store, "items", "--to", target, code=6)
    assert target.read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["store", "out.csv"] or len(list(tmp_path.iterdir())) == 2


def test_a_device_is_written_to_and_not_replaced(store, tmp_path):
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    run("snapshot", store, "orders", "--to", link)
    assert link.is_char_device()
    failure("snapshot", store, "orders", "--to", tmp_path, code=2)
    failure("snapshot", store, "orders", "--to", tmp_path / "nowhere" / "file", code=2)


def test_changes_are_net(original):
    found = rows("changes", original, "orders", "--after", 0, "--until", 2)
    assert sorted((row["id"], row["total"], row["_diff"]) for row in found if row["total"]) == [
        (1, 10.0, -1),
        (1, 12.0, 1),
        (2, 25.0, -1),
    ]
    assert len(rows("changes", original, "orders", "--after", 1)) == 1
    assert len(rows("changes", original, "orders")) == 2
    assert rows("changes", original, "orders", "--after", 1, "--columns", "id") == [{"id": 2, "_diff": -1}]


def test_changes_as_images(original):
    found = rows("changes", original, "orders", "--after", 0, "--images", "--limit", 2)
    assert [row["_change_type"] for row in found] == ["update_preimage", "update_postimage"]


def test_lookup_by_key(original):
    assert rows("lookup", original, "orders", "id=1") == [{"id": 1, "customer": "ann", "total": 12.0}]
    assert rows("lookup", original, "orders", "id=1", "--as-of", 0)[0]["total"] == 10.0
    assert rows("lookup", original, "orders", "id=99") == []
    assert rows("lookup", original, "orders", "id=2", "--as-of", 0, "--columns", "customer") == [{"customer": "bob"}]


def test_tail_tells_rows_then_updates_then_progress(original):
    lines = rows("tail", original, "orders", "--as-of", 0, "--timeout", 0)
    assert [line.get("_time") for line in lines[:2]] == [0, 0]
    assert lines[-1] == {"_progress": 2}
    assert {line["_time"] for line in lines[2:-1]} == {1, 2}
    assert "-- complete through 2" in run("tail", original, "orders", "--as-of", 1, "--timeout", 0).stdout
    table = csv.read_csv(io.BytesIO(run("tail", original, "orders", "--timeout", 0, "-o", "csv").stdout_bytes))
    assert table.column("_diff").to_pylist() == [1, 1]
    assert rows("tail", original, "orders", "--no-snapshot", "--timeout", 0) == []


def test_listen_begins_with_all_updates_that_are_there(original):
    lines = rows("listen", original, "orders", "--timeout", 0)
    assert {line["_time"] for line in lines} == {0, 1, 2}
    assert rows("listen", original, "orders", "--no-snapshot", "--timeout", 0) == []
    assert "customer" in run("listen", original, "orders", "--timeout", 0, "--columns", "customer").stdout


def test_nothing_in_the_data_can_move_the_cursor(store):
    evil = json.dumps({"id": 9, "customer": "\x1b[2Jx\u202egone\nline", "total": None})
    run("append", store, "orders", "-", "--format", "json", input=evil)
    text = run("snapshot", store, "orders", "--where", "id = 9").stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2Jx\\u202egone\\nline" in text
    assert rows("snapshot", store, "orders", "--where", "id = 9")[0]["customer"] == "\x1b[2Jx\u202egone\nline"


def test_times_of_the_wall_clock_are_dates_with_a_zone(tmp_path):
    root = tmp_path / "clock"
    with ts.open(root, maintenance=False) as opened:
        made = opened.create("events", key={"id": "int64"})
        made.append([{"id": 1}], at=1_700_000_000_000)
        made.append([{"id": 2}], at=1_700_000_060_000)
    assert rows("snapshot", root, "events", "--as-of", "2023-11-14T22:13:30Z") == [{"id": 1}]
    assert rows("snapshot", root, "events", "--as-of", "2023-11-14T23:14:20+01:00") == [{"id": 1}, {"id": 2}]
    assert "zone" in failure("snapshot", root, "events", "--as-of", "2023-11-14T22:13:30", code=2)


def test_looking_changes_nothing_and_reading_leaves_nothing_behind(store):
    before = seqnos(store)
    for verb in ("describe", "history", "inspect"):
        run(verb, store, "orders")
    for view in ("state", "batches", "parts", "levels", "holds", "diffs"):
        run("inspect", store, "orders", view)
    run("list", store)
    run("doctor", store)
    run("hold", store, "orders", "list")
    assert seqnos(store) == before
    run("snapshot", store, "orders")
    run("changes", store, "orders")
    run("lookup", store, "orders", "id=1")
    run("tail", store, "orders", "--timeout", 0)
    run("listen", store, "orders", "--timeout", 0)
    state = document("inspect", store, "orders")
    assert state["readers"] == {}
    assert (state["since"], state["upper"]) == (0, 3)
