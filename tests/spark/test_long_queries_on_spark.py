"""Views of long lists, chains and unions: Spark and the process have one answer."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
from test_view_histories import new_store, step


def test_long_lists_and_chains_are_the_same_on_both_engines(spark, tmp_path):
    """IN with nulls and of doubles, OR and AND of many conditions, and UNION ALL of many SELECTs; Spark checks each."""
    many = [str(each) for each in range(2, 400, 2)]
    texts = {
        "listed": f"SELECT k, v FROM a WHERE v IN ({', '.join(many)}, NULL)",
        "unlisted": f"SELECT k, v FROM a WHERE v NOT IN ({', '.join(many)})",
        "unknown": "SELECT k, v IN (1, 2, NULL) AS x, v NOT IN (3, NULL) AS y FROM a",
        "doubles": "SELECT k, v / 2 IN (0.5D, 1.5D, -0.0D) AS x FROM a",
        "chained": f"SELECT k, {' OR '.join(f'v = {each}' for each in many)} AS x FROM a",
        "united": " UNION ALL ".join(["SELECT k, v FROM a"] * 12),
        "summed": f"SELECT k, {' + '.join(['CAST(v AS decimal(10,2))'] * 40)} AS x FROM a",
    }
    rng = random.Random(11)
    with new_store(tmp_path / "store") as store:
        for _ in range(3):
            step(rng, store)
        views = {name: store.view(name, sql=sql, spark=spark) for name, sql in texts.items()}
        step(rng, store)
        done = store.refresh(spark=spark, engine="spark")
        assert all(each.error == "" for each in done.values())
        for view in views.values():
            assert view.definition.mode == "incremental"
            assert view.verify().is_exact
            assert view.verify(spark=spark).is_exact
