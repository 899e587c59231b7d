"""The verbs around the data: collections, holds, expiry, upkeep, looking inside, the doctor."""

import json

import pyarrow.parquet as pq
import pytest
from running import document, failure, part_of, rows, run, seqnos

import timespine as ts


def test_init_makes_a_store_once_and_only_where_nothing_else_is(tmp_path):
    root = tmp_path / "a" / "store"
    assert document("init", root) == {"store": str(root), "created": True}
    assert document("init", root) == {"store": str(root), "created": False}
    assert document("list", root) == []
    (tmp_path / "file").write_text("")
    failure("init", tmp_path / "file", code=2)
    failure("init", tmp_path, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file"]


def test_create_list_describe_rename_drop(store):
    args = ("--key", "id:int64", "--value", "info:struct<a:int64>", "--value", "region:string", "--cluster", "region")
    run("create", store, "new", *args, "--retain", "7 days")
    found = document("describe", store, "new")
    assert found["retain_ms"] == 7 * 86_400_000
    assert found["timeline"] == "clock"
    assert [(each["name"], each["type"], each["role"], each["cluster"]) for each in found["columns"]] == [
        ("id", "int64", "key", False),
        ("info", "struct<a:int64>", "value", False),
        ("region", "string", "value", True),
    ]
    assert (found["retain_by"], found["history"]) == (
        "collection",
        "kept for 7 days, by its own policy, unless expired",
    )
    assert "kept for 7 days, by its own policy" in run("describe", store, "new").stdout
    assert "exists" in failure("create", store, "new", *args, code=2)
    assert "another schema" in failure("create", store, "new", "--key", "x:int64", "--if-not-exists", code=2)
    assert document("create", store, "new", *args, "--if-not-exists")["id"] == found["id"]
    assert document("create", store, "new", *args, "--replace")["id"] != found["id"]
    run("rename", store, "new", "newer")
    assert [each["name"] for each in document("list", store)] == ["items", "newer", "orders"]
    assert document("drop", store, "newer") == {"dropped": "newer", "before": False}
    assert document("drop", store, "newer") == {"dropped": "newer", "before": True}
    assert run("drop", store, "newer").stdout == "newer was dropped before\n"
    assert "there is no collection never" in failure("drop", store, "never", code=2)
    run("maintain", store)
    assert [each["name"] for each in document("list", store)] == ["items", "orders"]


def test_collections_of_one_and_of_several_coordinates_are_listed_together(store):
    run("create", store, "prices", "--key", "id:int64", "--time-coordinates", "2", "--timeline", "counter")
    run("seal", store, "prices", "--at", "3,0", "--at", "0,3")
    for more in ((), ("-v",), ("-o", "csv")):
        assert "prices" in run("list", store, *more).stdout


def test_what_a_collection_costs_is_listed_described_and_inspected(store):
    run("create", store, "quick", "--key", "id:int64", "--forget-within", "2 hours")
    (quick,) = (each for each in document("list", store, "-v") if each["name"] == "quick")
    assert (quick["write_amplification"], quick["read_amplification"], quick["garbage_bytes"]) == (0.0, 0, 0)
    assert quick["log_bytes"] > 0
    assert "write_amplification" not in document("list", store)[0]
    found = document("describe", store, "quick")
    assert (found["forget_within_ms"], found["amplification"]["appended_rows"]) == (7_200_000, 0)
    assert "forgotten" in run("describe", store, "quick").output
    assert "amplification" in run("inspect", store, "quick").output


def test_a_collection_under_a_critical_hold_is_dropped_by_force_alone(store):
    run("hold", store, "orders", "add", "backup")
    line = failure("drop", store, "orders", code=2)
    assert "critical holds (backup); release them, or add --force to drop it anyway" in line
    line = failure("create", store, "orders", "--key", "id:int64", "--replace", code=2)
    assert "drop it first with `timespine drop --force`" in line
    run("drop", store, "orders", "--force")
    line = failure("create", store, "orders", "--key", "id:int64", code=2)
    assert "was dropped, and its name stays blocked; add --replace to give it again" in line
    assert "give another name" in failure("rename", store, "items", "orders", code=2)
    run("create", store, "orders", "--key", "id:int64", "--replace")
    assert [each["name"] for each in document("list", store)] == ["items", "orders"]


@pytest.mark.parametrize(
    "args",
    [
        ("../evil", "--key", "id:int64"),
        ("", "--key", "id:int64"),
        ("-x", "--key", "id:int64"),
        ("a b", "--key", "id:int64"),
        ("x" * 200, "--key", "id:int64"),
        ("ok",),
        ("ok", "--key", "id"),
        ("ok", "--key", ":int64"),
        ("ok", "--key", "id:"),
        ("ok", "--key", "id:int65"),
        ("ok", "--key", "id:int64", "--key", "id:string"),
        ("ok", "--key", "id:int64", "--value", "ID:int64"),
        ("ok", "--key", "_time:int64"),
        ("ok", "--key", "id:list<int64>"),
        ("ok", "--key", "id:int64", "--cluster", "nope"),
        ("ok", "--key", "id:int64", "--timeline", "sundial"),
        ("ok", "--key", "id:int64", "--retain", "a while"),
        ("ok", "--key", "id:int64", "--retain", "7 days", "--timeline", "counter"),
    ],
)
def test_a_collection_that_makes_no_sense_is_refused(original, args):
    failure("create", original, *args, code=2)
    assert not (original / "blobs" / "ok").exists()


def test_history(store):
    assert [entry["operation"] for entry in document("history", store, "orders")] == ["append", "upsert", "delete"]


def test_expire_forgets_and_says_who_holds(store):
    token = document("hold", store, "orders", "add", "report", "--as-of", 1)["token"]
    assert token
    done = document("expire", store, "orders", "--before", 2)
    assert (done["asked"], done["since"], done["held_by"]) == (2, 1, ["hold report"])
    failure("snapshot", store, "orders", "--as-of", 0, code=3)
    run("snapshot", store, "orders", "--as-of", 1)
    listed = document("hold", store, "orders", "list")
    assert [(each["kind"], each["name"], each["since"]) for each in listed] == [
        ("retention", None, 2),
        ("hold", "report", 1),
    ]
    assert token not in json.dumps(listed)
    failure("hold", store, "orders", "release", "report", "--token", "wrong", code=4)
    failure("hold", store, "orders", "release", "report", code=2)
    failure("hold", store, "orders", "release", "nope", "--token", token, code=2)
    failure("hold", store, "orders", "release", code=2)
    failure("hold", store, "orders", "release-before", "report", "--token", token, code=2)
    assert document("hold", store, "orders", "release", "report", "--token", token)["since"] == 2
    failure("hold", store, "orders", "add", "late", "--as-of", 0, code=3)
    token = document("hold", store, "orders", "add", "again")["token"]
    run("hold", store, "orders", "release-before", "again", "--token", token, "--as-of", 2)


def test_compact_and_maintain(store):
    before = rows("snapshot", store, "orders", "--as-of", 0)
    done = document("compact", store, "orders")
    assert done["runs"] == 1
    assert rows("snapshot", store, "orders", "--as-of", 0) == before
    assert document("maintain", store, "orders")["failures"] == 0
    assert "merge" in run("maintain", store, "--sweep").stdout


def test_vacuum_lists_and_only_deletes_when_told(store):
    with ts.open(store, read_only=True) as opened:
        id = opened["orders"].id
    leaked = store / "blobs" / id / "wgone" / "pleaked"
    leaked.parent.mkdir(parents=True)
    leaked.write_bytes(b"leaked")
    before = seqnos(store)
    found = document("vacuum", store)
    assert seqnos(store) == before
    assert (found["blobs"], found["bytes"], found["deleted"]) == ([f"{id}/wgone/pleaked"], 6, False)
    assert leaked.exists()
    assert "--delete" in run("vacuum", store).stdout
    assert run("vacuum", store, "-o", "csv").stdout.splitlines()[1] == f'"{id}/wgone/pleaked"'
    assert document("vacuum", store, "--delete")["deleted"] is True
    assert not leaked.exists()
    assert len(rows("snapshot", store, "orders")) == 2


def test_inspect_every_view(store, tmp_path):
    assert document("inspect", store, "orders")["batches"] == 3
    assert [each["rows"] for each in document("inspect", store, "orders", "batches")] == [2, 3, 1]
    assert document("inspect", store, "orders", "levels")
    assert document("inspect", store, "orders", "holds") == [
        {"holder": "retention", "since": 0, "holds_back": True},
    ]
    diffs = document("inspect", store, "orders", "diffs")
    assert diffs[0]["kind"] == "state"
    assert [each["seqno"] for each in diffs] == list(range(len(diffs)))
    assert any("upper" in each["changes"] for each in diffs[1:])
    run("inspect", store, "orders", "parts", "--to", tmp_path / "parts.parquet")
    assert pq.read_table(tmp_path / "parts.parquet").column("inline").to_pylist() == [True] * 3
    assert "--output" in failure("inspect", store, "orders", "-o", "csv", code=2)


def test_inspect_one_part(store):
    (part,) = document("inspect", store, "items", "parts")
    found = document("inspect", store, "items", "part", part["key"])
    assert (found["rows"], found["bytes"]) == (3000, part["bytes"])
    assert sum(group["rows"] for group in found["groups"]) == 3000
    assert document("inspect", store, "items", "part", part["key"][-6:]) == found
    assert "sorted:" in run("inspect", store, "items", "part", part["key"]).stdout
    failure("inspect", store, "items", "part", "nope", code=2)
    failure("inspect", store, "items", "part", code=2)
    failure("inspect", store, "items", "state", "key", code=2)
    failure("inspect", store, "items", "entrails", code=2)


def test_the_doctor_finds_a_flipped_byte(store):
    assert document("doctor", store)["is_sound"] is True
    part = part_of(store, "items")
    data = bytearray(part.read_bytes())
    data[200] ^= 1
    part.write_bytes(data)
    result = run("doctor", store, "-o", "json", code=6)
    (found,) = json.loads(result.stdout)["findings"]
    assert (found["kind"], found["collection"], found["what"]) == ("damaged", "items", "part")
    assert found["key"].endswith(part.name)
    assert run("doctor", store, code=6).stdout.startswith("damaged: part of items: ")
    assert run("doctor", store, "-o", "csv", code=6).stdout.count("\n") == 2
    run("doctor", store, "orders")
    assert "doctor" in failure("snapshot", store, "items", code=6)
    run("snapshot", store, "orders")


def test_the_doctor_finds_a_missing_part(store):
    part_of(store, "items").unlink()
    (found,) = json.loads(run("doctor", store, "-o", "json", code=6).stdout)["findings"]
    assert (found["kind"], found["what"]) == ("missing", "part")
    failure("snapshot", store, "items", code=6)
    failure("doctor", store, "nope", code=2)


def test_a_store_whose_log_lost_commits_is_refused_until_the_loss_is_accepted(tmp_path):
    root = tmp_path / "store"
    with ts.open(root, maintenance=False) as store:
        made = store.create("items", key={"id": "int64"}, timeline="counter")
        made.append([{"id": 1}])
    older = (root / "consensus.db").read_bytes()
    with ts.open(root, maintenance=False) as store:
        store["items"].append([{"id": 2}])
    (root / "consensus.db").write_bytes(older)
    with pytest.raises(ts.errors.CorruptionError, match="lost"):
        ts.open(root)
    for verb in ("doctor", "list"):
        assert "--accept-loss" in failure(verb, root, code=6)
    result = run("doctor", root, "--accept-loss")
    assert "accepted: " in result.stderr
    assert "all as it was written" in result.stdout
    assert [row["id"] for row in rows("snapshot", root, "items")] == [1]
