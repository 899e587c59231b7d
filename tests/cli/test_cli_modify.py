"""Verbs that change rows, columns and policies, and those about times: all of them in one commit or not at all."""

import re
from pathlib import Path

import pytest
import typer.main
from running import document, failure, recorded, rows, run, seqnos

import timespine as ts
from timespine.cli.app import app


def ids(store, *args):
    return sorted(row["id"] for row in rows("snapshot", store, "orders", *args))


def test_delete_by_key_by_condition_and_all(store):
    assert ids(store) == [1, 3]
    deleted = document("delete", store, "orders", "id=1")
    assert deleted == {"updates": 1, "time": 3, "upper": 4, "seqno": recorded(store, "orders")[-1]}
    assert ids(store) == [3]
    nothing = document("delete", store, "orders", "id=1")
    assert nothing.pop("seqno") > deleted["seqno"], "the state that was read"
    assert nothing == {"updates": 0, "time": None, "upper": 4}
    assert run("delete", store, "orders", "id=1").stdout == "nothing changed; complete below 4\n"
    assert document("delete", store, "orders", "--where", "total IS NULL")["updates"] == 1
    run("append", store, "orders", "-", "--format", "json", input='{"id": 7}\n{"id": 8}\n')
    assert run("delete", store, "orders", "--all").stdout == "2 updates at 6; complete below 7\n"
    assert ids(store) == []
    assert ids(store, "--as-of", 2) == [1, 3], "history keeps them"


@pytest.mark.parametrize("args", [(), ("id=1", "--where", "id = 1"), ("--all", "--where", "id = 1")])
def test_delete_wants_to_know_which_rows_in_one_way(store, args):
    before = seqnos(store)
    assert "the rows to delete" in failure("delete", store, "orders", *args, code=2)
    assert seqnos(store) == before


def test_delete_wants_the_whole_key(store):
    with ts.open(store) as opened:
        opened.create("pairs", key={"a": "int64", "b": "string"}, timeline="counter").append([{"a": 1, "b": None}])
    assert "for every key column; key columns: a, b" in failure("delete", store, "pairs", "a=1", code=2)
    assert "is not a key column" in failure("delete", store, "orders", "total=1", code=2)
    assert "column 'id': 'x' is not a value of int64" in failure("delete", store, "orders", "id=x", code=2)
    assert document("delete", store, "pairs", "a=1", "--null", "b")["updates"] == 1


def test_update_sets_values_of_the_rows_of_a_condition(store):
    done = document("update", store, "orders", "--set", "customer=anna", "--set", "total=1.5", "--where", "id = 1")
    assert done["updates"] == 2
    assert rows("lookup", store, "orders", "id=1") == [{"id": 1, "customer": "anna", "total": 1.5}]
    run("update", store, "orders", "--null", "customer", "--all")
    assert {row["customer"] for row in rows("snapshot", store, "orders")} == {None}
    before = seqnos(store)
    assert "name a change" in failure("update", store, "orders", "--all", code=2)
    assert "name the rows to change" in failure("update", store, "orders", "--set", "total=1", code=2)
    assert "is not a column" in failure("update", store, "orders", "--set", "nope=1", "--all", code=2)
    assert "column 'total'" in failure("update", store, "orders", "--set", "total=x", "--all", code=2)
    assert "give COLUMN=VALUE" in failure("update", store, "orders", "--set", "total", "--all", code=2)
    assert seqnos(store) == before


def test_replace_exchanges_all_rows_or_those_of_a_condition(store, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("id,customer,total\n1,new,1\n")
    assert document("replace", store, "orders", new, "--where", "id = 1")["updates"] == 2
    assert ids(store) == [1, 3]
    run("replace", store, "orders", new)
    assert rows("snapshot", store, "orders") == [{"id": 1, "customer": "new", "total": 1.0}]
    assert "new.txt has no known suffix" in failure("replace", store, "orders", tmp_path / "new.txt", code=2)


MERGED = [
    ((), {1: "new", 3: None, 9: "nine"}),
    (("--matched", "keep"), {1: "ann", 3: None, 9: "nine"}),
    (("--matched", "delete", "--not-matched", "skip"), {3: None}),
    (("--not-matched-by-source", "delete"), {1: "new", 9: "nine"}),
    (("--matched", "keep", "--not-matched", "skip", "--not-matched-by-source", "delete"), {1: "ann"}),
]


@pytest.mark.parametrize(("args", "expected"), MERGED)
def test_merge_says_for_each_kind_of_row_what_becomes_of_it(store, args, expected):
    lines = '{"id": 1, "customer": "new"}\n{"id": 9, "customer": "nine"}\n'
    before = seqnos(store)["orders"]
    run("merge", store, "orders", "-", "--format", "json", *args, input=lines)
    assert {row["id"]: row["customer"] for row in rows("snapshot", store, "orders")} == expected
    with ts.open(store, read_only=True) as opened:
        (last,) = [each for each in opened["orders"].history() if each.operation == "merge"]
    assert last.rows
    assert seqnos(store)["orders"] > before


def test_a_merge_that_would_do_nothing_is_refused(store, tmp_path):
    args = ("--matched", "keep", "--not-matched", "skip")
    assert "nothing would happen" in failure("merge", store, "orders", tmp_path / "x.csv", *args, code=2)


def test_evolve_adds_drops_renames_and_widens(store):
    changed = (
        "--add",
        "currency:string",
        "--default",
        "currency=EUR",
        "--rename",
        "total=amount",
        "--drop",
        "customer",
    )
    done = document("evolve", store, "orders", *changed)
    assert done == {"schema": 1, "columns": {"id": "int64", "amount": "float64", "currency": "string"}}
    assert rows("lookup", store, "orders", "id=1") == [{"id": 1, "amount": 12.0, "currency": "EUR"}]
    run("create", store, "small", "--key", "id:int32")
    assert run("evolve", store, "small", "--widen", "id:int64").stdout == "schema 1: id:int64\n"
    assert "number 1, not 0" in failure("evolve", store, "small", "--add", "a:date", "--expected", 0, code=3)
    before = seqnos(store)
    assert "name a change" in failure("evolve", store, "orders", code=2)
    assert "column of --add" in failure("evolve", store, "orders", "--default", "a=1", "--drop", "amount", code=2)
    assert "such as total=amount" in failure("evolve", store, "orders", "--rename", "amount", code=2)
    assert "twice" in failure("evolve", store, "orders", "--rename", "amount=a", "--rename", "amount=b", code=2)
    assert "not a value" in failure("evolve", store, "orders", "--add", "n:int64", "--default", "n=x", code=2)
    assert seqnos(store) == before


def test_retain_says_and_changes_how_long_history_is_kept(store):
    run("create", store, "audit", "--key", "id:int64")
    run("create", store, "kept", "--key", "id:int64", "--retain", "for ever")
    run("retain", store, "--for", "30 days")
    assert document("retain", store, "audit") == {"name": "audit", "retain_ms": 30 * 86_400_000, "retain_by": "store"}
    assert document("retain", store, "kept") == {"name": "kept", "retain_ms": None, "retain_by": "collection"}
    text = run("describe", store, "audit").stdout
    assert "kept for 30 days, by the policy of the store, unless expired" in text
    said = run("retain", store, "audit", "--for", "ever").stdout
    assert said == "history of audit is kept for ever, by its own policy, unless expired\n"
    assert "kept for ever, by its own policy" in run("describe", store, "audit").stdout
    assert document("retain", store, "audit", "--for", "2 hours")["retain_ms"] == 7_200_000
    assert document("retain", store, "audit", "--for", "store")["retain_by"] == "store"
    assert document("retain", store)["retain_ms"] == 30 * 86_400_000
    assert document("retain", store, "--for", "ever")["retain_ms"] is None
    assert run("retain", store, "--for", "for ever").stdout == run("retain", store).stdout
    assert run("retain", store).stdout == "history is kept for ever, unless a collection has a policy of its own\n"
    assert document("describe", store, "audit")["retain_by"] == "none"
    assert "give --for a duration, or --for ever" in failure("retain", store, "--for", "store", code=2)
    assert "is not a duration" in failure("retain", store, "audit", "--for", "a while", code=2)
    assert "wall clock" in failure("retain", store, "orders", "--for", "1 day", code=2)


# Times.


def test_unsealed_prints_what_is_not_sealed_yet(store):
    lines = '{"id": 7, "_time": 5}\n{"id": 8, "_time": 9}\n'
    run("write", store, "orders", "-", "--format", "json", input=lines)
    found = rows("unsealed", store, "orders")
    assert [(row["id"], row["_time"], row["_diff"]) for row in found] == [(7, 5, 1), (8, 9, 1)]
    assert [row["id"] for row in rows("unsealed", store, "orders", "--from", 6)] == [8]
    assert [row["id"] for row in rows("unsealed", store, "orders", "--before", 6, "--columns", "id")] == [7]
    assert rows("unsealed", store, "orders", "--where", "id = 8", "--limit", 0) == []
    run("seal", store, "orders", "--at", 6)
    assert [row["id"] for row in rows("unsealed", store, "orders")] == [8]


def test_seal_idle_seals_what_is_behind_and_seal_may_ignore_what_is_not(store):
    sealed = document("seal", store, "orders", "--at", 9)
    assert sealed == {"upper": {"orders": 9}, "seqno": {"orders": recorded(store, "orders")[-1]}}
    assert "sealed up to" in failure("seal", store, "orders", "--at", 5, code=2)
    ignored = run("seal", store, "orders", "--at", 5, "--if-behind", "ignore")
    assert ignored.stdout == "orders is complete below 9\n"
    run("create", store, "clocked", "--key", "id:int64")
    reached = document("seal-idle", store, "--at", "2024-01-31T12:00:00Z")["upper"]
    assert reached == 1706702400000
    assert {each["name"]: each["upper"] for each in document("list", store)} == {
        "clocked": reached,
        "items": 1,
        "orders": 9,
    }
    assert document("seal-idle", store)["upper"] > reached
    assert "one time" in failure("seal-idle", store, "--at", "1,2", code=2)


def test_frontiers_are_printed_as_they_are_typed(store):
    run("create", store, "prices", "--key", "id:int64", "--time-coordinates", 2, "--timeline", "counter")
    made = ("write", store, "prices", "-", "--format", "json")
    assert run(*made, "--at", "0,3", input='{"id": 1}').stdout == "1 row, 1 update from 0,3 up to 0,3\n"
    many = '{"id": 1, "_time_0": 1, "_time_1": 2}\n{"id": 2, "_time_0": 2, "_time_1": 1}\n'
    assert run(*made, input=many).stdout == "2 rows, 2 updates up to 2,2\n"
    sealed = run("seal", store, "prices", "--at", "3,0", "--at", "0,4").stdout
    assert sealed == "prices is complete below 0,4 and 3,0\n"
    assert "0,4 and 3,0" in run("inspect", store, "prices").stdout
    for verb in ("describe", "history"):
        assert "0,4 and 3,0" in run(verb, store, "prices").stdout
    assert "0,4 and 3,0" in run("list", store).stdout
    found = {each["name"]: each["upper"] for each in document("list", store)}
    assert found["prices"] == [[0, 4], [3, 0]], "JSON keeps lists"
    line = failure("snapshot", store, "prices", "--as-of", "9,9", code=3)
    assert line.startswith("error: 9,9 is not complete yet: the collection is sealed up to 0,4 and 3,0; ")
    assert run("expire", store, "prices", "--before", "1,1").stdout == "readable from 1,1 on\n"
    line = failure("snapshot", store, "prices", "--as-of", "0,0", code=3)
    assert line.endswith("history is exact from 1,1 on; ask for a time at or after 1,1")


def test_a_delete_that_names_rows_twice_is_told_so(store):
    assert "error: name the rows to delete: " in failure("delete", store, "orders", code=2)
    line = failure("delete", store, "orders", "id=1", "--where", "id = 1", code=2)
    assert line.startswith("error: name the rows to delete in one way: ")


def test_times_of_several_coordinates(store):
    run("create", store, "prices", "--key", "id:int64", "--time-coordinates", 2, "--timeline", "counter")
    assert document("describe", store, "prices")["coordinates"] == 2
    assert "a counter, 2 coordinates" in run("describe", store, "prices").stdout
    line = '{"id": 1}'
    args = ("--format", "json", "--at", "1,2", "--upper", "3,0", "--upper", "0,3")
    assert document("append", store, "prices", "-", *args, input=line)["upper"] == [[0, 3], [3, 0]]
    assert rows("snapshot", store, "prices", "--as-of", "2,2") == [{"id": 1}]
    assert document("seal", store, "prices", "--at", "5,0", "--at", "0,3")["upper"] == {"prices": [[0, 3], [5, 0]]}
    expecting = ("--format", "json", "--at", "6,6", "--upper", "9,9", "--expected-upper")
    failure("append", store, "prices", "-", *expecting, "1,1", input=line, code=3)
    done = document("append", store, "prices", "-", *expecting, "5,0", "--expected-upper", "0,3", input=line)
    assert done["upper"] == [[9, 9]]
    assert document("expire", store, "prices", "--before", "2,0", "--before", "0,2")["since"] == [[0, 2], [2, 0]]
    assert "none that is before another" in failure("seal", store, "prices", "--at", "9,9", "--at", "10,10", code=2)
    failure("create", store, "many", "--key", "id:int64", "--time-coordinates", 9, code=2)


def test_a_read_after_expire_ahead_ends_with_its_wait_and_writes_little(store):
    assert document("expire", store, "orders", "--before", 8, "--ahead")["since"] == 8
    for verb in (("snapshot",), ("changes",), ("lookup", "id=1")):
        before = seqnos(store)["orders"]
        name, *rest = verb
        line = failure(name, store, "orders", *rest, code=3)
        assert "nothing can be read before 8 is complete" in line
        assert "earlier time" not in line
        assert seqnos(store)["orders"] - before <= 6, "a session that comes and goes, and its one lease"
    run("seal", store, "orders", "--at", 9)
    assert ids(store) == [1, 3]


# Looking.


def test_lookup_by_the_first_columns_of_a_key_and_by_a_range(store):
    with ts.open(store) as opened:
        visits = opened.create("visits", key={"tenant": "string", "n": "int64"}, timeline="counter")
        visits.append([{"tenant": tenant, "n": n} for tenant in ("a", "b") for n in range(5)])

    def found(*args):
        return [(row["tenant"], row["n"]) for row in rows("lookup", store, "visits", *args)]

    assert found("tenant=a") == [("a", n) for n in range(5)]
    assert found("tenant=a", "n=3") == [("a", 3)]
    assert found("tenant=a", "--low", "n=3") == [("a", 3), ("a", 4)]
    assert found("tenant=b", "--low", "n=1", "--high", "n=2") == [("b", 1), ("b", 2)]
    assert found("--low", "tenant=a", "--low", "n=4", "--high", "tenant=b", "--high", "n=0") == [("a", 4), ("b", 0)]
    assert "from the first on; key columns: tenant, n" in failure("lookup", store, "visits", "n=1", code=2)
    assert "name the rows" in failure("lookup", store, "visits", code=2)
    assert "an end of a range names the key columns n" in failure(
        "lookup", store, "visits", "tenant=a", "--low", "tenant=b", code=2
    )
    assert "is not a key column" in failure("lookup", store, "visits", "--high", "v=1", code=2)


def test_metrics_are_those_of_the_whole_store(store, tmp_path):
    found = document("metrics", store)
    with ts.open(store, read_only=True) as opened:
        states = [opened[name]._handle.state() for name in opened.names()]
        blobs = sum(1 for state in states for part in state.parts() if part.key)
    assert found["trace blobs"] == blobs > 0
    assert found["commands failed"] == 0
    assert "trace blobs" in run("metrics", store).stdout
    before = seqnos(store)
    table = tmp_path / "metrics.csv"
    run("metrics", store, "--to", table)
    assert table.read_text().splitlines()[0] == '"name","value"'
    assert seqnos(store) == before


def test_the_guide_names_every_verb():
    page = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    table = page[page.index("| about | verbs |") :].split("\n\n")[0]
    named = re.findall(r"`([a-z-]+)`", table)
    verbs = typer.main.get_command(app).commands
    assert sorted(named) == sorted(verbs)
