"""Hollow things: what is known of data without holding it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.core.batch import HollowBatch, Order, Part, Run, empty_batch, wrap_int64
from timespine.model import Description, Frontier
from timespine.model.time import INT64_MAX, INT64_MIN
from timespine.testing import strategies as ts

DESC = Description(Frontier.at(0), Frontier.at(1), Frontier.at(0))


@given(st.integers())
def test_wrapping_keeps_the_value_modulo_2_64(value: int) -> None:
    wrapped = wrap_int64(value)
    assert INT64_MIN <= wrapped <= INT64_MAX
    assert (wrapped - value) % (1 << 64) == 0


def test_wrapping_by_example() -> None:
    assert wrap_int64(INT64_MAX + 1) == INT64_MIN
    assert wrap_int64(INT64_MIN - 1) == INT64_MAX
    assert wrap_int64(-7) == -7


def test_the_sum_of_a_truncated_part_is_not_known() -> None:
    part = Part("k", 3, diff_sum=5)
    assert part.visible_diff_sum == 5
    for truncated in (
        msgspec.structs.replace(part, lower=Frontier.at(1)),
        msgspec.structs.replace(part, upper=Frontier.at(1)),
    ):
        assert truncated.is_truncated
        assert truncated.visible_diff_sum is None
    assert not msgspec.structs.replace(part, rewrite=Frontier.at(1)).is_truncated


def test_the_sum_of_a_batch_is_known_if_it_is_for_every_part() -> None:
    a, b, unknown = Part("a", 1, diff_sum=INT64_MAX), Part("b", 1, diff_sum=2), Part("c", 1)
    assert HollowBatch(DESC, 2, (Run((a,)), Run((b,)))).diff_sum == INT64_MIN + 1
    assert HollowBatch(DESC, 2, (Run((a, b)), Run((unknown,)))).diff_sum is None
    assert empty_batch(DESC).diff_sum == 0


def test_a_batch_lists_its_parts_in_order_and_the_keys_of_those_that_are_blobs() -> None:
    a, b = Part("a", 1), Part("b", 1, inline=None)
    tiny = Part("", 1, inline=b"123")
    batch = HollowBatch(DESC, 3, (Run((a, tiny)), Run((b,), Order.UNORDERED, 7)))
    assert list(batch.parts) == [a, tiny, b]
    assert list(batch.keys) == ["a", "b"]
    assert batch.inline_bytes == 3
    assert not batch.is_empty
    assert empty_batch(DESC).is_empty


@given(ts.descriptions(2).flatmap(ts.hollow_batches))
@settings(max_examples=40)
def test_a_batch_survives_encoding(batch: HollowBatch) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=HollowBatch) == batch


@pytest.mark.parametrize("wrong", [-1, (1 << 62) + 1])
def test_counts_out_of_range_are_not_decoded(wrong: int) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(HollowBatch(DESC, wrong)), type=HollowBatch)


def test_one_sorted_run_and_a_past_run_beside_it_are_sorted() -> None:
    live, past = Run((Part("a", 1),)), Run((Part("b", 2),), zero_from=(3,))
    loose = Run((Part("c", 1),), Order.UNORDERED)
    for runs in ((), (live,), (past,), (live, past)):
        assert HollowBatch(DESC, 0, runs).is_sorted
    for runs in ((live, live), (past, past), (loose,), (loose, past), (live, live, past)):
        assert not HollowBatch(DESC, 0, runs).is_sorted
