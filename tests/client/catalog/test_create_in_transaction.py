"""Collections that transactions create, whatever fails: there with all rows, or never, and nothing is left behind."""

from __future__ import annotations

import contextlib

from assertions import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, MemoryStore, Script

from timespine.client.catalog.reservations import RESERVED_MS
from timespine.errors import Determinate, TimespineError, Unavailable, UsageError
from timespine.testing.unreliable import Fault

SHAPE = {"key": {"k": "int64"}, "timeline": "counter"}
DAY_S = RESERVED_MS / 1000 + 1


class Died(BaseException):
    """The process is gone."""


faults = st.sampled_from([fault for fault in Fault if fault is not Fault.NONE])
A_DAY_LATER = "others maintain a day later"
hooks = st.sampled_from(["none", "others maintain", A_DAY_LATER, "dies", "others write"])
rules = st.lists(
    st.tuples(
        st.sampled_from(["compare_and_set", "put", "delete"]),
        st.one_of(st.just(Fault.NONE), faults),
        st.integers(1, 4),
        st.integers(0, 5),
        hooks,
    ),
    max_size=4,
)


@given(births=st.lists(st.tuples(rules, st.booleans()), min_size=1, max_size=4), config=st.sampled_from([QUICK, BLOBS]))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_created_is_there_as_a_whole_or_not_at_all_and_leaves_nothing(births, config):
    with MemoryStore() as place:
        other = place.open(config=config)
        other.create("orders", **SHAPE)
        outcomes = []
        for number, (planned, again) in enumerate(births):
            script = Script()
            store = place.open(script=script, config=config)
            for operation, fault, times, skip, hook in planned:
                script.add(operation, fault, times=times, skip=skip, hook=hook_of(hook, place, other, number))
            outcomes.append(create_atomically(store, number))
            script.rules.clear()
            with contextlib.suppress(TimespineError):
                store.ghosts()
            if again and outcomes[-1] != "died":
                with contextlib.suppress(TimespineError):
                    store["orders"].append([{"k": 100 + number}])
        check(place, outcomes)


def hook_of(kind, place, other, number):
    def run():
        if kind == "dies":
            raise Died
        if kind == A_DAY_LATER:
            place.clock.advance(DAY_S)
        if kind == "others write":
            with contextlib.suppress(UsageError):
                other[f"audit{number}"].append([{"k": 1000 + number}])
            other["orders"].append([{"k": 2000 + number}])
        else:
            other.maintain(sweep=True)

    return None if kind == "none" else run


def create_atomically(store, number):
    """What becomes of a transaction that creates a collection and fills two."""
    try:
        tx = store.transaction()
        tx.append(tx.create(f"audit{number}", **SHAPE), [{"k": number}])
        tx.append("orders", [{"k": number}])
    except Unavailable:
        return "not"
    try:
        tx.commit()
    except Determinate:
        return "not"
    except Unavailable:
        return "in doubt"
    except Died:
        return "died"
    except TimespineError:
        return "refused"
    return "in"


def check(place, outcomes):
    """Both are there or none, and nothing is left of those that were not created, however long they took."""
    for _ in range(2):
        fresh = place.open()
        orders = {row["k"] for row in fresh["orders"].snapshot().to_pylist()}
        for number, outcome in enumerate(outcomes):
            name = f"audit{number}"
            is_in = number in orders
            assert (name in fresh) == is_in, "both or none"
            if is_in:
                assert number in {row["k"] for row in fresh[name].snapshot().to_pylist()}
            if outcome in ("in", "not"):
                assert is_in == (outcome == "in")
        place.clock.advance(DAY_S)
        for _ in range(3):
            fresh.maintain(sweep=True)
            place.clock.advance(2 * QUICK.writer_lease_ms / 1000)
    names = fresh._catalog.read()
    assert (names.reserved, names.dropped) == ({}, ())
    known = {entry.id for entry in names.entries.values()}
    assert {key.split("/")[0] for key in place.blobs()} <= known
    assert set(place.consensus.list_keys()) - {"sweeps"} == {"catalog", *known}
