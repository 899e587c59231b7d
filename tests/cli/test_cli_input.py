"""What is wrong with a file is told with its name, line and column; what is right is read as it is meant."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running import document, failure, rows, run

FILES = [
    ("x.jsonl", '{"id": 1}\n\n{"id": "seventeen"}\n', "line 3: column 'id': it holds a text where int64"),
    ("x.jsonl", '{"id": 1}\n{"id": 1.5}\n', "line 2: column 'id': it does not fit int64"),
    ("x.jsonl", '{"id": 1}\n{"id": 99999999999999999999}\n', "line 2: column 'id'"),
    ("x.jsonl", '{"id": true}\n', "line 1: column 'id': it holds true or false"),
    ("x.jsonl", '{"id": 1, "total": 1e999}\n', "line 1: column 'total': it holds a number that is too large"),
    ("x.jsonl", '{"id": 1}\n{"id": 2, "colour": 1}\n', "line 2: the rows have a column 'colour'"),
    ("x.jsonl", '{"id": 1}\n{"id": 2, "total": 1, "id": 3}\n', "line 2: 'id' is repeated"),
    ("x.jsonl", '{"id": 1, "customer": {"a": 1, "a": 2}}\n', "line 1: 'a' is repeated"),
    ("x.jsonl", '{"id": ' + "[" * 100_000 + "\n", "line 1 is not a JSON object"),
    ("x.json", '[{"id": 1},\n {"id": 2, "id": 3}]', "object 2: 'id' is repeated"),
    ("x.json", '[{"id": 1},\n {"id": "x"}]', "object 2: column 'id'"),
    ("x.json", "[" * 100_000, "not an array of objects"),
    ("x.csv", "id,total\n1,2\nx,3\n", "line 3: column 'id': CSV conversion error to int64: invalid value 'x'"),
    ("x.csv", 'id,customer\n1,"a\nb"\n\n2,c\nx,d\n', "line 6: column 'id'"),
    ("x.csv", "id,total\n1,2\n3\n", "line 3: Expected 2 columns, got 1"),
    ("x.csv", "colour,id\nred,1\n", "a column 'colour'"),
    ("x.csv", "", "Empty"),
]


@pytest.mark.parametrize(("name", "text", "says"), FILES)
def test_what_is_wrong_is_named_by_file_and_line(store, tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    line = failure("append", store, "orders", tmp_path / name, code=2)
    assert f"{tmp_path / name}: " in line
    assert says in line
    result = run("append", store, "orders", "-", "--format", name.split(".")[1][:4], input=text, code=2)
    assert f"standard input: {says}" in result.stderr or says in result.stderr


def test_a_row_in_the_middle_of_many_is_found(store, tmp_path):
    lines = [json.dumps({"id": i, "customer": "a"}) for i in range(5000)]
    lines[3210] = json.dumps({"id": 3210, "customer": 5})
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    assert "line 3211: column 'customer'" in failure("append", store, "orders", tmp_path / "x.jsonl", code=2)
    (tmp_path / "x.csv").write_text("id\n" + "".join(f"{i if i != 400_000 else 'x'}\n" for i in range(500_000)))
    assert "line 400002: column 'id'" in failure("append", store, "orders", tmp_path / "x.csv", code=2)


def test_a_cell_of_a_list_is_named_by_its_line(tmp_path):
    run("init", tmp_path / "store")
    run("create", tmp_path / "store", "lists", "--key", "id:int64", "--value", "list:list<int64>")
    text = 'id,list\n1,"[1]"\n2,"[""x""]"\n'
    line = failure("append", tmp_path / "store", "lists", "-", "--format", "csv", input=text, code=2)
    assert "line 3: column 'list': it holds a text where int64 is needed" in line


def test_colons_in_texts_are_no_names(store):
    text = '{"id": 7, "customer": "a: \\"id\\": b"}\n[]'.splitlines()[0]
    run("append", store, "orders", "-", "--format", "json", input=text)
    assert rows("lookup", store, "orders", "id=7")[0]["customer"] == 'a: "id": b'


def test_a_cell_may_be_long(store, tmp_path):
    (tmp_path / "x.csv").write_text(f"id,customer\n7,{'x' * 3_000_000}\n")
    run("append", store, "orders", tmp_path / "x.csv")
    assert len(rows("lookup", store, "orders", "id=7")[0]["customer"]) == 3_000_000


def test_a_parquet_file_is_named_with_the_row(store, tmp_path):
    pq.write_table(pa.table({"id": [1.0, 2.0, 2.5]}), tmp_path / "x.parquet")
    line = failure("append", store, "orders", tmp_path / "x.parquet", code=2)
    assert f"{tmp_path / 'x.parquet'}: column 'id': row 3 does not fit int64" in line


@pytest.mark.parametrize("how", [(), ("--upsert",)])
def test_rows_need_the_key(store, tmp_path, how):
    (tmp_path / "x.csv").write_text("customer,total\nann,1\n")
    pq.write_table(pa.table({"customer": ["ann"]}), tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        line = failure("append", store, "orders", tmp_path / name, *how, code=2)
        assert f"{tmp_path / name}: there is no column 'id'" in line
    (tmp_path / "x.jsonl").write_text('{"id": 1}\n{"customer": "ann"}\n')
    line = failure("append", store, "orders", tmp_path / "x.jsonl", *how, code=2)
    assert "line 2: there is no 'id'" in line
    assert document("inspect", store, "orders")["upper"] == 3


def test_a_load_names_the_file_that_does_not_fit(store, tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), tmp_path / "t" / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([3, 2**40], pa.int64())}), tmp_path / "t" / "b.parquet")
    line = failure("load", store, "loaded", tmp_path / "t", "--key", "id", code=2)
    assert f"{tmp_path / 't' / 'b.parquet'}: column 'id': row 2 does not fit int32" in line
    assert "loaded" not in document("list", store)[0]["name"]


def test_a_load_of_rows_with_times_says_what_to_do(store, tmp_path):
    pq.write_table(pa.table({"id": [1], "_time": [5]}), tmp_path / "t.parquet")
    line = failure("load", store, "loaded", tmp_path / "t.parquet", "--key", "id", code=2)
    assert "column _time" in line
    assert "append" in line


def test_a_null_key_is_looked_up(store):
    run("append", store, "orders", "-", "--format", "json", input='{"id": null, "customer": "nobody"}')
    assert rows("lookup", store, "orders", "--null", "id")[0]["customer"] == "nobody"
    run("create", store, "pairs", "--key", "a:int64", "--key", "b:string")
    run("append", store, "pairs", "-", "--format", "json", input='{"a": 1, "b": null}\n{"a": 1, "b": ""}')
    assert rows("lookup", store, "pairs", "a=1", "--null", "b") == [{"a": 1, "b": None}]
    assert rows("lookup", store, "pairs", "a=1", "b=") == [{"a": 1, "b": ""}]
    assert "twice" in failure("lookup", store, "orders", "id=1", "--null", "id", code=2)
    assert "--null COLUMN" in failure("lookup", store, "orders", code=2)
    assert "key columns: a, b" in failure("lookup", store, "pairs", "--null", "b", code=2)
    assert "--null" in run("lookup", "--help").stdout
