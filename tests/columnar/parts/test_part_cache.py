"""The cache: bounded by bytes, least recently used first out, one load per key whoever asks."""

import threading

import pytest
from assertions import until
from hypothesis import given
from hypothesis import strategies as st

from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.errors import UsageError


def test_what_was_put_is_there_until_others_need_the_room():
    cache = PartCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"  # b is now the one that was not used for longest
    cache.put("c", "C", 4)
    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]
    assert (cache.hits, cache.misses, cache.evictions, cache.bytes, len(cache)) == (3, 1, 1, 8, 2)


def test_a_value_larger_than_the_limit_is_not_kept_and_pushes_nothing_out():
    cache = PartCache(10)
    cache.put("a", "A", 10)
    cache.put("b", "B", 11)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == ("A", None, 10)
    cache.put("a", "larger now", 11)
    assert (cache.get("a"), cache.bytes) == (None, 0)


def test_a_value_put_again_counts_once():
    cache = PartCache(10)
    for _ in range(3):
        cache.put("a", "A", 6)
    assert (cache.bytes, cache.evictions) == (6, 0)


def test_a_cache_without_room_still_loads():
    cache = PartCache(0)
    assert [cache.get_or_load("a", lambda: ("A", 1)) for _ in range(2)] == ["A", "A"]
    assert (cache.bytes, cache.misses) == (0, 2)


def test_what_is_loaded_is_kept_if_the_hint_says_so():
    cache = PartCache(10)
    loads = []

    def load():
        loads.append(1)
        return "A", 3

    for _ in range(2):
        assert cache.get_or_load("a", load, CacheHint.NEVER_ADD) == "A"
    assert (len(loads), cache.bytes) == (2, 0)
    for hint in (CacheHint.MAY_ADD, CacheHint.MAY_ADD, CacheHint.NEVER_ADD):
        assert cache.get_or_load("a", load, hint) == "A"
    assert (len(loads), cache.bytes, cache.hits, cache.misses) == (3, 3, 2, 3)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=60), st.integers(0, 20))
def test_it_is_what_a_list_of_the_last_used_says(steps, limit):
    cache = PartCache(limit)
    model = {}  # in order of use
    for key, size in steps:
        assert cache.get(key) == (model[key][0] if key in model else None)
        if key in model:
            model[key] = model.pop(key)
        cache.put(key, (key, size), size)
        model.pop(key, None)
        if size <= limit:
            model[key] = ((key, size), size)
        while sum(size for _, size in model.values()) > limit:
            del model[next(iter(model))]
        assert cache.bytes == sum(size for _, size in model.values()) <= limit
        assert len(cache) == len(model)


def together(count, work):
    """Run work(0), work(1), ... at once; what they return or raise."""
    found = [None] * count
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        try:
            found[number] = work(number)
        except BaseException as failure:
            found[number] = failure

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def test_threads_that_miss_the_same_key_load_it_once():
    cache = PartCache(100)
    loads = []

    def load():
        loads.append(threading.get_ident())
        until(lambda: len(cache._loads["a"].done._bell._waiting) == 7)  # all others wait for this one
        return "A", 1

    def work(number):
        return cache.get_or_load("a", load, CacheHint.NEVER_ADD if number % 2 else CacheHint.MAY_ADD)

    assert together(8, work) == ["A"] * 8
    assert len(loads) == 1


def test_who_waits_for_a_load_that_fails_loads_on_its_own():
    cache = PartCache(100)
    started, waiting = threading.Event(), threading.Event()

    def fails():
        started.set()
        assert waiting.wait(60)
        raise KeyError("no luck")

    def work(number):
        if number == 0:
            return cache.get_or_load("a", fails)
        assert started.wait(60)
        threading.Timer(0.05, waiting.set).start()
        return cache.get_or_load("a", lambda: ("A", 1))

    failed, *others = together(4, work)
    assert isinstance(failed, KeyError)
    assert others == ["A"] * 3
    assert cache.get("a") == "A"


def test_a_waiter_that_may_add_keeps_what_a_loader_may_not():
    cache = PartCache(100)
    started, waiting = threading.Event(), threading.Event()

    def load():
        started.set()
        assert waiting.wait(60)
        return "A", 1

    def work(number):
        if number == 0:
            return cache.get_or_load("a", load, CacheHint.NEVER_ADD)
        assert started.wait(60)
        threading.Timer(0.1, waiting.set).start()
        return cache.get_or_load("a", load, CacheHint.MAY_ADD)

    assert together(2, work) == ["A", "A"]
    assert cache.get("a") == "A"


def test_a_load_may_use_the_cache_for_other_keys_but_not_wait_for_itself():
    cache = PartCache(100)
    assert cache.get_or_load("a", lambda: (cache.get_or_load("b", lambda: ("B", 1)) + "A", 1)) == "BA"
    with pytest.raises(UsageError, match="itself"):
        cache.get_or_load("c", lambda: (cache.get_or_load("c", lambda: ("C", 1)), 1))
    assert cache.get_or_load("c", lambda: ("C", 1)) == "C"


def test_many_threads_and_keys_stay_within_the_limit():
    cache = PartCache(50)

    def work(number):
        for step in range(300):
            key = (number * step) % 17
            assert cache.get_or_load(key, lambda key=key: (key * 2, key)) == key * 2 or key == 0
            assert cache.bytes <= 50
        return "done"

    assert together(6, work) == ["done"] * 6
    assert cache.hits + cache.misses == 6 * 300
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", None, True])
def test_a_size_is_a_number_of_bytes(wrong):
    with pytest.raises(UsageError):
        PartCache(wrong)
    with pytest.raises(UsageError):
        PartCache(10).put("a", "A", wrong)


# Several keys at once.


def test_what_is_missing_is_loaded_together_and_kept_one_by_one():
    cache = PartCache(100)
    asked = []

    def load(keys):
        asked.append(keys)
        return [(f"value of {key}", 10) for key in keys]

    assert cache.get_or_load_all([1, 2, 3], load) == ["value of 1", "value of 2", "value of 3"]
    assert cache.get_or_load_all([2, 3, 4], load) == ["value of 2", "value of 3", "value of 4"]
    assert asked == [[1, 2, 3], [4]]
    assert (cache.hits, cache.misses, cache.bytes) == (2, 4, 40)
    assert cache.get_or_load_all([], load) == []


def test_what_another_thread_loads_is_waited_for_and_not_loaded_again():
    cache = PartCache(100)
    begun, go_on = threading.Event(), threading.Event()
    asked = []

    def slow(keys):
        asked.append(keys)
        begun.set()
        assert go_on.wait(20)
        return [(key * 10, 1) for key in keys]

    def quick(keys):
        asked.append(keys)
        go_on.set()  # what is its own is loaded before it waits for others
        return [(key * 10, 1) for key in keys]

    found = []
    thread = threading.Thread(target=lambda: found.append(cache.get_or_load_all([1, 2], slow)))
    thread.start()
    assert begun.wait(20)
    assert cache.get_or_load_all([2, 3], quick) == [20, 30]
    thread.join(20)
    assert found == [[10, 20]]
    assert asked == [[1, 2], [3]]


def test_a_load_of_several_that_fails_leaves_nothing_under_way():
    cache = PartCache(100)

    def fail(keys):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_load_all([1, 2], fail)
    assert cache.get_or_load_all([1, 2], lambda keys: [(key, 1) for key in keys]) == [1, 2]
