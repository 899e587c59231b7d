"""Merging as requests and responses: who is asked, what an answer may do, and what becomes of one that is not wanted.

A request is read off the state, a claim in the state says that it is in flight, and the response is a result that
is offered to the state. So all of it outlives whoever began it.
"""

import logging
import threading

import msgspec
import pytest
from assertions import check
from memory_store import Script, counted, in_threads

from timespine.client.maintenance.maintenance import EXPIRE_S, REST_S
from timespine.config import Config
from timespine.core.transitions import ClaimMerge, RollUpAll
from timespine.errors import ClosedError, DiffOverflow, Unavailable
from timespine.testing.unreliable import Fault

OFTEN = Config(retry_pause_ms=1, storage_attempts=3, inline_part_bytes=1, rollup_seqnos=1000)
"""Everything in blobs, and nothing but merges to do."""

CLAIM_S = OFTEN.claim_ms / 1000 + 1


def create(store, name="orders", times=10):
    orders = store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter")
    for n in range(times):
        orders.append([{"k": n, "v": f"v{n}"}])
    orders.compact()  # one request for all of it
    return orders


def rows(collection):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), "k", "v")


ALL = {(n, f"v{n}"): 1 for n in range(10)}


def requests(collection):
    return [request.id for request in collection._handle.state().trace.requests()]


def written_by_merges(place):
    """Blobs that merges put, by their writers."""
    return [key for key in place.blobs() if key.split("/")[1].startswith("m")]


def answered(store, answer):
    """Let `answer` stand between the merges of a store and what they were asked for."""
    real = store._engine.merge
    store._engine.merge = lambda effect: answer(real, effect)


def step(store, clock):
    """Look at all open collections, as the maintenance thread does, before and after they come to rest."""
    store._maintenance.round()
    clock.advance(REST_S)
    return store._maintenance.round()


# In flight.


@pytest.mark.parametrize("who", ["the same process", "another one"])
def test_a_request_in_flight_is_not_issued_twice(place, who):
    store = place.open(config=OFTEN)
    orders = create(store)
    other = place.open(config=OFTEN)
    other["orders"]
    issued = []

    def answer(real, effect):
        issued.append(effect.request.id)
        if len(issued) == 1:
            # It is under way: somebody else looks for something to do, and finds it taken.
            if who == "another one":
                assert not step(other, place.clock)
                assert other._maintenance.report.passed_over > 0
            claims = orders._handle.state().claims
            assert [claim.claimant for claim in claims.values()] == [effect.writer]
            assert not store._committer.commit((orders.id, ClaimMerge(effect.request.id, "w-else", 1000)))[0]
        return real(effect)

    for each in (store, other):
        answered(each, answer)
    (request,) = requests(orders)
    report = store.maintain()
    assert issued[0] == request
    assert issued.count(request) == 1
    assert report.merges == len(issued)
    assert other._maintenance.report.merges == 0
    assert orders._handle.state().claims == {}  # a claim goes with what it was for
    assert rows(orders) == ALL


def test_two_threads_of_a_process_do_not_issue_the_same_request(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    issued, lock = [], threading.Lock()

    def answer(real, effect):
        with lock:
            issued.append(effect.request.id)
        return real(effect)

    answered(store, answer)
    together = threading.Barrier(4)

    def work():
        together.wait(60)
        store.maintain()

    in_threads(*[work] * 4)
    assert len(issued) == len(set(issued)) > 0
    assert rows(orders) == ALL


# Responses that are errors.


@pytest.mark.parametrize("error", [Unavailable("away"), DiffOverflow("too many"), ValueError("odd"), MemoryError()])
def test_an_error_response_leads_to_a_retry_when_the_claim_is_over(place, error):
    store = place.open(config=OFTEN)
    orders = create(store)
    (request,) = requests(orders)
    issued, fails = [], [True]

    def answer(real, effect):
        issued.append(effect.request.id)
        if fails:
            raise error
        return real(effect)

    answered(store, answer)
    step(store, place.clock)
    assert issued == [request]
    for _ in range(5):
        step(store, place.clock)
    assert issued == [request]  # left alone: by whoever remembers it, and by others, who see the claim
    other = place.open(config=OFTEN)
    other["orders"]
    step(other, place.clock)
    assert other._maintenance.report.merges == 0
    place.clock.advance(CLAIM_S)
    step(store, place.clock)
    assert issued == [request] * 2  # and then tried again, the same
    fails.clear()
    place.clock.advance(CLAIM_S)
    step(store, place.clock)
    assert issued == [request] * 3
    assert store._maintenance.report.merges == 1
    assert rows(orders) == ALL
    assert store._maintenance.report.failures == store._upkeep.counters["merges failed"] == 2
    assert written_by_merges(place) == [part.key for part in orders._handle.state().parts()]


def test_after_a_response_the_next_request_is_another_one(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    (first,) = requests(orders)
    step(store, place.clock)
    assert requests(orders) == []
    for n in range(10, 20):
        orders.append([{"k": n, "v": f"v{n}"}])
    orders.compact()
    (second,) = requests(orders)
    assert second != first
    store.maintain()
    assert requests(orders) == []
    assert len(rows(orders)) == 20


# Responses that nobody wants any more.


def test_a_response_for_a_dropped_collection_is_dropped_and_its_output_deleted(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    outputs = []

    def answer(real, effect):
        output = real(effect)
        outputs.extend(part.key for part in output.batch.parts)
        # While it was at work the collection was dropped, and whatever can be buried is.
        assert other.drop("orders")
        other.maintain()
        assert set(outputs) <= set(place.blobs())
        return output

    answered(store, answer)
    store._maintenance.round()  # one step, and no sweep that would find what is left
    assert outputs
    assert not set(outputs) & set(place.blobs())
    assert store._maintenance.report.merges == 0
    assert store._upkeep.counters["merges dropped"] == 1
    other.maintain()
    assert other._catalog.read().dropped == ()
    with pytest.raises(ClosedError):
        orders.append([{"k": 1, "v": "a"}])


def test_a_merge_whose_inputs_went_with_their_collection_fails_quietly_and_leaves_nothing(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    create(store)

    def answer(real, effect):
        assert other.drop("orders")
        other.maintain()
        return real(effect)

    answered(store, answer)
    step(store, place.clock)
    assert store._maintenance.report.merges == 0
    assert written_by_merges(place) == []
    assert not step(store, place.clock)  # a collection that is gone asks for nothing


def wrong(output, how):
    """A result that is not what was asked for."""
    (run,) = output.runs
    if how == "other times":
        desc = msgspec.structs.replace(output.desc, upper=type(output.desc.upper).at(5))
        return msgspec.structs.replace(output, desc=desc)
    part = msgspec.structs.replace(run.parts[0], diff_sum=run.parts[0].diff_sum + 1)
    return msgspec.structs.replace(output, runs=(msgspec.structs.replace(run, parts=(part, *run.parts[1:])),))


@pytest.mark.parametrize("how", ["other times", "other counts", "too late"])
def test_a_response_that_does_not_match_what_is_in_flight_is_refused_and_its_output_deleted(place, how):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    outputs = []

    def answer(real, effect):
        output = real(effect)
        outputs.extend(part.key for part in output.batch.parts)
        if how != "too late":
            return msgspec.structs.replace(output, batch=wrong(output.batch, how))
        # It took so long that somebody else has done more than that: what was in flight is not any more.
        place.clock.advance(CLAIM_S)
        other["orders"].append([{"k": 0, "v": "v0", "_diff": 2}])
        other["orders"].append([{"k": 0, "v": "v0", "_diff": -2}])
        other["orders"].compact(wait=True)
        return output

    answered(store, answer)
    store._maintenance.round()  # one step, and no sweep that would find what is left
    assert outputs
    assert not set(outputs) & set(place.blobs())
    assert store._maintenance.report.merges == 0
    assert store._upkeep.counters["merges dropped"] == 1
    assert rows(orders) == rows(place.open()["orders"]) == ALL


# Storage that is away while somebody answers.


@pytest.mark.parametrize(
    "fault", [Fault.DETERMINATE, Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE], ids=str
)
def test_storage_that_is_away_while_a_response_comes_leads_to_a_retry_and_loses_nothing(place, fault):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    orders = create(store)

    def answer(real, effect):
        output = real(effect)
        script.add("compare_and_set", fault, key=orders.id, times=99)
        return output

    answered(store, answer)
    step(store, place.clock)
    assert store._maintenance.report.merges == 0
    assert store._maintenance.report.failures > 0
    script.rules.clear()
    store._engine.merge = type(store._engine).merge.__get__(store._engine)
    store.ghosts()
    place.clock.advance(CLAIM_S)
    for _ in range(3):
        step(store, place.clock)
    assert requests(orders) == []
    assert rows(orders) == rows(place.open()["orders"]) == ALL
    # What the first try put and nobody took goes when its writer does.
    place.clock.advance(OFTEN.writer_lease_ms / 1000 + EXPIRE_S)
    for _ in range(2):
        store.maintain(sweep=True)
    assert written_by_merges(place) == [part.key for part in orders._handle.state().parts()]


def test_storage_that_is_away_before_a_merge_begins_leads_to_a_retry(place):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    orders = create(store)
    script.add("get_range", Fault.DETERMINATE, times=500)
    step(store, place.clock)
    assert (store._maintenance.report.merges, store._maintenance.report.failures) == (0, 1)
    script.rules.clear()
    place.clock.advance(CLAIM_S)
    step(store, place.clock)
    assert requests(orders) == []
    assert rows(orders) == ALL


# Nobody is troubled, and somebody is told.


def test_failures_of_maintenance_are_logged_once_and_counted_and_not_raised_for_readers_or_writers(place, caplog):
    store = place.open(config=OFTEN)
    orders = create(store)

    def answer(real, effect):
        raise ValueError("row {'k': 7, 'v': 'secret'} is odd")

    answered(store, answer)
    with caplog.at_level(logging.INFO, "timespine.maintenance"):
        step(store, place.clock)
        for n in range(10, 13):
            step(store, place.clock)
            orders.append([{"k": n, "v": "secret"}])
            assert rows(orders)[n, "secret"] == 1
    (told,) = caplog.records
    assert (told.name, told.levelname) == ("timespine.maintenance", "WARNING")
    assert "orders: a merge of" in told.getMessage()
    assert told.getMessage().endswith("failed: ValueError")
    assert "secret" not in caplog.text
    assert "secret" not in str(store._maintenance.report)
    counted_now = store.metrics()
    assert counted_now["maintenance failures"] == 1
    assert counted_now["maintenance passed over"] > 0
    assert counted_now["upkeep merges failed"] == 1
    place.clock.advance(CLAIM_S)
    caplog.clear()
    with caplog.at_level(logging.INFO, "timespine.maintenance"):
        store._maintenance.round()
        assert len(caplog.records) == 1  # once more for the next try
        place.clock.advance(REST_S)
        store._maintenance.round()
    # And once for the small request that came since, which waited until the collection was at rest.
    assert len({told.getMessage() for told in caplog.records}) == len(caplog.records) == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Unavailable("storage is away")], ids=str)
def test_what_storage_says_is_part_of_the_log(place, caplog, error):
    store = place.open(config=OFTEN)
    create(store)

    def answer(real, effect):
        raise error

    answered(store, answer)
    with caplog.at_level(logging.WARNING, "timespine.maintenance"):
        step(store, place.clock)
    (told,) = caplog.records
    assert told.getMessage().endswith(
        f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'storage is away'}"
    )


def test_a_step_of_whatever_kind_that_fails_is_logged_and_counted(place, caplog):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    create(store)
    script.add("scan", Fault.DETERMINATE, times=3)
    with caplog.at_level(logging.WARNING, "timespine.maintenance"):
        assert not store._maintenance.round()
    assert len(caplog.records) == store.metrics()["maintenance failures"] == 1
    assert "orders: Determinate" in caplog.records[0].getMessage()


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("odd")], ids=str)
def test_a_rollup_that_the_committer_could_not_write_is_no_failure_of_the_commit(place, caplog, error):
    store = place.open(config=Config(rollup_seqnos=2, storage_attempts=1, retry_pause_ms=1))
    orders = store.create("orders", key={"k": "int64"}, timeline="counter")

    def fail(collection, make):
        raise error

    store._maintenance._run = fail
    with caplog.at_level(logging.WARNING, "timespine.maintenance"):
        for n in range(12):
            orders.append([{"k": n}])
    assert orders.count() == 12
    assert len(caplog.records) == store.metrics()["maintenance failures"] > 0
    check("odd" not in caplog.text, "what others say may be rows")


def test_a_claim_is_for_one_request_and_others_are_still_issued(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    first, second = create(store, "first"), create(store, "second")
    other["first"], other["second"]
    theirs = []

    def answer(real, effect):
        if effect.collection == first.id and not theirs:
            step(other, place.clock)
            theirs.append(other._maintenance.report.merges)
        return real(effect)

    answered(store, answer)
    store.maintain("first")
    assert theirs == [1]
    assert requests(second) == []
    store._committer.commit((second.id, RollUpAll()))
    assert rows(first) == rows(second) == ALL
