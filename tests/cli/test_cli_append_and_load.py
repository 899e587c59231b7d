"""Writing from the command line: files of every kind, types of the collection, all rows or none."""

import datetime
import json
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running import document, failure, recorded, rows, run, seqnos

import timespine as ts

TYPES = {
    "flag": "bool",
    "small": "int8",
    "large": "uint64",
    "single": "float",
    "double": "double",
    "price": "decimal(20,3)",
    "text": "string",
    "raw": "binary",
    "day": "date",
    "wall": "timestamp",
    "instant": "timestamp[Europe/Berlin]",
    "list": "list<double>",
    "struct": 'struct<a:int64,"b c":list<binary>,t:timestamp[UTC],d:decimal(5,2)>',
}
UTC = datetime.UTC
ROWS = [
    {
        "id": 1,
        "flag": True,
        "small": -128,
        "large": 2**64 - 1,
        "single": 1.5,
        "double": math.nan,
        "price": Decimal("-12345678901234567.123"),
        "text": 'quo"te, \n"x" ',
        "raw": b"\x00\xff",
        "day": datetime.date(1, 1, 1),
        "wall": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
        "instant": datetime.datetime(2024, 3, 31, 0, 30, tzinfo=UTC),
        "list": [1.0, None, math.inf],
        "struct": {
            "a": 2**63 - 1,
            "b c": [b"a", None],
            "t": datetime.datetime(2024, 1, 1, tzinfo=UTC),
            "d": Decimal("1.20"),
        },
    },
    {"id": 2, **dict.fromkeys(TYPES)},
    {
        "id": 3,
        "flag": False,
        "small": 0,
        "large": 0,
        "single": -math.inf,
        "double": 1e-300,
        "price": Decimal("0.000"),
        "text": "",
        "raw": b"",
        "day": datetime.date(9999, 12, 31),
        "wall": datetime.datetime(9999, 12, 31),
        "instant": datetime.datetime(1900, 1, 1, tzinfo=UTC),
        "list": [],
        "struct": {"a": None, "b c": None, "t": None, "d": None},
    },
    {"id": 4, **dict.fromkeys(TYPES), "text": "NULL", "single": 0.1, "list": [math.nan]},
]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_what_is_written_to_a_file_is_read_back_as_it_was(tmp_path, form):
    root = tmp_path / "store"
    with ts.open(root, maintenance=False) as store:
        for name in ("here", "there"):
            store.create(name, key={"id": "int64"}, value=TYPES, timeline="counter")
        store["here"].append(ROWS)
    data = run("snapshot", root, "here", "--output", form).stdout_bytes
    assert document("append", root, "there", "-", "--format", form, input=data)["rows"] == 4
    with ts.open(root, read_only=True) as store:
        here, there = (store[name].snapshot().to_arrow() for name in ("here", "there"))
    assert repr(there.to_pylist()) == repr(here.to_pylist())


def test_append_says_what_it_did(store, tmp_path):
    (tmp_path / "new.csv").write_text("id,customer,total\n7,eve,1.5\n8,,\n")
    done = document("append", store, "orders", tmp_path / "new.csv", "--at", 10)
    seqno = recorded(store, "orders")[-1]
    assert done == {"rows": 2, "updates": 2, "time": 10, "upper": 11, "seqno": seqno}
    assert run("append", store, "orders", tmp_path / "new.csv").stdout == "2 rows, 2 updates at 11; complete below 12\n"


def test_append_with_times_and_diffs_of_the_rows(store):
    lines = '{"id": 1, "customer": "ann", "total": 12, "_time": 5, "_diff": -1}\n{"id": 5, "_time": 6, "_diff": 2}\n'
    assert document("append", store, "orders", "-", "--format", "json", input=lines)["upper"] == 7
    assert [row["id"] for row in rows("snapshot", store, "orders", "--as-of", 5)] == [3]
    assert [row["id"] for row in rows("snapshot", store, "orders")] == [3, 5, 5]


def test_upsert_takes_the_place_of_rows_with_the_same_key(store):
    run("append", store, "orders", "-", "--format", "csv", "--upsert", input="id,customer,total\n1,ann,99\n")
    assert rows("lookup", store, "orders", "id=1")[0]["total"] == 99.0
    assert "--at" in failure("append", store, "orders", "-", "--upsert", "--at", 9, code=2)


def test_an_array_of_objects_is_json_too(store):
    run("append", store, "orders", "-", "--format", "json", input='\ufeff [{"id": 7}, {"id": 8, "total": 1.0}]')
    assert [row["id"] for row in rows("snapshot", store, "orders")] == [1, 3, 7, 8]


def test_expected_upper_is_a_compare_and_append(store):
    failure(
        "append", store, "orders", "-", "--format", "json", "--expected-upper", 2, "--at", 9, input='{"id": 9}', code=3
    )
    result = run(
        *("append", store, "orders", "-", "--format", "json", "--expected-upper", 2, "--at", 9, "-o", "json"),
        input='{"id": 9}',
        code=3,
    )
    error = json.loads(result.stderr)
    assert (error["error"], error["expected"], error["actual"], error["exit_code"]) == ("UpperMismatch", 2, 3, 3)
    run("append", store, "orders", "-", "--format", "json", "--expected-upper", 3, "--at", 9, input='{"id": 9}')


WRONG = [
    ("csv", "id,customer,total\nx,ann,1\n", "int64"),
    ("csv", "id,customer,total\n1,ann\n", "Expected 3 columns"),
    ("csv", "id,colour\n1,red\n", "'colour'"),
    ("csv", "id,id\n1,2\n", "two columns"),
    ("csv", "", "Empty"),
    ("csv", b"\xff\xfe\x00", "CSV"),
    ("json", '{"id": 1}\nnonsense\n', "line 2"),
    ("json", "[1, 2]", "object 1 is not a JSON object"),
    ("json", '{"id": "seventeen"}', "column 'id'"),
    ("json", '{"id": 1, "total": 1e999}', "column 'total'"),
    ("json", '{"id": 1.5}', "column 'id'"),
    ("json", '{"id": 1, "colour": "red"}', "'colour'"),
    ("json", b'{"id": 1, "customer": "\xff"}', "line 1"),
    ("json", '{"id": 1, "_diff": "x"}', "_diff"),
    ("json", '{"id": 1, "_time": -1}', "below zero"),
    ("json", '{"id": 1, "_time": 0}', "too late"),
    ("parquet", b"PAR1 not really PAR1", "Parquet"),
    ("parquet", b"", "Parquet"),
]


def test_a_file_that_is_wrong_is_refused_whole(store):
    before = seqnos(store)
    for form, data, says in WRONG:
        assert says in failure("append", store, "orders", "-", "--format", form, input=data, code=2), data
    assert len(rows("snapshot", store, "orders")) == 2
    assert document("inspect", store, "orders")["upper"] == 3
    assert seqnos(store)["items"] == before["items"]


def test_values_that_do_not_read_are_named_by_line_and_column(tmp_path):
    root = tmp_path / "store"
    run("init", root)
    run("create", root, "odd", "--key", "id:int64", *("--value", "day:date", "--value", "at:timestamp[UTC]"))
    run("create", root, "raw", "--key", "id:int64", *("--value", "raw:binary", "--value", "list:list<int64>"))
    for name, row, says in (
        ("odd", {"id": 1, "day": "yesterday"}, "line 1: column 'day' is not a date"),
        ("odd", {"id": 1, "day": 3}, "column 'day'"),
        ("odd", {"id": 1, "at": "2024-01-01T00:00:00.1234567Z"}, "column 'at' is not a time"),
        ("odd", {"id": 1, "at": "2024-01-01T00:00:00"}, "zone"),
        ("raw", {"id": 1, "raw": "not base64!"}, "column 'raw' is not base64"),
        ("raw", {"id": 1, "list": {"a": 1}}, "column 'list'"),
    ):
        assert says in failure("append", root, name, "-", "--format", "json", input=json.dumps(row), code=2)
    csv = 'id,raw,list\n1,YQ==,"[1]"\n2,,oops\n'
    assert "line 3: column 'list'" in failure("append", root, "raw", "-", "--format", "csv", input=csv, code=2)
    run("append", root, "raw", "-", "--format", "csv", input='id,raw,list\n1,YQ==,"[1, null]"\n2,,\n')
    assert rows("snapshot", root, "raw")[0] == {"id": 1, "raw": "YQ==", "list": [1, None]}


def test_a_file_must_be_there_and_say_what_it_is(store, tmp_path):
    assert "there is no such file" in failure("append", store, "orders", tmp_path / "nope.csv", code=2)
    assert "--format" in failure("append", store, "orders", "-", code=2)
    assert "--format" in failure("append", store, "orders", tmp_path / "rows.xml", code=2)


def test_load_makes_a_collection_of_parquet(store, tmp_path):
    pq.write_table(pa.table({"id": list(range(50)), "s": ["x"] * 50}), tmp_path / "t.parquet")
    done = document("load", store, "loaded", tmp_path / "t.parquet", "--key", "id", "--timeline", "counter")
    assert (done["rows"], done["upper"]) == (50, 1)
    assert len(rows("snapshot", store, "loaded")) == 50
    assert "exists" in failure("load", store, "loaded", tmp_path / "t.parquet", "--key", "id", code=2)
    run("load", store, "loaded", tmp_path / "t.parquet", "--key", "id", "--cluster", "s", "--replace")
    assert document("describe", store, "loaded")["columns"][1]["cluster"] is True
    (tmp_path / "bad.parquet").write_bytes(b"nonsense")
    failure("load", store, "other", tmp_path / "bad.parquet", code=2)
    failure("load", store, "loaded", tmp_path, "--key", "id", "--replace", code=2)
    assert len(rows("snapshot", store, "loaded")) == 50
    failure("load", store, "other", tmp_path / "nope", code=2)
    failure("load", store, "other", tmp_path / "t.parquet", "--key", "nope", code=2)
