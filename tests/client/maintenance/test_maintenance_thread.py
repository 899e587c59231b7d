"""One maintainer per store and machine: the others wait, do what their commits require, and take over."""

from assertions import until

import timespine as ts
from timespine.client.maintenance import maintenance_thread
from timespine.client.maintenance.maintenance_thread import STALLED_S, MaintenanceThread
from timespine.location.machine.role import EveryProcess

KEY = {"n": "int64"}


class Taken:
    """A role that another process has."""

    def take(self):
        return False

    def release(self):
        pass


def test_one_store_of_a_folder_maintains_it_and_the_next_takes_over(tmp_path):
    first, second = ts.open(tmp_path), ts.open(tmp_path)
    threads = [each._maintenance._thread for each in (first, second)]
    assert [each.is_maintainer for each in threads] == [True, False]
    first.close()
    assert threads[1].take_role()
    second.close()
    with ts.open(tmp_path) as third:
        assert third._maintenance._thread.is_maintainer


def test_a_store_that_is_not_the_maintainer_commits_no_merge_and_folds_what_its_commits_fill(tmp_path):
    config = ts.Config(inline_total_bytes=2 << 10)
    with ts.open(tmp_path) as maintainer, ts.open(tmp_path, config=config) as store:
        maintainer._maintenance.round = lambda: False
        numbers = store.create("numbers", key=KEY, timeline="counter")
        for n in range(500):
            numbers.append([{"n": n}])
        assert store._maintenance.report.merges == 0
        assert numbers._handle.state().inline_bytes <= config.inline_total_bytes
        assert numbers._handle.state().totals.merged_rows > 0
        assert numbers.count() == 500
    assert store._maintenance.report.failures == 0


def test_a_process_works_without_the_role_after_the_maintainer_did_nothing_for_long(monkeypatch):
    monkeypatch.setattr(maintenance_thread, "TRY_S", 0.001)
    now, rounds, looks = [0.0], [], []

    def work():
        rounds.append(now[0])
        return False, False

    thread = MaintenanceThread(work, lambda: looks.append(now[0]), lambda: None, Taken(), lambda: now[0])
    thread.start()
    until(lambda: len(looks) > 3)
    assert rounds == []
    now[0] = STALLED_S
    until(lambda: (thread.wake(), rounds)[1])
    assert rounds[0] == STALLED_S
    assert thread.stop(60)
    assert not thread.is_alive()


def test_the_maintainer_looks_again_soon_while_other_processes_write(monkeypatch):
    pauses = []
    thread = MaintenanceThread(lambda: (False, True), lambda: None, lambda: None, EveryProcess(), lambda: 0.0)

    def wait(limit_s):
        pauses.append(limit_s)
        if len(pauses) == 5:
            thread.stopping.set()
        return False

    thread._wake.wait = wait
    thread.start()
    until(lambda: not thread.is_alive())
    assert pauses == [maintenance_thread.PAUSE_S] * 5
    assert thread.stop(60)
