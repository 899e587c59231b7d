"""Synchronous work as a protocol: it sees what it would see on storage, in every order of failures."""

import pytest

from timespine.core.effects import DeleteBlobs, GetBlob, PutBlob
from timespine.errors import CorruptionError, Determinate, Indeterminate
from timespine.testing.formats.replayed_blob import replay_as_protocol


def driven(work, *answers):
    """The effects of some work that is given these answers, in order, and its outcome."""
    protocol = replay_as_protocol(work)
    effects = []
    try:
        effects.append(next(protocol))
        for answer in answers:
            if isinstance(answer, Exception):
                effects.append(protocol.throw(answer))
            else:
                effects.append(protocol.send(answer))
    except StopIteration as stop:
        return effects, stop.value
    return effects, None


def test_work_without_calls_is_done_at_once():
    assert driven(lambda blob: 7) == ([], 7)


def test_calls_become_effects_in_their_order():
    def work(blob):
        blob.put("c/w/p1", b"one")
        read = blob.get("c/w/p0")
        blob.put("c/w/p2", read + b"!")
        blob.delete("c/w/p1")
        return read

    effects, result = driven(work, None, b"zero", None, None)
    wanted = [PutBlob("c/w/p1", b"one"), GetBlob("c/w/p0"), PutBlob("c/w/p2", b"zero!"), DeleteBlobs(("c/w/p1",))]
    assert (effects, result) == (wanted, b"zero")


def test_a_blob_is_fetched_once_and_ranges_of_it_come_from_memory():
    def work(blob):
        return blob.get_range("c/w/p", 1, 3), blob.get_range("c/w/p", 0, 1), blob.get("c/w/p")

    assert driven(work, b"abcd") == ([GetBlob("c/w/p")], (b"bc", b"a", b"abcd"))


def test_a_blob_that_is_not_there_is_none():
    assert driven(lambda blob: (blob.get("c/w/p"), blob.get_range("c/w/p", 0, 1)), None) == (
        [GetBlob("c/w/p")],
        (None, None),
    )


def test_a_range_outside_of_a_blob_is_corruption():
    with pytest.raises(CorruptionError):
        driven(lambda blob: blob.get_range("c/w/p", 1, 9), b"abcd")


def test_what_was_deleted_is_asked_for_again():
    def work(blob):
        first = blob.get("c/w/p")
        blob.delete("c/w/p")
        return first, blob.get("c/w/p")

    effects, result = driven(work, b"x", None, None)
    assert effects == [GetBlob("c/w/p"), DeleteBlobs(("c/w/p",)), GetBlob("c/w/p")]
    assert result == (b"x", None)


def test_a_put_that_fails_fails_in_the_work_which_may_try_again():
    def work(blob):
        try:
            blob.put("c/w/p", b"x")
        except Indeterminate:
            blob.put("c/w/p", b"x")
        blob.put("c/w/q", b"y")
        return "done"

    effects, result = driven(work, Indeterminate("lost"), None, None)
    assert effects == [PutBlob("c/w/p", b"x"), PutBlob("c/w/p", b"x"), PutBlob("c/w/q", b"y")]
    assert result == "done"


def test_what_comes_after_a_failure_that_was_not_foreseen_never_happened():
    def work(blob):
        try:
            blob.put("c/w/p", b"x")
            blob.put("c/w/q", b"y")
        except Determinate:
            blob.delete("c/w/p")
            raise

    protocol = replay_as_protocol(work)
    assert next(protocol) == PutBlob("c/w/p", b"x")
    assert protocol.throw(Determinate("no")) == DeleteBlobs(("c/w/p",))
    with pytest.raises(Determinate):
        protocol.send(None)


def test_effects_of_cleanup_after_the_work_is_stopped_are_not_performed():
    def work(blob):
        blob.put("c/w/p", b"x")
        try:
            return blob.get("c/w/q")
        except BaseException:
            blob.delete("c/w/p")
            raise

    assert driven(work, None, b"q") == ([PutBlob("c/w/p", b"x"), GetBlob("c/w/q")], b"q")


def test_an_error_of_the_work_comes_after_what_it_did():
    def work(blob):
        blob.put("c/w/p", b"x")
        raise ValueError("wrong")

    protocol = replay_as_protocol(work)
    assert next(protocol) == PutBlob("c/w/p", b"x")
    with pytest.raises(ValueError, match="wrong"):
        protocol.send(None)


def test_work_that_is_not_deterministic_is_found_out():
    keys = iter(["c/w/p1", "c/w/p2"])

    def work(blob):
        blob.put(next(keys), b"x")
        return blob.get("c/w/q")

    with pytest.raises(AssertionError, match="not deterministic"):
        driven(work, None, b"q", None)


def test_work_does_not_list():
    with pytest.raises(NotImplementedError):
        driven(lambda blob: blob.list_keys())
