"""Values that objects compute once: no thread waits for the value of another object."""

import threading

from timespine.columnar.cached_property import cached_property


class Slow:
    def __init__(self, compute):
        self.compute = compute

    @cached_property
    def value(self):
        """Compute it."""
        return self.compute()


def test_a_value_is_computed_once_and_can_be_dropped():
    numbers = iter(range(3))
    slow = Slow(lambda: next(numbers))
    assert (slow.value, slow.value) == (0, 0)
    del slow.value
    assert slow.value == 1
    assert Slow.value.__doc__ == "Compute it."


def test_an_object_does_not_wait_for_the_value_of_another_one():
    begun, done = threading.Event(), threading.Event()

    def wait():
        begun.set()
        return done.wait(60)

    first, second = Slow(wait), Slow(lambda: 2)
    thread = threading.Thread(target=lambda: first.value)
    thread.start()
    begun.wait(60)
    assert second.value == 2
    done.set()
    thread.join()
    assert first.value is True


def test_all_threads_get_the_first_value():
    begun, done = threading.Event(), threading.Event()
    values = iter([(begun.set, done.wait, "late"), (done.set, bool, "first")])

    def compute():
        before, after, value = next(values)
        before()
        after()
        return value

    slow, found = Slow(compute), []
    thread = threading.Thread(target=lambda: found.append(slow.value))
    thread.start()
    begun.wait(60)
    found.append(slow.value)
    thread.join()
    assert found == ["first", "first"]
