"""Long runs: the tree of hollow runs, what a reference to one says, and how a batch is deleted."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
from building import SCHEMA, hollow
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.parts.part_list_tree import Levels, delete_batch, is_written_by, read_run
from timespine.columnar.parts.part_stats import PartMeta, Range
from timespine.columnar.scan.part_access import DEPTH_MAX, Parts
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.upload import UploadTarget
from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.codec import decode_run, encode_run
from timespine.errors import CorruptionError, UsageError
from timespine.location.memory import MemoryBlob
from timespine.model import Description, Frontier
from timespine.testing.unreliable import Fault, UnreliableBlob

at = Frontier.at
DESC = Description(at(0), at(9), at(0))


def part(number, writer="w1", **fields):
    return Part(f"orders/{writer}/p{number}", rows=number + 1, size=7, diff_sum=number, **fields)


def meta(lower=b"a", upper=b"z", times=((0,), (0,)), diffs=(1, 1), columns=None, tail=99):
    return PartMeta(tail, b"hash" if tail else b"", lower, upper, *times, *diffs, columns or {})


class Lists:
    """Where lists go, and a writer of runs that puts them there."""

    def __init__(self, writer="w1"):
        self.blob = MemoryBlob()
        self.writer = writer
        self.number = 0

    def fresh(self):
        self.number += 1
        return f"orders/{self.writer}/h{self.number}"

    def put(self, key, data):
        self.blob.put(key, data)

    def spill(self, parts, limit, hides=lambda part: False):
        """The parts of a run as its writer lists them."""
        target = UploadTarget("orders", self.writer, SCHEMA, 0, self.blob, replace(DEFAULT, run_parts=limit))
        run_writer = RunWriter(target, lambda prefix: self.fresh().rpartition("/")[2], {})
        for each in parts:
            run_writer.refer((each,), is_hidden=hides(each))
        return tuple(each for run in run_writer.finish() for each in run.parts)

    def listed(self, *children):
        """A list of these parts in its blob, and the bytes of it."""
        key = self.fresh()
        data = encode_run(key, children)
        self.put(key, data)
        return key, data

    def leaves(self, parts, depth=0):
        """All parts with rows, in order, each with its depth."""
        for each in parts:
            if each.hollow:
                children = read_run(each, self.blob)
                yield from self.leaves(children, depth + 1)
            else:
                yield each, depth


def batch_of(*parts):
    return HollowBatch(DESC, sum(each.rows for each in parts), (Run(parts),))


# The tree.


def gathered(limit, number):
    levels = Levels(limit, tuple)
    for each in range(number):
        levels.push(each)
    return levels.finish()


def flattened(things):
    for thing in things:
        if isinstance(thing, tuple):
            yield from flattened(thing)
        else:
            yield thing


def depth_of(things):
    return max((1 + depth_of(thing) for thing in things if isinstance(thing, tuple)), default=0)


def widest(things):
    return max([len(things), *(widest(thing) for thing in things if isinstance(thing, tuple))])


@given(st.integers(1, 7), st.integers(0, 300))
def test_a_tree_keeps_order_and_is_narrow_and_balanced(limit, number) -> None:
    things = gathered(limit, number)
    assert list(flattened(things)) == list(range(number))
    limit = max(limit, 2)
    assert widest(things) <= limit
    if number <= limit:
        assert things == list(range(number))
    # Full levels alone would have this depth; leftovers of each level cost at most one more.
    assert depth_of(things) <= math.ceil(math.log(max(number, 2), limit)) + 1


def test_a_tree_by_example() -> None:
    assert gathered(3, 4) == [(0, 1, 2), 3]
    assert gathered(3, 9) == [((0, 1, 2), (3, 4, 5), 6), 7, 8]
    levels = Levels(3, tuple)
    for each in range(13):
        levels.push(each)
    assert levels.levels == [[12], [(9, 10, 11)], [((0, 1, 2), (3, 4, 5), (6, 7, 8))]]
    assert levels.finish() == [((0, 1, 2), (3, 4, 5), (6, 7, 8)), (9, 10, 11), 12]
    assert levels.levels == [[]], "it can be used again"


# Spilling.


@given(st.integers(2, 6), st.lists(st.booleans(), max_size=60))
@settings(max_examples=150)
def test_spilling_keeps_every_part_in_its_place_and_hides_what_must_not_be_listed(limit, hidden) -> None:
    lists = Lists()
    parts = [part(number, "w0" if hides else "w1") for number, hides in enumerate(hidden)]
    hides = is_written_by("orders", "w0")
    spilled = lists.spill(parts, limit, hides)
    leaves = list(lists.leaves(spilled))
    assert [leaf for leaf, _ in leaves] == parts
    assert not any(hides(each) for each in spilled)
    assert len(spilled) <= (1 if any(hidden) else limit)
    assert sum(each.rows for each in spilled) == sum(each.rows for each in parts)
    assert sum(each.total_bytes for each in spilled) == sum(each.size for each in parts) + sum(
        info.size for info in lists.blob.list_keys()
    )
    if len(parts) <= limit and not any(hidden):
        assert spilled == tuple(parts)
        assert lists.number == 0
    for info in lists.blob.list_keys():
        assert len(decode_run(info.key, lists.blob.get(info.key))) <= limit


def test_inline_data_is_not_a_blob_of_the_writer() -> None:
    own = is_written_by("orders", "w1")
    assert own(part(1))
    assert not own(part(1, "w10"))
    assert not own(Part("orders2/w1/p1", 1))
    assert not own(Part("", 1, inline=b"x"))
    with pytest.raises(UsageError):
        is_written_by("orders", "w/1")


# What a reference says.


def test_a_reference_speaks_for_everything_inside() -> None:
    children = (
        part(
            1,
            meta=meta(
                b"c", b"f", ((3, 1), (4, 9)), (-2, 1), {1: Range(b"b", b"c", 1), 2: Range(b"x", b"x", 0)}
            ).encode(),
        ),
        part(2, meta=meta(b"g", b"k", ((2, 5), (8, 6)), (1, 7), {1: Range(b"a", b"b", 2)}).encode()),
    )
    run = hollow("orders/w1/h1", children, 123)
    assert run == Part("orders/w1/h1", rows=5, size=123, diff_sum=3, hollow=True, meta=run.meta, inside_bytes=14)
    assert PartMeta.decode(run.meta) == meta(b"c", b"k", ((2, 1), (8, 9)), (-2, 7), {1: Range(b"a", b"c", 3)}, tail=0)


def test_what_is_not_known_of_one_part_is_not_known_of_the_run() -> None:
    known, unknown = meta(b"c", b"f").encode(), meta(None, None).encode()
    covering = PartMeta.decode(hollow("k", (part(1, meta=known), part(2, meta=unknown)), 1).meta)
    assert (covering.lower, covering.upper) == (None, None)
    assert hollow("k", (part(1, meta=known), part(2)), 1).meta == b""
    half = {1: Range(b"a", None, 0)}
    both = (part(1, meta=meta(columns=half).encode()), part(2, meta=meta(columns={1: Range(b"b", b"c", 0)}).encode()))
    assert PartMeta.decode(hollow("k", both, 1).meta).columns == {1: Range(b"a", None, 0)}


def test_a_part_with_nothing_but_nulls_is_no_reason_to_know_less() -> None:
    nulls = part(1, meta=meta(columns={1: Range(None, None, 2)}).encode())
    valued = part(2, meta=meta(columns={1: Range(b"b", b"c", 1)}).encode())
    assert PartMeta.decode(hollow("k", (nulls, valued), 1).meta).columns == {1: Range(b"b", b"c", 3)}
    assert PartMeta.decode(hollow("k", (nulls, nulls), 1).meta).columns == {1: Range(None, None, 4)}


def test_the_sum_of_a_run_wraps_and_is_unknown_if_one_of_its_parts_is_cut() -> None:
    most = msgspec.structs.replace(part(1), diff_sum=(1 << 63) - 1)
    assert hollow("k", (most, part(2)), 1).diff_sum == -(1 << 63) + 1
    assert hollow("k", (most, part(2, lower=at(1))), 1).diff_sum is None
    assert hollow("k", (most, msgspec.structs.replace(part(2), diff_sum=None)), 1).diff_sum is None


# Reading.


def test_a_run_that_is_not_what_its_reference_says_is_corrupt() -> None:
    lists = Lists()
    key, data = lists.listed(part(1), part(2))
    run = hollow(key, (part(1), part(2)), len(data))
    assert read_run(run, lists.blob) == (part(1), part(2))
    with pytest.raises(CorruptionError, match="bytes"):
        read_run(msgspec.structs.replace(run, size=len(data) + 1), lists.blob)
    with pytest.raises(CorruptionError, match="updates"):
        read_run(msgspec.structs.replace(run, rows=6), lists.blob)
    assert read_run(msgspec.structs.replace(run, key="orders/w1/gone"), lists.blob) is None


@pytest.mark.parametrize(
    "child",
    [
        Part("items/w1/p1", 1),
        Part("", 1),
        Part("", 1, inline=b"x", hollow=True),
        Part("../../p1", 1),
    ],
)
def test_a_run_that_lists_foreign_or_nameless_parts_is_corrupt(child) -> None:
    lists = Lists()
    key, data = lists.listed(child)
    with pytest.raises(CorruptionError, match="lists"):
        read_run(Part(key, 1, len(data), hollow=True), lists.blob)


def test_a_run_may_list_inline_data() -> None:
    lists = Lists()
    children = (Part("", 1, 1, 1, inline=b"x"), part(1))
    key, data = lists.listed(*children)
    assert read_run(hollow(key, children, len(data)), lists.blob) == children


def test_two_lists_that_changed_places_are_corrupt() -> None:
    lists = Lists()
    (one, data), (other, same_size) = lists.listed(part(1)), lists.listed(part(2))
    assert len(data) == len(same_size)
    swapped = MemoryBlob()
    swapped.put(one, same_size)
    swapped.put(other, data)
    for key, child in ((one, part(1)), (other, part(2))):
        with pytest.raises(CorruptionError, match="says that it is"):
            read_run(hollow(key, (child,), len(data)), swapped)


def test_a_list_that_comes_back_to_itself_cannot_say_how_many_bytes_are_inside() -> None:
    lists = Lists()
    ends = [lists.fresh(), lists.fresh()]
    size = len(encode_run(ends[0], (Part(ends[1], 1, 99, 1, hollow=True),)))
    for key, other in zip(ends, reversed(ends), strict=True):
        lists.put(key, encode_run(key, (Part(other, 1, size, 1, hollow=True),)))
    parts = Parts(lists.blob, "orders", lambda id: None, DEFAULT, PartCache(1 << 20))
    with pytest.raises(CorruptionError, match=f"lists {size} bytes, not 0"):
        list(parts.leaves((Part(ends[0], 1, size, 1, hollow=True),)))


def test_lists_inside_of_lists_end_at_the_limit_of_depth() -> None:
    lists = Lists()
    nested = part(1)
    for depth in range(DEPTH_MAX + 1):
        parts = Parts(lists.blob, "orders", lambda id: None, DEFAULT, PartCache(1 << 20))
        assert list(parts.leaves((nested,))) == [part(1)], f"{depth} levels"
        key, data = lists.listed(nested)
        nested = hollow(key, (nested,), len(data))
    with pytest.raises(CorruptionError, match="deep"):
        list(parts.leaves((nested,)))


def test_a_list_of_other_bytes_than_the_reference_says_is_corrupt() -> None:
    lists = Lists()
    key, data = lists.listed(part(1), part(2))
    whole = hollow(key, (part(1), part(2)), len(data))
    assert whole.total_bytes == len(data) + 14
    with pytest.raises(CorruptionError, match="lists 14 bytes, not 15"):
        read_run(msgspec.structs.replace(whole, inside_bytes=15), lists.blob)


# Deleting.


def stored(number, limit=2, writer="w1"):
    """A run of parts that are all there, spilled."""
    lists = Lists(writer)
    parts = [part(each, writer) for each in range(number)]
    for each in parts:
        lists.blob.put(each.key, b"rows")
    return lists, lists.spill(parts, limit)


class Watched(MemoryBlob):
    """Remembers in which order blobs went."""

    def __init__(self, inner):
        super().__init__()
        self._values = inner._values
        self.gone = []

    def delete(self, key):
        self.gone.append(key)
        return super().delete(key)


@pytest.mark.parametrize("pooled", [False, True])
def test_deleting_a_batch_leaves_nothing_and_takes_children_before_their_run(pooled) -> None:
    lists, parts = stored(23)
    inside = {
        info.key: [child.key for child in decode_run(info.key, lists.blob.get(info.key))]
        for info in lists.blob.list_keys()
        if "/h" in info.key
    }
    assert len(inside) > 8
    blob, counters = Watched(lists.blob), {}
    pool = ThreadPoolExecutor(3) if pooled else None
    try:
        left = delete_batch(batch_of(*parts), blob, owned=is_written_by("orders", "w1"), counters=counters, pool=pool)
    finally:
        if pool is not None:
            pool.shutdown()
    assert left == 0
    assert counters == {}
    assert list(blob.list_keys()) == []
    assert len(blob.gone) == len(set(blob.gone)) == 23 + len(inside)
    for run, children in inside.items():
        assert all(blob.gone.index(child) < blob.gone.index(run) for child in children)


def test_deleting_again_is_fine() -> None:
    lists, parts = stored(9)
    for _ in range(2):
        assert delete_batch(batch_of(*parts), lists.blob, owned=is_written_by("orders", "w1"), counters={}) == 0


def test_deleting_leaves_alone_what_was_passed_on_from_others() -> None:
    lists, parts = stored(5)
    foreign = part(77, "w0")
    lists.blob.put(foreign.key, b"rows")
    inline = Part("", 1, 1, 1, inline=b"x")
    batch = batch_of(foreign, *parts, inline)
    assert delete_batch(batch, lists.blob, owned=is_written_by("orders", "w1"), counters={}) == 0
    assert [info.key for info in lists.blob.list_keys()] == [foreign.key]


@given(st.sets(st.integers(0, 16)), st.integers(2, 4))
@settings(max_examples=60)
def test_a_run_stays_while_something_inside_of_it_is_left(stuck, limit) -> None:
    lists, parts = stored(17, limit)
    refused = {f"orders/w1/p{number}" for number in stuck}
    blob = UnreliableBlob(
        lists.blob, lambda operation, key: Fault.DETERMINATE if operation == "delete" and key in refused else Fault.NONE
    )
    counters = Counter()
    owned = is_written_by("orders", "w1")
    left = delete_batch(batch_of(*parts), blob, owned=owned, counters=counters)
    remaining = {info.key for info in lists.blob.list_keys()}
    assert len(remaining) == left == counters["left to the sweep"]
    reachable = {each.key for each in parts if each.key in remaining}
    for each in parts:
        if each.hollow and each.key in remaining:
            reachable |= {key for key in _below(each, lists.blob) if key in remaining}
    assert reachable == remaining, "whoever tries again finds what is left"
    assert delete_batch(batch_of(*parts), lists.blob, owned=owned, counters=counters) == 0
    assert list(lists.blob.list_keys()) == []


def _below(run, blob):
    for child in read_run(run, blob) or ():
        yield child.key
        if child.hollow:
            yield from _below(child, blob)


def test_a_run_that_cannot_be_read_is_left_where_it_is() -> None:
    lists, parts = stored(3)
    (run, *_) = (each for each in parts if each.hollow)
    lists.blob.delete(run.key)
    lists.blob.put(run.key, b"something else")
    counters = {}
    assert delete_batch(batch_of(*parts), lists.blob, owned=is_written_by("orders", "w1"), counters=counters) == 1
    assert counters == {"left to the sweep": 1}
    unavailable = UnreliableBlob(MemoryBlob(), lambda operation, key: Fault.INDETERMINATE_NOT)
    assert delete_batch(batch_of(run), unavailable, owned=is_written_by("orders", "w1"), counters=counters) == 1
    assert counters == {"left to the sweep": 2}
