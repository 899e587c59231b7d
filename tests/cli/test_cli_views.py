"""The verbs about views."""

import json

import pytest
from running import failure, run


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


def test_views_are_followed_until_the_timeout(store, tmp_path):
    run("view", "create", store, "sums", "--sql", str(tmp_path / "view.sql"), "--key", "odd")
    (tmp_path / "more.json").write_text('{"k": 3, "v": 5}\n')
    run("append", store, "a", str(tmp_path / "more.json"), "--format", "json")
    told = run("view", "follow", store, "--every", "1 s", "--timeout", "0.1", "--output", "json")
    (line,) = [json.loads(each) for each in told.stdout.splitlines()]
    assert (line["name"], line["how"], line["changes"]) == ("sums", "changes", 2)
    assert json.loads(run("view", "status", store, "sums", "--output", "json").stdout)["behind"] == 0
    run("view", "follow", store, "nope", "--timeout", "0.1", code=2)


def test_a_view_is_explained_before_it_is_created_replaced_and_rebuilt(store, tmp_path):
    sql = str(tmp_path / "view.sql")
    assert "stage 1 (hidden): group by" in run("view", "explain", store, "sums", "--sql", sql).output
    run("view", "status", store, "sums", code=2)
    run("view", "create", store, "sums", "--sql", sql, "--times", "every")
    run("view", "create", store, "sums", "--sql", sql, code=2)
    run("view", "create", store, "sums", "--sql", sql, "--key", "odd", "--policy", "incremental_strict", "--replace")
    done = json.loads(run("view", "rebuild", store, "sums", "--output", "json").stdout)
    assert (done["changes"], done["is_new"]) == (0, False)
    shown = run("view", "status", store, "sums").output
    assert "a: time 0, behind 0, updates 0" in shown
    assert "incremental_strict" in shown


def test_a_view_that_cannot_be_refreshed_names_verbs_and_options(store, tmp_path):
    run("view", "create", store, "rows", "--sql", _file(tmp_path, "SELECT k, v FROM a"))
    assert failure("view", "refresh", store, "a", code=2).endswith(
        "is no view; create one with `timespine view create`"
    )
    run("evolve", store, "a", "--drop", "v")
    (tmp_path / "more.json").write_text('{"k": 3}\n')
    run("append", store, "a", str(tmp_path / "more.json"), "--format", "json")
    line = failure("view", "refresh", store, "rows", code=2)
    assert "with `timespine view create --replace`, or add a column of that name and run `timespine view" in line
    run("drop", store, "a", "--force")
    left = "drop the view too, or write it without, with `timespine view create --replace`"
    failed = run("view", "refresh", store, "--output", "json", code=2)
    assert json.loads(failed.stderr)["message"] == "not all views were refreshed: rows"
    refreshed = json.loads(failed.stdout)
    assert refreshed["rows"]["error"].endswith(left)
    assert json.loads(run("view", "status", store, "rows", "--output", "json").stdout)["error"].endswith(left)
    assert left in run("view", "explain", store, "rows").output


def test_a_view_that_only_spark_computes_is_for_python(store, tmp_path):
    line = failure("view", "create", store, "x", "--sql", _file(tmp_path, "SELECT soundex('a') AS s FROM a"), code=2)
    assert line.endswith("change them, or use Python and a session of Spark, which the command line does not have")
    options = ("--times", "every", "--policy", "full")
    line = failure("view", "create", store, "x", "--sql", _file(tmp_path, "SELECT k FROM a"), *options, code=2)
    assert line == "error: times 'every' follows each change, and policy 'full' none: use another policy"


def _file(folder, text):
    """Write a text to a file of SQL."""
    (folder / "query.sql").write_text(text)
    return str(folder / "query.sql")
