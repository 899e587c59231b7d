"""Turns beside other processes: a change that keeps losing gets in, and what waits for it is committed after it."""

from dataclasses import replace

import pytest
from assertions import until
from memory_store import QUICK, Script, in_threads

from timespine.client.commit import cross_process_turn as turns
from timespine.client.commit.cross_process_turn import CLAIM_WAITS, PAUSE_MAX_MS
from timespine.client.commit.retry_limits import RETRY
from timespine.core.transitions import ClaimTurn, ReleaseTurn
from timespine.core.transitions.turns import REST_MS, free_from
from timespine.errors import Contention, CorruptionError, Determinate, UsageError
from timespine.testing.unreliable import Fault


def create(store, name="t"):
    table = store.create(name, key={"k": "int64"}, value={"n": "int64"}, timeline="counter")
    table.append([row(1, 1), row(2, 2)])
    return table


def row(k, n=0):
    return {"k": k, "n": n}


def rows(table):
    return sorted((each["k"], each["n"]) for each in table.snapshot().to_pylist())


def turn_of(table):
    return table._handle.state().turn


def claim(table, term_ms=1000):
    """Give the turn to the process of a store, as if it died with it."""
    writer = table._handle.committer.writer(table.id)
    table._handle.committer.commit((table.id, ClaimTurn(writer, term_ms)))


class Sleeping:
    """Pauses that move the clock, and what is to happen before some of them."""

    def __init__(self, place, moves=True):
        self.slept_ms = []
        self.works = []
        self._place = place
        self._moves = moves

    def __call__(self, seconds):
        self.slept_ms.append(round(seconds * 1000))
        if self._moves:
            self._place.clock.advance(seconds)
        if self.works:
            self.works.pop(0)()


class Losing(Script):
    """Lets another process append before each compare-and-set, as often as is said."""

    def __init__(self, works):
        super().__init__()
        self.works = works

    def __call__(self, operation, key):
        if operation == "compare_and_set" and self.works:
            self.works.pop(0)()
        return super().__call__(operation, key)


# Those who wait.


def test_an_append_waits_while_another_process_has_its_turn_and_goes_in_when_that_ends(place):
    table = create(place.open())
    sleeping = Sleeping(place)
    theirs = place.open(sleep=sleeping)["t"]
    theirs.append([row(3)])
    claim(table)
    writer = turn_of(table).writer
    sleeping.works = [
        lambda: table.append([row(4)]),  # the process that has the turn does not wait
        lambda: table._handle.committer.commit((table.id, ReleaseTurn(writer))),
    ]
    done = theirs.append([row(5)])
    assert len(sleeping.slept_ms) == 2, "it notices soon that the turn was given back"
    assert done.time == 3
    assert rows(table) == [(1, 1), (2, 2), (3, 0), (4, 0), (5, 0)]
    counters = theirs._handle.committer.counters
    assert counters["waits for turns"] == 1
    assert counters["commands append next"] == 2
    assert "commands failed" not in counters, "what waits has not failed"


def test_a_process_that_died_in_its_turn_holds_up_others_until_the_deadline(place):
    table = create(place.open())
    sleeping = Sleeping(place)
    theirs = place.open(sleep=sleeping)["t"]
    theirs.append([row(3)])
    claim(table)
    theirs.append([row(4)])
    assert 1000 <= sum(sleeping.slept_ms) <= 1000 + PAUSE_MAX_MS
    assert rows(table)[-1] == (4, 0)


def test_a_clock_that_stands_still_makes_no_thread_wait_longer_than_two_turns(place):
    table = create(place.open())
    sleeping = Sleeping(place, moves=False)
    theirs = place.open(sleep=sleeping)["t"]
    theirs.append([row(3)])
    claim(table)
    theirs.append([row(4)])
    theirs.upsert([row(4, 4)])
    assert sum(sleeping.slept_ms) <= 2 * (2 * 1000 + PAUSE_MAX_MS)
    assert rows(table)[-1] == (4, 4)


def test_a_transaction_waits_no_longer_than_two_turns_in_all_however_often_it_is_placed(place):
    """The owner of the turn commits again and again, so the transaction is offered many times."""
    mine = create(place.open())
    other = create(place.open(), "u")
    sleeping, script = Sleeping(place, moves=False), Losing([])
    store = place.open(script=script, sleep=sleeping)
    store["t"].append([row(3)])
    claim(mine, term_ms=1000)
    numbers = iter(range(10, 20))
    script.works = [lambda: mine.append([row(next(numbers))])] * 3
    with store.transaction() as tx:
        tx.append("t", [row(4)])
        tx.append(store["u"], [row(4)])
    assert not script.works, "it lost three places"
    assert sum(sleeping.slept_ms) <= 2000 + PAUSE_MAX_MS
    assert (4, 0) in rows(mine)
    assert (4, 0) in rows(other)


def test_a_process_whose_writer_was_expired_holds_up_no_other(place):
    table = create(place.open())
    sleeping = Sleeping(place)
    theirs = place.open(sleep=sleeping)["t"]
    claim(table)
    place.stores[0].close()
    theirs.append([row(4)])
    assert sleeping.slept_ms == []


def test_reads_and_other_collections_of_a_process_go_on_while_one_of_its_threads_waits(place):
    store = place.open()
    table, other = create(store), create(store, "other")
    sleeping = Sleeping(place)
    mine = place.open(sleep=sleeping)
    mine["t"].append([row(3)])
    claim(table)
    pauses = []

    def work():
        pauses.append(len(sleeping.slept_ms))
        in_threads(lambda: mine["other"].append([row(7)]), lambda: mine["t"].snapshot().to_pylist())
        mine["t"].expire(1)
        assert len(sleeping.slept_ms) == pauses[0], "none of them waited"

    sleeping.works = [work]
    mine["t"].append([row(4)])
    assert pauses == [1]
    assert rows(other)[-1] == (7, 0)
    assert rows(table)[-1] == (4, 0)


def test_an_append_costs_one_compare_and_set_and_nothing_more_while_no_change_claims_a_turn(place):
    script = Script()
    table = create(place.open(script=script))
    before = script.calls.copy()
    table.append([row(3)])
    assert script.calls - before == {"compare_and_set": 1}
    assert turn_of(table) is None
    before = script.calls.copy()
    claim(table)
    table._handle.committer.commit((table.id, ReleaseTurn(turn_of(table).writer)))
    before = script.calls.copy()
    table.append([row(4)])
    assert script.calls - before == {"compare_and_set": 1}, "nor after one"


# The change that has the turn.


def losing(place, times, **options):
    """A collection that loses its next compare-and-sets to a process that waits for turns."""
    script = Losing([])
    table = create(place.open(script=script, sleep=place.clock.advance, **options))
    table.snapshot().close()
    theirs = place.open(sleep=place.clock.advance)["t"]
    theirs.append([row(100)])
    table._handle.state()
    script.works += [lambda k=k: theirs.append([row(k)]) for k in range(101, 101 + times)]
    return table, script


def test_a_change_that_lost_a_few_times_commits_in_its_turn_and_gives_it_back_by_the_same_compare_and_set(place):
    table, script = losing(place, RETRY.quick_losses)
    before = script.calls["compare_and_set"]
    table.update(where="k < 50", set={"n": 9})
    assert script.calls["compare_and_set"] - before == RETRY.quick_losses + 2, "one claims the turn"
    assert turn_of(table).writer == ""
    assert table._handle.committer.counters["turns taken"] == 1
    assert table._handle.committer.counters["changes placed again"] == RETRY.quick_losses
    assert rows(table) == [(1, 9), (2, 9), *((k, 0) for k in range(100, 101 + RETRY.quick_losses))]


def test_a_change_that_goes_in_soon_claims_no_turn(place):
    table, _ = losing(place, RETRY.quick_losses - 1)
    table.update(where="k < 50", set={"n": 9})
    assert turn_of(table) is None


def test_a_turn_that_was_too_short_is_followed_by_one_twice_as_long(place, monkeypatch):
    """The appends come inside the compare-and-sets of the change, so they wait until its turn has passed."""
    claimed = []

    def recorded(writer, term_ms):
        claimed.append(term_ms)
        return ClaimTurn(writer, term_ms)

    monkeypatch.setattr(turns, "ClaimTurn", recorded)
    table, script = losing(place, RETRY.quick_losses)
    theirs = place.open(sleep=place.clock.advance)["t"]
    theirs.append([row(99)])
    script.works += [lambda: None, lambda: theirs.append([row(200)])]  # the claim, and the change in its turn
    table.update(where="k < 50", set={"n": 9})
    assert claimed == [1000, 2000]
    assert table._handle.committer.counters["changes placed again"] == RETRY.quick_losses + 1
    assert turn_of(table).writer == ""
    assert (200, 0) in rows(table)


def test_a_change_waits_for_its_turn_until_others_had_time_to_commit(place):
    table, script = losing(place, RETRY.quick_losses)
    theirs = place.open(sleep=place.clock.advance)["t"]

    def claim_and_release():
        claim(theirs)
        place.clock.advance(0.3)
        theirs._handle.committer.commit((theirs.id, ReleaseTurn(turn_of(theirs).writer)))
        theirs.append([row(300)])

    script.works[RETRY.quick_losses - 1] = claim_and_release
    before = place.clock.ms
    table.update(where="k < 50", set={"n": 9})
    assert place.clock.ms - before >= 600, "as long as the turn of the other took"
    assert table._handle.committer.counters["turns taken"] == 1
    assert (300, 0) in rows(table)


def test_a_change_that_is_not_given_a_turn_is_placed_without_one(place):
    """Another process had its turn, and no clock moves, so that the time after it never passes."""
    slept = Sleeping(place, moves=False)
    script = Losing([])
    table = create(place.open(script=script, sleep=slept))
    table.snapshot().close()
    theirs = place.open()["t"]
    theirs.append([row(100)])
    claim(theirs)
    theirs._handle.committer.commit((theirs.id, ReleaseTurn(turn_of(theirs).writer)))
    script.works += [lambda k=k: theirs.append([row(k)]) for k in range(101, 101 + RETRY.quick_losses)]
    table.update(where="k < 50", set={"n": 9})
    assert CLAIM_WAITS * 1000 < sum(slept.slept_ms) <= CLAIM_WAITS * 1000 + PAUSE_MAX_MS
    assert "turns taken" not in table._handle.committer.counters
    assert rows(table)[:2] == [(1, 9), (2, 9)]


def test_a_turn_that_another_process_claims_first_is_waited_for(place):
    table, script = losing(place, RETRY.quick_losses)
    theirs = place.open(sleep=place.clock.advance)["t"]
    theirs.append([row(99)])
    script.works.append(lambda: claim(theirs))  # before the claim of the change
    table.update(where="k < 50", set={"n": 9})
    assert table._handle.committer.counters["turns taken"] == 1
    assert turn_of(table).writer == ""
    assert table._handle.committer.counters["changes placed again"] == RETRY.quick_losses, "it was not placed in vain"


def test_a_change_whose_claims_others_are_always_faster_with_is_placed_without_a_turn(place):
    slept = Sleeping(place)
    script = Losing([])
    table = create(place.open(script=script, sleep=slept))
    table.snapshot().close()
    theirs = place.open(sleep=place.clock.advance)["t"]
    theirs.append([row(100)])
    script.works += [lambda k=k: theirs.append([row(k)]) for k in range(101, 101 + RETRY.quick_losses)]

    def claim_first():
        script.works.append(claim_first)
        if not free_from(theirs._handle.state(), place.clock.ms):
            claims.append(claim(theirs))

    claims = []
    script.works.append(claim_first)
    table.update(where="k < 50", set={"n": 9})
    assert 1 < len(claims) <= CLAIM_WAITS
    assert sum(slept.slept_ms) <= (CLAIM_WAITS + 2) * 1000 + 2 * PAUSE_MAX_MS
    assert "turns taken" not in table._handle.committer.counters
    assert rows(table)[:2] == [(1, 9), (2, 9)]


def test_a_claim_in_doubt_is_given_back_with_the_change(place):
    table, script = losing(place, RETRY.quick_losses)

    def lose_replies():
        script.add("compare_and_set", Fault.INDETERMINATE_DONE, times=QUICK.storage_attempts)

    script.works.append(lose_replies)  # before the claim
    table.update(where="k < 50", set={"n": 9})
    assert script.is_done
    assert turn_of(table).writer == ""
    assert rows(table)[:2] == [(1, 9), (2, 9)]


def test_a_claim_that_storage_does_not_take_costs_only_the_turn(place):
    table, script = losing(place, RETRY.quick_losses)
    attempts = QUICK.storage_attempts

    def fail():
        script.add("compare_and_set", Fault.DETERMINATE, times=attempts)

    script.works.append(fail)
    table.update(where="k < 50", set={"n": 9})
    assert "turns taken" not in table._handle.committer.counters
    assert rows(table)[:2] == [(1, 9), (2, 9)]


def test_a_change_that_fails_in_its_turn_gives_it_back(place):
    table, script = losing(place, RETRY.quick_losses)
    theirs = place.open(sleep=place.clock.advance)["t"]
    theirs.append([row(99)])
    script.works.append(lambda: theirs.append([{"k": 1, "n": 1, "_diff": -2}]))  # before the claim
    with pytest.raises(UsageError, match="negative count"):
        table.update(where="k < 50", set={"n": 9})
    assert turn_of(table).writer == ""


ATTEMPTS = replace(QUICK, commit_attempts=4)


def test_appends_that_lose_on_every_try_go_in_by_a_turn_and_give_it_back_by_the_same_compare_and_set(place):
    table, script = losing(place, ATTEMPTS.commit_attempts, config=ATTEMPTS)
    before = script.calls["compare_and_set"]
    reply = table.append([row(50)])
    assert script.calls["compare_and_set"] - before == ATTEMPTS.commit_attempts + 2, "one claims the turn"
    assert turn_of(table).writer == ""
    assert table._handle.committer.counters["turns taken"] == 1
    assert reply.rows == 1
    assert (50, 0) in rows(table)


def test_appends_that_lose_their_claims_too_are_refused_and_are_not_there(place):
    table, script = losing(place, 2 * ATTEMPTS.commit_attempts, config=ATTEMPTS)
    with pytest.raises(Contention, match="in a row"):
        table.append([row(50)])
    assert not script.works
    assert "turns taken" not in table._handle.committer.counters
    assert (50, 0) not in rows(table)


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_DONE])
def test_appends_that_fail_in_their_turn_give_it_back_or_may_be_there(place, fault):
    table, script = losing(place, ATTEMPTS.commit_attempts, config=ATTEMPTS)
    claimed = []

    def fail():
        claimed.append(turn_of(table).writer)
        script.add("compare_and_set", fault, times=QUICK.storage_attempts)

    script.works += [lambda: None, fail]  # the claim, and what comes in the turn
    if fault is Fault.DETERMINATE:
        with pytest.raises(Determinate):
            table.append([row(50)])
    else:
        table.append([row(50)])  # the log tells
    assert claimed != [""]
    assert turn_of(table).writer == ""
    assert ((50, 0) in rows(table)) == (fault is Fault.INDETERMINATE_DONE)


@pytest.mark.parametrize("lost", [0, ATTEMPTS.commit_attempts])
@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.CONFLICT_DONE])
def test_a_group_in_doubt_behind_another_error_is_not_committed_again(place, lost, fault):
    """In a turn and without one: its reply is lost, and the look at the log finds damage, once."""
    table, script = losing(place, 0, config=ATTEMPTS)
    other = create(place.stores[0], "u")
    theirs = place.stores[1]["t"]
    queue = table._handle.committer._queue
    lead, failures = queue._lead, []

    def lead_both(*arguments):
        until(lambda: failures or len(queue._queue) == 2)
        return lead(*arguments)

    def damage():
        raise CorruptionError("a damaged reply, once")

    def fail():
        script.add("compare_and_set", fault)
        script.add("scan", Fault.NONE, hook=damage)

    def append(collection, k):
        with pytest.raises(CorruptionError):
            collection.append([row(k)])
        failures.append(k)

    script.works += [lambda k=k: theirs.append([row(k)]) for k in range(101, 101 + lost)]
    script.works += ([lambda: None] if lost else []) + [fail]
    queue._lead = lead_both
    in_threads(lambda: append(table, 50), lambda: append(other, 51))
    assert rows(place.open()["t"]).count((50, 0)) == 1
    assert rows(place.open()["u"]).count((51, 0)) == 1


def test_a_transaction_has_the_turns_of_all_its_collections_at_once(place):
    script = Losing([])
    store = place.open(script=script, sleep=place.clock.advance)
    table, other = create(store), create(store, "other")
    theirs = place.open(sleep=place.clock.advance)
    theirs["t"].append([row(100)])
    theirs["other"].append([row(100)])
    with store.transaction() as tx:
        tx.update(table, where="k = 1", set={"n": 9})
        tx.upsert(other, [row(1, 9)])
        tx.create("new", key={"k": "int64"}, timeline="counter")
        tx.append("new", [{"k": 1}])
        table.snapshot().close()
        other.snapshot().close()
        names = ("t", "other") * RETRY.quick_losses
        script.works += [lambda name=name, k=k: theirs[name].append([row(200 + k)]) for k, name in enumerate(names)]
    assert [turn_of(each).writer for each in (table, other)] == ["", ""]
    assert turn_of(table).from_ms == turn_of(other).from_ms
    assert turn_of(store["new"]) is None
    assert rows(table)[0] == rows(other)[0] == (1, 9)


def test_the_pause_of_who_waits_is_far_shorter_than_the_time_between_two_turns():
    assert 3 * PAUSE_MAX_MS <= REST_MS


def test_the_first_turn_lasts_as_long_as_the_config_says(place):
    table, _ = losing(place, RETRY.quick_losses, config=replace(QUICK, turn_ms=7))
    table.update(where="k < 50", set={"n": 9})
    assert turn_of(table).until_ms - turn_of(table).from_ms <= 7
