"""Functions of dates, times and decimals in the process: views are their rows, worked out naively, after changes."""

import datetime
import random
from collections import Counter
from decimal import Decimal

import pytest

import timespine as ts

ZONE = datetime.UTC
START = datetime.datetime(2019, 11, 28, tzinfo=ZONE)
SQL = """
    SELECT k, trunc(d, 'MM') AS mo, date_trunc('WEEK', at) AS w, date_trunc('quarter', d) AS q, cast(p AS string) AS t,
           greatest(p, k, 2) AS hi, least(d, to_date(at)) AS lo, left(cast(d AS string), 4) AS y
    FROM m WHERE at >= TIMESTAMP'2020-01-01 00:00:00' OR at IS NULL OR local < TIMESTAMP_NTZ'2019-12-01' OR d > at
"""


def naive(row):
    k, d, at, local, p = (row[name] for name in ("k", "d", "at", "local", "p"))
    midnight = datetime.datetime(d.year, d.month, d.day, tzinfo=ZONE) if d is not None else None
    asked = [
        at is None or at >= datetime.datetime(2020, 1, 1, tzinfo=ZONE),
        local is not None and local < datetime.datetime(2019, 12, 1),
        at is not None and midnight is not None and midnight > at,
    ]
    if not any(asked):
        return None
    day = at.replace(hour=0, minute=0, second=0, microsecond=0) if at is not None else None
    days = [each for each in (d, at.date() if at is not None else None) if each is not None]
    return (
        k,
        d.replace(day=1) if d is not None else None,
        day - datetime.timedelta(days=day.weekday()) if day is not None else None,
        midnight.replace(day=1, month=(d.month - 1) // 3 * 3 + 1) if d is not None else None,
        f"{p:.2f}" if p is not None else None,
        max(each for each in (p, Decimal(k), Decimal(2)) if each is not None),
        min(days, default=None),
        str(d.year) if d is not None else None,
    )


def changed_row(rng, k):
    at = START + datetime.timedelta(hours=rng.randrange(24 * 90), microseconds=rng.randrange(10**6))
    row = {
        "d": (at + datetime.timedelta(days=rng.randrange(-40, 40))).date(),
        "at": at,
        "local": at.replace(tzinfo=None),
        "p": Decimal(rng.randrange(-500, 900)) / 100,
    }
    return {"k": k, **{name: value if rng.random() < 0.8 else None for name, value in row.items()}}


@pytest.mark.parametrize("seed", range(3))
def test_times_and_decimals_are_worked_out_in_the_process(tmp_path, seed):
    rng = random.Random(seed)
    columns = {"d": "date", "at": "timestamptz", "local": "timestamp", "p": "decimal(12,2)"}
    with ts.open(tmp_path / "store") as store:
        store.create("m", key={"k": "int64"}, value=columns, timeline="counter")
        store["m"].append([changed_row(rng, 1)])
        view = store.view("v", sql=SQL, policy="incremental")
        for _ in range(6):
            store["m"].upsert([changed_row(rng, k) for k in rng.sample(range(8), 4)])
            store["m"].delete([{"k": rng.randrange(8)}])
            assert view.refresh().how == "changes"
            expected = Counter(map(naive, store["m"].snapshot().to_pylist()))
            del expected[None]
            assert Counter(tuple(row.values()) for row in view.snapshot().to_pylist()) == expected
        assert view.verify().is_exact
