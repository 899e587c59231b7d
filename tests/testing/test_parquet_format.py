"""The real format: rows come back as they were, merges and reads are those of the columnar layer."""

import math
from itertools import count, pairwise

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timespine.columnar.scan import parallel_scan, settled_run_with_changes
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.effects import DeleteBlobs, FreshId, GetBlob, MergeRuns, PutBlob
from timespine.core.encoding.codec import decode_run
from timespine.core.read_plan import Plan
from timespine.core.spine.layers import MergeRequest
from timespine.core.spine.rope import leaf
from timespine.core.state import new_state
from timespine.model import Description, Frontier
from timespine.testing.formats import parquet
from timespine.testing.formats.parquet import PATHS, VALUES, ParquetFormat
from timespine.testing.simulator.core_writes import inline_part
from timespine.testing.simulator.violation import BrokenPromise

INSERTS = [("op7.0", (3,), 1), ("op7.1", (4,), 1), ("op2.0", (4,), -1)]
"""In order. The second and third of them as they came would not be."""


def state_of(format, arity=1, schemas=0):
    """The state of a new collection whose schema has changed so many times."""
    state = new_state("c1", arity)
    state = msgspec.structs.replace(state, schemas=(format.first_schema(arity),))
    for number in range(schemas):
        state = msgspec.structs.replace(state, schemas=(*state.schemas, format.next_schema(state, f"op{number}")))
    return state


def with_column(state, *column):
    """A state whose newest schema has one more column."""
    newest = Schema.decode(state.schemas[-1])
    return msgspec.structs.replace(state, schemas=(*state.schemas, newest.add(*column).encode()))


def stored(data, key):
    """The part that data becomes under a key, and its bytes."""
    value, meta = data.sealed(key)
    return Part(key, data.rows, len(value), data.diff_sum, meta=meta), value


def chosen(format, state, updates, order):
    """Data of this order: which one it is follows from the first row."""
    for number in range(100):
        renamed = [(f"op{number}{row}", time, diff) for row, time, diff in updates]
        data = format.data_of(renamed, state)
        if data.order is order:
            return data, renamed
    raise AssertionError("never")


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("schemas", [0, 5])
def test_rows_come_back_from_a_part_and_from_inline_data(arity, order, schemas):
    format = ParquetFormat()
    state = state_of(format, arity, schemas)
    updates = [(row, time * arity, diff) for row, time, diff in INSERTS]
    data, updates = chosen(format, state, updates, order)
    schema = state.schemas[-1]
    part, value = stored(data, "c1/w1/p1")
    inline = inline_part(data)
    assert sorted(format.rows_of(part, value, schema)) == sorted(updates)
    assert sorted(format.rows_of(inline, inline.inline, schema)) == sorted(updates)
    assert (data.rows, data.diff_sum, data.schema) == (3, 1, schemas)
    if order is Order.SORTED:
        assert list(format.rows_of(part, value, schema)) == sorted(updates)


def test_a_part_is_a_parquet_file_of_several_row_groups():
    format = ParquetFormat()
    _, value = stored(format.data_of(INSERTS, state_of(format)), "c1/w1/p1")
    file = pq.ParquetFile(pa.BufferReader(value))
    assert file.metadata.num_row_groups == 2
    assert file.schema_arrow.names == ["row", "_time", "_diff"]


def test_no_rows_can_be_stored_too():
    format = ParquetFormat()
    state = state_of(format)
    part, value = stored(format.data_of([], state), "c1/w1/p1")
    assert list(format.rows_of(part, value, state.schemas[0])) == []


def test_pieces_of_a_run_are_in_its_order_and_none_is_empty():
    format = ParquetFormat()
    state = state_of(format)
    for number in range(20):
        updates = [(f"op{number}.{index}", (index,), 1) for index in reversed(range(number % 5 + 1))]
        pieces = format.pieces_of(updates, state)
        rows = [row for each in pieces for row in each.table.to_pylist()]
        assert sorted((row["row"], (row["_time"],), row["_diff"]) for row in rows) == sorted(updates)
        assert all(each.rows for each in pieces)
        assert len({each.order for each in pieces}) == 1
        if pieces[0].order is Order.SORTED:
            assert [row["row"] for row in rows] == sorted(row["row"] for row in rows)


def test_schemas_add_drop_rename_and_widen_columns_and_stay_small():
    format = ParquetFormat()
    state = state_of(format, schemas=200)
    known = [Schema.decode(each) for each in state.schemas]
    changes = set()
    for old, new in pairwise(known):
        before, after = {each.id: each for each in old.fields}, {each.id: each for each in new.fields}
        changes.add((len(after) - len(before), before.keys() == after.keys() and old.names == new.names))
        assert new.names[0] == "row"
        assert len(new.names) <= parquet.COLUMNS_MAX + 1
    assert changes == {(1, False), (-1, False), (0, False), (0, True)}


def test_a_row_with_a_value_in_a_column_that_a_writer_does_not_know_is_not_retracted_by_it():
    format = ParquetFormat()
    old = state_of(format)
    new = with_column(old, "more", "int32", 7)
    format.data_of([("a", (0,), 1)], old)
    format.data_of([("b", (0,), 1)], new)
    assert format.retractable(["a", "b", "c"], old) == ["a", "c"]
    assert format.retractable(["a", "b", "c"], new) == ["a", "b", "c"]


def test_a_row_holds_the_same_from_every_writer_and_defaults_in_columns_that_came_later():
    format = ParquetFormat()
    old = state_of(format, schemas=1)
    new = with_column(old, "late", "int32", 7)
    first = format.data_of([("op1.0", (1,), 1)], old).table.to_pylist()[0]
    again = format.data_of([("op1.0", (5,), -1)], new).table.to_pylist()[0]
    assert again.pop("late") == 7
    assert [first[name] for name in first if not name.startswith("_")] == [
        again[name] for name in again if not name.startswith("_")
    ]
    assert format.data_of([("op9.0", (5,), -1)], new).table["late"][0].as_py() in VALUES["int32"]


# Reading.


def plan_of(runs, until=(9,), after=None):
    return Plan(4, Frontier.at(0), after, until, runs, Frontier.at(10))


def written(format, state, updates, key, **bounds):
    """A run of one part, and what a read fetches for it."""
    data = format.data_of(updates, state)
    part, value = stored(data, key)
    part = msgspec.structs.replace(part, **bounds)
    return Run((part,), data.order, data.schema), (part, value)


@pytest.mark.parametrize("seqno", range(6))
def test_what_counts_is_what_is_visible(seqno):
    format = ParquetFormat()
    state = state_of(format, schemas=2)
    first, fetched = written(format, state, INSERTS, "c1/w1/p1", upper=Frontier.at(4), rewrite=Frontier.at(6))
    second, more = written(format, state, [("op2.0", (2,), 1), ("op7.0", (6,), 2)], "c1/w1/p2")
    plan = msgspec.structs.replace(plan_of((first, second), until=(6,)), seqno=seqno)
    assert format.counted(plan, [fetched, more], state) == {"op7.0": 3, "op2.0": 1}
    later = msgspec.structs.replace(plan, after=(2,))
    assert format.counted(later, [fetched, more], state) == {"op7.0": 3}


def test_what_is_inside_hollow_runs_is_read_in_their_place():
    format = ParquetFormat()
    state = state_of(format)
    pieces = [stored(each, f"c1/w1/p{number}") for number, each in enumerate(format.pieces_of(INSERTS, state))]
    order = format.pieces_of(INSERTS, state)[0].order
    hollow = Part("c1/w1/h1", 3, 99, 1, hollow=True)
    run, fetched = written(format, state, [("op9.0", (1,), 1)], "c1/w1/p8")
    plan = plan_of((Run((hollow,), order, 0), run))
    assert format.counted(plan, [*pieces, fetched], state) == {"op7.0": 1, "op7.1": 1, "op2.0": -1, "op9.0": 1}


def test_a_scan_that_disagrees_with_the_parts_is_corruption(monkeypatch):
    format = ParquetFormat()
    state = state_of(format)
    run, fetched = written(format, state, INSERTS, "c1/w1/p1")
    monkeypatch.setattr(parquet, "scan", lambda *arguments: iter(()))
    with pytest.raises(BrokenPromise, match=r"the scan of state 4 finds \{\}"):
        format.counted(plan_of((run,)), [fetched], state)


@pytest.mark.parametrize("broken", ["_scan_known", "scan_settled"])
def test_a_whole_read_of_a_settled_run_that_disagrees_with_the_parts_is_corruption(monkeypatch, broken):
    format = ParquetFormat()
    state = state_of(format)
    base, bytes_of_base = written(format, state, [(f"op{k}.0", (1,), 1) for k in range(9)], "c1/w1/p1")
    changes, bytes_of_changes = written(format, state, [("op3.0", (2,), -1)], "c1/w1/p2")
    runs, fetched = ((base, changes), [bytes_of_base, bytes_of_changes])
    module = settled_run_with_changes if broken == "_scan_known" else parallel_scan
    if broken == "scan_settled":
        runs, fetched = runs[:1], fetched[:1]
    assert len(format.counted(plan_of(runs), fetched, state)) == 10 - len(runs)
    monkeypatch.setattr(module, broken, lambda *arguments: iter(()))
    format.cache.clear()
    with pytest.raises(BrokenPromise, match=r"read of a settled run finds \{\}"):
        format.counted(plan_of(runs), fetched, state)


def test_a_sorted_run_that_is_not_sorted_is_corruption():
    format = ParquetFormat()
    state = state_of(format)
    runs = [written(format, state, [(row, (1,), 1)], f"c1/w1/p{row[2]}") for row in ("op5.0", "op3.0")]
    run = Run(tuple(part for each, _ in runs for part in each.parts), Order.SORTED, 0)
    with pytest.raises(BrokenPromise, match="a sorted run has"):
        format.counted(plan_of((run,)), [fetched for _, fetched in runs], state)


def test_a_row_with_the_wrong_value_is_corruption():
    format = ParquetFormat()
    state = with_column(state_of(format), "extra", "double", 1.5)
    run, fetched = written(format, state, INSERTS, "c1/w1/p1")
    format.columns[("c1", "op7.0")] = 0  # as if the column had come later
    with pytest.raises(BrokenPromise, match=r"op7\.0 with"):
        format.counted(plan_of((run,)), [fetched], state)


def test_some_value_is_one_that_is_not_equal_to_itself():
    assert any(isinstance(value, float) and math.isnan(value) for value in VALUES["float64"])


# Merging.


class Storage:
    """Carries out the effects of a merge."""

    def __init__(self):
        self.blobs = {}
        self.kinds = []
        self.ids = count(1)

    def run(self, protocol):
        answer = None
        while True:
            try:
                effect = protocol.send(answer)
            except StopIteration as stop:
                return stop.value
            self.kinds.append(type(effect))
            answer = None
            if isinstance(effect, FreshId):
                answer = f"{effect.prefix}{next(self.ids)}"
            elif isinstance(effect, PutBlob):
                assert self.blobs.setdefault(effect.key, effect.value) == effect.value
            elif isinstance(effect, GetBlob):
                answer = self.blobs.get(effect.key)
            else:
                assert isinstance(effect, DeleteBlobs)
                for key in effect.keys:
                    self.blobs.pop(key, None)


def request_of(runs, since=0):
    desc = Description(Frontier.at(0), Frontier.at(10), Frontier.at(since))
    batch = HollowBatch(desc, sum(part.rows for run in runs for part in run.parts), tuple(runs))
    return MergeRuns("c1", MergeRequest(desc, leaf(0, 1, batch)), "m1")


def merged(format, state, storage, runs, since=0):
    output = storage.run(format.merge_runs(request_of(runs, since), state))
    return None if output is None else output.batch


def read(format, state, storage, batch):
    """Everything in a batch, by the parts that a read would fetch."""
    fetched, waiting = [], list(batch.parts)
    while waiting:
        part = waiting.pop(0)
        data = part.inline if part.inline is not None else storage.blobs[part.key]
        if part.hollow:
            waiting[:0] = decode_run(part.key, data)
        else:
            fetched.append((part, data))
    return format.counted(plan_of(batch.runs), fetched, state)


def put(format, state, storage, updates, key, **bounds):
    run, (part, value) = written(format, state, updates, key, **bounds)
    storage.blobs[part.key] = value
    return run


def rows(first, number, time=1):
    return [(f"op{first}.{index}", (time,), 1) for index in range(number)]


def test_a_merge_consolidates_and_gives_the_same_names_again():
    format, storage = ParquetFormat(), Storage()
    state = state_of(format)
    runs = [put(format, state, storage, [("op1.0", (1,), 1), ("op1.1", (1,), 1)], "c1/w1/p1")]
    runs.append(put(format, state, storage, [("op1.0", (2,), -1), ("op1.1", (2,), 1)], "c1/w1/p2"))
    batch = merged(format, state, storage, runs, since=5)
    assert read(format, state, storage, batch) == {"op1.1": 2}
    again = Storage()
    again.blobs = {key: value for key, value in storage.blobs.items() if "/w1/" in key}
    assert merged(ParquetFormat(), state, again, runs, since=5) == batch
    assert again.blobs == storage.blobs


def test_a_missing_input_gives_nothing_and_leaves_nothing():
    format, storage = ParquetFormat(), Storage()
    state = state_of(format)
    runs = [put(format, state, storage, rows(number, 6), f"c1/w1/p{number}") for number in range(1, 5)]
    del storage.blobs["c1/w1/p4"]
    runs.append(put(format, state, storage, [*rows(1, 3), *rows(4, 3)], "c1/w1/p5"))
    before = dict(storage.blobs)
    assert merged(format, state, storage, runs) is None
    assert storage.blobs == before


def test_merges_reach_every_kind_of_result():
    format, storage = ParquetFormat(), Storage()
    state = state_of(format)
    apart = [put(format, state, storage, rows(number, 2), f"c1/w1/p{number}") for number in range(1, 9)]
    merged(format, state, storage, apart)
    assert format.counts["parts passed through"] > 0
    over = [
        put(format, state, storage, [*rows(1, 3, time), *rows(9, 3, time)], f"c1/w2/p{time}") for time in range(1, 9)
    ]
    batch = merged(format, state, storage, over)
    assert read(format, state, storage, batch) == {f"op{first}.{index}": 8 for first in (1, 9) for index in range(3)}
    assert format.counts["hollow runs"] > 0
    assert format.counts["merges in rounds"] == 1
    assert DeleteBlobs in storage.kinds
    tiny = [format.data_of(rows(number, 1), state) for number in (1, 2)]
    inline = [Run((inline_part(data),), data.order, 0) for data in tiny]
    merged(format, state, storage, inline)
    assert format.counts["inline results"] == 1
    assert set(format.counts) <= set(PATHS)
