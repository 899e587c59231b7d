"""Which batches may hold expired history, and which rewrites are worth it before the deadline."""

from dataclasses import replace

import pytest
from memory_store import BLOBS

from timespine.client.maintenance.estimate_expired_history import oldest_to_rewrite, worth_forgetting
from timespine.core.transitions import Refresh, RollUpAll


def create(store, **options):
    options = {"key": {"id": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create("c", **options)


def rows(keys, value="x", **more):
    return [{"id": key, "v": value, **more} for key in keys]


def oldest(collection):
    handle = collection._handle
    return oldest_to_rewrite(handle, handle.state())


@pytest.fixture(params=["blobs", "inline"])
def collection(place, request):
    config = {"config": BLOBS} if request.param == "blobs" else {}
    return create(place.open(**config))


def test_insertions_alone_hold_nothing_to_forget(collection):
    for number in range(4):
        collection.append(rows(range(number, 40, 4)))
    collection.expire(before=4)
    assert oldest(collection) is None
    assert worth_forgetting(collection._handle.state()) is None


def test_a_retraction_reaches_back_to_the_oldest_batch_with_its_keys(collection):
    collection.append(rows(range(10)))
    collection.append(rows(range(100, 110)))
    collection.append(rows(range(200, 210)))
    collection.append(rows([105], _diff=-1))
    assert oldest(collection) is None  # since has not passed it
    collection.append(rows([300]))
    collection.expire(before=4)
    assert oldest(collection) == 1


def test_several_updates_of_one_row_are_rewritten_in_their_own_batch(collection):
    collection.append(rows([1, 2, 3]))
    collection.append([*rows([500], _time=1, _diff=1), *rows([500], _time=2, _diff=-1)], upper=3)
    collection.append(rows([900]))
    collection.expire(before=3)
    assert oldest(collection) == 1


def test_what_was_folded_is_not_rewritten_again(place):
    collection = create(place.open(config=BLOBS))
    collection.append(rows([1, 2, 3]))
    collection.append(rows([2], "y", _diff=-1))  # it retracts what was never there, and stays
    collection.append(rows([4]))
    collection.expire(before=2)
    assert oldest(collection) is not None
    collection.compact(wait=True)
    assert oldest(collection) is None
    assert worth_forgetting(collection._handle.state()) is None


@pytest.mark.parametrize(("repeated", "worth"), [(2, None), (20, Refresh((0, 1), extra=True))])
def test_a_batch_of_many_repeats_is_worth_a_rewrite_and_one_of_few_is_not(place, repeated, worth):
    collection = create(place.open(config=BLOBS))
    collection.append([*rows(range(20), _time=0), *rows(range(repeated), _time=1)], upper=2)
    collection.append(rows([99]))
    assert worth_forgetting(collection._handle.state()) is None
    collection.expire(before=2)
    assert worth_forgetting(collection._handle.state()) == worth


def test_many_retractions_are_worth_a_rewrite_of_everything(place):
    store = place.open(config=BLOBS)
    collection = create(store)
    collection.append(rows(range(20)))
    collection.append(rows(range(10), _diff=-1))
    collection.expire(before=1)
    assert worth_forgetting(collection._handle.state()) == RollUpAll(extra=True)
    assert collection.count() == 10


def test_a_closed_collection_is_left_alone(collection):
    collection.append(rows([1]))
    collection.delete(rows([1]))
    collection.finish()
    collection.expire(before=2, ahead=True)
    assert oldest(collection) is not None


@pytest.mark.parametrize("run_parts", [2, 32], ids=["inside hollow runs", "listed"])
def test_a_retraction_in_another_part_of_its_run_is_forgotten_by_the_deadline(place, run_parts):
    store = place.open(config=replace(BLOBS, part_bytes=1024, run_parts=run_parts))
    collection = create(store)
    collection.append(rows([1, 2, 3], "s" * 3000))
    collection.append(rows([2], "s" * 3000, _diff=-1))
    collection.append(rows([9]))
    collection.compact(wait=True)
    collection.expire(before=2)
    for _ in range(4):
        place.clock.advance(86_400)
        store.maintain(sweep=True)
    state = collection._handle.state()
    assert (sum(part.rows for part in state.parts()), state.forgetting) == (3, None)
