"""The sequence that is cheap to append to."""

from __future__ import annotations

import pytest

from timespine.core.chunks import CHUNK, Chunks

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7]


@pytest.mark.parametrize("size", SIZES)
def test_chunks_are_their_items_in_order(size: int) -> None:
    chunks = Chunks.of(range(size))
    assert list(chunks) == list(range(size))
    assert len(chunks) == size
    assert chunks.last == (size - 1 if size else None)


@pytest.mark.parametrize("size", SIZES)
def test_appending_one_by_one_is_the_same_as_all_at_once(size: int) -> None:
    one_by_one: Chunks[int] = Chunks()
    for item in range(size):
        one_by_one = one_by_one.append(item)
    assert one_by_one == Chunks.of(range(size))
    assert one_by_one == Chunks[int]().extend(range(size))
    assert (one_by_one.full, one_by_one.tail) == (Chunks.of(range(size)).full, Chunks.of(range(size)).tail)
    assert hash(one_by_one) == hash(Chunks.of(range(size)))


def test_append_leaves_the_old_sequence_alone() -> None:
    old = Chunks.of(range(CHUNK - 1))
    new = old.append(99)
    assert len(old) == CHUNK - 1
    assert new.last == 99
    assert len(new.full) == 1


def test_append_shares_all_full_chunks() -> None:
    old = Chunks.of(range(5 * CHUNK))
    new = old.append(1)
    assert all(mine is theirs for mine, theirs in zip(new.full, old.full, strict=True))


def test_equality_is_that_of_the_items() -> None:
    assert Chunks.of([1, 2]) == Chunks.of([1, 2])
    assert (Chunks.of([1, 2]) == Chunks.of([2, 1])) is False
    assert (Chunks.of([1]) == Chunks.of([1, 1])) is False
    assert (Chunks.of([1]) == [1]) is False
    same = Chunks.of([float("nan")])
    assert same == same


def test_inequality_is_the_opposite_of_equality() -> None:
    assert (Chunks.of([1, 2]) != Chunks.of([1, 2])) is False


def test_what_comes_after_the_shared_chunks_is_all_that_is_looked_at() -> None:
    old = Chunks.of(range(4 * CHUNK + 3))
    new = old.append(7)
    assert list(new.after_common(old)) == [*range(4 * CHUNK, 4 * CHUNK + 3), 7]
    assert list(old.after_common(new)) == list(range(4 * CHUNK, 4 * CHUNK + 3))


def test_what_differs_in_the_first_chunk_is_looked_at_as_a_whole() -> None:
    old = Chunks.of(range(2 * CHUNK))
    new = Chunks.of(range(1, 2 * CHUNK + 1))
    assert list(new.after_common(old)) == list(new)


def test_what_one_has_more_chunks_of_is_looked_at() -> None:
    short = Chunks.of(range(CHUNK))
    long = short.extend(range(2 * CHUNK))
    assert list(long.after_common(short)) == list(range(2 * CHUNK))
    assert list(short.after_common(long)) == []
