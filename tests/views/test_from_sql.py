"""SQL to plans: names and types as Spark has them, and refusals with places."""

import pyarrow as pa
import pytest

from timespine.errors import UnsupportedView
from timespine.views.open_ties import open_ties
from timespine.views.plan.algebra import Aggregate, InputScan, Top, Union, nodes_of
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import parse_query

INPUTS = {
    "a": pa.schema(
        [("k", pa.int64()), ("G", pa.int32()), ("d", pa.decimal128(15, 2)), ("x", pa.float64()), ("s", pa.string())]
    ),
    "b": pa.schema([("k", pa.int64()), ("day", pa.date32())]),
}


def planned(sql):
    plan, named = plan_of(parse_query(sql), INPUTS)
    return plan, {name: str(column.type) for name, column in named}


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM a", {"k": "int64", "G": "int32", "d": "decimal128(15, 2)", "x": "double", "s": "string"}),
        ("SELECT sum(d) AS Total, avg(d) AS m FROM a", {"Total": "decimal128(25, 2)", "m": "decimal128(19, 6)"}),
        ("SELECT d * (1 - d) AS p FROM a", {"p": "decimal128(32, 4)"}),
        ("SELECT g + 1 AS i, k / 2 AS h, g * k AS m FROM a", {"i": "int32", "h": "double", "m": "int64"}),
        ("SELECT sum(g) AS s, avg(g) AS m, count(*) AS n FROM a", {"s": "int64", "m": "double", "n": "int64"}),
        ("SELECT year(day) AS y, day + INTERVAL 1 MONTH AS m FROM b", {"y": "int32", "m": "date32[day]"}),
        (
            "SELECT coalesce(d, 0) AS c, CASE WHEN k > 1 THEN 1.5 ELSE k END AS w FROM a",
            {"c": "decimal128(15, 2)", "w": "decimal128(21, 1)"},
        ),
    ],
)
def test_names_and_types_are_those_of_spark(sql, columns):
    assert planned(sql)[1] == columns


def test_inputs_are_read_by_the_columns_that_matter():
    plan, _ = planned("SELECT a.s FROM a JOIN b ON a.k = b.k WHERE b.day > DATE'2020-01-01'")
    scans = {
        node.input: [source for _, source in node.outputs] for node in nodes_of(plan) if isinstance(node, InputScan)
    }
    assert scans == {"a": ["k", "s"], "b": ["k", "day"]}


@pytest.mark.parametrize(
    ("sql", "line", "column", "what"),
    [
        ("SELECT k,\n  regexp_replace(s, 'a', 'b') AS t FROM a", 2, 3, "regexp_replace"),
        ("SELECT x, count(*) AS n FROM a GROUP BY x", 1, 41, "GROUP BY by x"),
        ("SELECT k FROM a WHERE k > 1\n OR k IN (SELECT k FROM b)", 1, 23, "under OR"),
        ("SELECT sum(k) OVER (ORDER BY d) AS s FROM a", 1, 8, "PARTITION BY"),
        ("SELECT G, k FROM a GROUP BY G", 1, 11, "neither grouped"),
        ("SELECT k FROM a ORDER BY k LIMIT 5 OFFSET 2", 1, 43, "OFFSET"),
        ("SELECT cast(s AS int) AS i FROM a", 1, 13, "CAST"),
        ("SELECT k FROM a WHERE s LIKE 'x!%' ESCAPE '!'", 1, 23, "escape"),
        ("SELECT k FROM a WHERE s ILIKE 'x%'", 1, 23, "ilike"),
        ("SELECT avg(DISTINCT k) AS n FROM a", 1, 8, "DISTINCT"),
        ("SELECT k FROM a SORT BY k", 1, 25, "SORT"),
        ("SELECT G, grouping(s) AS g FROM a GROUP BY ROLLUP(G)", 1, 11, "takes a key of GROUP BY: these are G"),
        ("SELECT G, grouping(G) AS g FROM a GROUP BY G", 1, 11, "write ROLLUP, CUBE or GROUPING SETS"),
        ("SELECT G FROM a GROUP BY ROLLUP(1)", 1, 33, "write the names"),
        ("SELECT day + INTERVAL 1 QUARTER AS q FROM b", 1, 8, "quarter"),
        ("SELECT k FROM a WHERE G < 300000000000.5", 1, 23, "beyond it"),
    ],
)
def test_what_has_no_rule_is_refused_with_its_place(sql, line, column, what):
    with pytest.raises(UnsupportedView) as refused:
        planned(sql)
    reason = refused.value.reasons[0]
    assert (reason.line, reason.column) == (line, column), reason
    assert what in str(reason)


def first_top(sql):
    plan, named = plan_of(parse_query(sql), INPUTS)
    (top,) = [node for node in nodes_of(plan) if isinstance(node, Top)]
    shown = {column.name for _, column in named}
    return [str(key.column) if key.column.name in shown else "hidden" for key in top.order], plan.columns


@pytest.mark.parametrize(
    ("order", "keys"),
    [
        ("v, w", ["v", "w"]),
        ("2, a.G", ["v", "w"]),
        ("a.k", ["hidden"]),
        ("G, a.d", ["w", "hidden"]),
        ("v + 1, -a.k", ["hidden", "v"]),
        ("length(s), a.s, s", ["hidden", "hidden", "hidden"]),
    ],
)
def test_an_order_takes_columns_of_the_result_by_name_and_others_beside_them(order, keys):
    """A column with a table is that of the input, though a column of the result has its name."""
    found, columns = first_top(f"SELECT x, -a.k AS v, G AS w FROM a ORDER BY {order} LIMIT 3")
    assert (found, len(columns)) == (keys, 3)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT DISTINCT k FROM a ORDER BY G LIMIT 2", "SELECT DISTINCT takes columns of the result"),
        ("SELECT k FROM a UNION ALL SELECT k FROM b ORDER BY k + 1 LIMIT 2", "UNION takes columns of the result"),
        ("SELECT k FROM a ORDER BY md5(s) LIMIT 2", "md5"),
        ("SELECT DISTINCT G AS h FROM a ORDER BY a.G LIMIT 2", "SELECT DISTINCT takes columns of the result"),
        ("SELECT k FROM a ORDER BY rank() OVER (PARTITION BY G ORDER BY k) LIMIT 2", "a window in ORDER BY"),
        ("SELECT t.k FROM (SELECT k, G AS x, d AS X FROM a ORDER BY x LIMIT 2) t", "x is ambiguous"),
        ("SELECT x FROM (SELECT k, G AS x, k AS x FROM a) t", "x is ambiguous: several columns of t"),
        ("SELECT G, sum(k) AS k FROM a GROUP BY G ORDER BY max(k) LIMIT 2", "inside of an aggregate"),
        ("SELECT G FROM a GROUP BY G ORDER BY k LIMIT 2", "neither grouped"),
    ],
)
def test_orders_without_a_rule_are_refused(sql, what):
    with pytest.raises(UnsupportedView) as refused:
        planned(sql)
    assert [what in reason.what for reason in refused.value.reasons] == [True], refused.value
    planned("SELECT DISTINCT G FROM a ORDER BY a.G LIMIT 2")
    planned("SELECT k FROM (SELECT k, G AS x, k AS x FROM a) t")


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("k IN (SELECT k, day FROM b)", "IN compares 1 column with the 2 of its subquery: select 1 there"),
        ("k NOT IN (SELECT * FROM b)", "1 column with the 2"),
        ("k IN (SELECT k, count(*) AS n FROM b GROUP BY k)", "1 column with the 2"),
        ("k IN (SELECT k, k FROM b UNION SELECT k, k FROM a)", "1 column with the 2"),
        ("(k, G) IN (SELECT k FROM b)", "2 columns with the 1"),
        ("(k, G) IN (SELECT k, k FROM b)", "IN with several columns has no rule: write EXISTS"),
    ],
)
def test_in_compares_as_many_columns_as_its_subquery_has(query, what):
    with pytest.raises(UnsupportedView, match=what) as refused:
        planned(f"SELECT k FROM a WHERE {query}")
    assert [reason.forbidden for reason in refused.value.reasons] == ["several" not in what]


@pytest.mark.parametrize(
    ("tables", "name"),
    [("a JOIN a ON a.k = a.G", "a"), ("a LEFT JOIN (SELECT k FROM b) A ON true", "a"), ("b t, a T", "t")],
)
def test_two_tables_of_one_name_are_refused(tables, name):
    with pytest.raises(UnsupportedView, match=f"references to {name} are ambiguous.* AS other"):
        planned(f"SELECT {name}.k FROM {tables}")
    planned("SELECT k FROM a WHERE k IN (SELECT a.k FROM a) AND EXISTS (SELECT 1 FROM b a WHERE a.k = 1)")


@pytest.mark.parametrize(
    "condition",
    [
        "EXISTS (SELECT k FROM b ORDER BY k LIMIT 0)",
        "EXISTS (SELECT k FROM b ORDER BY k LIMIT 3 OFFSET 2)",
        "EXISTS (SELECT k FROM b ORDER BY k OFFSET 2)",
        "k IN (SELECT k FROM b ORDER BY k OFFSET 2)",
        "k > (SELECT max(k) AS m FROM b ORDER BY m OFFSET 1)",
    ],
)
def test_parts_of_subqueries_that_keep_fewer_rows_are_not_ignored(condition):
    with pytest.raises(UnsupportedView):
        planned(f"SELECT k FROM a WHERE {condition}")
    planned("SELECT k FROM a WHERE EXISTS (SELECT DISTINCT k FROM b WHERE b.k = a.k ORDER BY k LIMIT 10)")


def test_aggregates_of_truths_have_all_names_of_spark():
    plan, _ = planned("SELECT every(k > 1) AS a, some(k > 1) AS b, any(k > 1) AS c, bool_or(k > 1) AS d FROM a")
    (node,) = [each for each in nodes_of(plan) if isinstance(each, Aggregate)]
    assert [call.function for _, call in node.calls] == ["min", "max"]
    planned("SELECT G, any(k > 1) FILTER (WHERE G > 0) AS a FROM a GROUP BY G HAVING some(k > 2) AND NOT every(k > 0)")
    with pytest.raises(UnsupportedView, match="what is no truth"):
        planned("SELECT any(k) AS a FROM a")


@pytest.mark.parametrize(
    ("sql", "reasons"),
    [
        ("SELECT * FROM (SELECT k, G, d FROM a) PIVOT (sum(d) FOR G IN (1 AS one, 2 AS two))", ["PIVOT has no rule"]),
        ("SELECT k, one AS x FROM a PIVOT (sum(d) FOR G IN (1 AS one)) WHERE k > 1", ["PIVOT has no rule"]),
        ("SELECT rank() OVER (w ORDER BY k) AS r FROM a WINDOW w AS (PARTITION BY G)", ["windows that name another"]),
        ("SELECT rank() OVER w AS r FROM a", ["there is no window w"]),
        ("SELECT to_date(s) AS t FROM a", ["the date of string"]),
        ("WITH a AS (SELECT * FROM a) SELECT k FROM a", ["a is read here, where the CTE a is not known"]),
        (
            "WITH t AS (SELECT * FROM a), a AS (SELECT * FROM t) SELECT t.k FROM t JOIN a ON t.k = a.k",
            ["a is read here"],
        ),
        ("SELECT k FROM (WITH b AS (SELECT k FROM a) SELECT k FROM b) JOIN b USING (k)", ["b is read here"]),
    ],
)
def test_a_part_without_a_rule_is_one_reason_in_the_words_of_the_user(sql, reasons):
    with pytest.raises(UnsupportedView) as refused:
        planned(sql)
    found = [reason.what for reason in refused.value.reasons]
    assert [what.startswith(said) for what, said in zip(found, reasons, strict=True)] == [True], found


def test_the_names_of_windows_stand_for_their_definitions():
    windows = "WINDOW w AS (PARTITION BY G ORDER BY k), v AS (PARTITION BY s)"
    named = f"SELECT k, rank() OVER W AS r, sum(k) OVER (v) AS s FROM a {windows}"
    written = "SELECT k, rank() OVER (PARTITION BY G ORDER BY k) AS r, sum(k) OVER (PARTITION BY s) AS s FROM a"
    assert [repr(node) for node in nodes_of(planned(named)[0])] == [
        repr(node) for node in nodes_of(planned(written)[0])
    ]


def test_ctes_are_read_where_they_are_known():
    inner = "WITH t AS (SELECT k FROM t) SELECT k FROM t"
    planned(f"WITH t AS (SELECT k FROM a), u AS ({inner}) SELECT t.k FROM t JOIN u USING (k)")
    _, types = planned(
        "WITH t AS (SELECT to_date('2020-01-01') AS d, day FROM b) SELECT d FROM t WHERE day > to_date(d)"
    )
    assert types == {"d": "date32[day]"}


def test_all_reasons_are_found_at_once():
    with pytest.raises(UnsupportedView) as refused:
        planned("SELECT md5(s) AS m, soundex(s) AS n FROM a WHERE s RLIKE 'x' AND G > 1")
    assert len(refused.value.reasons) == 3


MANY_REASONS = [
    ("SELECT md5(s) AS m FROM a QUALIFY row_number() OVER (PARTITION BY G ORDER BY k) = 1", ["md5", "QUALIFY"]),
    ("SELECT rand() AS r, soundex(s) AS t FROM a", ["rand()", "soundex"]),
    ("SELECT unix_timestamp() AS r, soundex(s) AS t FROM a", ["follows the clock", "soundex"]),
    (
        "SELECT md5(s) AS m, soundex(s) AS n FROM a WHERE s RLIKE 'x' GROUP BY 1, 2 HAVING max(ascii(s)) > 1",
        ["md5", "soundex", "rlike", "ascii"],
    ),
    ("SELECT md5(s) || soundex(s) AS t, CASE WHEN ascii(s) = 1 THEN hex(s) END AS u FROM a", 4),
    ("SELECT G, percentile(k, 0.5) AS p, sum(length(md5(s)) + ascii(s)) AS n FROM a GROUP BY G", 3),
    ("WITH c AS (SELECT md5(s) AS h, k FROM a) SELECT soundex(h) AS x, k FROM c WHERE ascii(h) > 1", 3),
    ("SELECT md5(s) AS m FROM a UNION SELECT soundex(s) AS m FROM a ORDER BY m LIMIT 1000000", 3),
    ("SELECT a.k FROM a JOIN b ON a.k = b.k AND ascii(s) = 1 WHERE a.k IN (SELECT ascii(s) AS k FROM a)", 2),
    ("SELECT k FROM a WHERE k IN (SELECT k FROM b GROUP BY k, md5(day)) OR soundex(s) = 'x'", 3),
    ("SELECT sum(k) OVER (ORDER BY md5(s)) AS w, lag(k) OVER (PARTITION BY ascii(s) ORDER BY k) AS q FROM a", 3),
    ("SELECT k, md5(s) AS z, y FROM a LATERAL VIEW stack(1, k) t AS y", ["md5", "LATERAL VIEW"]),
    ("SELECT G, k, count(*) AS n FROM a GROUP BY x, G HAVING soundex(G) = 'x'", ["k is neither", "GROUP BY by x", ""]),
    ("SELECT any_value(s) AS v, nope FROM a", ["any row", "no column nope"]),
]


@pytest.mark.parametrize(("sql", "whats"), MANY_REASONS)
def test_a_refusal_does_not_hide_the_reasons_beside_and_inside_of_it(sql, whats):
    with pytest.raises(UnsupportedView) as refused:
        planned(sql)
    reasons = refused.value.reasons
    places = [(reason.line, reason.column) for reason in reasons]
    assert places == sorted(set(places)), "each once, in the order of the text"
    assert len(reasons) == (whats if isinstance(whats, int) else len(whats)), refused.value
    for reason, what in zip(reasons, whats if isinstance(whats, list) else [], strict=False):
        assert what in reason.what


@pytest.mark.parametrize(
    "rest",
    [
        "QUALIFY row_number() OVER (PARTITION BY G ORDER BY k) = 1 LIMIT 3",
        "LATERAL VIEW stack(1, k) t AS y LIMIT 2",
        "LIMIT 3 OFFSET 2",
        "WHERE k IN (SELECT k FROM b GROUP BY k LIMIT 2) OR k = 1",
    ],
)
def test_a_limit_without_an_order_is_forbidden_beside_other_refusals(rest):
    with pytest.raises(UnsupportedView, match="no definite answer") as refused:
        planned(f"SELECT k FROM a {rest}")
    (reason,) = [each for each in refused.value.reasons if each.forbidden]
    assert "without ORDER BY" in reason.what


def test_a_limit_inside_of_exists_only_asks_whether_there_are_rows():
    planned("SELECT k FROM a WHERE EXISTS (SELECT k FROM b WHERE b.k = a.k LIMIT 1)")


def test_functions_are_called_as_the_user_wrote_them():
    with pytest.raises(UnsupportedView) as refused:
        planned("SELECT percentile(k, 0.5) AS p, Median(k) AS m, hex(s) AS h FROM a GROUP BY s")
    assert [reason.what.split(" is not")[0] for reason in refused.value.reasons] == [
        "the aggregate percentile has no rule",
        "the aggregate median has no rule",
        "hex",
    ]


class AnyType:
    """A session of Spark that gives a type to everything."""

    asks = True

    def type_of(self, text, args):
        return pa.bool_() if any(sign in text for sign in "<>=") or "BETWEEN" in text else pa.date32()


MOMENTS = [
    "date'today'",
    "timestamp'now'",
    "CAST('Tomorrow' AS DATE)",
    "CAST(' now UTC' AS TIMESTAMP)",
    "to_date('today')",
]
DATED = {"a": pa.schema([("t", pa.date32()), ("w", pa.timestamp("us", "UTC")), ("s", pa.string())])}


@pytest.mark.parametrize(
    "written",
    [*MOMENTS, *(f"soundex({each})" for each in MOMENTS), "t > 'today'", "w < 'now'", "t BETWEEN 'yesterday' AND t"],
)
def test_texts_that_spark_reads_as_a_time_of_its_clock_are_forbidden(written):
    with pytest.raises(UnsupportedView, match="follows the clock") as refused:
        plan_of(parse_query(f"SELECT {written} AS r FROM a"), DATED, AnyType())
    assert all(reason.forbidden for reason in refused.value.reasons)


@pytest.mark.parametrize(
    "written", ["s = 'today'", "s IN ('now', 'x')", "soundex(concat(s, 'now'))", "t > date'2020-01-01'"]
)
def test_such_texts_are_texts_elsewhere(written):
    plan_of(parse_query(f"SELECT {written} AS r FROM a"), DATED, AnyType())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT rand() AS r FROM a",
        "SELECT now() AS r FROM a",
        "SELECT current_date() AS r FROM a",
        "SELECT first(k) AS r FROM a",
        *(
            f"SELECT {each} AS r FROM a"
            for each in (
                *("random()", "randn()", "uuid()", "shuffle(array(k))", "monotonically_increasing_id()", "version()"),
                *("spark_partition_id()", "input_file_name()", "current_user", "current_user()", "session_user()"),
                *("last(k)", "any_value(k)", "collect_list(k)", "collect_set(k)", "mode(k)", "listagg(s)"),
                *("percentile_approx(k, 0.5)", "approx_count_distinct(k)", "approx_top_k(k)", "unix_timestamp()"),
                *("current_timestamp", "current_timestamp()", "curdate()", "localtimestamp()", "current_timezone()"),
                *("current_catalog()", "current_database()", "current_schema()", "reflect('a', 'b')", "uniform(1, 2)"),
            )
        ),
        "SELECT k FROM a TABLESAMPLE (10 PERCENT)",
        "SELECT k FROM a LIMIT 3",
    ],
)
def test_what_has_no_definite_answer_is_forbidden(sql):
    with pytest.raises(UnsupportedView) as refused:
        planned(sql)
    assert all(reason.forbidden for reason in refused.value.reasons)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT k + 1 FROM a", "has no name"),
        ("SELECT k AS _time FROM a", "column of updates"),
        ("SELECT k, k AS _Diff FROM a", "column of updates"),
        ("SELECT a.k, b.k FROM a, b", "two columns"),
        ("SELECT nope FROM a", "nope"),
        ("SELECT k FROM a; SELECT k FROM b", "one SELECT"),
        ("SELECT (", "does not parse"),
        ("SELECT 1 AS one", "at least one collection"),
        ("SELECT FROM a", "without columns"),
        ("SELECT G, k FROM a GROUP BY 1, 3", "line 1, column 29: there is no column 3 of SELECT: it has 2"),
    ],
)
def test_texts_that_define_no_view_are_refused(sql, what):
    with pytest.raises(UnsupportedView, match=what):
        planned(sql)


def test_a_window_without_a_rule_is_one_reason():
    with pytest.raises(UnsupportedView) as refused:
        planned("SELECT rank() OVER (ORDER BY k) AS r FROM a")
    assert [reason.line for reason in refused.value.reasons] == [1]


@pytest.mark.parametrize(
    ("sql", "place", "instead"),
    [
        ("SELECT k,\n current_date AS d FROM a", "line 2, column 2", "filter by the time when you read"),
        ("SELECT first(k) AS f FROM a", "line 1, column 8", "min_by or max_by"),
        ("SELECT collect_list(k) AS f FROM a", "line 1, column 8: collect_list()", "sort_array"),
        ("SELECT rand() AS f FROM a", "line 1, column 8", "leave it out"),
    ],
)
def test_what_has_no_definite_answer_comes_with_what_to_write_instead(sql, place, instead):
    with pytest.raises(UnsupportedView) as refused:
        planned(sql)
    assert place in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    ("sql", "add"),
    [
        ("SELECT k, row_number() OVER (ORDER BY g) AS n FROM a", "add a.k to ORDER BY of the window"),
        ("SELECT g, lag(k) OVER w AS p FROM a WINDOW w AS (PARTITION BY s ORDER BY g)", "add a.k to"),
        ("SELECT k, g, d FROM a QUALIFY row_number() OVER (PARTITION BY g ORDER BY k) = 1", "add a.d to"),
        ("SELECT g, sum(k) OVER (ORDER BY g ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS w FROM a", "add a.k to"),
        ("SELECT g, n, ntile(2) OVER (ORDER BY n) AS r FROM (SELECT g, count(*) AS n FROM a GROUP BY g)", "add g to"),
        ("SELECT g, count(*) AS n, row_number() OVER (ORDER BY count(*)) AS r FROM a GROUP BY g", "add a.g to"),
        ("SELECT k, y, ntile(2) OVER (ORDER BY k) AS r FROM a LATERAL VIEW stack(1, k) t AS y", "add t.y to"),
        ("SELECT k, md5(s) AS h FROM a ORDER BY g LIMIT 3", "add k, h to ORDER BY"),
        ("SELECT g, skewness(k) AS w FROM a GROUP BY g ORDER BY 2 LIMIT 3", "add a.g to ORDER BY"),
        ("SELECT a.k, b.k AS bk FROM a, b ORDER BY a.k LIMIT 3", "add bk to ORDER BY"),
        ("SELECT * FROM (SELECT k, g FROM a ORDER BY k LIMIT 5 OFFSET 2) WHERE soundex(g) = 'x'", "add g to ORDER BY"),
        ("SELECT max_by(k, d) AS m FROM a GROUP BY g", "max_by(a.k, struct(a.d, a.k))"),
    ],
)
def test_an_order_that_leaves_ties_open_says_which_columns_to_add(sql, add):
    (reason,) = open_ties(parse_query(sql), INPUTS)
    assert reason.forbidden
    assert add in str(reason).lower().replace("order by", "ORDER BY")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, row_number() OVER (ORDER BY g) AS n FROM a",
        "SELECT k, g FROM a QUALIFY row_number() OVER (PARTITION BY g ORDER BY k DESC) = 1",
        "SELECT g, s, rank() OVER (ORDER BY g) AS n, sum(k) OVER (ORDER BY g) AS m, sum(k) OVER () AS t FROM a",
        "SELECT k, first_value(g) OVER (ORDER BY g) AS f FROM a",
        "SELECT g, n, lag(n) OVER (ORDER BY g) AS p FROM (SELECT g, count(*) AS n FROM a GROUP BY g) t",
        "SELECT g, count(*) AS n, row_number() OVER (ORDER BY count(*) DESC, g) AS r FROM a GROUP BY g",
        "SELECT k, md5(s) AS h, 1 AS one FROM a ORDER BY k, md5(s) LIMIT 3",
        "SELECT k, md5(s) AS h FROM a ORDER BY 2, 1 LIMIT 3 OFFSET 1",
        "SELECT k, md5(s) AS h FROM a ORDER BY ALL LIMIT 3",
        "SELECT g, skewness(k) AS w FROM a GROUP BY g ORDER BY w, g LIMIT 3",
        "SELECT skewness(k) AS w FROM a ORDER BY 1 LIMIT 1",
        "SELECT k FROM a UNION ALL SELECT k FROM b ORDER BY k LIMIT 3",
        "SELECT g, max_by(k, struct(d, k)) AS m, min_by(g, d) AS n FROM a GROUP BY g",
        "SELECT k, s FROM a ORDER BY k",
    ],
)
def test_an_order_is_total_if_it_has_all_that_the_query_uses(sql):
    assert open_ties(parse_query(sql), INPUTS) == []


@pytest.mark.parametrize(
    ("groups", "sets"),
    [
        ("ROLLUP(G, k)", 3),
        ("CUBE(G, k, s)", 8),
        ("G, CUBE(k, s)", 4),
        ("GROUPING SETS ((G, k), G, ())", 3),
        ("GROUPING SETS (ROLLUP(G, k), s)", 4),
        ("G, k WITH ROLLUP", 3),
        ("ROLLUP((G, k), s)", 3),
    ],
)
def test_grouping_sets_are_one_aggregate_over_each_row_once_for_each_set(groups, sets):
    plan, _ = planned(f"SELECT count(*) AS n FROM a GROUP BY {groups}")
    (union,) = [node for node in nodes_of(plan) if isinstance(node, Union)]
    assert len(union.children) == sets
    assert len([node for node in nodes_of(plan) if isinstance(node, Aggregate)]) == 1
