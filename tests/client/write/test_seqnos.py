"""Whatever is committed answers with the sequence number of its commit."""

import pyarrow as pa
import pytest
from memory_store import BLOBS, QUICK, Gate, together

from timespine.core.group import Answers, CommandTransaction, Refused
from timespine.core.transitions import AdvanceUpper, Seal
from timespine.errors import UsageError
from timespine.model.frontier import Frontier

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def create(store, name="t"):
    return store.create(name, key={"k": "int64"}, value={"n": "int64"}, timeline="counter")


def row(k, n=0, **more):
    return {"k": k, "n": n, **more}


WORKS = {
    "append": lambda t: t.append([row(7)]),
    "append of many": lambda t: t.append(pa.table({"k": range(100), "n": range(100)})),
    "append at": lambda t: t.append([row(7)], at=9),
    "append below": lambda t: t.append([row(7)], upper=9),
    "append times": lambda t: t.append([row(7, _time=5), row(8, _time=6)]),
    "upsert": lambda t: t.upsert([row(1, 5)]),
    "delete": lambda t: t.delete({"k": 1}),
    "update": lambda t: t.update(set={"n": 5}),
    "replace": lambda t: t.replace([row(5)]),
    "merge": lambda t: t.merge([row(1, 5)]).when_matched_update().execute(),
    "write": lambda t: t.write([row(7)], at=9),
    "seal": lambda t: t.seal(9),
    "seal if behind": lambda t: t.seal(9, if_behind="ignore"),
}


@BOTH
@pytest.mark.parametrize("work", WORKS)
def test_it_is_the_number_of_the_state_that_has_it_whatever_is_committed_later(place, config, work):
    store = place.open(config=config)
    table = create(store)
    table.append([row(1), row(2)])
    table.snapshot().close()
    before = table._handle.state().seqno
    done = WORKS[work](table)
    assert done.seqno == table._handle.state().seqno == before + 1, "nothing else was committed"
    place.open()["t"].append([row(50)])
    assert done.seqno < table._handle.state().seqno


def test_what_changed_nothing_has_the_number_of_the_state_that_was_read(place):
    table = create(place.open(config=BLOBS))
    table.append([row(1), row(2)])
    table.seal(9)
    seqno = table._handle.state().seqno
    table.snapshot().close()
    assert table.seal(9).seqno == table._handle.state().seqno
    assert table.upsert([row(1)]).seqno == table._handle.state().seqno
    assert table.delete({"k": 9}).seqno == table._handle.state().seqno > seqno
    assert table.write([], at=20).seqno is None


def test_appends_that_are_committed_together_have_the_same_number(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    table = create(store)
    table.append([row(0)])
    first, *others = together(gate, store, [lambda k=k: table.append([row(k)]) for k in range(1, 5)])
    assert {each.seqno for each in others} == {first.seqno + 1}
    assert table._handle.state().seqno == first.seqno + 1


def test_a_transaction_has_a_number_in_each_of_its_collections(place):
    store = place.open()
    one, two = create(store, "one"), create(store, "two")
    one.append([row(1)])
    with store.transaction() as tx:
        tx.append("one", [row(2)])
        tx.upsert("two", [row(2)])
        tx.write("two", [row(3)], at=40)
    assert [each.seqno for each in tx.replies] == [each._handle.state().seqno for each in (one, two, two)]
    sealed = store.seal(["one", two], 60)
    assert {name: each.seqno for name, each in sealed.items()} == {
        each.name: each._handle.state().seqno for each in (one, two)
    }


def test_replies_of_the_core_say_which_commit_they_are_of(place):
    store = place.open()
    one, two = create(store, "one"), create(store, "two")
    one.append([row(1)])
    answers = store._committer.offer(
        CommandTransaction(((one.id, Seal(Frontier.at(7))), (two.id, AdvanceUpper(Frontier.at(0)))))
    )
    assert isinstance(answers, Answers)
    assert answers == (Frontier.at(7), Frontier.at(0))
    assert answers.seqno(one.id) == one._handle.state().seqno
    assert answers.seqno(two.id) == two._handle.state().seqno
    refused = store._committer.offer(CommandTransaction(((one.id, Seal(Frontier.at(1))),)))
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, UsageError)
