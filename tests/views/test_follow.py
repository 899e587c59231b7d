"""Followers: when they refresh, what they do after errors, how several share the work, and how they end."""

import subprocess
import sys
import threading
import time

import pytest
from assertions import until
from memory_store import Script

import timespine as ts
from timespine.testing.unreliable import Fault
from timespine.views.follow import follow_loop
from timespine.views.follow.follow_loop import BACKOFF_S, GRACE_S, FollowLoop

REAL = {"monotonic": time.monotonic}
"""For tests of threads: pauses pass by themselves."""

SUMS = "SELECT g, sum(v) AS s, count(*) AS n FROM a GROUP BY g"


def filled(place, **options):
    store = place.open(**options)
    for name in ("a", "b"):
        store.create(name, key={"k": "int64"}, value={"g": "int64", "v": "int64"}, timeline="counter")
        store[name].append([{"k": k, "g": k % 2, "v": k} for k in range(4)])
    return store


def add(store, name, k, v=1):
    store[name].append([{"k": k, "g": 0, "v": v}])


def behind(loop):
    return {name: each.behind for name, each in loop.status(is_running=True).views.items()}


# When it refreshes. The test is the clock.


def test_a_refresh_follows_a_complete_time_and_then_waits_for_every(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)
    loop = FollowLoop(store, None, 10.0)
    assert loop.step(0.0) == follow_loop.Rest(float("inf"), False)
    add(store, "a", 10)
    pause = loop.step(1.0)
    assert view.upper == store["a"].upper
    assert (pause.seconds, pause.is_deaf) == (10.0, True)
    add(store, "a", 11)
    assert loop.step(4.0).seconds == 7.0
    assert view.upper.time == store["a"].upper.time - 1
    loop.step(11.0)
    assert view.upper == store["a"].upper
    assert loop.status(is_running=True).views["sums"].refreshes == 2
    assert view.verify().is_exact


def test_unsealed_rows_and_maintenance_of_inputs_cause_no_refresh(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    loop = FollowLoop(store, None, 1.0)
    loop.step(0.0)
    store["a"].write([{"k": 50, "g": 0, "v": 1}], at=store["a"].upper.time + 3)
    store["a"].compact(wait=True)
    loop.step(5.0)
    assert loop.refreshes == 0
    store["a"].seal(store["a"].upper.time + 4)
    loop.step(6.0)
    assert loop.refreshes == 1


def test_an_idle_look_is_one_call_for_all_logs(place):
    store = filled(place)
    for number in range(5):
        store.view(f"v{number}", sql=SUMS)
    loop = FollowLoop(store, None, 1.0)
    loop.step(0.0)
    calls = []

    class Counting:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            calls.append(name)
            return getattr(self._inner, name)

    store._driver.consensus = Counting(store._driver.consensus)
    loop.step(1.0)
    assert set(calls) <= {"heads", "head"}
    assert calls.count("heads") <= 1


def test_views_that_share_inputs_are_one_commit_and_others_do_not_hold_them_back(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    store.view("big", sql="SELECT g FROM sums WHERE s > 2")
    store.view("others", sql="SELECT k FROM b")
    loop = FollowLoop(store, None, 1.0)
    loop.step(0.0)
    add(store, "a", 10)
    done = []
    loop._callback = done.append
    loop.step(1.0)
    assert [sorted(each) for each in done] == [["big", "sums"]]
    assert len({each.time for each in done[0].values()}) == 1
    assert behind(loop) == {"sums": 0, "big": 0, "others": 0}


def test_views_that_are_created_and_dropped_meanwhile_are_followed_and_left(place):
    store = filled(place)
    loop = FollowLoop(store, None, 1.0)
    loop.step(0.0)
    view = store.view("sums", sql=SUMS)
    store.view("gone", sql="SELECT k FROM a")
    loop.step(1.0)
    store.drop("gone")
    add(store, "a", 10)
    loop.step(2.0)
    assert view.upper == store["a"].upper
    assert list(behind(loop)) == ["sums"]
    assert loop.status(is_running=True).error == ""


def test_only_the_named_views_are_followed(place):
    store = filled(place)
    store.view("sums", sql=SUMS)
    other = store.view("rows", sql="SELECT k FROM a")
    loop = FollowLoop(store, ["sums"], 1.0)
    add(store, "a", 10)
    loop.step(0.0)
    assert behind(loop) == {"sums": 0}
    assert other.upper.time == 1
    for wrong in (["nope"], ["a"], "sums"):
        with pytest.raises(ts.UsageError):
            store.follow(wrong)
    with pytest.raises(ts.UsageError, match="duration"):
        store.follow(every="soon")


# Errors.


def test_storage_that_is_unavailable_is_tried_again_after_pauses_that_grow(place):
    script = Script()
    store = filled(place, script=script)
    view = store.view("sums", sql=SUMS)
    loop = FollowLoop(store, None, 0.1)
    loop.step(0.0)
    add(store, "a", 10)
    script.add("compare_and_set", Fault.DETERMINATE, key=view.id, times=6)  # two refreshes of three attempts each
    first = loop.step(1.0)
    assert (first.seconds, first.is_deaf) == (BACKOFF_S, True)
    assert "Determinate" in loop.status(is_running=True).views["sums"].error
    assert loop.step(1.0 + BACKOFF_S / 2).seconds == BACKOFF_S / 2
    second = loop.step(1.0 + BACKOFF_S)
    assert second.seconds == 2 * BACKOFF_S
    loop.step(1.0 + 3 * BACKOFF_S)
    assert script.is_done
    assert behind(loop) == {"sums": 0}
    assert loop.status(is_running=True).views["sums"].error == ""
    assert view.verify().is_exact


def test_a_view_that_cannot_be_computed_does_not_hold_back_the_others(place):
    store = filled(place)
    store["a"].delete({"k": 0})
    healthy = store.view("sums", sql=SUMS)
    above = store.view("big", sql="SELECT g FROM sums WHERE s > 2")
    bad = store.view("halves", sql="SELECT k, 12 / v AS h FROM a")
    on_bad = store.view("on_bad", sql="SELECT k FROM halves")
    loop = FollowLoop(store, None, 0.1)
    loop.step(0.0)
    add(store, "a", 10, v=0)
    loop.step(1.0)
    for now in (2.0, 3.0):
        add(store, "a", int(now) + 20)
        loop.step(now)
        assert healthy.upper == above.upper == store["a"].upper
    assert bad.upper == on_bad.upper
    assert bad.upper.time < healthy.upper.time
    status = loop.status(is_running=True).views
    assert "division by zero" in status["halves"].error
    assert (status["sums"].error, status["on_bad"].error) == ("", "")
    store["a"].delete({"k": 10})
    loop.step(200.0)
    loop.step(201.0)
    assert {view.upper for view in (healthy, above, bad, on_bad)} == {store["a"].upper}
    assert all(view.verify().is_exact for view in (healthy, above, bad, on_bad))
    assert not any(each.error for each in loop.status(is_running=True).views.values())


# Several followers.


def test_a_second_follower_stands_by_and_takes_over_when_the_first_is_gone(place):
    one, two = filled(place), place.open()
    view = one.view("sums", sql=SUMS)
    first, second = FollowLoop(one, None, 0.1), FollowLoop(two, None, 0.1)
    first.step(0.0)
    second.step(0.0)
    for number in range(10):
        add(one, "a", 10 + number)
        # The second looks first, before and after the first has refreshed.
        if number:
            second.step(1.0 + number)
        first.step(1.0 + number)
        second.step(1.0 + number)
    assert (first.refreshes, second.refreshes) == (10, 0)
    assert second.status(is_running=True).views["sums"].stands_by
    add(one, "a", 50)
    assert second.step(20.0).seconds == pytest.approx(GRACE_S)
    second.step(20.0 + GRACE_S)
    assert second.refreshes == 1
    add(one, "a", 51)
    second.step(30.0)
    assert second.refreshes == 2
    assert view.upper == one["a"].upper
    first.step(31.0)
    assert first.status(is_running=True).views["sums"].stands_by
    assert view.verify().is_exact


def test_two_followers_at_once_apply_each_interval_once(place):
    one, two = filled(place, **REAL), place.open(**REAL)
    view = one.view("sums", sql=SUMS, key=["g"])
    with one.follow(every=0.001), two.follow(every=0.001):
        for number in range(30):
            add(one, "a", 10 + number, v=number)
            if number % 5 == 4:
                until(lambda: view.upper == one["a"].upper)
    assert view.verify().is_exact
    assert sum(row["n"] for row in view.snapshot().to_pylist()) == one["a"].count()


# Threads.


def test_a_thread_follows_and_ends_with_its_block(place):
    store = filled(place, **REAL)
    view = store.view("sums", sql=SUMS)
    told = []
    with store.follow(every=0.01, callback=told.append) as following:
        add(store, "a", 10)
        until(lambda: view.upper == store["a"].upper)
        until(lambda: told)
        assert following.is_running
        assert following.status().views["sums"].last.how == "changes"
    assert not following.is_running
    assert "timespine-views" not in {thread.name for thread in threading.enumerate()}
    add(store, "a", 11)
    assert view.upper != store["a"].upper


def test_closing_the_store_ends_the_thread(place):
    store = filled(place, **REAL)
    store.view("sums", sql=SUMS)
    following = store.follow(every=0.01)
    until(lambda: following.status().looks)
    store.close()
    until(lambda: not following.is_running)
    assert following.error is None


def test_a_callback_that_fails_ends_the_thread_and_is_shown(place):
    store = filled(place)
    view = store.view("sums", sql=SUMS)

    def fail(done):
        raise RuntimeError("enough")

    with store.follow(every=0.01, callback=fail) as following:
        add(store, "a", 10)
        until(lambda: not following.is_running)
        assert str(following.error) == "enough"
        assert view.upper == store["a"].upper


def test_a_view_is_followed_in_the_foreground_until_the_timeout_or_an_interrupt(place):
    store = filled(place, **REAL)
    view = store.view("sums", sql=SUMS)
    add(store, "a", 10)
    status = view.follow(every=0.01, timeout=0.05)
    assert (status.views["sums"].behind, status.is_running) == (0, False)

    def interrupt(done):
        raise KeyboardInterrupt

    add(store, "a", 11)
    with pytest.raises(KeyboardInterrupt):
        view.follow(every=0.01, callback=interrupt)
    assert view.upper == store["a"].upper


def test_a_program_that_follows_ends_by_itself(tmp_path):
    program = f"""
import timespine as ts
store = ts.open({str(tmp_path)!r})
store.create("a", key={{"k": "int64"}}, timeline="counter")
store["a"].append([{{"k": 1}}])
store.view("v", sql="SELECT k FROM a")
following = store.follow(every=0.01)
store["a"].append([{{"k": 2}}])
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
