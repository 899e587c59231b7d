"""One queue for small appends and transactions: what waits becomes durable by one compare-and-set."""

import pytest
from memory_store import BLOBS, QUICK, Gate, in_threads, together
from numbered_rows import rows_of

from timespine.client.commit.queued_append import StagedAppends
from timespine.client.write import group_small_appends
from timespine.errors import Determinate


@pytest.fixture
def gate(place):
    return Gate(place.consensus)


def create(store, name="items", **options):
    made = store.create(name, key={"n": "int64"}, value={"v": "string"}, **{"timeline": "counter", **options})
    made.append([{"n": 0}])
    return made


@pytest.mark.parametrize("timeline", ["counter", "clock"])
@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_small_appends_and_transactions_that_wait_share_one_compare_and_set(place, gate, timeline, config):
    store = place.open(consensus=gate, config=config)
    items, others = create(store, timeline=timeline), create(store, "others", timeline=timeline)
    large = [{"n": n} for n in range(1000, 1000 + group_small_appends.ROWS_MAX + 1)]
    works = [
        lambda: items.append([{"n": 1}]),
        lambda: items.append([{"n": 2}]),
        lambda: others.append([{"n": 3}]),
        lambda: items.append(large),
        lambda: items.append([{"n": 4}]),
        lambda: others.append([{"n": 5}]),
    ]
    gate.sets.clear()
    done = together(gate, store, works)
    assert len(gate.sets) == 2, "the first one, and all that waited for it"
    assert [each.rows for each in done[:6]] == [1, 1, 1, len(large), 1, 1]
    assert rows_of(items) == [0, 1, 2, 4, *(row["n"] for row in large)]
    assert rows_of(others) == [0, 3, 5]


def test_transactions_are_answered_before_small_appends_are_staged_again(place, gate, monkeypatch):
    store = place.open(consensus=gate)
    items, others = create(store), create(store, "others")
    elsewhere = place.open()["items"]
    answered, real = [], StagedAppends.advance

    def advance(self):
        is_first = self.reply is None and self.error is None
        if is_first and len(self._group) > 1:
            found = real(self)
            elsewhere.append([{"n": 100}])  # between the look at the free times and the commit
            return found
        return real(self)

    notify = store._committer._queue.notify
    monkeypatch.setattr(StagedAppends, "advance", advance)
    monkeypatch.setattr(
        store._committer._queue, "notify", lambda group: (answered.append(len(group)), notify(group))[1]
    )
    works = [lambda n=n: items.append([{"n": n}]) for n in range(1, 4)]
    done = together(gate, store, [*works, lambda: others.seal(50)])
    assert 1 in answered, "the seal"
    assert [each.time for each in done[:3]] == [1, 3, 4]
    assert rows_of(items) == [0, 1, 2, 3, 100]


def test_large_values_are_stored_by_the_thread_that_brought_them(place, gate, monkeypatch):
    monkeypatch.setattr(group_small_appends, "BYTES_MAX", 2000)
    store = place.open(consensus=gate, config=BLOBS)
    items = create(store)
    given = [[{"n": 1, "v": "a"}], [{"n": 2, "v": "b" * 3000}], [{"n": 3, "v": "c"}]]
    done = together(gate, store, [lambda rows=rows: items.append(rows) for rows in given])
    assert sorted(each.time for each in done) == [1, 2, 3]
    assert rows_of(items) == [0, 1, 2, 3]
    assert place.open().vacuum().blobs == []


def test_error_while_drafts_are_staged_is_raised_for_these_drafts_only(place, gate, monkeypatch):
    store = place.open(consensus=gate)
    items, others = create(store), create(store, "others")

    def prepare(self, *_):
        raise Determinate("no storage")

    monkeypatch.setattr(group_small_appends.GroupAppendStep, "prepare", prepare)
    works = [lambda n=n: items.append([{"n": n}]) for n in range(1, 4)]
    first, second, third, sealed = together(gate, store, [*works, lambda: others.seal(50)])
    assert first.time == 1
    assert [type(each) for each in (second, third)] == [Determinate] * 2
    assert sealed.upper == others.upper
    assert rows_of(items) == [0, 1]


def test_small_appends_beside_large_ones_of_other_threads_are_all_in_once(place):
    store = place.open()
    items = create(store)
    size = group_small_appends.ROWS_MAX + 1

    def small(thread):
        for each in range(10):
            items.append([{"n": 1000 * thread + each}])

    def large(thread):
        for each in range(5):
            items.append([{"n": 1000 * thread + each * size + place} for place in range(size)])

    in_threads(*(lambda t=t: small(t) for t in (1, 2, 3)), *(lambda t=t: large(t) for t in (4, 5)))
    expected = [0, *(1000 * t + n for t in (1, 2, 3) for n in range(10))]
    assert rows_of(items) == sorted([*expected, *(1000 * t + n for t in (4, 5) for n in range(5 * size))])
