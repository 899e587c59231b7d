"""The threaded driver: real storage, the same protocols, failures included."""

import threading

import pytest

from timespine.client.commit.effect_driver import Driver, fresh_id
from timespine.config import Config
from timespine.core.effects import DeleteBlobs, FreshId, GetBlob, MergeRuns, Now, PutBlob, Sleep
from timespine.core.group import Refused
from timespine.core.protocols import garbage, maintain
from timespine.core.protocols.commit import commit, register_session
from timespine.core.protocols.session import Session
from timespine.core.transitions import Retain, RollUpAll
from timespine.errors import Determinate, NoSpace, UpperMismatch
from timespine.ids import parse_blob_key
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.model.frontier import Frontier
from timespine.testing.create_or_find import create_or_find
from timespine.testing.formats.naive import data_of, merge_runs, row_counts
from timespine.testing.simulator import core_reads, core_writes
from timespine.testing.unreliable import Fault, UnreliableConsensus


def session_on(driver, name="c", **config):
    session = Session(fresh_id("k"), fresh_id("w"), Config(inline_part_bytes=1, retry_pause_ms=1, **config))
    driver.run(create_or_find(session, name))
    driver.run(register_session(session, name))
    return session


def append(driver, session, time, row, name="c"):
    return driver.run(
        core_writes.compare_and_append_data(
            session, name, data_of([(row, (time,), 1)]), Frontier.at(time), Frontier.at(time + 1)
        )
    )


@pytest.fixture(params=["memory", "folder"])
def driver(request, tmp_path):
    if request.param == "memory":
        ports = MemoryBlob(), MemoryConsensus()
    else:
        ports = LocalBlob(tmp_path / "blobs"), SqliteConsensus(tmp_path / "consensus.db")
    with Driver(*ports, merge_runs) as made:
        yield made


def test_what_was_appended_is_read_before_and_after_merging_and_collecting(driver):
    session = session_on(driver)
    for time in range(9):
        assert append(driver, session, time, f"row {time}") == Frontier.at(time + 1)
    before = row_counts(*driver.run(core_reads.fetch_snapshot(session, "c", (8,))))
    assert before == {f"row {time}": 1 for time in range(9)}
    driver.run(commit(session, "c", Retain(Frontier.at(8)), RollUpAll()))
    assert driver.run(maintain.merge_once(session, "c")).is_applied
    files = len(list(driver.blob.list_keys("c/")))
    for _ in range(2):
        assert driver.run(maintain.roll_up(session, "c"))
        driver.run(garbage.collect_garbage(session, "c"))
    driver.run(garbage.sweep(session, "c"))
    assert len(list(driver.blob.list_keys("c/"))) < files
    assert row_counts(*driver.run(core_reads.fetch_snapshot(session, "c", (8,)))) == before
    newcomer = session_on(driver)
    assert row_counts(*driver.run(core_reads.fetch_snapshot(newcomer, "c", (8,)))) == before


def test_of_two_writers_at_the_same_upper_one_wins_and_the_other_is_told_the_upper(driver):
    ours, theirs = session_on(driver), session_on(driver)
    assert append(driver, ours, 0, "ours") == Frontier.at(1)
    refused = append(driver, theirs, 0, "theirs")
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, UpperMismatch)
    assert refused.reason.actual == Frontier.at(1)


def test_threads_that_append_concurrently_lose_nothing(driver):
    session_on(driver)

    def work(number):
        session = session_on(driver, commit_attempts=1000)
        done = 0
        while done < 10:
            upper = session.state("c").upper.elements[0][0]
            reply = append(driver, session, upper, f"{number}.{done}")
            done += not isinstance(reply, Refused)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = session_on(driver)
    last = reader.state("c").upper.elements[0][0] - 1
    assert row_counts(*driver.run(core_reads.fetch_snapshot(reader, "c", (last,)))) == {
        f"{n}.{i}": 1 for n in range(4) for i in range(10)
    }


def test_an_append_whose_reply_was_lost_is_committed_once():
    faults = iter([Fault.NONE, Fault.NONE, Fault.INDETERMINATE_DONE])
    plain = MemoryConsensus()
    unreliable = UnreliableConsensus(
        plain, lambda operation, key: next(faults, Fault.NONE) if operation == "compare_and_set" else Fault.NONE
    )
    with Driver(MemoryBlob(), unreliable, merge_runs, sleep=lambda seconds: None) as driver:
        session = session_on(driver)
        assert append(driver, session, 0, "once") == Frontier.at(1)
        assert session.counters["indeterminate"] == 1
        assert row_counts(*driver.run(core_reads.fetch_snapshot(session, "c", (0,)))) == {"once": 1}


class Full(MemoryBlob):
    """A disk without space, and with this number of reserves."""

    def __init__(self, reserves):
        super().__init__()
        self.reserves = reserves
        self.puts = 0
        self.free = 0

    def put(self, key, value):
        self.puts += 1
        if not self.free:
            raise NoSpace("full")
        self.free -= 1
        super().put(key, value)

    def release_reserve(self):
        self.free += self.reserves > 0
        self.reserves -= 1
        return self.reserves >= 0


@pytest.mark.parametrize(
    ("frees_space", "reserves", "puts", "is_put"),
    [(True, 1, 2, True), (True, 0, 1, False), (False, 1, 1, False)],
)
def test_a_write_that_frees_space_is_tried_once_more_with_the_reserve(frees_space, reserves, puts, is_put):
    disk, logs = Full(reserves), MemoryConsensus()
    logs.release_reserve = disk.release_reserve

    def protocol():
        try:
            yield PutBlob("c/w/p", b"x")
        except NoSpace:
            return False
        return True

    with Driver(disk, logs, merge_runs) as driver:
        assert driver.run(protocol(), frees_space=frees_space) is is_put
    assert disk.puts == puts


def test_a_merge_that_finds_no_space_leaves_the_reserve():
    def no_room(effect):
        yield Now()
        raise NoSpace("full")

    disk, logs = Full(1), MemoryConsensus()
    logs.release_reserve = disk.release_reserve

    def protocol():
        yield MergeRuns("c", None, "w")

    with Driver(disk, logs, no_room) as driver, pytest.raises(NoSpace):
        driver.run(protocol(), frees_space=True)
    assert disk.reserves == 1


def test_effects_are_carried_out_with_the_injected_clock_and_sleep():
    slept = []
    with Driver(MemoryBlob(), MemoryConsensus(), merge_runs, clock=lambda: 12.5, sleep=slept.append) as driver:

        def protocol():
            yield Sleep(250)
            id = yield FreshId("p")
            return (yield Now()), id

        now, id = driver.run(protocol())
    assert now == 12500
    assert slept == [0.25]
    assert parse_blob_key(f"c/w/{id}").name == id


def test_a_failing_delete_is_raised_after_all_were_tried():
    class Failing(MemoryBlob):
        def delete(self, key):
            if key.endswith("b"):
                raise Determinate("injected")
            return super().delete(key)

    with Driver(Failing(), MemoryConsensus(), merge_runs) as driver:

        def protocol():
            for name in "abc":
                yield PutBlob(f"c/w/{name}", b"x")
            try:
                yield DeleteBlobs(("c/w/a", "c/w/b", "c/w/c"))
            except Determinate:
                yield DeleteBlobs(("c/w/a",))
            a = yield GetBlob("c/w/a")
            b = yield GetBlob("c/w/b")
            c = yield GetBlob("c/w/c")
            return [a, b, c]

        assert driver.run(protocol()) == [None, b"x", None]


def test_closing_closes_both_ports_even_if_one_fails():
    class Sticky(MemoryBlob):
        def close(self):
            super().close()
            raise Determinate("injected")

    closed = []

    class Watched(MemoryConsensus):
        def close(self):
            closed.append(True)
            super().close()

    driver = Driver(Sticky(), Watched(), merge_runs)
    with pytest.raises(Determinate):
        driver.close()
    assert closed == [True]
