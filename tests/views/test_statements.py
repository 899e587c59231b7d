"""Statements about materialized views, and what they say when they are wrong."""

import pytest
from memory_store import MemoryStore

import timespine as ts
from timespine.views.sql.statements import parse_statement


@pytest.fixture
def store():
    with MemoryStore() as place:
        made = place.open()
        made.create("a", key={"k": "int64"}, value={"g": "int64", "v": "int64"}, timeline="counter")
        made["a"].append([{"k": k, "g": k % 2, "v": k} for k in range(4)])
        yield made


def test_a_view_is_created_explained_refreshed_and_dropped(store):
    text = """
        CREATE MATERIALIZED VIEW sums PRIMARY KEY (g) REFRESH POLICY INCREMENTAL STRICT AS
        SELECT g, sum(v) AS s FROM a GROUP BY g;
    """
    assert "incremental" in str(store.sql(f"-- how\n explain {text}"))
    assert store.views() == []
    view = store.sql(text).view
    assert (view.definition.policy, view.schema.key_names) == ("incremental_strict", ("g",))
    assert view.definition.sql == "SELECT g, sum(v) AS s FROM a GROUP BY g"
    store["a"].append([{"k": 9, "g": 1, "v": 9}])
    assert store.sql("refresh materialized view sums").refreshed["sums"].changes == 2
    assert store.sql("REFRESH MATERIALIZED VIEW `sums` FULL").refreshed["sums"].engine == "none"
    assert store.sql("EXPLAIN MATERIALIZED VIEW sums").text == view.explain()
    assert not store.sql("CREATE MATERIALIZED VIEW IF NOT EXISTS sums AS SELECT k FROM a").is_done
    with pytest.raises(ts.CollectionExists):
        store.sql("CREATE MATERIALIZED VIEW sums AS SELECT k FROM a")
    new = store.sql(
        "CREATE OR REPLACE MATERIALIZED VIEW sums TBLPROPERTIES ('times' = 'every') AS SELECT k FROM a"
    ).view
    assert (new.schema.names, new.definition.times) == (("k",), "every")
    assert store.sql("DROP MATERIALIZED VIEW sums").is_done
    assert not store.sql("DROP MATERIALIZED VIEW IF EXISTS sums").is_done
    with pytest.raises(ts.UnknownCollection):
        store.sql("DROP MATERIALIZED VIEW sums")
    with pytest.raises(ts.UsageError, match="a is no view"):
        store.sql("DROP MATERIALIZED VIEW a")
    assert store.names() == ["a"]


def test_the_query_is_taken_as_it_was_written():
    text = "CREATE MATERIALIZED VIEW `My.View` AS\n-- why\nSELECT 'AS ;' AS x, /* c */ `g` FROM a -- end\n ;\n"
    made = parse_statement(text)
    assert made.names == ("My.View",)
    assert made.select == "SELECT 'AS ;' AS x, /* c */ `g` FROM a -- end\n "
    assert made.place == (2, 0)


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ("SELECT 1", 1, 1, "SELECT begins no statement"),
        ("CREATE VIEW v AS SELECT 1", 1, 8, "MATERIALIZED is expected, not VIEW"),
        ("CREATE MATERIALIZED VIEW", 1, 25, "a name is expected, not the end"),
        ("CREATE MATERIALIZED VIEW v\nREFRESH POLICY SOMETIMES AS SELECT 1", 2, 16, "SOMETIMES is no policy"),
        ("CREATE MATERIALIZED VIEW v COMMENT 'x' AS SELECT 1", 1, 28, "COMMENT is not expected here"),
        ("CREATE MATERIALIZED VIEW v AS", 1, 30, "the query is missing"),
        ("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('x' = 'y') AS SELECT 1", 1, 43, "there is no property x"),
        ("CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1", 1, 51, "contradict"),
        ("REFRESH MATERIALIZED VIEW v; DROP MATERIALIZED VIEW v", 1, 30, "DROP is not expected here"),
        ("DROP MATERIALIZED VIEW 'v'", 1, 24, "a name is expected, not v"),
        ("REFRESH MATERIALIZED VIEW `v", 1, 27, "` is not closed"),
    ],
)
def test_a_wrong_statement_is_refused_with_its_place(store, text, line, column, what):
    with pytest.raises(ts.UnsupportedView) as refused:
        store.sql(text)
    (reason,) = refused.value.reasons
    assert (reason.line, reason.column) == (line, column), str(refused.value)
    assert what in reason.what
    assert store.views() == []


def test_places_in_the_query_are_those_in_the_statement(store):
    for text, line, column in (
        ("CREATE MATERIALIZED VIEW v AS SELECT nope FROM a", 1, 38),
        ("CREATE MATERIALIZED VIEW v AS\n  SELECT k,\n  nope FROM a", 3, 3),
        ("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT nope FROM a", 1, 46),
    ):
        with pytest.raises(ts.UnsupportedView) as refused:
            store.sql(text)
        assert [(each.line, each.column) for each in refused.value.reasons] == [(line, column)]


# Names and syntax of queries.


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT x FROM a", "line 1, column 8: there is no column x: a has k, g, v"),
        ("SELECT a.vv FROM a", "there is no column vv: do you mean v? a has k, g, v"),
        ("SELECT k FROM a JOIN a b ON a.k = b.k", "line 1, column 8: k is a column of a and of b: write a.k or b.k"),
        ("SELECT c.k FROM a", "there is no table or alias c: there are: a"),
        ("SELECT k FROM (SELECT g FROM a) q", "there is no column k: q has g"),
        ("WITH w AS (SELECT g FROM a) SELECT k FROM w", "there is no column k: w has g"),
        ("SELECT q.* FROM a", "there is no table or alias q"),
        ("SELECT k FROM", "table name is expected after FROM, not the end of the text"),
        ("SELECT (k FROM a", "line 1, column 11: ) is missing before FROM"),
        ("SELECT k FROM a WHERE", "WHERE is not complete"),
        ("SELECT 'x FROM a", "line 1, column 8: ' is not closed"),
        ("SELECT k g v FROM a", "line 1, column 12: v is not expected here"),
        ("SELEC k FROM a", "SELEC begins no query"),
        ("CREATE VIEW x AS SELECT 1", "CREATE begins no query"),
    ],
)
@pytest.mark.parametrize("policy", ["auto", "incremental"])
def test_errors_of_a_query_are_said_in_plain_words(store, capfd, sql, what, policy):
    with pytest.raises(ts.UnsupportedView) as refused:
        store.view("bad", sql=sql, policy=policy)
    assert what in str(refused.value)
    assert "<" not in str(refused.value)
    assert capfd.readouterr().err == ""
