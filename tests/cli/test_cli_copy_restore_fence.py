"""The verbs that operate a store: copy, promote, restore, fence, keep-deleted."""

import time

from running import document, failure, rows, run

import timespine as ts


def test_a_copy_is_made_again_promoted_and_refused_then(store, tmp_path):
    first = document("copy", store, tmp_path / "copy")
    assert first["copied_blobs"] == first["blobs"]
    assert document("copy", store, tmp_path / "copy", "--verify-full", "--read-only")["copied_blobs"] == 0
    assert "copied 0 files" in run("copy", store, tmp_path / "copy").stdout
    name = document("list", store)[0]["name"]
    assert rows("snapshot", tmp_path / "copy", name) == rows("snapshot", store, name)
    assert "timespine promote" in failure("drop", tmp_path / "copy", name, code=2)
    assert document("promote", tmp_path / "copy")["origin"] == first["origin"]
    assert rows("snapshot", tmp_path / "copy", name) == rows("snapshot", store, name)
    assert "store of its own" in failure("copy", store, tmp_path / "copy", code=2)
    assert "store of its own" in failure("promote", tmp_path / "copy", code=2)
    failure("copy", store, "", code=2)


def test_a_dropped_collection_is_restored(tmp_path):
    data = tmp_path / "data"
    run("init", data)
    assert document("keep-deleted", data) == {"keep_deleted_ms": None}
    assert "for 7 days" in run("keep-deleted", data, "--for", "7 days").stdout
    run("create", data, "orders", "--key", "id:int64", "--timeline", "counter")
    run("append", data, "orders", "-", "--format", "json", input='{"id": 1}\n')
    time.sleep(0.002)
    moment = int(time.time() * 1000)
    time.sleep(0.002)
    run("drop", data, "orders")
    run("maintain", data, "--sweep")
    run("vacuum", data, "--delete")
    done = document("restore", data, "--to", moment, "--into", tmp_path / "into")
    assert done["copied"]["blobs"] == 0, "the rows are in the log"
    assert rows("snapshot", tmp_path / "into", "orders") == [{"id": 1}]
    assert "1 collection" in run("restore", data, "--to", str(moment)).stdout
    assert rows("snapshot", data, "orders") == [{"id": 1}]
    seqno = done["collections"]["orders"]
    assert document("restore", data, "--to", f"orders@{seqno}")["epoch"] == 2
    assert document("fence", data)["epoch"] == 3
    assert document("keep-deleted", data, "--for", "nothing") == {"keep_deleted_ms": None}
    for to in ("orders@", "@5", "orders@x", "soon", "1,2"):
        failure("restore", data, "--to", to, code=2)
    with ts.open(data) as opened:
        assert opened.names() == ["orders"]
