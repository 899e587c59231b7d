"""Dates beyond the calendar of Polars: one view is left out, and the others and the follower go on."""

import polars as pl
import pyarrow as pa
import pytest
from assertions import until

import timespine as ts
from timespine.views.engine.lowering import Declined, Lowering

DAYS = [200_000_000, -200_000_000, 106_751_991, 96_465_659, 95_026_237, -96_465_293, 2**31 - 1]

FAR = {
    "trunc": "SELECT id, trunc(dt, 'MM') AS m FROM a",
    "week": "SELECT id, trunc(dt, 'WEEK') AS m FROM a",
    "date_trunc": "SELECT id, date_trunc('DAY', dt) AS m FROM a",
    "greatest": "SELECT id, greatest(dt, timestamp'2020-01-01 00:00:00') AS m FROM a",
    "compared": "SELECT id FROM a WHERE dt > timestamp'2020-01-01 00:00:00'",
    "year": "SELECT id, year(dt) AS m FROM a",
    "months": "SELECT id, dt + INTERVAL '1' MONTH AS m FROM a",
    "text": "SELECT id, CAST(dt AS STRING) AS m FROM a",
}


def rows(*pairs):
    days = pa.array([day for _, day in pairs], pa.int32()).cast(pa.date32())
    return pa.table({"id": pa.array([id for id, _ in pairs], pa.int64()), "dt": days})


@pytest.fixture
def store(place):
    store = place.open()
    store.create("a", key={"id": "int64"}, value={"dt": "date32"}, timeline="counter")
    store["a"].append(rows((1, 0), (2, 95_026_000), (3, -96_465_292)))
    return store


@pytest.mark.parametrize("day", DAYS)
def test_a_date_beyond_the_calendar_leaves_out_its_view_without_a_panic(store, day, capfd):
    for name, sql in FAR.items():
        store.view(name, sql=sql)
    good = store.view("good", sql="SELECT count(*) AS c, max(dt) AS m FROM a")
    store["a"].append(rows((9, day)))
    done = store.refresh()
    assert {name for name, each in done.items() if each.error} == FAR.keys()
    assert all("too far from 1970" in done[name].error for name in FAR)
    assert good.upper == store["a"].upper
    with pytest.raises(ts.UsageError, match="too far from 1970"):
        store.view("late", sql=FAR["trunc"])
    store["a"].delete([{"id": 9}])
    assert not any(each.error for each in store.refresh().values())
    assert "panicked" not in capfd.readouterr().err


def test_a_follower_goes_on_beside_a_view_that_reads_such_a_date(tmp_path):
    with ts.open(tmp_path / "store") as store:
        a = store.create("a", key={"id": "int64"}, value={"dt": "date32"}, timeline="counter")
        a.append(rows((1, 0)))
        bad, good = store.view("bad", sql=FAR["trunc"]), store.view("good", sql="SELECT count(*) AS c FROM a")
        with store.follow(every=0.05) as following:
            for change in (lambda: a.append(rows((9, 200_000_000))), lambda: a.append(rows((10, 1)))):
                change()
                until(lambda: good.upper == a.upper, 20)
                assert following.is_running
        a.delete([{"id": 9}])
        bad.refresh()
        assert bad.upper == a.upper


def test_a_panic_of_polars_declines_the_rows():
    frame = pl.DataFrame({"d": pl.Series([200_000_000], dtype=pl.Int32).cast(pl.Date)})
    with pytest.raises(Declined, match="out-of-range"):
        Lowering().select(frame, [pl.col("d").dt.truncate("1mo")])
