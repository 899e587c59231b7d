"""The verbs about views."""

import json

import pytest
from running import run


@pytest.fixture
def store(tmp_path):
    path = str(tmp_path / "store")
    run("init", path)
    run("create", path, "a", "--key", "k:int64", "--value", "v:int64", "--timeline", "counter")
    rows = tmp_path / "rows.json"
    rows.write_text('{"k": 1, "v": 2}\n{"k": 2, "v": 3}\n')
    run("append", path, "a", str(rows), "--format", "json")
    (tmp_path / "view.sql").write_text("SELECT v % 2 AS odd, sum(v) AS s FROM a GROUP BY v % 2")
    return path


def test_a_view_is_created_refreshed_explained_verified_and_dropped(store, tmp_path):
    made = run("view", "create", store, "sums", "--sql", str(tmp_path / "view.sql"), "--key", "odd")
    assert "incremental" in made.output
    (tmp_path / "more.json").write_text('{"k": 3, "v": 5}\n')
    run("append", store, "a", str(tmp_path / "more.json"), "--format", "json")
    behind = json.loads(run("view", "status", store, "sums", "--output", "json").stdout)
    assert behind["behind"] == 1
    done = json.loads(run("view", "refresh", store, "--output", "json").stdout)
    assert done["sums"]["changes"] == 2
    run("view", "verify", store, "sums")
    assert "changes of a" in run("view", "explain", store, "sums").output
    run("drop", store, "a", code=2)
    run("view", "drop", store, "a", code=2)
    run("view", "drop", store, "sums")
    run("drop", store, "a")


def test_a_view_that_is_refused_exits_with_2_and_all_reasons(store, tmp_path):
    (tmp_path / "bad.sql").write_text("SELECT md5(v) AS m,\n soundex(v) AS n FROM a")
    bad = run("view", "create", store, "bad", "--sql", str(tmp_path / "bad.sql"), "--policy", "incremental", code=2)
    assert "md5" in bad.output
    assert "soundex" in bad.output
