"""Blobs in buckets when requests and replies get lost: every answer is true, and every call ends."""

from __future__ import annotations

import os

import pytest
from assertions import until

from timespine.errors import Determinate, Indeterminate, UsageError, WrongProcess
from timespine.location.object_store.bucket import RETRIES, Bucket
from timespine.location.object_store.object_blob import PUT_ATTEMPTS, ObjectBlob
from timespine.location.opening.store_location import parse_location


@pytest.fixture
def make(moto, proxy):
    """Make adapters for one prefix: through the proxy, or directly."""
    url = moto.url()

    def made(*, direct=False, **options):
        storage = moto.storage if direct else moto.via(proxy.endpoint)
        return ObjectBlob(Bucket(parse_location(url, storage), **options), sleep=lambda _: None)

    return made


@pytest.mark.parametrize("fault", [500, 503, 409, "done 500", "cut reply", "drop", "half reply"])
def test_a_put_that_is_broken_once_is_done(fault, make, proxy):
    blob = make()
    proxy.faults.append(("PUT", fault))
    blob.put("a/b/c", b"mine")
    assert make(direct=True).get("a/b/c") == b"mine"
    assert proxy.seen.count("PUT") == (1 if fault == "half reply" else 2)  # its headers say that it is done


@pytest.mark.parametrize("fault", [500, 409, "cut reply", "drop"])
def test_a_put_of_other_bytes_stays_refused_whatever_breaks(fault, make, proxy):
    make(direct=True).put("a/b/c", b"first")
    proxy.faults.append(("PUT", fault))
    with pytest.raises(UsageError, match="other bytes"):
        make().put("a/b/c", b"second")
    assert make(direct=True).get("a/b/c") == b"first"


def test_a_put_that_is_always_broken_is_in_doubt_after_a_bounded_number_of_tries(make, proxy):
    proxy.faults.extend([("PUT", 503)] * 100)
    with pytest.raises(Indeterminate, match="503"):
        make().put("a/b/c", b"1")
    assert proxy.seen == ["PUT"] * (1 + RETRIES)


def test_a_conflict_without_an_object_is_tried_a_bounded_number_of_times(make, proxy):
    proxy.faults.extend([("PUT", 409)] * 100)
    with pytest.raises(Indeterminate, match="has none"):
        make().put("a/b/c", b"1")
    assert proxy.seen.count("PUT") <= PUT_ATTEMPTS * (1 + RETRIES)


def test_a_reply_that_breaks_off_is_asked_for_again_or_an_error(make, proxy):
    make(direct=True).put("a/b/c", b"12345")
    blob = make()
    for call, wanted in ((lambda: blob.get("a/b/c"), b"12345"), (lambda: blob.get_range("a/b/c", 1, 3), b"23")):
        proxy.faults.append(("GET", "half reply"))
        assert call() == wanted
    proxy.faults.append(("GET", "half reply"))
    with pytest.raises(Determinate, match="did not answer"):  # never a part of the listing
        list(blob.list_keys())
    assert len(list(blob.list_keys())) == 1


@pytest.mark.parametrize("fault", [500, 503, "cut reply", "drop", "slow"])
def test_reads_that_are_broken_once_are_answered(fault, make, proxy):
    make(direct=True).put("a/b/c", b"12345")
    blob = make()
    for call, wanted in (
        (lambda: blob.get("a/b/c"), b"12345"),
        (lambda: blob.get_range("a/b/c", 1, 3), b"23"),
        (lambda: [info.key for info in blob.list_keys()], ["a/b/c"]),
    ):
        proxy.faults.append(("GET", fault))
        assert call() == wanted


def test_reads_that_are_always_broken_say_that_nothing_happened(make, proxy):
    make(direct=True).put("a/b/c", b"12345")
    blob = make()
    for call in (lambda: blob.get("a/b/c"), lambda: blob.get_range("a/b/c", 0, 1), lambda: list(blob.list_keys())):
        proxy.faults.extend([("GET", 500)] * (1 + RETRIES))
        with pytest.raises(Determinate, match="500"):
            call()


def test_a_server_that_answers_nothing_ends_a_call_in_time(make, proxy):
    blob = make(request_s=0.3)
    proxy.faults.extend([("PUT", "hang")])
    with pytest.raises(Indeterminate, match="did not answer"):
        blob.put("a/b/c", b"1")
    proxy.faults.extend([("GET", "hang")] * (1 + RETRIES))
    with pytest.raises(Determinate, match="did not answer"):
        blob.get("a/b/c")
    until(lambda: len(proxy.ended) == len(proxy.seen))
    assert set(proxy.ended) == {"client"}


def test_a_deletion_whose_reply_is_lost_may_be_repeated(make, proxy):
    blob = make()
    blob.put("a/b/c", b"1")
    proxy.faults.extend([("POST", "cut reply"), ("DELETE", "cut reply")])
    try:
        blob.delete("a/b/c")
    except Indeterminate:
        blob.delete("a/b/c")
    assert make(direct=True).get("a/b/c") is None


def test_a_forked_child_is_refused_at_once_and_its_parent_goes_on(make):
    blob = make(direct=True)
    blob.put("a/b/c", b"1")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            for made in (blob, make(direct=True)):  # a new object would hang as well
                try:
                    made.get("a/b/c")
                except WrongProcess:
                    said += b"refused "
        finally:
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"refused refused "
    os.waitpid(child, 0)
    assert blob.get("a/b/c") == b"1"
