"""Maintenance makes collections compact, by itself and on demand."""

import msgspec
import pytest
from assertions import until
from key_value_cases import create, fill, now
from maintenance_cases import OFTEN, background, runs

from timespine.client.maintenance.due_merges import BLOB_WEIGHT, GATHER
from timespine.client.maintenance.maintenance import EXPIRE_S, VAIN_MAX
from timespine.config import Config
from timespine.core import maintenance_policy
from timespine.core.batch import Part
from timespine.core.transitions import ClaimMerge, RegisterWriter, RollUpAll, Seal, Write
from timespine.errors import Unavailable
from timespine.model.frontier import Frontier


def parts_of(place, collection):
    return {key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"}


@pytest.fixture
def tidy(monkeypatch):
    """Garbage is collected from a tiny collection as it is from a large one."""
    monkeypatch.setattr(maintenance_policy, "GARBAGE_MIN", 0)
    monkeypatch.setattr(maintenance_policy, "ROLLUPS", 0)


# Becoming compact.


@pytest.mark.parametrize("opened", [True, False])
def test_small_writes_of_a_process_that_exited_are_made_compact_by_the_next_that_comes_along(place, tidy, opened):
    writer = place.open(config=OFTEN)
    fill(create(writer), 40)
    expected = now(writer["orders"])
    writer.close()
    store = place.open(config=OFTEN)
    if opened:
        store["orders"]
    background(store, place.clock, 3 * EXPIRE_S, step=EXPIRE_S / 2)
    other = place.open()["orders"]
    assert runs(other) == 1
    assert now(other) == expected
    assert len(parts_of(place, other)) == 1


def test_the_background_thread_makes_a_collection_compact_by_itself(place):
    writer = place.open(config=OFTEN)
    fill(create(writer), 20)
    writer.close()
    store = place.open(config=OFTEN, maintenance=True)
    orders = store["orders"]

    def is_compact():
        place.clock.advance(1)
        store._maintenance.wake()
        return runs(orders) == 1

    until(is_compact)
    assert orders.count() == 20


def test_an_idle_collection_becomes_one_run_and_loses_what_was_expired(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(20):
        orders.upsert([{"k": 1, "v": f"v{n}"}])
    orders.expire(before=99)
    background(store, place.clock, 120)
    assert runs(orders) == 1
    assert orders.inspect().rows == 1
    assert now(orders) == {(1, "v19"): 1}
    orders.upsert([{"k": 1, "v": "last"}])
    background(store, place.clock, 120)
    orders.expire(before=99)  # nothing was written since: it is lost all the same, by its deadline
    background(store, place.clock, 25 * 3600, step=600)
    assert orders.inspect().rows == 1
    assert len(parts_of(place, orders)) == 1


@pytest.mark.parametrize(("config", "gather"), [(OFTEN, GATHER // BLOB_WEIGHT), (Config(), GATHER)])
def test_a_collection_that_is_being_written_to_is_merged_when_enough_has_gathered(place, config, gather):
    store = place.open(config=config)
    orders = create(store)
    merges = []
    for n in range(8 * gather):
        orders.append([{"k": n, "v": "x"}])
        store._maintenance.round()
        merges.append(store._maintenance.report.merges)
    assert merges[gather - 2] == 0
    assert 0 < merges[-1] < 16
    assert runs(orders) < 4 * gather


def test_maintain_does_it_all_at_once_and_says_what_it_did(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 30)
    report = store.maintain()
    assert report.merges > 0
    assert report.rollups > 0
    assert report.collected > 0
    assert (report.failures, report.skipped) == (0, [])
    assert runs(orders) == 1
    assert len(parts_of(place, orders)) == 1
    again = store.maintain()
    assert (again.merges, again.collected, again.swept) == (0, 0, 0)
    seqno = orders._handle.state().seqno
    store.maintain()
    assert orders._handle.state().seqno == seqno  # and then there is nothing to write either


def test_maintain_looks_after_the_collections_that_are_named(place):
    store = place.open(config=OFTEN)
    left, right = create(store, "left"), create(store, "right")
    fill(left, 10)
    fill(right, 10)
    store.maintain("left")
    assert runs(left) == 1
    assert runs(right) == 10


def test_the_log_is_cut_and_a_newcomer_reads_the_same(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 100)
    for _ in range(2):
        store.maintain()
    assert len(place.consensus.scan(orders.id)) < 16
    assert now(place.open()["orders"]) == {(n, f"v{n}"): 1 for n in range(100)}


def test_garbage_of_an_idle_collection_goes_even_if_a_reader_was_in_the_way(place, tidy):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 12)
    reading = place.open()["orders"].snapshot()
    background(store, place.clock, 90)
    assert runs(orders) == 1
    assert len(parts_of(place, orders)) > 1
    assert len(reading.to_pylist()) == 12  # it reads what it planned on
    place.stores[-1].close()
    background(store, place.clock, 2 * EXPIRE_S)
    assert len(parts_of(place, orders)) == 1


def test_unsealed_updates_are_drained_and_dropped(place):
    store = place.open()
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    (part,) = orders._handle.state().parts()
    commit = store._committer.commit
    inline = Part("", part.rows, part.size, part.diff_sum, part.inline)
    commit((orders.id, Write(Frontier.at(1), (1,), (inline,), 0)))
    commit((orders.id, Seal(Frontier.at(2))))
    background(store, place.clock, 5)
    state = orders._handle.state()
    assert (len(state.unsealed), state.trace.upper) == (0, Frontier.at(2))
    # What an append drained on its way is dropped too.
    commit((orders.id, Write(Frontier.at(2), (2,), (inline,), 0)))
    orders.append([{"k": 2, "v": "b"}], at=3)
    assert len(orders._handle.state().unsealed) == 1
    background(store, place.clock, 5)
    assert len(orders._handle.state().unsealed) == 0


# Compact, on demand.


def test_compact_leaves_one_run(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 17)
    orders.compact(wait=True)
    assert runs(orders) == 1
    fill(orders, 3, first=17)
    orders.compact(wait=True)
    assert runs(orders) == 1
    assert orders.count() == 20
    orders.compact(wait=True)


def test_compact_waits_for_another_process_that_compacts_it(place):
    other = place.open(config=OFTEN)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:  # they are done at last: their claim is given up with the merge
            place.clock.advance(OFTEN.claim_ms / 1000 + 1)

    store = place.open(config=OFTEN, sleep=wait)
    orders = create(store)
    fill(orders, 10)
    other._committer.commit((orders.id, RollUpAll()))
    (request,) = other["orders"]._handle.state().trace.requests()
    other._committer.commit(
        (orders.id, RegisterWriter("theirs", 3_600_000)), (orders.id, ClaimMerge(request.id, "theirs", OFTEN.claim_ms))
    )
    orders.compact(wait=True)
    assert len(waited) == 3
    assert runs(orders) == 1


def never(seconds):
    raise AssertionError("it waits for somebody who is not at work")


@pytest.mark.parametrize("who", ["itself", "another process"])
@pytest.mark.parametrize("how", ["failed", "dropped", "inputs gone"])
def test_compact_does_not_wait_for_a_merge_that_came_to_nothing(place, who, how):
    store = place.open(config=OFTEN, sleep=never)
    orders = create(store)
    fill(orders, 10)
    orders.compact()
    culprit = store if who == "itself" else place.open(config=OFTEN)
    real = culprit._engine.merge

    def merge(effect):
        if how == "failed":
            raise MemoryError
        output = real(effect)
        return None if how == "inputs gone" else wrong(output)

    culprit._engine.merge = merge
    assert culprit.maintain().merges == 0
    culprit._engine.merge = real
    assert orders._handle.state().claims
    assert store.maintain().merges == 0  # nobody else tries again for a while
    orders.compact(wait=True)
    assert runs(orders) == 1
    assert orders.count() == 10
    assert orders._handle.state().claims == {}


def wrong(output):
    """A result whose diffs do not add up."""
    (run,) = output.runs
    (part,) = run.parts
    part = msgspec.structs.replace(part, diff_sum=part.diff_sum + 1)
    return msgspec.structs.replace(output, runs=(msgspec.structs.replace(run, parts=(part,)),))


def test_compact_gives_up_if_no_result_ever_fits(place):
    store = place.open(config=OFTEN, sleep=never)
    orders = create(store)
    fill(orders, 10)
    real = store._engine.merge
    merges = []

    def merge(effect):
        merges.append(effect)
        output = real(effect)
        return msgspec.structs.replace(output, batch=wrong(output.batch))

    store._engine.merge = merge
    with pytest.raises(Unavailable, match="could not be applied"):
        orders.compact(wait=True)
    assert len(merges) == VAIN_MAX
    assert orders.count() == 10
    store._engine.merge = real
    orders.compact(wait=True)
    assert runs(orders) == 1


def test_compact_comes_to_an_end_though_others_go_on_writing(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 10)
    theirs = other["orders"]
    real = store._engine.merge
    merges = []

    def merge(effect):
        merges.append(effect)
        fill(theirs, 5, first=100 * len(merges))
        return real(effect)

    store._engine.merge = merge
    orders.compact(wait=True)
    assert len(merges) < 5
    first = next(iter(orders._handle.state().hollow_batches()))
    assert len(first.runs) == 1
    assert Frontier.at(10) <= first.desc.upper


def test_compact_says_why_it_cannot(place):
    store = place.open(config=OFTEN, free_bytes=lambda: 1000)
    orders = create(store)
    fill(orders, 10)
    with pytest.raises(Unavailable, match="free space"):
        orders.compact(wait=True)
    assert orders.count() == 10
