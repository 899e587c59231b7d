"""A merge of a long run with few changes gives what the oracle gives, and decodes what is touched alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from building import keys_in
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, updates_of
from test_merge_engine import KV, check_runs, comparable, kv, leaves, merge, output, rows_of

from timespine.columnar.merge import around_changes
from timespine.columnar.parts import part_writer
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan.scan import needs_no_merge, scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.schema.schema import define
from timespine.core.batch import wrap_int64
from timespine.errors import CorruptionError
from timespine.model.frontier import Frontier
from timespine.model.oracle import compact

some = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
GROUPS = replace(CONFIG, part_bytes=1 << 20, inline_part_bytes=1, run_parts=2)
"""Row groups of three rows, and no small parts: they would be encoded again."""
TEXT = define({"k": "string"}, {"v": "double"})


@pytest.fixture(autouse=True)
def every_row_group_is_worth_a_copy(monkeypatch):
    monkeypatch.setattr(around_changes, "COPIED_GROUPS_MIN", 1)
    monkeypatch.setattr(around_changes, "SMALL", 1 << 40)
    monkeypatch.setattr(around_changes, "UNTOUCHED_SHARE", 1 << 60)


def copied_by(place, runs, since=None, **options):
    counters = {}
    found = output(place, runs, since, counters_of=lambda collection: counters, **options)
    return found, counters.get("merge rows copied", 0)


@st.composite
def histories(draw):
    """A long run of rows that are there once, changes to it in one or two runs, and a since."""
    keys = st.text("ab", min_size=1, max_size=20)
    values = st.sampled_from([None, 0.5, 1.0, float("nan")])
    base = draw(st.dictionaries(keys, values, min_size=8, max_size=40))
    long = [((k, v), (draw(st.integers(0, 2)),), draw(st.sampled_from([1, 1, 1, 2]))) for k, v in base.items()]
    changes = []
    for time in (3, 4):
        touched = draw(st.lists(st.sampled_from(sorted(base)) | keys, max_size=4, unique=True))
        for k in touched:
            if k in base:
                changes.append(((k, base[k]), (time,), -1))
            if draw(st.booleans()):
                changes.append(((k, draw(values)), (time,), 1))
    return long, changes, draw(st.integers(0, 5)), draw(st.lists(st.integers(0, 40), max_size=3))


@some
@examples(histories(), st.sampled_from([GROUPS, replace(GROUPS, part_bytes=300)]), st.booleans())
def test_a_merge_around_changes_gives_what_the_oracle_gives(history, config, whole):
    long, changes, since, cuts = history
    place = Place([TEXT], config=replace(config, bound_bytes=4 if whole else 12))
    runs = [place.run(long, cuts=cuts)]
    runs += [run for time in (3, 4) if (run := place.run([each for each in changes if each[1] == (time,)])).parts]
    frontier = Frontier.at(since)
    before = set(keys_in(place.blob))
    found, _ = copied_by(place, runs, frontier)
    given, _ = rows_of(place, found.batch)
    # Times of what is passed or copied are not advanced: to a reader from since on, that is the same.
    assert comparable(compact(_keyed(given), frontier)) == comparable(compact(_keyed([*long, *changes]), frontier))
    check_runs(place, found.batch)
    assert found.batch.diff_sum == wrap_int64(sum(diff for _, _, diff in [*long, *changes]))
    for part in leaves(place, found.batch):
        if part.inline is None:
            place.parts().open(part, 0, TEXT).verify()
    added = set(keys_in(place.blob)) - before
    assert {part.key for part in leaves(place, found.batch) if "/m1/" in part.key} <= added


@some
@examples(histories())
def test_filters_that_are_copied_with_row_groups_find_every_key(history):
    """Parts of a few rows have filters and dictionaries here, which only larger ones have otherwise."""
    long, changes, since, cuts = history
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(part_writer, "BLOOM_ROWS_MIN", 1)
        patched.setattr(part_writer, "DICTIONARY_ROWS_MIN", 1)
        place = Place([TEXT], config=replace(GROUPS, bound_bytes=12))
        runs = [place.run(long, cuts=cuts), place.run(changes)]
        found, _ = copied_by(place, [run for run in runs if run.parts], Frontier.at(since))
    stored = [part for part in leaves(place, found.batch) if part.inline is None]
    assert all(place.parts().open(part, 0, TEXT).footer.blooms for part in stored)
    for name in {row[0] for row, _, _ in [*long, *changes]}:
        wanted = ScanRequest(TEXT, TEXT.names, keep_times=True, keys=KeySet(pa.table({"k": [name]})))
        tables = scan(place.parts(audit=1.0), found.batch.runs, wanted, 1 << 20)
        seen = [update for table in tables for update in updates_of(table, TEXT)]
        expected = [each for each in [*long, *changes] if each[0][0] == name]
        frontier = Frontier.at(since)
        assert comparable(compact(_keyed(seen), frontier)) == comparable(compact(_keyed(expected), frontier))


def _keyed(updates):
    """NaN is one value: as text it is equal to itself."""
    return [((row[0], str(row[1])), time, diff) for row, time, diff in updates]


def test_an_upsert_of_one_percent_encodes_at_most_three_times_what_it_touches(monkeypatch):
    monkeypatch.undo()
    config = replace(GROUPS, row_group_rows=100, part_bytes=1 << 20, bound_bytes=64)
    place = Place([KV], config=config)
    base = place.run([kv(n, time=1) for n in range(20_000)])
    upsert = place.run([each for n in range(7_000, 7_200) for each in (kv(n, "x", 2, -1), kv(n, "y", 2, 1))])
    found, copied = copied_by(place, [base, upsert])
    touched = 200 + 400
    assert found.rows - copied <= 3 * touched
    assert found.batch.len == 20_000 + 400
    (live,) = [run for run in found.batch.runs if run.zero_from is None]
    assert needs_no_merge(place.parts(), live, ScanRequest(KV, KV.names)), "a reader of what is live still scans"


def test_parts_between_two_changes_are_passed_by_reference():
    place = Place([KV], config=GROUPS)
    base = place.run([kv(n, time=1) for n in range(0, 100, 2)], cuts=range(10, 50, 10))
    changes = place.run([kv(1, "new", 2), kv(95, "new", 2)])
    batch = merge(place, [base, changes])
    listed = [part.key for part in leaves(place, batch)]
    assert [key for key in listed if "/w1/" in key] == [part.key for part in base.parts[1:4]]
    assert len(rows_of(place, batch)[0]) == 52


def test_parts_after_many_merges_keep_row_groups_of_the_usual_size(monkeypatch):
    monkeypatch.undo()
    config = replace(GROUPS, row_group_rows=64, bound_bytes=64)
    place = Place([KV], config=config)
    run = place.run([kv(n, time=0) for n in range(0, 20_000, 10)])
    for time in range(1, 12):
        more = place.run([kv(n, time=time) for n in range(5_001, 5_200, 10 if time % 2 else 7)])
        gone = place.run([kv(n, time=time, diff=-1) for n in range(10_000 + 400 * time, 10_390 + 400 * time, 10)])
        batch = merge(place, [run, more, gone], Frontier.at(time))
        (run,) = [each for each in batch.runs if each.zero_from is None]
        place.writer = f"w{time}"
    sizes = []
    parts = place.parts()
    for part in parts.leaves(run.parts):
        reader = parts.open(part, 0, KV)
        sizes += [reader.group_rows(group) for group in range(reader.groups)]
    assert max(sizes) <= 96
    assert len(sizes) <= 2 * sum(sizes) / 64


def test_a_long_run_that_has_a_row_twice_or_nested_columns_is_merged_whole():
    place = Place([KV], config=GROUPS)
    twice = place.run([kv(n, time=1) for n in range(40)] + [kv(5, time=2)])
    _, copied = copied_by(place, [twice, place.run([kv(20, "y", 3)])])
    assert copied == 0
    nested = define({"k": "int64"}, {"v": "list<int64>"})
    place = Place([nested], config=GROUPS)
    long = place.run([((n, [n]), (1,), 1) for n in range(40)])
    _, copied = copied_by(place, [long, place.run([((20, [0]), (2,), 1)])])
    assert copied == 0


def test_a_part_that_is_gone_while_it_is_copied_ends_the_merge_without_a_trace():
    place = Place([KV], config=GROUPS)
    base = place.run([kv(n, time=1) for n in range(60)])
    change = place.run([kv(30, "y", 2)])
    before = set(keys_in(place.blob))
    get = place.blob.get_range
    # The footers are read before anything is copied.
    place.blob.get_range = lambda key, start, stop: (
        None if key == base.parts[0].key and start == 4 else get(key, start, stop)
    )
    assert output(place, [base, change]) is None
    assert set(keys_in(place.blob)) == before


def test_a_damaged_row_group_is_not_copied():
    place = Place([KV], config=GROUPS)
    base = place.run([kv(n, time=1) for n in range(60)])
    change = place.run([kv(30, "y", 2)])
    get = place.blob.get_range
    place.blob.get_range = lambda key, start, stop: (
        b"\x00" * (stop - start) if key == base.parts[0].key and start == 4 else get(key, start, stop)
    )
    with pytest.raises(CorruptionError, match="is not what was written"):
        output(place, [base, change])


def test_row_groups_with_another_hash_are_encoded_again():
    place = Place([KV], config=replace(GROUPS, piece_hash="sha256"))
    base = place.run([kv(n, time=1) for n in range(60)])
    change = place.run([kv(30, "y", 2)])
    copied = {}
    for piece_hash in ("sha256", "xxh3"):
        place.config = replace(GROUPS, piece_hash=piece_hash)
        found, copied[piece_hash] = copied_by(place, [base, change])
        assert rows_of(place, found.batch)[0] == rows_of(place, output(place, [base, change]).batch)[0]
        readers = [place.parts().open(part, 0, KV) for part in leaves(place, found.batch)]
        assert {reader.footer.piece_hash for reader in readers} == {piece_hash}
        for reader in readers:
            reader.verify()
    assert copied["sha256"] > 0 == copied["xxh3"]
