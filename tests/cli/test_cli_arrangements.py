"""The verbs about checkpoints of arrangements."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from running import document, failure, rows, run

import timespine as ts
from timespine.columnar.schema.schema import define


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of rows by customer and id, with all their times."""
    root = tmp_path_factory.mktemp("arrangements")
    with ts.open(root / "store", maintenance=False) as store:
        value = {"customer": "string", "total": "double"}
        orders = store.create("orders", key={"id": "int64"}, value=value, timeline="counter")
        orders.append([{"id": n, "customer": "ada" if n % 2 else "bob", "total": 10.0 * n} for n in range(1, 6)])
        with orders.arrange(by=["customer", "id"], history="all", folder=root / "index") as index:
            orders.upsert([{"id": 3, "customer": "bob", "total": 31.0}, {"id": 6, "customer": None, "total": None}])
            assert index.get_one(("bob", 3))
            index.save()
    return root / "index"


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "index")


def test_a_checkpoint_is_shown_with_its_levels_and_files(folder):
    found = document("arrangement", "show", folder)
    assert found["arranged_by"] == ["customer", "id"]
    assert (found["since"], found["upper"], found["collection"].partition("-")[0]) == (0, 2, "orders")
    assert found["columns"] == {"id": "int64", "customer": "string", "total": "double"}
    on_disk = {path.name: path.stat().st_size for path in folder.glob("*.batch")}
    assert on_disk == {each["file"]: each["size"] for each in found["files"]}
    total = {name: sum(each[name] for each in found["files"]) for name in ("rows", "negatives", "size")}
    assert total["rows"] == found["rows"] == 8
    assert total["negatives"] == 1
    assert found["levels"] == [{"level": 0, "files": len(on_disk), **total}]
    text = run("arrangement", "show", folder, "--verify").stdout
    assert "arranged by: customer, id" in text
    assert all(name in text for name in on_disk)


def test_the_rows_of_a_key_and_of_a_part_of_it(folder):
    assert [row["id"] for row in rows("arrangement", "get", folder, "customer=bob")] == [2, 3, 4]
    assert rows("arrangement", "get", folder, "id=3", "customer=bob", "--columns", "total") == [{"total": 31.0}]
    assert [row["id"] for row in rows("arrangement", "get", folder, "--null", "customer")] == [6]
    assert rows("arrangement", "get", folder, "customer=eve") == []
    assert [row["id"] for row in rows("arrangement", "get", folder, "customer=ada", "--as-of", "0")] == [1, 3, 5]


def test_a_range_of_keys_in_order(folder, tmp_path):
    assert [row["id"] for row in rows("arrangement", "scan", folder)] == [6, 1, 5, 2, 3, 4]
    ends = ("--low", "customer=ada", "--low", "id=5", "--high", "customer=bob", "--high", "id=3")
    assert [row["id"] for row in rows("arrangement", "scan", folder, *ends)] == [5, 2, 3]
    assert [row["id"] for row in rows("arrangement", "scan", folder, "--high", "customer=ada")] == [6, 1, 5]
    assert len(rows("arrangement", "scan", folder, "--limit", "2", "--as-of", "0")) == 2
    run("arrangement", "scan", folder, "--to", tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").column("id").to_pylist() == [6, 1, 5, 2, 3, 4]


def test_rows_that_count_other_than_once(tmp_path):
    with ts.arrangement.Spine(define({"word": "string"}, {}), folder=tmp_path / "words") as spine:
        spine.insert([{"word": "tick", "_time": 0, "_diff": 2}, {"word": "tack", "_time": 1, "_diff": -1}])
        spine.save()
    folder = tmp_path / "words"
    assert [row["word"] for row in rows("arrangement", "scan", folder, "--as-of", "0")] == ["tick", "tick"]
    counted = rows("arrangement", "scan", folder, "--multiplicity", "column")
    assert [(row["word"], row["_diff"]) for row in counted] == [("tack", -1), ("tick", 2)]
    assert "--multiplicity column" in failure("arrangement", "get", folder, "word=tack", code=2)
    assert "collection:  none" in run("arrangement", "show", folder).stdout


def test_mistakes_say_what_to_do(folder, tmp_path):
    assert "save a checkpoint there first" in failure("arrangement", "show", tmp_path / "none", code=2)
    assert "is empty: give a path" in failure("arrangement", "show", "", code=2)
    assert "name the rows" in failure("arrangement", "get", folder, code=2)
    assert "from the first on: customer, id" in failure("arrangement", "get", folder, "id=3", code=2)
    assert "there is no column 'nope'" in failure("arrangement", "scan", folder, "--columns", "nope", code=2)
    assert "7 is not complete yet" in failure("arrangement", "scan", folder, "--as-of", "7", code=3)


def test_a_damaged_file_is_an_error_and_not_fewer_rows(folder):
    path = max(folder.glob("*.batch"), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[64 + len(data) // 8] ^= 1
    path.write_bytes(data)
    assert json.loads(run("arrangement", "show", folder, "--output", "json").stdout)["rows"] == 8
    failure("arrangement", "show", folder, "--verify", code=6)
    failure("arrangement", "scan", folder, code=6)
    path.unlink()
    failure("arrangement", "show", folder, code=6)
