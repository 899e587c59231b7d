"""Which engine refreshes a view: sizes decide, past refreshes correct, and every choice says why."""

import subprocess
import sys

import pyarrow as pa
import pytest
from memory_store import MemoryStore
from test_views import SUMS, filled

import timespine as ts
from timespine.views.plan.algebra import Filter, Join, nodes_of
from timespine.views.plan.expressions import Call
from timespine.views.refresh import refresh_one_view
from timespine.views.refresh.choose_engine import ON_SPARK_WHOLE, Choice, Sizes, choose_engine
from timespine.views.refresh.refresh_costs import LEAST, MOST, moved, note_refresh, read_took
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import parse_query

INPUTS = {name: pa.schema([("k", pa.int64()), ("g", pa.int64()), ("v", pa.int64())]) for name in ("a", "b")}
JOINED, _ = plan_of(parse_query("SELECT a.k, b.v FROM a JOIN b ON a.k = b.k"), INPUTS)
PAIRS = next(node for node in nodes_of(JOINED) if isinstance(node, Join))
SOUNDS = Filter(PAIRS.left, Call("soundex", (PAIRS.left.columns[0],), pa.bool_()))
ONLY_SPARK = Join(PAIRS.kind, SOUNDS, PAIRS.right, PAIRS.keys, PAIRS.condition)

FEW = Sizes(changed=10, touched=200, total=1_000)
LARGE = Sizes(changed=10, touched=200, total=10_000_000)
MANY = Sizes(changed=300, touched=1_000, total=1_000)
HUGE = Sizes(changed=2_000_000, touched=40_000_000, total=100_000_000)


def chosen(plan, sizes, policy="auto", factors=None, forced=None):
    made = choose_engine(plan, sizes, forced, policy, factors or {}, has_spark=True)
    return made.engine, made.how


@pytest.mark.parametrize(
    ("plan", "sizes", "policy", "expected"),
    [
        (JOINED, FEW, "auto", ("process", "changes")),
        (JOINED, LARGE, "auto", ("process", "changes")),
        (JOINED, HUGE, "auto", ("spark", "changes")),
        (Filter(JOINED, SOUNDS.condition), FEW, "auto", ("spark", "changes")),  # the driver computes the join
        (ONLY_SPARK, LARGE, "auto", ("spark", "changes")),
        (ONLY_SPARK, FEW, "auto", ("spark", "whole")),
        (ONLY_SPARK, FEW, "incremental", ("spark", "changes")),
        (ONLY_SPARK, FEW, "incremental_strict", ("spark", "changes")),
        (ONLY_SPARK, MANY, "auto", ("spark", "whole")),
        (ONLY_SPARK, MANY, "incremental", ("spark", "changes")),
    ],
)
def test_sizes_decide(plan, sizes, policy, expected):
    assert chosen(plan, sizes, policy) == expected


def test_a_choice_says_what_was_expected_and_why_it_is_whole():
    made = choose_engine(ONLY_SPARK, FEW, None, "auto", {}, has_spark=True)
    assert made.why == (
        "only Spark computes soundex; computed whole and compared, as 0.60 s are expected for all 1,000 rows, and "
        "0.96 s for 10 changes"
    )
    assert choose_engine(JOINED, FEW, None, "auto", {}, has_spark=True).why == (
        "10 changes, about 200 rows to read: expected 0.01 s in the process, 0.60 s on Spark"
    )
    many = choose_engine(ONLY_SPARK, MANY, None, "auto", {}, has_spark=True)
    assert many.why.endswith("300 changes of 1,000 rows: computed whole and compared")


def test_past_refreshes_correct_each_way_by_itself():
    assert chosen(ONLY_SPARK, FEW, factors={ON_SPARK_WHOLE: 3.0}) == ("spark", "changes")
    assert chosen(ONLY_SPARK, FEW, factors={"spark": 0.5}) == ("spark", "changes")
    assert chosen(ONLY_SPARK, LARGE, factors={"spark": 16.0}) == ("spark", "changes")
    assert chosen(ONLY_SPARK, LARGE, factors={ON_SPARK_WHOLE: 1 / 16, "spark": 2.0}) == ("spark", "whole")
    assert chosen(JOINED, HUGE, factors={"spark": 16.0}) == ("process", "changes")
    slow = Sizes(changed=1_000, touched=1_000_000, total=10_000_000)
    assert chosen(JOINED, slow) == ("process", "changes")
    assert chosen(JOINED, slow, factors={"process": 16.0}) == ("spark", "changes")


def test_the_caller_decides_and_what_only_spark_computes_needs_a_session():
    assert chosen(JOINED, None, forced="spark") == ("spark", "changes")
    assert chosen(JOINED, HUGE, forced="process") == ("process", "changes")
    with pytest.raises(ts.UsageError, match=r"only Spark can compute this view \(only Spark computes soundex"):
        chosen(ONLY_SPARK, FEW, forced="process")
    with pytest.raises(ts.UsageError, match="give a session"):
        choose_engine(ONLY_SPARK, None, None, "auto", {}, has_spark=False)


def test_a_factor_follows_what_refreshes_took_within_bounds():
    assert moved({}, "process", 1.0, 1.0) == (1.0, 1)
    assert moved({"process": (1.0, 3)}, "process", 1.0, 1.1) is None
    assert moved({"process": (1.0, 3)}, "process", 1.0, 3.0) == (pytest.approx(1.6), 4)
    assert moved({"process": (1.0, 3)}, "process", 1.0, 1e9) == (pytest.approx(1 + 0.3 * (MOST - 1)), 4)
    assert moved({"process": (1.0, 3)}, "process", 1.0, 1e-9) == (pytest.approx(1 + 0.3 * (LEAST - 1)), 4)


def test_what_a_refresh_took_is_kept_by_its_way_and_read_by_the_next_choice(monkeypatch):
    with MemoryStore() as place:
        store = filled(place)
        view = store.view("sums", sql=SUMS)
        note_refresh(store, view.id, "spark", 1.0, 2.0)
        note_refresh(store, view.id, Choice("spark", "whole", "").way, 1.0, 0.5)
        told = {way: factor for way, (factor, _) in read_took(store, view.id).items()}
        assert told == {"spark": pytest.approx(1.3), ON_SPARK_WHOLE: pytest.approx(0.85)}
        asked = []

        def spy(plan, sizes, forced, policy, factors, *, has_spark):
            asked.append((sizes, dict(factors)))
            return Choice("process", "changes", "so", expected=1e-9)

        monkeypatch.setattr(refresh_one_view, "find_session", lambda spark: "a session")
        monkeypatch.setattr(refresh_one_view, "choose_engine", spy)
        store["a"].append([{"k": 9, "g": 0, "v": 9}])
        assert view.refresh().why == "so"
        assert asked == [(Sizes(changed=1, touched=1, total=5), told)]
        assert read_took(store, view.id)["process"][0] > 1


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
import timespine as ts
with ts.open(sys.argv[1]) as store:
    store.create("a", key={"k": "int64"}, value={"g": "int64", "s": "string"}, timeline="counter")
    store["a"].append([{"k": 1, "g": 1, "s": "x"}])
    view = store.view("sums", sql="SELECT g, count(*) AS n FROM a GROUP BY g", key=["g"])
    store["a"].append([{"k": 2, "g": 1, "s": "y"}])
    print(view.refresh().engine, view.snapshot().to_pylist(), view.verify().is_exact)
    try:
        store.view("odd", sql="SELECT soundex(s) AS x FROM a")
    except ts.UnsupportedView as error:
        print(error)
    for asked in (
        lambda: view.refresh(engine="spark"),
        lambda: store.view("odd", frame=lambda tables: tables["a"], inputs=["a"]),
    ):
        store["a"].append([{"k": view.upper.time + 9, "g": 1, "s": "y"}])
        try:
            asked()
        except ts.UsageError as error:
            print(error)
print("pyspark.sql" in sys.modules)
"""


def test_without_spark_installed_portable_views_work_and_others_are_refused_with_reasons(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    first, *others, refreshed, created, last = done.stdout.splitlines()
    assert first == "process [{'g': 1, 'n': 2}] True"
    assert "soundex" in "".join(others)
    assert (
        refreshed == created == ("Spark has to compute this view, and is not installed; pip install 'timespine[spark]'")
    )
    assert last == "False"
